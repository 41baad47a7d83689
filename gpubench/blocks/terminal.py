"""Prints blocks on a terminal, within its width, or as plain text into a pipe.

A table has one line per row if that fits. If not, the details of a cell go below its value. If the table is
still too wide, optional columns are omitted, highest number first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from gpubench.blocks.parts import (
    NO_BREAK_SPACE,
    Bullets,
    Charts,
    Facts,
    Paragraph,
    Part,
    Table,
    drop_empty_columns,
    keep_units_together,
    printable,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Width of a file or a pipe if COLUMNS is not set: no line is broken and no column is omitted.
_PIPED_WIDTH = 10_000

# Minimum width of a text column that has wider text, and length up to which a word in it is not broken
_LEAST_TEXT, _LONGEST_WORD = 10, 26

# Optional columns with this number or a higher one are shown only if no line of the table wraps.
_ONLY_WITHOUT_WRAPPING = 6

# Maximum number of lines of text in a cell; if a text needs more, optional columns are omitted instead.
_TALLEST = 3

# Only the first rows, this many, determine which columns get the remaining width.
_SAMPLED_ROWS = 100

# Minimum assumed width of a terminal; a narrower one has no room for a number with its unit.
_LEAST_WIDTH = 20

GAP = "  "
_TONES = {"headline": "bold green", "note": "dim", "warning": "yellow", "plain": ""}
# rich uses colors if the terminal supports them and NO_COLOR is not set; no meaning depends on them.
_MARKS = {"here": "bold cyan", "tie": "", "bad": "red", None: ""}


def normalize_columns() -> None:
    """Ignore COLUMNS unless it is a positive number, as shutil does; use at least ``_LEAST_WIDTH``.

    At a width of 0, rich would print nothing.
    """
    try:
        columns = int(os.environ.pop("COLUMNS", ""))
    except ValueError:
        return
    if columns > 0:
        os.environ["COLUMNS"] = str(max(columns, _LEAST_WIDTH))


def show(*parts: Part) -> None:
    """Print parts on stdout, with blank lines around tables and before headlines, never after a headline."""
    from rich.console import Console

    normalize_columns()
    console = Console(file=sys.stdout, highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    for before, part in pairwise((None, *parts)):
        after_headline, is_headline = (
            isinstance(x, Paragraph) and x.tone == "headline" for x in (before, part)
        )
        is_set_off = any(isinstance(each, Table | Charts | Facts) for each in (before, part))
        if before is not None and not after_headline and (is_headline or is_set_off):
            console.print()
        for drawn in _drawn(printable(part), console):
            console.print(drawn)


def _drawn(part: Part, console: Console) -> list[RenderableType]:
    # Return a part as texts and tables of rich, which contain no markup.
    from rich.table import Table as Grid
    from rich.text import Text

    match part:
        case Paragraph():
            return [Text(part.text, style=_TONES[part.tone])]
        case Bullets():
            grid = Grid.grid(padding=(0, 1, 0, 0))
            for number, item in enumerate(part.items, 1):
                grid.add_row(f"{number}" if part.numbered else "-", Text(item))
            return [grid]
        case Facts():
            grid = Grid.grid(padding=(0, len(GAP), 0, 0))
            for fact in part.rows:
                grid.add_row(Text(f"  {fact.term}", style="cyan"), Text(fact.words))
            return [grid]
        case Charts():
            return _table(part.twin, console)
        case Table():
            return _table(part, console)


def _table(table: Table, console: Console) -> list[RenderableType]:
    from rich.segment import Segment, Segments
    from rich.text import Text

    caption: list[RenderableType] = [Text(table.caption, style="bold")] if table.caption else []
    if not table.rows:
        return caption
    fitting, widths, hidden = fitted(drop_empty_columns(table), console.width)
    titles = tuple(column.title.replace("\n", " ") for column in fitting.columns)
    marks = fitting.marks or (None,) * len(fitting.rows)
    lines = [
        *((line, "bold") for line in _lines(fitting, titles, widths)),
        ("─" * _total_width(widths), "dim"),
        *(
            (line, _MARKS[mark])
            for mark, row in zip(marks, fitting.rows, strict=True)
            for line in _lines(fitting, row, widths)
        ),
    ]
    drawn = Segments([Segment(f"{line}\n", console.get_style(style)) for line, style in lines])
    return [
        *caption,
        drawn,
        *([Text(f"Not shown at this width: {', '.join(hidden)}.", style="dim")] if hidden else []),
    ]


def _lines(table: Table, row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    # Yield the lines of a row; the details of a cell go below it, indented in the first column.
    from rich.cells import set_cell_size

    cells = []
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        value, *details = cell.split("\n")
        indent = GAP if i == 0 and width > len(GAP) else ""
        below = [f"{indent}{line}" for each in details for line in _broken(each, width - len(indent))]
        cells.append([*_broken(value, width), *below])
    for line in zip_longest(*cells, fillvalue=""):
        padded = [
            " " * (width - _width(text)) + text if column.numeric else set_cell_size(text, width)
            for text, width, column in zip(line, widths, table.columns, strict=True)
        ]
        yield GAP.join(padded).rstrip().replace(NO_BREAK_SPACE, " ")


def _broken(text: str, width: int) -> list[str]:
    # Break a text into lines of this width: between words, or after punctuation within a long name.
    from rich.cells import chop_cells

    if _width(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if _width(joined) <= width:
            lines[-1] = joined
            continue
        lines.append("")
        for piece in re.findall(r"[^-_.]+[-_.]*|[-_.]+", word) if _width(word) > width else [word]:
            if _width(lines[-1] + piece) <= width:
                lines[-1] += piece
            else:
                lines += chop_cells(piece, width)
    return [line for line in lines if line] or [""]


def fitted(table: Table, width: int) -> tuple[Table, list[int], list[str]]:
    """Fit a table into the width of a terminal.

    Returns:
        The table, with details on the line of their value if that fits, else without the optional columns
        that have no room; the width of each column; and the titles of the omitted columns.
    """
    flat = replace(table, rows=tuple(tuple(map(_on_one_line, row)) for row in table.rows))
    natural = [_natural(flat, i) for i in range(len(flat.columns))]
    if _total_width(natural) <= width:
        return flat, natural, []
    hidden: list[str] = []
    table = replace(table, rows=tuple(tuple(map(keep_units_together, row)) for row in table.rows))
    while most := max(column.optional for column in table.columns):
        if _total_width([_wanted(table, i, most) for i in range(len(table.columns))]) <= width:
            break
        omitted = next(i for i, column in enumerate(table.columns) if column.optional == most)
        title, table = _without(table, omitted)
        hidden.insert(0, title)
    natural = [_natural(table, i) for i in range(len(table.columns))]
    widths = [_least(table, i) for i in range(len(table.columns))]
    while _total_width(widths) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return table, _widened(table, widths, natural, width), hidden


def _widened(table: Table, widths: list[int], natural: Sequence[int], width: int) -> list[int]:
    # Give the remaining width, one character at a time, to the column that adds lines to the most rows.
    rows = [tuple(column.title for column in table.columns), *table.rows[:_SAMPLED_ROWS]]
    heights = [[_height(row[i], widths[i]) for row in rows] for i in range(len(widths))]
    for _ in range(width - _total_width(widths)):
        tallest = [max(of_row) for of_row in zip(*heights, strict=True)]
        # By column: the number of rows in which it is among the tallest; 0 if it is wide enough
        rows_made_tall = [
            (wide < whole) * sum(height == most > 1 for height, most in zip(column, tallest, strict=True))
            for column, wide, whole in zip(heights, widths, natural, strict=True)
        ]
        if not any(rows_made_tall):
            break
        i = rows_made_tall.index(max(rows_made_tall))
        widths[i] += 1
        heights[i] = [_height(row[i], widths[i]) for row in rows]
    return widths


def _height(cell: str, width: int) -> int:
    return sum(len(_broken(line, width)) for line in cell.split("\n"))


def _without(table: Table, place: int) -> tuple[str, Table]:
    """Omit a column, but keep its symbol in front of the first column.

    Returns:
        The title of the omitted column, with the meaning of each symbol; and the table.
    """
    column, rows = table.columns[place], table.rows
    title = column.title.replace("\n", " ")
    if column.glyph:
        words = dict.fromkeys(row[place].replace(NO_BREAK_SPACE, " ") for row in rows)
        title += f" ({', '.join(words)})" if rows else ""
        rows = tuple((f"{row[place][:1]}{NO_BREAK_SPACE}{row[0]}", *row[1:]) for row in rows)
    return title, replace(
        table,
        columns=(*table.columns[:place], *table.columns[place + 1 :]),
        rows=tuple((*row[:place], *row[place + 1 :]) for row in rows),
    )


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _on_one_line(cell: str) -> str:
    value, *details = cell.split("\n")
    return f"{value} ({', '.join(details)})" if details else value


def _texts(table: Table, i: int) -> list[str]:
    # Return the lines of a column with its title; details in the first column are indented.
    below = f"\n{NO_BREAK_SPACE * len(GAP)}" if i == 0 else "\n"
    cells = (table.columns[i].title, *(row[i].replace("\n", below) for row in table.rows))
    return [line for cell in cells for line in cell.split("\n")]


def _natural(table: Table, i: int) -> int:
    return max(map(_width, _texts(table, i)))


def _wanted(table: Table, i: int, most: int) -> int:
    # Return the width that a column needs if optional columns up to number ``most`` are to be shown.
    natural = _natural(table, i)
    return natural if most >= _ONLY_WITHOUT_WRAPPING else max(_least(table, i), -(-natural // _TALLEST))


def _least(table: Table, i: int) -> int:
    # Return the minimum width of a column, at which only long words are broken.
    column, texts = table.columns[i], _texts(table, i)
    words = max(_width(word) for text in texts for word in text.split(" "))
    if column.numeric:
        return max([words, *(_width(row[i].partition("\n")[0]) for row in table.rows)])
    return max(min(words, _LONGEST_WORD), min(_natural(table, i), _LEAST_TEXT))


def _width(text: str) -> int:
    # Return the width of a text in terminal columns; some letters take two.
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)
