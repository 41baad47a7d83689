"""The table of offers for ranking, rows set aside, and the rules by which tables override each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from gpubench.errors import MisuseError
from gpubench.labels import full_name
from gpubench.models import Offer, Pricing
from gpubench.offers.columns import UNTOLD, Offers
from gpubench.offers.dates import PriceChange, change_of, price_day
from gpubench.specs import load_specs
from gpubench.units import count, plain

UNSTATED_NOTE = "form factor not stated: ranked as the slowest variant"

MIN_USD_PER_HOUR, MAX_USD_PER_HOUR = Decimal("0.001"), Decimal(100_000)
"""Limits of a price: the cheapest GPU costs cents an hour, the largest instance a few hundred dollars."""

LEAST_PCIE_BYTES_PER_S = 5e9
"""PCIe bandwidth to a GPU: a slot of eight lanes has 6e9 and more, a riser of one lane under 1e9."""

NOT_RANKED = {
    "attach-fee": "the price of the GPU alone, without the machine that it needs",
    "free": "free of charge: there is no throughput per dollar",
    "historic": "a historic price: kept for comparison, not on sale",
    "index": "a figure of a market: nobody offers it",
    "not-orderable": "listed by its provider, but not to be ordered",
    "capacity-block": "a block of capacity: paid ahead, for set dates",
    "cluster": "a cluster of machines: what its network costs a job is not predicted",
}
"""Kinds of offers without a current price for a machine, and why they are only listed."""

OfferKey: TypeAlias = tuple[str, str, str | None, Pricing, int | None]


class SetAside(NamedTuple):
    """A row set aside: which one (file, line and text), and why."""

    row: str
    reason: str


_FEW = msgspec.Meta(max_length=1_000)
"""Maximum GPUs and vendors in one coverage; the table has about 200."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The scope of a complete answer: an unlisted offer within it is not on sale."""

    provider: str
    day: str
    pricings: Annotated[tuple[Pricing, ...], _FEW]
    vendors: Annotated[tuple[str, ...], _FEW]
    gpu_keys: Annotated[tuple[str, ...], _FEW] = ()
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
    """Offers in the order of their tables; ``notes`` are about entire files (a damaged snapshot).

    ``covers`` are the parts in which the table is complete; ``retired`` are offers that it no longer lists.
    ``changes`` are list price changes from one table to the next. ``origin`` is the author of the table;
    prices of the same author do not confirm each other.
    """

    offers: Sequence[Offer] = ()
    set_aside: tuple[SetAside, ...] = ()
    notes: tuple[str, ...] = ()
    covers: tuple[Coverage, ...] = ()
    retired: tuple[Offer, ...] = ()
    changes: tuple[PriceChange, ...] = ()
    origin: str = UNTOLD


def up_to(table: OfferTable, day: date) -> OfferTable:
    """Set aside prices after a day.

    Otherwise they would count as fresh until that day, in place of an earlier price of the same offer.
    """
    kept: list[Offer] = []
    late: list[SetAside] = []
    for offer in table.offers:
        if price_day(offer.price_date) <= day:
            kept.append(offer)
        else:
            late.append(SetAside(plain(full_name(offer)), f"price of {offer.price_date}, after {day}"))
    return msgspec.structs.replace(table, offers=kept, set_aside=(*table.set_aside, *late))


def require_usable(table: OfferTable, name: str) -> None:
    """Raise MisuseError if the user's table has no offers; otherwise other tables would answer silently."""
    if len(table.offers):
        return
    why = ""
    if table.set_aside:
        rows, first = count(len(table.set_aside), "price row"), table.set_aside[0]
        why = f": {rows} set aside, first {plain(first.row)}: {plain(first.reason)}"
    raise MisuseError(f"{plain(name)} holds no usable offer{why}")


def newest_day(offers: Sequence[Offer]) -> date:
    """Return the day of the newest price, a partial date at its oldest; without prices, the first day."""
    return max(map(price_day, {offer.price_date for offer in offers}), default=date.min)


offer_key: Callable[[Offer], OfferKey] = attrgetter("provider", "instance", "region", "pricing", "term_years")
"""The identity of an offer."""


def overlay(tables: Iterable[OfferTable]) -> OfferTable:
    """Merge tables, least trusted first. A later offer replaces an earlier one with the same key in place.

    If a later table is complete, it retires earlier offers that it does not list.
    """
    below: dict[OfferKey, Offer] = {}
    origins: dict[OfferKey, str] = {}
    set_aside: list[SetAside] = []
    notes: list[str] = []
    covers: list[Coverage] = []
    retired: list[Offer] = []
    changes: list[PriceChange] = []
    for table in tables:
        fresh = {offer_key(offer): offer for offer in table.offers}
        gone = _gone(below, fresh, table.covers)
        covers += table.covers
        retired += (*table.retired, *map(below.pop, gone))
        moves = (change_of(below[key], fresh[key]) for key in fresh if key in below)
        changes += filter(None, moves)
        origins |= dict.fromkeys(fresh, table.origin)
        below |= fresh
        set_aside += table.set_aside
        notes += table.notes
    return OfferTable(
        offers=Offers.of(below.values(), map(origins.__getitem__, below)),
        set_aside=tuple(set_aside),
        notes=tuple(notes),
        covers=tuple(covers),
        retired=tuple(retired),
        changes=tuple(changes),
    )


def _gone(
    below: Mapping[OfferKey, Offer], fresh: Mapping[OfferKey, Offer], covers: Iterable[Coverage]
) -> list[OfferKey]:
    # Return the offers of an earlier table that a complete later table no longer lists.
    by_provider: dict[str, list[Coverage]] = {}
    for cover in covers:
        if cover.whole_provider:
            by_provider.setdefault(cover.provider, []).append(cover)
    return [
        key
        for key, offer in below.items()
        if key not in fresh and any(cover.holds(offer) for cover in by_provider.get(offer.provider, ()))
    ]
