"""Offers by column: of 100,000 most cells say what another has said, and few are ever looked at."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import Offer, Pricing

T = TypeVar("T", bound=Hashable)

_MOST_CODES_A_ROW = 16


class Column(NamedTuple, Generic[T]):
    """Cells that mostly repeat: ``codes`` (N,) are places in ``values``, which are all different."""

    codes: Indices
    values: Sequence[T]

    def at(self, row: int) -> T:
        """Return one cell."""
        return self.values[int(self.codes[row])]

    def take(self, rows: Indices) -> Column[T]:
        """Return the cells of these rows."""
        return Column(self.codes[rows], self.values)

    def without_unused(self) -> Column[T]:
        """Return the same cells, of the values that a cell has and no others."""
        place = np.zeros(len(self.values), dtype=np.int64)
        place[self._used] = np.arange(len(self._used))
        return Column(place[self.codes], tuple(self.present))

    def is_in(self, holds: Callable[[T], bool]) -> Flags:
        """Return which cells hold to a test, which is asked once for each value."""
        return np.fromiter(map(holds, self.values), bool, len(self.values))[self.codes]

    def equals(self, value: T) -> Flags:
        """Return which cells are this value."""
        return np.asarray(self.codes == (self.values.index(value) if value in self.values else -1))

    def figures(self, of: Callable[[T], float]) -> Floats:
        """Return a figure for each cell, which is worked out once for each value that a cell has."""
        result = np.full(len(self.values), np.nan)
        for code in self._used:
            result[code] = of(self.values[code])
        return result[self.codes]

    @property
    def present(self) -> list[T]:
        """The values that a cell has, in the order of ``values``."""
        return [self.values[code] for code in self._used]

    @property
    def counts(self) -> list[tuple[T, int]]:
        """The values that a cell has, with how many cells."""
        many = np.bincount(self.codes, minlength=len(self.values)).tolist()
        return [(value, count) for value, count in zip(self.values, many, strict=True) if count]

    @property
    def _used(self) -> list[int]:
        there = np.zeros(len(self.values), dtype=bool)
        there[self.codes] = True
        return np.flatnonzero(there).tolist()

    def cells(self) -> list[T]:
        """Return the value of every row."""
        return list(map(self.values.__getitem__, self.codes.tolist()))


def column_of(cells: Iterable[T]) -> Column[T]:
    """Return cells as a column, values in the order of their first cells."""
    every = cells if isinstance(cells, list) else list(cells)
    place = {value: at for at, value in enumerate(dict.fromkeys(every))}
    return Column(np.fromiter(map(place.__getitem__, every), np.int64, len(every)), tuple(place))


def recoded(codes: Indices, values: Iterable[T]) -> Column[T]:
    """Return a column of values of which some may be the same."""
    found = column_of(values)
    return Column(found.codes[codes], found.values)


def constant(value: T, count: int) -> Column[T]:
    """Return a column of one value."""
    return Column(np.zeros(count, dtype=np.int64), (value,))


def kinds_of(*columns: Column[Any]) -> Column[tuple[Any, ...]]:
    """Return several columns as one, values in the order of their first rows."""
    codes = columns[0].codes
    for column in columns[1:]:
        codes = codes * len(column.values) + column.codes
    count, end = len(codes), math.prod(len(column.values) for column in columns)
    if end > _MOST_CODES_A_ROW * count:  # a table of all codes would be larger than the rows are worth
        values, codes = np.unique(codes, return_inverse=True)
        end = len(values)
    first_row = np.full(end, count)
    first_row[codes[::-1]] = np.arange(count)[::-1]  # of several the last that is written stays
    used = np.flatnonzero(first_row < count)
    in_order = used[np.argsort(first_row[used])]
    place = np.empty(end, dtype=np.int64)
    place[in_order] = np.arange(len(in_order))
    firsts = first_row[in_order]
    cells = [[column.values[code] for code in column.codes[firsts].tolist()] for column in columns]
    return Column(place[codes], tuple(zip(*cells, strict=True)))


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of N offers, and what makes one of them when it is looked at.

    Attributes:
        instance: Names, which are mostly unlike each other.
        price: As listed [USD/h of the instance]; what is exact is in the offer.
        by_user: Whether the user gave it for this one question: it is taken as it is.
        offer: A row to its offer.
    """

    coded: Mapping[str, Column[Any]]
    instance: Sequence[str]
    price: Floats
    by_user: Flags
    offer: Callable[[int], Offer]
    made: dict[int, Offer] = field(default_factory=dict)

    def at(self, row: int) -> Offer:
        """Return the offer of a row, made once."""
        found = self.made.get(row)
        if found is None:
            found = self.made[row] = self.offer(row)
        return found


CODED = ("provider", "region", "gpu_key", "gpu_count", "vcpus", "pricing", "term_years", "kind", "price_date")


