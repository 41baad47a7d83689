"""The rows of a ranking: which positions become rows, their figures, and which rows are the answers.

A choice is a row plus everything that a buyer should know before paying.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import numpy as np

from gpubench.arrays import Floats, Indices
from gpubench.groups import first_of_each
from gpubench.interval import UNKNOWN_INTERVAL, Interval
from gpubench.labels import full_name
from gpubench.models import (
    Choice,
    Elsewhere,
    Estimate,
    Finding,
    FindingKind,
    Offer,
    ParallelMode,
    PriceCondition,
    Pricing,
    Row,
)
from gpubench.names import counted
from gpubench.offers.dates import STALE_AFTER_DAYS, age_days
from gpubench.offers.table import places_by_kind
from gpubench.recommend import objective
from gpubench.recommend.candidates import IMAGES_PER_VCPU_S, Candidates, lost_share
from gpubench.recommend.economics import SECONDS_PER_HOUR, delivered_share, prices_of, token_cost
from gpubench.recommend.eligible import Eligible
from gpubench.recommend.factors import link_of, unsaid
from gpubench.recommend.filters import meant_by
from gpubench.recommend.speeds import with_fits, with_memory_of
from gpubench.specs import load_specs
from gpubench.torch_builds import other_build_for

Chosen: TypeAlias = Callable[[Eligible], Indices]
"""Chooses the positions of a ranking that become rows."""

_machine_key: Callable[[Offer], tuple[str, str, str | None]] = attrgetter("provider", "instance", "region")

# --- places ---------------------------------------------------------------------------------------------


def best_places(found: Eligible) -> list[int]:
    """Return the first position of each GPU to rent, and of each GPU to own, in order."""
    by_kind = places_by_kind(2 * found.pool.gpu[found.order] + found.is_owned)
    return [int(places[0]) for places in by_kind.values()]


def one_a_gpu(found: Eligible) -> Sequence[int]:
    """Return the best position of each GPU to rent, and each machine to own.

    If only one GPU is left, return all positions.
    """
    if len(found.by_gpu) == 1:
        return range(len(found))
    return sorted({*best_places(found), *owned(found).tolist()})


def owned(found: Eligible) -> Indices:
    """Return the positions of hardware to own."""
    return np.flatnonzero(found.is_owned)


def head(found: Eligible, most: int) -> Indices:
    """Return the first positions, the best of each GPU, and hardware to own.

    Up to ``2 * most`` positions of the Pareto set are added, so that enough are left beyond the first ones.
    """
    undominated = np.flatnonzero(_dominators(found, np.arange(len(found))) < 0)[: 2 * most]
    first = np.arange(min(most, len(found)))
    return np.unique(np.concatenate([first, best_places(found), owned(found), undominated]))


# --- rows -----------------------------------------------------------------------------------------------


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
    # Return the fields of rows that are not figures of the job: the offer, its GPU, its findings.
    pool, today = found.pool, found.filtered.market.today
    offers = [_noted(found, found.offers[place]) for place in chosen.tolist()]
    rows = found.order[chosen].tolist()
    ages_of = {day: age_days(day, today) for day in {offer.price_date for offer in offers}}
    ages = [ages_of[offer.price_date] for offer in offers]
    estimates = cache(partial(_estimates, pool))
    kinds = zip(pool.gpu[rows].tolist(), pool.machine[rows].tolist(), strict=True)
    estimates_and_parts = [estimates(gpu, machine) for gpu, machine in kinds]
    scalings = [pool.scalings[machine] for machine in pool.machine[rows].tolist()]
    limits = zip(pool.gpus_rate[rows].tolist(), pool.vcpu_limit[rows].tolist(), strict=True)
    return {
        "offer": offers,
        "estimate": [estimate for estimate, _ in estimates_and_parts],
        "parts": [parts for _, parts in estimates_and_parts],
        "link": [_link(offer.gpu_key) for offer in offers],
        "price_age_days": ages,
        "scaling_efficiency": [scaling.efficiency for scaling in scalings],
        "scaling_basis": [scaling.basis for scaling in scalings],
        "parallel_mode": [scaling.mode for scaling in scalings],
        "spot_break_even": _spot_break_even(found, offers, rows),
        "findings": [
            estimate.findings
            + _stale(age)
            + _feed_bound(offer.vcpus, gpus_rate, vcpu_limit)
            + _torch_build(offer.gpu_key)
            for (estimate, _), offer, age, (gpus_rate, vcpu_limit) in zip(
                estimates_and_parts, offers, ages, limits, strict=True
            )
        ],
    }


def _noted(found: Eligible, offer: Offer) -> Offer:
    # Return an offer that mentions any doubt about its price at the start of its note.
    doubt = found.filtered.asked_prices.doubt_in_short(offer) if len(found.filtered.accepted) else None
    if doubt is None:
        return offer
    note = f"price {doubt}"
    return msgspec.structs.replace(offer, note=f"{note}; {offer.note}" if offer.note else note)


def _estimates(pool: Candidates, gpu: int, machine: int) -> tuple[Estimate, tuple[Estimate, ...]]:
    # Return a machine's estimate and the estimates it combines, with the memory that the job takes per GPU.
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


def _feed_bound(vcpus: float | None, gpus_rate: float, vcpu_limit: float) -> tuple[Finding, ...]:
    needed = None if vcpus is None or gpus_rate <= vcpu_limit else vcpus * gpus_rate / vcpu_limit
    return () if needed is None else (Finding(kind=FindingKind.FEED_BOUND, value=needed, limit=vcpus),)


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
    # Return the share of lost work at which spot costs as much as on demand; None for other pricings, and for
    # machines without an on-demand price.
    spots = [at for at, offer in enumerate(offers) if offer.pricing is Pricing.SPOT]
    if not spots:
        return [None] * len(rows)
    possible = found.filtered.possible
    rivals = possible.where(possible.pricing.equals(Pricing.ON_DEMAND))
    usd_per_hour = prices_of(rivals, found.filtered.market).expected.tolist()
    on_demand = dict(zip(map(_machine_key, rivals), usd_per_hour, strict=True))
    known = {at: usd for at in spots if (usd := on_demand.get(_machine_key(offers[at]))) is not None}
    of_spots = np.array(rows)[list(known)], np.array(list(known.values()))
    shares = dict(zip(known, objective.spot_break_even(found.pool, *of_spots).tolist(), strict=True))
    return [shares.get(at) for at in range(len(rows))]


def _figures(found: Eligible, chosen: Indices) -> dict[str, Sequence[Any]]:
    request, pool, chances, rows = found.request, found.pool, found.chances, found.order[chosen]
    price, price_factor = pool.price[rows], np.exp(pool.prices.half_width[rows])
    rates = pool.rate[rows], pool.rate_low[rows], pool.rate_high[rows]
    reference_row = pool.speeds.row_of_one(request.reference_gpu)
    reference = math.nan if reference_row is None else float(pool.speeds.samples_per_s[reference_row])
    score = rates[0] / reference, pool.ratio_low[rows] / reference, pool.ratio_high[rows] / reference
    per_usd = objective.value_with_ends(pool, rows, score)
    job = {}
    if pool.work is not None:
        job["hours"] = _intervals(*objective.hours_with_ends(pool, rows))
        job["cost_usd"] = _intervals(*objective.cost_with_ends(pool, rows))
        job["total_usd"] = _intervals(*objective.total_with_ends(pool, rows))
    return {
        "rank": [chances.ranks[place] for place in chosen.tolist()],
        "tie": [chances.ties[place] for place in chosen.tolist()],
        **{name: _none_for_nan(getattr(chances, name)[chosen]) for name in objective.CHANCES},
        "usd_per_hour": _intervals(price, price / price_factor, price * price_factor),
        "samples_per_s": _intervals(*rates),
        "gpus_samples_per_s": pool.gpus_rate[rows].tolist(),
        "samples_per_usd": _intervals(*objective.value_with_ends(pool, rows, rates)),
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


# --- dominated rows -------------------------------------------------------------------------------------

_FASTER, _CHEAPER, _LARGER = 1, 2, 4
# The texts by the sum of these flags.
_ADVANTAGES = {
    1: "faster, at no higher cost",
    2: "cheaper{work}, and as fast",
    3: "faster, and cheaper{work}",
    4: "more memory, as fast, at no higher cost",
    5: "faster and more memory, at no higher cost",
    6: "cheaper{work}, more memory, and as fast",
    7: "faster, cheaper{work}, and more memory",
}
# Number of rows to examine at once.
_AT_ONCE = 64


def _pareto(found: Eligible, chosen: Indices) -> dict[str, Sequence[Any]]:
    # Return for each row whether it is in the Pareto set of time, cost and memory, and what dominates it.
    (time, money), memory = found.time_and_cost, np.nan_to_num(found.pool.memory[found.order], nan=0.0)
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


def _dominators(found: Eligible, places: Indices) -> Indices:
    memory, kinds = found.pool.memory[found.order], found.pool.kind[found.order]
    return dominators(*found.time_and_cost, memory, kinds, places)


def dominators(time: Floats, cost: Floats, memory: Floats, kinds: Indices, rows: Indices) -> Indices:
    """Return for each of these rows a row that dominates it, or -1 if it is in the Pareto set.

    A row dominates another if it is no worse in time, cost and memory, and better in at least one. If several
    rows dominate one, the cheapest of them is returned, or the fastest of equally cheap ones. Rows equal in
    all three do not dominate each other.

    Args:
        time: (N,) time to train; less is better.
        cost: (N,) cost to train; less is better.
        memory: (N,) memory of one GPU; more is better. NaN means unknown and counts as zero.
        kinds: (N,) kind of each row. Rows of one kind have equal time and memory, so only the cheapest of
            them can dominate a row.
        rows: (M,) the rows to examine.
    """
    memory = np.nan_to_num(memory, nan=0.0)
    by_cost = np.argsort(cost, kind="stable")
    cheapest = by_cost[np.unique(kinds[by_cost], return_index=True)[1]]
    rivals = cheapest[np.lexsort((cheapest, -memory[cheapest], time[cheapest], cost[cheapest]))]
    result = np.full(len(rows), -1, dtype=np.int64)
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE, None]
        no_worse = (
            (time[rivals] <= time[part]) & (cost[rivals] <= cost[part]) & (memory[rivals] >= memory[part])
        )
        same = (time[rivals] == time[part]) & (cost[rivals] == cost[part]) & (memory[rivals] == memory[part])
        beats = no_worse & ~same
        first = rivals[beats.argmax(axis=1)]
        result[start : start + _AT_ONCE] = np.where(beats.any(axis=1), first, -1)
    return result


# --- choices --------------------------------------------------------------------------------------------

# Clouds where new accounts have a quota of zero GPUs, according to their documentation of quotas and
# service limits; the quotas of other clouds are unknown.
_QUOTA_PROVIDERS = frozenset({"aws", "azure", "gcp", "oci"})

MOST_NAMED = 4
"""Maximum number of named GPUs that each get a line; if more are named, only the table shows them."""

# Maximum number of other providers listed with the best offer of a GPU.
_MOST_ELSEWHERE = 2


def choice_of(found: Eligible, row: Row, among: Eligible) -> Choice:
    """Return a row with everything else known about its offer.

    Args:
        found: The offers that can do the job.
        row: One of its rows, or a row shown next to the ranking.
        among: Where to look for other offers of the same GPU.
    """
    offer, filtered, market = row.offer, found.filtered, found.filtered.market
    machine = filtered.machines.get(offer)
    same = among.by_gpu.get(offer.gpu_key, np.empty(0, dtype=np.int64))
    there = among.offers.take(same)
    is_same = there.provider.equals(offer.provider) & there.gpu_count.equals(offer.gpu_count)
    in_all_regions = there.where(is_same & there.pricing.equals(offer.pricing))
    regions = (offer.region, *in_all_regions.region.cells())
    images_per_s: float | None = None
    if found.finder.photograph_share:  # what the GPUs consume while they run, including work that gets lost
        kept = delivered_share(lost_share(found.request, offer.pricing, offer.seller))
        images_per_s = row.gpus_samples_per_s / kept * found.finder.photograph_share
    rent = PriceCondition.SINGLE_HOST if offer.kind == "marketplace" else PriceCondition.LIST
    condition = rent if machine is None else machine.condition
    return Choice(
        row=row,
        condition=condition,
        **({} if machine is None else {name: getattr(machine, name) for name in _MACHINE_FIELDS}),
        price_note=offer.note if machine is None else machine.price_note,
        price_doubt=filtered.doubt(offer),
        asks=market.asks.get((offer.gpu_key, offer.pricing)) if offer.kind == "marketplace" else None,
        regions=tuple(filter(None, dict.fromkeys(regions))),
        needs_quota=True if offer.provider in _QUOTA_PROVIDERS else None,
        p_best_of_gpu=_p_best_of_gpu(found, offer) if row.rank else None,
        feed_images_per_s=images_per_s,
        feed_vcpus=None if images_per_s is None else images_per_s / IMAGES_PER_VCPU_S,
        also_at=tuple(_elsewhere(offer, among, same)),
        host_unsaid=() if machine is not None else tuple(unsaid(offer, found.finder.evidence.host)),
    )


_MACHINE_FIELDS = ("purchase_usd", "host_usd", "assumed")


def _p_best_of_gpu(found: Eligible, offer: Offer) -> float:
    """Return the probability that an offer of this GPU is the best.

    Owned hardware and rentals are counted separately.
    """
    same = found.by_gpu[offer.gpu_key]
    paid_alike = same[found.is_owned[same] == (offer.pricing is Pricing.OWNED)]
    return min(1.0, float(np.nansum(found.chances.p_best[paid_alike])))


def _elsewhere(offer: Offer, among: Eligible, same: Indices) -> Iterator[Elsewhere]:
    pool, (_, money) = among.pool, among.time_and_cost
    provider = among.offers.take(same).provider
    others = same[~provider.equals(offer.provider)]
    _, first = np.unique(among.offers.take(others).provider.codes, return_index=True)
    for place in others[np.sort(first)[:_MOST_ELSEWHERE]].tolist():
        yield Elsewhere(
            offer=among.offers[place],
            usd_per_hour=float(pool.price[among.order[place]]),
            cost_usd=None if pool.work is None else float(money[place]),
        )


# --- the answers ----------------------------------------------------------------------------------------


def cheapest_of_a_cloud(found: Eligible) -> int | None:
    """Return the position of the cheapest cloud offer; guesses outside the fit come after all others.

    None if the cheapest of all offers is a cloud's or owned hardware, or there is no cloud offer.
    """
    by_cost = found.pool.with_request(sort="cost")
    first = objective.first(by_cost)
    of_cloud = found.pool.offers.seller.equals("cloud") & ~found.pool.is_owned
    if of_cloud[first] or found.pool.is_owned[first] or not of_cloud.any():
        return None
    return int(np.flatnonzero(found.order == objective.first(by_cost, of_cloud))[0])


def places_of_answers(found: Eligible) -> set[int]:
    """Return the positions of the answers, cloud offer, named GPUs, hardware to own, and each GPU's best."""
    cloud = cheapest_of_a_cloud(found)
    beside = {*owned(found).tolist(), *places_of_named(found), *([] if cloud is None else [cloud])}
    return {*best_places(found), *found.answers.values(), *beside}


