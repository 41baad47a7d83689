"""The decision: the choice with all that must be known before it is paid for, its runner-up, the winners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from gpubench.arrays import Indices
from gpubench.models import (
    Asks,
    BuyOrRent,
    Change,
    Choice,
    Decision,
    Elsewhere,
    FindingKind,
    FindingOut,
    GpuSpec,
    Job,
    Offer,
    PriceLabel,
    Pricing,
    RankedOffer,
    Source,
)
from gpubench.offers.columns import Offers, kinds_of
from gpubench.offers.dates import AskKey
from gpubench.profile.allowance import card_of
from gpubench.recommend.buy_or_rent import SESSION_HOURS, pays
from gpubench.recommend.candidates import IMAGES_PER_VCPU_S
from gpubench.recommend.chances import Chances
from gpubench.recommend.economics import delivered_share
from gpubench.recommend.owning import Ownership
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Rows

QUOTA_PROVIDERS = frozenset({"aws", "azure", "gcp", "oci"})
"""Clouds whose new accounts have a quota of no GPU, by their documentation of quotas and service limits; of
the others it is not known."""

MOST_ELSEWHERE = 5


def source_of(pricing: Pricing, kind: str) -> Source:
    """Return who has a machine that is paid and sold so."""
    if pricing is Pricing.OWNED:
        return "own"
    return "marketplace" if kind == "marketplace" else "cloud"


def choice_of(
    request: RankRequest,
    row: RankedOffer,
    rows: Rows,
    specs: Mapping[str, GpuSpec],
    *,
    photograph_share: float,
    machine: Ownership | None,
    asks: Mapping[AskKey, Asks],
) -> Choice:
    """Return all that is known of one offer.

    Args:
        request: What was asked.
        row: The offer's row.
        rows: Every row of the ranking, best first: where else the same GPU is.
        specs: The specification table.
        photograph_share: Of the samples, which the vCPUs of a host must prepare.
        machine: Of owned hardware what it costs.
        asks: What hosts of marketplaces ask for each GPU.
    """
    offer, estimate = row.offer, row.estimate
    lost = request.spot_lost if offer.pricing is Pricing.SPOT else 0.0
    images_per_s = (
        row.gpus_samples_per_s / delivered_share(lost) * photograph_share if photograph_share else None
    )
    margin = _memory_margin(row, specs.get(offer.gpu_key))
    same = rows.of_gpu.get(offer.gpu_key, np.empty(0, dtype=np.int64))
    chances, bought = dict[str, Any](), dict[str, Any]()
    if row.rank > 0:
        chances = {
            **{name: getattr(row, name) for name in ("p_best", "p_best_independent", "p_near_best")},
            "p_best_of_gpu": rows.p_best_of_gpu(offer),
            "p_best_of_gpu_independent": rows.p_best_of_gpu(offer, independent=True),
        }
    if machine is not None:
        bought = {
            "machine_count": machine.machine_count,
            "purchase_usd": machine.in_all_usd,
            "host_usd": machine.hosts_usd,
            "assumed": machine.assumed,
        }
    return Choice(
        **{name: getattr(offer, name) for name in _OF_OFFER},
        **{name: getattr(row, name) for name in _OF_ROW},
        **chances,
        **bought,
        rank=row.rank if row.rank > 0 else None,
        source=source_of(offer.pricing, offer.kind),
        price_usd_per_hour=float(offer.price_usd_per_hour),
        price_label=_label(offer, machine),
        price_note=offer.note if machine is None or machine.condition == "quoted" else machine.source,
        price_doubt=rows.doubt(offer),
        asks=asks.get((offer.gpu_key, offer.pricing)) if offer.kind == "marketplace" else None,
        regions=_regions(offer, rows.offers.take(same)),
        needs_quota=True if offer.provider in QUOTA_PROVIDERS else None,
        basis=estimate.basis,
        memory_text=estimate.memory_text,
        memory_margin_bytes=None if margin is None else round(margin[0]),
        memory_margin_share=None if margin is None else margin[1],
        batch_size=estimate.case.batch_size if not row.parts else None,
        feed_images_per_s=images_per_s,
        feed_vcpus=None if images_per_s is None else images_per_s / IMAGES_PER_VCPU_S,
        extrapolated=any(finding.kind is FindingKind.OUT_OF_DOMAIN for finding in row.findings),
        also_at=tuple(_elsewhere(offer, rows, same)),
    )


_PLACE = ("provider", "instance", "region", "gpu_count", "pricing")
_OF_OFFER = (*_PLACE, "gpu_key", "price_date", "in_stock", "stock_date", "vcpus")
_RANGES = ("expected_usd_per_hour", "samples_per_s", "hours", "cost_usd")
_OF_ROW = (
    *(f"{name}{end}" for name in _RANGES for end in ("", "_low", "_high")),
    "price_age_days",
    "parallel_mode",
    "fits_memory",
    "findings",
)


def _label(offer: Offer, machine: Ownership | None) -> PriceLabel:
    if offer.pricing is not Pricing.OWNED:
        return "single host" if offer.kind == "marketplace" else "list"
    return "quote" if machine is None else _OF_CARDS[machine.condition]


_OF_CARDS: Mapping[str, PriceLabel] = {
    "new": "new",
    "used": "used",
    "launch price": "launch price",
    "unstated": "unlabeled",
    "quoted": "quote",
}


def _regions(offer: Offer, same: Offers) -> tuple[str, ...]:
    """Return where this provider has so many of this GPU, paid alike; the offer's own region first."""
    alike = (
        same.provider.equals(offer.provider)
        & same.gpu_count.equals(offer.gpu_count)
        & same.pricing.equals(offer.pricing)
    )
    regions = (offer.region, *same.where(alike).region.cells())
    return tuple(region for region in dict.fromkeys(regions) if region)


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


