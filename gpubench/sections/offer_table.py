"""Offers as a table: what a row says, which rows are kept and stand out, and what a page narrows them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gpubench.blocks.parts import (
    Cell,
    RowMark,
    Table,
    link,
    number,
    table,
    text,
)
from gpubench.findings import FindingKind, remark
from gpubench.interval import Interval, stacked
from gpubench.labels import CONDITION_WORDS, offer_lines, price_of
from gpubench.models import (
    ParallelMode,
    PriceCondition,
    Pricing,
    Ranking,
    Row,
)
from gpubench.models.memory import fits_text
from gpubench.providers import price_page
from gpubench.recommend.choice import best_to_rent_and_to_own
from gpubench.recommend.speeds import batches_of, gpus_needed
from gpubench.recommend.tokens import generation_times, token_costs
from gpubench.sections.answer import elsewhere_words
from gpubench.sections.data import ReportData
from gpubench.sections.words import (
    basis_mark,
    hours_words,
    in_stock_words,
    per_s_unit,
    per_usd_unit,
    price_date_words,
)
from gpubench.units import (
    LEAST_USD,
    UNKNOWN,
    capitalized,
    format_chance,
    format_duration,
    format_percent,
    format_price,
    format_usd,
    plain,
)

NOTE_CHARACTERS = 80
"""Of the note on a price in its row; the winners below have it in full."""

RANK, P_BEST = "Rank", "P(best)"
"""Titles of columns whose marks are explained below the table."""


def offers(
    data: ReportData,
    ranking: Ranking,
    rows: Sequence[Row],
    caption: str,
    *,
    in_full: bool = False,
    one_a_gpu: bool = False,
) -> Table:
    """Offers, one a row, in the order of the ranking.

    Args:
        data: Whose device is marked as the reader's own.
        ranking: What the rows are of: its units, and whether they have a job and batches that differ.
        rows: Which of its rows.
        caption: What the table is called.
        in_full: Also the batch, where batches differ, and the latency as columns.
        one_a_gpu: Each row stands for its GPU: P(best) is that of the GPU, and a column says who else has it.
    """
    late = any(row.latency_s is not None for row in rows)
    generated = any(row.estimate.case.new_tokens for row in rows)
    batches = {batches_of(row.estimates) for row in ranking.rows}
    shared = any(row.parallel_mode is ParallelMode.FSDP for row in ranking.rows)
    paid_first = _paid_first(data)
    return table(
        caption,
        rows,
        text("GPUs and offer", lambda r: offer_lines(r.offer, here(data, r))),
        text("Memory", _gpus_needed) if shared else None,
        number(RANK, rank_words(ranking)),
        text("Price and its date", lambda r: f"{price_of(r)}\n{paid_first(r)}{price_date_words(r)}"),
        *_paces(ranking, one_a_gpu=one_a_gpu),
        number(f"{P_BEST}\nof GPU" if one_a_gpu else P_BEST, chance_of(ranking, one_a_gpu=one_a_gpu)),
        *_token_columns(rows),
        text("Also at", also_at(ranking), optional=3) if one_a_gpu else None,
        number("Batch", lambda r: " ".join(f"{batch:,}" for batch in batches_of(r.estimates)), optional=5)
        if in_full and len(batches) > 1
        else None,
        number("Time of a token" if generated else "Latency", _latency) if in_full and late else None,
        text("Basis", lambda r: basis_mark(r.estimate), optional=1, glyph=True),
        link("Link", lambda r: price_page(r.offer.provider, r.offer.source), optional=8),
        text("Remarks", remarks_of, optional=6, below=True),
        marks=marks(data, rows),
    )


def rank_words(ranking: Ranking) -> Callable[[Row], str]:
    """Return what says a rank, and whether another row shares it; a dash where a row has none."""
    shared = ranking.shared_ranks
    return lambda row: UNKNOWN if row.rank is None else f"{row.rank}{'=' if row.rank in shared else ''}"


def _paces(ranking: Ranking, *, one_a_gpu: bool) -> Iterator[Cell[Row]]:
    """Yield throughput and value, and of a job its time and cost, which stand for both of a ratio."""
    timed = any(row.hours.value is not None for row in ranking.rows)
    if not (timed and ranking.by_reference):
        yield number(
            capitalized(per_s_unit(ranking)),
            lambda r: stacked(ranking.throughput_of(r).words()),
            optional=(6 if one_a_gpu else 4) if timed else 3,
        )
        yield number(
            capitalized(per_usd_unit(ranking)),
            lambda r: stacked(ranking.value_of(r).words()),
            optional=7 * timed,
        )
    if timed:
        yield number("Time", lambda r: stacked(r.hours.collapsed.by(hours_words)))
        yield number("Cost", lambda r: stacked(r.cost_usd.collapsed.by(format_usd)))


def _gpus_needed(row: Row) -> str:
    if row.estimate.fewest_gpus == 1 and row.parallel_mode is ParallelMode.FSDP:
        return fits_text(sharded=True)
    return gpus_needed(row.estimate.fewest_gpus)


def _paid_first(data: ReportData) -> Callable[[Row], str]:
    """Return what says what hardware costs to buy, before the words on its hour: "$1,450 first; "."""
    paid = {(each.instance, each.gpu_key, each.gpu_count): each.purchase_usd for each in data.buy_or_rent}

    def words(row: Row) -> str:
        offer = row.offer
        usd = paid.get((offer.instance, offer.gpu_key, offer.gpu_count))
        return "" if usd is None or offer.pricing is not Pricing.OWNED else f"{format_price(usd)} first; "

    return words


def chance_of(ranking: Ranking, *, one_a_gpu: bool) -> Callable[[Row], str]:
    """Return what says how likely a row is the best.

    Where each row stands for its GPU, one to rent has the chance of any offer of it, whoever's that is.
    """
    best_of_each = ranking.by_gpu if one_a_gpu else ()
    of_gpu = {each.offer.gpu_key: each.p_best_of_gpu for each in best_of_each if each.source != "own"}

    def chance(row: Row) -> str:
        own = row.offer.pricing is Pricing.OWNED
        return format_chance(row.p_best if own else of_gpu.get(row.offer.gpu_key, row.p_best))

    return chance


_TOKENS = {
    "training": "training",
    "forward pass": "forward pass",
    "prefill": "prompts of one static batch",
    "decode": "generated in one static batch",
}


def _token_columns(rows: Iterable[Row]) -> Iterator[Cell[Row]]:
    """Yield a column for each kind of token that any of the rows has a cost of which its figures can tell."""

    def cost_of(what: str) -> Callable[[Row], str]:
        return lambda row: stacked(token_costs(row).get(what, Interval(None)).by(format_usd))

    told = (what for row in rows for what, usd in token_costs(row).items() if (usd.value or 0.0) >= LEAST_USD)
    for what in dict.fromkeys(told):
        yield number(f"USD per million tokens, {_TOKENS[what]}", cost_of(what), optional=3)


def _latency(row: Row) -> str:
    """The time of a batch; of a generation first that of a token, which a limit is held against."""
    whole = format_duration(row.latency_s)
    return f"{_token_time(row)}\n{whole} a batch" if row.estimate.case.new_tokens else whole


def _token_time(row: Row) -> str:
    times = generation_times(row.estimate)
    return UNKNOWN if times is None else format_duration(times.per_token_s.value)


def also_at(ranking: Ranking) -> Callable[[Row], str]:
    """Return what says where else a GPU is to be had than at its best offer: "lium $10.06, aws $12.00"."""
    elsewhere = {(each.offer.gpu_key, each.source == "own"): each for each in ranking.by_gpu}

    def of(row: Row) -> str:
        best = elsewhere.get((row.offer.gpu_key, row.offer.pricing is Pricing.OWNED))
        found = () if best is None else best.also_at
        return ", ".join(elsewhere_words(each, row.offer.gpu_count) for each in found) or UNKNOWN

    return of


def remarks_of(row: Row) -> str:
    """Return what to know of a row, in a few words each."""
    # The age of a price stands beside the price; as a remark on most rows it would say nothing.
    remarks = [remark(f) for f in row.findings if f.kind is not FindingKind.STALE_PRICE]
    offer, lost = row.offer, row.spot_break_even
    each = f"{_token_time(row)} a token, " if row.estimate.case.new_tokens else ""
    batch = f"{each}{format_duration(row.latency_s)} a batch of {row.estimate.case.batch_size}"
    pays = f"while interruptions add less than {format_percent(lost)} to the work" if lost else "at no share"
    remarks += [
        words
        for holds, words in (
            (offer.kind == "marketplace", CONDITION_WORDS[PriceCondition.SINGLE_HOST]),
            (offer.note, plain(offer.note or "", NOTE_CHARACTERS)),
            (offer.in_stock is not None, in_stock_words(offer)),
            (row.pareto, "not dominated"),
            (row.fits_memory is None, "memory not checked"),
            (row.latency_s is not None, batch),
            (lost is not None, f"spot pays {pays}"),
            (offer.gpu_count > 1, f"scaling {row.scaling_efficiency:.2f}, {plain(row.scaling_basis, 40)}"),
        )
        if holds
    ]
    return ", ".join(dict.fromkeys(remarks)) or "none"


def here(data: ReportData, row: Row) -> str:
    """A mark on offers of the user's own kind of GPU."""
    own = data.device is not None and data.device.gpu_key == row.offer.gpu_key
    return " (yours)" if own else ""


def marks(data: ReportData, rows: Sequence[Row]) -> tuple[RowMark | None, ...]:
    """Which rows stand out: the user's own kind of GPU, the tie at the head, what was throttled."""
    leading = sum(row.rank == 1 for row in rows)

    def mark(row: Row) -> RowMark | None:
        if here(data, row):
            return "here"
        if row.rank == 1 and (row.tie or leading > 1):
            return "tie"
        return "bad" if any(f.kind is FindingKind.THROTTLED for f in row.findings) else None

    return tuple(mark(row) for row in rows)


def head_of(rows: Sequence[Row], most: int) -> tuple[Row, ...]:
    """Return so many rows in their order: the best of each GPU to rent and to own, then the first others."""
    if len(rows) <= most:
        return tuple(rows)
    kept = {id(row) for row in best_to_rent_and_to_own(rows)}
    kept |= {id(row) for row in [row for row in rows if id(row) not in kept][: max(0, most - len(kept))]}
    return tuple(row for row in rows if id(row) in kept)
