"""Which offers a buyer asked to see, and how old each price is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from decimal import Decimal

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import Offer
from gpubench.names import nearest
from gpubench.offers.columns import Offers
from gpubench.offers.dates import freshness, price_age_days
from gpubench.offers.outliers import ADMITTED_BY, Market
from gpubench.offers.regions import is_in
from gpubench.offers.request import OffersRequest
from gpubench.offers.table import NOT_RANKED
from gpubench.options import check_fields
from gpubench.specs import load_specs, matching_keys
from gpubench.units import plain

ANY_REGION = "any"


class ListedOffer(msgspec.Struct, frozen=True, kw_only=True):
    """An offer with what follows from it on one day; a free one has no price per GPU-hour."""

    offer: Offer
    usd_per_gpu_hour: Decimal | None
    price_age_days: int
    freshness: str
    not_ranked_because: str | None


def known_providers(wanted: Iterable[str], there: Iterable[str]) -> frozenset[str]:
    """Return the providers asked for in lower case; one that is not there would only hide every price.

    Raises:
        MisuseError: For the first that is unknown, with the nearest that are known.
    """
    known = sorted({provider.casefold() for provider in there})
    names = frozenset(name.casefold() for name in wanted)
    for name in sorted(names.difference(known)):
        near = ", ".join(nearest(name, known, cutoff=0.0))
        raise MisuseError(f"unknown provider {plain(name)!r}; nearest known: {plain(near, 300)}")
    return names


def known_regions(
    wanted: Iterable[str], there: Iterable[str | None], more: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the regions asked for in lower case: those there, parts of the world, and ``more``.

    Raises:
        MisuseError: For the first that no offer is in, with the nearest that are known.
    """
    known = sorted({region.casefold() for region in there if region} | {*more})
    names = tuple(name.casefold() for name in wanted)
    for name in names:
        if not any(is_in(region, name) for region in known):
            near = ", ".join(nearest(name, known)) or "none; eu, us and asia are known too"
            raise MisuseError(f"unknown region {plain(name)!r}; nearest known: {near}")
    return names


def list_offers(offers: Iterable[Offer], wanted: OffersRequest, today: date) -> tuple[ListedOffer, ...]:
    """Return the offers that pass a filter, cheapest GPU-hour first.

    Args:
        offers: Every offer known: a price is judged by what the others ask, unless the user gave it.
        wanted: What to show.
        today: The day that ages count to.

    Raises:
        MisuseError: If a GPU, provider, region or choice is unknown, or a figure is outside of its limits.
    """
    check_fields(wanted)
    every = Offers.of(offers)
    keys = frozenset(key for name in wanted.gpus for key in matching_keys(name))
    providers = known_providers(wanted.providers, every.provider.present)
    regions = known_regions(wanted.regions, every.region.present, [ANY_REGION])
    pricings = {*wanted.pricings, *(["spot"] if wanted.spot else [])}
    most_usd = None if wanted.max_usd_per_hour is None else Decimal(str(wanted.max_usd_per_hour))

    def passes(offer: Offer) -> bool:
        return (
            (not providers or offer.provider.casefold() in providers)
            and (not regions or any(is_in(offer.region or ANY_REGION, name) for name in regions))
            and (not wanted.gpus or offer.gpu_key in keys)
            and (not wanted.kinds or offer.kind in wanted.kinds)
            and (not pricings or str(offer.pricing) in pricings)
            and (wanted.count is None or offer.gpu_count == wanted.count)
            and (most_usd is None or offer.price_usd_per_hour <= most_usd)
        )

    market = Market(every)
    doubted = market.doubted(every) & ~every.by_user
    listed = [
        _listed(offer, today, _why_not_ranked(offer, market.doubt(offer) if is_doubted else None))
        for offer, is_doubted in zip(every, doubted.tolist(), strict=True)
        if passes(offer)
    ]
    return tuple(sorted(listed, key=_cheapest_first))


def _cheapest_first(row: ListedOffer) -> tuple[bool, Decimal, str, str]:
    free = row.usd_per_gpu_hour is None
    return free, row.usd_per_gpu_hour or Decimal(0), row.offer.provider, row.offer.instance


def _why_not_ranked(offer: Offer, doubt: str | None) -> str | None:
    """Return why an offer is listed for information only; None where it can be ranked."""
    spec = load_specs().get(offer.gpu_key)
    never = NOT_RANKED.get(offer.kind) or (spec.not_ranked_because if spec else None)
    if never is not None:
        return never
    return None if doubt is None else f"{doubt}; gpubench rank {ADMITTED_BY} ranks it"


def _listed(offer: Offer, today: date, not_ranked_because: str | None) -> ListedOffer:
    age_days = price_age_days(offer, today)
    return ListedOffer(
        offer=offer,
        usd_per_gpu_hour=offer.price_usd_per_hour / offer.gpu_count if offer.price_usd_per_hour else None,
        price_age_days=age_days,
        freshness=freshness(age_days),
        not_ranked_because=not_ranked_because,
    )
