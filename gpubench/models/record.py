"""Base of every recorded type: frozen, keyword-only, read and written by msgspec."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import msgspec

from gpubench.units import count, plain

PROTOCOL = "gpubench/1"

MOST_REPR_CHARACTERS = 1_900
"""Maximum length of a repr. A full ranking has 900,000 characters; its JSON has everything."""

_MOST_FIELD_CHARACTERS = 100
LINES_IN_REPR, ROWS_IN_TABLE = 6, 20
"""Maximum lines in the repr of a record with many parts, and rows in its notebook table."""

ABOVE = {"views": "gpubench.report.page", "labels": "gpubench.labels"}
"""Higher-level modules that display records; the only upward imports here."""


class Record(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Base of every recorded type; ``dict`` holds only cached derived values, never state."""

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
    """Truncate a repr to the maximum length."""
    return text if len(text) <= MOST_REPR_CHARACTERS else f"{text[: MOST_REPR_CHARACTERS - 1]}…"


def headed(head: str, lines: Sequence[str], total: int, most: int = LINES_IN_REPR) -> str:
    """Return a repr with a heading, the first lines, and the number of further lines."""
    more = [f"  ... {total - most:,} more"] if total > most else []
    return bounded("\n".join([head, *lines[:most], *more]) + ">")


def shown(text: str | None, limit: int = 40) -> str:
    """Return a name for a repr: short and without control characters."""
    return plain(text or "unknown", limit)


def views() -> Any:
    """Return the package that shows records in a notebook."""
    return import_module(ABOVE["views"])


def labels() -> Any:
    """Return the module that gives GPUs display names."""
    return import_module(ABOVE["labels"])


def html_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a small table for notebooks: the first rows, and the number of further rows.

    Every cell is untrusted text: it is escaped and cut at 200 characters.
    """
    from html import escape

    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(plain(cell))}</{tag}>" for cell in cells) + "</tr>"

    more = f"<p>... {len(rows) - ROWS_IN_TABLE:,} more</p>" if len(rows) > ROWS_IN_TABLE else ""
    body = "".join(line("td", row) for row in rows[:ROWS_IN_TABLE])
    table = f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>" if rows else ""
    return f"<p>{escape(plain(title, 400))}</p>{table}{more}"


def _brief(value: Any) -> str:
    """Return the repr of a value; a long one is abbreviated, as in ``<181 Row>`` or ``<Environment>``."""
    # An item of a tuple takes at least three characters, with its separator.
    is_long = isinstance(value, tuple | list | dict) and len(value) > _MOST_FIELD_CHARACTERS // 3
    if not is_long and len(text := repr(value)) <= _MOST_FIELD_CHARACTERS:
        return text
    if isinstance(value, str):
        return f"{value[: _MOST_FIELD_CHARACTERS - 3]!r}…"
    if isinstance(value, tuple | list) and value:
        return f"<{len(value)} {type(value[0]).__name__}>"
    return f"<{count(len(value), 'key')}>" if isinstance(value, dict) else f"<{type(value).__name__}>"
