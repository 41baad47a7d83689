"""Rankings and runs in a notebook: plotly figures, and the page's own blocks as HTML without a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubench.blocks.block import Block, as_html
from gpubench.blocks.charts import (
    dots,
    label,
    mark_of,
    series_of,
)
from gpubench.blocks.parts import Charts
from gpubench.errors import MisuseError
from gpubench.models import Ranking, Run
from gpubench.sections import gpus, value, verdict
from gpubench.sections.data import of_ranking
from gpubench.sections.roofline import LOOKS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

HEAD_ROWS = 20


def ranking_html(ranking: Ranking) -> str:
    """Return the card, and the head of the rows as a table."""
    data = of_ranking(ranking, HEAD_ROWS, more_by="ranking.notes")
    blocks = (section.render(data) for section in (verdict.SECTION, value.SECTION))
    shown = (Block(title=block.title, parts=block.brief) for block in blocks if block is not None)
    return "".join(as_html(block) for block in shown)


def ranking_figure(ranking: Ranking) -> Figure:
    """Return every GPU on one axis, as on the page.

    Raises:
        MisuseError: If the ranking has no row.
    """
    block = gpus.SECTION.render(of_ranking(ranking))
    if block is None:
        raise MisuseError("the ranking has no row, so there is nothing to plot")
    from plotly.graph_objects import Figure as Plot

    chart = next(part for part in block.parts if isinstance(part, Charts)).figures[0]
    return Plot(chart.figure).update_layout(height=chart.height_px, template="plotly_white")


def run_figure(run: Run) -> Figure:
    """Return the throughput of every case on one logarithmic axis, with its interval.

    Raises:
        MisuseError: If no case of the run has a figure.
    """
    from plotly.graph_objects import Figure as Plot

    rows = [m for m in run.measurements if m.samples_per_s is not None]
    if not rows:
        raise MisuseError(f"run {run.run_id} has no case with a figure, so there is nothing to plot")
    marked = [
        (m.case.precision, mark_of(i, m.interval, label(m.interval.text()))) for i, m in enumerate(rows)
    ]
    names = [label(m.label, 60) for m in rows]
    figure = dots(series_of(LOOKS, marked), names, "samples/s", logarithmic=True)
    return Plot(figure).update_layout(height=80 + 22 * len(rows), template="plotly_white")
