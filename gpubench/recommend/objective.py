"""The objective by which a ranking is sorted.

For a job it is the cost plus the worth of its hours, or either one, including spot losses, startup, billing
increments, storage, egress and tax. Without a job (``relative``) it is samples per dollar, or throughput.
Rows, P(best), ties, deadlines, the Pareto set and the verdict all use this module, so that they are
consistent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import SortedBy
from gpubench.recommend import economics
from gpubench.recommend.candidates import Candidates, drawn_rates, startup_factors
from gpubench.recommend.prices import DrawnPrices
from gpubench.recommend.request import RankRequest

_AT_ONCE = 16
"""Number of rows to compute together, so that intermediate results stay in the processor's cache."""

ALIKE = 0.02
"""Two jobs count as equally long if their hours differ by less than this share; an hour between them then has
no price."""

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
    "joules": "energy of a sample",
}


def sorted_by(request: RankRequest) -> SortedBy:
    """Return the sort criterion; for a job, "value" is the cost plus the worth of its hours."""
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
    request: RankRequest,
    pool: Candidates,
    rate: Floats,
    rows: Indices | slice,
    price: Floats | None = None,
    *,
    startup: Floats | float = 1.0,
) -> Floats:
    """Return the sort criterion at a rate of the instance: larger is better; shape of ``rate``.

    Args:
        request: What was asked.
        pool: The offers.
        rate: (N,) or (N, D) of these rows.
        rows: Which rows.
        price: Of the shape of ``rate`` [USD/h]; None takes the expected ones.
        startup: As ``hours`` has it.
    """
    return _at_price(request, pool, _before_price(request, pool, rate, rows, startup), rows, price)


def _before_price(
    request: RankRequest, pool: Candidates, rate: Floats, rows: Indices | slice, startup: Floats | float
) -> Floats:
    """Return the inputs of a merit except the price, which are equal for all offers of one machine.

    For a job they are two values on the last axis: the billed hours, and the hours.
    """
    if sorted_by(request) in {"throughput", "value"}:
        return rate
    if sorted_by(request) == "joules":
        return rate / _beside(pool.watts[rows], rate)
    job_hours = hours(request, pool, rate, rows, startup)
    return np.stack((billed(request, pool, job_hours, rows), job_hours), axis=-1)


def _at_price(
    request: RankRequest, pool: Candidates, known: Floats, rows: Indices | slice, price: Floats | None
) -> Floats:
    by = sorted_by(request)
    if by in {"throughput", "joules"}:
        return known
    if by == "value":
        return economics.samples_per_usd(known, _beside(pool.price[rows], known) if price is None else price)
    job_hours = known[..., 1]
    if by == "time":
        return -job_hours
    usd = cost_of_billed(request, pool, known[..., 0], rows, price)
    return -(usd if by == "cost" else usd + request.hour_worth_usd * job_hours)


class Drawn(NamedTuple):
    """The inputs of the merits of N rows except prices, in every joint draw.

    Attributes:
        known: (M, D), or (M, D, 2) for a job, for each machine among the rows: see ``_before_price``.
        which: (N,) the machine of each row.
    """

    known: Floats
    which: Indices


def drawn(request: RankRequest, pool: Candidates, rows: Indices) -> Drawn:
    """Draw the inputs of the merits of these rows."""
    columns = (
        pool.gpu,
        pool.count,
        pool.pace,
        pool.delivered,
        pool.spread,
        pool.certain,
        pool.vcpu_limit,
        pool.is_owned,
    )
    kinds = np.stack(
        [column[rows] for column in columns], axis=1
    )  # everything that distinguishes rows except the price
    _, first, which = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    machines = rows[first]
    rate = drawn_job_rates(request, pool, machines)
    startup = startup_factors(request, pool, machines)
    return Drawn(_before_price(request, pool, rate, machines, startup), which.reshape(-1))


def drawn_merits(
    request: RankRequest,
    pool: Candidates,
    rows: Indices,
    of: Drawn,
    *,
    price: DrawnPrices | None = None,
    out: Floats | None = None,
) -> Floats:
    """Return the (N, D) merit of these rows in every joint draw.

    Args:
        request: What was asked.
        pool: The offers.
        rows: Which of them.
        of: The drawn inputs of the same rows.
        price: For the same rows; None takes the expected prices as certain.
        out: Array for the result: allocating millions of figures costs more than computing them.
    """
    merits = np.empty((len(rows), request.draws)) if out is None else out
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        at = None if price is None else price.of(part)
        merits[part] = _at_price(request, pool, of.known[of.which[part]], rows[part], at)
    return merits


def drawn_job_rates(request: RankRequest, pool: Candidates, rows: Indices) -> Floats:
    """Return the (N, D) rate of these rows at which the likely work takes its time in every joint draw.

    For a job in hours of a reference GPU the work is drawn too: only the ratio of the speeds counts.
    """
    rate = drawn_rates(request, pool, rows)
    work = pool.work
    if work is not None and work.drawn is not None:
        rate *= work.samples / work.drawn
    return rate


