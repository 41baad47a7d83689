"""Footnotes: doubtful values in the specification rows used on this page."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, table, text
from gpubench.labels import gpu_name
from gpubench.recommend.choice import best_of_each_gpu
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.units import plain


def _render(data: ReportData) -> Block | None:
    keys = [] if data.spec is None else [data.spec.key]
    if data.ranking is not None:  # and those behind the chart of offers
        keys += [row.offer.gpu_key for row in best_of_each_gpu(data.ranking.rows)]
    doubtful = [data.specs[key] for key in dict.fromkeys(keys) if key in data.specs and data.specs[key].doubt]
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
            table(
                "Where the sources of a specification disagree",
                doubtful,
                text("GPU", lambda spec: gpu_name(spec.key)),
                text("What is uncertain", lambda spec: plain(spec.doubt or "", 400)),
                text("Source of the row", lambda spec: plain(spec.source, 300)),
                folded=True,
            ),
        ),
    )


SECTION = Section(key="footnotes", render=_render, place=190, heading="prices")
