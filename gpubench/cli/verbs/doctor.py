"""`gpubench doctor`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.cli.options import Verb
from gpubench.cli.output import answer
from gpubench.errors import ExitCode, StorageError
from gpubench.options import ResultsRequest
from gpubench.units import format_bytes

if TYPE_CHECKING:
    from gpubench.probe.health import Check


def verb(request: ResultsRequest, *, as_json: bool) -> ExitCode:
    """Check what a measurement needs, from the software up; exit 1 if something keeps it from running."""
    from gpubench.probe.health import check_up, failed
    from gpubench.probe.probe import probe
    from gpubench.sections.checkup import checked_up

    checks = (*check_up(probe()), _storage(request.results))
    answer(as_json, lambda: {"checks": checks, "failed": failed(checks)}, lambda: checked_up(checks))
    return ExitCode.NO if failed(checks) else ExitCode.DONE


def _storage(results: Path | None) -> Check:
    from gpubench.folders import results_root
    from gpubench.probe.health import Check
    from gpubench.record.store import check_writable

    root = results_root(results)
    try:
        there = check_writable(root)
    except StorageError as error:
        return Check("fail", "results folder", error.seen, error.fix)
    free = shutil.disk_usage(there).free
    return Check("ok", "results folder", f"{root}, {format_bytes(free)} free")


VERB = Verb(verb, place=20)
