"""Each broken line of ``mutants`` makes a test on the strict fake fail; in the default run the list is only checked.

``pytest -m mutants -n 0 tests/strict_cuda/test_mutants.py`` copies the package into a temporary folder, breaks one
line and runs these tests there in a fresh process, one mutant after the other; it ends with a table.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strict_cuda.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
SUITE = "tests/strict_cuda"
NOT_OF_THE_PRODUCT = ("test_rules.py", "test_mutants.py")
"""What tests the fake itself, or runs the others: no line of the package makes it fail."""
LIMIT_S = 1800.0
PASSED, FAILED = 0, 1
"""What pytest ends with; any other status is a fault of this test."""


def text(mutant: Mutant) -> str:
    return (ROOT / mutant.file).read_text(encoding="utf-8")


# --- the list --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_line_that_a_mutant_breaks_stands_once_in_its_file(mutant):
    assert text(mutant).count(mutant.old) == 1
    compile(text(mutant).replace(mutant.old, mutant.new), mutant.file, "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_test_that_should_fail_exists(mutant):
    file, _, name = mutant.killer.partition("::")
    function = name.partition("[")[0]
    assert f"def {function}" in (ROOT / SUITE / file).read_text(encoding="utf-8")


def test_at_least_23_of_25_mutants_are_killed():
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert sum(not mutant.survives for mutant in MUTANTS) >= 23 / 25 * len(MUTANTS)


# --- the mutants -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of package, workloads and tests."""
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("gpubench", "workloads", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], None]]:
    """Takes the rows of the table; it is written when the last mutant is over."""
    rows: list[tuple[str, str]] = []
    yield lambda name, end: rows.append((name, end))
    plugins = request.config.pluginmanager
    width = max((len(name) for name, _ in rows), default=0)
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        for name, end in rows:
            plugins.getplugin("terminalreporter").write_line(f"\n{name:{width}}  {end}".strip())


def run(folder: Path, *tests: str) -> tuple[int, str]:
    """Run tests in a folder; the status of pytest, and the first test that failed."""
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n",
            "0",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            *tests,
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in {PASSED, FAILED}, done.stdout + done.stderr
    failed = re.search(r"(?m)^(?:FAILED|ERROR) (?:\S*/)?(\S+\.py::.+?)(?: - |$)", done.stdout)
    return done.returncode, failed.group(1) if failed else ""


def others() -> list[str]:
    """All other tests, the long ones last."""
    names = sorted(path.name for path in (ROOT / SUITE).glob("test_*.py"))
    names.sort(key=lambda name: name == "test_every_case.py")
    return [f"{SUITE}/{name}" for name in names if name not in NOT_OF_THE_PRODUCT]


@pytest.mark.mutants
@pytest.mark.timeout(0)
def test_the_copy_is_what_runs_and_passes_unbroken(copied, table):
    where = subprocess.run(
        [sys.executable, "-c", "import gpubench; print(gpubench.__file__)"],
        env=os.environ | {"PYTHONPATH": str(copied)},
        cwd=copied,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(copied)
    status, failed = run(copied, *others())
    table("(none)", failed or "passes")
    assert status == PASSED, failed


@pytest.mark.mutants
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant, copied, table):
    target = copied / mutant.file
    target.write_text(text(mutant).replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, failed = run(copied, f"{SUITE}/{mutant.killer}")
        if status == PASSED:
            status, failed = run(copied, *others())
    finally:
        target.write_text(text(mutant), encoding="utf-8")
    if status == FAILED:
        table(mutant.name, f"killed by {failed}")
        assert not mutant.survives, f"{mutant.name} is killed by {failed}: it needs no explanation"
    else:
        table(mutant.name, f"survives: {mutant.survives or 'unexplained'}")
        assert mutant.survives, f"no test notices: {mutant.name}; {mutant.misleads}"
