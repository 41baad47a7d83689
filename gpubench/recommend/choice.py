"""Choices: a row with everything to know before paying for it, and which rows are the answers."""

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
"""Clouds where new accounts have a quota of zero GPUs, according to their documentation of quotas and service
limits; for other clouds it is unknown."""

MOST_NAMED = 4
"""Maximum number of named GPUs with a line each; the table shows more."""

MOST_ELSEWHERE = 2
"""Maximum number of other providers listed with the best offer of a GPU."""


def choice_of(found: Eligible, row: Row, among: Eligible) -> Choice:
    """Return a row with everything else known about its offer.

    Args:
        found: The offers that can do the job.
        row: One of its rows, or a row shown next to the ranking.
        among: Other positions of the same GPU.
    """
    offer, filtered, market = row.offer, found.filtered, found.filtered.market
    machine = filtered.machines.get(offer)
    same = among.by_gpu.get(offer.gpu_key, np.empty(0, dtype=np.int64))
    there = among.offers.take(same)
    alike = there.provider.equals(offer.provider) & there.gpu_count.equals(offer.gpu_count)
    paid_alike = there.where(alike & there.pricing.equals(offer.pricing))
    regions = (offer.region, *paid_alike.region.cells())
    images_per_s: float | None = None
    if found.finder.photograph_share:  # consumption of the GPUs, before losses
        kept = delivered_share(lost_share(found.request, offer.pricing, offer.seller))
        images_per_s = row.gpus_samples_per_s / kept * found.finder.photograph_share
    rent = PriceCondition.SINGLE_HOST if offer.kind == "marketplace" else PriceCondition.LIST
    condition = rent if machine is None else machine.condition
    return Choice(
        row=row,
        condition=condition,
        **({} if machine is None else {name: getattr(machine, name) for name in _OF_MACHINE}),
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


_OF_MACHINE = ("purchase_usd", "host_usd", "assumed")


def _p_best_of_gpu(found: Eligible, offer: Offer) -> float:
    """Return the probability that an offer of this GPU is the best.

    For owned hardware it is among all owned offers, else among all rentals.
    """
    same = found.by_gpu[offer.gpu_key]
    alike = same[found.is_owned[same] == (offer.pricing is Pricing.OWNED)]
    return min(1.0, float(np.nansum(found.chances.p_best[alike])))


def _elsewhere(offer: Offer, among: Eligible, same: Indices) -> Iterator[Elsewhere]:
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


# --- the answers -----------------------------------------------------------------------------------------


def cheapest_of_a_cloud(found: Eligible) -> int | None:
    """Return the position of the cheapest cloud offer, with guesses outside the fit after all others.

    None if the cheapest of all offers is a cloud's, or there is no cloud offer.
    """
    by_cost = msgspec.structs.replace(found.request, sort="cost")
    first = objective.first(by_cost, found.pool)
    of_cloud = found.pool.offers.column("seller").equals("cloud") & ~found.pool.is_owned
    if of_cloud[first] or found.pool.is_owned[first] or not of_cloud.any():
        return None
    return int(np.flatnonzero(found.order == objective.first(by_cost, found.pool, of_cloud))[0])


def places_of_answers(found: Eligible) -> set[int]:
    """Return the positions of the answers, of the best of each GPU, and of the buyer's machines."""
    cloud = cheapest_of_a_cloud(found)
    beside = {*owned(found).tolist(), *places_of_named(found), *([] if cloud is None else [cloud])}
    return {*best_places(found), *found.answers.values(), *beside}


def named_gpus(found: Eligible) -> dict[str, int | None]:
    """Return the cheapest position of each named GPU, if only a few were named; None if none was."""
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
    """Return the distinct positions."""
    return list(dict.fromkeys(place for place in named_gpus(found).values() if place is not None))


def best_to_own(found: Eligible) -> Choice | None:
    """Return the best hardware to buy, ranked or not; None if nothing qualifies."""
    if found.is_owned.any():
        (row,) = rows_of(found, [int(np.argmax(found.is_owned))])
        return choice_of(found, row, found)
    pool = found.finder.within_limits(found.finder.runnable(found.filtered.for_sale)[0])[0]
    if not len(pool):
        return None
    alone = _in_order(found, pool, np.array([objective.first(found.request, pool)]))
    return choice_of(found, _first_row(alone), found)


def best_to_rent(found: Eligible, priced: Candidates) -> Choice | None:
    """Return the cheapest rental on demand, for comparison with purchases; None if there is none.

    Args:
        found: The offers that can do the job.
        priced: The same offers, plus all rentals to compare with owned hardware.
    """
    by_the_hour = priced.offers.where(priced.offers.pricing.equals(Pricing.ON_DEMAND))
    pool = found.finder.within_limits(by_the_hour)[0]
    if not len(pool):
        return None
    order = objective.order(msgspec.structs.replace(found.request, sort="cost"), pool)
    table = _in_order(found, pool, order)
    return choice_of(found, _first_row(table), table)


def _in_order(found: Eligible, pool: Candidates, order: Indices) -> Eligible:
    return replace(found, pool=pool, order=order, chances=chances_of(found.request, pool, order[:1]))


def _first_row(found: Eligible) -> Row:
    (row,) = rows_of(found, [0])
    return beside(row)


def best_of_each_gpu(rows: Iterable[Row]) -> list[Row]:
    """Return the first row of each GPU, in order."""
    best: dict[str, Row] = {}
    for row in rows:
        best.setdefault(row.offer.gpu_key, row)
    return list(best.values())


def best_to_rent_and_to_own(rows: Iterable[Row]) -> list[Row]:
    """Return the first rental row and the first owned row of each GPU, in order."""
    best: dict[tuple[str, bool], Row] = {}
    for row in rows:
        best.setdefault((row.offer.gpu_key, row.offer.pricing is Pricing.OWNED), row)
    return list(best.values())


def beside(row: Row) -> Row:
    """Return a row to show next to the ranking, without rank and chances, which refer to ranked rows."""
    return msgspec.structs.replace(row, rank=None, tie=False, **dict.fromkeys(CHANCES))
