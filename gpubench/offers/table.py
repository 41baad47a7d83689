"""The offers that ranking reads, the rows that were kept aside, and how tables lie over one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec

from gpubench.models import Offer, Pricing
from gpubench.offers.dates import price_day
from gpubench.offers.moves import PriceChange, change_of
from gpubench.specs import load_specs

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


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's complete answer of one day speaks for: what it does not list there is not on sale.

    Attributes:
        day: The day of the answer (YYYY-MM-DD); prices of a later day are not its business.
        vendors: Whose GPUs the answer lists: an interface that files others elsewhere says nothing of them.
        gpu_keys: The GPUs that were asked for; empty is every one.
        whole_provider: Whether it speaks for other tables' prices too, not only for the same source's.
    """

    provider: str
    day: str
    pricings: tuple[Pricing, ...]
    vendors: tuple[str, ...]
    gpu_keys: tuple[str, ...] = ()
    whole_provider: bool = True

    def holds(self, offer: Offer) -> bool:
        """Return whether the answer would list this offer if it were still on sale."""
        spec = load_specs().get(offer.gpu_key)
        return (
            offer.provider == self.provider
            and offer.pricing in self.pricings
            and offer.kind not in NOT_RANKED
            and (not self.gpu_keys or offer.gpu_key in self.gpu_keys)
            and spec is not None
            and spec.vendor in self.vendors
            and price_day(offer.price_date) <= price_day(self.day)
        )


class OfferTable(msgspec.Struct, frozen=True, kw_only=True):
    """Offers in the order of their tables; ``notes`` are about whole files (a damaged snapshot).

    ``own`` are the keys of those that the user gave for this one question: they are taken as they are.
    ``is_own`` says that all of this table's are.
    ``covers`` is what the table is complete in; ``retired`` are offers that such a table no longer lists.
    ``changes`` is what list prices did from one table to the next.
    """

    offers: tuple[Offer, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    notes: tuple[str, ...] = ()
    covers: tuple[Coverage, ...] = ()
    retired: tuple[Offer, ...] = ()
    own: frozenset[OfferKey] = frozenset()
    is_own: bool = False
    changes: tuple[PriceChange, ...] = ()


offer_key: Callable[[Offer], OfferKey] = attrgetter("provider", "instance", "region", "pricing", "term_years")
"""What identifies an offer."""


def overlay(tables: Iterable[OfferTable]) -> OfferTable:
    """Lay tables over one another, least trusted first.

    A later offer replaces an earlier one of its key; where a later table is complete, an earlier offer that
    it does not list is retired.
    """
    offers: dict[OfferKey, Offer] = {}
    set_aside: list[SetAside] = []
    notes: list[str] = []
    own: set[OfferKey] = set()
    covers: list[Coverage] = []
    retired: list[Offer] = []
    changes: list[PriceChange] = []
    for table in tables:
        own |= table.own
        covers += table.covers
        retired += table.retired
        gone = _gone(offers, table)
        retired += [offers.pop(key) for key in gone]
        changes += table.changes
        fresh = dict(zip(map(offer_key, table.offers), table.offers, strict=True))
        known = filter(offers.__contains__, fresh)
        changes += [change for key in known if (change := change_of(offers[key], fresh[key]))]
        offers.update(fresh)
        if table.is_own:
            own.update(fresh)
        set_aside += table.set_aside
        notes += table.notes
    return OfferTable(
        offers=tuple(offers.values()),
        set_aside=tuple(set_aside),
        notes=tuple(notes),
        covers=tuple(covers),
        retired=tuple(retired),
        own=frozenset(own),
        changes=tuple(changes),
    )


def _gone(below: Mapping[OfferKey, Offer], table: OfferTable) -> Sequence[OfferKey]:
    """Return the offers below that a table would list if they were still on sale, and does not."""
    covers: dict[str, list[Coverage]] = {}
    for cover in table.covers:
        if cover.whole_provider:
            covers.setdefault(cover.provider, []).append(cover)
    if not covers:
        return ()
    listed = {offer_key(offer) for offer in table.offers}
    theirs = ((key, offer) for key, offer in below.items() if offer.provider in covers and key not in listed)
    return [key for key, offer in theirs if any(cover.holds(offer) for cover in covers[offer.provider])]
