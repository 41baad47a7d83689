"""`gpubench run`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("run")(verb)


def verb() -> None:
    """Measure workloads on a device."""
    raise GpuBenchError("`gpubench run` is not built yet")
