"""A person's price table, cleaned once: from cells of text to offers that keep every rule.

Columns are named by the fields of an offer, with one price a row. People's tables may have up to four prices
a row instead, memory in GiB, and prices in another currency. A row or a price that cannot be used is set
aside with its reason; the rest of the table counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pandas as pd
from numpy.typing import NDArray

from gpubench.errors import MisuseError
from gpubench.labels import PRICING_WORDS
from gpubench.models import Offer, Pricing
from gpubench.offers import plausible
from gpubench.offers.dates import price_day
from gpubench.offers.frames import BEYOND, read_frame
from gpubench.offers.plausible import ImplausibleError
from gpubench.offers.table import UNSTATED_NOTE, OfferTable, SetAside
from gpubench.specs import known_keys, load_specs, offered_gpu_key, offered_keys
from gpubench.today import today
from gpubench.units import figure_in, listing, plain

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
_MONEY = ("currency", "usd_per_unit", "rate_date")
_GPU = ("gpu_key", "gpu_memory_gib", "gpu_count")
_SAME = ["provider", "instance", "region", "pricing", "term_years"]
"""What two prices of one offer have in common."""
_FIELDS = [
    *("provider", "instance", "region", "gpu_key", "gpu_count", "vcpus", "ram_bytes", "price_usd_per_hour"),
    *("pricing", "term_years", "kind", "price_date", "source", "note", "seller"),
]
"""What a table tells of an offer."""
_MORE = [
    *("ask_count", "ask_median_usd_per_hour", "is_floor", "host_id", "machine_id", "reliability"),
    *("pcie_bytes_per_s", "download_bytes_per_s", "upload_bytes_per_s", "disk_bytes"),
]
"""What it tells where it has columns of these names, each of its field's type."""
_SECOND = "a second {} price of this instance in this region; that of the later day is kept, else the first"


def read_own(path: Path, latest: date | None = None) -> OfferTable:
    """Read a user's price table: CSV (comma or semicolon) or a JSON list of objects.

    Args:
        path: The file.
        latest: The last day that a price may be of; None is tomorrow.

    Raises:
        MisuseError: If the file as a whole cannot be read; single bad rows are set aside instead.
    """
    return clean(read_frame(path), path.name, latest or today() + timedelta(days=1))


def clean(frame: pd.DataFrame, name: str, latest: date) -> OfferTable:
    """Turn a table of text into offers, and set aside what cannot be used.

    Args:
        frame: As ``read_frame`` gives it; a second price of one offer is a duplicate.
        name: Of the file; it is the source where a row names none.
        latest: A price of a later day is set aside: it would count as fresh until that day has passed.

    Raises:
        MisuseError: If a required column is missing.
    """
    _require_columns(frame, name)
    faults: dict[int, str] = dict.fromkeys(
        frame.index[frame[BEYOND] != ""], "more cells than the header has columns"
    )
    facts = _facts(frame, f"own price file {plain(name)}", latest, faults)
    columns = [column for column in PRICES if column in frame]
    priced = pd.concat([_with_prices(facts, column, frame[column]) for column in columns])
    priced = priced[priced["cell"] != ""].sort_index(kind="stable").rename_axis("row").reset_index()
    read = [_price(*each) for each in zip(priced["cell"], priced["kind"], priced["rate"], strict=True)]
    priced["price_usd_per_hour"] = pd.Series([price for price, _ in read], dtype=object)
    priced["why"] = pd.Series([why for _, why in read], dtype=object)
    good = priced[priced["why"] == ""]
    latest_first = good["price_date"].map(price_day).sort_values(ascending=False, kind="stable").index
    repeats = good.loc[latest_first].duplicated(_SAME)
    second = repeats.index[repeats]
    priced.loc[second, "why"] = priced.loc[second, "pricing"].map(PRICING_WORDS).map(_SECOND.format)
    kept, bad = priced[priced["why"] == ""], priced[priced["why"] != ""]
    unpriced = facts.index[~facts.index.isin(priced["row"])]
    aside = [*faults.items(), *((row, "no price") for row in unpriced)]
    aside += zip(bad["row"], bad["why"], strict=True)
    more = [field for field in _MORE if field in kept]
    fields = [*_FIELDS, *more]
    offers: list[Offer] = []
    for row, cells in zip(kept["row"], kept[fields].itertuples(index=False, name=None), strict=True):
        offer = Offer(**dict(zip(fields, cells, strict=True)))
        try:
            if any(cell is not None for cell in cells[len(_FIELDS) :]):
                plausible.check(offer, latest)
        except ImplausibleError as reason:
            aside.append((row, str(reason)))
        else:
            offers.append(offer)
    set_aside = _named_rows(frame, name, sorted(aside, key=lambda each: each[0]))
    return OfferTable(offers=tuple(offers), set_aside=set_aside)


