"""Plotly figures as plain JSON values: few marks, one palette, readable in light, dark and print.

Plotly itself is not imported: a test holds every figure against its schema.

Figures are drawn in the light colors; ``PALETTE`` gives the page's script the dark twin of each. The
eight hues follow the Okabe-Ito set, which color-blind readers can tell apart, and no statement rests on
hue alone: bases differ in symbol, precisions in their row.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

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

BASIS_COLORS: Mapping[str, str] = {"measured": BLUE, "reference": GREEN, "predicted": ORANGE}
BASIS_SYMBOLS: Mapping[str, str] = {
    "measured": "circle",
    "reference": "diamond",
    "predicted": "circle-open",
}
BASIS_GLYPHS: Mapping[str, str] = {"measured": "●", "reference": "◆", "predicted": "○"}

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

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A value in row ``row`` of a chart, with its interval; ``text`` is what stands beside the mark."""

    row: int
    value: float
    low: float | None
    high: float | None
    text: str = ""
    hover: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Marks that share a meaning, and so a color and a symbol; without marks the look of such."""

    name: str
    color: str
    symbol: str = "circle"
    pattern: str = ""
    marks: tuple[Mark, ...] = ()


def mark_of(row: int, interval: Interval, hover: str, text: str = "") -> Mark:
    """Return a value with its interval as a mark; an unknown one stands at zero."""
    value = interval.value or 0.0
    return Mark(row=row, value=value, low=interval.low, high=interval.high, text=text, hover=hover)


def series_of(looks: Mapping[Kind, Series], marked: Sequence[tuple[Kind, Mark]]) -> list[Series]:
    """Return one series for each kind that has marks, in the order of ``looks``."""
    return [
        replace(look, marks=found)
        for kind, look in looks.items()
        if (found := tuple(mark for of, mark in marked if of == kind))
    ]


def two_lines(name: str, detail: str) -> str:
    """A row's label: what it is, and below it what qualifies it; narrow enough for a phone."""
    return f"{label(name, 34)}<br>{label(detail, 38)}"


def label(text: str, limit: int = 60) -> str:
    """Make a name fit to stand in a figure.

    Plotly reads ``<a href>``, ``<b>`` and entities in every text; a name must never be read so.
    """
    return isolated(html.escape(plain(text, limit), quote=False))


def bars(series: Sequence[Series], rows: Sequence[str], axis: str) -> dict[str, Any]:
    """Draw horizontal bars from zero with interval whiskers; rows from top to bottom.

    Args:
        series: What to draw; several series stand side by side in a row.
        rows: Every row, in reading order, as ``label`` made it.
        axis: Title of the value axis, with its unit.
    """
    # Bars are placed by hand, because the text must stand clear of the whisker: plotly would set it at
    # the end of the bar, across the line.
    slot = (1 - _ROW_GAP) / max(1, len(series))
    traces: list[Any] = []
    for i, s in enumerate(series):
        y = [m.row - (1 - _ROW_GAP) / 2 + slot * (i + 0.5) for m in s.marks]
        traces += [
            _bar_trace(s, y, slot * 0.9),
            {
                "type": "scatter",
                "mode": "text",
                "y": y,
                "x": [m.high or m.value for m in s.marks],
                "text": [f"\u2002{m.text}" for m in s.marks],
                "textposition": "middle right",
                "textfont": {"color": INK, "size": 12},
                "showlegend": False,
                "hoverinfo": "skip",
                "cliponaxis": False,
            },
        ]
    reach = max((m.high or m.value for s in series for m in s.marks), default=1.0)
    room = 1 + _TEXT_ROOM + _CHARACTER_ROOM * max((len(m.text) for s in series for m in s.marks), default=0)
    x = {"title": {"text": label(axis, AXIS_LENGTH)}, "range": [0, reach * room], "nticks": 4, "tickangle": 0}
    x["separatethousands"] = True
    layout = _layout(x=x, rows=rows, legend=len(series) > 1) | {"barmode": "overlay"}
    return {"data": traces, "layout": layout}


def _bar_trace(series: Series, y: list[float], width: float) -> dict[str, Any]:
    pattern = {"shape": series.pattern, "fgcolor": PAPER, "size": 6, "solidity": 0.25}
    return {
        "type": "bar",
        "name": label(series.name),
        "orientation": "h",
        "y": y,
        "x": [m.value for m in series.marks],
        "width": width,
        "error_x": _whiskers(series.marks),
        "marker": {"color": series.color, "pattern": pattern},
        "hovertext": [m.hover for m in series.marks],
        "hoverinfo": "text",
    }


