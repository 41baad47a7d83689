"""Run the test suite with the newest packages from pip, and report the result in one line.

    [NEWEST_LIMIT_S=SECONDS] python tests/packaging/newest.py [ARGUMENTS OF PYTEST]
    python tests/packaging/newest.py --install

CI does this last, in its remaining time. It never fails, because the change under test did not cause the new
releases; the line is for people. ``--install`` installs the packages beforehand, while the slow tests wait,
which saves most of the installation time later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-newest"
"""The folder stays: deleting gigabytes can take longer than upgrading them the next time."""
LOG, REPORT = FOLDER / "suite.log", FOLDER / "report.xml"
LIMIT_S, INSTALL_LIMIT_S = 40 * 60.0, 15 * 60.0
"""Limits for everything, and for the installation."""
MOST_NAMES = 12


def environment_of(outer: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the new environment: first on the path, with no inherited constraint."""
    kept = {name: value for name, value in outer.items() if "CONSTRAINT" not in name}
    return kept | {"VIRTUAL_ENV": str(FOLDER), "PATH": f"{FOLDER / 'bin'}{os.pathsep}{outer['PATH']}"}


def run(command: str, limit_s: float) -> int | None:
    """Run a shell command; return its exit code, or kill it with all its children after the limit: None."""
    with LOG.open("ab") as log:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=ROOT,
            env=environment_of(os.environ),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def summary_of(report: Path) -> str:
    """Summarize a pytest report in JUnit format, in other words than pytest's closing line."""
    cases = [*ET.parse(report).getroot().iter("testcase")]
    broken = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    sound = f"tests passing: {len(cases) - len(broken) - skipped:,}"
    if not broken:
        return sound
    names = [f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}" for case in broken]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{sound}; not passing: {len(names):,}: {', '.join(names[:MOST_NAMES])}{more}"


def install(limit_s: float) -> int | None:
    """Install the newest packages, or upgrade to them; return the exit code, or None if it did not end in time."""
    upgrade = "pip install --upgrade --upgrade-strategy eager -e '.[test]'"
    return run(f"{sys.executable} -m venv {FOLDER} && {upgrade}", min(INSTALL_LIMIT_S, limit_s))


def outcome(arguments: Sequence[str], limit_s: float) -> str:
    """Install the packages and run the suite; return the result in words."""
    if limit_s <= 0:
        return "not tried for lack of time"
    began_s = time.monotonic()
    code = install(limit_s)
    if code != 0:
        return f"not installed ({'too slow' if code is None else f'exit code {code}'})"
    asked = [FOLDER / "bin" / "python", "-c", "import importlib.metadata as m; print(m.version('torch'))"]
    torch = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    left_s = limit_s - (time.monotonic() - began_s)
    code = run(f"pytest -n auto --junitxml={REPORT} {' '.join(arguments)}", max(0.0, left_s))
    if code is None:
        return f"torch {torch}; the suite did not end within {left_s / 60:.0f} min"
    return f"torch {torch}; {summary_of(REPORT) if code in {0, 1} else f'pytest ended with exit code {code}'}"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    LOG.unlink(missing_ok=True)
    given_s = min(LIMIT_S, float(os.environ.get("NEWEST_LIMIT_S", LIMIT_S)))
    if sys.argv[1:] == ["--install"]:
        sys.exit(install(given_s) != 0)
    print(f"newest packages: {outcome(sys.argv[1:], given_s)} (log: {LOG.relative_to(ROOT)})")
