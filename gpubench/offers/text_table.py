"""Reads files with a price table as text: CSV with any usual delimiter, Markdown, JSON, or JSON lines."""

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, decode_json, decode_text, read_bytes
from gpubench.units import plain

MAX_ROWS = 500_000
# Maximum number of cells, because short rows are padded to the header: a wide header could exhaust memory.
_MAX_CELLS = 20_000_000

_SEPARATORS = ",;\t|"
# A header has a column of GPUs and at most this many lines above it, such as a title.
_MOST_TITLES = 20
# Numbers with a decimal comma, numbers with a decimal point, and numbers that may have either: "1,234".
_WITH_COMMA = re.compile(r"[-+]?(?:0,\d+|\d+,\d{1,2}|\d+,\d{4,}|\d{1,3}(?:\.\d{3})+,\d+)", re.ASCII)
_WITH_POINT = re.compile(r"[-+]?(?:0?\.\d+|\d+\.\d{1,2}|\d+\.\d{4,}|\d{1,3}(?:,\d{3})+\.\d+)", re.ASCII)
_WITH_EITHER = re.compile(r"[1-9]\d{0,2}[.,]\d{3}", re.ASCII)


class Table(NamedTuple):
    """A table as read from a file, before any checks of its cells.

    Attributes:
        name: Name of its file.
        day: Day of the file's last modification.
        columns: Column names in lowercase.
        rows: The number of each row and its unstripped cells, which may be fewer or more than the columns.
    """

    name: str
    day: date
    columns: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]


def read_rows(path: Path, is_gpu: Callable[[str], bool]) -> Table:
    """Read a file: JSON, or CSV with a header.

    JSON is a list of objects, an object with one list of objects, or one object on each line.

    Args:
        path: The file.
        is_gpu: Says whether a heading is that of a column of GPUs.

    Raises:
        MisuseError: If the file is missing, neither UTF-8 nor UTF-16, not a table, or too large.
    """
    raw = read_bytes(path, TABLE_BYTES, follow_links=True)
    if raw.startswith(b"PK"):
        raise MisuseError(f"{plain(path.name)} is a spreadsheet or archive: save the table as CSV")
    # Excel's "Unicode text" is UTF-16.
    is_utf16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and len(raw) % 2 == 0
    text = raw.decode("utf-16", "replace") if is_utf16 else decode_text(raw, path)
    is_json = path.suffix.lower() == ".json" or text.lstrip()[:1] in {"[", "{"}
    header, rows = _json_rows(text, path) if is_json else _csv_rows(text, path, is_gpu)
    if len(rows) > MAX_ROWS:
        raise MisuseError(f"{plain(path.name)} has more than {MAX_ROWS:,} rows: split the table")
    if len(rows) * len(header) > _MAX_CELLS:
        raise MisuseError(
            f"{plain(path.name)} has {len(header):,} columns for {len(rows):,} rows, over {_MAX_CELLS:,} "
            "cells in all: leave out empty columns"
        )
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    return Table(path.name, changed, [name.strip().lower() for name in header], rows)


def cells_of(table: Table) -> Iterator[tuple[int, dict[str | None, str]]]:
    """Yield each row number with the stripped text by column, "" for an empty cell.

    The key None holds the text of all cells beyond the header.
    """
    width, names = len(table.columns), table.columns[::-1]  # backward: the first of equal names wins
    for number, row in table.rows:
        texts = [*map(str.strip, row[:width]), *[""] * (width - len(row))]
        found: dict[str | None, str] = dict(zip(names, texts[::-1], strict=True))
        found[None] = "".join(row[width:]).strip()
        yield number, found


def _csv_rows(
    text: str, path: Path, is_gpu: Callable[[str], bool]
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and the rows with their line numbers.

    The header determines the delimiter. A line of dashes, as in Markdown, and a comment are no rows.
    """
    above, separator = _header_of(text, is_gpu)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    used = (
        (reader.line_num, row)
        for row in reader
        if reader.line_num > above and "".join(row).strip("-: ") and not row[0].startswith("# ")
    )
    try:
        rows = list(islice(used, MAX_ROWS + 2))
    except csv.Error as error:
        raise MisuseError(f"{plain(path.name)}, line {reader.line_num}: {error}; write plain CSV") from None
    if not rows:
        raise MisuseError(f"{plain(path.name)} is empty: the first line names the columns")
    if separator != "," or '"' in text:
        rows = _with_points(rows, "," if separator == ";" else "")
    return rows[0][1], rows[1:]


def _header_of(text: str, is_gpu: Callable[[str], bool]) -> tuple[int, str]:
    # Return the number of lines above the header, and its delimiter: the first line with a column of GPUs,
    # else the first line of text.
    lines = re.split(r"\r\n?|\n", text, maxsplit=_MOST_TITLES)[:_MOST_TITLES]
    marks = [max(_SEPARATORS, key=line.count) for line in lines]
    for at, (line, mark) in enumerate(zip(lines, marks, strict=True)):
        if any(map(is_gpu, line.split(mark))):
            return at, mark
    return next(((at, mark) for at, mark in enumerate(marks) if lines[at].strip()), (0, ","))


def _with_points(rows: list[tuple[int, list[str]]], usual: str) -> list[tuple[int, list[str]]]:
    # Return the rows with decimal points. The other numbers of the table tell what "1,234" and "1.234" mean;
    # without any, only the ``usual`` decimal separator is one, and a cell with the other one stays as it is.
    numbers = {cell.strip() for _, row in rows for cell in row if "," in cell or "." in cell}
    has_commas, has_points = (any(map(each.fullmatch, numbers)) for each in (_WITH_COMMA, _WITH_POINT))
    decimal = {(True, False): ",", (False, True): ".", (False, False): usual}.get(
        (has_commas, has_points), ""
    )

    def read(number: str) -> str:
        if _WITH_COMMA.fullmatch(number):
            return number.replace(".", "").replace(",", ".")
        if not decimal or not _WITH_EITHER.fullmatch(number):
            return number
        if decimal in number:
            return number.replace(",", ".")
        return re.sub("[.,]", "", number) if has_commas or has_points else number

    known = {number: read(number) for number in numbers}
    return [(line, [known.get(cell.strip(), cell) for cell in row]) for line, row in rows]


def _json_rows(text: str, path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    text, ends = re.subn(r"\}\s*\n\s*\{", "},{", text)
    if ends:  # one object on each line
        text = f"[{text}]"
    if text.lstrip().startswith("{"):  # an API answer has the list under a key
        answer = decode_json(text, dict[str, Any], path, what="a JSON list of offers")
        lists = [value for value in answer.values() if isinstance(value, list)]
        text = msgspec.json.encode(lists[0] if len(lists) == 1 else answer).decode()
    table = decode_json(text, list[dict[str, Any]], path, what="a JSON list of offers")
    header = list(dict.fromkeys(chain.from_iterable(table)))
    if len(header) * len(table) > _MAX_CELLS:  # the caller refuses it, so its cells are not needed
        return header, [(0, [])] * len(table)
    return header, [(at, [_cell(row.get(name)) for name in header]) for at, row in enumerate(table, 1)]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or isinstance(value, list | dict) else str(value)
