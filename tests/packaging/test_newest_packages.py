"""CI's run with the newest packages reports its result in one line, and cannot fail CI or exceed its time limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import newest
import pytest
from patience import is_gone, wait_until

ROOT = Path(__file__).resolve().parents[2]
CI_RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
SUITE = """
import pytest

def test_sound(): pass

@pytest.mark.parametrize("number", range({count}))
def test_broken(number): assert not number + 1

@pytest.fixture
def unmade(): raise OSError

def test_unmade(unmade): pass

def test_skipped(): pytest.skip("not here")
"""


@pytest.mark.parametrize("count", [0, 2, 20])
def test_the_line_names_the_failures_and_cannot_be_mistaken_for_a_pytest_summary(tmp_path, count):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(SUITE.format(count=count))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--junitxml=report.xml",
        "tests",
    ]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plug-ins take most of the time
    subprocess.run(command, cwd=tmp_path, env=alone, check=False, stdout=subprocess.DEVNULL)
    line = newest.summary_of(tmp_path / "report.xml")
    assert line.startswith(f"tests passing: 1; not passing: {count + 1}: tests/test_some.py::test_")
    assert line.count("::") == min(count + 1, newest.MOST_NAMES)
    assert line.endswith(f" and {count + 1 - newest.MOST_NAMES} more") == (count + 1 > newest.MOST_NAMES)
    assert not {"passed", "failed", "error", "\n"} & {*line.split(), *line}


def test_no_constraint_is_inherited():
    outer = {"PIP_CONSTRAINT": "/x", "PIP_BUILD_CONSTRAINT": "/y", "PATH": "/bin", "CI": "true"}
    inner = newest.environment_of(outer)
    assert inner == {"CI": "true", "VIRTUAL_ENV": str(newest.FOLDER), "PATH": f"{newest.FOLDER}/bin:/bin"}


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(newest, "LOG", tmp_path / "log")
    assert newest.run("sleep 1000 & echo $!; wait", 1.0) is None
    child = int((tmp_path / "log").read_text())
    wait_until(lambda: is_gone(child))
    assert newest.run("exit 3", 60.0) == 3


@pytest.mark.parametrize(
    ("failing", "status"), [("", 0), ("mypy", 1), ("pytest", 1), ("python", 0), ("python3", 0)]
)
def test_only_mypy_can_fail_the_build_from_the_background(tmp_path, failing, status):
    """Run the part of the script with background processes; its programs are replaced by ones that exit at once."""
    part, _, rest = f"trap wait EXIT{CI_RUN.partition('trap wait EXIT')[2]}".partition("\n\n# CPU time of")
    assert (part.count(" & "), rest.count(" & ")) == (3, 0)
    for name in ("mypy", "pytest", "python", "python3"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {int(name == failing)}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", part], cwd=tmp_path, env=os.environ | {"PATH": path}, check=False
    )
    assert done.returncode == status


def test_ci_tries_the_newest_packages_last_and_within_the_limit_of_ci():
    last = [line for line in CI_RUN.splitlines() if line and not line.startswith("#")][-1]
    assert "tests/packaging/newest.py || echo" in last
    assert "timeout-minutes: 80\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert "80 minutes" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert newest.INSTALL_LIMIT_S < newest.LIMIT_S <= 40 * 60
    assert "NEWEST_LIMIT_S=$((70 * 60 - SECONDS)) " in last
    assert newest.outcome((), 0.0) == "not tried for lack of time"
