"""The offers that ranking reads, the rows that were kept aside, and how tables lie over one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from gpubench.arrays import Flags
from gpubench.errors import MisuseError
from gpubench.models import Offer, Pricing
from gpubench.offers.columns import Offers
from gpubench.offers.dates import PriceChange, change_of, price_day
from gpubench.specs import load_specs
from gpubench.units import count, plain

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

    ``covers`` is what the table is complete in; ``retired`` are offers that such a table no longer lists.
    ``changes`` is what list prices did from one table to the next.
    """

    offers: Sequence[Offer] = ()
    set_aside: tuple[SetAside, ...] = ()
    notes: tuple[str, ...] = ()
    covers: tuple[Coverage, ...] = ()
    retired: tuple[Offer, ...] = ()
    changes: tuple[PriceChange, ...] = ()


def up_to(table: OfferTable, day: date, name: Callable[[Offer], str], why: str) -> OfferTable:
    """Set aside the prices of later days, each row by its name, and ``why`` with its date in it.

    Else they would count as fresh until their day has passed, in place of an earlier price of the same offer.
    """
    offers = Offers.of(table.offers)
    is_late = offers.price_date.is_in(lambda price_date: price_day(price_date) > day)
    late = tuple(SetAside(plain(name(o)), why.format(date=o.price_date)) for o in offers.where(is_late))
    kept = offers.where(~is_late)
    return msgspec.structs.replace(table, offers=kept, set_aside=(*table.set_aside, *late))


def require_usable(table: OfferTable, name: str) -> None:
    """Raise MisuseError unless a table that the user names holds an offer; others would answer for it."""
    if len(table.offers):
        return
    why = ""
    if table.set_aside:
        rows, first = count(len(table.set_aside), "price row"), table.set_aside[0]
        why = f": {rows} set aside, first {plain(first.row)}: {plain(first.reason)}"
    raise MisuseError(f"{plain(name)} holds no usable offer{why}")


def newest_day(offers: Sequence[Offer]) -> date:
    """Return the day of the newest price, a partial one at its oldest; the first of all days of none."""
    return max(map(price_day, Offers.of(offers).price_date.present), default=date.min)


offer_key: Callable[[Offer], OfferKey] = attrgetter("provider", "instance", "region", "pricing", "term_years")
"""What identifies an offer."""


def overlay(tables: Iterable[OfferTable]) -> OfferTable:
    """Lay tables over one another, least trusted first.

    A later offer replaces an earlier one of its key; where a later table is complete, an earlier offer that
    it does not list is retired.
    """
    below = Offers.of(())
    set_aside: list[SetAside] = []
    notes: list[str] = []
    covers: list[Coverage] = []
    retired: list[Offer] = []
    changes: list[PriceChange] = []
    for table in tables:
        covers += table.covers
        retired += table.retired
        fresh = _latest(Offers.of(table.offers))
        gone = _gone(below, fresh, table.covers)
        retired += below.where(gone)
        below = below.where(~gone)
        old, new = _pairs(below, fresh)
        changes += [
            change for at, by in zip(old, new, strict=True) if (change := change_of(below[at], fresh[by]))
        ]
        places = np.arange(len(below))  # each in the place of the one that it replaces, new ones at the end
        places[old] = len(below) + np.array(new, dtype=np.int64)
        added = len(below) + np.delete(np.arange(len(fresh)), new)
        below = Offers.joined(below, fresh).take(np.concatenate([places, added]))
        set_aside += table.set_aside
        notes += table.notes
    return OfferTable(
        offers=below,
        set_aside=tuple(set_aside),
        notes=tuple(notes),
        covers=tuple(covers),
        retired=tuple(retired),
        changes=tuple(changes),
    )


def _keys(offers: Offers) -> Sequence[OfferKey]:
    """Return what identifies each offer."""
    return list(
        zip(
            offers.provider.cells(),
            offers.instances,
            offers.region.cells(),
            offers.pricing.cells(),
            offers.term_years.cells(),
            strict=True,
        )
    )


def _latest(offers: Offers) -> Offers:
    """Return the last offer of each key, in the place of the first."""
    names = offers.instances
    if len(set(names)) == len(names):
        return offers
    last = {key: at for at, key in enumerate(_keys(offers))}
    return offers.take(list(last.values()))


def _pairs(below: Offers, fresh: Offers) -> tuple[list[int], list[int]]:
    """Return the places of the offers that are in both, there and here."""
    known = set(below.instances)
    places = [at for at, name in enumerate(fresh.instances) if name in known]
    if not places:
        return [], []
    there = {key: at for at, key in enumerate(_keys(below))}
    alike = [
        (there[key], at) for at, key in zip(places, _keys(fresh.take(places)), strict=True) if key in there
    ]
    return [at for at, _ in alike], [at for _, at in alike]


def _gone(below: Offers, fresh: Offers, covers: Iterable[Coverage]) -> Flags:
    """Return which offers below a table would list if they were still on sale, and does not."""
    gone = np.zeros(len(below), dtype=bool)
    by_provider: dict[str, list[Coverage]] = {}
    for cover in covers:
        if cover.whole_provider:
            by_provider.setdefault(cover.provider, []).append(cover)
    if by_provider:
        listed = set(_keys(fresh))
        theirs = np.flatnonzero(below.provider.is_in(by_provider.__contains__))
        for at, key in zip(theirs.tolist(), _keys(below.take(theirs)), strict=True):
            held = by_provider[below[at].provider]
            gone[at] = key not in listed and any(cover.holds(below[at]) for cover in held)
    return gone