def order(request: RankRequest, pool: Candidates) -> Indices:
    """Return the rows, best first, by their point estimates, with guesses outside the fit after all others.

    If two jobs cost the same because of billing increments, the faster comes first. Further ties are broken
    by price, then by name, so the order of the input does not matter.
    """
    return np.lexsort(_sort_keys(request, pool))


def first(request: RankRequest, pool: Candidates, among: Flags | slice = slice(None)) -> int:
    """Return the row that ``order`` would put first, without sorting."""
    rows = np.arange(len(pool))[among]
    for key in reversed(_sort_keys(request, pool)):
        of_rows = key[rows]
        rows = rows[of_rows == of_rows.min()]
    return int(rows[0])


def _sort_keys(request: RankRequest, pool: Candidates) -> tuple[NDArray[Any], ...]:
    # Return the sort keys of rows, the last one the most significant.
    every = slice(None)
    return (
        pool.offers.by_name,
        pool.price,
        _tie_break(request, pool, pool.rate, every, pool.price),
        -merit(request, pool, pool.rate, every),
        is_a_guess(pool),
    )


def is_a_guess(pool: Candidates) -> Flags:
    """Return for which rows the GPU is outside the fit."""
    return np.array([each.is_extrapolated for each in pool.speeds.estimates], dtype=bool)[pool.gpu]


def time_and_cost(request: RankRequest, pool: Candidates, rows: Indices | slice) -> tuple[Floats, Floats]:
    """Return the axes of the Pareto set other than memory, for the job or, without a job, for one sample."""
    rate = pool.rate[rows]
    if pool.work is None:
        return 1 / rate, 1 / economics.samples_per_usd(rate, pool.price[rows])
    job_hours = hours(request, pool, rate, rows)
    return job_hours, cost(request, pool, job_hours, rows)


def job_rates(pool: Candidates) -> tuple[Floats, Floats, Floats]:
    """Return the rates for the expected, shortest and longest time of a job.

    For work in hours of a reference GPU, only the ratio to that GPU matters.
    """
    if pool.work is not None and pool.work.reference is not None:
        return pool.rate, pool.ratio_high, pool.ratio_low
    return pool.rate, pool.rate_high, pool.rate_low


def hours_with_ends(
    request: RankRequest, pool: Candidates, rows: Indices | slice
) -> tuple[Floats, Floats, Floats]:
    """Return the expected hours until the job is done, with a 90 % interval; unknown is NaN."""
    likely, fast, slow = (hours(request, pool, rate[rows], rows) for rate in job_rates(pool))
    return likely, *ends_of(likely, (fast, slow), _hours_by_start(request, pool, rows))


def _hours_by_start(request: RankRequest, pool: Candidates, rows: Indices | slice) -> tuple[Floats, Floats]:
    # Return the hours with a short and a long startup, all else as expected.
    rate, factor = pool.rate[rows], request.startup_factor
    return hours(request, pool, rate, rows, 1 / factor), hours(request, pool, rate, rows, factor)


def hours(
    request: RankRequest, pool: Candidates, rate: Floats, rows: Indices | slice, startup: Floats | float = 1.0
) -> Floats:
    """Return the hours until the job is done, at a rate of the instance; shape of ``rate``.

    One job over all GPUs has the full rate, as do the streams of inference; independent jobs have one GPU
    each. Owned hardware needs no startup; the losses of a spot instance are already in its rate. ``startup``
    is the factor on the assumed startup time, a scalar or with the shape of ``rate``.
    """
    assert pool.work is not None  # hours require a job; without one, offers are sorted by value
    if not request.shares_work:
        rate = rate / _beside(pool.count[rows], rate)
    work = economics.train_hours(pool.work.samples, rate)
    start = np.where(pool.is_owned[rows], 0.0, request.rented_startup_minutes / economics.MINUTES_PER_HOUR)
    return np.asarray(work + _beside(start, rate) * startup)


def cost(
    request: RankRequest,
    pool: Candidates,
    job_hours: Floats,
    rows: Indices | slice,
    price: Floats | None = None,
) -> Floats:
    """Return what one job costs [USD]; independent jobs share the instance's price.

    ``price`` of the instance has the shape of ``job_hours``; None takes the expected prices.
    """
    return cost_of_billed(request, pool, billed(request, pool, job_hours, rows), rows, price)


def billed(request: RankRequest, pool: Candidates, job_hours: Floats, rows: Indices | slice) -> Floats:
    """Return the billed hours, rounded up to billing increments; shape of ``job_hours``."""
    unit = request.billing_unit_minutes / economics.MINUTES_PER_HOUR
    units = np.where(pool.is_owned[rows], economics.SECOND_IN_HOURS, unit)
    return economics.billed_hours(job_hours, _beside(units, job_hours))


