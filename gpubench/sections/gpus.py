"""Every GPU on one axis: its best offer by what the rows are ranked by, one row a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BASIS_LOOKS, Mark, dots, label
from gpubench.blocks.parts import Charts, Figure, number, table, text
from gpubench.interval import stacked
from gpubench.labels import gpu_name, gpus_of, offer_lines, offer_name
from gpubench.models import GpuSpec, Ranking, Row
from gpubench.recommend.decision import best_of_each_gpu
from gpubench.sections.data import ReportData
from gpubench.sections.offer_table import also_at, here, marks, rank_words
from gpubench.sections.section import Section
from gpubench.sections.words import basis_words, memory_words, merit_unit
from gpubench.units import UNKNOWN, capitalized, listing, plain

MOST_TOLD = 8
"""GPUs that are told to those who do not see the chart."""

WIDE = 30.0
"""Ends that lie further apart than this, as a ratio, stand on a logarithmic axis."""


def _render(data: ReportData) -> Block | None:
    ranking = data.ranking
    if ranking is None or not ranking.rows:
        return None
    shown = best_of_each_gpu(ranking.rows)
    tied = sum(row.rank == shown[0].rank for row in shown)
    caption = "Best offer of each GPU: ● measured, ◆ reference, ○ predicted."
    if tied > 1:
        # What is uncertain in a tie are the predictions: their measurement would decide it.
        guessed = [gpu_name(r.offer.gpu_key) for r in shown[:tied] if r.estimate.basis == "predicted"]
        which = listing(guessed[:2]) if guessed else "with `--publish`"
        caption += f" The {tied} on the band cannot be told apart. To decide, measure {which}."
    twin = table(
        "The best-ranked offer of each kind of GPU",
        shown,
        text("GPU and offer", lambda r: offer_lines(r.offer, here(data, r))),
        number("Rank", rank_words(ranking)),
        number(capitalized(merit_unit(ranking)), lambda r: stacked(ranking.merit_of(r).words())),
        text("Memory", lambda r: memory_words(data.specs.get(r.offer.gpu_key), "\n")),
        text("Architecture", lambda r: _architecture(data.specs.get(r.offer.gpu_key))),
        text("Basis", lambda r: stacked(basis_words(r.estimate))),
        text("Also at", also_at(ranking)),
        text("Rests on", lambda r: plain(r.estimate.method, 120)),
        marks=marks(data, shown),
    )
    chart = Charts(figures=(_figure(data, ranking, shown, tied),), twin=twin, caption=caption)
    return Block(title="Every GPU on one axis", parts=(chart,))


def _figure(data: ReportData, ranking: Ranking, rows: Sequence[Row], tied: int) -> Figure:
    unit, marks, ends = merit_unit(ranking), [], []
    for i, row in enumerate(rows):
        merit = ranking.merit_of(row)
        marks.append(
            Mark(
                row=label(f"{gpus_of(row.offer)}{here(data, row)}", 44),
                interval=merit,
                hover="<br>".join((merit.words(), label(offer_name(row.offer), 90), row.estimate.basis)),
                told=f"{gpus_of(row.offer)} {merit.words()}" if i < MOST_TOLD else "",
                kind=str(row.estimate.basis),
            )
        )
        ends += [end for end in (merit.low, merit.value, merit.high) if end]
    return dots(
        marks,
        BASIS_LOOKS,
        unit,
        f"Dot chart of {unit} with intervals, best first",
        row_px=19,
        band_rows=tied,
        logarithmic=max(ends) > WIDE * min(ends),
    )


def _architecture(spec: GpuSpec | None) -> str:
    if spec is None:
        return UNKNOWN
    year = "" if spec.release_year is None else f"\n{spec.release_year}"
    return f"{plain(spec.architecture or UNKNOWN, 30)}{year}"


SECTION = Section(key="gpus", render=_render, place=15)
