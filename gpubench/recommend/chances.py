"""Ranks, ties and chances: which offers differ, and how certain their order is.

Everything is computed over joint draws. Offers of one GPU share its draw, so only the price decides between
them. Different GPUs have different draws. An error common to all GPUs (from a shared anchor) is in every draw
and cancels. Overlapping intervals would not be a valid test, because they count that common error twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.interval import Interval
from gpubench.recommend.candidates import FEED_SIGMA, Candidates, farthest_startup
from gpubench.recommend.objective import drawn, drawn_merits, is_a_guess, merit, sorted_by
from gpubench.recommend.prices import drawn_prices
from gpubench.recommend.request import RankRequest

TAIL = 0.05
"""Two offers tie if the lower one is better in at least this share of the draws."""

SURE = 0.5
"""The top of a ranking is a tie if its P(best) is below this."""

_BLOCK = 64


def wins_of(scores: Floats) -> Floats:
    """Return P(best) of each row, (N,): rows that are equally best in a draw share it.

    Args:
        scores: (N, D) score of row i in joint draw d, larger is better.
    """
    best = scores.max(axis=0)
    rows = np.flatnonzero((scores == best).any(axis=1))
    won = scores[rows] == best
    winners, result = won.sum(axis=0), np.zeros(len(scores))
    result[rows] = [(row / winners).mean() for row in won]
    return result


def bands(scores: Floats, kinds: Sequence[int]) -> tuple[list[int], list[bool]]:
    """Return rank and tie of each row; rows are in order of merit.

    A band starts at its leader and ends at the last row that ties with it, before the first row of another
    GPU that does not. All rows of a band have the same rank; ``tie`` marks those that cannot be distinguished
    from the leader. A more expensive offer of a GPU already in the band keeps its position, unmarked.

    Args:
        scores: (N, D), row 0 the best by its point estimate.
        kinds: (N,) which GPU each row is.
    """
    count = len(scores)
    ranks, ties = [0] * count, [False] * count
    first = 0
    while first < count:
        tied = _tied_rows(scores, kinds, first)
        last = tied[-1] if tied else first
        ranks[first : last + 1] = [first + 1] * (last + 1 - first)
        for row in tied:
            ties[first] = ties[row] = True
        first = last + 1
    return ranks, ties


def _tied_rows(scores: Floats, kinds: Sequence[int], first: int) -> list[int]:
    tied: list[int] = []
    seen = {kinds[first]}
    for start in range(first + 1, len(scores), _BLOCK):
        rows = slice(start, min(start + _BLOCK, len(scores)))
        ties = (scores[rows] >= scores[first]).mean(axis=1) >= TAIL
        for row, is_tied in enumerate(ties.tolist(), start):
            if is_tied:
                tied.append(row)
                seen.add(kinds[row])
            elif kinds[row] not in seen:
                return tied
        if not tied and len(set(kinds[rows.stop :]) - seen) == 0:
            return tied
    return tied


IN_DETAIL = 1000
"""Number of rows with computed ties; rows below have separate ranks."""

_FARTHEST = 7.0
"""Bound on the draws of a normal error, in standard deviations from its mean."""

CHANCES = ("p_best", "p_cheapest", "p_sensible", "p_fastest")
"""The names of a row's chances in the table."""

_CHANCES = 3
"""An offer behind three better ones of the same machine is almost never the best."""


@dataclass(frozen=True, slots=True)
class Chances:
    """One figure per row, in the order of the rows.

    Attributes:
        p_cheapest, p_sensible, p_fastest: P(best) by the cost of the work, by cost plus hours, and by its
            time, whatever the order of the rows. NaN if not computed, as for a row that might lead, below the
            detailed rows and after three of the same machine.
    """

    ranks: list[int]
    ties: list[bool]
    p_best: Floats
    p_cheapest: Floats
    p_sensible: Floats
    p_fastest: Floats