def missing_columns(frame: pd.DataFrame) -> list[str]:
    """Return the columns that a table of one's own must have and this one lacks."""
    missing = [column for column in REQUIRED if column not in frame]
    if not any(column in frame for column in PRICES):
        missing.append("on_demand_usd_per_h or spot_usd_per_h")
    return missing


def _require_columns(frame: pd.DataFrame, name: str) -> None:
    if missing := missing_columns(frame):
        raise MisuseError(
            f"{plain(name)} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {plain(', '.join(frame.columns[:-1])) or 'none'}"
        )


def _facts(frame: pd.DataFrame, source: str, latest: date, faults: dict[int, str]) -> pd.DataFrame:
    """Return what the cells say of each row without a fault; of several faults the first met is told."""
    readers: Mapping[str, Callable[..., Any]] = {
        "provider": lambda text: _named("provider", text).lower(),
        "kind": plausible.read_kind,
        "source": lambda text: _named("source", text or source),
        "price_date": partial(_day, latest=latest),
        "gpu_key": _gpu_key,
        "gpu_count": plausible.gpu_count,
        "vcpus": plausible.vcpus,
        "ram_bytes": partial(plausible.ram_bytes, unit=1),
        "ram_gib": plausible.ram_bytes,
        "rate": _rate,
        "paid": _way_of_paying,
        "region": lambda text: None if text.lower() in NO_REGION else _word(text),
        "note": _note,
        "seller": _seller,
        "instance": partial(_named, "instance"),
        **{field: partial(_typed, field) for field in _MORE if field in frame},
    }
    together = {
        "rate": _MONEY,
        "paid": ("pricing", "term_years"),
        "gpu_key": _GPU,
        "note": ("note", *_GPU, *_MONEY),
        "seller": ("seller", "kind"),
    }
    beside = [*_MONEY, "pricing", "term_years", "gpu_memory_gib"]
    cells = frame.reindex(columns=[*readers, *beside], fill_value="")
    facts = {
        column: _read(cells[list(together.get(column, (column,)))], read, faults)
        for column, read in readers.items()
    }
    if "ram_bytes" not in frame:
        facts["ram_bytes"] = facts["ram_gib"]
    return pd.DataFrame(facts, index=frame.index, dtype=object).drop(index=list(faults))


def _read(cells: pd.DataFrame, read: Callable[..., Any], faults: dict[int, str]) -> NDArray[Any]:
    """Read what is the same in several rows once; where it cannot be used the rows get its fault."""
    kinds = cells.groupby(list(cells.columns), sort=False).ngroup()
    values: list[Any] = []
    bad: dict[int, str] = {}
    for kind, words in enumerate(cells[~kinds.duplicated()].itertuples(index=False, name=None)):
        try:
            values.append(read(*words))
        except ValueError as reason:
            values.append(None)
            bad[kind] = str(reason)
    wrong = kinds[kinds.isin(list(bad))]
    for row, kind in zip(wrong.index, wrong, strict=True):
        faults.setdefault(row, bad[kind])
    return pd.Series(values, dtype=object).to_numpy()[kinds]


