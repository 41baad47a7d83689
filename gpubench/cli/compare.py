"""`gpubench compare`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("compare")(verb)


def verb() -> None:
    """Compare two runs case by case."""
    raise GpuBenchError("`gpubench compare` is not built yet")
