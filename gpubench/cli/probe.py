"""`gpubench probe`."""

from __future__ import annotations

import typer

from gpubench.errors import GpuBenchError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("probe")(verb)


def verb() -> None:
    """Say what the devices of this machine are."""
    raise GpuBenchError("`gpubench probe` is not built yet")


def overview() -> None:
    """Print what is in this machine, and the next step."""
    verb()
