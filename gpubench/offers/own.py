"""Price tables in gpubench's own columns: the embedded table, and a user's quotes.

One row gives up to four offers: on demand, spot, and reserved for one and for three years. A row or a
price that cannot be used is set aside with its reason; the rest of the table counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from gpubench.errors import MisuseError
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


class _Common(NamedTuple):
    """The cells that many rows of a table share, stripped, "" where the table has no such column."""

    provider: str
    gpu_key: str
    region: str
    kind: str
    source: str
    note: str
    price_date: str
    gpu_count: str
    vcpus: str
    ram_gib: str
    currency: str
    usd_per_unit: str
    rate_date: str


class _Shared(NamedTuple):
    """What those cells say of an offer, and the dollars that one unit of the price is worth."""

    fields: dict[str, Any]
    usd_per_unit: Decimal | None


_WORDS = _Common._fields.index("price_date")
"""The cells before the price date are words; those from it on are checked as dates and figures."""


def read_own(path: Path) -> OfferTable:
    """Read a user's price table: CSV (comma or semicolon) or a JSON list of objects, in our columns.

    Raises:
        MisuseError: If the file as a whole cannot be read; single bad rows are set aside instead.
    """
    tomorrow = today() + timedelta(days=1)
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
    columns = _Columns.of(table)
    offers: dict[OfferKey, Offer] = {}
    set_aside: list[SetAside] = []
    read: dict[tuple[str, ...], _Shared | str] = {}
    for number, row in table.rows:
        cells = columns.fitted(row)
        common = columns.common(cells)
        shared = read.get(common)
        if shared is None:
            shared = read[common] = _read_common(
                _Common._make(map(str.strip, common)), default_source, latest
            )
        instance = cells[columns.instance].strip()
        for offer in _offers(shared, instance, columns, cells):
            if isinstance(offer, str):
                set_aside.append(SetAside(_describe(table.name, number, cells), offer))
            elif offers.setdefault(offer_key(offer), offer) is not offer:
                twice = f"a second {offer.pricing} price of this instance in this region; the first is kept"
                set_aside.append(SetAside(_describe(table.name, number, cells), twice))
    return OfferTable(offers=tuple(offers.values()), set_aside=tuple(set_aside))


class _Columns(NamedTuple):
    """Where a table keeps what: cells that many rows share are picked at once and read once."""

    width: int
    common: Callable[[Sequence[str]], tuple[str, ...]]
    instance: int
    prices: tuple[tuple[int, Pricing, int | None], ...]

    @classmethod
    def of(cls, table: Rows) -> _Columns:
        at = {column: position for position, column in reversed(list(enumerate(table.columns)))}
        return cls(
            width=len(table.columns),
            common=itemgetter(*(at.get(name, -1) for name in _Common._fields)),
            instance=at["instance"],
            prices=tuple((at[name], pricing, term) for name, pricing, term in PRICE_COLUMNS if name in at),
        )

    def fitted(self, row: Sequence[str]) -> Sequence[str]:
        """Return the row with a blank behind it, for the columns that the table has not.

        A row with words beyond the header becomes blank as a whole, and so is set aside.
        """
        if len(row) == self.width:
            return [*row, ""]
        if any(cell.strip() for cell in row[self.width :]):
            return [""] * (self.width + 1)
        return [*row[: self.width], *[""] * (self.width + 1 - len(row))]


def _require_columns(table: Rows) -> None:
    missing = [column for column in REQUIRED if column not in table.columns]
    if not any(column in table.columns for column, _, _ in PRICE_COLUMNS):
        missing.append("on_demand_usd_per_h or spot_usd_per_h")
    if missing:
        raise MisuseError(
            f"{plain(table.name)} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {plain(', '.join(table.columns)) or 'none'}"
        )


def _describe(name: str, number: int, cells: Sequence[str]) -> str:
    return plain(f"{name}:{number} {' '.join(cell for cell in cells[:3] if cell)}".rstrip(), 120)


def _read_common(row: _Common, default_source: str, latest: date) -> _Shared | str:
    """Return what the shared cells say, or the reason why no offer can be made of them."""
    try:
        return _Shared(_fields(row, row.source or default_source, latest), _rate(row))
    except ValueError as reason:
        return str(reason)


def _fields(row: _Common, source: str, latest: date) -> dict[str, Any]:
    plausible.check_texts(row[:_WORDS])
    if not row.provider:
        raise ImplausibleError("no provider named")
    kind = row.kind.lower() or "vm"
    if kind not in KINDS:
        raise ImplausibleError(f"kind {kind[:40]!r} is none of {', '.join(KINDS)}")
    if not source:
        raise ImplausibleError("no source named")
    if not row.price_date:
        raise ImplausibleError("no price date: a price without a date says nothing")
    if price_day(row.price_date) > latest:
        raise ImplausibleError(f"price date {row.price_date} lies in the future")
    gpu_key = offered_gpu_key(row.gpu_key)
    if gpu_key is None:
        raise ImplausibleError(
            f"GPU {row.gpu_key[:60]!r} is unknown or ambiguous: name its form factor and memory"
        )
    return {
        "provider": row.provider.lower(),
        "region": None if row.region.lower() in NO_REGION else row.region,
        "gpu_key": gpu_key,
        "gpu_count": plausible.gpu_count(row.gpu_count),
        "vcpus": plausible.vcpus(row.vcpus),
        "ram_bytes": plausible.ram_bytes(row.ram_gib),
        "kind": kind,
        "price_date": row.price_date,
        "source": source,
        "note": _note(row, unstated=bool(load_specs()[gpu_key].variants)),
    }


def _rate(row: _Common) -> Decimal | None:
    """Return dollars per unit of a foreign currency; a rate counts only with the day on which it held."""
    if row.currency.upper() in {"", "USD"}:
        return None
    if not (row.usd_per_unit and row.rate_date):
        raise ImplausibleError(
            f"currency {row.currency[:10]!r} without usd_per_unit and rate_date: give both, or US dollars"
        )
    price_day(row.rate_date)
    return plausible.price(row.usd_per_unit)


def _note(row: _Common, *, unstated: bool) -> str | None:
    foreign = row.currency.upper() not in {"", "USD"}
    rate = f"converted from {row.currency.upper()} at {row.usd_per_unit} USD of {row.rate_date}"
    notes = (row.note, rate if foreign else "", UNSTATED_NOTE if unstated else "")
    return "; ".join(note for note in notes if note) or None


def _offers(
    shared: _Shared | str, instance: str, columns: _Columns, cells: Sequence[str]
) -> Iterator[Offer | str]:
    """Yield one offer for each price of a row, or the reason why there is none."""
    reason = shared if isinstance(shared, str) else _why_no_instance(instance)
    if isinstance(shared, str) or reason:
        yield reason or ""
        return
    priced = False
    for at, pricing, term_years in columns.prices:
        text = cells[at].strip()
        if not text:
            continue
        priced = True
        try:
            price = plausible.price(text, shared.fields["kind"])
        except ImplausibleError as error:
            yield str(error)
            continue
        if shared.usd_per_unit is not None:
            price *= shared.usd_per_unit
        yield Offer(
            instance=instance,
            price_usd_per_hour=price,
            pricing=pricing,
            term_years=term_years,
            **shared.fields,
        )
    if not priced:
        yield "no price"


def _why_no_instance(instance: str) -> str | None:
    if not instance:
        return "no instance named"
    try:
        plausible.check_texts((instance,))
    except ImplausibleError as error:
        return str(error)
    return None