def _memory_margin(row: RankedOffer, spec: GpuSpec | None) -> tuple[float, float] | None:
    """Return what the card has above the upper end of the need: bytes, and as a share of the card."""
    card = None if spec is None else card_of(spec)
    needs = [part.device_bytes_high for part in row.estimates]
    known = [need for need in needs if need is not None]
    if card is None or len(known) < len(needs):
        return None
    free = card.usable_bytes - max(known)
    return free, free / card.listed_bytes


def decide(
    request: RankRequest,
    rows: Rows,
    chances: Chances,
    specs: Mapping[str, GpuSpec],
    *,
    changes: Iterable[Change],
    job: Job | None,
    machines: Mapping[Offer, Ownership],
    to_own: RankedOffer | None,
    to_rent: Sequence[Choice],
    buy_or_rent: Iterable[BuyOrRent],
    photograph_share: float,
    asks: Mapping[AskKey, Asks],
    measurement: FindingOut | None,
) -> Decision:
    """Return what to pay for.

    Args:
        request: What was asked.
        rows: Every row of the ranking, best first; at least one.
        chances: How sure their order is.
        specs: The specification table.
        changes: What would make the runner-up the better.
        job: What hours and dollars are of.
        machines: What owning means, for owned offers.
        to_own: The best hardware to buy where none is among the rows.
        to_rent: Beside hardware to own, the best to rent on demand of each source, best first.
        buy_or_rent: How owned hardware compares with renting.
        photograph_share: Of the samples, which the vCPUs of a host must prepare.
        asks: What hosts of marketplaces ask for each GPU.
        measurement: The one that is worth most before choosing.
    """

    def choice(row: RankedOffer | None) -> Choice | None:
        if row is None:
            return None
        return choice_of(
            request,
            row,
            rows,
            specs,
            photograph_share=photograph_share,
            machine=machines.get(row.offer),
            asks=asks,
        )

    best = rows.at(rows.best_to_rent_and_to_own)
    by_gpu = tuple(found for row in best if (found := choice(row)))
    first = by_gpu[0]
    runner_up = choice(None if rows.runner_up is None else rows[rows.runner_up])
    return Decision(
        job=job,
        choice=first,
        runner_up=runner_up,
        sureness=chances.sureness,
        sureness_independent=chances.sureness_independent,
        sureness_at_these_prices=chances.sureness_at_these_prices,
        changes=tuple(changes),
        rather_rent=_rather_rent(first, to_rent, buy_or_rent),
        best_cloud=choice(_best(rows, "cloud")) or _of_source(to_rent, "cloud"),
        best_marketplace=choice(_best(rows, "marketplace")) or _of_source(to_rent, "marketplace"),
        best_to_own=choice(_best(rows, "own") or to_own),
        by_gpu=by_gpu,
        finding_out=measurement,
        unfitted=_unfitted(request, first, runner_up),
    )


def to_pay(decision: Decision) -> Choice:
    """Return what to pay for: the choice, unless that is a purchase that had rather be rented."""
    return decision.rather_rent or decision.choice


def second_best(decision: Decision) -> Choice | None:
    """Return the runner-up: where a purchase had rather be rented, that purchase."""
    return decision.choice if decision.rather_rent else decision.runner_up


def _of_source(choices: Iterable[Choice], source: Source) -> Choice | None:
    return next((each for each in choices if each.source == source), None)


def _rather_rent(first: Choice, to_rent: Iterable[Choice], buy_or_rent: Iterable[BuyOrRent]) -> Choice | None:
    """Return the rent that does the work for less than hardware to buy that never pays for itself."""
    weighed = against_rent_by_the_hour(first, buy_or_rent)
    if first.purchase_usd is None or weighed is None or pays(weighed):
        return None
    return next((each for each in to_rent if _is_cheaper(each, first)), None)


def against_rent_by_the_hour(choice: Choice, buy_or_rent: Iterable[BuyOrRent]) -> BuyOrRent | None:
    """Return how hardware to own compares with rent on demand; None of what is rented itself."""
    if choice.source != "own":
        return None
    one = (choice.instance, choice.gpu_key, choice.gpu_count, Pricing.ON_DEMAND)
    return next(
        (
            each
            for each in buy_or_rent
            if one == (each.instance, each.gpu_key, each.gpu_count, each.against_pricing)
        ),
        None,
    )


def _is_cheaper(rent: Choice, own: Choice) -> bool:
    """Whether the job costs less; without a job, and of jobs that share a start, whether a sample does."""
    is_long = own.hours is not None and own.hours >= SESSION_HOURS
    if is_long and rent.cost_usd is not None and own.cost_usd is not None:
        return rent.cost_usd < own.cost_usd
    return rent.expected_usd_per_hour / rent.samples_per_s < own.expected_usd_per_hour / own.samples_per_s


def _unfitted(request: RankRequest, first: Choice, runner_up: Choice | None) -> str | None:
    """Say that what decides is predicted without a fit: of inference hardly any row is published."""
    decisive = [choice for choice in (first, runner_up) if choice is not None]
    if request.task != "infer" or all(choice.basis != "predicted" for choice in decisive):
        return None
    return "speeds of inference are predicted from few published measurements"


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
    return msgspec.structs.replace(
        row, rank=0, tie=False, p_best=None, p_best_independent=None, p_near_best=None, p_top3=None
    )


def _best(rows: Rows, source: Source) -> RankedOffer | None:
    alike = kinds_of(rows.offers.pricing, rows.offers.kind)
    of_source = [source_of(*each) == source for each in alike.values]
    among = np.flatnonzero(np.array(of_source, dtype=bool)[alike.codes])
    return rows[int(among[0])] if len(among) else None