class Offers(Sequence[Offer]):
    """Rows of a table of offers: columns to reckon with, and each offer when it is looked at."""

    def __init__(self, columns: Columns, rows: Indices | None = None) -> None:
        """Look at these rows of a table, at all where None."""
        self._columns = columns
        self._rows = np.arange(len(columns.price)) if rows is None else rows

    @classmethod
    def of(cls, offers: Iterable[Offer]) -> Offers:
        """Return offers by column."""
        if isinstance(offers, Offers):
            return offers
        every = list(offers)
        coded = {name: column_of(getattr(offer, name) for offer in every) for name in CODED}
        price = np.array([float(offer.price_usd_per_hour) for offer in every], dtype=float)
        names = [offer.instance for offer in every]
        none = np.zeros(len(every), dtype=bool)
        return cls(Columns(coded, names, price, none, every.__getitem__))

    @classmethod
    def joined(cls, *parts: Offers) -> Offers:
        """Return the offers of several tables as those of one, in their order."""
        parts = tuple(part for part in parts if len(part)) or parts[:1]
        if len(parts) == 1:
            return parts[0]
        starts: list[int] = np.cumsum([0, *map(len, parts)]).tolist()

        def offer(row: int) -> Offer:
            part = bisect_right(starts, row) - 1
            return parts[part][row - starts[part]]

        return cls(
            Columns(
                {name: _joined([part.column(name) for part in parts]) for name in CODED},
                [name for part in parts for name in part.instances],
                np.concatenate([part.price for part in parts]),
                np.concatenate([part.by_user for part in parts]),
                offer,
            )
        )

    def __len__(self) -> int:
        """Return the number of offers."""
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Offer: ...
    @overload
    def __getitem__(self, at: slice) -> Offers: ...
    def __getitem__(self, at: int | slice) -> Offer | Offers:
        """Return one offer, or several."""
        if isinstance(at, slice):
            return Offers(self._columns, self._rows[at])
        return self._columns.at(int(self._rows[at]))

    def __iter__(self) -> Iterator[Offer]:
        """Yield every offer."""
        return map(self._columns.at, self._rows.tolist())

    def __eq__(self, other: object) -> bool:
        """Whether other offers are the same, in the same order."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: Indices | Sequence[int]) -> Offers:
        """Return the offers at these places."""
        return Offers(self._columns, self._rows[np.asarray(rows, dtype=np.int64)])

    def where(self, flags: Flags) -> Offers:
        """Return the offers that are flagged."""
        return self if flags.all() else Offers(self._columns, self._rows[flags])

    def places(self, among: Offers) -> Flags:
        """Return which of these are also among others of the same table."""
        there = np.zeros(len(self._columns.price), dtype=bool)
        there[among._rows] = True
        return there[self._rows]

    def given_by_the_user(self) -> Offers:
        """Return the same offers, all taken as they are."""
        columns = self._columns
        every = np.ones(len(columns.price), dtype=bool)
        return Offers(Columns(columns.coded, columns.instance, columns.price, every, columns.at), self._rows)

    def column(self, name: str) -> Column[Any]:
        """Return a column of ``CODED``."""
        return self._columns.coded[name].take(self._rows)

    @cached_property
    def provider(self) -> Column[str]:
        """Who has each."""
        return self.column("provider")

    @cached_property
    def region(self) -> Column[str | None]:
        """Where each is."""
        return self.column("region")

    @cached_property
    def gpu_key(self) -> Column[str]:
        """The GPU of each."""
        return self.column("gpu_key")

    @cached_property
    def gpu_count(self) -> Column[int]:
        """How many GPUs each has."""
        return self.column("gpu_count")

    @cached_property
    def vcpus(self) -> Column[float | None]:
        """How many vCPUs each has."""
        return self.column("vcpus")

    @cached_property
    def pricing(self) -> Column[Pricing]:
        """How each is paid."""
        return self.column("pricing")

    @cached_property
    def term_years(self) -> Column[int | None]:
        """For how long each is reserved."""
        return self.column("term_years")

    @cached_property
    def kind(self) -> Column[str]:
        """What sort of offer each is."""
        return self.column("kind")

    @cached_property
    def price_date(self) -> Column[str]:
        """The day of each price, as it was written."""
        return self.column("price_date")

    @property
    def instances(self) -> list[str]:
        """The name of each at its provider."""
        return list(map(self._columns.instance.__getitem__, self._rows.tolist()))

    def instance(self, at: int) -> str:
        """Return the name of one."""
        return self._columns.instance[int(self._rows[at])]

    @cached_property
    def price(self) -> Floats:
        """Of each as listed [USD/h of the instance]."""
        return self._columns.price[self._rows]

    @cached_property
    def usd_per_gpu_hour(self) -> Floats:
        """Of each as listed, for one of its GPUs."""
        return self.price / self.gpu_count.figures(float)

    @cached_property
    def by_user(self) -> Flags:
        """Whether the user gave it for this one question."""
        return self._columns.by_user[self._rows]

    @cached_property
    def is_owned(self) -> Flags:
        """Whether each is hardware to own."""
        return self.pricing.equals(Pricing.OWNED)


def _joined(columns: Sequence[Column[Any]]) -> Column[Any]:
    """Return columns below one another."""
    values = {value: at for at, value in enumerate(dict.fromkeys(v for c in columns for v in c.values))}
    codes = [np.array([values[v] for v in c.values], dtype=np.int64)[c.codes] for c in columns]
    return Column(np.concatenate(codes), tuple(values))
