"""Throughput per dollar, ranked: the best offer of each GPU with its interval, ties on a band."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.findings import FindingKind
from gpubench.models import RankedOffer, Ranking
from gpubench.report.charts import BASIS_COLOURS, BASIS_SYMBOLS, Mark, Series, dots, two_lines
from gpubench.report.data import ReportData
from gpubench.report.section import Block, Charts, Column, Figure, Paragraph, Part, RowMark, Section, Table
from gpubench.report.words import (
    basis_words,
    cases_words,
    count,
    gpus_words,
    listed,
    offer_words,
    per_s_words,
    per_usd_words,
    price_date_words,
    price_words,
    quantity,
    share_words,
    stacked,
)
from gpubench.units import UNKNOWN, format_duration, format_usd, plain

CHART_ROWS = 20
TABLE_ROWS = 30
EXCLUDED_ROWS = 40


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
        parts.append(_excluded(data, ranking))
    return Block(title="Training per dollar, ranked", parts=tuple(parts))


def _lead(ranking: Ranking) -> str:
    text = f"Ranked for {cases_words(ranking.cases)}; as of {plain(ranking.as_of, 30)}."
    workloads = {case.workload for case in ranking.cases}
    if len(workloads) > 1:
        text += (
            f" The {len(workloads)} workloads are combined by the geometric mean of their samples per second."
        )
    return text


def _ranked_parts(data: ReportData, ranking: Ranking) -> list[Part]:
    best = best_of_each_gpu(ranking)
    shown = _shown(data, best)
    tied = _tied_rows(shown)
    caption = (
        "Each mark is the best-ranked offer of one kind of GPU. ● measured here, ◆ reference run, "
        "○ predicted. The line is the interval: 95 % for a measurement, 90 % for a prediction. "
        "Predictions share one starting point, so two lines may overlap although their order is clear."
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
        _offers_table(data, ranking),
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
        two_lines(gpus_words(data, row.offer) + _here(data, row), f"{row.rank}. {offer_words(row.offer)}")
        for row in rows
    ]
    series = [
        Series(
            name=f"{basis}",
            marks=tuple(_mark(row, i) for i, row in enumerate(rows) if row.estimate.basis == basis),
            colour=colour,
            symbol=BASIS_SYMBOLS[basis],
        )
        for basis, colour in BASIS_COLOURS.items()
        if any(row.estimate.basis == basis for row in rows)
    ]
    words = quantity(ranking)
    alt = "; ".join(f"{row.rank}. {gpus_words(data, row.offer)} {per_usd_words(row)}" for row in rows[:8])
    return Figure(
        figure=dots(series, labels, words.per_usd, band_rows=tied),
        alt=f"Dot chart of {words.per_usd} with intervals, best first: {alt}.",
        height_px=90 + 37 * len(rows),
    )


def _here(data: ReportData, row: RankedOffer) -> str:
    own = data.device is not None and data.device.gpu_key == row.offer.gpu_key
    return " (yours)" if own else ""


def _mark(row: RankedOffer, index: int) -> Mark:
    return Mark(
        row=index,
        value=row.samples_per_usd,
        low=row.samples_per_usd_low,
        high=row.samples_per_usd_high,
        hover=f"{per_usd_words(row)}<br>{row.estimate.basis}",
    )


def _best_table(data: ReportData, ranking: Ranking, rows: Sequence[RankedOffer]) -> Table:
    return Table(
        caption="The best-ranked offer of each kind of GPU",
        columns=(
            Column(title="GPU and offer"),
            Column(title="Rank", numeric=True),
            Column(title=quantity(ranking).per_usd.capitalize(), numeric=True),
            Column(title="Basis"),
            Column(title="Rests on"),
        ),
        rows=tuple(
            (
                f"{gpus_words(data, row.offer)}{_here(data, row)}\n{offer_words(row.offer)}",
                _rank(row),
                stacked(per_usd_words(row)),
                stacked(basis_words(row.estimate)),
                plain(row.estimate.method, 120),
            )
            for row in rows
        ),
        marks=_marks(data, rows),
    )


def _offers_table(data: ReportData, ranking: Ranking) -> Table:
    rows = ranking.rows[:TABLE_ROWS]
    words = quantity(ranking)
    rest = len(ranking.rows) - len(rows)
    timed = any(row.hours is not None for row in rows)
    columns = [
        Column(title="GPUs and offer"),
        Column(title="Rank", numeric=True),
        Column(title="Price and its date"),
        Column(title=words.per_s.capitalize(), numeric=True),
        Column(title=words.per_usd.capitalize(), numeric=True),
        Column(title="P(best)", numeric=True),
        Column(title="Basis"),
        Column(title="Remarks"),
    ]
    if timed:
        columns[5:5] = [Column(title="Time", numeric=True), Column(title="Cost", numeric=True)]
    return Table(
        caption=f"The first {len(rows)} offers" if rest else f"All {len(rows)} offers",
        columns=tuple(columns),
        rows=tuple(_offer_cells(data, row, timed) for row in rows),
        marks=_marks(data, rows),
    )


def _offer_cells(data: ReportData, row: RankedOffer, timed: bool) -> tuple[str, ...]:
    cells = [
        f"{gpus_words(data, row.offer)}{_here(data, row)}\n{offer_words(row.offer)}",
        _rank(row),
        f"{price_words(row.offer)}\n{price_date_words(row)}",
        stacked(per_s_words(row)),
        stacked(per_usd_words(row)),
        share_words(row.p_best),
        basis_words(row.estimate).partition(" (")[0],
        _remarks(row),
    ]
    if timed:
        cells[5:5] = [_hours(row), _cost(row)]
    return tuple(cells)


def _hours(row: RankedOffer) -> str:
    def words(hours: float | None) -> str:
        return format_duration(None if hours is None else hours * 3600)

    if row.hours_low is None or row.hours_high is None:
        return words(row.hours)
    return f"{words(row.hours)}\n{words(row.hours_low)} to {words(row.hours_high)}"


def _cost(row: RankedOffer) -> str:
    if row.cost_usd_low is None or row.cost_usd_high is None:
        return format_usd(row.cost_usd)
    return f"{format_usd(row.cost_usd)}\n{format_usd(row.cost_usd_low)} to {format_usd(row.cost_usd_high)}"


def _rank(row: RankedOffer) -> str:
    return f"{row.rank} (tie)" if row.tie else str(row.rank)


def _remarks(row: RankedOffer) -> str:
    # The age of a price stands beside the price; as a remark on most rows it would say nothing.
    remarks = [f.kind.value for f in row.findings if f.kind is not FindingKind.STALE_PRICE]
    if row.pareto:
        remarks.append("not dominated")
    if row.fits_memory is None:
        remarks.append("memory not checked")
    if row.offer.gpu_count > 1:
        remarks.append(f"scaling {row.scaling_efficiency:.2f}, {plain(row.scaling_basis, 40)}")
    return ", ".join(dict.fromkeys(remarks)) or "none"


def _marks(data: ReportData, rows: Iterable[RankedOffer]) -> tuple[RowMark | None, ...]:
    def mark(row: RankedOffer) -> RowMark | None:
        if _here(data, row):
            return "here"
        if row.tie and row.rank == 1:
            return "tie"
        return "bad" if any(f.kind is FindingKind.THROTTLED for f in row.findings) else None

    return tuple(mark(row) for row in rows)


def _excluded(data: ReportData, ranking: Ranking) -> Table:
    shown = ranking.excluded[:EXCLUDED_ROWS]
    rest = len(ranking.excluded) - len(shown)
    more = f", the first {len(shown)}; the rest is in the data below the page" if rest else ""
    return Table(
        caption=f"Not ranked: {count(len(ranking.excluded), 'offer')}{more}",
        columns=(Column(title="Offer"), Column(title="GPU"), Column(title="Reason")),
        rows=tuple(
            (
                f"{plain(x.provider, 30)} {plain(x.instance, 40)}",
                plain(data.gpu_name(x.gpu_key), 60) or UNKNOWN,
                plain(x.reason, 300),
            )
            for x in shown
        ),
        folded=True,
    )


SECTION = Section(key="value", render=_render)
