"""What the rows are in order of: the best offer of each GPU, every offer, and what is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from gpubench.blocks.block import Block
from gpubench.blocks.parts import (
    Bullets,
    Paragraph,
    Part,
    Table,
    number,
    table,
    text,
)
from gpubench.labels import gpu_name, offer_lines
from gpubench.models import (
    ExcludedOffer,
    FindingKind,
    Pricing,
    Ranking,
    Row,
    SortedBy,
)
from gpubench.recommend.choice import best_to_rent_and_to_own
from gpubench.recommend.factors import factors_of
from gpubench.sections.answer import in_full
from gpubench.sections.data import ReportData
from gpubench.sections.offer_table import head_of, offers
from gpubench.sections.section import Section
from gpubench.sections.words import (
    MOST_OF_A_NOTE,
    cases_words,
)
from gpubench.specs import load_specs
from gpubench.units import (
    UNKNOWN,
    count,
    format_bytes,
    listing,
    plain,
)

TABLE_ROWS = 400
"""Rows that the page's table holds; it can be sorted and narrowed, and print shows its head."""
EXCLUDED_REASONS = 80

_TITLES: dict[SortedBy, str] = {
    "total": "Dollars and hours of the job, ranked",
    "value": "Training per dollar, ranked",
    "throughput": "Throughput, ranked",
    "cost": "Cost of the job, ranked",
    "time": "Time of the job, ranked",
    "joules": "Energy of a sample, ranked",
}
_P_OF_GPU = (
    "P(best) of GPU: any offer of this GPU, whoever's, is the best at the prices of today, which may have "
    "moved; all GPUs add up to 100 %"
)
_P_OF_OFFER = (
    "P(best): this offer is the best at the prices of today, which may have moved; all offers add up to 100 %"
)
_SHARED_RANK = (
    "=: a shared rank: the figures cannot tell it from another, or a more expensive offer of a GPU so tied"
)
_FEED_BOUND = (
    f"{FindingKind.FEED_BOUND.value}: its vCPUs prepare fewer photographs than its GPUs take (assumed): "
    "throughput, time, cost and chances are of what they prepare, a latency is of its GPUs alone"
)
_NOT_DOMINATED = "not dominated: nothing else is as fast, as cheap and as large in memory at once"


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
        parts += [in_full(ranking), _page_table(data, ranking)]
        brief = _brief(data, ranking)
    else:
        parts.append(Paragraph(text="No offer is left to rank; the list below says why.", tone="warning"))
    if ranking.excluded:
        parts.append(excluded_table(ranking))
    return Block(title=_TITLES[ranking.sorted_by], parts=tuple(parts), brief=brief)


def _page_table(data: ReportData, ranking: Ranking) -> Table:
    """What is ranked, as much of it as a page holds."""
    shown, total = head_of(ranking.rows, TABLE_ROWS), len(ranking.rows)
    caption = f"All {total:,} offers"
    if len(shown) < total:
        caption = (
            f"The first {len(shown)} of {total:,} offers, with the best of each GPU; all that are ranked are "
            "in the raw data"
        )
    return offers(data, ranking, shown, caption)


def shown_rows(data: ReportData, ranking: Ranking) -> tuple[Row, ...]:
    """The rows that a terminal shows: the best of each GPU to rent, and all that is owned or could be.

    Of a single GPU, and where it was asked for, every offer.
    """
    rows = ranking.rows
    if not _each_is_an_offer(data, ranking):
        best = {id(row) for row in best_to_rent_and_to_own(rows)}
        rows = tuple(row for row in rows if row.offer.pricing is Pricing.OWNED or id(row) in best)
    return rows[: data.most_offers]


def _each_is_an_offer(data: ReportData, ranking: Ranking) -> bool:
    if data.every_offer:
        return True
    best_of_each = ranking.by_gpu
    rented = any(each.source != "own" for each in best_of_each)
    return not rented or len({each.offer.gpu_key for each in best_of_each}) == 1


