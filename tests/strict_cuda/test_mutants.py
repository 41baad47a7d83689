"""Each broken line of ``mutants`` makes a test on the strict fake fail; in the default run the list is only checked.

``pytest -m mutants -n 0 tests/strict_cuda/test_mutants.py`` copies the package into a temporary folder, breaks one
line and runs there first the test that should fail, then the others, up to the first that does; each time in a fork
of one process that has imported torch. It ends with a table. Whatever kills a mutant must pass on the unbroken copy.
"""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from strict_cuda.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
SUITE = "tests/strict_cuda"
NOT_OF_THE_PRODUCT = ("test_rules.py", "test_mutants.py")
"""What tests the fake itself, or runs the others: no line of the package makes it fail."""
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

Run = Callable[..., tuple[int, str]]
"""Runs tests in the copy; the status of pytest, and the first test that failed."""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of package, workloads and tests; what is compiled of it is known by its text and not by its time."""
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("gpubench", "workloads", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    compileall.compile_dir(folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return folder


@pytest.fixture(scope="module")
def run(copied: Path) -> Iterator[Run]:
    """Runs tests in the copy; the status of pytest, and the first test that failed."""
    environment = os.environ | {"PYTHONPATH": str(copied), "OMP_NUM_THREADS": "1"}
    options = ("-x", "-q", "-n", "0", "--tb=line", "-p", "no:cacheprovider")
    with subprocess.Popen(
        [sys.executable, str(copied / SUITE / "forks.py")],
        cwd=copied,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forks:

        def tests(*names: str) -> tuple[int, str]:
            forks.stdin.write(json.dumps([*options, *names]) + "\n")
            forks.stdin.flush()
            status, said = json.loads(forks.stdout.readline())
            assert status in {PASSED, FAILED}, said
            failed = re.search(r"(?m)^(?:FAILED|ERROR) (?:\S*/)?(\S+\.py::.+?)(?: - |$)", said)
            return status, failed.group(1) if failed else ""

        yield tests
        forks.stdin.close()


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


def others(folder: Path, first: str) -> list[str]:
    """All other tests: those beside the first, then the other files, the long one last."""
    names = sorted(path.name for path in (folder / SUITE).glob("test_*.py"))
    names.sort(key=lambda name: (name != first.partition("::")[0], name == "test_every_case.py"))
    return [f"{SUITE}/{name}" for name in names if name not in NOT_OF_THE_PRODUCT]


@pytest.mark.mutants
@pytest.mark.timeout(0)
def test_the_copy_is_what_runs_and_its_tests_pass_unbroken(copied, run):
    where = subprocess.run(
        [sys.executable, "-c", "import gpubench; print(gpubench.__file__)"],
        env=os.environ | {"PYTHONPATH": str(copied)},
        cwd=copied,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(copied)
    status, failed = run(*sorted({f"{SUITE}/{mutant.killer}" for mutant in MUTANTS}))
    assert status == PASSED, failed


@pytest.mark.mutants
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant, copied, run, table):
    target = copied / mutant.file
    sound = target.read_text(encoding="utf-8")
    target.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, failed = run(f"{SUITE}/{mutant.killer}")
        expected = status == FAILED
        if not expected:
            status, failed = run(*others(copied, mutant.killer))
    finally:
        target.write_text(sound, encoding="utf-8")
    if status == FAILED:
        table(mutant.name, f"killed by {failed}")
        assert not mutant.survives, f"{mutant.name} is killed by {failed}: it needs no explanation"
        assert expected or run(f"{SUITE}/{failed}")[0] == PASSED, f"{failed} fails without any mutant"
    else:
        table(mutant.name, f"survives: {mutant.survives or 'unexplained'}")
        assert mutant.survives, f"no test notices: {mutant.name}; {mutant.misleads}"