def _with_prices(facts: pd.DataFrame, column: str, cells: pd.Series[str]) -> pd.DataFrame:
    """Return the rows with the prices of one column, and how they are paid."""
    rows = facts.assign(cell=cells.loc[facts.index])  # an empty frame would else take all of them
    paid = PRICES[column]
    ways = list(facts["paid"]) if paid is None else [paid] * len(facts)
    rows["pricing"] = pd.Series([way for way, _ in ways], facts.index, dtype=object)
    rows["term_years"] = pd.Series([years for _, years in ways], facts.index, dtype=object)
    return rows


def _price(cell: str, kind: str, usd_per_unit: Decimal | None) -> tuple[Decimal | None, str]:
    """Return a price [USD/h], or None and why it cannot be used."""
    if usd_per_unit is None:  # dollars, which people mark on either side
        cell = cell.removeprefix("$").removesuffix("USD").strip()
    try:
        return plausible.price(cell, kind, usd_per_unit), ""
    except ImplausibleError as reason:
        return None, str(reason)


def _named_rows(frame: pd.DataFrame, name: str, aside: list[tuple[int, str]]) -> tuple[SetAside, ...]:
    """Return the rows that are set aside by their numbers and first words."""
    words = frame.iloc[:, :3].loc[[row for row, _ in aside]].itertuples(index=False, name=None)
    return tuple(
        SetAside(plain(f"{name}:{row} {' '.join(filter(None, first))}".rstrip(), 120), reason)
        for (row, reason), first in zip(aside, words, strict=True)
    )


# --- cells -----------------------------------------------------------------------------------------------


def _word(text: str) -> str:
    plausible.check_text(text)
    return text


def _named(what: str, text: str) -> str:
    if not text:
        raise ImplausibleError(f"no {what} named")
    return _word(text)


def _typed(field: str, text: str) -> Any:
    try:
        return msgspec.convert(text or None, get_type_hints(Offer)[field], strict=False)
    except msgspec.ValidationError as error:
        raise ImplausibleError(f"{field}: {error}") from None


def _day(text: str, latest: date) -> str:
    if not text:
        raise ImplausibleError("no price date: a price without a date says nothing")
    plausible.check_day(text, latest)
    return text


def _gpu_key(text: str, memory_gib: str, count: str) -> str:
    """Return the key of a GPU; the memory beside it is that of one, else that of all."""
    memory, gpus = figure_in(memory_gib), figure_in(count)
    sizes = [None] if memory is None else [memory, memory / gpus if gpus else None]
    key = next(filter(None, (offered_gpu_key(_word(text), size) for size in sizes)), None)
    if key is None:
        meant = offered_keys(text) or known_keys(text)
        why = (
            f"can be any of {listing(meant, most=4)}: name one" if meant else "is unknown: name it by its key"
        )
        raise ImplausibleError(f"GPU {text[:60]!r} {why}, of those that gpubench list --gpus shows")
    return key


def _seller(text: str, kind: str) -> str | None:
    seller = text.lower() or None
    plausible.check_seller(seller, plausible.read_kind(kind))
    return seller


def _way_of_paying(pricing: str, years: str) -> tuple[Pricing, int | None]:
    return plausible.way_of_paying(pricing or Pricing.ON_DEMAND, years)


def _rate(currency: str, usd_per_unit: str, day: str) -> Decimal | None:
    """Return what a foreign currency is worth [USD]; a rate counts only with the day on which it held."""
    if currency.upper() in DOLLARS:
        return None
    if not (usd_per_unit and day):
        raise ImplausibleError(
            f"currency {currency[:10]!r} without usd_per_unit and rate_date: give both, or US dollars"
        )
    plausible.check_day(day, date.max)
    return plausible.exchange_rate(usd_per_unit)


def _note(text: str, *told: str) -> str | None:
    """Return the note of a row, and what else is to be said of its money and of its GPU."""
    gpu, (currency, usd_per_unit, day) = told[: len(_GPU)], told[len(_GPU) :]
    converted = f"converted from {currency.upper()} at {usd_per_unit} USD of {day}"
    spec = load_specs().get(_gpu_key(*gpu))
    words = (
        _word(text),
        None if currency.upper() in DOLLARS else converted,
        UNSTATED_NOTE if spec and spec.variants else None,
    )
    return "; ".join(filter(None, words)) or None