def named_gpus(found: Eligible) -> dict[str, int | None]:
    """Return each named GPU's cheapest position, None if it has none; empty unless 2 to 4 are named."""
    names = found.request.gpus
    if not 1 < len(names) <= MOST_NAMED:
        return {}
    offers, (_, money) = found.offers, found.time_and_cost
    places: dict[str, int | None] = {}
    for name in names:
        count, gpu = counted(name)
        is_meant = offers.gpu_key.is_in(meant_by(gpu, offers.gpu_key.present).__contains__)
        is_meant &= found.is_owned == found.request.buys
        is_meant &= True if count is None else offers.gpu_count.equals(count)
        places[name] = int(np.argmin(np.where(is_meant, money, np.inf))) if is_meant.any() else None
    return places


def places_of_named(found: Eligible) -> list[int]:
    """Return the distinct positions of the named GPUs."""
    return list(dict.fromkeys(place for place in named_gpus(found).values() if place is not None))


def best_to_own(found: Eligible) -> Choice | None:
    """Return the best hardware to own that is ranked, else the best for sale; None if there is neither."""
    if found.is_owned.any():
        (row,) = rows_of(found, [int(np.argmax(found.is_owned))])
        return choice_of(found, row, found)
    pool = found.finder.within_limits(found.finder.runnable(found.filtered.for_sale)[0])[0]
    if not len(pool):
        return None
    alone = _in_order(found, pool, np.array([objective.first(pool)]))
    return choice_of(found, _first_row(alone), found)


