"""The objective by which a ranking is sorted.

For a job it is the cost, the time, or the cost plus the value of the time, including spot losses, startup,
billing increments, storage, egress and tax. Without a job (``relative``) it is samples per dollar. On
request, it is the throughput or the energy per sample. Rows, P(best), ties, deadlines, the Pareto set and the
verdict all use this module, so they are consistent.

Ranks, ties and chances say which offers differ, and how certain their order is. They are computed over joint
draws of all speeds. Offers of one GPU share the speed that is drawn for it, so only the price decides between
them. An error that all GPUs have in common (from a shared anchor) is the same for all in a draw and cancels.
Checking whether intervals overlap would count it twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.interval import Interval
from gpubench.models import SortedBy
from gpubench.offers.table import places_by_kind
from gpubench.recommend import economics
from gpubench.recommend.candidates import (
    FEED_SIGMA,
    Candidates,
    drawn_rates,
    farthest_startup,
    startup_factors,
)
from gpubench.recommend.economics import DrawnPrices, drawn_prices
from gpubench.recommend.request import RankRequest

# Number of rows to compute together, so that intermediate results stay in the processor's cache.
_AT_ONCE = 16

ALIKE = 0.02
"""Two jobs count as equally long if their hours differ by less than this share; the cost of each hour saved
is then not stated."""

# The criterion for each value of the option ``sort``.
_WITHOUT_A_JOB: dict[str, SortedBy] = {
    "value": "value",
    "cost": "value",
    "time": "throughput",
    "throughput": "throughput",
    "joules": "joules",
}
_OF_A_JOB: dict[str, SortedBy] = {
    "value": "total",
    "cost": "cost",
    "time": "time",
    "throughput": "throughput",
    "joules": "joules",
}
_WORDS: dict[SortedBy, str] = {
    "total": "cost to train and time to wait",
    "value": "throughput per US dollar",
    "throughput": "throughput of the instance",
    "time": "time to train",
    "cost": "cost to train",
    "joules": "energy per sample",
}


def sorted_by(request: RankRequest) -> SortedBy:
    """Return the sort criterion; for a job, "value" is the cost plus the value of its hours."""
    by = (_WITHOUT_A_JOB if request.relative else _OF_A_JOB)[request.sort]
    return "cost" if by == "total" and request.hour_worth_usd == 0 else by


def in_words(request: RankRequest) -> str:
    """Return the objective in words, such as "cost to train", adapted for inference."""
    words = _WORDS[sorted_by(request)]
    if request.task == "infer":
        words = words.replace("to train", "of the job")
    best = ", each GPU at its own largest batch" if request.batch_size == "max" else ""
    return f"{words}{best}"


def merit(
    pool: Candidates,
    rate: Floats,
    rows: Indices | slice,
    price: Floats | None = None,
    *,
    startup: Floats | float = 1.0,
) -> Floats:
    """Return the sort criterion at a rate of the instance, in the shape of ``rate``; larger is better.

    Args:
        pool: The offers, and the request.
        rate: (N,) or (N, D) rates of these rows.
        rows: Rows of the pool.
        price: Prices, with the shape of ``rate`` [USD/h]; None for the expected prices.
        startup: As in ``hours``.
    """
    return _at_price(pool, _before_price(pool, rate, rows, startup), rows, price)


def _before_price(pool: Candidates, rate: Floats, rows: Indices | slice, startup: Floats | float) -> Floats:
    """Return the inputs of a merit except the price; they are equal for all offers of one kind.

    For a job, the last axis has two values: the billed hours, and the hours until the job is done.
    """
    if sorted_by(pool.request) in {"throughput", "value"}:
        return rate
    if sorted_by(pool.request) == "joules":
        return rate / _beside(pool.watts[rows], rate)
    job_hours = hours(pool, rate, rows, startup)
    return np.stack((billed(pool, job_hours, rows), job_hours), axis=-1)


def _at_price(pool: Candidates, inputs: Floats, rows: Indices | slice, price: Floats | None) -> Floats:
    by = sorted_by(pool.request)
    if by in {"throughput", "joules"}:
        return inputs
    if by == "value":
        return economics.samples_per_usd(
            inputs, _beside(pool.price[rows], inputs) if price is None else price
        )
    job_hours = inputs[..., 1]
    if by == "time":
        return -job_hours
    usd = _cost_of_billed(pool, inputs[..., 0], rows, price)
    return -(usd if by == "cost" else usd + pool.request.hour_worth_usd * job_hours)


def drawn_inputs(pool: Candidates, rows: Indices) -> tuple[Floats, Indices]:
    """Draw the inputs of these N rows' merits, except prices.

    Returns:
        inputs: (M, D), or (M, D, 2) for a job, for each kind of offer among the rows: see ``_before_price``.
        which: (N,) the kind of each row.
    """
    _, first, which = np.unique(pool.kind[rows], return_index=True, return_inverse=True)
    of_kinds = rows[first]
    rate = drawn_job_rates(pool, of_kinds)
    startup = startup_factors(pool, of_kinds)
    return _before_price(pool, rate, of_kinds, startup), which


def _drawn_merits(
    pool: Candidates,
    rows: Indices,
    drawn: tuple[Floats, Indices],
    *,
    price: DrawnPrices | None = None,
    out: Floats | None = None,
) -> Floats:
    """Return the (N, D) merit of these rows in every joint draw.

    Args:
        pool: The offers, and the request.
        rows: Rows of the pool.
        drawn: The inputs of the same rows, from ``drawn_inputs``.
        price: Prices of the same rows; None for the expected prices, taken as certain.
        out: Array for the result, because allocating millions of figures takes longer than computing them.
    """
    inputs, which = drawn
    merits = np.empty((len(rows), pool.request.draws)) if out is None else out
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        usd_per_hour = None if price is None else price.of(part)
        merits[part] = _at_price(pool, inputs[which[part]], rows[part], usd_per_hour)
    return merits


def drawn_job_rates(pool: Candidates, rows: Indices) -> Floats:
    """Return the (N, D) rates of these rows in every joint draw, for a job of the expected number of samples.

    If the job is a number of hours on the reference GPU, its number of samples varies between draws. The
    rates are scaled instead, so that only the ratio of the two speeds counts.
    """
    return drawn_rates(pool, rows) * _work_expected_over_drawn(pool)


def _work_expected_over_drawn(pool: Candidates) -> Floats:
    # Return the job's expected number of samples divided by the drawn number, in every draw; 1 if fixed.
    if pool.work is None or pool.work.reference is None:
        return np.ones(1)
    row, speeds = pool.work.reference, pool.speeds
    return np.asarray(speeds.samples_per_s[row] / speeds.draws[row])


def order(pool: Candidates) -> Indices:
    """Return the rows, best first, by their point estimates, with guesses after all others.

    If two jobs cost the same because of billing increments, the faster comes first. Further ties are broken
    by price, then by name, so the order of the input does not matter.
    """
    return np.lexsort(_sort_keys(pool))


def first(pool: Candidates, among: Flags | slice = slice(None)) -> int:
    """Return the row that ``order`` would put first, without sorting the others."""
    rows = np.arange(len(pool))[among]
    for key in reversed(_sort_keys(pool)):
        of_rows = key[rows]
        rows = rows[of_rows == of_rows.min()]
    return int(rows[0])


def _sort_keys(pool: Candidates) -> tuple[NDArray[Any], ...]:
    # Return the sort keys of rows, most significant last. Rows of equal merit are sorted by the time of the
    # job, or by its cost if the merit is the time; without a job, by price.
    every, by, second = slice(None), sorted_by(pool.request), pool.price
    if by not in {"value", "throughput", "joules"}:
        job_hours = hours(pool, pool.rate, every)
        second = cost(pool, job_hours, every) if by == "time" else job_hours
    return (
        pool.offers.by_name,
        pool.price,
        second,
        -merit(pool, pool.rate, every),
        is_a_guess(pool),
    )


def is_a_guess(pool: Candidates) -> Flags:
    """Return which rows have a GPU with a guessed speed."""
    return np.array([each.is_a_guess for each in pool.speeds.estimates], dtype=bool)[pool.gpu]


def time_and_cost(pool: Candidates, rows: Indices | slice) -> tuple[Floats, Floats]:
    """Return the time [h] and cost [USD] of the job; without a job, the seconds and dollars of a sample."""
    rate = pool.rate[rows]
    if pool.work is None:
        return 1 / rate, 1 / economics.samples_per_usd(rate, pool.price[rows])
    job_hours = hours(pool, rate, rows)
    return job_hours, cost(pool, job_hours, rows)


def _job_rates(pool: Candidates) -> tuple[Floats, Floats, Floats]:
    """Return the rates for the expected, shortest and longest time of a job.

    If the job is a number of hours on the reference GPU, only the ratio to that GPU matters.
    """
    if pool.work is not None and pool.work.reference is not None:
        return pool.rate, pool.ratio_high, pool.ratio_low
    return pool.rate, pool.rate_high, pool.rate_low


def hours_with_ends(pool: Candidates, rows: Indices | slice) -> tuple[Floats, Floats, Floats]:
    """Return the expected hours until the job is done, with a 90 % interval; unknown is NaN."""
    likely, fast, slow = (hours(pool, rate[rows], rows) for rate in _job_rates(pool))
    return likely, *_ends_of(likely, (fast, slow), _hours_by_start(pool, rows))


def _hours_by_start(pool: Candidates, rows: Indices | slice) -> tuple[Floats, Floats]:
    # Return the hours with a short and a long startup, everything else as expected.
    rate, factor = pool.rate[rows], pool.request.startup_factor
    return hours(pool, rate, rows, 1 / factor), hours(pool, rate, rows, factor)


def hours(pool: Candidates, rate: Floats, rows: Indices | slice, startup: Floats | float = 1.0) -> Floats:
    """Return the hours until the job is done, at a rate of the instance; shape of ``rate``.

    One job over all GPUs runs at the full rate, as do the streams of inference; independent jobs run on one
    GPU each. Owned hardware needs no startup; the losses of a spot instance are already in its rate.
    ``startup`` is the factor on the assumed startup time: a scalar, or an array with the shape of ``rate``.
    """
    assert pool.work is not None  # hours require a job; without one, offers are sorted by value
    if not pool.request.shares_work:
        rate = rate / _beside(pool.count[rows], rate)
    work = economics.train_hours(pool.work.samples, rate)
    startup_hours = pool.request.rented_startup_minutes / economics.MINUTES_PER_HOUR
    start = np.where(pool.is_owned[rows], 0.0, startup_hours)
    return np.asarray(work + _beside(start, rate) * startup)


def cost(
    pool: Candidates,
    job_hours: Floats,
    rows: Indices | slice,
    price: Floats | None = None,
) -> Floats:
    """Return what one job costs [USD]; independent jobs share the price of the instance.

    ``price`` is the price of the instance, in the shape of ``job_hours``; None for the expected prices.
    """
    return _cost_of_billed(pool, billed(pool, job_hours, rows), rows, price)


def billed(pool: Candidates, job_hours: Floats, rows: Indices | slice) -> Floats:
    """Return the billed hours, rounded up to billing increments; shape of ``job_hours``."""
    unit = pool.request.billing_unit_minutes / economics.MINUTES_PER_HOUR
    units = np.where(pool.is_owned[rows], economics.SECOND_IN_HOURS, unit)
    return economics.billed_hours(job_hours, _beside(units, job_hours))


def _cost_of_billed(
    pool: Candidates,
    billed_hours: Floats,
    rows: Indices | slice,
    price: Floats | None = None,
) -> Floats:
    # Return the cost of this many billed hours [USD]; otherwise as ``cost``.
    if price is None:
        price = _beside(pool.price[rows], billed_hours)
    if not pool.request.shares_work:
        price = price / _beside(pool.count[rows], billed_hours)
    rented = _beside(np.where(pool.is_owned[rows], 0.0, 1.0), billed_hours)  # the user already owns the disk
    storage, egress = pool.request.storage_usd_per_month * rented, pool.request.egress_usd * rented
    return np.asarray(economics.job_cost(billed_hours, price, storage, egress, pool.request.tax))


def cost_with_ends(pool: Candidates, rows: Indices | slice) -> tuple[Floats, Floats, Floats]:
    """Return the expected cost of one job with a 90 % interval [USD]; unknown ends are NaN."""
    return total_with_ends(pool.with_request(hour_worth_usd=0.0), rows)


def total_with_ends(pool: Candidates, rows: Indices | slice) -> tuple[Floats, Floats, Floats]:
    """Return the cost plus the value of the hours [USD], with a 90 % interval.

    Throughput, startup and price have independent errors, so their widths add in quadrature on a log scale.
    Fixed costs, such as egress, are certain and shift both ends equally.
    """
    likely_hours, fast, slow = (hours(pool, rate[rows], rows) for rate in _job_rates(pool))

    def total(job_hours: Floats, price: Floats | None = None) -> Floats:
        return cost(pool, job_hours, rows, price) + pool.request.hour_worth_usd * job_hours

    likely, at_fast, at_slow = (total(each) for each in (likely_hours, fast, slow))
    at_short, at_long = (total(each) for each in _hours_by_start(pool, rows))
    factor = np.exp(pool.prices.half_width[rows])
    cheap, dear = (total(likely_hours, pool.price[rows] * each) for each in (1 / factor, factor))
    zero = np.zeros_like(likely)
    certain = cost(pool, zero, rows, zero)
    sources = (at_fast, at_slow), (at_short, at_long), (cheap, dear)
    low, high = _ends_of(likely - certain, *((less - certain, more - certain) for less, more in sources))
    return likely, certain + low, certain + high


def value_with_ends(
    pool: Candidates, rows: Indices | slice, rates: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return samples per dollar with their interval, from the expected, low and high rates of these rows."""
    price = pool.price[rows]
    likely, low, high = (economics.samples_per_usd(rate, price) for rate in rates)
    factor = np.exp(pool.prices.half_width[rows])
    return likely, *_ends_of(likely, (low, high), (likely / factor, likely * factor))


