"""Rankings and runs in a notebook: plotly figures, and the page's own blocks as HTML without a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpubench.blocks.charts import BASIS_LOOKS, BLUE, Look, Mark, dots, dress, label, log_axis, whiskers
from gpubench.blocks.parts import Block, Figure, as_html
from gpubench.errors import MisuseError
from gpubench.interval import UNKNOWN_INTERVAL, Interval
from gpubench.labels import FRONTIER, gpu_name, gpus_of, offer_name
from gpubench.models import Ranking, Row, Run
from gpubench.record.figures import frame
from gpubench.report.calculator import WORDS
from gpubench.sections.data import of_ranking
from gpubench.sections.roofline import LOOKS
from gpubench.sections.section import section_of
from gpubench.units import GIB, per_second

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure as Plot

    from gpubench.predict.answers import Predictions
    from gpubench.predict.memory_answer import MemoryAnswer

HEAD_ROWS = 20
MOST_DOTS = 40


def ranking_html(ranking: Ranking) -> str:
    """Return the card, and the head of the rows as a table."""
    data = of_ranking(ranking, HEAD_ROWS, more_by="ranking.sentences")
    blocks = (section_of(key).render(data) for key in ("answer", "value"))
    shown = (Block(title=block.title, parts=block.brief) for block in blocks if block is not None)
    return "".join(as_html(block) for block in shown)


def ranking_figure(ranking: Ranking) -> Plot:
    """Return hours against dollars of the job, one dot per machine, as on the page; the answers are named.

    Without a job the axes are throughput and price of an hour.

    Raises:
        MisuseError: If the ranking has no row.
    """
    best: dict[tuple[str, int], Row] = {}
    for row in (*(answer.row for answer in ranking.answers.values()), *ranking.rows):
        best.setdefault((row.offer.gpu_key, row.offer.gpu_count), row)
    if not ranking.rows:
        raise MisuseError("the ranking has no row, so there is nothing to plot")
    rows, has_job = list(best.values())[:MOST_DOTS], ranking.job is not None

    def place(row: Row) -> tuple[Interval, Interval]:
        return (row.hours, row.cost_usd) if has_job else (ranking.throughput_of(row), row.usd_per_hour)

    titles: dict[int, list[str]] = {}
    for name, answer in ranking.answers.items():
        titles.setdefault(id(answer.row), []).append(WORDS["titles"][name])
    dots = [_dots(basis, look, rows, place, titles) for basis, look in BASIS_LOOKS.items()]
    traces = [trace for trace in dots if trace["x"]]
    if has_job:
        traces.insert(0, _staircase(rows))
    x, y = zip(*(place(row) for row in rows), strict=True)
    axes = ("time of the job, hours", "US dollars of the job")
    if not has_job:
        axes = (ranking.throughput_unit, "US dollars an hour")
    layout = dress() | {
        "xaxis": log_axis([each.value or 0.0 for each in x], axes[0], room=0.12),
        "yaxis": log_axis([each.value or 0.0 for each in y], axes[1], room=0.06),
        "showlegend": True,
    }
    return _plotted(Figure(figure={"data": traces, "layout": layout}, alt=axes[1], height_px=480))


def _dots(
    basis: str | None,
    look: Look,
    rows: Sequence[Row],
    place: Callable[[Row], tuple[Interval, Interval]],
    titles: Mapping[int, Sequence[str]],
) -> dict[str, Any]:
    of = [row for row in rows if row.estimate.basis == basis]
    names = [": ".join(filter(None, (", ".join(titles.get(id(r), ())), gpus_of(r.offer)))) for r in of]
    # the intervals of the answers; of all others they would cover the chart
    shown = [place(row) if id(row) in titles else (UNKNOWN_INTERVAL, UNKNOWN_INTERVAL) for row in of]
    return {
        "type": "scatter",
        "name": look.name,
        "mode": "markers+text",
        "x": [place(row)[0].value for row in of],
        "y": [place(row)[1].value for row in of],
        "text": [label(name) if id(row) in titles else "" for row, name in zip(of, names, strict=True)],
        "textposition": "middle right",
        "hovertext": [
            "<br>".join((label(name), *(each.text() for each in place(row)), label(offer_name(row.offer))))
            for row, name in zip(of, names, strict=True)
        ],
        "hoverinfo": "text",
        "marker": {"color": look.color, "symbol": look.symbol, "size": 9},
        "error_x": whiskers([each[0] for each in shown], thickness=1.5),
        "error_y": whiskers([each[1] for each in shown], thickness=1.5),
    }


def _staircase(rows: Sequence[Row]) -> dict[str, Any]:
    # Return the line below which there is no machine, in steps, since there is none between two.
    least, steps = math.inf, []
    for row in sorted(rows, key=lambda row: (row.hours.value or 0.0, row.cost_usd.value or 0.0)):
        usd = row.cost_usd.value or 0.0
        if usd < least and not row.estimate.is_extrapolated:
            least = usd
            steps.append((row.hours.value, usd))
    return {
        "type": "scatter",
        "name": FRONTIER,
        "mode": "lines",
        "x": [hours for hours, _ in steps],
        "y": [usd for _, usd in steps],
        "line": {"shape": "hv", "color": BLUE, "width": 2},
        "hoverinfo": "skip",
    }


def run_frame(run: Run) -> DataFrame:
    """Return one row a measurement of the run."""
    return frame((run,))


def run_figure(run: Run) -> Plot:
    """Return the throughput of every case on one logarithmic axis, with its interval.

    Raises:
        MisuseError: If no case of the run has a figure.
    """
    rows = [m for m in run.measurements if m.samples_per_s is not None]
    if not rows:
        raise MisuseError(f"run {run.run_id} has no case with a figure, so there is nothing to plot")
    marks = [
        Mark(
            row=label(m.label, 60),
            interval=m.interval,
            hover=label(m.interval.text(digits=m.digits)),
            kind=m.case.precision,
        )
        for m in rows
    ]
    chart = dots(marks, LOOKS, "samples/s", "Throughput", row_px=22, logarithmic=True)
    return _plotted(chart)


def predictions_figure(answers: Predictions) -> Plot:
    """Return the predicted throughput of every GPU on one logarithmic axis, with its interval.

    Raises:
        MisuseError: If there is no estimate.
    """
    if not answers.estimates:
        raise MisuseError("there is no estimate, so there is nothing to plot")
    marks = [
        Mark(
            row=label(gpu_name(e.gpu_key)), interval=e.interval, hover=label(e.interval.text()), kind=e.basis
        )
        for e in answers.estimates
    ]
    unit = per_second(answers.estimates[0].case.sample_unit)
    return _plotted(dots(marks, BASIS_LOOKS, unit, "Throughput", row_px=22, logarithmic=True))


def memory_figure(answers: Sequence[MemoryAnswer]) -> Plot:
    """Return the memory in use of each case, with its bounds [GiB]."""
    marks = [
        Mark(row=label(each.label), interval=each.need.device.over(GIB), hover=label(each.fits_on()))
        for each in answers
    ]
    looks = {None: Look(name="in use on the device", color=BLUE)}
    return _plotted(dots(marks, looks, "GiB in use on the device", "Memory"))


def _plotted(figure: Figure) -> Plot:
    from plotly.graph_objects import Figure as Plot

    return Plot(figure.figure).update_layout(height=figure.height_px, template="plotly_white")
