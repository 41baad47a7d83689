"""The table of offers: its columns, rows set aside, how tables override each other, and the prices of hosts.

Offers are plain structs; columns of their fields are made on demand, as arrays for the ranking. A listing on
a marketplace is one host's price at one moment. If it is gone tomorrow, another host's price applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import cached_property
from itertools import chain
from operator import attrgetter
from statistics import fmean, median
from typing import Annotated, Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

import msgspec
import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.errors import MisuseError
from gpubench.groups import grouped
from gpubench.labels import full_name
from gpubench.models import Asks, Offer, Pricing
from gpubench.models.catalog import Seller
from gpubench.offers.dates import PriceChange, change_of, price_day
from gpubench.specs import load_specs
from gpubench.stats import Z90
from gpubench.units import count, plain

# --- columns --------------------------------------------------------------------------------------------

T = TypeVar("T", bound=Hashable)
M = TypeVar("M")


class Column(NamedTuple, Generic[T]):
    """A dictionary-encoded column: ``codes`` (N,) are indexes into the distinct ``values``."""

    codes: Indices
    values: Sequence[T]

    def take(self, rows: Indices) -> Column[T]:
        """Return the column at these rows."""
        return Column(self.codes[rows], self.values)

    def is_in(self, test: Callable[[T], bool]) -> Flags:
        """Return which cells pass a test; the test runs once per distinct value."""
        return np.fromiter(map(test, self.values), bool, len(self.values))[self.codes]

    def equals(self, value: T) -> Flags:
        """Return which cells equal this value."""
        return self.is_in(lambda each: each == value)

    def figures(self, number_of: Callable[[T], float]) -> Floats:
        """Return a number for each cell, computed once per distinct value."""
        return np.fromiter(map(number_of, self.values), float, len(self.values))[self.codes]

    @property
    def present(self) -> list[T]:
        """The values that occur in at least one cell, in the order of ``values``."""
        return [self.values[code] for code in np.unique(self.codes).tolist()]

    def cells(self) -> list[T]:
        """Return the value of every row."""
        return list(map(self.values.__getitem__, self.codes.tolist()))


def _column_of(cells: Iterable[T]) -> Column[T]:
    # Encode cells as a column, with values in order of first occurrence.
    every = list(cells)
    place = {cell: at for at, cell in enumerate(dict.fromkeys(every))}
    return Column(np.fromiter(map(place.__getitem__, every), np.int64, len(every)), tuple(place))


def kinds_of(*columns: Column[Any]) -> Column[tuple[Any, ...]]:
    """Combine columns into one; its values are the distinct combinations, in order of first occurrence."""
    codes = columns[0].codes
    for column in columns[1:]:
        codes = codes * len(column.values) + column.codes
    _, first, kinds = np.unique(codes, return_index=True, return_inverse=True)
    in_order = np.argsort(first)
    values = zip(*(column.take(first[in_order]).cells() for column in columns), strict=True)
    return Column(np.argsort(in_order)[kinds], tuple(values))


def places_by_kind(kinds: Indices) -> Mapping[int, Indices]:
    """Return the positions of each kind; kinds are in order of first occurrence."""
    by_kind = np.argsort(kinds, kind="stable")
    parts = np.split(by_kind, np.flatnonzero(np.diff(kinds[by_kind])) + 1) if len(kinds) else []
    return {int(kinds[part[0]]): part for part in sorted(parts, key=lambda part: int(part[0]))}


_USD = "price in USD"  # a column beside the fields of an offer
BY_USER = "the user"
"""The origin of offers that the user gave for this request; they are not checked against other prices."""
UNSTATED = ""
"""The origin of shipped offers and of offers without a stated origin."""


class Offers(Sequence[Offer]):
    """A selection of rows from a table of offers; each field of ``Offer`` is also a column of these rows."""

    provider: Column[str]
    region: Column[str | None]
    gpu_key: Column[str]
    gpu_count: Column[int]
    vcpus: Column[float | None]
    pricing: Column[Pricing]
    term_years: Column[int | None]
    kind: Column[str]
    price_date: Column[str]

    def __init__(
        self, whole: Sequence[Offer], origins: Column[str], rows: Indices, columns: dict[str, Column[Any]]
    ) -> None:
        self._whole, self._origins, self._rows, self._columns = whole, origins, rows, columns
        self._made: dict[Callable[[Offers], Any], Any] = {}  # the results of ``cached``

    def __getattr__(self, name: str) -> Column[Any]:
        # Return the column of a field; it is computed once for all selections from a table.
        if name not in Offer.__struct_fields__:
            raise AttributeError(name)
        if name not in self._columns:
            self._columns[name] = _column_of(map(attrgetter(name), self._whole))
        return self._columns[name].take(self._rows)

    @classmethod
    def of(cls, offers: Iterable[Offer], origins: Iterable[str] | None = None) -> Offers:
        """Return offers with their columns and origins; without ``origins``, every origin is unstated."""
        if isinstance(offers, Offers):
            return offers
        every = tuple(offers)
        of_each = _column_of([UNSTATED] * len(every) if origins is None else origins)
        return cls(every, of_each, np.arange(len(every)), {})

    def joined(self, others: Offers) -> Offers:
        """Return these offers followed by others.

        If the others are from another table, the result is from a new table, which starts with this one.
        """
        if others._whole is self._whole:  # the columns can be reused
            return self._at(np.concatenate([self._rows, others._rows]))
        return Offers(
            (*self._whole, *others._whole),
            _column_of(chain(self._origins.cells(), others._origins.cells())),
            np.concatenate([self._rows, others._rows + len(self._whole)]),
            {},
        )

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Offer: ...
    @overload
    def __getitem__(self, at: slice) -> Offers: ...
    def __getitem__(self, at: int | slice) -> Offer | Offers:
        if isinstance(at, slice):
            return self._at(self._rows[at])
        return self._whole[int(self._rows[at])]

    def __iter__(self) -> Iterator[Offer]:
        return map(self._whole.__getitem__, self._rows.tolist())

    def _at(self, rows: Indices) -> Offers:
        return Offers(self._whole, self._origins, rows, self._columns)

    def take(self, rows: Indices | Sequence[int]) -> Offers:
        """Return the offers at these positions."""
        return self._at(self._rows[np.asarray(rows, dtype=np.int64)])

    def where(self, flags: Flags) -> Offers:
        """Return the offers that are flagged."""
        return self._at(self._rows[flags])

    def are_in(self, others: Offers) -> Flags:
        """Return which of these offers are also in another selection from the same table."""
        return np.isin(self._rows, others._rows)

    def flagged_in(self, others: Offers, flags: Flags) -> Flags:
        """Return which of these offers are flagged in another selection; False if they are not in it.

        The other selection is from the same table, or from the table with which this one starts (``joined``).
        """
        every = np.zeros(len(self._whole), dtype=bool)
        every[others._rows] = flags
        return every[self._rows]

    def cached(self, make: Callable[[Offers], M]) -> M:
        """Return a value computed from these offers, cached."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]  # type: ignore[no-any-return]

    @cached_property
    def price(self) -> Floats:
        """The listed price of each instance [USD/h]."""
        if _USD not in self._columns:  # computed once for all selections from a table
            usd = np.array([float(offer.price_usd_per_hour) for offer in self._whole], dtype=float)
            self._columns[_USD] = Column(np.arange(len(usd)), usd)  # type: ignore[arg-type]  # an array, to be fast
        return np.asarray(self._columns[_USD].values)[self._rows]

    @cached_property
    def by_name(self) -> Indices:
        """The sort position of each offer by name: provider, then instance, region, pricing and GPU."""
        columns: list[Column[Any]] = [self.gpu_key, self.pricing, self.region, self.instance, self.provider]
        texts = [[str(value or "") for value in column.values] for column in columns]
        ranks = [np.argsort(np.argsort(text)) for text in texts]
        keys = [rank[column.codes] for rank, column in zip(ranks, columns, strict=True)]
        return np.argsort(np.lexsort(keys))

    @cached_property
    def usd_per_gpu_hour(self) -> Floats:
        """The listed price of each instance, per GPU [USD/h]."""
        return self.price / self.gpu_count.figures(float)

    @property
    def origin(self) -> Column[str]:
        """The origin of each offer: a refresh, an imported table, or the user."""
        return self._origins.take(self._rows)

    @cached_property
    def by_user(self) -> Flags:
        """Whether the user gave each offer for this request."""
        return self.origin.equals(BY_USER)

    @property
    def is_owned(self) -> Flags:
        """Whether each offer is hardware to own."""
        return self.pricing.equals(Pricing.OWNED)


