"""Reading a stranger's table: CSV or JSON as a frame of text, bounded in size, and not yet believed."""

from __future__ import annotations

import csv
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, decode_json, decode_text, read_bytes
from gpubench.units import plain

_DECIMAL_COMMA = re.compile(r"^\s*([-+]?\d+),(\d+)\s*$", re.ASCII)
MAX_ROWS = 500_000
MAX_CELLS = 20_000_000
"""Short rows are filled up to the header, so that many of them below a wide one would take all memory."""
BEYOND = "(beyond the header)"
"""The column of what a row has more than its header names."""


def read_frame(path: Path) -> pd.DataFrame:
    """Read a table that the user names: a JSON list of objects by its suffix .json, else CSV with a header.

    Returns:
        Stripped text, "" where a row says nothing; by the number of each row, and by the names of the columns
        in lower case, of two of one name the first. The last column is ``BEYOND``.

    Raises:
        MisuseError: If the file is missing, not UTF-8, no table, or too large.
    """
    raw = read_bytes(path, TABLE_BYTES, follow_links=True)
    if raw.startswith(b"PK"):
        raise MisuseError(f"{plain(path.name)} is a spreadsheet or archive: save the table as CSV")
    read = _json_rows if path.suffix.lower() == ".json" else _csv_rows
    header, rows = read(decode_text(raw, path), path)
    width = len(header)
    cells = (
        [*map(str.strip, row[:width]), *[""] * (width - len(row)), "".join(row[width:]).strip()]
        for row in rows.values()
    )
    columns = [*(name.strip().lower() for name in header), BEYOND]
    frame = pd.DataFrame(list(cells), index=list(rows), columns=columns, dtype=object)
    return frame.loc[:, ~frame.columns.duplicated()]


def _csv_rows(text: str, path: Path) -> tuple[list[str], dict[int, list[str]]]:
    """Return the header, and the rows by their lines.

    A semicolon parts cells where the header uses it, and then a comma may part the decimals of a figure.
    """
    head = text.partition("\n")[0]
    separator = ";" if head.count(";") > head.count(",") else ","
    reader = csv.reader(text.splitlines(keepends=True), delimiter=separator)
    told = (
        row if separator == "," else [_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in row] for row in reader
    )
    try:
        rows = dict(islice(((reader.line_num, row) for row in told if row), MAX_ROWS + 2))
    except csv.Error as error:
        raise MisuseError(f"{plain(path.name)}, line {reader.line_num}: {error}; write plain CSV") from None
    if not rows:
        raise MisuseError(f"{plain(path.name)} is empty: the first line names the columns")
    header = rows.pop(next(iter(rows)))
    _require_size(path, len(header), len(rows))
    return header, rows


def _json_rows(text: str, path: Path) -> tuple[list[str], dict[int, list[str]]]:
    table = decode_json(text, list[dict[str, Any]], path, what="a JSON list of offers")
    header = list(dict.fromkeys(name for row in table for name in row))
    _require_size(path, len(header), len(table))
    cells = ([_cell(row.get(name)) for name in header] for row in table)
    return header, dict(enumerate(cells, 1))


def _cell(value: Any) -> str:
    """Return a value as a cell; a list or an object, which no column of ours has, says nothing."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or isinstance(value, list | dict) else str(value)


def _require_size(path: Path, columns: int, rows: int) -> None:
    if rows > MAX_ROWS:
        raise MisuseError(f"{plain(path.name)} has more than {MAX_ROWS:,} rows: split the table")
    if rows * columns > MAX_CELLS:
        raise MisuseError(
            f"{plain(path.name)} has {columns:,} columns for {rows:,} rows, over {MAX_CELLS:,} cells in all: "
            "leave out the columns that say nothing"
        )
