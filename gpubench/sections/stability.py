"""How steady the rounds were: a strip for each case, one stroke a round."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, INK, QUIET, QUIET_AXIS, dress, label
from gpubench.blocks.parts import Charts, Figure, Paragraph, number, table, text
from gpubench.effects import Result
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import case_words, kinds_words
from gpubench.units import format_percent, plain

MOST_ROUNDS = 120
"""Strokes of a case; of more rounds each n-th is drawn."""


def deviations(result: Result) -> list[float]:
    """How far the pace of each accepted round is from the median of all, as a share: above 0 is slower."""
    paces = [
        each.wall_s / each.steps for x in result.measurement.launches for each in x.accepted if each.steps
    ]
    if not paces:
        return []
    middle = median(paces)
    return [pace / middle - 1 for pace in paces] if middle > 0 else []


def _render(data: ReportData) -> Block | None:
    rows = [(result, found) for result in data.results if len(found := deviations(result)) > 1]
    if not rows:
        return None
    return Block(
        title="How steady the rounds were",
        parts=(
            Paragraph(
                text=(
                    "Each stroke is one timed round, placed by how much longer its steps took than the "
                    "median of the case. A narrow strip is a steady device; two clumps are two states of "
                    "it, such as two clocks."
                )
            ),
            Charts(
                figures=(_figure(rows),),
                twin=table(
                    "Rounds against the median of their case",
                    rows,
                    text("Case", lambda row: case_words(row[0].case)),
                    number("Rounds", lambda row: str(len(row[1]))),
                    number("Fastest", lambda row: format_percent(min(row[1]))),
                    number("Slowest", lambda row: format_percent(max(row[1]))),
                    text("Findings", lambda row: kinds_words(row[0].doubts)),
                ),
            ),
        ),
    )


def _figure(rows: Sequence[tuple[Result, list[float]]]) -> Figure:
    names = [
        label(f"{plain(r.case.workload, 24)} {r.case.precision.value} {r.case.execution.value}", 48)
        for r, _ in rows
    ]
    traces = []
    for row, (_, found) in enumerate(rows):
        drawn = found[:: -(-len(found) // MOST_ROUNDS)]
        line = {"width": 1.5, "color": BLUE}
        traces.append({
            "type": "scatter", "mode": "markers", "x": [100 * each for each in drawn],
            "y": [row] * len(drawn),
            "marker": {"symbol": "line-ns", "size": 12, "opacity": 0.6, "line": line},
            "hoverinfo": "skip", "showlegend": False,
        })  # fmt: skip
    alt = "; ".join(
        f"{name} {format_percent(min(found))} to {format_percent(max(found))}"
        for name, (_, found) in list(zip(names, rows, strict=True))[:8]
    )
    title = {"text": "% slower than the median round", "font": {"color": QUIET, "size": 12}}
    layout = dress() | {
        "xaxis": QUIET_AXIS
        | {"title": title, "zeroline": True, "zerolinecolor": QUIET, "fixedrange": True, "nticks": 7},
        "yaxis": {
            "tickmode": "array", "tickvals": list(range(len(rows))), "ticktext": names,
            "tickfont": {"color": INK}, "range": [len(rows) - 0.5, -0.5], "automargin": True,
            "showgrid": False, "zeroline": False, "fixedrange": True,
        },
        "meta": {"labels_above_where_narrow": True},
    }  # fmt: skip
    return Figure(
        figure={"data": traces, "layout": layout},
        alt=f"Strip chart of rounds against their median: {alt}.",
        height_px=70 + 24 * len(rows),
    )


SECTION = Section(key="stability", render=_render, place=155, heading="method")