# --- tables ---------------------------------------------------------------------------------------------

UNSTATED_NOTE = "form factor not stated: ranked as the slowest variant"

MIN_USD_PER_HOUR, MAX_USD_PER_HOUR = Decimal("0.001"), Decimal(100_000)
"""Limits of a price: the cheapest GPU costs cents per hour, the largest instance a few hundred dollars."""

LEAST_PCIE_BYTES_PER_S = 5e9
"""Minimum PCIe bandwidth to a GPU: an eight-lane slot has at least 6e9, a one-lane riser under 1e9."""

NOT_RANKED = {
    "attach-fee": "the price of the GPU alone, without the machine that it needs",
    "free": "free of charge: there is no throughput per dollar",
    "historic": "a historic price: kept for comparison, not on sale",
    "index": "a market figure: nobody offers it",
    "not-orderable": "listed by its provider, but cannot be ordered",
    "capacity-block": "a block of capacity: paid in advance, for fixed dates",
    "cluster": "a cluster of machines: how much its network slows a job is not predicted",
}
"""Kinds of offers that are listed but not ranked, with reasons: they have no current price of a machine."""

OfferKey: TypeAlias = tuple[str, str, str | None, Pricing, int | None]


class SetAside(NamedTuple):
    """A row that was set aside: which one (file, line and text), and why."""

    row: str
    reason: str


