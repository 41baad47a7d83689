"""The rows of a ranking: which positions become rows, and their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import msgspec
import numpy as np

from gpubench.arrays import Floats, Indices
from gpubench.interval import UNKNOWN_INTERVAL, Interval
from gpubench.labels import full_name
from gpubench.models import Estimate, Finding, FindingKind, Offer, ParallelMode, Pricing, Row
from gpubench.offers.dates import STALE_AFTER_DAYS, age_days
from gpubench.offers.table import offer_key
from gpubench.recommend import objective
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.chances import CHANCES
from gpubench.recommend.economics import SECONDS_PER_HOUR
from gpubench.recommend.eligible import Eligible, alike
from gpubench.recommend.factors import link_of
from gpubench.recommend.objective import (
    cost_with_ends,
    hours_with_ends,
    total_with_ends,
    value_with_ends,
)
from gpubench.recommend.prices import prices_of
from gpubench.recommend.speeds import with_fits, with_memory_of
from gpubench.recommend.tokens import token_cost
from gpubench.specs import load_specs
from gpubench.torch_builds import other_build_for

Chosen: TypeAlias = Callable[[Eligible], Indices]
"""Chooses the positions of a ranking that become rows."""

# --- places ----------------------------------------------------------------------------------------------


def best_places(found: Eligible) -> list[int]:
    """Return the first position of each GPU to rent, and of each GPU to own, in order."""
    by_kind = alike(2 * found.pool.gpu[found.order] + found.is_owned)
    return [int(places[0]) for places in by_kind.values()]


def one_a_gpu(found: Eligible) -> Sequence[int]:
    """Return the best position of each GPU to rent, and each owned machine; all positions of a sole GPU."""
    if len(found.by_gpu) == 1:
        return range(len(found))
    return sorted({*best_places(found), *owned(found).tolist()})


def owned(found: Eligible) -> Indices:
    """Return the positions of hardware to own."""
    return np.flatnonzero(found.is_owned)


def head(found: Eligible, most: int) -> Indices:
    """Return the first positions, the best of each GPU, and owned hardware.

    Up to twice as many positions of the Pareto set are added, so that enough of them follow the first ones.
    """
    undominated = np.flatnonzero(_dominators(found, np.arange(len(found))) < 0)[: 2 * most]
    first = np.arange(min(most, len(found)))
    return np.unique(np.concatenate([first, best_places(found), owned(found), undominated]))


# --- rows ------------------------------------------------------------------------------------------------


def rows_of(found: Eligible, places: Iterable[int] | Indices) -> tuple[Row, ...]:
    """Return the rows at these positions."""
    chosen = np.fromiter(places, np.int64)
    columns = _static_columns(found, chosen) | _figures(found, chosen) | _pareto(found, chosen)
    names = tuple(columns)
    rows = (Row(**dict(zip(names, values, strict=True))) for values in zip(*columns.values(), strict=True))
    costs = ((row, token_cost(row)) for row in rows)
    return tuple(
        row if usd is None else msgspec.structs.replace(row, usd_per_million_tokens=usd.value)
        for row, usd in costs
    )


def _static_columns(found: Eligible, chosen: Indices) -> dict[str, Sequence[Any]]:
    """Return the fields of rows that need no arithmetic: the offer, its GPU, the age of its price."""
    pool, today = found.pool, found.filtered.market.today
    offers = [_noted(found, found.offers[place]) for place in chosen.tolist()]
    rows = found.order[chosen].tolist()
    ages_of = {day: age_days(day, today) for day in {offer.price_date for offer in offers}}
    ages = [ages_of[offer.price_date] for offer in offers]
    estimates = cache(partial(_estimates, pool))
    kinds = zip(pool.gpu[rows].tolist(), pool.machine[rows].tolist(), strict=True)
    both = [estimates(gpu, machine) for gpu, machine in kinds]
    scalings = [pool.scaling(row) for row in rows]
    limits = zip(pool.gpus_rate[rows].tolist(), pool.vcpu_limit[rows].tolist(), strict=True)
    return {
        "offer": offers,
        "estimate": [estimate for estimate, _ in both],
        "parts": [parts for _, parts in both],
        "link": [_link(offer.gpu_key) for offer in offers],
        "price_age_days": ages,
        "scaling_efficiency": [scaling.efficiency for scaling in scalings],
        "scaling_basis": [scaling.basis for scaling in scalings],
        "parallel_mode": [scaling.mode for scaling in scalings],
        "spot_break_even": _spot_break_even(found, offers, rows),
        "findings": [
            estimate.findings
            + _stale(age)
            + _feed_bound(offer.vcpus, takes, vcpu_limit)
            + _torch_build(offer.gpu_key)
            for (estimate, _), offer, age, (takes, vcpu_limit) in zip(both, offers, ages, limits, strict=True)
        ],
    }


def _noted(found: Eligible, offer: Offer) -> Offer:
    """Return an offer whose note begins with the doubt about its price."""
    doubt = found.filtered.doubts.get(offer_key(offer)) if found.filtered.doubts else None
    if doubt is None:
        return offer
    note = f"price {doubt}"
    return msgspec.structs.replace(offer, note=f"{note}; {offer.note}" if offer.note else note)


def _estimates(pool: Candidates, gpu: int, machine: int) -> tuple[Estimate, tuple[Estimate, ...]]:
    """Return the estimate of a machine and its parts, with the memory of each GPU in the job."""
    speeds, scaling = pool.speeds, pool.scalings[machine]
    parts = with_fits(speeds.parts[gpu], scaling.fits, sharded=scaling.mode is ParallelMode.FSDP)
    estimate = speeds.estimates[gpu]
    if parts is not speeds.parts[gpu]:
        estimate = with_memory_of(estimate, parts)
    return estimate, parts if len(parts) > 1 else ()


@cache
def _link(gpu_key: str) -> str | None:
    spec = load_specs().get(gpu_key)
    return None if spec is None else link_of(spec)


def _feed_bound(vcpus: float | None, takes: float, vcpu_limit: float) -> tuple[Finding, ...]:
    bound = None if vcpus is None or takes <= vcpu_limit else vcpus * takes / vcpu_limit
    return () if bound is None else (Finding(kind=FindingKind.FEED_BOUND, value=bound, limit=vcpus),)


@cache
def _stale(age_days: int) -> tuple[Finding, ...]:
    stale = Finding(kind=FindingKind.STALE_PRICE, value=age_days, limit=STALE_AFTER_DAYS)
    return (stale,) if age_days > STALE_AFTER_DAYS else ()


@cache
def _torch_build(gpu_key: str) -> tuple[Finding, ...]:
    spec = load_specs().get(gpu_key)
    build = None if spec is None else other_build_for(spec.compute_capability)
    return () if build is None else (Finding(kind=FindingKind.NEEDS_TORCH_BUILD, value=str(build)),)


def _spot_break_even(found: Eligible, offers: Sequence[Offer], rows: Sequence[int]) -> list[float | None]:
    """Return the share of work that may be lost before on demand is as cheap; None if it is not spot."""
    shares: list[float | None] = [None] * len(rows)
    spots = [at for at, offer in enumerate(offers) if offer.pricing is Pricing.SPOT]
    if not spots:
        return shares
    possible = found.filtered.possible
    rivals = possible.where(possible.pricing.equals(Pricing.ON_DEMAND))
    usd_per_hour = prices_of(rivals, found.filtered.market).expected.tolist()
    on_demand = dict(zip(map(_machine, rivals), usd_per_hour, strict=True))
    known = {at: usd for at in spots if (usd := on_demand.get(_machine(offers[at]))) is not None}
    if known:
        asked = np.array(rows)[list(known)], np.array(list(known.values()))
        turns = objective.spot_break_even(found.request, found.pool, *asked).tolist()
        for at, share in zip(known, turns, strict=True):
            shares[at] = share
    return shares


def _machine(offer: Offer) -> tuple[str, str, str | None]:
    return offer.provider, offer.instance, offer.region


def _figures(found: Eligible, chosen: Indices) -> dict[str, Sequence[Any]]:
    request, pool, chances, rows = found.request, found.pool, found.chances, found.order[chosen]
    price, price_factor = pool.price[rows], np.exp(pool.prices.half_width[rows])
    rates = pool.rate[rows], pool.rate_low[rows], pool.rate_high[rows]
    row = pool.speeds.row_of_one(request.reference_gpu)
    reference = math.nan if row is None else float(pool.speeds.samples_per_s[row])
    score = rates[0] / reference, pool.ratio_low[rows] / reference, pool.ratio_high[rows] / reference
    per_usd = value_with_ends(pool, rows, score)
    job = {}
    if pool.work is not None:
        job["hours"] = _intervals(*hours_with_ends(request, pool, rows))
        job["cost_usd"] = _intervals(*cost_with_ends(request, pool, rows))
        job["total_usd"] = _intervals(*total_with_ends(request, pool, rows))
    return {
        "rank": [chances.ranks[place] for place in chosen.tolist()],
        "tie": [chances.ties[place] for place in chosen.tolist()],
        **{name: _none_for_nan(getattr(chances, name)[chosen]) for name in CHANCES},
        "usd_per_hour": _intervals(price, price / price_factor, price * price_factor),
        "samples_per_s": _intervals(*rates),
        "gpus_samples_per_s": pool.gpus_rate[rows].tolist(),
        "samples_per_usd": _intervals(*value_with_ends(pool, rows, rates)),
        "score": _intervals(*score),
        "reference_hours_per_usd": _intervals(*(each / SECONDS_PER_HOUR for each in per_usd)),
        **job,
    }


def _intervals(likely: Floats, low: Floats, high: Floats) -> list[Interval]:
    figures = map(_none_for_nan, (likely, low, high))
    return [
        UNKNOWN_INTERVAL if value is None else Interval(value, *ends)
        for value, *ends in zip(*figures, strict=True)
    ]


def _none_for_nan(values: Floats) -> list[float | None]:
    plain: list[float] = values.tolist()
    if np.isnan(values).any():
        return [None if math.isnan(value) else value for value in plain]
    return list[float | None](plain)


# --- what dominates what ---------------------------------------------------------------------------------

_FASTER, _CHEAPER, _LARGER = 1, 2, 4
_ADVANTAGES = {
    1: "faster, at no higher cost",
    2: "cheaper{work}, and as fast",
    3: "faster, and cheaper{work}",
    4: "more memory, as fast, at no higher cost",
    5: "faster and more memory, at no higher cost",
    6: "cheaper{work}, more memory, and as fast",
    7: "faster, cheaper{work}, and more memory",
}
_AT_ONCE = 64


def _pareto(found: Eligible, chosen: Indices) -> dict[str, Sequence[Any]]:
    """Return whether nothing beats a row in time, cost and memory at once, and what does."""
    (time, money), memory = found.time_and_cost, _memory(found)
    by = _dominators(found, chosen)
    better = (
        (time[by] < time[chosen]) * _FASTER
        + (money[by] < money[chosen]) * _CHEAPER
        + (memory[by] > memory[chosen]) * _LARGER
    )
    work = " per sample" if found.pool.work is None else ""
    reasons = [
        None if rival < 0 else f"{full_name(found.offers[rival])}: {_ADVANTAGES[kind].format(work=work)}"
        for rival, kind in zip(by.tolist(), better.tolist(), strict=True)
    ]
    return {"pareto": (by < 0).tolist(), "dominated_by": reasons}


def _memory(found: Eligible) -> Floats:
    return np.nan_to_num(found.pool.memory[found.order], nan=0.0)


def _dominators(found: Eligible, places: Indices) -> Indices:
    return dominators(*found.time_and_cost, _memory(found), found.pool.kind[found.order], places)


def dominators(time: Floats, cost: Floats, memory: Floats, kinds: Indices, rows: Indices) -> Indices:
    """Return, for each of these rows, a row that dominates it, or -1 if it is in the Pareto set.

    A row dominates another if it is no worse in time, cost and memory, and better in at least one. Of several
    dominating rows the cheapest is returned, and of equally cheap ones the fastest. Rows equal in all three
    do not dominate each other.

    Args:
        time: (N,) time to train; less is better.
        cost: (N,) cost to train; less is better.
        memory: (N,) memory of one GPU; more is better. NaN means unknown and counts as zero.
        kinds: (N,) rows of one kind have equal time and memory, so only the cheapest of them is compared.
        rows: (M,) the rows to examine.
    """
    memory = np.nan_to_num(memory, nan=0.0)
    by_cost = np.argsort(cost, kind="stable")
    cheapest = by_cost[np.unique(kinds[by_cost], return_index=True)[1]]
    able = cheapest[np.lexsort((cheapest, -memory[cheapest], time[cheapest], cost[cheapest]))]
    result = np.full(len(rows), -1, dtype=np.int64)
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE, None]
        no_worse = (time[able] <= time[part]) & (cost[able] <= cost[part]) & (memory[able] >= memory[part])
        same = (time[able] == time[part]) & (cost[able] == cost[part]) & (memory[able] == memory[part])
        beats = no_worse & ~same
        first = able[beats.argmax(axis=1)]
        result[start : start + _AT_ONCE] = np.where(beats.any(axis=1), first, -1)
    return result
