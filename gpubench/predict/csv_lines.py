"""The lines of anybody's CSV, each read by itself: one that is broken costs itself, and no other.

A cell that spans lines is not read: to tell it from a quote that somebody forgot, nothing but a guess is
left, and a wrong one costs every row up to the next quote.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_SEPARATORS = (",", ";", "\t")
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Broken(NamedTuple):
    """A line that cannot be read, and why; lines count from 1."""

    number: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A CSV taken apart.

    Attributes:
        header: Cells of the first line; what is no text in it is replaced, so that the other columns stay.
        rows: Each further line that is not empty: its cells, or why there are none. Read once.
    """

    header: Sequence[str]
    rows: Iterator[Sequence[str] | Broken]


def csv_lines(data: bytes) -> Lines:
    """Take a CSV apart: UTF-16 where its byte order mark says so, else UTF-8, separated as its header is."""
    is_utf_16 = data.startswith(_UTF_16_MARKS)
    encoding, mark = ("UTF-16", "\ufffd") if is_utf_16 else ("UTF-8", "[\udc80-\udcff]")
    no_text = re.compile(mark)
    # UTF-16 has no bytes to set aside; U+FFFD stands in a file only where text was lost before.
    text = data.decode("utf-16", "replace") if is_utf_16 else data.decode("utf-8-sig", "surrogateescape")
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="")
    head = no_text.sub("\ufffd", next(lines, ""))
    separator = max(_SEPARATORS, key=head.count)
    header = _cells(head, separator)
    if isinstance(header, str):  # without it all would be lost: no name of a column needs a quote
        header = head.replace('"', "").split(separator)

    def rows() -> Iterator[Sequence[str] | Broken]:
        for number, line in enumerate(lines, start=2):
            cells = f"not {encoding} text" if no_text.search(line) else _cells(line, separator)
            if isinstance(cells, str):
                yield Broken(number, cells)
            elif cells:
                yield cells

    return Lines(header=header, rows=rows())


def _cells(line: str, separator: str) -> Sequence[str] | str:
    """The cells of one line, or why it has none; an empty line has no cells."""
    reader = csv.reader((line, ""), delimiter=separator)
    try:
        cells = next(reader)
    except csv.Error as error:
        return str(error)
    return cells if reader.line_num == 1 else "a quote that is not closed on its line"
