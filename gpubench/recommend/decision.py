"""The decision: the choice with all that must be known before it is paid for, its runner-up, the winners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from gpubench.arrays import Flags, Indices
from gpubench.models import (
    BuyOrRent,
    Choice,
    Decision,
    Elsewhere,
    GpuSpec,
    Offer,
    PriceCondition,
    Pricing,
    Row,
    Source,
)
from gpubench.profile.allowance import card_of
from gpubench.recommend import objective
from gpubench.recommend.candidates import IMAGES_PER_VCPU_S, Candidates
from gpubench.recommend.chances import CHANCES, chances_of
from gpubench.recommend.changes import change_of
from gpubench.recommend.economics import delivered_share
from gpubench.recommend.eligible import Eligible
from gpubench.recommend.hosts import unsaid
from gpubench.recommend.owning import SESSION_HOURS, Ownership, pays
from gpubench.recommend.rows import best_places, rows_of, runner_up
from gpubench.recommend.speeds import largest_of
from gpubench.specs import load_specs

QUOTA_PROVIDERS = frozenset({"aws", "azure", "gcp", "oci"})
"""Clouds whose new accounts have a quota of no GPU, by their documentation of quotas and service limits; of
the others it is not known."""

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
        **({} if machine is None else {name: getattr(machine, name) for name in _OF_MACHINE}),
        price_note=offer.note if machine is None else machine.price_note,
        price_doubt=filtered.doubt(offer),
        asks=market.asks.get((offer.gpu_key, offer.pricing)) if offer.kind == "marketplace" else None,
        regions=tuple(filter(None, dict.fromkeys(regions))),
        needs_quota=True if offer.provider in QUOTA_PROVIDERS else None,
        p_best_of_gpu=_p_best_of_gpu(found, offer) if row.rank else None,
        memory_margin_bytes=_memory_margin(row, load_specs().get(offer.gpu_key)),
        feed_images_per_s=images_per_s,
        feed_vcpus=None if images_per_s is None else images_per_s / IMAGES_PER_VCPU_S,
        also_at=tuple(_elsewhere(offer, among, same)),
        host_unsaid=() if machine is not None else tuple(unsaid(offer, found.finder.evidence.host)),
    )


_OF_MACHINE = ("purchase_usd", "host_usd", "assumed")


def _p_best_of_gpu(found: Eligible, offer: Offer) -> float:
    """Return the probability that an offer of this GPU is the best: of several, at most one is.

    Of hardware to own all such count, else all to rent.
    """
    same = found.by_gpu[offer.gpu_key]
    alike = same[found.is_owned[same] == (offer.pricing is Pricing.OWNED)]
    return min(1.0, float(np.nansum(found.chances.p_best[alike])))


def _photographs_per_s(found: Eligible, row: Row) -> float | None:
    """Return how many its GPUs take at work, of spot before any work is lost; None of other data."""
    if not found.finder.photograph_share:
        return None
    lost = found.request.spot_lost_share if row.offer.pricing is Pricing.SPOT else 0.0
    return row.gpus_samples_per_s / delivered_share(lost) * found.finder.photograph_share


def _memory_margin(row: Row, spec: GpuSpec | None) -> int | None:
    """Return what the card has above the upper end of the need [B]."""
    card = None if spec is None else card_of(spec)
    need = largest_of([each.device_bytes.high for each in row.estimates])
    if card is None or need is None:
        return None
    return round(card.usable_bytes - need)


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


# --- the decision ----------------------------------------------------------------------------------------


def decide(
    found: Eligible, made: Mapping[int, Row], priced: Candidates, buy_or_rent: Sequence[BuyOrRent]
) -> Decision:
    """Return what to pay for.

    Args:
        found: What can do the job.
        made: Rows by their place, those of ``decisive_places`` among them.
        priced: The same offers, and all rent that owned hardware is held against.
        buy_or_rent: How owned hardware compares with renting.
    """
    second = runner_up(found)
    by_gpu = tuple(choice_of(found, made[place], found) for place in best_places(found))
    first = by_gpu[0]
    other = None if second is None else choice_of(found, made[second], found)
    to_rent = _to_rent(found, priced) if found.filtered.owned else []
    best_of = _best_of_each_source(found)

    def best(source: Source) -> Choice | None:
        """Return the best of a source, among the rows or beside them."""
        if source in best_of:
            return choice_of(found, made[best_of[source]], found)
        if source == "own":
            to_own = _best_to_own(found)
            return None if to_own is None else choice_of(found, to_own, found)
        return next((each for each in to_rent if each.source == source), None)

    decisive = {each.row.estimate.basis for each in (first, other) if each is not None}
    is_unfitted = found.request.task == "infer" and "predicted" in decisive
    return Decision(
        job=None if found.pool.work is None else found.pool.work.job,
        choice=first,
        runner_up=other,
        sureness=found.chances.sureness,
        change=change_of(found),
        rather_rent=_rent_instead(first, to_rent, buy_or_rent),
        best_cloud=best("cloud"),
        best_marketplace=best("marketplace"),
        best_to_own=best("own"),
        by_gpu=by_gpu,
        unfitted=_UNFITTED if is_unfitted else None,
    )


def decisive_places(found: Eligible) -> set[int]:
    """Return the places of the best of each GPU and of each source, and of the runner-up."""
    second = runner_up(found)
    places = {*best_places(found), *_best_of_each_source(found).values()}
    return places if second is None else places | {second}


def _best_of_each_source(found: Eligible) -> dict[Source, int]:
    """Return the first place of each source that any has."""
    owned = found.is_owned
    hosts = ~owned & found.offers.kind.equals("marketplace")
    of_source: dict[Source, Flags] = {"own": owned, "marketplace": hosts, "cloud": ~owned & ~hosts}
    return {source: int(np.argmax(of)) for source, of in of_source.items() if of.any()}


_UNFITTED = "speeds of inference are predicted from few published measurements"
"""Of inference hardly any row is published that a fit could rest on."""


def _best_to_own(found: Eligible) -> Row | None:
    """Return the best hardware to buy, judged among its like; None where none meets what was asked."""
    pool = found.finder.within_limits(found.finder.runnable(found.filtered.for_sale)[0])[0]
    if not len(pool):
        return None
    return _first_row(_in_order(found, pool, objective.order(found.request, pool)[:1]))


def _to_rent(found: Eligible, priced: Candidates) -> list[Choice]:
    """Return the best rent on demand of a cloud and of a marketplace, the better one first."""
    by_the_hour = priced.offers.where(priced.offers.pricing.equals(Pricing.ON_DEMAND))
    pool = found.finder.within_limits(by_the_hour)[0]
    order = objective.order(found.request, pool)
    on_marketplace = pool.offers.kind.equals("marketplace")[order]
    best = sorted(int(np.argmax(of_kind)) for of_kind in (on_marketplace, ~on_marketplace) if of_kind.any())
    in_front = (np.concatenate((order[at : at + 1], np.delete(order, at))) for at in best)
    tables = (_in_order(found, pool, each) for each in in_front)
    return [choice_of(found, _first_row(table), table) for table in tables]


def _in_order(found: Eligible, pool: Candidates, order: Indices) -> Eligible:
    """Return other offers of which only the first is looked at; the others are where else it is to be had."""
    return replace(found, pool=pool, order=order, chances=chances_of(found.request, pool, order[:1]))


def _first_row(found: Eligible) -> Row:
    (row,) = rows_of(found, [0])
    return beside(row)


def _rent_instead(
    first: Choice, to_rent: Iterable[Choice], buy_or_rent: Iterable[BuyOrRent]
) -> Choice | None:
    """Return the rent that does the work for less than hardware to buy that never pays for itself.

    Less of money for the job; without a job, and of jobs that share a start, for a sample.
    """
    weighed = against_rent_by_the_hour(first, buy_or_rent)
    if first.purchase_usd is None or weighed is None or pays(weighed):
        return None
    by_job = (first.row.hours.value or 0.0) >= SESSION_HOURS

    def usd(choice: Choice) -> float:
        cost_usd = choice.row.cost_usd.value
        return cost_usd if by_job and cost_usd is not None else choice.row.usd_per_million_samples

    return next((each for each in to_rent if usd(each) < usd(first)), None)


def against_rent_by_the_hour(choice: Choice, buy_or_rent: Iterable[BuyOrRent]) -> BuyOrRent | None:
    """Return how hardware to own compares with rent on demand; None of what is rented itself."""
    offer = choice.offer
    one = (offer.instance, offer.gpu_key, offer.gpu_count, Pricing.ON_DEMAND)
    same = (e for e in buy_or_rent if one == (e.instance, e.gpu_key, e.gpu_count, e.against_pricing))
    return next(same, None) if choice.source == "own" else None


def likely_use(choice: Choice | None, machines: Mapping[Offer, Ownership]) -> float | None:
    """Return the share of hours at work that an hour of hardware to own is priced at; None of all else."""
    if choice is None:
        return None
    machine = machines.get(choice.offer)
    return None if machine is None else machine.utilization.likely


def recommended(decision: Decision) -> Choice:
    """Return what to pay for: the choice, unless that is a purchase that had rather be rented."""
    return decision.rather_rent or decision.choice


def second_best(decision: Decision) -> Choice | None:
    """Return the runner-up: where a purchase had rather be rented, that purchase."""
    return decision.choice if decision.rather_rent else decision.runner_up


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
