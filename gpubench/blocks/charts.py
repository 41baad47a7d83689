"""Plotly figures as plain JSON values: few marks, one palette, readable in light, dark and print.

Plotly itself is not imported: a test checks every figure against its schema.

Figures use the light colors; ``PALETTE`` has the dark equivalents for the page's script. The eight hues
follow the Okabe-Ito set, which color-blind readers can distinguish, and no meaning depends only on hue: bases
differ in symbol, precisions in their row.
"""

import html
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

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
"""Each light color and its dark equivalent; every color has a contrast of at least 3 to 1."""

BASIS_GLYPHS: Mapping[str, str] = {"measured": "●", "reference": "◆", "predicted": "○"}
"""Descriptions of the marks ``BASIS_LOOKS`` in a chart."""

_FEWEST_TICKS, _MOST_TICKS = 3, 12
# Maximum characters of an axis title, to fit on a phone.
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
    """A value with its interval in a row of a chart; an unknown value is drawn at zero.

    Attributes:
        row: Label of its row, from ``label`` or ``two_lines``.
        hover: Tooltip text.
        told: Name and value in words, for readers who cannot see the chart.
        kind: The key of its look.
    """

    row: str
    interval: Interval
    hover: str
    told: str = ""
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
    """Return a row's label: its name, and a detail below; narrow enough for a phone."""
    return f"{label(name, 34)}<br>{label(detail, 38)}"


def label(text: str, limit: int = 60) -> str:
    """Make a name safe and short enough for a figure.

    Plotly reads ``<a href>``, ``<b>`` and entities in every text; a name must never be read so.
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
    """Draw dots with their intervals, those of one label in one row, from zero or on a logarithmic axis.

    Args:
        marks: The marks to draw, in reading order.
        looks: The looks by kind of mark.
        axis: Title of the value axis, with its unit.
        alt: Description of the chart; the words of each mark follow.
        title: Title of the figure, if there are several.
        row_px: Height of a row [CSS px].
        line_at: A value to mark with a line, such as 1 for "no speedup".
        logarithmic: Whether the axis is logarithmic, for nonzero values of different magnitudes.
    """
    rows = list(dict.fromkeys(mark.row for mark in marks))
    groups = [(look, [mark for mark in marks if mark.kind == kind]) for kind, look in looks.items()]
    groups = [(look, found) for look, found in groups if found]
    traces = [
        {
            "type": "scatter", "mode": "markers", "name": label(look.name),
            "x": [m.interval.value or 0.0 for m in found],
            "y": [rows.index(m.row) for m in found], "hovertext": [m.hover for m in found],
            "hoverinfo": "text",
            "error_x": whiskers([m.interval for m in found], color=look.color, thickness=2.5),
            "marker": {
                "color": look.color, "symbol": look.symbol, "size": 11,
                "line": {"width": 2, "color": look.color},
            },
        }
        for look, found in groups
    ]  # fmt: skip
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
    layout = dress() | {
        "xaxis": log_axis(ends, axis, room=0.03) if logarithmic else x,
        "yaxis": {
            "automargin": True, "tickmode": "array", "tickvals": list(range(len(rows))), "ticktext": rows,
            "range": [len(rows) - 0.5, -0.5], "tickfont": {"color": INK}, "ticks": "", "showgrid": False,
            "zeroline": False, "fixedrange": True, "ticklabelstandoff": 6,
        },
        "showlegend": len(groups) > 1,
        "shapes": [line] if line_at is not None else [],
        "meta": {"labels_above_where_narrow": True},
    }  # fmt: skip
    told = "; ".join(mark.told for mark in marks if mark.told)
    return Figure(
        figure={"data": traces, "layout": layout},
        title=title,
        alt=f"{alt}: {told}.",
        height_px=92 + row_px * len(rows),
    )


def log_axis(values: Sequence[float], title: str, room: float) -> dict[str, Any]:
    """An axis with ticks at 1, 2 and 5 of each decade, written out; plotly would write a bare 2 or 5."""
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
    """Return the ends of intervals as plotly has them; an end that is not known is at the value."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if each.high is None else each.high - (each.value or 0.0) for each in intervals],
        "arrayminus": [0.0 if each.low is None else (each.value or 0.0) - each.low for each in intervals],
        **look,
        "width": 0,
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
