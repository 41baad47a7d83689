"""The offers that ranking reads, the rows that were kept aside, and how tables lie over one another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import msgspec

from gpubench.models import Offer, Pricing

UNSTATED_NOTE = "form factor not stated: ranked as the slowest variant"

NOT_RANKED = {
    "attach-fee": "the price of the GPU alone, without the machine that it needs",
    "free": "free of charge: there is no throughput per dollar",
    "historic": "a historic price: kept for comparison, not on sale",
}
"""Kinds of offers whose price is no price of a machine today, and why they are only listed."""

OfferKey: TypeAlias = tuple[str, str, str | None, Pricing, int | None]


class SetAside(NamedTuple):
    """A row that is not offered: which one (file, line and words of it), and why."""

    row: str
    reason: str


class OfferTable(msgspec.Struct, frozen=True, kw_only=True):
    """Offers in the order of their tables; ``notes`` are about whole files (a damaged snapshot).

    ``own`` are the keys of those that the user gave for this one question: they are taken as they are.
    """

    offers: tuple[Offer, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    notes: tuple[str, ...] = ()
    own: frozenset[OfferKey] = frozenset()


def offer_key(offer: Offer) -> OfferKey:
    """Return what identifies an offer: provider, instance, region, pricing and term."""
    return offer.provider, offer.instance, offer.region, offer.pricing, offer.term_years


def overlay(tables: Iterable[OfferTable]) -> OfferTable:
    """Lay tables over one another, least trusted first: a later offer replaces an earlier one of its key."""
    offers: dict[OfferKey, Offer] = {}
    set_aside: list[SetAside] = []
    notes: list[str] = []
    own: set[OfferKey] = set()
    for table in tables:
        own |= table.own
        offers.update((offer_key(offer), offer) for offer in table.offers)
        set_aside += table.set_aside
        notes += table.notes
    return OfferTable(
        offers=tuple(offers.values()), set_aside=tuple(set_aside), notes=tuple(notes), own=frozenset(own)
    )
