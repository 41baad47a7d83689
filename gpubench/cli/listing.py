"""`gpubench list`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("list")(verb)


def verb() -> None:
    """List the workloads."""
    raise GpuBenchError("`gpubench list` is not built yet")
