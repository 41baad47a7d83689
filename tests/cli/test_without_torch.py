"""Without torch: comparing works, and what measures or traces a model names the line that installs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)

INSTALL = 'pip install "gpubench[run]"'


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory) -> dict[str, str]:
    """An environment in whose processes torch cannot be found, as where it was never installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    (folder / "mine.py").write_text("import torch\n\ndef build(batch_size):\n    ...\n")
    return os.environ | {
        "PYTHONPATH": str(folder),
        "GPUBENCH_RESULTS": str(folder / "results"),
        "XDG_DATA_HOME": str(folder),
    }


def gpubench(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpubench", *arguments]
    return subprocess.run(
        command, env=environment, cwd=environment["PYTHONPATH"], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("run", "cnn"), 3, INSTALL),
        (("run", "--micro-only"), 3, INSTALL),
        (("memory", "./mine.py"), 2, INSTALL),
        (("rank", "./mine.py"), 2, INSTALL),
        (("feed",), 2, 'pip install "gpubench[augment]"'),
    ],
)
def test_what_needs_torch_names_the_line_that_installs_it(no_torch, arguments, code, line):
    done = gpubench(no_torch, *arguments)
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, line in last) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [("rank", "--limit", "1"), ("memory", "cnn", "--gpu", "a10"), ("report", "-o", "x.html")]
)
def test_comparing_needs_none(no_torch, arguments):
    done = gpubench(no_torch, *arguments)
    assert done.returncode == 0, done.stderr


def test_the_doctor_names_it_too(no_torch):
    assert INSTALL in gpubench(no_torch, "doctor").stdout
