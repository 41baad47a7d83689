"""Output as data: a block of sentences, facts, tables and charts, from which renderers make markup.

A block never contains markup, so an untrusted name cannot become markup and a plug-in cannot break the page.
The same block prints on a terminal, in a notebook, as HTML and as Markdown with equal figures and names.
Every ``Charts`` part has an equivalent table, which a terminal shows instead.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from gpubench.folders import package_path
from gpubench.units import UNKNOWN, isolated

if TYPE_CHECKING:
    from jinja2 import Environment

RowMark: TypeAlias = Literal["tie", "here", "bad"]
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Sentences. A ``headline`` is the most important one; a ``note`` is set apart and less prominent."""

    text: str
    tone: Literal["plain", "headline", "note", "warning"] = "plain"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One named value; ``detail`` is its interval, date or basis."""

    term: str
    value: str
    detail: str = ""

    @property
    def words(self) -> str:
        """The value, with the detail in parentheses."""
        return f"{self.value} ({self.detail})" if self.detail else self.value


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A few named values; ``prominent`` shows them in large type."""

    rows: tuple[Fact, ...]
    prominent: bool = False


@dataclass(frozen=True, kw_only=True)
class Bullets:
    """A list of short remarks, ``numbered`` where a table refers to them."""

    items: tuple[str, ...]
    numbered: bool = False


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; numbers are right-aligned in tabular figures.

    Attributes:
        optional: A narrow terminal omits columns from the highest number down; 0 always stays.
        below: On a page its text goes below that of the first column, to save width.
        link: On a page its text is a link, if it is a URL.
        glyph: Its text starts with a symbol, which a narrow terminal puts before the first column when it
            omits the column.
    """

    title: str
    numeric: bool = False
    optional: int = 0
    below: bool = False
    glyph: bool = False
    link: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text cells, with one tuple per row; the first cell names the row.

    A line break inside a cell starts a second, less prominent line: an interval, a date, a detail.

    Attributes:
        marks: For each row None, ``tie`` (tied for the top of the ranking), ``here`` (this user's device) or
            ``bad``; shown by a rule next to the row, never only by color.
        folded: Whether the table is collapsed under its caption, for details that few readers need.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[RowMark | None, ...] = ()
    folded: bool = False

    def __post_init__(self) -> None:
        """Reject a ragged table, in which cells would be under the wrong heading."""
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
        alt: A sentence that describes the chart for readers who cannot see it.
        height_px: Height on the page [CSS px].
    """

    figure: Mapping[str, Any]
    alt: str
    title: str | None = None
    height_px: int = 320


@dataclass(frozen=True, kw_only=True)
class Charts:
    """One or more figures on one subject, and the equivalent table."""

    figures: tuple[Figure, ...]
    twin: Table
    caption: str | None = None


Part: TypeAlias = Paragraph | Facts | Bullets | Table | Charts


@dataclass(frozen=True, kw_only=True)
class Block:
    """One section, in full and brief form.

    Attributes:
        parts: The parts for page and Markdown.
        brief: The parts for a terminal: the sentence and the table, made by the same functions.
        finding: The main result, shown in the heading.
    """

    title: str
    parts: tuple[Part, ...]
    brief: tuple[Part, ...] = ()
    finding: str | None = None

    def _repr_html_(self) -> str:
        return as_html(self)


Cell: TypeAlias = tuple[Column, Callable[[Row], str]]
"""A column, and the function that returns its cell for a row."""


def text(
    title: str, cell: Callable[[Row], str], optional: int = 0, *, below: bool = False, glyph: bool = False
) -> Cell[Row]:
    """A column of text."""
    return Column(title=title, optional=optional, below=below, glyph=glyph), cell


def link(title: str, cell: Callable[[Row], str | None], optional: int = 0) -> Cell[Row]:
    """A column of URLs, with a dash for a missing one."""
    return Column(title=title, optional=optional, below=True, link=True), lambda row: cell(row) or UNKNOWN


def number(title: str, cell: Callable[[Row], str], optional: int = 0) -> Cell[Row]:
    """A column of numbers."""
    return Column(title=title, numeric=True, optional=optional), cell


def table(
    caption: str,
    rows: Sequence[Row],
    *columns: Cell[Row] | None,
    marks: tuple[RowMark | None, ...] = (),
    folded: bool = False,
) -> Table:
    """Make a table from rows and columns; a column that is None is omitted."""
    cells = [cell for cell in columns if cell is not None]
    return Table(
        caption=caption,
        columns=tuple(column for column, _ in cells),
        rows=tuple(tuple(words(row) for _, words in cells) for row in rows),
        marks=marks,
        folded=folded,
    )


NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
"""Within what stays on one line while a cell is laid out; a terminal draws a plain space."""


def held_together(cell: str) -> str:
    """Prevent line breaks between numbers and their units in the details of a cell."""
    value, *details = cell.split("\n")
    return "\n".join([value, *(re.sub(r"(?<=\d) (?=[\w%])", NO_BREAK_SPACE, detail) for detail in details)])


def drop_empty_columns(shown: Table) -> Table:
    """Omit columns that are empty in every row, except the first, which names the rows."""
    kept = [
        i
        for i in range(len(shown.columns))
        if i == 0 or not shown.rows or any(row[i] not in {"", "none", UNKNOWN} for row in shown.rows)
    ]
    return replace(
        shown,
        columns=tuple(shown.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in shown.rows),
    )


def printable(value: Any) -> Any:
    """Strip control characters from every text of a block, whatever its source.

    Every renderer starts with this, so that no escape sequence and no bidirectional control character is
    printed.

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


# --- as HTML ------------------------------------------------------------------------------------------------


def as_html(block: Block) -> str:
    """Return a block as HTML that needs no script: tables replace the charts."""
    return environment().get_template("block.html.j2").render(block=printable(block))


@cache
def environment() -> Environment:
    """Jinja with autoescape, which is off by default, because every name may be untrusted."""
    import jinja2

    made = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FileSystemLoader([package_path("report/templates"), package_path("blocks/templates")]),
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: isolated(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "kind": lambda part: type(part).__name__,
        "held_together": held_together,
    }
    return made
