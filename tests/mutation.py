"""Breaks lines of the package one at a time, in a copy of the project."""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import IO

ROOT = Path(__file__).parents[1]
COPIED = ("gpubench", "tools", "workloads", "tests", "docs", "examples", "results")
"""What the package and its tests need from the project; ``pyproject.toml`` and ``README.md`` are copied too."""
NOT_OF_THE_PRODUCT = ("test_rules.py",)
"""Tests of the strict fake itself: no line of the package makes them fail."""
LONG = ("test_every_case.py",)
"""These run last."""
PASSED, FAILED = 0, 1
"""The statuses of pytest that give an answer; any other means a fault of this machinery."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One broken line.

    Attributes:
        name: What is broken, or the error that a user would see.
        file: The file of the package that contains it.
        old: The line as it is; it occurs once in its file.
        new: Its replacement.
        killer: The test that should fail, as a file of the table's folder and a name.
        misleads: The error that a user would see, if the name does not say it.
        survives: Why no test can fail, if none does.
    """

    name: str
    file: str
    old: str
    new: str
    killer: str
    misleads: str = ""
    survives: str = ""

    @property
    def sound(self) -> str:
        """The text of its file, unbroken."""
        return (ROOT / self.file).read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Mutants of one part of the package.

    Attributes:
        folder: Folder of the killers.
        least_killed: Minimum number of mutants that the tests must detect.
    """

    mutants: tuple[Mutant, ...]
    folder: str
    least_killed: int

    def killer_of(self, mutant: Mutant) -> str:
        """The test that should fail, as an argument of pytest."""
        return f"{self.folder}/{mutant.killer}"


def faults_of(table: Table) -> list[str]:
    """Problems of a table itself, found without running a test."""
    found = []
    for mutant in table.mutants:
        if mutant.sound.count(mutant.old) != 1:
            found.append(f"{mutant.name}: its line occurs {mutant.sound.count(mutant.old)} times in its file")
        try:
            compile(mutant.sound.replace(mutant.old, mutant.new), mutant.file, "exec")
        except SyntaxError as error:
            found.append(f"{mutant.name}: {error}")
        file, _, name = table.killer_of(mutant).partition("::")
        path = ROOT / file
        if not path.is_file() or f"def {name.partition('[')[0]}(" not in path.read_text(encoding="utf-8"):
            found.append(f"{mutant.name}: {file} has no {name}")
    if len({mutant.name for mutant in table.mutants}) < len(table.mutants):
        found.append("two mutants share a name")
    killed = sum(not mutant.survives for mutant in table.mutants)
    if killed < table.least_killed:
        found.append(f"{killed} mutants are killed, not {table.least_killed}")
    return found


class Copy:
    """A copy of the project, and a process that runs tests in it, each time in a fork of itself."""

    def __init__(self, folder: Path, forks: subprocess.Popen[str]) -> None:
        self.folder = folder
        self._input: IO[str] | None = forks.stdin
        self._output: IO[str] | None = forks.stdout

    def run(self, *tests: str) -> tuple[int, str]:
        """Run tests up to the first failure; return the status of pytest and that test."""
        assert self._input is not None
        assert self._output is not None
        options = (
            "-x",
            "-q",
            "-n",
            "0",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            "--hypothesis-profile=mutants",
        )
        self._input.write(json.dumps([*options, *tests]) + "\n")
        self._input.flush()
        status, said = json.loads(self._output.readline())
        assert status in {PASSED, FAILED}, f"pytest ended with {status}: {said}"
        failed = re.search(r"(?m)^(?:FAILED|ERROR) (\S+\.py::.+?)(?: - |$)", said)
        return status, failed.group(1) if failed else ""

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """Break a line, and repair it afterward."""
        target = self.folder / mutant.file
        target.write_text(mutant.sound.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            yield
        finally:
            target.write_text(mutant.sound, encoding="utf-8")

    def others(self, killer: str) -> list[str]:
        """All tests in the folder of a test: its own file first, the long ones last."""
        first = self.folder / killer.partition("::")[0]
        files = [path for path in first.parent.glob("test_*.py") if path.name not in NOT_OF_THE_PRODUCT]
        files.sort(key=lambda path: (path != first, path.name in LONG, path.name))
        return [str(path.relative_to(self.folder)) for path in files]


@contextmanager
def copy_in(folder: Path) -> Iterator[Copy]:
    """Copy the project into a folder; compiled files are matched by source text, not by time."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    compileall.compile_dir(folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    with subprocess.Popen(
        [sys.executable, str(folder / "tests" / "forks.py")],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forks:
        try:
            yield Copy(folder, forks)
        finally:
            forks.stdin.close()
