"""`gpubench rank`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("rank")(verb)


def verb() -> None:
    """Rank GPUs and instances by training per dollar."""
    raise GpuBenchError("`gpubench rank` is not built yet")
