"""Output as data: blocks of sentences, facts, tables and charts, which renderers turn into markup.

A block never contains markup, so an untrusted name cannot become markup and a plug-in cannot break the page.
The terminal, notebooks, HTML and Markdown show the same block with the same numbers and names. Every
``Charts`` part has an equivalent table, which a terminal shows instead.

Charts are plain JSON values for plotly, which is not imported; a test checks each against plotly's schema.
They use the light colors; ``PALETTE`` has the dark equivalents for the page's script. The eight hues follow
the Okabe-Ito set, which color-blind readers can distinguish. No meaning depends on hue alone: measured and
predicted values also differ in symbol, and each precision has its own row.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from gpubench.folders import package_path
from gpubench.interval import Interval
from gpubench.units import UNKNOWN, count, isolated, plain

if TYPE_CHECKING:
    from jinja2 import Environment

RowMark: TypeAlias = Literal["tie", "here", "bad"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A paragraph: a ``headline`` states the main message; a ``note`` is less prominent than ``plain``."""

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
    """A few named values, in large type if ``prominent``."""

    rows: tuple[Fact, ...]
    prominent: bool = False


@dataclass(frozen=True, kw_only=True)
class Bullets:
    """A list of short remarks, ``numbered`` if a table refers to them."""

    items: tuple[str, ...]
    numbered: bool = False


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; numbers are right-aligned in tabular figures.

    Attributes:
        optional: A narrow terminal omits the columns with the highest number first, and never those with 0.
        below: Whether a page shows the text under that of the first column, to save width.
        link: Whether a page shows a URL as a link.
        glyph: Whether the text starts with a symbol. A narrow terminal that omits the column puts the symbol
            in front of the first column.
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
        marks: The mark of each row: None, ``tie`` (tied for the top of the ranking), ``here`` (this user's
            device) or ``bad``. A rule next to the row shows the mark, which never depends on color alone.
        folded: Whether the table is collapsed under its caption, for details that few readers need.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[RowMark | None, ...] = ()
    folded: bool = False

    def __post_init__(self) -> None:
        """Reject a ragged table: its cells would be under the wrong headings."""
        wrong = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if wrong is not None or (self.marks and len(self.marks) != len(self.rows)):
            raise ValueError(
                f"table {self.caption!r}: {len(self.columns)} columns, {len(self.rows)} rows, row {wrong}"
            )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One plotly figure as plain data.

    Attributes:
        figure: ``{"data": [...], "layout": {...}}``; every text in it has passed ``label``.
        alt: A sentence that describes the chart for readers who cannot see it.
        height_px: Height on the page [CSS px].
    """

    figure: Mapping[str, Any]
    alt: str
    title: str | None = None
    height_px: int = 320


@dataclass(frozen=True, kw_only=True)
class Charts:
    """One or more figures on one subject, and ``twin``, the equivalent table."""

    figures: tuple[Figure, ...]
    twin: Table
    caption: str | None = None


Part: TypeAlias = Paragraph | Facts | Bullets | Table | Charts


@dataclass(frozen=True, kw_only=True)
class Block:
    """One section, in full and brief form.

    Attributes:
        parts: The parts for the page and Markdown.
        brief: The parts for a terminal, which are sentences and tables made by the same functions.
        finding: The main result, shown in the heading.
    """

    title: str
    parts: tuple[Part, ...]
    brief: tuple[Part, ...] = ()
    finding: str | None = None

    def _repr_html_(self) -> str:
        return as_html(self)


Cell: TypeAlias = tuple[Column, Callable[[T], str]]
"""A column, and the function that returns its cell for a row."""


def text(
    title: str, cell: Callable[[T], str], optional: int = 0, *, below: bool = False, glyph: bool = False
) -> Cell[T]:
    """Return a column of text."""
    return Column(title=title, optional=optional, below=below, glyph=glyph), cell


def link(title: str, cell: Callable[[T], str | None], optional: int = 0) -> Cell[T]:
    """Return a column of URLs, with a dash for a missing one."""
    return Column(title=title, optional=optional, below=True, link=True), lambda row: cell(row) or UNKNOWN


def number(title: str, cell: Callable[[T], str], optional: int = 0) -> Cell[T]:
    """Return a column of numbers."""
    return Column(title=title, numeric=True, optional=optional), cell


def table(
    caption: str,
    rows: Sequence[T],
    *columns: Cell[T] | None,
    marks: tuple[RowMark | None, ...] = (),
    folded: bool = False,
) -> Table:
    """Make a table from rows and columns, without the columns that are None."""
    cells = [cell for cell in columns if cell is not None]
    return Table(
        caption=caption,
        columns=tuple(column for column, _ in cells),
        rows=tuple(tuple(words(row) for _, words in cells) for row in rows),
        marks=marks,
        folded=folded,
    )


NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
"""Keeps words on one line while a cell is laid out; a terminal prints a plain space."""


def keep_units_together(cell: str) -> str:
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

    Every renderer calls this first, so none prints an escape sequence or a bidirectional control character.

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


# --- as HTML --------------------------------------------------------------------------------------------


def as_html(block: Block) -> str:
    """Return a block as HTML without scripts, with tables instead of charts."""
    return environment().get_template("block.html.j2").render(block=printable(block))


@cache
def environment() -> Environment:
    """Return a Jinja environment with autoescape on, because any name may be untrusted."""
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
        "keep_units_together": keep_units_together,
    }
    return made


# --- Markdown -------------------------------------------------------------------------------------------

# Characters that Markdown may interpret as markup within a line
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~])")


MOST_ROWS = 20
"""Maximum number of rows of a table in Markdown, and of the ranking in a report."""


def as_markdown(title: str, subtitle: str, blocks: Sequence[Block]) -> str:
    """Return the whole report as one document in GitHub-flavored Markdown."""
    lines = [f"# {escape(title)}", "", escape(subtitle), ""]
    for block in blocks:
        lines += [f"## {escape(block.title)}", ""]
        for part in block.parts:
            lines += [*_part(part), ""]
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str) -> str:
    """Escape text so that it is shown literally: no markup, no link, no image, one line.

    >>> escape("<b>a</b>")
    '&lt;b&gt;a&lt;/b&gt;'
    >>> escape("http://a.b www.c.d")
    'http:&#47;/a.b www&#46;c.d'
    """
    return _escaped(" ".join(text.split()))


def _escaped(line: str) -> str:
    safe = html.escape(_SPECIAL.sub(r"\\\1", line), quote=False)
    return safe.replace("://", ":&#47;/").replace("www.", "www&#46;")


def prose(text: str) -> str:
    """Escape a text, but keep text between backticks as code.

    >>> prose("run `gpubench run` here")
    'run `gpubench run` here'
    """
    pieces = " ".join(text.split()).split("`")
    if len(pieces) % 2 == 0:  # a lone backtick
        return escape(text)
    return "".join(
        f"`{piece}`" if i % 2 and piece and "<" not in piece else _escaped(piece)
        for i, piece in enumerate(pieces)
    )


def _part(part: Part) -> list[str]:
    match part:
        case Paragraph(tone="headline"):
            return [f"**{prose(part.text)}**"]
        case Paragraph(tone="warning" | "note"):
            return [f"> {prose(part.text)}"]
        case Paragraph():
            return [prose(part.text)]
        case Facts():
            return [
                f"- **{escape(f.term)}**: {escape(f.value)}" + (f" — {escape(f.detail)}" if f.detail else "")
                for f in part.rows
            ]
        case Bullets():
            return [f"{'1.' if part.numbered else '-'} {prose(item)}" for item in part.items]
        case Table():
            return _table(part)
        case Charts():
            return [*_table(part.twin), *(["", prose(part.caption)] if part.caption else [])]


def _table(table: Table) -> list[str]:
    rows = table.rows[:MOST_ROWS]
    left = len(table.rows) - len(rows)
    return [
        *([f"*{escape(table.caption)}*", ""] if table.caption else []),
        _row([column.title for column in table.columns]),
        _row_raw(["---:" if column.numeric else "---" for column in table.columns]),
        *(_row(row) for row in rows),
        *(["", f"Left out: {count(left, 'row')}; see the JSON report."] if left else []),
    ]


def _row(cells: Sequence[str]) -> str:
    return _row_raw(["<br>".join(escape(line) for line in cell.split("\n")) for cell in cells])


def _row_raw(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# --- charts ---------------------------------------------------------------------------------------------

INK, QUIET, RULE, PAPER = "#1b2430", "#5b6675", "#d9dee5", "#ffffff"
BLUE, ORANGE, GREEN, PURPLE, BAND = "#1f6fb2", "#c2560a", "#0a7f5e", "#9a4d86", "#e9f1f9"
SLATE = "#7a8594"

PALETTE: Mapping[str, str] = {
    INK: "#e8ecf1",
    QUIET: "#a3aebb",
    RULE: "#333d4a",
    PAPER: "#141a21",
    BLUE: "#6cb2ee",
    ORANGE: "#f2a05c",
    GREEN: "#4cc79f",
    PURPLE: "#d79ac6",
    BAND: "#1b2a3a",
    SLATE: "#93a0b0",
}
"""The dark equivalent of each light color. Text and marks have a contrast of at least 3 to 1 with the page;
rules and bands are fainter on purpose."""

BASIS_GLYPHS: Mapping[str, str] = {"measured": "●", "reference": "◆", "predicted": "○"}
"""The symbol of each basis in a table, as ``BASIS_LOOKS`` draws it in a chart."""

_FEWEST_TICKS, _MOST_TICKS = 3, 12
# Maximum number of characters in an axis title, so that it fits on a phone
_AXIS_LENGTH = 46

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"


QUIET_AXIS: dict[str, Any] = {
    "tickfont": {"color": QUIET},
    "linecolor": RULE,
    "gridcolor": RULE,
    "automargin": True,
}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A value with its interval in a row of a chart. An unknown value is drawn at zero.

    Attributes:
        row: Label of its row, from ``label`` or ``two_lines``.
        hover: Tooltip text.
        alt: Name and value in words, for readers who cannot see the chart.
        kind: Its key in the ``Looks`` of the chart.
    """

    row: str
    interval: Interval
    hover: str
    alt: str = ""
    kind: Hashable = None


