"""Footnotes: what is doubtful in the specification rows that this page used."""

from __future__ import annotations

from gpubench.blocks.parts import Block, Column, Paragraph, Table
from gpubench.models import GpuSpec
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.value import CHART_ROWS, best_of_each_gpu
from gpubench.units import plain


def _render(data: ReportData) -> Block | None:
    doubtful = [spec for spec in _used(data) if spec.doubt]
    if not doubtful:
        return None
    return Block(
        title="Footnotes to the data sheets",
        parts=(
            Paragraph(
                text=(
                    "Predictions start from data-sheet figures: dense rates with FP32 accumulation. "
                    "Where sources disagree, the row says so."
                )
            ),
            Table(
                caption="Doubts about specification rows used here",
                columns=(Column(title="GPU"), Column(title="Doubt"), Column(title="Source of the row")),
                rows=tuple(
                    (plain(spec.name, 60), plain(spec.doubt or "", 400), plain(spec.source, 300))
                    for spec in doubtful
                ),
                folded=True,
            ),
        ),
    )


def _used(data: ReportData) -> list[GpuSpec]:
    """The device's own row, and those behind the chart of offers."""
    keys = [] if data.spec is None else [data.spec.key]
    if data.ranking is not None:
        keys += [row.offer.gpu_key for row in best_of_each_gpu(data.ranking)[:CHART_ROWS]]
    return [data.specs[key] for key in dict.fromkeys(keys) if key in data.specs]


SECTION = Section(key="footnotes", render=_render, place=190)
