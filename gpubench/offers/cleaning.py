"""A person's price table: from cells of text to quotes, which are cleaned as those of any source are.

Columns are named by the fields of an offer, with one price a row. People's tables may have up to four prices
a row instead, memory in GiB, and prices in another currency. A row or a price that cannot be used is set
aside with its reason; the rest of the table counts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, decode_json, decode_text, read_bytes
from gpubench.offers import plausible
from gpubench.offers.plausible import ImplausibleError
from gpubench.offers.quotes import sort_quotes
from gpubench.offers.sources import NO_HOST, HostFacts, Quote, Unread
from gpubench.offers.table import OfferTable
from gpubench.pricings import Pricing
from gpubench.specs import offered_gpu_key
from gpubench.today import today
from gpubench.units import GIB, figure_in, plain

MAX_ROWS = 500_000
MAX_CELLS = 20_000_000
"""Short rows are filled up to the header, so that many of them below a wide one would take all memory."""

PRICES: Mapping[str, tuple[Pricing, int | None] | None] = {
    "price_usd_per_hour": None,
    "on_demand_usd_per_h": (Pricing.ON_DEMAND, None),
    "spot_usd_per_h": (Pricing.SPOT, None),
    "reserved_1y_usd_per_h": (Pricing.RESERVED, 1),
    "reserved_3y_usd_per_h": (Pricing.RESERVED, 3),
}
"""Columns of prices, and how what they price is paid and for how many years; None is told by the row."""

REQUIRED = ("provider", "instance", "gpu_key", "gpu_count", "price_date")
NO_REGION = frozenset({"", "any"})
DOLLARS = frozenset({"", "USD"})
_DECIMAL_COMMA = re.compile(r"^\s*([-+]?\d+),(\d+)\s*$", re.ASCII)


# --- a table of text -------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A stranger's table, not yet believed.

    Attributes:
        name: Of its file.
        columns: Their names in lower case.
        rows: Stripped text by column, "" where a row says nothing, by the number of the row. Below None is
            what a row has more than there are columns.
    """

    name: str
    columns: Sequence[str]
    rows: Iterator[tuple[int, Mapping[str | None, str]]]


def read_rows(path: Path) -> Table:
    """Read a table that the user names: a JSON list of objects by its suffix .json, else CSV with a header.

    Raises:
        MisuseError: If the file is missing, not UTF-8, no table, or too large.
    """
    raw = read_bytes(path, TABLE_BYTES, follow_links=True)
    if raw.startswith(b"PK"):
        raise MisuseError(f"{plain(path.name)} is a spreadsheet or archive: save the table as CSV")
    read = _json_rows if path.suffix.lower() == ".json" else _csv_rows
    header, rows = read(decode_text(raw, path), path)
    if len(rows) > MAX_ROWS:
        raise MisuseError(f"{plain(path.name)} has more than {MAX_ROWS:,} rows: split the table")
    if len(rows) * len(header) > MAX_CELLS:
        raise MisuseError(
            f"{plain(path.name)} has {len(header):,} columns for {len(rows):,} rows, over {MAX_CELLS:,} "
            "cells in all: leave out the columns that say nothing"
        )
    columns = [name.strip().lower() for name in header]
    first = {name: at for at, name in reversed([*enumerate(columns)])}  # of two columns of one name

    def cells(row: Sequence[str]) -> dict[str | None, str]:
        found: dict[str | None, str] = {
            name: row[at].strip() if at < len(row) else "" for name, at in first.items()
        }
        found[None] = "".join(row[len(columns) :]).strip()
        return found

    return Table(path.name, columns, ((number, cells(row)) for number, row in rows))