@dataclass(frozen=True, kw_only=True)
class Look:
    """The name, color and symbol of one kind of mark."""

    name: str
    color: str
    symbol: str = "circle"


Looks: TypeAlias = Mapping[Any, Look]
"""The look of each kind of mark, in the order of the legend."""

BASIS_LOOKS: Mapping[str, Look] = {
    basis: Look(name=basis, color=color, symbol=symbol)
    for basis, color, symbol in (
        ("measured", BLUE, "circle"),
        ("reference", GREEN, "diamond"),
        ("predicted", ORANGE, "circle-open"),
    )
}


def two_lines(name: str, detail: str) -> str:
    """Return the label of a row, with a detail below its name; both are narrow enough for a phone."""
    return f"{label(name, 34)}<br>{label(detail, 38)}"


def label(text: str, limit: int = 60) -> str:
    """Make a name safe and short enough for a figure.

    Plotly interprets ``<a href>``, ``<b>`` and entities in every text, so a name must not contain them.
    """
    return isolated(html.escape(plain(text, limit), quote=False))


def dots(
    marks: Sequence[Mark],
    looks: Looks,
    axis: str,
    alt: str,
    *,
    title: str | None = None,
    row_px: int = 38,
    line_at: float | None = None,
    logarithmic: bool = False,
) -> Figure:
    """Draw dots with their intervals, one row per label, on an axis from zero or a logarithmic axis.

    Args:
        marks: The marks to draw, in reading order.
        looks: The look of each kind of mark.
        axis: Title of the value axis, with its unit.
        alt: Description of the chart; the ``alt`` text of each mark is added.
        title: Title of the figure, if there are several.
        row_px: Height of a row [CSS px].
        line_at: A value at which to draw a line, such as 1 for "no speedup".
        logarithmic: Whether the axis is logarithmic, for nonzero values of different magnitudes.
    """
    rows = list(dict.fromkeys(mark.row for mark in marks))
    traces = [
        _trace(look, found, rows)
        for kind, look in looks.items()
        if (found := [mark for mark in marks if mark.kind == kind])
    ]
    ends = [end for m in marks for end in (m.interval.low, m.interval.value, m.interval.high) if end]
    reach = max([*ends, line_at or 0.0], default=1.0)
    x = QUIET_AXIS | {
        "range": [0, reach * 1.06], "nticks": 6, "zeroline": False, "fixedrange": True,
        "exponentformat": "SI",
        "title": {"text": label(axis, _AXIS_LENGTH), "font": {"color": QUIET, "size": 12}, "standoff": 8},
    }  # fmt: skip
    line = {
        "type": "line", "x0": line_at, "x1": line_at, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": INK, "width": 1, "dash": "dot"}, "layer": "below",
    }  # fmt: skip
    layout = base_layout() | {
        "xaxis": log_axis(ends, axis, room=0.03) if logarithmic else x,
        "yaxis": {
            "automargin": True, "tickmode": "array", "tickvals": list(range(len(rows))), "ticktext": rows,
            "range": [len(rows) - 0.5, -0.5], "tickfont": {"color": INK}, "ticks": "", "showgrid": False,
            "zeroline": False, "fixedrange": True, "ticklabelstandoff": 6,
        },
        "showlegend": len(traces) > 1,
        "shapes": [line] if line_at is not None else [],
        "meta": {"labels_above_where_narrow": True},
    }  # fmt: skip
    described = "; ".join(mark.alt for mark in marks if mark.alt)
    return Figure(
        figure={"data": traces, "layout": layout},
        title=title,
        alt=f"{alt}: {described}.",
        height_px=92 + row_px * len(rows),
    )


