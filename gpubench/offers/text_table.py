"""Reading a stranger's table: CSV or JSON as named cells, bounded in size, before any of it is believed."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, decode_json, decode_text, read_bytes
from gpubench.units import plain

MAX_ROWS = 500_000


class Rows(NamedTuple):
    """A table of text cells: where it is from, its columns in order, and its rows with their numbers."""

    name: str
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, Sequence[str]]]

    def picker(self, *wanted: str) -> Callable[[Sequence[str]], tuple[str, ...]]:
        """Return a function from a row to its stripped cells of these columns; "" where there is none."""
        at = {column: position for position, column in reversed(list(enumerate(self.columns)))}
        pick = itemgetter(*(at.get(column, -1) for column in wanted))
        width = len(self.columns)
        return lambda row: tuple(map(str.strip, pick([*row, *[""] * (width + 1 - len(row))])))


class TextColumns(NamedTuple):
    """A table of text cells by column: of 100,000 rows each column is read in one go.

    Attributes:
        name: Where it is from.
        numbers: The number of each row there.
        cells: The cells of every column, by its name; of two columns of one name the first counts.
    """

    name: str
    numbers: Sequence[int]
    cells: Mapping[str, Sequence[str]]

    def of(self, name: str) -> Sequence[str]:
        """Return the cells of a column, blank where the table has no such column."""
        return self.cells.get(name, ("",) * len(self.numbers))


def read_columns(path: Path) -> TextColumns:
    """Read a table by its columns.

    Raises:
        MisuseError: As ``read_rows`` and its rows do.
    """
    text = _read_text(path)
    if path.suffix.lower() == ".json":
        return _by_column(_json_rows(text, path))
    return csv_columns(text, path.name)


def csv_columns(text: str, name: str) -> TextColumns:
    """Return the columns of CSV text; a short row is blank at its end, one with words beyond it all over."""
    return _plain_columns(text, name) or _by_column(csv_rows(text, name))


def _plain_columns(text: str, name: str) -> TextColumns | None:
    """Take apart a table without quotes whose rows are all as wide as its header; None for any other."""
    lines, separator = text.splitlines(), _separator(text)
    if '"' in text or "\0" in text or not 1 < len(lines) <= MAX_ROWS + 1:
        return None
    width = lines[0].count(separator) + 1
    if width < 2 or not _are_as_wide(text, separator, len(lines), width):
        return None
    cells = separator.join(lines).split(separator)
    columns = {cells[at].strip().lower(): cells[width + at :: width] for at in reversed(range(width))}
    return TextColumns(name, range(2, len(lines) + 1), dict(reversed(columns.items())))


def _are_as_wide(text: str, separator: str, line_count: int, width: int) -> bool:
    """Return whether each line has so many cells, and none is longer than ``csv`` takes; a no may be wrong.

    Asked of the bytes, where of UTF-8 neither a separator nor the end of a line is part of anything else.
    """
    raw = np.frombuffer(text.encode() + b"\n" * (not text.endswith("\n")), dtype=np.uint8)
    ends = np.flatnonzero(raw == ord("\n"))
    separators = np.flatnonzero(raw == ord(separator))
    if len(ends) != line_count or len(separators) != line_count * (width - 1):
        return False
    begins = np.concatenate(([-1], ends[:-1]))
    of_line = separators.reshape(line_count, width - 1)
    as_wide = (of_line[:, 0] > begins) & (of_line[:, -1] < ends)
    return bool(as_wide.all() and (ends - begins).max() <= csv.field_size_limit())


def _by_column(table: Rows) -> TextColumns:
    numbered, rows, width = list(table.rows), [], len(table.columns)
    for _, row in numbered:  # one with words beyond the header becomes blank, and so is set aside
        is_wider = any(cell.strip() for cell in row[width:])
        rows.append([""] * width if is_wider else [*row[:width], *[""] * (width - len(row))])
    columns = zip(*rows, strict=True) if rows else ((),) * len(table.columns)
    first = dict(reversed(list(zip(table.columns, columns, strict=True))))
    return TextColumns(table.name, [number for number, _ in numbered], dict(reversed(first.items())))


def read_rows(path: Path) -> Rows:
    """Open a table: a JSON list of objects by its suffix .json, else CSV with a header.

    Raises:
        MisuseError: If the file is missing, over ``TABLE_BYTES``, not UTF-8, or no such table; its rows may
            still raise while they are read (a broken line, too many rows).
    """
    text = _read_text(path)
    return _json_rows(text, path) if path.suffix.lower() == ".json" else csv_rows(text, path.name)


def _read_text(path: Path) -> str:
    """Read a table that the user names, so that a link is followed."""
    raw = read_bytes(path, TABLE_BYTES, follow_links=True)
    if raw.startswith(b"PK"):
        raise MisuseError(f"{plain(path.name)} is a spreadsheet or archive: save the table as CSV")
    return decode_text(raw, path)


def csv_rows(text: str, name: str) -> Rows:
    """Return the rows of CSV text; a semicolon is taken as separator where the header uses it."""
    reader = csv.reader(text.splitlines(keepends=True), delimiter=_separator(text))
    numbered = _numbered(reader, plain(name))
    header = next(numbered, None)
    if header is None:
        raise MisuseError(f"{plain(name)} is empty: the first line names the columns")
    return Rows(name, tuple(column.strip().lower() for column in header[1]), numbered)


def _separator(text: str) -> str:
    head = text.partition("\n")[0]
    return ";" if head.count(";") > head.count(",") else ","


def _numbered(reader: Any, name: str) -> Iterator[tuple[int, Sequence[str]]]:
    count = 0
    try:
        for row in reader:
            if not row:
                continue
            count += 1
            if count > MAX_ROWS + 1:
                raise MisuseError(f"{name} has more than {MAX_ROWS:,} rows: split the table")
            yield reader.line_num, row
    except csv.Error as error:
        raise MisuseError(f"{name}, line {reader.line_num}: {error}; write plain CSV") from None


def _json_rows(text: str, path: Path) -> Rows:
    table = decode_json(text, list[dict[str, str | int | float | None]], path, what="a JSON list of offers")
    if len(table) > MAX_ROWS:
        raise MisuseError(f"{plain(path.name)} has more than {MAX_ROWS:,} rows: split the table")
    columns = tuple(dict.fromkeys(column for row in table for column in row))
    cells = (["" if row.get(c) is None else str(row[c]) for c in columns] for row in table)
    return Rows(path.name, tuple(c.strip().lower() for c in columns), enumerate(cells, 1))
