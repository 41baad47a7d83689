"""`gpubench report`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("report")(verb)


def verb() -> None:
    """Write one self-contained HTML page."""
    raise GpuBenchError("`gpubench report` is not built yet")