def _trace(look: Look, marks: Sequence[Mark], rows: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": label(look.name),
        "x": [m.interval.value or 0.0 for m in marks],
        "y": [rows.index(m.row) for m in marks], "hovertext": [m.hover for m in marks],
        "hoverinfo": "text",
        "error_x": whiskers([m.interval for m in marks], color=look.color, thickness=2.5),
        "marker": {
            "color": look.color, "symbol": look.symbol, "size": 11,
            "line": {"width": 2, "color": look.color},
        },
    }  # fmt: skip


def log_axis(values: Sequence[float], title: str, room: float) -> dict[str, Any]:
    """Return a logarithmic axis with full labels; plotly would label 200 as just 2.

    The ticks are at 1, 2 and 5 times each power of ten. A short axis has more, a long one only the powers.

    Args:
        values: The values to show, above 0.
        title: Title of the axis, with its unit.
        room: Room at each end, as a share of the axis.
    """
    low, high = math.log10(min(values, default=1.0)), math.log10(max(values, default=1.0))
    pad = max(room * (high - low), 0.05)
    decades = range(math.floor(low - pad), math.ceil(high + pad) + 1)

    def inside(*steps: float) -> list[float]:
        every = [step * 10.0**decade for decade in decades for step in steps]
        return [tick for tick in every if low - pad <= math.log10(tick) <= high + pad]

    ticks = inside(1, 2, 5)
    if len(ticks) < _FEWEST_TICKS:
        ticks = inside(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    if len(ticks) > _MOST_TICKS:
        ticks = [tick for tick in ticks if math.log10(tick).is_integer()]
    return {
        "type": "log",
        "range": [low - pad, high + pad],
        "tickvals": ticks,
        "ticktext": [f"{tick:,.9g}" for tick in ticks],
        "title": {"text": label(title, _AXIS_LENGTH), "font": {"color": QUIET, "size": 12}},
        "tickfont": {"color": QUIET},
        "gridcolor": RULE,
        "linecolor": RULE,
        "zeroline": False,
        "automargin": True,
        "fixedrange": True,
    }


def whiskers(intervals: Sequence[Interval], **look: Any) -> dict[str, Any]:
    """Return intervals as plotly's error bars; an unknown end has no bar."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if each.high is None else each.high - (each.value or 0.0) for each in intervals],
        "arrayminus": [0.0 if each.low is None else (each.value or 0.0) - each.low for each in intervals],
        **look,
        "width": 0,
    }


def base_layout() -> dict[str, Any]:
    """Return the base layout of every figure."""
    return {
        "font": {"family": _FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": RULE, "font": {"color": INK}, "align": "left"},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "font": {"color": INK}},
        "dragmode": False,
    }
