"""`gpubench new-workload`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("new-workload")(verb)


def verb() -> None:
    """Write a commented starting file for an own model."""
    raise GpuBenchError("`gpubench new-workload` is not built yet")
