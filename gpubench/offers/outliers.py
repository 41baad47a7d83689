"""Is a fresh price believable beside the last one known? A jump is set aside, a mere difference is noted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

import msgspec

from gpubench.models import Offer, Pricing
from gpubench.offers.table import OfferKey, OfferTable, SetAside, offer_key
from gpubench.units import format_number, format_usd, plain

MAX_RATIO = 5.0
"""Beyond this ratio to the last known price of the same instance a price is taken for a mistake. Between
providers the same GPU costs up to 7 times as much, so there it is only noted."""


class Sorted(NamedTuple):
    """The offers that are believed, and the identities of those whose price jumped."""

    table: OfferTable
    jumped: frozenset[OfferKey]


def sort_outliers(fresh: OfferTable, known: Iterable[Offer], *, accept: bool = False) -> Sorted:
    """Set aside what jumped against its own last price, and note what stands far from all others.

    Args:
        fresh: New offers.
        known: Offers known before; historic ones are no standard.
        accept: Keep the jumps too.
    """
    before = {offer_key(offer): offer for offer in known}
    middles = _medians(before.values())
    kept: list[Offer] = []
    set_aside = list(fresh.set_aside)
    jumped: set[OfferKey] = set()
    for offer in fresh.offers:
        last = before.get(offer_key(offer))
        if last is None or not last.price_usd_per_hour or not offer.price_usd_per_hour:
            kept.append(_noted(offer, middles))
            continue
        ratio = _per_gpu(offer) / _per_gpu(last)
        if accept or 1 / MAX_RATIO <= ratio <= MAX_RATIO:
            kept.append(offer)
        else:
            jumped.add(offer_key(offer))
            set_aside.append(SetAside(_describe(offer), _reason(offer, last, ratio)))
    table = msgspec.structs.replace(fresh, offers=tuple(kept), set_aside=tuple(set_aside))
    return Sorted(table, frozenset(jumped))


def _per_gpu(offer: Offer) -> float:
    return float(offer.price_usd_per_hour) / offer.gpu_count


def _medians(offers: Iterable[Offer]) -> Mapping[tuple[str, Pricing], float]:
    prices: dict[tuple[str, Pricing], list[float]] = defaultdict(list)
    for offer in offers:
        if offer.kind not in {"historic", "free", "attach-fee"}:
            prices[offer.gpu_key, offer.pricing].append(_per_gpu(offer))
    return {key: median(values) for key, values in prices.items()}


def _noted(offer: Offer, middles: Mapping[tuple[str, Pricing], float]) -> Offer:
    middle = middles.get((offer.gpu_key, offer.pricing))
    ratio = None if middle is None else _per_gpu(offer) / middle
    if ratio is None or 1 / MAX_RATIO <= ratio <= MAX_RATIO:
        return offer
    words = f"{format_number(ratio, 2)} times the median of this GPU elsewhere: check before relying on it"
    return msgspec.structs.replace(offer, note=f"{offer.note}; {words}" if offer.note else words)


def _describe(offer: Offer) -> str:
    return plain(f"{offer.provider} {offer.instance} {offer.region or ''}".strip())


def _reason(offer: Offer, last: Offer, ratio: float) -> str:
    new, old = (format_usd(float(o.price_usd_per_hour)) for o in (offer, last))
    return (
        f"{offer.pricing} price {new} is {format_number(ratio, 2)} times the {old} of {last.price_date}; "
        "the old price is kept (--accept-outliers takes the new one)"
    )