# Maximum number of GPUs and of vendors in one coverage; the GPU table has about 200 rows.
_FEW = msgspec.Meta(max_length=1_000)


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The scope in which a source's answer is complete: an offer in it that is not listed is not on sale.

    Unless ``whole_provider`` is set, the scope has only offers that the same source listed before.
    """

    provider: str
    day: str
    pricings: Annotated[tuple[Pricing, ...], _FEW]
    vendors: Annotated[tuple[str, ...], _FEW]
    gpu_keys: Annotated[tuple[str, ...], _FEW] = ()
    whole_provider: bool = True

    def applies_to(self, offer: Offer) -> bool:
        """Return whether a complete answer would list this offer if it were still on sale."""
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

    ``covers`` are the parts for which the table is complete; ``retired`` are offers that it no longer lists.
    ``changes`` are list price changes from one table to the next. ``origin`` is the author of the table;
    prices of the same author do not confirm each other.
    """

    offers: Sequence[Offer] = ()
    set_aside: tuple[SetAside, ...] = ()
    notes: tuple[str, ...] = ()
    covers: tuple[Coverage, ...] = ()
    retired: tuple[Offer, ...] = ()
    changes: tuple[PriceChange, ...] = ()
    origin: str = UNSTATED


def up_to(table: OfferTable, day: date, file: str = "") -> OfferTable:
    """Set aside prices that are dated after a day.

    Otherwise a future price would count as fresh and replace an earlier price of the same offer.

    Args:
        table: The prices.
        day: The last day that counts.
        file: Text before the name of each price that is set aside.
    """
    kept = [offer for offer in table.offers if price_day(offer.price_date) <= day]
    late = (
        SetAside(f"{file}{full_name(offer)}", f"price of {offer.price_date}, after {day}")
        for offer in table.offers
        if price_day(offer.price_date) > day
    )
    return msgspec.structs.replace(table, offers=kept, set_aside=(*table.set_aside, *late))


