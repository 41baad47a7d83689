"""`gpubench doctor`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("doctor")(verb)


def verb() -> None:
    """Check what a measurement needs, from the software up."""
    raise GpuBenchError("`gpubench doctor` is not built yet")
