"""Without torch, comparing works; verbs that measure or trace a model fail and print the pip command for torch.

Without transformers everything works except a Hugging Face config, which names its own command.
"""

from __future__ import annotations

import os
import subprocess

import pytest
from command import gpubench

INSTALL = "pip install 'torch>=2.4'"


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory) -> dict[str, str]:
    """An environment in which processes cannot find torch, as if it had never been installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    (folder / "mine.py").write_text("import torch\n\ndef build(batch_size):\n    ...\n")
    return os.environ | {
        "PYTHONPATH": str(folder),
        "GPUBENCH_RESULTS": str(folder / "results"),
        "XDG_DATA_HOME": str(folder),
    }


def without_torch(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return gpubench(environment, *arguments, cwd=environment["PYTHONPATH"])


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("run", "cnn"), 3, INSTALL),
        (("run", "--micro", "only"), 3, INSTALL),
        (("memory", "./mine.py"), 2, INSTALL),
        (("rank", "./mine.py"), 2, INSTALL),
        (("feed",), 2, f"{INSTALL} 'kornia>="),
    ],
)
def test_commands_that_need_torch_print_how_to_install_it(no_torch, arguments, code, line):
    done = without_torch(no_torch, *arguments)
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, line in last) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["run", "rank"])
def test_hugging_face_config_without_transformers_prints_how_to_install_it(tmp_path, verb):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['transformers'] = None\n")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = without_torch(environment, verb, "--workload", f"hf:{tmp_path / 'config.json'}")
    line = "transformers, which is not installed: pip install 'transformers>="
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.strip().splitlines()[-1].count(line) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("rank", "--limit", "1"), ("memory", "cnn", "--gpu", "a10")])
def test_comparison_verbs_work_without_torch(no_torch, arguments):
    """The page needs no torch either: tests/test_faults.py makes one without torch and plotly."""
    done = without_torch(no_torch, *arguments)
    assert done.returncode == 0, done.stderr


def test_doctor_also_prints_how_to_install_torch(no_torch):
    assert INSTALL in without_torch(no_torch, "doctor").stdout