def _csv_rows(text: str, path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and the rows with their lines.

    A semicolon parts cells where the header uses it, and then a comma may part the decimals of a figure.
    """
    head = text.partition("\n")[0]
    separator = ";" if head.count(";") > head.count(",") else ","
    reader = csv.reader(text.splitlines(keepends=True), delimiter=separator)
    try:
        rows = list(islice(((reader.line_num, row) for row in reader if row), MAX_ROWS + 2))
    except csv.Error as error:
        raise MisuseError(f"{plain(path.name)}, line {reader.line_num}: {error}; write plain CSV") from None
    if not rows:
        raise MisuseError(f"{plain(path.name)} is empty: the first line names the columns")
    if separator == ";":
        rows = [(line, [_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in row]) for line, row in rows]
    return rows[0][1], rows[1:]


def _json_rows(text: str, path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    table = decode_json(text, list[dict[str, Any]], path, what="a JSON list of offers")
    header = list(dict.fromkeys(chain.from_iterable(table)))
    if len(header) * len(table) > MAX_CELLS:  # refused before the rows are filled up
        return header, [(0, [])] * len(table)
    return header, [(at, [_cell(row.get(name)) for name in header]) for at, row in enumerate(table, 1)]


def _cell(value: Any) -> str:
    """Return a value as a cell; a list or an object, which no column of ours has, says nothing."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or isinstance(value, list | dict) else str(value)


# --- a table of one's own --------------------------------------------------------------------------------


def read_own(path: Path, latest: date | None = None) -> OfferTable:
    """Read a user's price table: CSV (comma or semicolon) or a JSON list of objects.

    Args:
        path: The file.
        latest: The last day that a price may be of; None is tomorrow.

    Raises:
        MisuseError: If the file as a whole cannot be read; single bad rows are set aside instead.
    """
    return clean(read_rows(path), latest or today() + timedelta(days=1))


def clean(table: Table, latest: date) -> OfferTable:
    """Return the offers of a table in our columns, and what of it cannot be used.

    Raises:
        MisuseError: If a required column is missing.
    """
    if missing := missing_columns(table.columns):
        raise MisuseError(
            f"{plain(table.name)} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {plain(', '.join(table.columns)) or 'none'}"
        )
    return sort_quotes(_quotes(table), None, latest).table


def missing_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that a table of one's own must have and this one lacks."""
    missing = [column for column in REQUIRED if column not in columns]
    if not any(column in columns for column in PRICES):
        missing.append("on_demand_usd_per_h or spot_usd_per_h")
    return missing


def _quotes(table: Table) -> Iterator[Quote | Unread]:
    """Yield a quote for each price of a row, or why there is none."""
    source = f"own price file {plain(table.name)}"
    first = table.columns[:3]
    for number, row in table.rows:
        where = f"{table.name}:{number} {' '.join(filter(None, map(row.__getitem__, first)))}".rstrip()
        priced = [column for column in PRICES if row.get(column)]
        if row[None]:
            yield Unread(row=where, reason="more cells than the header has columns")
        elif not priced:
            yield Unread(row=where, reason="no price")
        for column in () if row[None] else priced:
            try:
                yield _quote(row, column, where, source)
            except ValueError as reason:
                yield Unread(row=where, reason=str(reason))


def _quote(row: Mapping[str | None, str], column: str, where: str, source: str) -> Quote:
    said = row.get
    kind, region, note = plausible.read_kind(said("kind", "")), said("region", ""), said("note")
    pricing, term_years = PRICES[column] or (said("pricing") or Pricing.ON_DEMAND, said("term_years"))
    cell, usd_per_unit, currency = row[column], None, said("currency", "").upper()
    if currency in DOLLARS:  # people mark them on either side
        cell = cell.removeprefix("$").removesuffix("USD").strip()
    else:
        usd_per_unit = _rate(currency, said("usd_per_unit", ""), said("rate_date", ""))
        converted = f"converted from {currency} at {usd_per_unit} USD of {row['rate_date']}"
        note = f"{note}; {converted}" if note else converted
    ram_bytes = figure_in(said("ram_bytes", ""))
    is_floor = said("is_floor")
    told = {field: row[field] for field in HostFacts.__struct_fields__ if said(field)}
    return Quote(
        provider=row["provider"].lower(),
        instance=row["instance"],
        region=None if region.lower() in NO_REGION else region,
        gpu=row["gpu_key"],
        gpu_memory_gib=_memory_of_one(row["gpu_key"], said("gpu_memory_gib", ""), row["gpu_count"]),
        gpu_count=row["gpu_count"],
        vcpus=said("vcpus"),
        ram_gib=said("ram_gib") or said("ram_bytes") if ram_bytes is None else ram_bytes / GIB,
        price=cell,
        usd_per_unit=usd_per_unit,
        pricing=Pricing(plausible.read("pricing", pricing)),
        term_years=term_years,
        kind=kind,
        price_date=row["price_date"],
        source=said("source") or source,
        note=note,
        ask_count=said("ask_count"),
        ask_median=said("ask_median_usd_per_hour") or None,
        seller=said("seller", "").lower() or None,  # type: ignore[arg-type]  # a wrong one is told
        is_floor=msgspec.convert(is_floor, bool, strict=False) if is_floor else None,
        host=msgspec.structs.replace(NO_HOST, **told) if told else NO_HOST,
        row=where,
    )


@lru_cache
def _memory_of_one(gpu: str, memory_gib: str, count: str) -> float | None:
    """Return the memory beside a GPU's name: it is that of one, else that of all."""
    size, gpus = figure_in(memory_gib), figure_in(count)
    if size is None or not gpus or offered_gpu_key(gpu, size) is not None:
        return size
    return size / gpus


@lru_cache
def _rate(currency: str, usd_per_unit: str, day: str) -> Decimal:
    """Return what a foreign currency is worth [USD]; a rate counts only with the day on which it held."""
    if not (usd_per_unit and day):
        raise ImplausibleError(
            f"currency {currency[:10]!r} without usd_per_unit and rate_date: give both, or US dollars"
        )
    plausible.check_day(day, date.max)
    return plausible.exchange_rate(usd_per_unit)
