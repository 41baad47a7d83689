"""What the rows are in order of: the best offer of each GPU, every offer, and what is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BASIS_COLOURS, BASIS_SYMBOLS, Mark, Series, dots, two_lines
from gpubench.blocks.parts import (
    Bullets,
    Cell,
    Charts,
    Figure,
    Paragraph,
    Part,
    RowMark,
    Table,
    number,
    table,
    text,
)
from gpubench.findings import FindingKind
from gpubench.interval import stacked
from gpubench.labels import gpu_name, gpus_of, offer_name, price_of
from gpubench.models import ExcludedOffer, GpuSpec, RankedOffer, Ranking, SortedBy
from gpubench.recommend.tokens import token_costs
from gpubench.recommend.words import batches_of
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import (
    basis_words,
    cases_words,
    merit_unit,
    merit_words,
    per_s_unit,
    per_s_words,
    per_usd_unit,
    per_usd_words,
    price_date_words,
    share_words,
)
from gpubench.units import UNKNOWN, count, format_bytes, format_duration, format_usd, listing, plain

CHART_ROWS = 20
TABLE_ROWS, MORE_ROWS = 15, 60
EXCLUDED_REASONS = 80

_TITLES: dict[SortedBy, str] = {
    "value": "Training per dollar, ranked",
    "throughput": "Throughput, ranked",
    "cost": "Cost of the job, ranked",
    "time": "Time of the job, ranked",
}
_LEGEND = {
    "(tie)": "statistically tied with the first row of the same rank",
    "not dominated": "nothing else is as fast, as cheap and as large in memory at once",
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
    lead = f"Ranked for {cases_words(ranking.cases)}; as of {plain(ranking.as_of, 30)}."
    workloads = {case.workload for case in ranking.cases}
    if len(workloads) > 1:
        what = "ratios to one reference GPU" if ranking.by_reference else "samples per second"
        lead += f" The {len(workloads)} workloads are combined by the geometric mean of their {what}."
    parts: list[Part] = [Paragraph(text=lead)]
    brief: tuple[Part, ...] = ()
    if ranking.rows:
        rows = ranking.rows
        head, rest = rows[:TABLE_ROWS], rows[TABLE_ROWS : TABLE_ROWS + MORE_ROWS]
        caption = f"The first {len(head)} offers" if rest else f"All {len(head)} offers"
        parts += [_chart(data, ranking), offers(data, ranking, head, caption)]
        if rest:
            caption = f"Offers {len(head) + 1} to {len(head) + len(rest)} of {len(rows)}"
            parts.append(offers(data, ranking, rest, caption, folded=True))
        brief = _brief(data, ranking)
    else:
        parts.append(Paragraph(text="No offer is left to rank; the list below says why.", tone="warning"))
    if ranking.excluded:
        parts.append(excluded_table(ranking))
    return Block(title=_TITLES[ranking.sorted_by], parts=tuple(parts), brief=brief)


def _brief(data: ReportData, ranking: Ranking) -> tuple[Part, ...]:
    """The head of the ranking, the notes on it, and what its words mean."""
    rows = ranking.rows[: data.most_offers]
    shown = offers(data, ranking, rows, "", in_full=True)
    said = " ".join(cell for row in shown.rows for cell in row)
    legend = [f"{word}: {meaning}." for word, meaning in _LEGEND.items() if word in said]
    return (shown, Bullets(items=(*(plain(note, 400) for note in ranking.notes), *legend)))


def offers(
    data: ReportData,
    ranking: Ranking,
    rows: Sequence[RankedOffer],
    caption: str,
    *,
    folded: bool = False,
    in_full: bool = False,
) -> Table:
    """Offers, one a row, in the order of the ranking.

    Args:
        data: Whose device is marked as the reader's own.
        ranking: What the rows are of: its units, and whether they have a job and batches that differ.
        rows: Which of its rows.
        caption: What the table is called.
        folded: Whether it waits behind its caption.
        in_full: Also the batch, where batches differ, and the latency as columns.
    """
    timed = any(row.hours is not None for row in ranking.rows)
    late = any(row.latency_s is not None for row in rows)
    batches = {batches_of(row.parts or (row.estimate,)) for row in ranking.rows}
    job = (
        number("Time", _hours),
        number("Cost", _cost),
    )
    full: list[Cell[RankedOffer]] = [
        *([number("Batch", _batch, optional=5)] if in_full and len(batches) > 1 else []),
        *([number("Latency", _latency)] if in_full and late else []),
    ]
    return table(
        caption,
        rows,
        text("GPUs and offer", lambda r: _who(data, r)),
        number("Rank", _rank),
        text("Price and its date", lambda r: f"{price_of(r.offer)}\n{price_date_words(r)}"),
        number(
            head(per_s_unit(ranking)), lambda r: stacked(per_s_words(ranking, r)), optional=4 if timed else 3
        ),
        number(head(per_usd_unit(ranking)), lambda r: stacked(per_usd_words(ranking, r)), optional=7 * timed),
        *(job if timed else ()),
        number("P(best)", lambda r: share_words(r.p_best), optional=2),
        *full,
        text("Basis", lambda r: basis_words(r.estimate).partition(" (")[0], optional=1),
        text("Remarks", _remarks, optional=6),
        marks=marks(data, rows),
        folded=folded,
    )


def _rank(row: RankedOffer) -> str:
    return f"{row.rank} (tie)" if row.tie else str(row.rank)


def _hours(row: RankedOffer) -> str:
    return stacked(row.job_hours.by(lambda hours: format_duration(hours * 3600)))


def _cost(row: RankedOffer) -> str:
    return stacked(row.job_cost_usd.by(format_usd))


def _latency(row: RankedOffer) -> str:
    return format_duration(row.latency_s)


def _who(data: ReportData, row: RankedOffer) -> str:
    return f"{gpus_of(row.offer)}{here(data, row)}\n{offer_name(row.offer)}"


def _batch(row: RankedOffer) -> str:
    return " ".join(f"{batch:,}" for batch in batches_of(row.parts or (row.estimate,)))


def _remarks(row: RankedOffer) -> str:
    # The age of a price stands beside the price; as a remark on most rows it would say nothing.
    remarks = [f.kind.value for f in row.findings if f.kind is not FindingKind.STALE_PRICE]
    if row.pareto:
        remarks.append("not dominated")
    if row.fits_memory is None:
        remarks.append("memory not checked")
    if row.latency_s is not None:
        remarks.append(f"{format_duration(row.latency_s)} a batch of {row.estimate.case.batch_size}")
    for what, cost in token_costs(row).items():
        batch = ", one static batch" if row.estimate.case.new_tokens else ""
        remarks.append(f"{cost.by(format_usd)} per million tokens ({what}{batch})")
    if row.spot_break_even is not None:
        remarks.append(f"spot pays while less than {share_words(row.spot_break_even)} of the work is lost")
    if row.offer.gpu_count > 1:
        remarks.append(f"scaling {row.scaling_efficiency:.2f}, {plain(row.scaling_basis, 40)}")
    return ", ".join(dict.fromkeys(remarks)) or "none"


def _chart(data: ReportData, ranking: Ranking) -> Charts:
    """The best offer of each GPU: the head of the list, and this user's own GPU wherever it stands."""
    best = best_of_each_gpu(ranking)
    own = None if data.device is None else data.device.gpu_key
    shown = tuple(row for i, row in enumerate(best) if i < CHART_ROWS or row.offer.gpu_key == own)
    tied = sum(row.rank == shown[0].rank for row in shown)
    caption = (
        "Each mark is the best-ranked offer of one kind of GPU. ● measured here, ◆ reference run, "
        "○ predicted. The line is the interval: 95 % for a measurement, 90 % for a prediction. "
        "Predictions share part of their error, so two lines may overlap although their order is clear."
    )
    if tied > 1:
        caption += f" The {tied} rows on the band cannot be told apart: they share rank 1."
        caption += _parting(shown[:tied])
    if len(best) > len(shown):
        caption += f" {len(best) - len(shown)} further kinds of GPU are in the data below the page."
    twin = table(
        "The best-ranked offer of each kind of GPU",
        shown,
        text("GPU and offer", lambda r: f"{gpus_of(r.offer)}{here(data, r)}\n{offer_name(r.offer)}"),
        number("Rank", _rank),
        number(head(merit_unit(ranking)), lambda r: stacked(merit_words(ranking, r))),
        text("Memory", lambda r: _memory(data.specs.get(r.offer.gpu_key))),
        text("Architecture", lambda r: _architecture(data.specs.get(r.offer.gpu_key))),
        text("Basis", lambda r: stacked(basis_words(r.estimate))),
        text("Rests on", lambda r: plain(r.estimate.method, 120)),
        marks=marks(data, shown),
    )
    return Charts(figures=(_figure(data, ranking, shown, tied),), twin=twin, caption=caption)


