"""What the rows are in order of: the best offer of each GPU with its interval, ties on a band."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.interval import stacked
from gpubench.models import RankedOffer, Ranking, SortedBy
from gpubench.report.charts import BASIS_COLOURS, BASIS_SYMBOLS, Mark, Series, dots, two_lines
from gpubench.report.data import ReportData
from gpubench.report.offer_tables import excluded_table, head, here, marks, offers_tables, rank_words
from gpubench.report.section import Block, Charts, Column, Figure, Paragraph, Part, Section, Table
from gpubench.report.words import (
    basis_words,
    cases_words,
    gpus_words,
    listed,
    merit_unit,
    merit_words,
    offer_words,
)
from gpubench.units import UNKNOWN, format_bytes, plain

CHART_ROWS = 20

_TITLES: dict[SortedBy, str] = {
    "value": "Training per dollar, ranked",
    "throughput": "Throughput, ranked",
    "cost": "Cost of the job, ranked",
    "time": "Time of the job, ranked",
}


def best_of_each_gpu(ranking: Ranking) -> tuple[RankedOffer, ...]:
    """The best-ranked offer of each kind of GPU, best first."""
    best: dict[str, RankedOffer] = {}
    for row in ranking.rows:
        best.setdefault(row.offer.gpu_key, row)
    return tuple(best.values())


def _render(data: ReportData) -> Block | None:
    ranking = data.ranking
    if ranking is None:
        return None
    parts: list[Part] = [Paragraph(text=_lead(ranking))]
    if ranking.rows:
        parts += _ranked_parts(data, ranking)
    else:
        parts.append(Paragraph(text="No offer is left to rank; the list below says why.", tone="warning"))
    if ranking.excluded:
        parts.append(excluded_table(data, ranking))
    return Block(title=_TITLES[ranking.sorted_by], parts=tuple(parts))


def _lead(ranking: Ranking) -> str:
    text = f"Ranked for {cases_words(ranking.cases)}; as of {plain(ranking.as_of, 30)}."
    workloads = {case.workload for case in ranking.cases}
    if len(workloads) > 1:
        what = "ratios to one reference GPU" if ranking.by_reference else "samples per second"
        text += f" The {len(workloads)} workloads are combined by the geometric mean of their {what}."
    return text


def _ranked_parts(data: ReportData, ranking: Ranking) -> list[Part]:
    best = best_of_each_gpu(ranking)
    shown = _shown(data, best)
    tied = _tied_rows(shown)
    caption = (
        "Each mark is the best-ranked offer of one kind of GPU. ● measured here, ◆ reference run, "
        "○ predicted. The line is the interval: 95 % for a measurement, 90 % for a prediction. "
        "Predictions share part of their error, so two lines may overlap although their order is clear."
    )
    if tied > 1:
        caption += f" The {tied} rows on the band cannot be told apart: they share rank 1."
        caption += _parting(data, shown[:tied])
    if len(best) > len(shown):
        caption += f" {len(best) - len(shown)} further kinds of GPU are in the data below the page."
    return [
        Charts(
            figures=(_figure(data, ranking, shown, tied),),
            twin=_best_table(data, ranking, shown),
            caption=caption,
        ),
        *offers_tables(data, ranking),
    ]


def _parting(data: ReportData, tied: Sequence[RankedOffer]) -> str:
    """Name the measurement that would part a tie: predictions are what is uncertain in it."""
    guessed = [plain(data.gpu_name(r.offer.gpu_key), 40) for r in tied if r.estimate.basis == "predicted"]
    if not guessed:
        return " All were measured: measure them again with more launches (`--publish`) to part them."
    return f" Measuring {listed(guessed[:3])} would part them; renting one for some minutes is enough."


def _shown(data: ReportData, best: Sequence[RankedOffer]) -> tuple[RankedOffer, ...]:
    """The head of the list, and this user's own GPU wherever it stands."""
    own = None if data.device is None else data.device.gpu_key
    return tuple(row for i, row in enumerate(best) if i < CHART_ROWS or row.offer.gpu_key == own)


def _tied_rows(rows: Sequence[RankedOffer]) -> int:
    return sum(row.rank == rows[0].rank for row in rows)


def _figure(data: ReportData, ranking: Ranking, rows: Sequence[RankedOffer], tied: int) -> Figure:
    labels = [
        two_lines(gpus_words(data, row.offer) + here(data, row), f"{row.rank}. {offer_words(row.offer)}")
        for row in rows
    ]
    series = [
        Series(
            name=f"{basis}",
            marks=tuple(_mark(ranking, row, i) for i, row in enumerate(rows) if row.estimate.basis == basis),
            colour=colour,
            symbol=BASIS_SYMBOLS[basis],
        )
        for basis, colour in BASIS_COLOURS.items()
        if any(row.estimate.basis == basis for row in rows)
    ]
    alt = "; ".join(
        f"{row.rank}. {gpus_words(data, row.offer)} {merit_words(ranking, row)}" for row in rows[:8]
    )
    return Figure(
        figure=dots(series, labels, merit_unit(ranking), band_rows=tied),
        alt=f"Dot chart of {merit_unit(ranking)} with intervals, best first: {alt}.",
        height_px=90 + 37 * len(rows),
    )


def _mark(ranking: Ranking, row: RankedOffer, index: int) -> Mark:
    merit = ranking.merit_of(row)
    return Mark(
        row=index,
        value=merit.value or 0.0,
        low=merit.low,
        high=merit.high,
        hover=f"{merit_words(ranking, row)}<br>{row.estimate.basis}",
    )


def _best_table(data: ReportData, ranking: Ranking, rows: Sequence[RankedOffer]) -> Table:
    return Table(
        caption="The best-ranked offer of each kind of GPU",
        columns=(
            Column(title="GPU and offer"),
            Column(title="Rank", numeric=True),
            Column(title=head(merit_unit(ranking)), numeric=True),
            Column(title="Memory"),
            Column(title="Architecture"),
            Column(title="Basis"),
            Column(title="Rests on"),
        ),
        rows=tuple(
            (
                f"{gpus_words(data, row.offer)}{here(data, row)}\n{offer_words(row.offer)}",
                rank_words(row),
                stacked(merit_words(ranking, row)),
                *_factors(data, row),
                stacked(basis_words(row.estimate)),
                plain(row.estimate.method, 120),
            )
            for row in rows
        ),
        marks=marks(data, rows),
    )


def _factors(data: ReportData, row: RankedOffer) -> tuple[str, str]:
    """What buyers compare first: memory with its kind, architecture with its year."""
    spec = data.specs.get(row.offer.gpu_key)
    if spec is None:
        return (UNKNOWN, UNKNOWN)
    year = "" if spec.release_year is None else f"\n{spec.release_year}"
    kind = "" if spec.memory_type is None else f"\n{plain(spec.memory_type, 20)}"
    return (
        f"{format_bytes(spec.memory_bytes)}{kind}",
        f"{plain(spec.architecture or UNKNOWN, 30)}{year}",
    )


SECTION = Section(key="value", render=_render)
