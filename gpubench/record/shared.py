"""Runs that people shared: where they lie, and who else read a figure.

A shared run lies in ``results/shared/NAME/RUN-ID.json`` of the repository, and in the wheel. No figure rests
on one: they are counted beside the figures.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpubench.discovery import checkout
from gpubench.folders import FOLDER_VARIABLE, data_path
from gpubench.models import Case, Run, Status
from gpubench.record.run_file import read_run
from gpubench.units import count

SHARED = Path("results/shared")


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """A shared run, and what its contributor wants to be called."""

    by: str
    run: Run


def shared_folder() -> Path:
    """Return the folder of the shared runs: the wheel's, or the checkout's."""
    packed, root = data_path("shared"), checkout()
    return packed if root is None or os.environ.get(FOLDER_VARIABLE) else root / SHARED


def shared_files() -> Sequence[Path]:
    """Return the files of the shared runs."""
    return sorted(shared_folder().glob("*/*.json"))


@cache
def shared_runs() -> tuple[Shared, ...]:
    """Return every shared run."""
    return tuple(Shared(by=path.parent.name, run=read_run(path)) for path in shared_files())


def readings_by(gpu_key: str, case: Case, shared: Sequence[Shared] | None = None) -> str | None:
    """Say how many readings by how many people there are of a case on a GPU; None where there is none.

    The batch does not matter, nor how the step is executed: a figure is told of another one as well.
    """
    wanted = _alike(case)
    found = [
        each.by
        for each in (shared_runs() if shared is None else shared)
        if each.run.device.gpu_key == gpu_key
        for measurement in each.run.measurements
        if measurement.status is Status.OK and _alike(measurement.case) == wanted
    ]
    people = "person" if len({*found}) == 1 else "people"
    return f"{count(len(found), 'reading')} by {len({*found})} {people}" if found else None


def _alike(case: Case) -> tuple[Any, ...]:
    return case.workload, case.workload_version, case.task, case.precision, case.gpu_count, case.recipe
