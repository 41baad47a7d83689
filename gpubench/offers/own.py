"""Price tables in gpubench's own columns: the embedded table, and a user's quotes.

One row gives up to four offers: on demand, spot, and reserved for one and for three years. A row or a
price that cannot be used is set aside with its reason; the rest of the table counts.

A table is read column by column: of 100,000 rows most cells say what another has said, and each is checked
once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gpubench.errors import MisuseError
from gpubench.files import many_objects
from gpubench.models import Offer, Pricing
from gpubench.offers import plausible
from gpubench.offers.dates import price_day
from gpubench.offers.plausible import ImplausibleError
from gpubench.offers.request import KINDS
from gpubench.offers.rows import Rows, read_rows
from gpubench.offers.table import UNSTATED_NOTE, OfferKey, OfferTable, SetAside, offer_key
from gpubench.specs import load_specs, offered_gpu_key
from gpubench.today import today
from gpubench.units import plain

PRICE_COLUMNS: tuple[tuple[str, Pricing, int | None], ...] = (
    ("on_demand_usd_per_h", Pricing.ON_DEMAND, None),
    ("spot_usd_per_h", Pricing.SPOT, None),
    ("reserved_1y_usd_per_h", Pricing.RESERVED, 1),
    ("reserved_3y_usd_per_h", Pricing.RESERVED, 3),
)
REQUIRED = ("provider", "instance", "gpu_key", "gpu_count", "price_date")
NO_REGION = frozenset({"", "any"})


_Cell = TypeVar("_Cell", bound=Hashable)
_BLANK = ""


def read_own(path: Path) -> OfferTable:
    """Read a user's price table: CSV (comma or semicolon) or a JSON list of objects, in our columns.

    Raises:
        MisuseError: If the file as a whole cannot be read; single bad rows are set aside instead.
    """
    tomorrow = today() + timedelta(days=1)
    with many_objects():
        return offers_of_rows(read_rows(path), f"own price file {plain(path.name)}", latest=tomorrow)


def offers_of_rows(table: Rows, default_source: str = "", latest: date = date.max) -> OfferTable:
    """Turn rows in our columns into offers, and set aside what cannot be used.

    Args:
        table: The rows; a second price for one provider, instance, region and pricing is a duplicate.
        default_source: Stands where a row names no source.
        latest: A price of a later day is set aside: it would count as fresh until that day has passed.

    Raises:
        MisuseError: If a required column is missing, or the text breaks off as CSV.
    """
    _require_columns(table)
    numbered = list(table.rows)
    rows = [_fitted(row, len(table.columns)) for _, row in numbered]
    columns = _Columns(table.columns, rows)
    faults: dict[int, str] = {}
    facts = _facts(columns, faults, default_source, latest)
    prices = [(columns[name], pricing, term) for name, pricing, term in PRICE_COLUMNS if name in columns]
    unstated = {key for key, spec in load_specs().items() if spec.variants}

    offers: dict[OfferKey, Offer] = {}
    set_aside: list[SetAside] = []

    def put_aside(at: int, reason: str) -> None:
        set_aside.append(SetAside(_describe(table.name, numbered[at][0], rows[at]), reason))

    for at, said in enumerate(zip(*facts, strict=True)):
        if at in faults:
            put_aside(at, faults[at])
            continue
        priced = [(cell, *how) for cells, *how in prices if (cell := cells[at].strip())]
        if not priced:
            put_aside(at, "no price")
        for offer in _offers(said, priced, unstated):
            if isinstance(offer, str):
                put_aside(at, offer)
            elif offers.setdefault(offer_key(offer), offer) is not offer:
                again = f"a second {offer.pricing} price of this instance in this region; the first is kept"
                put_aside(at, again)
    return OfferTable(offers=tuple(offers.values()), set_aside=tuple(set_aside))


def _offers(
    said: Sequence[Any], prices: Iterable[Sequence[Any]], unstated: Collection[str]
) -> Iterator[Offer | str]:
    """Make an offer of each price of a row, or say what is wrong with that price.

    Args:
        said: What the other cells say, as in ``_facts``.
        prices: The cell, how one pays, and for how many years.
        unstated: GPUs whose variant a price list leaves open.
    """
    provider, instance, region, gpu_key, count, vcpus, ram, kind, day, source, text, rate = said
    note = text or None
    if rate or gpu_key in unstated:
        note = _note(text, rate, unstated=gpu_key in unstated)
    for cell, pricing, term_years in prices:
        try:
            price = plausible.price(cell, kind)
        except ImplausibleError as error:
            yield str(error)
            continue
        yield Offer(
            provider=provider,
            instance=instance,
            region=region,
            gpu_key=gpu_key,
            gpu_count=count,
            vcpus=vcpus,
            ram_bytes=ram,
            price_usd_per_hour=price if rate is None else price * rate.usd_per_unit,
            pricing=pricing,
            kind=kind,
            price_date=day,
            source=source,
            note=note,
            term_years=term_years,
        )


def _require_columns(table: Rows) -> None:
    missing = [column for column in REQUIRED if column not in table.columns]
    if not any(column in table.columns for column, _, _ in PRICE_COLUMNS):
        missing.append("on_demand_usd_per_h or spot_usd_per_h")
    if missing:
        raise MisuseError(
            f"{plain(table.name)} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {plain(', '.join(table.columns)) or 'none'}"
        )


# --- columns ---------------------------------------------------------------------------------------------


class _Columns:
    """The cells of a table by the name of their column; blank where the table has no such column."""

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Turn rows of one width into columns; of two columns of one name the first counts."""
        columns: Iterable[tuple[str, ...]] = zip(*rows, strict=True) if rows else ((),) * len(names)
        self._columns = dict(reversed(list(zip(names, columns, strict=True))))
        self._blank = (_BLANK,) * len(rows)
        self.nothing = (None,) * len(rows)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return self._columns.get(name, self._blank)