def cost_of_billed(
    request: RankRequest,
    pool: Candidates,
    billed_hours: Floats,
    rows: Indices | slice,
    price: Floats | None = None,
) -> Floats:
    """Return the cost of this many billed hours [USD]; otherwise as ``cost``."""
    if price is None:
        price = _beside(pool.price[rows], billed_hours)
    if not request.shares_work:
        price = price / _beside(pool.count[rows], billed_hours)
    rented = _beside(np.where(pool.is_owned[rows], 0.0, 1.0), billed_hours)  # the user already owns the disk
    storage, egress = request.storage_usd_per_month * rented, request.egress_usd * rented
    return np.asarray(economics.job_cost(billed_hours, price, storage, egress, request.tax))


def cost_with_ends(
    request: RankRequest, pool: Candidates, rows: Indices | slice
) -> tuple[Floats, Floats, Floats]:
    """Return the expected cost of one job with a 90 % interval [USD]; unknown ends are NaN."""
    return total_with_ends(msgspec.structs.replace(request, hour_worth_usd=0.0), pool, rows)


def total_with_ends(
    request: RankRequest, pool: Candidates, rows: Indices | slice
) -> tuple[Floats, Floats, Floats]:
    """Return the same for the cost plus the worth of the hours.

    Throughput, startup and price have independent errors, so their widths add in quadrature on a log scale.
    Fixed costs, such as egress, are certain and shift both ends equally.
    """
    likely_hours, fast, slow = (hours(request, pool, rate[rows], rows) for rate in job_rates(pool))

    def total(job_hours: Floats, price: Floats | None = None) -> Floats:
        return cost(request, pool, job_hours, rows, price) + request.hour_worth_usd * job_hours

    likely, at_fast, at_slow = (total(each) for each in (likely_hours, fast, slow))
    at_short, at_long = (total(each) for each in _hours_by_start(request, pool, rows))
    factor = np.exp(pool.prices.half_width[rows])
    cheap, dear = (total(likely_hours, pool.price[rows] * each) for each in (1 / factor, factor))
    none = np.zeros_like(likely)
    certain = cost(request, pool, none, rows, none)
    sources = (at_fast, at_slow), (at_short, at_long), (cheap, dear)
    low, high = ends_of(likely - certain, *((low - certain, high - certain) for low, high in sources))
    return likely, certain + low, certain + high


def value_with_ends(
    pool: Candidates, rows: Indices | slice, rates: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return the samples per dollar with an interval, from the expected, low and high rates of these rows."""
    price = pool.price[rows]
    likely, low, high = (economics.samples_per_usd(rate, price) for rate in rates)
    factor = np.exp(pool.prices.half_width[rows])
    return likely, *ends_of(likely, (low, high), (likely / factor, likely * factor))


def ends_of(likely: Floats, *ends: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Return the combined low and high end of a figure from the ends for each source of error."""
    free = likely == 0  # a cost of zero stays zero at any price
    base = np.where(free, 1.0, likely)
    down, up = (
        np.sqrt(sum(np.log(np.where(free, 1.0, each[side]) / base) ** 2 for each in ends)) for side in (0, 1)
    )
    return likely * np.exp(-down), likely * np.exp(up)


def _tie_break(
    request: RankRequest, pool: Candidates, rate: Floats, rows: Indices | slice, price: Floats
) -> Floats:
    """Return the tie-breaker for equal merit (less is better): the job's other figure, else the price."""
    by = sorted_by(request)
    if by in {"value", "throughput", "joules"}:
        return price
    job_hours = hours(request, pool, rate, rows)
    return cost(request, pool, job_hours, rows, price) if by == "time" else job_hours


def _beside(column: Floats, like: Floats) -> Floats:
    return column[:, None] if like.ndim == 2 else column


def spot_break_even(request: RankRequest, pool: Candidates, rows: Indices, on_demand: Floats) -> Floats:
    """Return the share of lost work at which spot stops being cheaper; 0 if it never is.

    One-time costs (egress, startup) are not paid again for lost work, so the ratio of the two prices suffices
    only without a job. A bill is linear in its hours.

    Args:
        request: The request.
        pool: The offers.
        rows: Rows of spot instances.
        on_demand: The expected on-demand prices of the same machines [USD/h].
    """
    price = pool.price[rows]
    if pool.work is None:
        return np.asarray(np.maximum(on_demand / price - 1, 0.0))
    rate = pool.rate[rows] / pool.delivered[rows]
    most = cost(request, pool, hours(request, pool, rate, rows), rows, on_demand)

    none, unit = np.zeros(len(rows)), request.billing_unit_minutes / economics.MINUTES_PER_HOUR
    once = cost_of_billed(request, pool, none, rows, price)
    of_an_hour = cost_of_billed(request, pool, none + 1, rows, price) - once
    most_hours = (
        np.ceil((most - once) / of_an_hour / unit - _ROUNDING) - 1
    ) * unit  # equally expensive is not cheaper
    start = hours(request, pool, none + np.inf, rows)
    return np.maximum((most_hours - start) / (hours(request, pool, rate, rows) - start) - 1, 0.0)


_ROUNDING = 1e-6
"""Tolerance of a bill's figures, in its units."""
