"""Blocks on a terminal: plain where that is none, ASCII where it speaks no Unicode, and as wide as it is.

A table takes one line a row where that fits. Where it does not, the detail of a cell goes below it, then
optional columns go, those with the highest number first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

from gpubench.blocks.parts import (
    NO_BREAK_SPACE,
    Bullets,
    Charts,
    Column,
    Facts,
    Paragraph,
    Part,
    Table,
    drop_empty_columns,
    held_together,
    printable,
)
from gpubench.units import UNKNOWN

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

PIPED_WIDTH = 10_000
"""Columns of a file or a pipe where COLUMNS says nothing else: no line is broken, no column left out."""

LEAST_TEXT, LONGEST_WORD = 10, 26
"""A column of words is not made narrower than this, nor than its longest word where that is no longer."""

WHERE_THERE_IS_ROOM = 6
"""Optional columns from this number on stand only where no line of the table need be broken."""

MANY_ROWS = 100
"""A longer table is drawn row by row, without laying out each cell: ten times as fast, and none is marked."""

TALLEST = 3
"""Lines of a row: an optional column goes before one is taller."""

LAID_OUT_BY = 100
"""Rows of a table by which its columns are shared out."""

INDENT = 2
"""Before the details of a first column."""

LEAST_WIDTH = 20
"""However narrow a terminal says that it is: less holds no figure with its unit."""

GAP = 2
_TONES = {"headline": "bold green", "note": "dim", "warning": "yellow", "plain": ""}
_MARKS = {"here": "bold cyan", "tie": "", "bad": "red", None: ""}
"""Color goes where the terminal has any and NO_COLOR is not set; nothing rests on it alone."""


def heed_columns() -> None:
    """Take a COLUMNS that is no number above 0 for not set, as shutil does; rich would print nothing."""
    try:
        columns = int(os.environ.pop("COLUMNS", ""))
    except ValueError:
        return
    if columns > 0:
        os.environ["COLUMNS"] = str(max(columns, LEAST_WIDTH))


def show(*parts: Part) -> None:
    """Print parts on stdout, tables set apart by empty lines."""
    from rich.console import Console

    heed_columns()
    console = Console(file=sys.stdout, highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(file=sys.stdout, highlight=False, soft_wrap=False, width=PIPED_WIDTH)
    for before, part in pairwise((None, *parts)):
        headed, heads = (isinstance(x, Paragraph) and x.tone == "headline" for x in (before, part))
        is_set_off = any(isinstance(each, Table | Charts | Facts) for each in (before, part))
        if before is not None and not headed and (heads or is_set_off):
            console.print()
        for drawn in _drawn(printable(part), console):
            console.print(drawn)


def _drawn(part: Part, console: Console) -> list[RenderableType]:
    """Return what rich prints of a part: texts and tables, none of them read as markup."""
    from rich.table import Table as Grid
    from rich.text import Text

    match part:
        case Paragraph():
            return [Text(part.text, style=_TONES[part.tone])]
        case Bullets():
            grid = Grid.grid(padding=(0, 1, 0, 0))
            for item in part.items:
                grid.add_row("-", Text(item))
            return [grid]
        case Facts():
            grid = Grid.grid(padding=(0, GAP, 0, 0))
            for fact in part.rows:
                grid.add_row(Text(f"  {fact.term}", style="cyan"), Text(fact.words))
            return [grid]
        case Charts():
            caption = [Text(part.caption, style="dim")] if part.caption else []
            return [*_table(part.twin, console), *caption]
        case Table():
            return _table(part, console)


def _table(table: Table, console: Console) -> list[RenderableType]:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    fitting, widths, hidden = fitted(drop_empty_columns(table), console.width)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column, width in zip(fitting.columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        grid.add_column(Text(column.title), justify=justify, overflow="fold", width=width)
    lines = _as_lines(fitting, widths) if len(fitting.rows) > MANY_ROWS else None
    if lines is not None:
        fitting = replace(fitting, rows=(), marks=())
    for i, row in enumerate(fitting.rows):
        style = _MARKS[fitting.marks[i] if fitting.marks else None]
        cells = zip(row, widths, strict=True)
        grid.add_row(
            *(_cell(cell, width, first=j == 0) for j, (cell, width) in enumerate(cells)), style=style
        )
    left_out = f"Not shown at this width: {', '.join(hidden)}."
    return [
        *([Text(table.caption, style="bold")] if table.caption else []),
        *([grid] if table.rows else []),
        *([lines] if lines is not None else []),
        *([Text(left_out, style="dim")] if hidden else []),
    ]


def _as_lines(table: Table, widths: Sequence[int]) -> RenderableType | None:
    """Return rows as what a terminal is sent; None unless each cell is a line of letters of one place."""
    from rich.segment import Segment, Segments

    cells = ((cell, width) for row in table.rows for cell, width in zip(row, widths, strict=True))
    if not all(
        cell.replace(UNKNOWN, "").isascii() and "\n" not in cell and len(cell) <= width
        for cell, width in cells
    ):
        return None
    pad = [str.rjust if column.numeric else str.ljust for column in table.columns]
    columns = list(zip(pad, widths, strict=True))
    lines = (
        (" " * GAP).join(
            justified(cell, width) for cell, (justified, width) in zip(row, columns, strict=True)
        )
        for row in table.rows
    )
    return Segments([Segment("".join(f"{line}\n" for line in lines))])


def _cell(cell: str, width: int, first: bool) -> Text:
    """Return a cell, what qualifies it on quieter lines below; in the first column they are set in."""
    from rich.text import Text

    value, *details = cell.split("\n")
    text = Text(value)
    indent = " " * INDENT if first else ""
    for detail in details:
        lines = wrap(detail, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        text.append("".join(f"\n{line}" for line in lines).replace(NO_BREAK_SPACE, " "), style="dim")
    return text


def fitted(table: Table, width: int) -> tuple[Table, list[int], list[str]]:
    """Make a table fit so many columns of a terminal.

    Returns:
        The table, its details on the line of their value where the whole then fits, else without as many
        optional columns as must go; the width of each column; and the titles of those that went.
    """
    joined = replace(
        table,
        rows=tuple(tuple(map(_joined, row)) for row in table.rows),
    )
    natural = _widths(joined, _natural)
    if _sum(natural) <= width:
        return joined, natural, []
    hidden: list[str] = []
    table = replace(table, rows=tuple(tuple(map(held_together, row)) for row in table.rows))
    while most := max(column.optional for column in table.columns):
        if most >= WHERE_THERE_IS_ROOM:
            stays = _sum(_widths(table, _natural)) <= width
        else:
            least = _sum(_widths(table, _least))
            stays = least <= width and all(
                _height(cell, wide) <= TALLEST
                for i, wide in enumerate(_shared(table, width))
                for cell in _sample(table, i)[1:]
            )
        if stays:
            break
        goes = next(i for i, column in enumerate(table.columns) if column.optional == most)
        title, table = _without(table, goes)
        hidden.insert(0, title)
    return table, _shared(table, width), hidden


def _without(table: Table, goes: int) -> tuple[str, Table]:
    """Leave a column out; the sign that its words begin with stays, before the first column.

    Returns:
        What is said to be left out, with the meaning of each sign that stays; and the table.
    """
    column, rows = table.columns[goes], table.rows
    title = column.title.replace("\n", " ")
    if column.glyph:
        words = dict.fromkeys(row[goes].replace(NO_BREAK_SPACE, " ") for row in rows)
        title += f" ({', '.join(words)})" if rows else ""
        rows = tuple((f"{row[goes][:1]}{NO_BREAK_SPACE}{row[0]}", *row[1:]) for row in rows)
    return title, replace(
        table,
        columns=(*table.columns[:goes], *table.columns[goes + 1 :]),
        rows=tuple((*row[:goes], *row[goes + 1 :]) for row in rows),
    )


def _shared(table: Table, width: int) -> list[int]:
    """Share out what the narrowest columns leave where it saves most lines, or take from the widest.

    A tall cell counts by its square.
    """
    widths = _widths(table, _least)
    while _sum(widths) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    costs = [_costs(_sample(table, i), least) for i, least in enumerate(widths)]
    while room := max(0, width - _sum(widths)):
        saved, i, wider = max(
            (
                ((cost[widths[i]] - cost[w]) / (w - widths[i]), -i, w)
                for i, cost in enumerate(costs)
                for w in range(widths[i] + 1, min(widths[i] + room, max(cost, default=0)) + 1)
            ),
            default=(0.0, 0, 0),
        )
        if saved <= 0:
            break
        widths[-i] = wider
    return widths


def _costs(cells: Sequence[str], least: int) -> dict[int, int]:
    """Return the squares of the heights of cells, in sum, at each width from the least to the widest line."""
    natural = max(_len(line) for cell in cells for line in cell.split("\n"))
    return {width: sum(_height(cell, width) ** 2 for cell in cells) for width in range(least, natural + 1)}


def _sample(table: Table, i: int) -> tuple[str, ...]:
    """Return the title of a column and its first cells, as they are drawn: set in, in the first column."""
    line_end = "\n" + NO_BREAK_SPACE * INDENT if i == 0 else "\n"
    return table.columns[i].title, *(row[i].replace("\n", line_end) for row in table.rows[:LAID_OUT_BY])


@lru_cache(maxsize=65536)
def _height(cell: str, width: int) -> int:
    """Return how many lines a cell takes, broken between words."""
    lines = 0
    for line in cell.split("\n"):
        room = 0
        for i, word in enumerate(map(_len, line.split(" "))):
            if i and word < room:
                room -= word + 1
            else:
                whole, rest = divmod(max(1, word), width)
                lines += whole + bool(rest)
                room = width - rest if rest else 0
    return lines


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(table: Table, of: Callable[[Column, Sequence[str]], int]) -> list[int]:
    return [of(column, [row[i] for row in table.rows]) for i, column in enumerate(table.columns)]


def _joined(cell: str) -> str:
    value, *details = cell.split("\n")
    return f"{value} ({', '.join(details)})" if details else value


def _natural(column: Column, cells: Sequence[str]) -> int:
    """Return the width of the longest line of a column."""
    return max(_len(line) for text in (column.title, *cells) for line in text.split("\n"))


def _least(column: Column, cells: Sequence[str]) -> int:
    """Return how narrow a column can be: no figure is broken, nor a word of a text unless it is long."""
    title = max(_len(word) for word in column.title.split() or [""])
    if column.numeric:
        values = [cell.partition("\n") for cell in cells]
        details = (_len(word) for _, _, rest in values for word in re.split(r"[ \n]", rest))
        return max([title, *(_len(value) for value, _, _ in values), *details])
    words = max([title, *(_len(word) for cell in cells for word in re.split(r"[ \n]", cell))])
    return max(min(words, LONGEST_WORD), min(_natural(column, cells), LEAST_TEXT))


def _len(text: str) -> int:
    """Return how many places a text takes: some letters take two."""
    from rich.cells import cell_len

    places: int = cell_len(text)
    return places
