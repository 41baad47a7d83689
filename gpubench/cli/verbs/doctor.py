"""`gpubench doctor`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.blocks.parts import Paragraph, Part, table, text
from gpubench.cli.options import Verb
from gpubench.cli.output import answer
from gpubench.errors import ExitCode, StorageError
from gpubench.shared_options import ResultsRequest
from gpubench.units import count, format_bytes, plain

if TYPE_CHECKING:
    from gpubench.probe.checkup import Check


def verb(request: ResultsRequest, *, as_json: bool) -> ExitCode:
    """Check what a measurement needs, from the software up; exit 1 if something keeps it from running."""
    from gpubench.probe.checkup import check_up, failed
    from gpubench.probe.probe import probe

    checks = (*check_up(probe()), _storage(request.results))
    answer(as_json, lambda: {"checks": checks, "failed": failed(checks)}, lambda: _parts(checks))
    return ExitCode.NO if failed(checks) else ExitCode.DONE


def _storage(results: Path | None) -> Check:
    from gpubench.folders import results_root
    from gpubench.probe.checkup import fail, ok
    from gpubench.record.store import check_writable

    root = results_root(results)
    try:
        there = check_writable(root)
    except StorageError as error:
        seen, _, fix = str(error).partition("; ")
        return fail("results folder", seen, fix)
    free = shutil.disk_usage(there).free
    return ok("results folder", f"{root}, {format_bytes(free)} free")


def _parts(checks: tuple[Check, ...]) -> list[Part]:
    failures, warnings = (sum(c.status == status for c in checks) for status in ("fail", "warn"))
    verdict = "Ready to measure" + (f", with {count(warnings, 'warning')}" if warnings else "")
    if failures:
        verdict = f"Not ready: {count(failures, 'failure')} to fix, {count(warnings, 'warning')}"
    return [
        table(
            "",
            checks,
            text("Status", lambda check: check.status),
            text("What is checked", lambda check: check.name),
            text(
                "what was seen, and what to do",
                lambda check: (
                    plain(check.seen, limit=400)
                    + (f"\n-> {plain(check.fix, limit=400)}" if check.fix and check.status != "ok" else "")
                ),
            ),
            marks=tuple("bad" if check.status == "fail" else None for check in checks),
        ),
        Paragraph(text=f"{verdict}." if failures else f"{verdict}. Next: gpubench run"),
    ]


VERB = Verb(verb, place=20)
