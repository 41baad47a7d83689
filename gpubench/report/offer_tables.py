"""The tables of offers: the ranking row by row, and what was left out, by its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.findings import FindingKind
from gpubench.interval import stacked
from gpubench.models import ExcludedOffer, RankedOffer, Ranking
from gpubench.report.data import ReportData
from gpubench.report.section import Column, Part, RowMark, Table
from gpubench.report.words import (
    basis_words,
    gpus_words,
    listed,
    offer_words,
    per_s_unit,
    per_s_words,
    per_usd_unit,
    per_usd_words,
    price_date_words,
    price_words,
    share_words,
)
from gpubench.units import count, format_duration, format_usd, plain

TABLE_ROWS = 15
MORE_ROWS = 60
EXCLUDED_REASONS = 80


def offers_tables(data: ReportData, ranking: Ranking) -> list[Part]:
    """The head of the ranking in sight, what follows folded."""
    head = ranking.rows[:TABLE_ROWS]
    rest = ranking.rows[TABLE_ROWS : TABLE_ROWS + MORE_ROWS]
    caption = f"The first {len(head)} offers" if rest else f"All {len(head)} offers"
    tables: list[Part] = [_offers_table(data, ranking, head, caption)]
    if rest:
        caption = f"Offers {len(head) + 1} to {len(head) + len(rest)} of {len(ranking.rows)}"
        tables.append(_offers_table(data, ranking, rest, caption, folded=True))
    return tables


def _offers_table(
    data: ReportData, ranking: Ranking, rows: Sequence[RankedOffer], caption: str, *, folded: bool = False
) -> Table:
    timed = any(row.hours is not None for row in ranking.rows)
    columns = [
        Column(title="GPUs and offer"),
        Column(title="Rank", numeric=True),
        Column(title="Price and its date"),
        Column(title=head(per_s_unit(ranking)), numeric=True),
        Column(title=head(per_usd_unit(ranking)), numeric=True),
        Column(title="P(best)", numeric=True),
        Column(title="Basis"),
        Column(title="Remarks"),
    ]
    if timed:
        columns[5:5] = [Column(title="Time", numeric=True), Column(title="Cost", numeric=True)]
    return Table(
        caption=caption,
        columns=tuple(columns),
        rows=tuple(_offer_cells(data, ranking, row, timed=timed) for row in rows),
        marks=marks(data, rows),
        folded=folded,
    )


def _offer_cells(data: ReportData, ranking: Ranking, row: RankedOffer, *, timed: bool) -> tuple[str, ...]:
    cells = [
        f"{gpus_words(data, row.offer)}{here(data, row)}\n{offer_words(row.offer)}",
        rank_words(row),
        f"{price_words(row.offer)}\n{price_date_words(row)}",
        stacked(per_s_words(ranking, row)),
        stacked(per_usd_words(ranking, row)),
        share_words(row.p_best),
        basis_words(row.estimate).partition(" (")[0],
        _remarks(row),
    ]
    if timed:
        cells[5:5] = [_hours(row), stacked(row.job_cost_usd.by(format_usd))]
    return tuple(cells)


def _hours(row: RankedOffer) -> str:
    return stacked(row.job_hours.by(lambda hours: format_duration(hours * 3600)))


def _remarks(row: RankedOffer) -> str:
    # The age of a price stands beside the price; as a remark on most rows it would say nothing.
    remarks = [f.kind.value for f in row.findings if f.kind is not FindingKind.STALE_PRICE]
    if row.pareto:
        remarks.append("not dominated")
    if row.fits_memory is None:
        remarks.append("memory not checked")
    if row.latency_s is not None:
        remarks.append(f"{format_duration(row.latency_s)} a batch of {row.estimate.case.batch_size}")
    if row.spot_break_even is not None:
        remarks.append(f"spot pays while less than {share_words(row.spot_break_even)} of the work is lost")
    if row.offer.gpu_count > 1:
        remarks.append(f"scaling {row.scaling_efficiency:.2f}, {plain(row.scaling_basis, 40)}")
    return ", ".join(dict.fromkeys(remarks)) or "none"


def excluded_table(data: ReportData, ranking: Ranking) -> Table:
    """Every offer left out, by its reason: the list is long, the reasons are few."""
    by_reason: dict[str, list[ExcludedOffer]] = {}
    for offer in ranking.excluded:
        by_reason.setdefault(offer.reason, []).append(offer)
    rows = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return Table(
        caption=f"Not ranked: {count(len(ranking.excluded), 'offer')}, by reason",
        columns=(Column(title="Reason"), Column(title="Offers", numeric=True), Column(title="Which")),
        rows=tuple(
            (plain(reason, 300), str(len(offers)), listed(_which(data, offers), most=8))
            for reason, offers in rows[:EXCLUDED_REASONS]
        ),
        folded=True,
    )


def _which(data: ReportData, offers: Sequence[ExcludedOffer]) -> list[str]:
    gpus = {x.gpu_key for x in offers}
    if len(gpus) > 1:
        return sorted({plain(data.gpu_name(key), 60) for key in gpus})
    names = [f"{plain(x.provider, 30)} {plain(x.instance, 40)}" for x in offers]
    return [f"{plain(data.gpu_name(next(iter(gpus))), 60)} at {names[0]}", *names[1:]]


def rank_words(row: RankedOffer) -> str:
    """A row's rank, and whether it cannot be told from the first of its band."""
    return f"{row.rank} (tie)" if row.tie else str(row.rank)


def here(data: ReportData, row: RankedOffer) -> str:
    """A mark on offers of the user's own kind of GPU."""
    own = data.device is not None and data.device.gpu_key == row.offer.gpu_key
    return " (yours)" if own else ""


def marks(data: ReportData, rows: Iterable[RankedOffer]) -> tuple[RowMark | None, ...]:
    """Which rows stand out: the user's own kind of GPU, the tie at the head, what was throttled."""

    def mark(row: RankedOffer) -> RowMark | None:
        if here(data, row):
            return "here"
        if row.tie and row.rank == 1:
            return "tie"
        return "bad" if any(f.kind is FindingKind.THROTTLED for f in row.findings) else None

    return tuple(mark(row) for row in rows)


def head(unit: str) -> str:
    """A unit as the head of a column; ``capitalize`` would lower the rest of a GPU's name."""
    return unit[:1].upper() + unit[1:]
