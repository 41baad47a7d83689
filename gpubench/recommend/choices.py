"""From a row of the ranking to a choice: what must be known of an offer before it is paid for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from gpubench.models import (
    Asks,
    Choice,
    Elsewhere,
    FindingKind,
    GpuSpec,
    Offer,
    PriceLabel,
    Pricing,
    RankedOffer,
    Source,
)
from gpubench.offers.moves import AskKey
from gpubench.profile.allowance import card_of
from gpubench.recommend.owning import Ownership
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Rows

IMAGES_PER_VCPU_S = 150.0
"""Photographs that one vCPU augments in a second, assumed: one process of ``gpubench feed`` on a server core,
decoding not counted. That verb measures a host of one's own."""

QUOTA_PROVIDERS = frozenset({"aws", "azure", "gcp", "oci"})
"""Clouds whose new accounts have a quota of no GPU, by their documentation of quotas and service limits; of
the others it is not known."""

MOST_ELSEWHERE = 5


def source_of(offer: Offer) -> Source:
    """Return who has the machine."""
    if offer.pricing is Pricing.OWNED:
        return "own"
    return "marketplace" if offer.kind == "marketplace" else "cloud"


def choice_of(
    request: RankRequest,
    row: RankedOffer,
    rows: Rows,
    specs: Mapping[str, GpuSpec],
    *,
    photographs: Collection[str] = (),
    machine: Ownership | None = None,
    asks: Mapping[AskKey, Asks] = MappingProxyType({}),
) -> Choice:
    """Return all that is known of one offer.

    Args:
        request: What was asked.
        row: The offer's row.
        rows: Every row of the ranking, best first: where else the same GPU is.
        specs: The specification table.
        photographs: Workloads that train on decoded photographs.
        machine: Of owned hardware what it costs.
        asks: What hosts of marketplaces ask for each GPU.
    """
    offer, estimate = row.offer, row.estimate
    ranked = row.rank > 0
    images_per_s = _photographs_per_s(request, row, photographs)
    margin = _memory_margin(row, specs.get(offer.gpu_key))
    same = rows.of_gpu.get(offer.gpu_key, ())
    return Choice(
        source=source_of(offer),
        rank=row.rank if ranked else None,
        provider=offer.provider,
        instance=offer.instance,
        region=offer.region,
        gpu_key=offer.gpu_key,
        gpu_count=offer.gpu_count,
        pricing=offer.pricing,
        price_usd_per_hour=float(offer.price_usd_per_hour),
        price_label=_label(offer, machine),
        price_date=offer.price_date,
        price_age_days=row.price_age_days,
        purchase_usd=None if machine is None else machine.purchase_usd,
        host_usd=None if machine is None else machine.host_usd,
        price_note=offer.note,
        asks=asks.get((offer.gpu_key, offer.pricing)) if offer.kind == "marketplace" else None,
        in_stock=offer.in_stock,
        stock_date=offer.stock_date,
        regions=_regions(offer, (rows.offers[at] for at in same)),
        needs_quota=True if offer.provider in QUOTA_PROVIDERS else None,
        basis=estimate.basis,
        samples_per_s=row.samples_per_s,
        samples_per_s_low=row.samples_per_s_low,
        samples_per_s_high=row.samples_per_s_high,
        hours=row.hours,
        hours_low=row.hours_low,
        hours_high=row.hours_high,
        cost_usd=row.cost_usd,
        cost_usd_low=row.cost_usd_low,
        cost_usd_high=row.cost_usd_high,
        p_best=row.p_best if ranked else None,
        p_best_independent=row.p_best_independent if ranked else None,
        p_best_of_gpu=rows.p_best_of_gpu(offer) if ranked else None,
        p_best_of_gpu_independent=rows.p_best_of_gpu(offer, independent=True) if ranked else None,
        p_near_best=row.p_near_best if ranked else None,
        parallel_mode=row.parallel_mode,
        fits_memory=row.fits_memory,
        memory_text=estimate.memory_text,
        memory_margin_bytes=None if margin is None else round(margin[0]),
        memory_margin_share=None if margin is None else margin[1],
        batch_size=estimate.case.batch_size if not row.parts else None,
        vcpus=offer.vcpus,
        feed_images_per_s=images_per_s,
        feed_vcpus=None if images_per_s is None else images_per_s / IMAGES_PER_VCPU_S,
        extrapolated=any(finding.kind is FindingKind.OUT_OF_DOMAIN for finding in row.findings),
        findings=row.findings,
        also_at=tuple(_elsewhere(offer, rows, same)),
    )


def without_chances(choice: Choice) -> Choice:
    """Return a choice that stands beside the ranking whose rows the chances are of."""
    return msgspec.structs.replace(
        choice,
        p_best=None,
        p_best_independent=None,
        p_best_of_gpu=None,
        p_best_of_gpu_independent=None,
        p_near_best=None,
    )


def _label(offer: Offer, machine: Ownership | None) -> PriceLabel:
    if offer.pricing is not Pricing.OWNED:
        return "single host" if offer.kind == "marketplace" else "list"
    return "quote" if machine is None else _OF_CARDS[machine.condition]


_OF_CARDS: Mapping[str, PriceLabel] = {
    "new": "new",
    "used": "used",
    "unstated": "unlabeled",
    "quoted": "quote",
}


def _regions(offer: Offer, same: Iterable[Offer]) -> tuple[str, ...]:
    """Return where this provider has so many of this GPU, paid alike; the offer's own region first."""
    alike = (
        each.region
        for each in same
        if each.provider == offer.provider
        and each.gpu_count == offer.gpu_count
        and each.pricing is offer.pricing
    )
    return tuple(region for region in dict.fromkeys((offer.region, *alike)) if region)


def _elsewhere(offer: Offer, rows: Rows, same: Iterable[int]) -> Iterator[Elsewhere]:
    best: dict[str, int] = {}
    for at in same:
        provider = rows.offers[at].provider
        if provider != offer.provider and best.setdefault(provider, at) == at and len(best) == MOST_ELSEWHERE:
            break
    for each in rows.at(list(best.values())):
        there = each.offer
        yield Elsewhere(
            provider=there.provider,
            instance=there.instance,
            region=there.region,
            gpu_count=there.gpu_count,
            pricing=there.pricing,
            price_usd_per_hour=float(there.price_usd_per_hour),
            cost_usd=each.cost_usd,
        )


def _photographs_per_s(request: RankRequest, row: RankedOffer, photographs: Collection[str]) -> float | None:
    """Return how many photographs the whole instance takes in a second; None for other data.

    Of several workloads at their geometric mean no job is made, so that nothing need be fed.
    """
    names = request.workload_names
    if request.mix:
        share = sum(request.mix[name] for name in names if name in photographs) / sum(request.mix.values())
    else:
        share = float(len(names) == 1 and names[0] in photographs)
    return row.samples_per_s * share if share else None


def _memory_margin(row: RankedOffer, spec: GpuSpec | None) -> tuple[float, float] | None:
    """Return what the card has above the upper end of the need: bytes, and as a share of the card."""
    card = None if spec is None else card_of(spec)
    needs = [part.device_bytes_high for part in row.parts or (row.estimate,)]
    known = [need for need in needs if need is not None]
    if card is None or len(known) < len(needs):
        return None
    free = card.usable_bytes - max(known)
    return free, free / card.listed_bytes
