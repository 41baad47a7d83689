"""`gpubench calibrate`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("calibrate")(verb)


def verb() -> None:
    """Refit the prediction."""
    raise GpuBenchError("`gpubench calibrate` is not built yet")
