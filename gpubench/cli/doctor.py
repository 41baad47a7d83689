"""`gpubench doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpubench.cli.common import JsonOption, ResultsOption, print_json
from gpubench.errors import ExitCode

if TYPE_CHECKING:
    from gpubench.probe.check import Check

_NAME = 21


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("doctor")(verb)


def verb(results: ResultsOption = None, json: JsonOption = False) -> None:
    """Check what a measurement needs, from the software up; exit 1 if something keeps it from running."""
    from gpubench.probe.checkup import check_up, failed
    from gpubench.probe.probe import probe

    checks = (*check_up(probe()), _storage(results))
    if json:
        print_json({"checks": checks, "failed": failed(checks)})
    else:
        print("\n".join(_lines(checks)))
    if failed(checks):
        raise typer.Exit(ExitCode.NO)


def _storage(results: Path | None) -> Check:
    import shutil

    from gpubench.errors import StorageError
    from gpubench.probe.check import fail, ok
    from gpubench.record.store import check_writable, results_root
    from gpubench.units import format_bytes

    root = results_root(results)
    try:
        check_writable(root)
    except StorageError as error:
        seen, _, mend = str(error).partition("; ")
        return fail("results folder", seen, mend)
    free = shutil.disk_usage(root).free
    return ok("results folder", f"{root}, {format_bytes(free)} free")


def _lines(checks: tuple[Check, ...]) -> Iterator[str]:
    from gpubench.units import plain

    for check in checks:
        yield f"{check.status:5} {check.name:{_NAME}} {plain(check.seen, limit=400)}"
        if check.mend and check.status != "ok":
            yield f"{'':5} {'':{_NAME}} -> {plain(check.mend, limit=400)}"
    failures, warnings = (sum(c.status == status for c in checks) for status in ("fail", "warn"))
    yield ""
    if failures:
        yield f"Not ready: {_counted(failures, 'failure')} to mend, {_counted(warnings, 'warning')}."
    elif warnings:
        yield f"Ready to measure, with {_counted(warnings, 'warning')}. Next: gpubench run"
    else:
        yield "Ready to measure. Next: gpubench run"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
