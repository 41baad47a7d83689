"""A figure over the batch size: a line with its band, and levels that it is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.blocks.charts import BAND, BLUE, QUIET, dress, label, log_axis


@dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line with its name, such as the memory of a card."""

    value: float
    name: str


def band_over_batch(
    batches: Sequence[int],
    bands: Sequence[tuple[float, float, float]],
    levels: Sequence[Level],
    y_axis: str,
    hovers: Sequence[str],
) -> dict[str, Any]:
    """Draw a value with its low and high end over the batch size, both axes logarithmic.

    Args:
        batches: Rising.
        bands: Low end, value and high end at each batch.
        levels: Lines across the figure.
        y_axis: Title with unit.
        hovers: What is told at each batch.
    """
    x = list(batches)
    edge = {"type": "scatter", "x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    low, value, high = ([band[end] for band in bands] for end in range(3))
    traces: list[dict[str, Any]] = [
        edge | {"y": low, "showlegend": False},
        edge | {"name": "from low to high end", "y": high, "fill": "tonexty", "fillcolor": BAND},
        {
            "type": "scatter",
            "name": "likely",
            "x": x,
            "y": value,
            "mode": "lines+markers",
            "line": {"color": BLUE, "width": 2},
            "marker": {"color": BLUE, "size": 7},
            "hovertext": list(hovers),
            "hoverinfo": "text",
        },
    ]
    traces += [
        {
            "type": "scatter",
            "x": [x[0], x[-1]],
            "y": [level.value] * 2,
            "mode": "lines+text",
            "text": [label(level.name), ""],
            "textposition": "top right",
            "textfont": {"size": 11, "color": QUIET},
            "line": {"color": QUIET, "width": 1, "dash": "dot"},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        for level in levels
    ]
    heights = [end for band in bands for end in band] + [level.value for level in levels]
    layout = dress() | {
        "xaxis": log_axis(x, "batch size, samples on one GPU", room=0.03),
        "yaxis": log_axis(heights, y_axis, room=0.06),
        "showlegend": True,
    }
    return {"data": traces, "layout": layout}
