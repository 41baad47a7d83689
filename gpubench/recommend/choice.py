"""Choices: a row with all that must be known before it is paid for, and which rows the answers are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec
import numpy as np

from gpubench.arrays import Indices
from gpubench.models import (
    Choice,
    Elsewhere,
    Offer,
    PriceCondition,
    Pricing,
    Row,
)
from gpubench.names import counted
from gpubench.recommend import objective
from gpubench.recommend.candidates import IMAGES_PER_VCPU_S, Candidates, lost_share
from gpubench.recommend.chances import CHANCES, chances_of
from gpubench.recommend.economics import delivered_share
from gpubench.recommend.eligible import Eligible
from gpubench.recommend.filters import meant_by
from gpubench.recommend.hosts import unsaid
from gpubench.recommend.rows import best_places, owned, rows_of

QUOTA_PROVIDERS = frozenset({"aws", "azure", "gcp", "oci"})
"""Clouds whose new accounts have a quota of no GPU, by their documentation of quotas and service limits; of
the others it is not known."""

MOST_NAMED = 4
"""GPUs that were named by the buyer and have a line each; of more a table is the answer."""

MOST_ELSEWHERE = 2
"""Other providers named beside the best offer of a GPU."""


def choice_of(found: Eligible, row: Row, among: Eligible) -> Choice:
    """Return a row with all else that is known of its offer.

    Args:
        found: What can do the job.
        row: One of its rows, or one that stands beside the ranking.
        among: Where else the same GPU is.
    """
    offer, filtered, market = row.offer, found.filtered, found.filtered.market
    machine = filtered.machines.get(offer)
    same = among.by_gpu.get(offer.gpu_key, np.empty(0, dtype=np.int64))
    there = among.offers.take(same)
    alike = there.provider.equals(offer.provider) & there.gpu_count.equals(offer.gpu_count)
    paid_alike = there.where(alike & there.pricing.equals(offer.pricing))
    regions = (offer.region, *paid_alike.region.cells())
    images_per_s = _photographs_per_s(found, row)
    rent = PriceCondition.SINGLE_HOST if offer.kind == "marketplace" else PriceCondition.LIST
    condition = rent if machine is None else machine.condition
    return Choice(
        row=row,
        condition=condition,
        purchase_usd=None if machine is None else machine.purchase_usd,
        host_usd=None if machine is None else machine.host_usd,
        assumed=() if machine is None else machine.assumed,
        price_note=offer.note if machine is None else machine.price_note,
        price_doubt=filtered.doubt(offer),
        asks=market.asks.get((offer.gpu_key, offer.pricing)) if offer.kind == "marketplace" else None,
        regions=tuple(filter(None, dict.fromkeys(regions))),
        needs_quota=True if offer.provider in QUOTA_PROVIDERS else None,
        p_best_of_gpu=_p_best_of_gpu(found, offer) if row.rank else None,
        feed_images_per_s=images_per_s,
        feed_vcpus=None if images_per_s is None else images_per_s / IMAGES_PER_VCPU_S,
        also_at=tuple(_elsewhere(offer, among, same)),
        host_unsaid=() if machine is not None else tuple(unsaid(offer, found.finder.evidence.host)),
    )


def _p_best_of_gpu(found: Eligible, offer: Offer) -> float:
    """Return the probability that an offer of this GPU is the best: of several, at most one is.

    Of hardware to own all such count, else all to rent.
    """
    same = found.by_gpu[offer.gpu_key]
    alike = same[found.is_owned[same] == (offer.pricing is Pricing.OWNED)]
    return min(1.0, float(np.nansum(found.chances.p_best[alike])))


def _photographs_per_s(found: Eligible, row: Row) -> float | None:
    """Return how many its GPUs take at work, before any work is lost; None of other data."""
    if not found.finder.photograph_share:
        return None
    lost = lost_share(found.request, row.offer.pricing, row.offer.seller)
    return row.gpus_samples_per_s / delivered_share(lost) * found.finder.photograph_share


def _elsewhere(offer: Offer, among: Eligible, same: Indices) -> Iterator[Elsewhere]:
    """Yield the best offer of the GPU at each of the next providers."""
    pool, (_, money) = among.pool, among.time_and_cost
    provider = among.offers.take(same).provider
    others = same[~provider.equals(offer.provider)]
    _, first = np.unique(among.offers.take(others).provider.codes, return_index=True)
    for place in others[np.sort(first)[:MOST_ELSEWHERE]].tolist():
        yield Elsewhere(
            offer=among.offers[place],
            usd_per_hour=float(pool.price[among.order[place]]),
            cost_usd=None if pool.work is None else float(money[place]),
        )


# --- what the answers are --------------------------------------------------------------------------------


def cheapest_of_a_cloud(found: Eligible) -> int | None:
    """Return the place of the least in dollars that a cloud sells, guesses beyond the fit after all others.

    None where the cheapest of all is of a cloud, or no cloud sells any.
    """
    by_cost = msgspec.structs.replace(found.request, sort="cost")
    first = objective.first(by_cost, found.pool)
    of_cloud = found.pool.offers.column("seller").equals("cloud") & ~found.pool.is_owned
    if of_cloud[first] or found.pool.is_owned[first] or not of_cloud.any():
        return None
    return int(np.flatnonzero(found.order == objective.first(by_cost, found.pool, of_cloud))[0])


def places_of_answers(found: Eligible) -> set[int]:
    """Return the places of the answers, of the best of each GPU, and of what the buyer has."""
    cloud = cheapest_of_a_cloud(found)
    beside = {*owned(found).tolist(), *places_of_named(found), *([] if cloud is None else [cloud])}
    return {*best_places(found), *found.answers.values(), *beside}


def named_gpus(found: Eligible) -> dict[str, int | None]:
    """Return the place of the least in dollars of each GPU that was named, where a few were; None of none."""
    names = found.request.gpus
    if not 1 < len(names) <= MOST_NAMED:
        return {}
    offers, (_, money) = found.offers, found.time_and_cost
    places: dict[str, int | None] = {}
    for name in names:
        count, gpu = counted(name)
        alike = offers.gpu_key.is_in(meant_by(gpu, offers.gpu_key.present).__contains__)
        alike &= found.is_owned == found.request.buys
        alike &= True if count is None else offers.gpu_count.equals(count)
        places[name] = int(np.argmin(np.where(alike, money, np.inf))) if alike.any() else None
    return places


def places_of_named(found: Eligible) -> list[int]:
    """Return these places, each once."""
    return list(dict.fromkeys(place for place in named_gpus(found).values() if place is not None))


def best_to_own(found: Eligible) -> Choice | None:
    """Return the best hardware to buy, ranked or not; None where none meets what was asked."""
    if found.is_owned.any():
        (row,) = rows_of(found, [int(np.argmax(found.is_owned))])
        return choice_of(found, row, found)
    pool = found.finder.within_limits(found.finder.runnable(found.filtered.for_sale)[0])[0]
    if not len(pool):
        return None
    alone = _in_order(found, pool, np.array([objective.first(found.request, pool)]))
    return choice_of(found, _first_row(alone), found)


def best_to_rent(found: Eligible, priced: Candidates) -> Choice | None:
    """Return the least in dollars to rent on demand, beside purchases; None where there is none.

    Args:
        found: What can do the job.
        priced: The same offers, and all rent that owned hardware is held against.
    """
    by_the_hour = priced.offers.where(priced.offers.pricing.equals(Pricing.ON_DEMAND))
    pool = found.finder.within_limits(by_the_hour)[0]
    if not len(pool):
        return None
    order = objective.order(msgspec.structs.replace(found.request, sort="cost"), pool)
    table = _in_order(found, pool, order)
    return choice_of(found, _first_row(table), table)


def _in_order(found: Eligible, pool: Candidates, order: Indices) -> Eligible:
    # only the first is looked at; the others are where else it is to be had
    return replace(found, pool=pool, order=order, chances=chances_of(found.request, pool, order[:1]))


def _first_row(found: Eligible) -> Row:
    (row,) = rows_of(found, [0])
    return beside(row)


def best_of_each_gpu(rows: Iterable[Row]) -> list[Row]:
    """Return the first row of each GPU, in their order."""
    best: dict[str, Row] = {}
    for row in rows:
        best.setdefault(row.offer.gpu_key, row)
    return list(best.values())


def best_to_rent_and_to_own(rows: Iterable[Row]) -> list[Row]:
    """Return the first row of each GPU to rent, and the first to own, in their order."""
    best: dict[tuple[str, bool], Row] = {}
    for row in rows:
        best.setdefault((row.offer.gpu_key, row.offer.pricing is Pricing.OWNED), row)
    return list(best.values())


def beside(row: Row) -> Row:
    """Return a row that stands beside the ranking: without rank and chances, which are of other rows."""
    return msgspec.structs.replace(row, rank=None, tie=False, **dict.fromkeys(CHANCES))