def _fitted(row: Sequence[str], width: int) -> Sequence[str]:
    """Return a row of the header's width; one with words beyond it becomes blank, and so is set aside."""
    if len(row) == width:
        return row
    if any(cell.strip() for cell in row[width:]):
        return [_BLANK] * width
    return [*row[:width], *[_BLANK] * (width - len(row))]


def _facts(
    columns: _Columns, faults: dict[int, str], default_source: str, latest: date
) -> tuple[Sequence[Any], ...]:
    """Return what the cells of each row say, in the order in which an offer is made of them.

    The first fault of a row is the one that is told.
    """

    def read(name: str, cell: Callable[[str], Any]) -> Sequence[Any]:
        return _read(columns[name], lambda text: cell(text.strip()), faults)

    provider = read("provider", _provider)
    kind = read("kind", _kind)
    source = read("source", lambda text: _named(text or default_source, "source"))
    day = read("price_date", partial(_day, latest=latest))
    gpu_key = read("gpu_key", _gpu_key)
    count = read("gpu_count", plausible.gpu_count)
    vcpus = read("vcpus", plausible.vcpus)
    ram = read("ram_gib", plausible.ram_bytes)
    rate: Sequence[_Rate | None] = columns.nothing
    if "currency" in columns:
        money = zip(columns["currency"], columns["usd_per_unit"], columns["rate_date"], strict=True)
        rate = _read(list(money), _rate, faults)
    region = read("region", _region)
    note = read("note", _word)
    instance = _instances(columns["instance"], faults)
    return provider, instance, region, gpu_key, count, vcpus, ram, kind, day, source, note, rate


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
    found = [known[cell] for cell in column]
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


def _describe(name: str, number: int, cells: Iterable[str]) -> str:
    first = [cell for cell in list(cells)[:3] if cell]
    return plain(f"{name}:{number} {' '.join(first)}".rstrip(), 120)