def require_usable(table: OfferTable, name: str) -> None:
    """Raise MisuseError if the user's table has no offers: otherwise its failure would go unnoticed."""
    if len(table.offers):
        return
    why = ""
    if table.set_aside:
        rows, first = count(len(table.set_aside), "price row"), table.set_aside[0]
        why = f": {rows} set aside, first {plain(first.row)}: {plain(first.reason)}"
    raise MisuseError(f"{plain(name)} has no usable offer{why}")


def newest_day(offers: Sequence[Offer]) -> date:
    """Return the day of the newest price (``date.min`` if none); a partial date is its earliest day."""
    return max(map(price_day, {offer.price_date for offer in offers}), default=date.min)


offer_key: Callable[[Offer], OfferKey] = attrgetter("provider", "instance", "region", "pricing", "term_years")
"""The identity of an offer."""


def overlay(tables: Iterable[OfferTable]) -> OfferTable:
    """Merge tables, least trusted first. A later offer replaces an earlier one with the same key.

    Where a later table is complete (``covers``), earlier offers that it does not list are retired.
    """
    below: dict[OfferKey, Offer] = {}
    origins: dict[OfferKey, str] = {}
    retired: list[Offer] = []
    changes: list[PriceChange] = []
    every = list(tables)
    for table in every:
        fresh = {offer_key(offer): offer for offer in table.offers}
        gone = _gone(below, fresh, table.covers)
        retired += (*table.retired, *map(below.pop, gone))
        moves = (change_of(below[key], fresh[key]) for key in fresh if key in below)
        changes += (*table.changes, *filter(None, moves))
        origins |= dict.fromkeys(fresh, table.origin)
        below |= fresh
    return OfferTable(
        offers=Offers.of(below.values(), map(origins.__getitem__, below)),
        set_aside=tuple(row for table in every for row in table.set_aside),
        notes=tuple(note for table in every for note in table.notes),
        covers=tuple(cover for table in every for cover in table.covers),
        retired=tuple(retired),
        changes=tuple(changes),
    )


def _gone(
    below: Mapping[OfferKey, Offer], fresh: Mapping[OfferKey, Offer], covers: Iterable[Coverage]
) -> list[OfferKey]:
    # Return the keys of an earlier table's offers that a complete later table no longer lists.
    by_provider = grouped((cover.provider, cover) for cover in covers if cover.whole_provider)
    return [
        key
        for key, offer in below.items()
        if offer.provider in by_provider
        and key not in fresh
        and any(cover.applies_to(offer) for cover in by_provider[offer.provider])
    ]


# --- listings of marketplaces ---------------------------------------------------------------------------

ASKS_HALF_LIFE_DAYS = 30.0
"""Half-life of a listing [days]; assumed, because nobody publishes how long hosts keep an offer."""

USUAL_ASK_SPREAD = 0.33
"""Standard deviation of the logarithm of hosts' prices for one GPU, over 27 GPUs in the shipped prices of
2026."""
LEAST_ASK_SPREAD = USUAL_ASK_SPREAD / 2
"""Assumed standard deviation of the logarithm of the price paid for a fresh listing. The host may be gone or
unsuitable, and then the next host's price applies."""
# The usual spread weighs as much as this number of listings.
_USUAL_ASKS = 3
ASK_TO_LIST: Mapping[Seller, float] = {"community": 0.56, "secure": 0.9}
"""The ratio of hosts' prices to the median list price of clouds for the same GPU, by kind of host. It is the
median over the 23 GPUs with two or more listings since 2026-07 in the shipped tables; for vetted hosts, it is
from RunPod's two prices."""
MARKET_ASKS = 0.5
"""The price that clouds suggest weighs as much as this number of listings. On a log scale, hosts' prices for
one GPU spread by 0.33, and their medians by 0.45 around the suggested price: 0.33^2 / 0.45^2 = 0.54,
rounded to 0.5."""


