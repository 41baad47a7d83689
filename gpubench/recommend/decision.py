"""The decision: the choice with all that must be known before it is paid for, its runner-up, the winners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from gpubench.arrays import Indices
from gpubench.models import (
    BuyOrRent,
    Choice,
    Decision,
    Elsewhere,
    GpuSpec,
    Offer,
    PriceCondition,
    Pricing,
    RankedOffer,
    Source,
)
from gpubench.offers.columns import kinds_of
from gpubench.profile.allowance import card_of
from gpubench.recommend import objective
from gpubench.recommend.candidates import IMAGES_PER_VCPU_S, Candidates
from gpubench.recommend.chances import chances_of
from gpubench.recommend.changes import change_of
from gpubench.recommend.economics import delivered_share
from gpubench.recommend.eligible import Eligible
from gpubench.recommend.owning import SESSION_HOURS, Ownership, pays
from gpubench.recommend.rows import Rows
from gpubench.recommend.speeds import largest_of
from gpubench.specs import load_specs

QUOTA_PROVIDERS = frozenset({"aws", "azure", "gcp", "oci"})
"""Clouds whose new accounts have a quota of no GPU, by their documentation of quotas and service limits; of
the others it is not known."""

MOST_ELSEWHERE = 5


def source_of(pricing: Pricing, kind: str) -> Source:
    """Return who has a machine that is paid and sold so."""
    if pricing is Pricing.OWNED:
        return "own"
    return "marketplace" if kind == "marketplace" else "cloud"


def choice_of(found: Eligible, row: RankedOffer, rows: Rows) -> Choice:
    """Return all that is known of one offer.

    Args:
        found: What can do the job.
        row: The offer's row, or one that stands beside the ranking.
        rows: Where else the same GPU is, best first.
    """
    offer, left = row.offer, found.left
    machine = left.machines.get(offer)
    same = rows.of_gpu.get(offer.gpu_key, np.empty(0, dtype=np.int64))
    there = rows.offers.take(same)
    alike = there.provider.equals(offer.provider) & there.gpu_count.equals(offer.gpu_count)
    paid_alike = there.where(alike & there.pricing.equals(offer.pricing))
    regions = (offer.region, *paid_alike.region.cells())
    images_per_s = _photographs_per_s(found, row)
    margin = _memory_margin(row, load_specs().get(offer.gpu_key))
    rent = PriceCondition.SINGLE_HOST if offer.kind == "marketplace" else PriceCondition.LIST
    condition = rent if machine is None else machine.condition
    return Choice(
        **{name: getattr(offer, name) for name in _OF_OFFER},
        **{name: getattr(row, name) for name in _OF_ROW},
        **({} if machine is None else {name: getattr(machine, name) for name in _OF_MACHINE}),
        rank=row.rank,
        p_best_of_gpu=rows.p_best_of_gpu(offer) if row.rank else None,
        source=source_of(offer.pricing, offer.kind),
        price_usd_per_hour=float(offer.price_usd_per_hour),
        price_label=condition.label,
        price_note=offer.note if machine is None or condition is PriceCondition.QUOTED else machine.source,
        price_doubt=rows.doubt(offer),
        asks=left.market.asks.get((offer.gpu_key, offer.pricing)) if offer.kind == "marketplace" else None,
        regions=tuple(filter(None, dict.fromkeys(regions))),
        needs_quota=True if offer.provider in QUOTA_PROVIDERS else None,
        basis=row.estimate.basis,
        memory_text=row.estimate.memory_text,
        memory_margin_bytes=None if margin is None else round(margin[0]),
        memory_margin_share=None if margin is None else margin[1],
        batch_size=row.estimate.case.batch_size if not row.parts else None,
        feed_images_per_s=images_per_s,
        feed_vcpus=None if images_per_s is None else images_per_s / IMAGES_PER_VCPU_S,
        extrapolated=row.estimate.is_extrapolated,
        also_at=tuple(_elsewhere(offer, rows, same)),
    )


_PLACE = ("provider", "instance", "region", "gpu_count", "pricing")
_OF_OFFER = (*_PLACE, "gpu_key", "price_date", "in_stock", "stock_date", "vcpus")
_RANGES = ("expected_usd_per_hour", "samples_per_s", "hours", "cost_usd")
_OF_ROW = (
    *(f"{name}{end}" for name in _RANGES for end in ("", "_low", "_high")),
    "p_best",
    "price_age_days",
    "parallel_mode",
    "fits_memory",
    "findings",
)
_OF_MACHINE = ("purchase_usd", "host_usd", "assumed")


def _photographs_per_s(found: Eligible, row: RankedOffer) -> float | None:
    """Return how many its GPUs take at work, of spot before any work is lost; None of other data."""
    if not found.able.photograph_share:
        return None
    lost = found.request.spot_lost if row.offer.pricing is Pricing.SPOT else 0.0
    return row.gpus_samples_per_s / delivered_share(lost) * found.able.photograph_share


def _memory_margin(row: RankedOffer, spec: GpuSpec | None) -> tuple[float, float] | None:
    """Return what the card has above the upper end of the need: bytes, and as a share of the card."""
    card = None if spec is None else card_of(spec)
    need = largest_of(row.estimates, "device_bytes_high")
    if card is None or need is None:
        return None
    free = card.usable_bytes - need
    return free, free / card.listed_bytes


def _elsewhere(offer: Offer, rows: Rows, same: Indices) -> Iterator[Elsewhere]:
    """Yield the best offer of the GPU at each of the next providers."""
    provider = rows.offers.take(same).provider
    others = same[~provider.equals(offer.provider)]
    _, first = np.unique(rows.offers.take(others).provider.codes, return_index=True)
    for at in others[np.sort(first)[:MOST_ELSEWHERE]].tolist():
        there = rows.offers[at]
        expected_usd_per_hour, cost_usd = rows.price_and_cost(at)
        yield Elsewhere(
            **{name: getattr(there, name) for name in _PLACE},
            price_usd_per_hour=float(there.price_usd_per_hour),
            expected_usd_per_hour=expected_usd_per_hour,
            cost_usd=cost_usd,
        )


# --- the decision ----------------------------------------------------------------------------------------


def decide(found: Eligible, priced: Candidates, buy_or_rent: Sequence[BuyOrRent]) -> Decision:
    """Return what to pay for.

    Args:
        found: What can do the job.
        priced: The same, and all rent that owned hardware is held against.
        buy_or_rent: How owned hardware compares with renting.
    """
    rows, chances = found.rows, found.chances
    by_gpu = tuple(choice_of(found, row, rows) for row in rows.at(rows.best_to_rent_and_to_own))
    first = by_gpu[0]
    runner_up = None if rows.runner_up is None else choice_of(found, rows[rows.runner_up], rows)
    to_rent = _to_rent(found, priced) if found.left.owned else []
    kinds = kinds_of(rows.offers.pricing, rows.offers.kind)

    def best(source: Source) -> Choice | None:
        """Return the best of a source, among the rows or beside them."""
        places = np.flatnonzero(kinds.is_in(lambda kind: source_of(*kind) == source))
        if len(places):
            return choice_of(found, rows[int(places[0])], rows)
        if source == "own":
            to_own = _best_to_own(found)
            return None if to_own is None else choice_of(found, to_own, rows)
        return next((each for each in to_rent if each.source == source), None)

    decisive = {first.basis, runner_up and runner_up.basis}
    is_unfitted = found.request.task == "infer" and "predicted" in decisive
    return Decision(
        job=None if found.pool.work is None else found.pool.work.job,
        choice=first,
        runner_up=runner_up,
        sureness=chances.sureness,
        change=change_of(found),
        rather_rent=_rent_instead(first, to_rent, buy_or_rent),
        best_cloud=best("cloud"),
        best_marketplace=best("marketplace"),
        best_to_own=best("own"),
        by_gpu=by_gpu,
        unfitted=_UNFITTED if is_unfitted else None,
    )


_UNFITTED = "speeds of inference are predicted from few published measurements"
"""Of inference hardly any row is published that a fit could rest on."""


def _best_to_own(found: Eligible) -> RankedOffer | None:
    """Return the best hardware to buy, judged among its like; None where none meets what was asked."""
    pool = found.able.within_limits(found.able.runnable(found.left.for_sale)[0])[0]
    if not len(pool):
        return None
    return beside(_with_first(found, pool, objective.order(found.request, pool)[:1])[0])


def _to_rent(found: Eligible, priced: Candidates) -> list[Choice]:
    """Return the best rent on demand of a cloud and of a marketplace, the better one first."""
    by_the_hour = priced.offers.where(priced.offers.pricing.equals(Pricing.ON_DEMAND))
    pool = found.able.within_limits(by_the_hour)[0]
    order = objective.order(found.request, pool)
    on_marketplace = pool.offers.kind.equals("marketplace")[order]
    best = sorted(int(np.argmax(of_kind)) for of_kind in (on_marketplace, ~on_marketplace) if of_kind.any())
    in_front = (np.concatenate((order[at : at + 1], np.delete(order, at))) for at in best)
    tables = (_with_first(found, pool, each) for each in in_front)
    return [choice_of(found, beside(rows[0]), rows) for rows in tables]


def _with_first(found: Eligible, pool: Candidates, order: Indices) -> Rows:
    """Return rows of which only the first is looked at; the others are where else it is to be had."""
    request, left = found.request, found.left
    chances = chances_of(request, pool, order[:1])
    return Rows(request, pool, order, chances, market=left.market, doubts=left.doubts)


def _rent_instead(
    first: Choice, to_rent: Iterable[Choice], buy_or_rent: Iterable[BuyOrRent]
) -> Choice | None:
    """Return the rent that does the work for less than hardware to buy that never pays for itself.

    Less of money for the job; without a job, and of jobs that share a start, for a sample.
    """
    weighed = against_rent_by_the_hour(first, buy_or_rent)
    if first.purchase_usd is None or weighed is None or pays(weighed):
        return None
    by_job = first.hours is not None and first.hours >= SESSION_HOURS

    def usd(choice: Choice) -> float:
        if by_job and choice.cost_usd is not None:
            return choice.cost_usd
        return choice.expected_usd_per_hour / choice.samples_per_s

    return next((each for each in to_rent if usd(each) < usd(first)), None)


def against_rent_by_the_hour(choice: Choice, buy_or_rent: Iterable[BuyOrRent]) -> BuyOrRent | None:
    """Return how hardware to own compares with rent on demand; None of what is rented itself."""
    one = (choice.instance, choice.gpu_key, choice.gpu_count, Pricing.ON_DEMAND)
    same = (e for e in buy_or_rent if one == (e.instance, e.gpu_key, e.gpu_count, e.against_pricing))
    return next(same, None) if choice.source == "own" else None


def likely_use(choice: Choice | None, machines: Mapping[Offer, Ownership]) -> float | None:
    """Return the share of hours at work that an hour of hardware to own is priced at; None of all else."""
    if choice is None:
        return None
    own = (choice.provider, choice.instance, choice.gpu_key, choice.gpu_count)
    same = (m for o, m in machines.items() if own == (o.provider, o.instance, o.gpu_key, o.gpu_count))
    machine = next(same, None)
    return None if machine is None else machine.utilization.likely


def recommended(decision: Decision) -> Choice:
    """Return what to pay for: the choice, unless that is a purchase that had rather be rented."""
    return decision.rather_rent or decision.choice


def second_best(decision: Decision) -> Choice | None:
    """Return the runner-up: where a purchase had rather be rented, that purchase."""
    return decision.choice if decision.rather_rent else decision.runner_up


def best_of_each_gpu(rows: Iterable[RankedOffer]) -> list[RankedOffer]:
    """Return the first row of each GPU, in their order."""
    best: dict[str, RankedOffer] = {}
    for row in rows:
        best.setdefault(row.offer.gpu_key, row)
    return list(best.values())


def best_to_rent_and_to_own(rows: Iterable[RankedOffer]) -> list[RankedOffer]:
    """Return the first row of each GPU to rent, and the first to own, in their order."""
    best: dict[tuple[str, bool], RankedOffer] = {}
    for row in rows:
        best.setdefault((row.offer.gpu_key, row.offer.pricing is Pricing.OWNED), row)
    return list(best.values())


def beside(row: RankedOffer) -> RankedOffer:
    """Return a row that stands beside the ranking: without rank and chances, which are of other rows."""
    return msgspec.structs.replace(row, rank=None, tie=False, p_best=None)