def _parting(tied: Sequence[RankedOffer]) -> str:
    """Name the measurement that would part a tie: predictions are what is uncertain in it."""
    guessed = [gpu_name(r.offer.gpu_key) for r in tied if r.estimate.basis == "predicted"]
    if not guessed:
        return " All were measured: measure them again with more launches (`--publish`) to part them."
    return f" Measuring {listing(guessed[:3])} decides between them; renting one for some minutes is enough."


def _figure(data: ReportData, ranking: Ranking, rows: Sequence[RankedOffer], tied: int) -> Figure:
    labels = [
        two_lines(gpus_of(row.offer) + here(data, row), f"{row.rank}. {offer_name(row.offer)}")
        for row in rows
    ]
    marked = [
        Mark(
            row=i,
            value=merit.value or 0.0,
            low=merit.low,
            high=merit.high,
            hover=f"{merit_words(ranking, row)}<br>{row.estimate.basis}",
        )
        for i, row in enumerate(rows)
        for merit in [ranking.merit_of(row)]
    ]
    series = [
        Series(
            name=f"{basis}",
            marks=tuple(mark for mark in marked if rows[mark.row].estimate.basis == basis),
            colour=colour,
            symbol=BASIS_SYMBOLS[basis],
        )
        for basis, colour in BASIS_COLOURS.items()
        if any(row.estimate.basis == basis for row in rows)
    ]
    alt = "; ".join(f"{row.rank}. {gpus_of(row.offer)} {merit_words(ranking, row)}" for row in rows[:8])
    return Figure(
        figure=dots(series, labels, merit_unit(ranking), band_rows=tied),
        alt=f"Dot chart of {merit_unit(ranking)} with intervals, best first: {alt}.",
        height_px=90 + 37 * len(rows),
    )