def chances_of(request: RankRequest, pool: Candidates, order: Indices) -> Chances:
    """Return rank, tie and chances of each row; ``order`` has them as ``objective.order`` does.

    Rank and tie use the expected prices, since a measurement could distinguish the speeds. A guess outside
    the fit never shares the rank of a row that the fit covers. The chances include the uncertainty of prices.
    """
    detailed = min(len(order), IN_DETAIL)
    able, unable = _able(request, pool, order, detailed)
    kinds = pool.gpu[order][:detailed].tolist()
    p_best = np.where(unable, 0.0, np.nan)

    rows = order[able]
    together = drawn(request, pool, rows)
    expected = drawn_merits(request, pool, rows, together)
    covered = int(np.count_nonzero(~is_a_guess(pool)[order[:detailed]]))
    ranks, ties = bands(expected[:covered], kinds[:covered])
    for rank, tie in zip(*bands(expected[covered:detailed], kinds[covered:]), strict=True):
        ranks.append(covered + rank)
        ties.append(tie)
    if wins_of(expected)[0] < SURE:
        ties[0] = True
    price = drawn_prices(pool.prices, rows, request.draws, request.seed)
    scores = drawn_merits(request, pool, rows, together, price=price, out=expected)
    p_best[able] = wins_of(scores)
    rest = range(detailed + 1, len(order) + 1)

    def p_by(sort: str) -> Floats:
        """Return P(best) by another figure, for the same draws of the same rows."""
        other = msgspec.structs.replace(request, sort=sort)
        if sorted_by(other) == sorted_by(request):
            return p_best
        told = p_best.copy()
        alike = drawn(other, pool, rows) if sorted_by(request) in {"throughput", "joules"} else together
        told[able] = wins_of(drawn_merits(other, pool, rows, alike, price=price))
        return told

    return Chances(
        ranks=[*ranks, *rest],
        ties=[*ties, *(False for _ in rest)],
        p_best=p_best,
        p_cheapest=p_by("cost"),
        p_sensible=p_by("value"),
        p_fastest=p_by("time"),
    )


def costs_over(request: RankRequest, pool: Candidates, least: int, others: Sequence[int]) -> list[Interval]:
    """Return the costs of rows relative to one of them, with 90 % intervals from the draws."""
    by_cost = msgspec.structs.replace(request, sort="cost")
    rows = np.array([least, *others])
    price = drawn_prices(pool.prices, rows, by_cost.draws, by_cost.seed)
    usd = -drawn_merits(by_cost, pool, rows, drawn(by_cost, pool, rows), price=price)
    ratios = usd[1:] / usd[0]
    likely = merit(by_cost, pool, pool.rate[rows], rows)
    ends = np.quantile(ratios, (TAIL, 1 - TAIL), axis=1)
    return [Interval(*each) for each in zip((likely[1:] / likely[0]).tolist(), *ends.tolist(), strict=True)]


def _able(request: RankRequest, pool: Candidates, order: Indices, detailed: int) -> tuple[Indices, Flags]:
    """Return the positions to draw, and which of all positions are never the best.

    Drawn are the detailed positions, and three of each machine that may lead in a draw. A machine is a GPU,
    its number, and its pricing. Among offers of one machine, the one with the lower listed price is better;
    between one GPU and eight, startup or billing increment may favor either.
    """
    is_detailed = np.arange(len(order)) < detailed
    if is_detailed.all():
        return np.flatnonzero(is_detailed), ~is_detailed
    kinds = pool.kind[order]
    by_kind = np.argsort(kinds, kind="stable")  # a stable sort
    begins = np.concatenate(([True], np.diff(kinds[by_kind]) != 0))
    first = np.maximum.accumulate(np.where(begins, np.arange(len(by_kind)), 0))
    few = np.empty(len(by_kind), dtype=bool)
    few[by_kind] = np.arange(len(by_kind)) - first < _CHANCES
    sorts = (request.sort, "cost", "value", "time")
    asked = (msgspec.structs.replace(request, sort=sort) for sort in sorts)
    may_lead = np.logical_or.reduce([_may_lead(each, pool, order) for each in asked])
    return np.flatnonzero(is_detailed | few & may_lead), ~(is_detailed | may_lead)


def _may_lead(request: RankRequest, pool: Candidates, order: Indices) -> Flags:
    """Return which positions may be the best in some draw.

    A row's best draw is compared with the worst draws of others: the ends of its GPU's draws, and
    ``_FARTHEST`` for errors drawn per row.
    """
    speeds, price = pool.speeds, pool.price[order]
    slow, fast = (ends[pool.gpu[order]] for ends in (speeds.draws.min(axis=1), speeds.draws.max(axis=1)))
    instance, vcpu_limit = (pool.count * pool.pace * pool.delivered)[order], pool.vcpu_limit[order]
    feed_error = np.exp(_FARTHEST * FEED_SIGMA)
    error = np.exp(_FARTHEST * pool.spread[order])
    move = np.exp(_FARTHEST * pool.prices.sigma[order])
    less = more = 1.0  # the ends of a rate with drawn work: see ``objective.drawn_job_rates``
    work = pool.work
    if work is not None and work.drawn is not None:
        ratios = work.samples / work.drawn
        less, more = float(ratios.min()), float(ratios.max())
    at_best = merit(
        request,
        pool,
        np.minimum(fast * instance * error, vcpu_limit * feed_error) * more,
        order,
        price / move,
        startup=1 / farthest_startup(request),
    )
    at_worst = merit(
        request,
        pool,
        np.minimum(slow * instance / error, vcpu_limit / feed_error) * less,
        order,
        price * move,
        startup=farthest_startup(request),
    )
    return np.asarray(at_best >= at_worst.max())