SETS_ITS_PRICES = frozenset({"runpod"})
"""Marketplaces with one price per GPU for all hosts, which behaves like a list price: in the shipped tables,
none of 14 pairs of RunPod's prices, dated 2 to 61 days apart, differed."""

SPOT_SPREAD = 0.38
"""Standard deviation of the logarithm of one provider's spot prices for one GPU, over the shipped tables: the
uncertainty of a very old price. That of a newer price grows toward this value, with a listing's half-life."""


AskKey: TypeAlias = tuple[str, Pricing]


def asks_of(offers: Iterable[Offer]) -> Mapping[AskKey, Asks]:
    """Return the prices of marketplace hosts, by GPU and pricing.

    If a source states the number of hosts and their median price, these count too. A median of few prices is
    shrunk toward the price that the list prices of clouds suggest.

    Args:
        offers: Hosts' listings, and the list prices of clouds, if any.
    """
    every = Offers.of(offers)
    sold, is_index = every.usd_per_gpu_hour > 0, every.kind.equals("index")
    by_hosts = every.kind.equals("marketplace") | (is_index & ~every.ask_count.equals(None))
    asked = grouped(((offer.gpu_key, offer.pricing), offer) for offer in every.where(sold & by_hosts))
    clouds = every.where(sold & ~by_hosts & ~is_index & every.seller.equals("cloud"))
    kinds = kinds_of(clouds.gpu_key, clouds.pricing, clouds.provider)
    usd = clouds.usd_per_gpu_hour
    by_provider = grouped(
        (kinds.values[kind][:2], float(np.median(usd[places])))
        for kind, places in places_by_kind(kinds.codes).items()
    )
    listed = {key: median(each) for key, each in by_provider.items()}
    return {key: _asks(each, listed.get(key)) for key, each in asked.items()}


def _asks(offers: list[Offer], list_usd: float | None) -> Asks:
    """Return the distribution of hosts' prices.

    Its ends follow from the spread of the prices; the fewer prices there are, the more that spread is shrunk
    toward the usual one.

    Example: for one host at 0.20 and clouds at 1.00, the host has a weight of 1 in 1.5, so the middle is
    0.20^(2/3) x 0.56^(1/3) = 0.282.
    """
    logs: list[float] = []
    for offer in offers:
        logs.append(math.log(offer.usd_per_gpu_hour))
        middle_usd = offer.ask_median_usd_per_hour
        if middle_usd is not None and (offer.ask_count or 0) >= 2 and middle_usd != offer.price_usd_per_hour:
            logs.append(math.log(float(middle_usd) / offer.gpu_count))
    mean = fmean(logs)
    variance = sum((each - mean) ** 2 for each in logs) + _USUAL_ASKS * USUAL_ASK_SPREAD**2
    spread = math.sqrt(variance / (len(logs) - 1 + _USUAL_ASKS))
    middle, ask_count = median(logs), sum(offer.ask_count or 1 for offer in offers)
    own_weight = 1.0
    if list_usd is not None:
        ratios = (ASK_TO_LIST["secure" if offer.seller == "secure" else "community"] for offer in offers)
        suggested = math.log(list_usd) + fmean(map(math.log, ratios))
        own_weight = ask_count / (ask_count + MARKET_ASKS)
        middle = own_weight * middle + (1 - own_weight) * suggested
    low, high = (math.exp(middle + side * Z90 * spread) for side in (-1, 1))
    return Asks(
        median_usd_per_hour=math.exp(middle),
        low_usd_per_hour=low,
        high_usd_per_hour=high,
        ask_count=ask_count,
        provider_count=len({offer.provider for offer in offers}),
        own_weight=own_weight,
    )


def spread_of(asks: Asks) -> float:
    """Return the standard deviation of the logarithm of hosts' prices."""
    return math.log(asks.high_usd_per_hour / asks.low_usd_per_hour) / 2 / Z90
