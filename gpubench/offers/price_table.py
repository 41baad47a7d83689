"""Price tables in gpubench's own columns: the embedded table, and a user's quotes.

One row gives up to four offers: on demand, spot, and reserved for one and for three years. A row or a
price that cannot be used is set aside with its reason; the rest of the table counts.

A table is read column by column: of 100,000 rows most cells say what another has said, and each is checked
once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.errors import MisuseError
from gpubench.labels import PRICING_WORDS
from gpubench.models import Offer, Pricing
from gpubench.offers import plausible
from gpubench.offers.columns import CODED, Column, Columns, Offers, column_of, constant, kinds_of, recoded
from gpubench.offers.plausible import ImplausibleError
from gpubench.offers.table import UNSTATED_NOTE, OfferTable, SetAside
from gpubench.offers.text_table import TextColumns, read_columns
from gpubench.specs import load_specs, offered_gpu_key
from gpubench.today import today
from gpubench.units import plain


class _PriceColumn(NamedTuple):
    """A column of prices, and how what it prices is paid."""

    name: str
    pricing: Pricing
    term_years: int | None = None


PRICE_COLUMNS = (
    _PriceColumn("on_demand_usd_per_h", Pricing.ON_DEMAND),
    _PriceColumn("spot_usd_per_h", Pricing.SPOT),
    _PriceColumn("reserved_1y_usd_per_h", Pricing.RESERVED, 1),
    _PriceColumn("reserved_3y_usd_per_h", Pricing.RESERVED, 3),
)
REQUIRED = ("provider", "instance", "gpu_key", "gpu_count", "price_date")
NO_REGION = frozenset({"", "any"})

_Cell = TypeVar("_Cell", bound=Hashable)


def read_own(path: Path, latest: date | None = None) -> OfferTable:
    """Read a user's price table: CSV (comma or semicolon) or a JSON list of objects, in our columns.

    Args:
        path: The file.
        latest: The last day that a price may be of; None is tomorrow.

    Raises:
        MisuseError: If the file as a whole cannot be read; single bad rows are set aside instead.
    """
    latest = latest or today() + timedelta(days=1)
    return offers_of_columns(read_columns(path), f"own price file {plain(path.name)}", latest=latest)


def offers_of_columns(table: TextColumns, default_source: str = "", latest: date = date.max) -> OfferTable:
    """Turn a table in our columns into offers, and set aside what cannot be used.

    Args:
        table: A second price for one provider, instance, region and pricing is a duplicate.
        default_source: Stands where a row names no source.
        latest: A price of a later day is set aside: it would count as fresh until that day has passed.

    Raises:
        MisuseError: If a required column is missing.
    """
    missing = [column for column in REQUIRED if column not in table.cells]
    if not any(column.name in table.cells for column in PRICE_COLUMNS):
        missing.append("on_demand_usd_per_h or spot_usd_per_h")
    if missing:
        raise MisuseError(
            f"{plain(table.name)} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {plain(', '.join(table.cells)) or 'none'}"
        )
    faults: dict[int, str] = {}
    facts = _facts(table, faults, default_source, latest)
    aside = [_Aside(row, 0, reason) for row, reason in faults.items()]
    usable = np.ones(len(table.numbers), dtype=bool)
    usable[list(faults)] = False
    unpriced = usable.copy()
    priced: list[_Priced] = []
    for place, column in enumerate(each for each in PRICE_COLUMNS if each.name in table.cells):
        cells = [text.strip() for text in table.of(column.name)]
        stated = np.fromiter(map(bool, cells), bool, len(cells))
        unpriced &= ~stated
        prices, bad = _prices(cells, stated & usable, facts)
        aside += [_Aside(row, place, reason) for row, reason in bad.items()]
        first, second = _without_duplicates(np.flatnonzero(~np.isnan(prices)), facts)
        words = PRICING_WORDS[column.pricing]
        reason = f"a second {words} price of this instance in this region; the first is kept"
        aside += [_Aside(row, place, reason) for row in second.tolist()]
        priced.append(_Priced(column, cells, prices, first))
    aside += [_Aside(row, 0, "no price") for row in np.flatnonzero(unpriced).tolist()]
    first_cells = list(islice(table.cells.values(), 3))
    set_aside = []
    for row, _, reason in sorted(aside):
        words = " ".join(column[row] for column in first_cells if column[row])
        set_aside.append(SetAside(plain(f"{table.name}:{table.numbers[row]} {words}".rstrip(), 120), reason))
    return OfferTable(offers=_offers(facts, priced), set_aside=tuple(set_aside))


# --- columns ---------------------------------------------------------------------------------------------


class _Facts(NamedTuple):
    """What the cells of each row say of its instance, column by column; ``rate`` is that of its currency."""

    provider: Column[str]
    instance: Sequence[str]
    region: Column[str | None]
    gpu_key: Column[str]
    gpu_count: Column[int]
    vcpus: Column[float | None]
    ram_bytes: Column[int | None]
    kind: Column[str]
    price_date: Column[str]
    source: Column[str]
    note: Column[str | None]
    rate: Column[_Rate | None]


def _facts(table: TextColumns, faults: dict[int, str], default_source: str, latest: date) -> _Facts:
    """Return what the cells say; of a row with several faults the first that is met here is told."""

    def read(name: str, cell: Callable[[str], Any]) -> Column[Any]:
        cells = table.cells.get(name)
        column = constant("", len(table.numbers)) if cells is None else column_of(cells)
        return _read(column, lambda text: cell(text.strip()), faults)

    provider = read("provider", lambda text: _named("provider", text).lower())
    kind = read("kind", plausible.read_kind)
    source = read("source", lambda text: _named("source", text or default_source))
    price_date = read("price_date", partial(_day, latest=latest))
    gpu_key = read("gpu_key", _gpu_key)
    gpu_count = read("gpu_count", plausible.gpu_count)
    vcpus = read("vcpus", plausible.vcpus)
    ram_bytes = read("ram_gib", plausible.ram_bytes)
    rate: Column[_Rate | None] = constant(None, len(table.numbers))
    if "currency" in table.cells:
        money = zip(table.of("currency"), table.of("usd_per_unit"), table.of("rate_date"), strict=True)
        rate = _read(column_of(money), _rate, faults)
    region = read("region", lambda text: None if text.lower() in NO_REGION else _word(text))
    words = read("note", _word)
    instance = [text.strip() for text in table.of("instance")]  # mostly unlike each other: all at once
    if not (plausible.are_texts(instance) and all(instance)):
        instance = _read(column_of(instance), partial(_named, "instance"), faults).cells()

    unstated = {key for key, spec in load_specs().items() if spec.variants}
    kinds = kinds_of(words, rate, gpu_key)
    notes = (
        (text, paid and paid.words, UNSTATED_NOTE if key in unstated else None)
        for text, paid, key in kinds.values
    )
    note = recoded(kinds.codes, ["; ".join(filter(None, each)) or None for each in notes])
    return _Facts(
        provider, instance, region, gpu_key, gpu_count, vcpus, ram_bytes, kind, price_date, source, note, rate
    )


def _read(cells: Column[_Cell], read: Callable[[_Cell], Any], faults: dict[int, str]) -> Column[Any]:
    """Read a column, each of its different cells once; of one that cannot be used the rows get its fault."""
    values: list[Any] = []
    bad: dict[int, str] = {}
    for code, cell in enumerate(cells.values):
        try:
            values.append(read(cell))
        except ValueError as reason:
            values.append(None)
            bad[code] = str(reason)
    if bad:
        for row in np.flatnonzero(np.isin(cells.codes, list(bad))).tolist():
            faults.setdefault(row, bad[int(cells.codes[row])])
    return recoded(cells.codes, values)


# --- prices ----------------------------------------------------------------------------------------------


class _Priced(NamedTuple):
    """One column of prices: its cells, what they come to [USD/h], and the rows that count."""

    column: _PriceColumn
    cells: Sequence[str]
    prices: Floats
    rows: Indices


class _Aside(NamedTuple):
    """Why a row, or its price of one column, is set aside."""

    row: int
    place: int
    reason: str


def _prices(cells: Sequence[str], asked: Flags, facts: _Facts) -> tuple[Floats, dict[int, str]]:
    """Return the price of each row that is asked for [USD/h], and of those that cannot be true the reason."""
    rows = np.flatnonzero(asked)
    figures = plausible.figures(_at(cells, rows))
    plain = plausible.are_prices(figures) & ~facts.kind.equals("free")[rows] & facts.rate.equals(None)[rows]
    prices = np.full(len(cells), np.nan)
    prices[rows[plain]] = figures[plain]
    bad: dict[int, str] = {}
    for row in rows[~plain].tolist():
        try:
            prices[row] = float(_price(cells[row], facts, row))
        except ImplausibleError as error:
            bad[row] = str(error)
    return prices, bad


def _price(cell: str, facts: _Facts, row: int) -> Decimal:
    """Return the price of one row [USD/h], or raise with the reason."""
    rate = facts.rate.at(row)
    price = plausible.price(cell, facts.kind.at(row))
    return price if rate is None else price * rate.usd_per_unit


def _at(cells: Sequence[str], rows: Indices) -> Sequence[str]:
    """Return the cells of these rows, without a copy where they are all in their order."""
    if np.array_equal(rows, np.arange(len(cells))):
        return cells
    return list(map(cells.__getitem__, rows.tolist()))


def _without_duplicates(rows: Indices, facts: _Facts) -> tuple[Indices, Indices]:
    """Return the first row of every offer, and the later ones."""
    names = _at(facts.instance, rows)
    if len(set(names)) == len(names):
        return rows, rows[:0]
    same = kinds_of(column_of(names), facts.provider.take(rows), facts.region.take(rows))
    is_first = np.zeros(len(rows), dtype=bool)
    is_first[np.unique(same.codes, return_index=True)[1]] = True
    return rows[is_first], rows[~is_first]


def _offers(facts: _Facts, priced: Sequence[_Priced]) -> Offers:
    """Lay the prices of all columns out as offers, in the order of the rows."""
    row = np.concatenate([each.rows for each in priced])
    place = np.repeat(np.arange(len(priced)), [len(each.rows) for each in priced])
    in_order = np.lexsort((place, row))
    row, place = row[in_order], place[in_order]
    rows, places = row.tolist(), place.tolist()

    def offer(at: int) -> Offer:
        row, (column, cells, _, _) = rows[at], priced[places[at]]
        return Offer(
            provider=facts.provider.at(row),
            instance=facts.instance[row],
            region=facts.region.at(row),
            gpu_key=facts.gpu_key.at(row),
            gpu_count=facts.gpu_count.at(row),
            vcpus=facts.vcpus.at(row),
            ram_bytes=facts.ram_bytes.at(row),
            price_usd_per_hour=_price(cells[row], facts, row),
            pricing=column.pricing,
            kind=facts.kind.at(row),
            price_date=facts.price_date.at(row),
            source=facts.source.at(row),
            note=facts.note.at(row),
            term_years=column.term_years,
        )

    paid = {
        "pricing": recoded(place, [each.column.pricing for each in priced]),
        "term_years": recoded(place, [each.column.term_years for each in priced]),
    }
    coded = paid | {name: getattr(facts, name).take(row) for name in CODED if name not in paid}
    price = np.empty(len(row))
    for at, each in enumerate(priced):
        price[place == at] = each.prices[each.rows]
    return Offers(
        Columns(
            # a cell that could not be read is None among the values, and no offer has it
            {name: column.without_unused() for name, column in coded.items()},
            _at(facts.instance, row),
            price,
            np.zeros(len(row), dtype=bool),
            offer,
        )
    )


# --- cells -----------------------------------------------------------------------------------------------


class _Rate(NamedTuple):
    """Dollars that a unit of a foreign currency was worth, and on which day, in words."""

    usd_per_unit: Decimal
    words: str


def _word(text: str) -> str:
    plausible.check_texts((text,))
    return text


def _named(what: str, text: str) -> str:
    if not text:
        raise ImplausibleError(f"no {what} named")
    return _word(text)


def _day(text: str, latest: date) -> str:
    if not text:
        raise ImplausibleError("no price date: a price without a date says nothing")
    plausible.check_day(text, latest)
    return text


def _gpu_key(text: str) -> str:
    key = offered_gpu_key(_word(text))
    if key is None:
        raise ImplausibleError(f"GPU {text[:60]!r} is unknown or ambiguous: name its form factor and memory")
    return key


def _rate(cells: tuple[str, str, str]) -> _Rate | None:
    """Return what a foreign currency is worth; a rate counts only with the day on which it held."""
    currency, usd_per_unit, day = map(str.strip, cells)
    if currency.upper() in {"", "USD"}:
        return None
    if not (usd_per_unit and day):
        raise ImplausibleError(
            f"currency {currency[:10]!r} without usd_per_unit and rate_date: give both, or US dollars"
        )
    plausible.check_day(day, date.max)
    return _Rate(
        plausible.price(usd_per_unit), f"converted from {currency.upper()} at {usd_per_unit} USD of {day}"
    )
