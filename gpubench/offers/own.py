"""Price tables in gpubench's own columns: the embedded table, and a user's quotes.

One row gives up to four offers: on demand, spot, and reserved for one and for three years. A row or a
price that cannot be used is set aside with its reason; the rest of the table counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpubench.errors import MisuseError
from gpubench.models import Offer, Pricing
from gpubench.offers import plausible
from gpubench.offers.dates import price_day
from gpubench.offers.plausible import ImplausibleError
from gpubench.offers.rows import Rows, read_rows
from gpubench.offers.table import OfferKey, OfferTable, SetAside, offer_key
from gpubench.specs import offered_gpu_key
from gpubench.units import plain

PRICE_COLUMNS: tuple[tuple[str, Pricing, int | None], ...] = (
    ("on_demand_usd_per_h", Pricing.ON_DEMAND, None),
    ("spot_usd_per_h", Pricing.SPOT, None),
    ("reserved_1y_usd_per_h", Pricing.RESERVED, 1),
    ("reserved_3y_usd_per_h", Pricing.RESERVED, 3),
)
REQUIRED = ("provider", "instance", "gpu_key", "gpu_count", "price_date")
NO_REGION = frozenset({"", "any"})


class _Row(NamedTuple):
    """The cells of one row, stripped, "" where the table has no such column."""

    provider: str
    instance: str
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
    on_demand_usd_per_h: str
    spot_usd_per_h: str
    reserved_1y_usd_per_h: str
    reserved_3y_usd_per_h: str


_TEXT_CELLS = _Row._fields.index("price_date")
"""The cells before the price date are words; those from it on are checked as dates and figures."""


def read_own(path: Path) -> OfferTable:
    """Read a user's price table: CSV (comma or semicolon) or a JSON list of objects, in our columns.

    Raises:
        MisuseError: If the file as a whole cannot be read; single bad rows are set aside instead.
    """
    return offers_of_rows(read_rows(path), default_source=f"own price file {plain(path.name)}")


def offers_of_rows(table: Rows, default_source: str = "") -> OfferTable:
    """Turn rows in our columns into offers, and set aside what cannot be used.

    Args:
        table: The rows; a second price for one provider, instance, region and pricing is a duplicate.
        default_source: Stands where a row names no source.

    Raises:
        MisuseError: If a required column is missing, or the text breaks off as CSV.
    """
    _require_columns(table)
    pick = table.picker(*_Row._fields)
    offers: dict[OfferKey, Offer] = {}
    set_aside: list[SetAside] = []
    gpu_keys: dict[str, str] = {}
    for number, cells in table.rows:
        row = _Row._make(pick(cells))
        try:
            shared = _shared_fields(row, gpu_keys, default_source)
        except ValueError as reason:
            set_aside.append(SetAside(_describe(table.name, number, row), str(reason)))
            continue
        for offer in _priced(row, shared):
            if isinstance(offer, str):
                set_aside.append(SetAside(_describe(table.name, number, row), offer))
            elif offers.setdefault(offer_key(offer), offer) is not offer:
                twice = f"a second {offer.pricing} price of this instance in this region; the first is kept"
                set_aside.append(SetAside(_describe(table.name, number, row), twice))
    return OfferTable(offers=tuple(offers.values()), set_aside=tuple(set_aside))


def _require_columns(table: Rows) -> None:
    missing = [column for column in REQUIRED if column not in table.columns]
    if not any(column in table.columns for column, _, _ in PRICE_COLUMNS):
        missing.append("on_demand_usd_per_h or spot_usd_per_h")
    if missing:
        raise MisuseError(
            f"{plain(table.name)} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {plain(', '.join(table.columns)) or 'none'}"
        )


def _describe(name: str, number: int, row: _Row) -> str:
    words = " ".join(cell for cell in (row.provider, row.instance, row.region) if cell)
    return plain(f"{name}:{number} {words}")


def _shared_fields(row: _Row, gpu_keys: dict[str, str], default_source: str) -> dict[str, Any]:
    """Return what all offers of a row have in common, or raise ValueError with the reason it is unusable."""
    plausible.check_texts(row[:_TEXT_CELLS])
    if not (row.provider and row.instance):
        raise ImplausibleError("no provider or no instance named")
    if row.currency and row.currency.upper() != "USD":
        raise ImplausibleError(
            f"currency {row.currency[:10]!r}: no exchange rate is known here, give US dollars"
        )
    kind = row.kind.lower() or "vm"
    if kind not in plausible.KINDS:
        raise ImplausibleError(f"kind {kind[:40]!r} is none of {', '.join(sorted(plausible.KINDS))}")
    source = row.source or default_source
    if not source:
        raise ImplausibleError("no source named")
    if not row.price_date:
        raise ImplausibleError("no price date: a price without a date says nothing")
    price_day(row.price_date)
    if not any(row[-len(PRICE_COLUMNS) :]):
        raise ImplausibleError("no price")
    return {
        "provider": row.provider.lower(),
        "instance": row.instance,
        "region": None if row.region.lower() in NO_REGION else row.region,
        "gpu_key": gpu_keys.get(row.gpu_key) or _gpu_key(row.gpu_key, gpu_keys),
        "gpu_count": plausible.gpu_count(row.gpu_count),
        "vcpus": plausible.vcpus(row.vcpus),
        "ram_bytes": plausible.ram_bytes(row.ram_gib),
        "kind": kind,
        "price_date": row.price_date,
        "source": source,
        "note": row.note or None,
    }


def _gpu_key(name: str, gpu_keys: dict[str, str]) -> str:
    key = offered_gpu_key(name)
    if key is None:
        raise ImplausibleError(f"GPU {name[:60]!r} is unknown or ambiguous: name its form factor and memory")
    return gpu_keys.setdefault(name, key)


def _priced(row: _Row, shared: dict[str, Any]) -> Iterator[Offer | str]:
    """Yield one offer for each price of a row, or the reason why a price is none."""
    for (_, pricing, term_years), text in zip(PRICE_COLUMNS, row[-len(PRICE_COLUMNS) :], strict=True):
        if not text:
            continue
        try:
            price = plausible.price(text)
        except ImplausibleError as reason:
            yield str(reason)
            continue
        yield Offer(**shared, price_usd_per_hour=price, pricing=pricing, term_years=term_years)
