"""Deadlines and budgets, held against the unfavorable end of the interval: a promise, not a hope.

One limit is the host's: the photographs that its vCPUs decode and augment, against what its GPUs take.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from gpubench.arrays import Floats
from gpubench.errors import MisuseError
from gpubench.models import Offer
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.filters import Exclusion
from gpubench.recommend.objective import cost, cost_with_ends, hours, job_rates
from gpubench.recommend.request import RankRequest
from gpubench.units import format_number, format_usd

IMAGES_PER_VCPU_S = 150.0
"""Photographs that one vCPU augments in a second, assumed: one process of ``gpubench feed`` on a server core,
decoding not counted. That verb measures a host of one's own."""


def share_of(request: RankRequest, photographs: Collection[str]) -> float:
    """Return which share of the samples are photographs; 0 where nothing need be prepared.

    Of several workloads at their geometric mean no job is made, so that nothing need be fed.

    Args:
        request: What was asked.
        photographs: Workloads that train on decoded photographs.
    """
    names = request.workload_names
    if request.mix:
        return sum(request.mix[name] for name in names if name in photographs) / sum(request.mix.values())
    return float(len(names) == 1 and names[0] in photographs)


def fed_rate(offer: Offer, share: float) -> float:
    """Return the samples/s that the vCPUs of an instance keep up with; infinite where no limit is known.

    They must keep up with what its GPUs take while they work: of spot with what it does before any is lost.
    """
    if not share or offer.vcpus is None:
        return math.inf
    return offer.vcpus * IMAGES_PER_VCPU_S / share


def misses(request: RankRequest, pool: Candidates, photograph_share: float = 0.0) -> dict[int, Exclusion]:
    """Return the rows that may miss the deadline or the budget, each with its figures, the nearest last.

    A row stays only where even the upper end of its interval meets the limit; one without an interval is
    judged by its estimate. One whose vCPUs prepare fewer photographs than its GPUs take is judged at what
    they prepare.

    Args:
        request: What was asked.
        pool: The offers.
        photograph_share: Of the samples, which the vCPUs of a host must prepare.

    Raises:
        MisuseError: If there is no job, as where the reference GPU has no figure.
    """
    if request.deadline_hours is None and request.budget_usd is None:
        return {}
    if pool.work is None:
        raise MisuseError("a deadline or a budget needs a job, and here is none to assume: add --samples")
    rows = slice(None)
    _, _, slowest = job_rates(pool)
    slow_rate = np.where(np.isnan(slowest), pool.rate, slowest)
    fed = np.full(len(pool), np.inf)
    if photograph_share:  # else no offer need be looked at
        fed = np.array([fed_rate(offer, photograph_share) for offer in pool.offers]) * pool.delivered
    likely, slow = (hours(request, pool, np.minimum(rate, fed), rows) for rate in (pool.rate, slow_rate))
    likely_usd, _, dear_usd = cost_with_ends(request, pool, rows)
    dear_usd = np.where(np.isnan(dear_usd), likely_usd, dear_usd)
    is_hungry = fed < pool.rate
    if is_hungry.any():
        high_price = pool.price * np.exp(pool.prices.half_width)
        fed_usd, fed_dear_usd = (cost(request, pool, likely, rows, price) for price in (None, high_price))
        likely_usd = np.where(is_hungry, fed_usd, likely_usd)
        dear_usd = np.where(is_hungry, np.maximum(dear_usd, fed_dear_usd), dear_usd)
    found: dict[int, Exclusion] = {}

    def miss(row: int, option: str, reason: str) -> None:
        if is_hungry[row]:
            reason += f", at what its {pool.offers[row].vcpus:g} vCPUs prepare (assumed)"
        found.setdefault(row, Exclusion(pool.offers, row, option, reason))

    for row in _above(slow, request.deadline_hours):
        takes, if_slow, limit = (_h(each) for each in (likely[row], slow[row], request.deadline_hours))
        miss(row, "--deadline-hours", f"takes {takes}, {if_slow} if slow: above {limit}")
    for row in _above(dear_usd, request.budget_usd):
        usd, most, limit = map(format_usd, (likely_usd[row], dear_usd[row], request.budget_usd))
        miss(row, "--budget-usd", f"costs {usd}, up to {most}: above {limit}")
    return found


def meets(request: RankRequest, pool: Candidates, photograph_share: float = 0.0) -> bool:
    """Return whether all of these offers would meet the deadline, the budget and the ceiling on the price."""
    most = request.max_usd_per_hour
    return (most is None or bool((pool.price <= most).all())) and not misses(request, pool, photograph_share)


def limits_price(request: RankRequest) -> bool:
    """Return whether a price alone can make an offer miss what was asked."""
    return request.budget_usd is not None or request.max_usd_per_hour is not None


def _above(values: Floats, limit: float | None) -> list[int]:
    """Return the rows above the limit, the farthest first."""
    if limit is None:
        return []
    rows = np.flatnonzero(values > limit)
    return [int(row) for row in rows[np.argsort(-values[rows], kind="stable")]]


def _h(value: float | None) -> str:
    return f"{format_number(value)} h"
