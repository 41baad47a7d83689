"""`gpubench check`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("check")(verb)


def verb() -> None:
    """Say whether a run can be trusted."""
    raise GpuBenchError("`gpubench check` is not built yet")