def _ends_of(likely: Floats, *ends: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    # Combine the ends of a figure for each source of error into one low and one high end.
    free = likely == 0  # a cost of zero stays zero at any price
    base = np.where(free, 1.0, likely)
    down, up = (
        np.sqrt(sum(np.log(np.where(free, 1.0, each[side]) / base) ** 2 for each in ends)) for side in (0, 1)
    )
    return likely * np.exp(-down), likely * np.exp(up)


def _beside(column: Floats, like: Floats) -> Floats:
    # Return a column in a shape that broadcasts with an (N,) or (N, D) array.
    return column[:, None] if like.ndim == 2 else column


def spot_break_even(pool: Candidates, rows: Indices, on_demand: Floats) -> Floats:
    """Return the share of lost work above which spot is not cheaper; 0 if spot is never cheaper.

    One-time costs (egress, startup) are not paid again for lost work, so the ratio of the two prices is the
    answer only without a job. The cost is linear in the billed hours.

    Args:
        pool: The offers.
        rows: Rows of spot instances.
        on_demand: The expected on-demand prices of the same machines [USD/h].
    """
    price = pool.price[rows]
    if pool.work is None:
        return np.asarray(np.maximum(on_demand / price - 1, 0.0))
    rate = pool.rate[rows] / pool.delivered[rows]
    most_usd = cost(pool, hours(pool, rate, rows), rows, on_demand)

    zero, unit = np.zeros(len(rows)), pool.request.billing_unit_minutes / economics.MINUTES_PER_HOUR
    once_usd = _cost_of_billed(pool, zero, rows, price)
    usd_per_hour = _cost_of_billed(pool, zero + 1, rows, price) - once_usd
    # One increment before the hours at which both cost the same, because an equal cost is not cheaper.
    most_hours = (np.ceil((most_usd - once_usd) / usd_per_hour / unit - _ROUNDING) - 1) * unit
    start = hours(pool, zero + np.inf, rows)  # at an infinite rate, only the startup is left
    return np.maximum((most_hours - start) / (hours(pool, rate, rows) - start) - 1, 0.0)


# Tolerance for comparing bills, in billing increments.
_ROUNDING = 1e-6


# --- ranks, ties and chances ----------------------------------------------------------------------------

TAIL = 0.05
"""Two offers tie if the lower-ranked one is at least as good in at least this share of the draws."""

# The top of a ranking is a tie if its P(best) is below this.
_SURE = 0.5

# Number of rows to compare with the leader at once.
_BLOCK = 64


def wins_of(scores: Floats) -> Floats:
    """Return P(best) of each row, (N,); rows that are equally best in a draw share that draw.

    Args:
        scores: (N, D) score of each row in each joint draw; larger is better.
    """
    best = scores.max(axis=0)
    rows = np.flatnonzero((scores == best).any(axis=1))
    won = scores[rows] == best
    winners, result = won.sum(axis=0), np.zeros(len(scores))
    result[rows] = [(row / winners).mean() for row in won]
    return result


def bands(scores: Floats, kinds: Sequence[int]) -> tuple[list[int], list[bool]]:
    """Return rank and tie of each row; rows are in order of merit.

    A band is a leader, the rows that tie with it, and the rows in between with the GPU of the leader or of an
    earlier tie. It ends at the last tie before the first row of another GPU that does not tie. All rows of a
    band have the same rank. ``tie`` marks those that cannot be distinguished from the leader.

    Args:
        scores: (N, D) scores; row 0 is the best by its point estimate.
        kinds: (N,) the GPU of each row.
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
        if not tied and len(set(kinds[rows.stop :]) - seen) == 0:  # only offers of the leader's GPU are left
            return tied
    return tied


IN_DETAIL = 1000
"""Number of rows with computed ties; each row below them has its own rank."""

# Assumed bound on the draws of a normal error, in standard deviations.
_FARTHEST = 7.0

CHANCES = ("p_best", "p_cheapest", "p_sensible", "p_fastest")
"""Names of the fields with a row's chances."""

# An offer behind three better ones of the same kind is almost never the best.
_FIRST_OF_KIND = 3


@dataclass(frozen=True, slots=True)
class Chances:
    """One figure per row, in the order of the rows.

    Attributes:
        p_best: P(best) by the sort order.
        p_cheapest, p_sensible, p_fastest: P(best) by the cost of the work, by the cost plus the value of the
            hours, and by time. All four are NaN if not computed: for a row that might lead, but is below the
            first ``IN_DETAIL`` rows and after three of the same kind.
    """

    ranks: list[int]
    ties: list[bool]
    p_best: Floats
    p_cheapest: Floats
    p_sensible: Floats
    p_fastest: Floats


def chances_of(pool: Candidates, order: Indices) -> Chances:
    """Return rank, tie and chances of each row; ``order`` is the result of the function ``order``.

    Rank and tie use the expected prices: a tie means that only a measurement could distinguish the speeds.
    Guesses have ranks of their own. The chances include the uncertainty of prices.
    """
    detailed = min(len(order), IN_DETAIL)
    contenders, never_best = _contenders(pool, order, detailed)
    kinds = pool.gpu[order][:detailed].tolist()
    p_best = np.where(never_best, 0.0, np.nan)

    rows = order[contenders]
    inputs = drawn_inputs(pool, rows)
    expected = _drawn_merits(pool, rows, inputs)
    fitted = int(np.count_nonzero(~is_a_guess(pool)[order[:detailed]]))
    ranks, ties = bands(expected[:fitted], kinds[:fitted])
    for rank, tie in zip(*bands(expected[fitted:detailed], kinds[fitted:]), strict=True):
        ranks.append(fitted + rank)
        ties.append(tie)
    if wins_of(expected)[0] < _SURE:
        ties[0] = True
    price = drawn_prices(pool.prices, rows, pool.request.draws, pool.request.seed)
    scores = _drawn_merits(pool, rows, inputs, price=price, out=expected)
    p_best[contenders] = wins_of(scores)
    rest = range(detailed + 1, len(order) + 1)

    def p_by(sort: str) -> Floats:
        """Return P(best) in another sort order, for the same draws of the same rows."""
        other = pool.with_request(sort=sort)
        if sorted_by(other.request) == sorted_by(pool.request):
            return p_best
        chances = p_best.copy()
        needs_new = sorted_by(pool.request) in {"throughput", "joules"}  # these have other inputs than a job
        other_inputs = drawn_inputs(other, rows) if needs_new else inputs
        chances[contenders] = wins_of(_drawn_merits(other, rows, other_inputs, price=price))
        return chances

    return Chances(
        ranks=[*ranks, *rest],
        ties=[*ties, *(False for _ in rest)],
        p_best=p_best,
        p_cheapest=p_by("cost"),
        p_sensible=p_by("value"),
        p_fastest=p_by("time"),
    )


def costs_over(pool: Candidates, cheapest: int, others: Sequence[int]) -> list[Interval]:
    """Return the costs of other rows relative to the cheapest one, with 90 % intervals from the draws."""
    by_cost = pool.with_request(sort="cost")
    rows = np.array([cheapest, *others])
    price = drawn_prices(pool.prices, rows, pool.request.draws, pool.request.seed)
    usd = -_drawn_merits(by_cost, rows, drawn_inputs(by_cost, rows), price=price)
    ratios = usd[1:] / usd[0]
    likely = merit(by_cost, pool.rate[rows], rows)
    ends = np.quantile(ratios, (TAIL, 1 - TAIL), axis=1)
    return [Interval(*each) for each in zip((likely[1:] / likely[0]).tolist(), *ends.tolist(), strict=True)]


def _contenders(pool: Candidates, order: Indices, detailed: int) -> tuple[Indices, Flags]:
    """Return the positions to draw, and which positions are never the best.

    The positions to draw are the first ``detailed`` ones, plus the first three of each kind (see
    ``Candidates.kind``) that may lead in a draw. Offers of a kind differ only in price, so the first ones are
    the cheapest. One GPU and eight are different kinds, because startup or billing increments may favor
    either.
    """
    is_detailed = np.arange(len(order)) < detailed
    if is_detailed.all():
        return np.flatnonzero(is_detailed), ~is_detailed
    of_kinds = places_by_kind(pool.kind[order]).values()
    of_first = np.isin(
        np.arange(len(order)), np.concatenate([places[:_FIRST_OF_KIND] for places in of_kinds])
    )
    sorts = (pool.request.sort, "cost", "value", "time")
    may_lead = np.logical_or.reduce([_may_lead(pool.with_request(sort=sort), order) for sort in sorts])
    return np.flatnonzero(is_detailed | (of_first & may_lead)), ~(is_detailed | may_lead)


def _may_lead(pool: Candidates, order: Indices) -> Flags:
    """Return which positions may be the best in some draw.

    It may be if its highest possible merit is at least the lowest possible merit of every row. Both bounds
    take the extremes of a GPU's drawn speeds, and ``_FARTHEST`` standard deviations of the other errors.
    """
    speeds, price = pool.speeds, pool.price[order]
    slow, fast = (ends[pool.gpu[order]] for ends in (speeds.draws.min(axis=1), speeds.draws.max(axis=1)))
    instance, vcpu_limit = (pool.count * pool.pace * pool.delivered)[order], pool.vcpu_limit[order]
    feed_error = np.exp(_FARTHEST * FEED_SIGMA)
    error = np.exp(_FARTHEST * pool.spread[order])
    move = np.exp(_FARTHEST * pool.prices.sigma[order])
    ratios = _work_expected_over_drawn(pool)
    at_best = merit(
        pool,
        np.minimum(fast * instance * error, vcpu_limit * feed_error) * ratios.max(),
        order,
        price / move,
        startup=1 / farthest_startup(pool.request.startup_factor),
    )
    at_worst = merit(
        pool,
        np.minimum(slow * instance / error, vcpu_limit / feed_error) * ratios.min(),
        order,
        price * move,
        startup=farthest_startup(pool.request.startup_factor),
    )
    return np.asarray(at_best >= at_worst.max())
