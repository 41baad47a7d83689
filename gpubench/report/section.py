"""What a section of the report is: one idea, given as data. Markup is made of it in one other place.

A section returns a ``Block`` of parts (sentences, facts, tables, charts). Because it never writes
markup, a name that came from outside cannot become markup either, a plug-in cannot break the page, and
the same block prints as HTML and as Markdown. Every ``Charts`` part carries its table twin.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeAlias

from gpubench.errors import MisuseError
from gpubench.report.data import ReportData

RowMark: TypeAlias = Literal["tie", "here", "bad"]

ENTRY_POINT_GROUP = "gpubench.sections"

BUILT_IN = (
    "verdict",
    "device",
    "throughput",
    "latency",
    "host",
    "amp",
    "processor",
    "together",
    "value",
    "frontier",
    "owning",
    "prediction",
    "memory",
    "devices",
    "feeding",
    "micro",
    "telemetry",
    "method",
    "prices",
    "footnotes",
)
"""The page's own sections, in reading order; those of other authors follow."""


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Sentences. A ``headline`` is the one sentence that matters; a ``note`` is set off and quiet."""

    text: str
    tone: Literal["plain", "headline", "note", "warning"] = "plain"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One named value; ``detail`` says what qualifies it (interval, date, basis)."""

    term: str
    value: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A few named values; ``prominent`` sets them large, as the figures to remember."""

    rows: tuple[Fact, ...]
    prominent: bool = False


@dataclass(frozen=True, kw_only=True)
class Bullets:
    """A list of short remarks."""

    items: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; numbers are set flush right in tabular figures."""

    title: str
    numeric: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text cells, one tuple a row, the first cell naming the row.

    A line break inside a cell sets what follows on a second, quieter line: an interval, a date, a detail.

    Attributes:
        marks: For each row None, ``tie`` (shares the head of the ranking), ``here`` (this user's own
            device) or ``bad``; shown by a rule beside the row, never by colour alone.
        folded: Whether the table waits behind its caption; for what few readers need.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[RowMark | None, ...] = ()
    folded: bool = False

    def __post_init__(self) -> None:
        """Refuse a ragged table: a cell under the wrong heading is a wrong statement."""
        wrong = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if wrong is not None or (self.marks and len(self.marks) != len(self.rows)):
            raise ValueError(
                f"table {self.caption!r}: {len(self.columns)} columns, {len(self.rows)} rows, row {wrong}"
            )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One plotly figure as plain data.

    Attributes:
        figure: ``{"data": [...], "layout": {...}}``; every text in it has passed ``charts.label``.
        alt: What the chart shows, in a sentence, for those who do not see it.
        height_px: Height on the page [CSS px].
    """

    figure: Mapping[str, Any]
    alt: str
    title: str | None = None
    height_px: int = 320


@dataclass(frozen=True, kw_only=True)
class Charts:
    """One or more figures that say one thing, and the table that says the same."""

    figures: tuple[Figure, ...]
    twin: Table
    caption: str | None = None


Part: TypeAlias = Paragraph | Facts | Bullets | Table | Charts


@dataclass(frozen=True, kw_only=True)
class Block:
    """One section as it stands on the page."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One idea of the report.

    Attributes:
        key: Letters, digits and hyphens; the section's address on the page.
        render: Gives the block, or None where there is nothing to say.
    """

    key: str
    render: Callable[[ReportData], Block | None] = field(repr=False)


def printable(value: Any) -> Any:
    """Strip control characters from every text of a block, whoever wrote the section.

    >>> printable(Paragraph(text="a" + chr(27) + "[31mb")).text
    'a[31mb'
    """
    if isinstance(value, str):
        return "".join(c for c in value if c == "\n" or not unicodedata.category(c).startswith("C"))
    if isinstance(value, tuple | list):
        return type(value)(printable(item) for item in value)
    if isinstance(value, Mapping):
        return {key: printable(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: printable(getattr(value, f.name)) for f in fields(value)})
    return value


def load_sections() -> tuple[Section, ...]:
    """Return the page's own sections, then those that other packages register.

    Raises:
        MisuseError: If a plug-in does not load, is no Section, or takes a key that is taken.
    """
    own = tuple(import_module(f"gpubench.report.sections.{name}").SECTION for name in BUILT_IN)
    return combine(own, entry_points(group=ENTRY_POINT_GROUP))


def combine(own: tuple[Section, ...], plugins: Iterable[EntryPoint]) -> tuple[Section, ...]:
    """Append the sections of other packages, in the order of their names."""
    sections = list(own)
    for point in sorted(plugins, key=lambda p: (p.name, p.value)):
        try:
            section = point.load()
        except (ImportError, AttributeError) as error:
            raise MisuseError(
                f"report section {point.name!r} ({point.value}) does not load: {error}; "
                "repair or uninstall the package that brings it"
            ) from error
        if not isinstance(section, Section) or not _is_key(section.key):
            raise MisuseError(
                f"report section {point.name!r} ({point.value}) is no gpubench.report.section.Section "
                "with a key of letters, digits and hyphens"
            )
        if any(section.key == other.key for other in sections):
            raise MisuseError(
                f"two report sections are called {section.key!r}; uninstall one ({point.value})"
            )
        sections.append(section)
    return tuple(sections)


def _is_key(key: str) -> bool:
    return key.isascii() and bool(key) and all(c.isalnum() or c == "-" for c in key)
