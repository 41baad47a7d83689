"""Each broken line of the tables makes a test fail; by default only the tables themselves are checked.

``pytest -m mutants -n 0 tests/test_mutants.py`` copies the project into a temporary folder and breaks one
line. It runs the test that should fail, then the other tests of its folder, up to the first failure, each
time in a fork of one process that has imported torch. It ends with a table. A test that kills a mutant must
pass on the unbroken copy. ``-k money`` or ``-k cuda`` selects one table.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mutants
import pytest
from mutation import FAILED, PASSED, Copy, Mutant, Table, copy_in, faults_of
from strict_cuda import mutants as cuda_mutants

TABLES = {"money": mutants.TABLE, "cuda": cuda_mutants.TABLE}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_each_mutant_table_is_consistent(table: Table) -> None:
    assert faults_of(table) == []


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    with copy_in(tmp_path_factory.mktemp("mutants")) as copy:
        yield copy


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], None]]:
    """Collect the rows of the table, which is printed after the last mutant."""
    rows: list[tuple[str, str]] = []
    yield lambda name, end: rows.append((name, end))
    plugins = request.config.pluginmanager
    width = max((len(name) for name, _ in rows), default=0)
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        for name, end in rows:
            plugins.getplugin("terminalreporter").write_line(f"\n{name:{width}}  {end}".strip())


@pytest.mark.mutants
@pytest.mark.timeout(0)
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_tests_run_in_the_copy_and_pass_unbroken(table: Table, copied: Copy) -> None:
    where = subprocess.run(
        [sys.executable, "-c", "import gpubench; print(gpubench.__file__)"],
        env=os.environ | {"PYTHONPATH": str(copied.folder)},
        cwd=copied.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(copied.folder)
    status, failed = copied.run(*sorted({table.killer_of(mutant) for mutant in table.mutants}))
    assert status == PASSED, failed


@pytest.mark.mutants
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("table", "mutant"),
    [
        pytest.param(table, mutant, id=f"{key}: {mutant.name}")
        for key, table in TABLES.items()
        for mutant in table.mutants
    ],
)
def test_each_mutant_is_killed(
    table: Table, mutant: Mutant, copied: Copy, report: Callable[[str, str], None]
) -> None:
    killer = table.killer_of(mutant)
    with copied.broken(mutant):
        status, failed = copied.run(killer)
        expected = status == FAILED
        if not expected:
            status, failed = copied.run(*copied.others(killer))
    if status == FAILED:
        report(mutant.name, f"killed by {failed}")
        assert not mutant.survives, f"{mutant.name} is killed by {failed}: it needs no explanation"
        assert expected or copied.run(failed)[0] == PASSED, f"{failed} fails without any mutant"
    else:
        report(mutant.name, f"survives: {mutant.survives or 'unexplained'}")
        assert mutant.survives, f"no test notices: {mutant.name}; {mutant.misleads}".rstrip("; ")