def best_to_rent(found: Eligible, priced: Candidates) -> Choice | None:
    """Return the cheapest on-demand rental, for comparison with purchases; None if there is none.

    Args:
        found: The offers that can do the job.
        priced: The same offers, plus all rentals to compare with owned hardware.
    """
    by_the_hour = priced.offers.where(priced.offers.pricing.equals(Pricing.ON_DEMAND))
    pool = found.finder.within_limits(by_the_hour)[0]
    if not len(pool):
        return None
    order = objective.order(pool.with_request(sort="cost"))
    table = _in_order(found, pool, order)
    return choice_of(found, _first_row(table), table)


def _in_order(found: Eligible, pool: Candidates, order: Indices) -> Eligible:
    # Return other offers in this order; only the first one gets chances.
    return replace(found, pool=pool, order=order, chances=objective.chances_of(pool, order[:1]))


def _first_row(found: Eligible) -> Row:
    # Return a row to show next to the ranking, without rank and chances, which refer to ranked rows.
    (row,) = rows_of(found, [0])
    return msgspec.structs.replace(row, rank=None, tie=False, **dict.fromkeys(objective.CHANCES))


def best_of_each_gpu(rows: Iterable[Row]) -> list[Row]:
    """Return the first row of each GPU, in order."""
    return first_of_each(rows, lambda row: row.offer.gpu_key)


def best_to_rent_and_to_own(rows: Iterable[Row]) -> list[Row]:
    """Return the first rental row and the first owned row of each GPU, in order."""
    return first_of_each(rows, lambda row: (row.offer.gpu_key, row.offer.pricing is Pricing.OWNED))
