"""Tables on stdout: plain where that is no terminal, ASCII where it does not speak Unicode."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LEAST_WIDTH = 120
"""Columns of a table that goes into a file or a pipe."""


def console_for_tables() -> Console:
    """Return the console on stdout; a pipe is at least 120 columns wide."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal:
        return console
    return Console(file=sys.stdout, highlight=False, width=max(console.width, LEAST_WIDTH))


def new_table(console: Console, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table with these columns; those named in ``right`` hold figures."""
    from rich import box
    from rich.table import Table

    speaks_unicode = console.encoding.startswith("utf")
    table = Table(box=box.SIMPLE_HEAD if speaks_unicode else box.ASCII, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table