def dots(
    series: Sequence[Series],
    rows: Sequence[str],
    axis: str,
    *,
    line_at: float | None = None,
    band_rows: int = 0,
    logarithmic: bool = False,
) -> dict[str, Any]:
    """Draw one dot a row with its interval, from zero or on a logarithmic axis.

    Args:
        series: What to draw.
        rows: Every row, in reading order.
        axis: Title of the value axis, with its unit.
        line_at: A value to mark by a line, such as 1 for "no gain".
        band_rows: So many rows from the top are a tie and stand on a band.
        logarithmic: For values that lie far apart; none is zero.
    """
    traces = [_dot_trace(s) for s in series]
    ends = [end for s in series for m in s.marks for end in (m.low, m.value, m.high) if end]
    reach = max([*ends, line_at or 0.0], default=1.0)
    x = {"title": {"text": label(axis, AXIS_LENGTH)}, "range": [0, reach * 1.06], "nticks": 6}
    layout = _layout(
        x=log_axis(ends, axis, room=0.03) if logarithmic else x, rows=rows, legend=len(series) > 1
    )
    shapes: list[dict[str, Any]] = []
    if band_rows > 1:
        shapes.append(
            {
                "type": "rect",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": -0.5,
                "y1": band_rows - 0.5,
                "fillcolor": BAND,
                "line": {"width": 0},
                "layer": "below",
            }
        )
    if line_at is not None:
        shapes.append(
            {
                "type": "line",
                "x0": line_at,
                "x1": line_at,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": INK, "width": 1, "dash": "dot"},
                "layer": "below",
            }
        )
    layout |= {"shapes": shapes, "meta": {"labels_above_where_narrow": True}}
    if len(rows) > _LONG:  # its axis would be below the screen
        layout["xaxis"]["side"] = "top"
        layout["legend"] = layout["legend"] | {"y": 1 + _AXIS_ROWS / len(rows)}
    return {"data": traces, "layout": layout}


def _dot_trace(series: Series) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": label(series.name),
        "mode": "markers",
        "y": [m.row for m in series.marks],
        "x": [m.value for m in series.marks],
        "error_x": _whiskers(series.marks) | {"thickness": 2.5, "width": 0, "color": series.color},
        "marker": _marker(series.color, series.symbol, 11),
        "hovertext": [m.hover for m in series.marks],
        "hoverinfo": "text",
    }


@dataclass(frozen=True, kw_only=True)
class Point:
    """One offer in the plane of throughput and cost; ``text`` names it where there is room."""

    x: float
    y: float
    text: str
    hover: str


def plane(
    clouds: Sequence[tuple[str, str, str, Sequence[Point]]],
    frontier: Sequence[Point],
    x_axis: str,
    y_axis: str,
    *,
    less_to_the_right: bool = False,
) -> dict[str, Any]:
    """Draw points on two logarithmic axes, and the line of those that no other beats on both.

    Args:
        clouds: Name, color, symbol and points of each kind.
        frontier: Points on the line, from left to right.
        x_axis: Title with unit; what is better lies to the right.
        y_axis: Title with unit; less is better.
        less_to_the_right: Turn the x axis, where less is better, as of hours.
    """
    line = {
        "type": "scatter",
        "name": "nothing is both faster and cheaper",
        "mode": "lines+text",
        "x": [p.x for p in frontier],
        "y": [p.y for p in frontier],
        "text": [f"\u2002{p.text}" for p in frontier],
        "textposition": _beside([p.x for p in frontier], less_to_the_right=less_to_the_right),
        "textfont": {"size": 11, "color": INK},
        "line": {"color": INK, "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
    dots_ = [
        {
            "type": "scatter",
            "name": label(name),
            "mode": "markers",
            "x": [p.x for p in points],
            "y": [p.y for p in points],
            "marker": _marker(color, symbol, 9),
            "hovertext": [p.hover for p in points],
            "hoverinfo": "text",
        }
        for name, color, symbol, points in clouds
        if points
    ]
    points = [point for *_, cloud in clouds for point in cloud]
    x = log_axis([point.x for point in points], x_axis, room=0.12)
    if less_to_the_right:
        x["range"].reverse()
    layout = dress() | {
        "xaxis": x,
        "yaxis": log_axis([point.y for point in points], y_axis, room=0.06),
        "showlegend": True,
    }
    return {"data": [line, *dots_], "layout": layout}


def _beside(values: Sequence[float], *, less_to_the_right: bool) -> list[str]:
    """Where the name of each point stands: below the rising line, or above it where the edge is near."""
    low, high = _log_ends(values)
    shares = [(math.log10(x) - low) / ((high - low) or 1.0) for x in values]
    far = [1 - share if less_to_the_right else share for share in shares]
    return ["top left" if share > 0.5 or i == len(far) - 1 else "bottom right" for i, share in enumerate(far)]


def spaced(places: Sequence[tuple[float, float]]) -> set[int]:
    """Choose the points on a line that can bear their names without overlap; both ends come first."""
    logs = [(math.log10(x), math.log10(y)) for x, y in places]
    width = max((x for x, _ in logs), default=0.0) - min((x for x, _ in logs), default=0.0)
    height = max((y for _, y in logs), default=0.0) - min((y for _, y in logs), default=0.0)
    chosen: list[int] = []
    for i in sorted(range(len(logs)), key=lambda i: (i not in {0, len(logs) - 1}, i)):
        x, y = logs[i]
        if all(
            abs(x - logs[j][0]) > _NAME_WIDTH * width or abs(y - logs[j][1]) > _NAME_HEIGHT * height
            for j in chosen
        ):
            chosen.append(i)
    return set(chosen)


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


def _marker(color: str, symbol: str, size: int) -> dict[str, Any]:
    return {"color": color, "symbol": symbol, "size": size, "line": {"width": 2, "color": color}}


def _whiskers(marks: Sequence[Mark]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if m.high is None else m.high - m.value for m in marks],
        "arrayminus": [0.0 if m.low is None else m.value - m.low for m in marks],
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


def _layout(*, x: dict[str, Any], rows: Sequence[str], legend: bool) -> dict[str, Any]:
    title = x.pop("title")
    return dress() | {
        "xaxis": QUIET_AXIS
        | {"zeroline": False, "fixedrange": True, "exponentformat": "SI"}
        | {"title": title | {"font": {"color": QUIET, "size": 12}, "standoff": 8}}
        | x,
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
