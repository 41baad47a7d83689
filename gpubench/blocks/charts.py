"""Plotly figures as plain JSON values: few marks, one palette, readable in light, dark and print.

Plotly itself is not imported: a test holds every figure against its schema.

Figures are drawn in the light colors; ``PALETTE`` gives the page's script the dark twin of each. The
eight hues follow the Okabe-Ito set, which color-blind readers can tell apart, and no statement rests on
hue alone: bases differ in symbol, precisions in their row.
"""

from __future__ import annotations

import html
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack

from gpubench.blocks.parts import Figure
from gpubench.interval import Interval
from gpubench.units import isolated, plain

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
"""Each light color and its twin on a dark page; every pair keeps a contrast of 3 to 1 or more."""

BASIS_GLYPHS: Mapping[str, str] = {"measured": "●", "reference": "◆", "predicted": "○"}
"""In words what ``BASIS_LOOKS`` are in a chart."""

_ROW_GAP = 0.3
"""Share of a row that stays empty between groups of bars."""

_LONG, _AXIS_ROWS = 15, 2.6
"""A chart of more rows has its axis above them, which takes the height of so many."""

_FEWEST_TICKS, _MOST_TICKS = 3, 12
_NAME_WIDTH, _NAME_HEIGHT = 0.22, 0.08
"""Room that the name of a point takes, as a share of the span of the line that it stands on."""

_TEXT_ROOM, _CHARACTER_ROOM = 0.2, 0.055
"""Room right of the longest bar for the figure beside it, and for each of its characters [bars]."""

AXIS_LENGTH = 46
"""Characters of an axis title: what a phone has room for."""

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"


QUIET_AXIS: dict[str, Any] = {
    "tickfont": {"color": QUIET},
    "linecolor": RULE,
    "gridcolor": RULE,
    "automargin": True,
}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A value with its interval in a row of a chart; an unknown one stands at zero.

    Attributes:
        row: Label of its row, as ``label`` or ``two_lines`` made it.
        hover: What stands beside the pointer.
        text: What stands beside its bar.
        told: What it is and how much, for those who do not see the chart.
        kind: Which of the looks it has.
    """

    row: str
    interval: Interval
    hover: str
    text: str = ""
    told: str = ""
    kind: Hashable = None

    @property
    def value(self) -> float:
        """The value without its interval."""
        return self.interval.value or 0.0


@dataclass(frozen=True, kw_only=True)
class Look:
    """What marks share that mean the same: a name, and so a color and a symbol or a pattern."""

    name: str
    color: str
    symbol: str = "circle"
    pattern: str = ""


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
    """A row's label: what it is, and below it what qualifies it; narrow enough for a phone."""
    return f"{label(name, 34)}<br>{label(detail, 38)}"


def label(text: str, limit: int = 60) -> str:
    """Make a name fit to stand in a figure.

    Plotly reads ``<a href>``, ``<b>`` and entities in every text; a name must never be read so.
    """
    return isolated(html.escape(plain(text, limit), quote=False))


class Frame(TypedDict, total=False):
    """What stands around the rows of a chart.

    Attributes:
        title: Of the figure, where there are several.
        head_px: Height beside the rows [CSS px]; else 80.
        row_px: Height of a row [CSS px]; else 38.
        shared: Whether marks of one label stand in one row.
    """

    title: str
    head_px: int
    row_px: int
    shared: bool


def bars(marks: Sequence[Mark], looks: Looks, axis: str, alt: str, **frame: Unpack[Frame]) -> Figure:
    """Draw horizontal bars from zero with interval whiskers; rows from top to bottom.

    Args:
        marks: What to draw, in reading order; several looks stand side by side in a row.
        looks: By kind of mark.
        axis: Title of the value axis, with its unit.
        alt: What the chart shows, before what is told of each mark.
        frame: See ``Frame``.
    """
    # Bars are placed by hand, because the text must stand clear of the whisker: plotly would set it at
    # the end of the bar, across the line.
    rows, groups = _placed(marks, looks, frame)
    slot = (1 - _ROW_GAP) / len(groups)
    traces: list[Any] = []
    for i, (look, found) in enumerate(groups):
        y = [row - (1 - _ROW_GAP) / 2 + slot * (i + 0.5) for row, _ in found]
        pattern = {"shape": look.pattern, "fgcolor": PAPER, "size": 6, "solidity": 0.25}
        traces += [
            _trace("bar", look, found) | {
                "orientation": "h", "y": y, "width": slot * 0.9, "error_x": _whiskers(found),
                "marker": {"color": look.color, "pattern": pattern},
            },
            {
                "type": "scatter", "mode": "text", "y": y,
                "x": [m.interval.high or m.value for _, m in found],
                "text": [f"\u2002{m.text}" for _, m in found], "textposition": "middle right",
                "textfont": {"color": INK, "size": 12}, "showlegend": False, "hoverinfo": "skip",
                "cliponaxis": False,
            },
        ]  # fmt: skip
    room = 1 + _TEXT_ROOM + _CHARACTER_ROOM * max(len(m.text) for m in marks)
    reach = max(m.interval.high or m.value for m in marks)
    x = {"range": [0, reach * room], "nticks": 4, "tickangle": 0, "separatethousands": True}
    layout = _layout(axis, x, rows, legend=len(groups) > 1) | {"barmode": "overlay"}
    return _framed({"data": traces, "layout": layout}, marks, alt, len(rows), frame)