def _memory(spec: GpuSpec | None) -> str:
    if spec is None:
        return UNKNOWN
    return format_bytes(spec.memory_bytes) + (f"\n{plain(spec.memory_type, 20)}" if spec.memory_type else "")


def _architecture(spec: GpuSpec | None) -> str:
    if spec is None:
        return UNKNOWN
    year = "" if spec.release_year is None else f"\n{spec.release_year}"
    return f"{plain(spec.architecture or UNKNOWN, 30)}{year}"


def excluded_table(ranking: Ranking) -> Table:
    """Every offer left out, by its reason: the list is long, the reasons are few."""
    by_reason: defaultdict[str, list[ExcludedOffer]] = defaultdict(list)
    for offer in ranking.excluded:
        by_reason[offer.reason].append(offer)
    rows = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return table(
        f"Not ranked: {count(len(ranking.excluded), 'offer')}, by reason",
        rows[:EXCLUDED_REASONS],
        text("Reason", lambda row: plain(row[0], 300)),
        number("Offers", lambda row: str(len(row[1]))),
        text("Which", lambda row: listing(_which(row[1]), most=8)),
        folded=True,
    )


def _which(offers: Sequence[ExcludedOffer]) -> list[str]:
    gpus = {x.gpu_key for x in offers}
    if len(gpus) > 1:
        return sorted({gpu_name(key) for key in gpus})
    names = [f"{plain(x.provider, 30)} {plain(x.instance, 40)}" for x in offers]
    return [f"{gpu_name(next(iter(gpus)))} at {names[0]}", *names[1:]]


def beaten_table(rows: Sequence[RankedOffer]) -> Table:
    """The offers that another beats in every respect, and which does."""
    return table(
        "Beaten in every respect",
        [row for row in rows if row.dominated_by is not None],
        text("Offer", lambda r: f"{gpus_of(r.offer)}\n{offer_name(r.offer)}"),
        text("By", lambda r: plain(r.dominated_by or "")),
    )


def factor_table(rows: Sequence[RankedOffer]) -> Table:
    """What the GPUs of offers are, one a line."""

    def known(name: str, words: Callable[[Any], str] = str) -> Callable[[RankedOffer], str]:
        return lambda row: UNKNOWN if row.factors[name] is None else words(row.factors[name])

    def whole(value: float) -> str:
        return f"{value:,.0f}"

    return table(
        "What these GPUs are",
        list({row.offer.gpu_key: row for row in rows}.values()),
        text("GPU", lambda r: gpu_name(r.offer.gpu_key)),
        number(
            "Memory", lambda r: f"{format_bytes(r.factors['memory_bytes'])}\n{r.factors['memory_type'] or ''}"
        ),
        number("GB/s", known("memory_bandwidth_bytes_per_s", lambda value: whole(value / 1e9))),
        number("Cores", known("core_count", whole), optional=1),
        number("Tensor cores", known("tensor_core_count", whole), optional=4),
        text("Architecture", known("architecture"), optional=2),
        text("Line", known("line"), optional=7),
        text("ECC", known("ecc", {True: "yes", False: "no"}.__getitem__), optional=5),
        text("FP64", known("fp64_share", _share), optional=6),
        text("Link", known("link"), optional=3),
        text("Cooling", known("cooling"), optional=8),
        number("W", known("board_power_w", whole)),
    )


def _share(value: float) -> str:
    """A rate as a share of the FP32 rate: "1/2", "1/64"."""
    return UNKNOWN if not value else "1/1" if value > 1 else f"1/{1 / value:.0f}"


def here(data: ReportData, row: RankedOffer) -> str:
    """A mark on offers of the user's own kind of GPU."""
    own = data.device is not None and data.device.gpu_key == row.offer.gpu_key
    return " (yours)" if own else ""


def marks(data: ReportData, rows: Sequence[RankedOffer]) -> tuple[RowMark | None, ...]:
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


SECTION = Section(key="value", render=_render, place=90)
