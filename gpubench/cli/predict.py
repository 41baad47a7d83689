"""`gpubench predict`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("predict")(verb)


def verb() -> None:
    """Predict throughput on GPUs that are not here."""
    raise GpuBenchError("`gpubench predict` is not built yet")