def dots(
    marks: Sequence[Mark],
    looks: Looks,
    axis: str,
    alt: str,
    *,
    line_at: float | None = None,
    logarithmic: bool = False,
    **frame: Unpack[Frame],
) -> Figure:
    """Draw one dot a row with its interval, from zero or on a logarithmic axis.

    Args:
        marks: What to draw, in reading order.
        looks: By kind of mark.
        axis: Title of the value axis, with its unit.
        alt: What the chart shows, before what is told of each mark.
        line_at: A value to mark by a line, such as 1 for "no gain".
        logarithmic: For values that lie far apart; none is zero.
        frame: See ``Frame``.
    """
    rows, groups = _placed(marks, looks, frame)
    traces = [
        _trace("scatter", look, found) | {
            "mode": "markers", "y": [row for row, _ in found], "marker": _marker(look, 11),
            "error_x": _whiskers(found) | {"thickness": 2.5, "width": 0, "color": look.color},
        }
        for look, found in groups
    ]  # fmt: skip
    ends = [end for m in marks for end in (m.interval.low, m.value, m.interval.high) if end]
    x = {"range": [0, max([*ends, line_at or 0.0], default=1.0) * 1.06], "nticks": 6}
    x = log_axis(ends, axis, room=0.03) if logarithmic else x
    layout = _layout(axis, x, rows, legend=len(groups) > 1)
    line = {
        "type": "line", "x0": line_at, "x1": line_at, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": INK, "width": 1, "dash": "dot"}, "layer": "below",
    }  # fmt: skip
    layout["shapes"] = [line] if line_at is not None else []
    layout["meta"] = {"labels_above_where_narrow": True}
    if len(rows) > _LONG:  # its axis would be below the screen
        layout["xaxis"]["side"] = "top"
        layout["legend"] = layout["legend"] | {"y": 1 + _AXIS_ROWS / len(rows)}
    return _framed({"data": traces, "layout": layout}, marks, alt, len(rows), frame)


_Found: TypeAlias = tuple[int, Mark]


def _placed(
    marks: Sequence[Mark], looks: Looks, frame: Frame
) -> tuple[list[str], list[tuple[Look, list[_Found]]]]:
    """Return the labels of the rows, and each look that has marks, with the marks and their rows."""
    labels, shared = [mark.row for mark in marks], frame.get("shared", False)
    rows = list(dict.fromkeys(labels)) if shared else labels
    placed = [(rows.index(mark.row) if shared else i, mark) for i, mark in enumerate(marks)]
    groups = [(look, [each for each in placed if each[1].kind == kind]) for kind, look in looks.items()]
    return rows, [(look, found) for look, found in groups if found]


def _framed(figure: dict[str, Any], marks: Sequence[Mark], alt: str, rows: int, frame: Frame) -> Figure:
    told = "; ".join(mark.told for mark in marks if mark.told)
    height_px = frame.get("head_px", 80) + frame.get("row_px", 38) * rows
    return Figure(figure=figure, title=frame.get("title") or None, alt=f"{alt}: {told}.", height_px=height_px)


def _trace(form: str, look: Look, found: Sequence[_Found]) -> dict[str, Any]:
    return {
        "type": form, "name": label(look.name), "x": [m.value for _, m in found],
        "hovertext": [m.hover for _, m in found], "hoverinfo": "text",
    }  # fmt: skip


def log_axis(values: Sequence[float], title: str, room: float) -> dict[str, Any]:
    """An axis with ticks at 1, 2 and 5 of each decade, written out; plotly would write a bare 2 or 5."""
    low, high = _log_ends(values)
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
        "title": {"text": label(title, AXIS_LENGTH), "font": {"color": QUIET, "size": 12}},
        "tickfont": {"color": QUIET},
        "gridcolor": RULE,
        "linecolor": RULE,
        "zeroline": False,
        "automargin": True,
        "fixedrange": True,
    }


def _log_ends(values: Sequence[float]) -> tuple[float, float]:
    return math.log10(min(values, default=1.0)), math.log10(max(values, default=1.0))


def _marker(look: Look, size: int) -> dict[str, Any]:
    line = {"width": 2, "color": look.color}
    return {"color": look.color, "symbol": look.symbol, "size": size, "line": line}


def _whiskers(found: Sequence[_Found]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if m.interval.high is None else m.interval.high - m.value for _, m in found],
        "arrayminus": [0.0 if m.interval.low is None else m.value - m.interval.low for _, m in found],
        "color": INK,
        "thickness": 1.4,
        "width": 3,
    }


def dress() -> dict[str, Any]:
    """The layout that every figure starts from."""
    return {
        "font": {"family": _FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": RULE, "font": {"color": INK}, "align": "left"},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "font": {"color": INK}},
        "dragmode": False,
    }


def _layout(axis: str, x: dict[str, Any], rows: Sequence[str], *, legend: bool) -> dict[str, Any]:
    title = {"text": label(axis, AXIS_LENGTH), "font": {"color": QUIET, "size": 12}, "standoff": 8}
    return dress() | {
        "xaxis": QUIET_AXIS
        | {"zeroline": False, "fixedrange": True, "exponentformat": "SI"}
        | x
        | {"title": title},
        "yaxis": {
            "automargin": True,
            "tickmode": "array",
            "tickvals": list(range(len(rows))),
            "ticktext": list(rows),
            "range": [len(rows) - 0.5, -0.5],
            "tickfont": {"color": INK},
            "ticks": "",
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
            "ticklabelstandoff": 6,
        },
        "showlegend": legend,
    }
