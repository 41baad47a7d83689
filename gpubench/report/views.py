"""Rankings and runs in a notebook: plotly figures, and the page's own blocks as HTML without a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubench.blocks.block import Block, as_html
from gpubench.blocks.charts import Mark, dots, label
from gpubench.blocks.parts import Charts, Figure
from gpubench.errors import MisuseError
from gpubench.models import Ranking, Run
from gpubench.sections import gpus, value, verdict
from gpubench.sections.data import of_ranking
from gpubench.sections.roofline import LOOKS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

HEAD_ROWS = 20


def ranking_html(ranking: Ranking) -> str:
    """Return the card, and the head of the rows as a table."""
    data = of_ranking(ranking, HEAD_ROWS, more_by="ranking.notes")
    blocks = (section.render(data) for section in (verdict.SECTION, value.SECTION))
    shown = (Block(title=block.title, parts=block.brief) for block in blocks if block is not None)
    return "".join(as_html(block) for block in shown)


def ranking_figure(ranking: Ranking) -> Plot:
    """Return every GPU on one axis, as on the page.

    Raises:
        MisuseError: If the ranking has no row.
    """
    block = gpus.SECTION.render(of_ranking(ranking))
    if block is None:
        raise MisuseError("the ranking has no row, so there is nothing to plot")
    return _plotted(next(part for part in block.parts if isinstance(part, Charts)).figures[0])


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
            hover=label(m.interval.text()),
            kind=m.case.precision,
        )
        for m in rows
    ]
    chart = dots(marks, LOOKS, "samples/s", "Throughput", row_px=22, logarithmic=True)
    return _plotted(chart)


def _plotted(figure: Figure) -> Plot:
    from plotly.graph_objects import Figure as Plot

    return Plot(figure.figure).update_layout(height=figure.height_px, template="plotly_white")
