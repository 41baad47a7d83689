"""What every recorded type is: frozen, keyword-only, read and written by msgspec."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import msgspec

from gpubench.units import plain

PROTOCOL = "gpubench/1"

MOST_REPR_CHARACTERS = 1_900
"""A repr is for a screen: a ranking holds 900,000 characters, and the whole of it is in its JSON."""

_MOST_FIELD_CHARACTERS = 100
LINES_IN_REPR, ROWS_IN_TABLE = 6, 20
"""A record of many parts shows this many lines as a repr, and rows as the table of a notebook."""

ABOVE = {"views": "gpubench.report.views", "labels": "gpubench.labels"}
"""Higher modules that display records; nothing else here imports upwards."""


class Record(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Base of every recorded type; ``dict`` only holds cached derived values, never state."""

    def __repr__(self) -> str:
        return brief_repr(self)


def brief_repr(record: msgspec.Struct) -> str:
    """Return ``Type(field=value, ...)``, each value in at most 100 characters, 1,900 in all.

    >>> brief_repr(msgspec.defstruct("Run", ["name", "rounds"])("long", tuple(range(1000))))
    "Run(name='long', rounds=<1000 int>)"
    """
    fields = (f"{name}={_brief(getattr(record, name))}" for name in record.__struct_fields__)
    return bounded(f"{type(record).__name__}({', '.join(fields)})")


def bounded(text: str) -> str:
    """Cut a repr to the length that every repr keeps to."""
    return text if len(text) <= MOST_REPR_CHARACTERS else f"{text[: MOST_REPR_CHARACTERS - 1]}…"


def headed(head: str, lines: Sequence[str], total: int, most: int = LINES_IN_REPR) -> str:
    """Return a repr of a head and the first of this many lines, and how many more there are."""
    more = [f"  ... {total - most:,} more"] if total > most else []
    return bounded("\n".join([head, *lines[:most], *more]) + ">")


def shown(text: str | None, limit: int = 40) -> str:
    """Return a name for a repr: without control characters, and short."""
    return plain(text or "unknown", limit)


def views() -> Any:
    """Return the room that shows records in a notebook."""
    return import_module(ABOVE["views"])


def labels() -> Any:
    """Return the room that names GPUs for people."""
    return import_module(ABOVE["labels"])


def html_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a small table for notebooks: of the first rows, and how many more there are.

    Every cell is text from outside: it is escaped, and cut at 200 characters.
    """
    from html import escape

    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(plain(cell))}</{tag}>" for cell in cells) + "</tr>"

    more = f"<p>... {len(rows) - ROWS_IN_TABLE:,} more</p>" if len(rows) > ROWS_IN_TABLE else ""
    body = "".join(line("td", row) for row in rows[:ROWS_IN_TABLE])
    table = f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>" if rows else ""
    return f"<p>{escape(plain(title, 400))}</p>{table}{more}"


def _brief(value: Any) -> str:
    """Return a value; name a long one: ``<181 Row>``, ``<Environment>``, the beginning of a text."""
    is_long = isinstance(value, tuple | list | dict) and len(value) > _MOST_FIELD_CHARACTERS // 3
    if not is_long and len(text := repr(value)) <= _MOST_FIELD_CHARACTERS:
        return text
    if isinstance(value, str):
        return f"{value[: _MOST_FIELD_CHARACTERS - 3]!r}…"
    if isinstance(value, tuple | list) and value:
        return f"<{len(value)} {type(value[0]).__name__}>"
    return f"<{len(value)} keys>" if isinstance(value, dict) else f"<{type(value).__name__}>"
