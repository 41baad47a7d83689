"""Price tables in gpubench's own columns: the embedded table, and a user's quotes.

One row gives up to four offers: on demand, spot, and reserved for one and for three years. A row or a
price that cannot be used is set aside with its reason; the rest of the table counts.

A table is read column by column: of 100,000 rows most cells say what another has said, and each is checked
once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gpubench.errors import MisuseError
from gpubench.models import Offer, Pricing
from gpubench.offers import plausible
from gpubench.offers.dates import price_day
from gpubench.offers.plausible import ImplausibleError
from gpubench.offers.request import KINDS
from gpubench.offers.rows import Columns, read_columns
from gpubench.offers.table import UNSTATED_NOTE, OfferKey, OfferTable, SetAside, offer_key
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


def read_own(path: Path) -> OfferTable:
    """Read a user's price table: CSV (comma or semicolon) or a JSON list of objects, in our columns.

    Raises:
        MisuseError: If the file as a whole cannot be read; single bad rows are set aside instead.
    """
    tomorrow = today() + timedelta(days=1)
    return offers_of_columns(read_columns(path), f"own price file {plain(path.name)}", latest=tomorrow)


def offers_of_columns(table: Columns, default_source: str = "", latest: date = date.max) -> OfferTable:
    """Turn a table in our columns into offers, and set aside what cannot be used.

    Args:
        table: A second price for one provider, instance, region and pricing is a duplicate.
        default_source: Stands where a row names no source.
        latest: A price of a later day is set aside: it would count as fresh until that day has passed.

    Raises:
        MisuseError: If a required column is missing.
    """
    _require_columns(table)
    faults: dict[int, str] = {}
    facts = _facts(table, faults, default_source, latest)
    aside = [_Aside(row, 0, reason) for row, reason in faults.items()]
    quotes: list[_Quote] = []
    unpriced = set(range(len(table.numbers))) - faults.keys()
    for place, column in enumerate(each for each in PRICE_COLUMNS if each.name in table.cells):
        cells = [text.strip() for text in table.of(column.name)]
        prices, bad = _prices(cells, facts, faults)
        quotes += _quotes(column, place, prices, facts)
        aside += [_Aside(row, place, reason) for row, reason in bad.items()]
        unpriced = {row for row in unpriced if not cells[row]}
    aside += [_Aside(row, 0, "no price") for row in unpriced]
    quotes.sort(key=_by_row)
    offers, second = _without_duplicates(quotes)
    aside = sorted((*aside, *second), key=_by_row)
    said = tuple(SetAside(_describe(table, each.row), each.reason) for each in aside)
    return OfferTable(offers=offers, set_aside=said)


def _require_columns(table: Columns) -> None:
    missing = [column for column in REQUIRED if column not in table.cells]
    if not any(column.name in table.cells for column in PRICE_COLUMNS):
        missing.append("on_demand_usd_per_h or spot_usd_per_h")
    if missing:
        raise MisuseError(
            f"{plain(table.name)} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {plain(', '.join(table.cells)) or 'none'}"
        )


# --- columns ---------------------------------------------------------------------------------------------


class _Facts(NamedTuple):
    """What the cells of each row say of its instance, column by column; ``rate`` is that of its currency."""

    provider: Sequence[str]
    instance: Sequence[str]
    region: Sequence[str | None]
    gpu_key: Sequence[str]
    gpu_count: Sequence[int]
    vcpus: Sequence[float | None]
    ram_bytes: Sequence[int | None]
    kind: Sequence[str]
    price_date: Sequence[str]
    source: Sequence[str]
    note: Sequence[str | None]
    rate: Sequence[_Rate | None]


def _facts(table: Columns, faults: dict[int, str], default_source: str, latest: date) -> _Facts:
    """Return what the cells say; of a row with several faults the first that is met here is told."""

    def read(name: str, cell: Callable[[str], Any]) -> Sequence[Any]:
        return _read(table.of(name), lambda text: cell(text.strip()), faults)

    provider = read("provider", _provider)
    kind = read("kind", _kind)
    source = read("source", lambda text: _named(text or default_source, "source"))
    day = read("price_date", partial(_day, latest=latest))
    gpu_key = read("gpu_key", _gpu_key)
    count = read("gpu_count", plausible.gpu_count)
    vcpus = read("vcpus", plausible.vcpus)
    ram = read("ram_gib", plausible.ram_bytes)
    rate: Sequence[_Rate | None] = (None,) * len(kind)
    if "currency" in table.cells:
        money = zip(table.of("currency"), table.of("usd_per_unit"), table.of("rate_date"), strict=True)
        rate = _read(list(money), _rate, faults)
    region = read("region", _region)
    note = _notes(read("note", _word), rate, gpu_key)
    instance = _instances(table.of("instance"), faults)
    return _Facts(provider, instance, region, gpu_key, count, vcpus, ram, kind, day, source, note, rate)


def _notes(
    words: Sequence[str], rates: Sequence[_Rate | None], gpu_keys: Sequence[str]
) -> Sequence[str | None]:
    """Return the note of each row, with the rate of its currency, and whether it leaves the card open."""
    unstated = {key for key, spec in load_specs().items() if spec.variants}
    return [
        _note(text, rate, unstated=key in unstated) if rate or key in unstated else text or None
        for text, rate, key in zip(words, rates, gpu_keys, strict=True)
    ]


class _Known(dict[_Cell, Any]):
    """What the cells of a column say, each read when it is met first."""

    def __init__(self, read: Callable[[_Cell], Any]) -> None:
        super().__init__()
        self._read = read
        self.faults: dict[_Cell, str] = {}

    def __missing__(self, cell: _Cell) -> Any:
        try:
            value = self._read(cell)
        except ValueError as reason:
            value, self.faults[cell] = None, str(reason)
        self[cell] = value
        return value


def _read(column: Sequence[_Cell], read: Callable[[_Cell], Any], faults: dict[int, str]) -> Sequence[Any]:
    """Read a column, each of its different cells once; of one that cannot be used the rows get its fault."""
    known = _Known(read)
    found = list(map(known.__getitem__, column))
    if known.faults:
        for at, cell in enumerate(column):
            if cell in known.faults:
                faults.setdefault(at, known.faults[cell])
    return found


def _instances(column: Sequence[str], faults: dict[int, str]) -> Sequence[str]:
    """Read names that are mostly unlike each other: all at once, and one by one where one is bad."""
    names = [text.strip() for text in column]
    try:
        plausible.check_texts(names)
    except ImplausibleError:
        return _read(names, partial(_named, what="instance"), faults)
    return names if all(names) else _read(names, partial(_named, what="instance"), faults)


# --- prices ----------------------------------------------------------------------------------------------


class _Quote(NamedTuple):
    """One price of one row; ``place`` is that of its column."""

    row: int
    place: int
    offer: Offer


class _Aside(NamedTuple):
    """Why a row, or its price of one column, is set aside."""

    row: int
    place: int
    reason: str


_by_row = itemgetter(0, 1)


def _prices(
    cells: Sequence[str], facts: _Facts, faults: Collection[int]
) -> tuple[Sequence[Decimal | None], dict[int, str]]:
    """Return the price of each row [USD/h], and of those that cannot be true the reason."""
    prices: list[Decimal | None] = []
    bad: dict[int, str] = {}
    for row, (cell, kind, rate) in enumerate(zip(cells, facts.kind, facts.rate, strict=True)):
        price = None
        if cell and row not in faults:
            try:
                price = plausible.price(cell, kind)
            except ImplausibleError as error:
                bad[row] = str(error)
            else:
                price = price if rate is None else price * rate.usd_per_unit
        prices.append(price)
    return prices, bad


def _quotes(
    column: _PriceColumn, place: int, prices: Sequence[Decimal | None], facts: _Facts
) -> Sequence[_Quote]:
    rows = zip(prices, *facts[:-1], strict=True)
    return [
        _Quote(
            row,
            place,
            Offer(
                provider=provider,
                instance=instance,
                region=region,
                gpu_key=gpu_key,
                gpu_count=count,
                vcpus=vcpus,
                ram_bytes=ram,
                price_usd_per_hour=price,
                pricing=column.pricing,
                kind=kind,
                price_date=day,
                source=source,
                note=note,
                term_years=column.term_years,
            ),
        )
        for row, (
            price, provider, instance, region, gpu_key, count, vcpus, ram, kind, day, source, note
        ) in enumerate(rows)
        if price is not None
    ]  # fmt: skip


def _without_duplicates(quotes: Sequence[_Quote]) -> tuple[tuple[Offer, ...], Sequence[_Aside]]:
    """Return the first price of every offer, and the later ones."""
    offers: dict[OfferKey, Offer] = {}
    second = []
    for row, place, offer in quotes:
        if offers.setdefault(offer_key(offer), offer) is not offer:
            reason = f"a second {offer.pricing} price of this instance in this region; the first is kept"
            second.append(_Aside(row, place, reason))
    return tuple(offers.values()), second


# --- cells -----------------------------------------------------------------------------------------------


class _Rate(NamedTuple):
    """Dollars that a unit of a foreign currency was worth, and on which day, in words."""

    usd_per_unit: Decimal
    words: str


def _word(text: str) -> str:
    plausible.check_texts((text,))
    return text


def _named(text: str, what: str) -> str:
    if not text:
        raise ImplausibleError(f"no {what} named")
    return _word(text)


def _provider(text: str) -> str:
    return _named(text, "provider").lower()


def _region(text: str) -> str | None:
    return None if text.lower() in NO_REGION else _word(text)


def _kind(text: str) -> str:
    kind = _word(text).lower() or "vm"
    if kind not in KINDS:
        raise ImplausibleError(f"kind {kind[:40]!r} is none of {', '.join(KINDS)}")
    return kind


def _day(text: str, latest: date) -> str:
    if not text:
        raise ImplausibleError("no price date: a price without a date says nothing")
    if price_day(text) > latest:
        raise ImplausibleError(f"price date {text} lies in the future")
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
    price_day(day)
    return _Rate(
        plausible.price(usd_per_unit), f"converted from {currency.upper()} at {usd_per_unit} USD of {day}"
    )


def _note(text: str, rate: _Rate | None, *, unstated: bool) -> str | None:
    notes = (text, rate.words if rate else "", UNSTATED_NOTE if unstated else "")
    return "; ".join(note for note in notes if note) or None


def _describe(table: Columns, row: int) -> str:
    first = [cell for column in islice(table.cells.values(), 3) if (cell := column[row])]
    return plain(f"{table.name}:{table.numbers[row]} {' '.join(first)}".rstrip(), 120)
