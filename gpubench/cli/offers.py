"""`gpubench offers`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("offers")(verb)


def verb() -> None:
    """List, refresh or import dated prices."""
    raise GpuBenchError("`gpubench offers` is not built yet")
