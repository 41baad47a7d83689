"""What is shown, as data: a block of sentences, facts, tables and charts; each renderer makes its markup.

A block never holds markup, so a name that came from outside cannot become markup either, a plug-in cannot
break the page, and the same block prints on a terminal, in a notebook, as HTML and as Markdown with equal
figures and names. Every ``Charts`` part carries its table twin, which is what a terminal shows of it.
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
    """Sentences. A ``headline`` is the one sentence that matters; a ``note`` is set off and quiet."""

    text: str
    tone: Literal["plain", "headline", "note", "warning"] = "plain"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One named value; ``detail`` says what qualifies it (interval, date, basis)."""

    term: str
    value: str
    detail: str = ""

    @property
    def words(self) -> str:
        """The value, and in brackets what qualifies it."""
        return f"{self.value} ({self.detail})" if self.detail else self.value


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
    """A column of a table; numbers are set flush right in tabular figures.

    Attributes:
        optional: What a narrow terminal leaves out: the column with the highest number first; 0 stays.
        below: On a page its words go below those of the first column, which saves width.
        link: On a page its words are a link, where they are an address of the web.
        glyph: Its words begin with a sign, which a narrow terminal sets before the first column when it
            leaves the rest out.
    """

    title: str
    numeric: bool = False
    optional: int = 0
    below: bool = False
    glyph: bool = False
    link: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text cells, one tuple a row, the first cell naming the row.

    A line break inside a cell sets what follows on a second, quieter line: an interval, a date, a detail.

    Attributes:
        marks: For each row None, ``tie`` (shares the head of the ranking), ``here`` (this user's own
            device) or ``bad``; shown by a rule beside the row, never by color alone.
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
    """One section, whole and in its brief form.

    Attributes:
        parts: What the page shows, and Markdown.
        brief: What a terminal shows: the sentence and the table, made by the same functions.
        finding: The main result, shown in the heading.
    """

    title: str
    parts: tuple[Part, ...]
    brief: tuple[Part, ...] = ()
    finding: str | None = None

    def _repr_html_(self) -> str:
        return as_html(self)


Cell: TypeAlias = tuple[Column, Callable[[Row], str]]
"""A column, and what it says of a row."""


def text(
    title: str, cell: Callable[[Row], str], optional: int = 0, *, below: bool = False, glyph: bool = False
) -> Cell[Row]:
    """A column of words."""
    return Column(title=title, optional=optional, below=below, glyph=glyph), cell


def link(title: str, cell: Callable[[Row], str | None], optional: int = 0) -> Cell[Row]:
    """A column of addresses; a dash where there is none."""
    return Column(title=title, optional=optional, below=True, link=True), lambda row: cell(row) or UNKNOWN


def number(title: str, cell: Callable[[Row], str], optional: int = 0) -> Cell[Row]:
    """A column of figures."""
    return Column(title=title, numeric=True, optional=optional), cell


def table(
    caption: str,
    rows: Sequence[Row],
    *columns: Cell[Row] | None,
    marks: tuple[RowMark | None, ...] = (),
    folded: bool = False,
) -> Table:
    """Set rows under columns: one cell a column, in words; a column that is None is left out."""
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
    """Keep each figure in the details of a cell on the line of its unit."""
    value, *details = cell.split("\n")
    return "\n".join([value, *(re.sub(r"(?<=\d) (?=[\w%])", NO_BREAK_SPACE, detail) for detail in details)])


def drop_empty_columns(shown: Table) -> Table:
    """Leave out the columns that say nothing of any row; the first names the rows, and stays."""
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

    Every renderer begins with this, so that no escape, and no mark that turns the direction of writing, gets
    past the one place that prints.

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
    """Jinja with autoescape on: its default is off, and every name here may be hostile."""
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
