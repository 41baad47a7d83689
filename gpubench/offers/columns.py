"""Offers with arrays to rank by: plain structs, and columns of their fields made on demand."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import Offer, Pricing

T = TypeVar("T", bound=Hashable)
M = TypeVar("M")


class Column(NamedTuple, Generic[T]):
    """A dictionary-encoded column: ``codes`` (N,) are indexes into the distinct ``values``."""

    codes: Indices
    values: Sequence[T]

    def at(self, row: int) -> T:
        """Return one cell."""
        return self.values[int(self.codes[row])]

    def take(self, rows: Indices) -> Column[T]:
        """Return the column at these rows."""
        return Column(self.codes[rows], self.values)

    def is_in(self, holds: Callable[[T], bool]) -> Flags:
        """Return which cells pass a test; the test runs once per distinct value."""
        return np.fromiter(map(holds, self.values), bool, len(self.values))[self.codes]

    def equals(self, value: T) -> Flags:
        """Return which cells equal this value."""
        return self.is_in(lambda each: each == value)

    def figures(self, of: Callable[[T], float]) -> Floats:
        """Return a number for each cell, computed once per distinct value."""
        result = np.full(len(self.values), np.nan)
        for code in np.unique(self.codes).tolist():
            result[code] = of(self.values[code])
        return result[self.codes]

    @property
    def present(self) -> list[T]:
        """The values that occur in a cell, in the order of ``values``."""
        return [self.values[code] for code in np.unique(self.codes).tolist()]

    def cells(self) -> list[T]:
        """Return the value of every row."""
        return list(map(self.values.__getitem__, self.codes.tolist()))


def column_of(cells: Iterable[T]) -> Column[T]:
    """Encode cells as a column, with values in order of first occurrence."""
    place: dict[T, int] = {}
    codes = [place.setdefault(cell, len(place)) for cell in cells]
    return Column(np.array(codes, dtype=np.int64), tuple(place))


def stacked_columns(columns: Sequence[Column[T]]) -> Column[T]:
    """Concatenate the columns of several tables, with values in order of first occurrence."""
    place: dict[T, int] = {}
    places = [[place.setdefault(cell, len(place)) for cell in column.values] for column in columns]
    codes = [np.array(of, int)[column.codes] for of, column in zip(places, columns, strict=True)]
    return Column(np.concatenate(codes), tuple(place))


def kinds_of(*columns: Column[Any]) -> Column[tuple[Any, ...]]:
    """Combine several columns into one, with values in order of first occurrence."""
    codes = columns[0].codes
    for column in columns[1:]:
        codes = codes * len(column.values) + column.codes
    _, first, kinds = np.unique(codes, return_index=True, return_inverse=True)
    in_order = np.argsort(first)
    values = zip(*(column.take(first[in_order]).cells() for column in columns), strict=True)
    return Column(np.argsort(in_order)[kinds], tuple(values))


BY_USER = "the user"
"""The origin of offers given for this question; they are not checked against other prices."""
UNTOLD = ""
"""The origin of shipped offers and of offers without a stated origin."""


class _Table:
    """Offers, the origin of each, and the columns computed so far."""

    def __init__(self, offers: Sequence[Offer], origins: Column[str], parts: Sequence[Offers] = ()) -> None:
        self.offers, self.origins, self.parts = offers, origins, parts
        self._columns: dict[str, Column[Any]] = {}
        self.made: dict[Callable[[Offers], Any], Any] = {}

    def column(self, name: str) -> Column[Any]:
        if name not in self._columns:
            of_parts = [part.column(name) for part in self.parts]
            own = stacked_columns(of_parts) if of_parts else column_of(map(attrgetter(name), self.offers))
            self._columns[name] = own
        return self._columns[name]

    @cached_property
    def by_name(self) -> Indices:
        names = ("gpu_key", "pricing", "region", "instance", "provider")
        columns = [self.column(name) for name in names]
        texts = [[str(value or "") for value in column.values] for column in columns]
        ranks = [np.argsort(np.argsort(text)) for text in texts]
        keys = [rank[column.codes] for rank, column in zip(ranks, columns, strict=True)]
        return np.argsort(np.lexsort(keys))

    @cached_property
    def price(self) -> Floats:
        if self.parts:
            return np.concatenate([part.price for part in self.parts])
        return np.array([float(offer.price_usd_per_hour) for offer in self.offers], dtype=float)

    @cached_property
    def usd_per_gpu_hour(self) -> Floats:
        if self.parts:
            return np.concatenate([part.usd_per_gpu_hour for part in self.parts])
        return np.array([offer.usd_per_gpu_hour for offer in self.offers], dtype=float)


class Offers(Sequence[Offer]):
    """Rows of a table of offers, and its columns at these rows, by the names of an offer's fields."""

    provider: Column[str]
    region: Column[str | None]
    gpu_key: Column[str]
    gpu_count: Column[int]
    vcpus: Column[float | None]
    pricing: Column[Pricing]
    term_years: Column[int | None]
    kind: Column[str]
    price_date: Column[str]

    def __init__(self, table: _Table, rows: Indices) -> None:
        self._table, self._rows = table, rows

    def __getattr__(self, name: str) -> Column[Any]:
        if name not in Offer.__struct_fields__:
            raise AttributeError(name)
        return self.column(name)

    @classmethod
    def of(cls, offers: Iterable[Offer], origins: Iterable[str] | None = None) -> Offers:
        """Return offers with their columns and origins; an origin of None is not stated."""
        if isinstance(offers, Offers):
            return offers
        every = tuple(offers)
        told = column_of([UNTOLD] * len(every) if origins is None else origins)
        return cls(_Table(every, told), np.arange(len(every)))

    @classmethod
    def joined(cls, *parts: Offers) -> Offers:
        """Concatenate the offers of several tables."""
        some = [part for part in parts if len(part)]
        if len(some) < 2:
            return some[0] if some else cls.of(())
        every = tuple(offer for part in some for offer in part)
        origins = stacked_columns([part.origin for part in some])
        return cls(_Table(every, origins, some), np.arange(len(every)))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Offer: ...
    @overload
    def __getitem__(self, at: slice) -> Offers: ...
    def __getitem__(self, at: int | slice) -> Offer | Offers:
        if isinstance(at, slice):
            return Offers(self._table, self._rows[at])
        return self._table.offers[int(self._rows[at])]

    def __iter__(self) -> Iterator[Offer]:
        return map(self._table.offers.__getitem__, self._rows.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: Indices | Sequence[int]) -> Offers:
        """Return the offers at these positions."""
        return Offers(self._table, self._rows[np.asarray(rows, dtype=np.int64)])

    def where(self, flags: Flags) -> Offers:
        """Return the offers that are flagged."""
        return Offers(self._table, self._rows[flags])

    def places(self, among: Offers) -> Flags:
        """Return which of these offers are also in another selection of the same table."""
        return np.isin(self._rows, among._rows)

    def spread(self, among: Offers, flags: Flags) -> Flags:
        """Return the flags of another selection of the same table at these rows."""
        every = np.zeros(len(self._table.offers), dtype=bool)
        every[among._rows] = flags
        return every[self._rows]

    def once(self, make: Callable[[Offers], M]) -> M:
        """Return a value computed from these offers, cached if they are a complete table."""
        if len(self) < len(self._table.offers):
            return make(self)
        if make not in self._table.made:
            self._table.made[make] = make(self)
        return self._table.made[make]  # type: ignore[no-any-return]

    def column(self, name: str) -> Column[Any]:
        """Return the column of a field."""
        return self._table.column(name).take(self._rows)

    @cached_property
    def price(self) -> Floats:
        """The listed price of each [USD/h of the instance]."""
        return self._table.price[self._rows]

    @property
    def by_name(self) -> Indices:
        """The sort position of each offer by name: provider, then instance, region, pricing and GPU."""
        return self._table.by_name[self._rows]

    @cached_property
    def usd_per_gpu_hour(self) -> Floats:
        """The listed price of each, per GPU."""
        return self._table.usd_per_gpu_hour[self._rows]

    @property
    def origin(self) -> Column[str]:
        """The origin of each offer: a refresh, an imported table, the user."""
        return self._table.origins.take(self._rows)

    @cached_property
    def by_user(self) -> Flags:
        """Whether the user gave each offer for this question."""
        return self.origin.equals(BY_USER)

    @property
    def is_owned(self) -> Flags:
        """Whether each is hardware to own."""
        return self.pricing.equals(Pricing.OWNED)