def _brief(data: ReportData, ranking: Ranking) -> tuple[Part, ...]:
    """The head of the ranking, the answers in full, the notes on it, and what its words mean."""
    rows = shown_rows(data, ranking)
    one_a_gpu = not _each_is_an_offer(data, ranking)
    shown = offers(data, ranking, rows, "", in_full=True, one_a_gpu=one_a_gpu)
    notes = [plain(note, MOST_OF_A_NOTE) for note in ranking.said("note")]
    legend = _legend(ranking, rows, one_a_gpu=one_a_gpu)
    items: list[str] = []
    if one_a_gpu and ranking.offer_count is not None:
        every = f"--table --explain lists all {ranking.offer_count:,}, which the ranks are among"
        items.append(f"One row a GPU, its best offer; {every}.")
    if data.more_by is None:
        items = [*notes, *items, *legend]
    else:
        items.append(f"{count(len(notes) + len(legend), 'more note')}: {data.more_by}.")
    return (shown, in_full(ranking), Bullets(items=tuple(dict.fromkeys(items))))


def _legend(ranking: Ranking, rows: Sequence[Row], *, one_a_gpu: bool) -> list[str]:
    """What the words of the table mean, and how the chances were come by."""
    bound = any(each.kind is FindingKind.FEED_BOUND for row in rows for each in row.findings)
    legend = [f"{_SHARED_RANK}."] if _shares_a_rank(ranking, rows) else []
    legend += [f"{_FEED_BOUND}."] if bound else []
    legend += [f"{_NOT_DOMINATED}."] if any(row.pareto for row in rows) else []
    if any(row.p_best is not None for row in rows):
        legend.append(f"{_P_OF_GPU if one_a_gpu else _P_OF_OFFER}.")
    if any(row.estimate.case.new_tokens for row in rows):
        legend.append("Static batch: a server joins sequences as they come, and makes more tokens of a GPU.")
    return legend


def _shares_a_rank(ranking: Ranking, rows: Sequence[Row]) -> bool:
    return not ranking.shared_ranks.isdisjoint(row.rank for row in rows)


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


def beaten_table(rows: Sequence[Row]) -> Table:
    """The offers that another beats in every respect, and which does."""
    return table(
        "Beaten in every respect",
        [row for row in rows if row.dominated_by is not None],
        text("Offer", lambda r: offer_lines(r.offer)),
        text("By", lambda r: plain(r.dominated_by or "")),
    )


def factor_table(rows: Sequence[Row]) -> Table:
    """What the GPUs of offers are, one a line."""
    factors = {row.offer.gpu_key: factors_of(load_specs().get(row.offer.gpu_key)) for row in rows}

    def known(name: str, words: Callable[[Any], str] = str) -> Callable[[str], str]:
        return lambda key: UNKNOWN if factors[key][name] is None else words(factors[key][name])

    def whole(value: float) -> str:
        return f"{value:,.0f}"

    def share(value: float) -> str:  # of the FP32 rate: "1/2", "1/64"
        return UNKNOWN if not value else "1/1" if value > 1 else f"1/{1 / value:.0f}"

    return table(
        "What these GPUs are",
        list(factors),
        text("GPU", gpu_name),
        number(
            "Memory",
            lambda key: f"{format_bytes(factors[key]['memory_bytes'])}\n{factors[key]['memory_type'] or ''}",
        ),
        number("GB/s", known("memory_bandwidth_bytes_per_s", lambda value: whole(value / 1e9))),
        number("Cores", known("core_count", whole), optional=1),
        number("Tensor cores", known("tensor_core_count", whole), optional=4),
        text("Architecture", known("architecture"), optional=2),
        text("Line", known("line"), optional=7),
        text("ECC", known("ecc", {True: "yes", False: "no"}.__getitem__), optional=5),
        text("FP64", known("fp64_share", share), optional=6),
        text("Link", known("link"), optional=3),
        text("Cooling", known("cooling"), optional=8),
        number("W", known("board_power_w", whole)),
    )


SECTION = Section(key="value", render=_render, place=25)
