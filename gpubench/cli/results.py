"""`gpubench results`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("results")(verb)


def verb() -> None:
    """List stored runs, or take in others."""
    raise GpuBenchError("`gpubench results` is not built yet")
