"""Deadlines and budgets, held against the unfavorable end of the interval: a promise, not a hope."""

from __future__ import annotations

import numpy as np

from gpubench.arrays import Floats
from gpubench.errors import MisuseError
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.filters import Exclusion
from gpubench.recommend.objective import cost_with_ends, hours, job_rates
from gpubench.recommend.request import RankRequest
from gpubench.units import format_number, format_usd


def misses(request: RankRequest, pool: Candidates) -> dict[int, Exclusion]:
    """Return the rows that may miss the deadline or the budget, each with its figures, the nearest last.

    A row stays only where even the upper end of its interval meets the limit; one without an interval is
    judged by its estimate.

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
    likely, slow = (hours(request, pool, rate, rows) for rate in (pool.rate, slow_rate))
    likely_usd, _, dear_usd = cost_with_ends(request, pool, rows)
    dear_usd = np.where(np.isnan(dear_usd), likely_usd, dear_usd)
    is_hungry = pool.is_hungry
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


def meets(request: RankRequest, pool: Candidates) -> bool:
    """Return whether all of these offers would meet the deadline, the budget and the ceiling on the price."""
    most = request.max_usd_per_hour
    return (most is None or bool((pool.price <= most).all())) and not misses(request, pool)


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
