"""Which prices and counts can be true: one rule a field, for cells, answers, and structs of a file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from gpubench.models import Offer, Pricing
from gpubench.offers.dates import price_day
from gpubench.offers.request import KIND_SYNONYMS, KINDS, TO_RENT
from gpubench.offers.table import Coverage
from gpubench.specs import load_specs
from gpubench.units import GIB, figure_in

MIN_USD_PER_HOUR, MAX_USD_PER_HOUR = Decimal("0.001"), Decimal(100_000)
"""The cheapest GPU ever rented cost cents an hour, the dearest instance a few hundred dollars."""

_LOW, _HIGH = float(MIN_USD_PER_HOUR), float(MAX_USD_PER_HOUR)

LEAST_USD_PER_UNIT, MOST_USD_PER_UNIT = 1e-7, 10.0
"""A rial is worth millionths of a dollar, a dong or a rupiah 0.00004 to 0.00006, a dinar of Kuwait 3.25."""

MAX_CELL_CHARACTERS = 600
EARLIEST_DAY = date(2000, 1, 1)
"""No GPU that is rented for training is older."""

MOST: Mapping[str, float] = {
    "gpu_count": 1024,
    "vcpus": 100_000,
    "ram_bytes": 1_000_000 * GIB,
    "term_years": 10,
    "ask_count": 1_000_000,
    "reliability": 1,
    "pcie_bytes_per_s": 1e13,
    "download_bytes_per_s": 1e13,
    "upload_bytes_per_s": 1e13,
    "disk_bytes": 1e18,
}
"""Figures that are unknown, or above 0 and at most this."""
WHOLE = frozenset({"gpu_count", "ram_bytes", "term_years", "ask_count", "disk_bytes"})
NAMES = frozenset({"provider", "instance", "source"})
"""Texts that cannot be empty."""
TEXTS = NAMES | {"region", "note", "host_id", "machine_id"}
DAYS = frozenset({"price_date", "stock_date", "retrieved_at"})

_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2})T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)


class ImplausibleError(ValueError):
    """One row says something that cannot be used; the message is the reason shown for it."""


@lru_cache(maxsize=100_000, typed=True)
def read(field: str, said: Any) -> Any:
    """Return what a cell or a source says of a field of an offer; blank is unknown.

    Raises:
        ImplausibleError: If that cannot be true.
    """
    value = None if said == "" else said
    if value is not None and field in MOST:
        value = figure_in(str(value))
        if value is None:
            raise ImplausibleError(f"{field} {str(said)[:40]!r} is not a number")
        if field in WHOLE and value != int(value):
            raise ImplausibleError(f"{field} {str(said)[:40]} is not a whole number")
        value = int(value) if field in WHOLE else value
    if value is None and (field in NAMES or field == "gpu_count"):
        raise ImplausibleError(f"no {field} named")
    check_field(field, value)
    return value


def check_field(field: str, value: Any, latest: date = date.max) -> None:
    """Raise unless a field of an offer or of a coverage can have a value of its type.

    Args:
        field: Its name.
        value: None is unknown.
        latest: The last day that a date may name.
    """
    if value is None:
        return
    if field in MOST and not 0 < value <= MOST[field]:
        raise ImplausibleError(f"{field} {str(value)[:40]} is not above 0 and at most {MOST[field]:,}")
    if field in NAMES and not value:
        raise ImplausibleError(f"no {field} named")
    if field in TEXTS:
        check_text(value)
    if field in DAYS:
        check_stamp(value, latest) if field == "retrieved_at" and "T" in value else check_day(value, latest)
    if field == "gpu_key" and value not in load_specs():
        raise ImplausibleError(f"GPU {value[:60]!r} is unknown")
    if field == "pricing" and value not in TO_RENT:
        raise ImplausibleError(f"pricing {value[:40]!r} is none of {', '.join(TO_RENT)}")
    if field == "kind" and value not in KINDS:
        raise ImplausibleError(f"kind {value[:40]!r} is none of {', '.join(KINDS)}")


def check_together(offer: Offer) -> None:
    """Raise unless the fields of an offer, each for itself plausible, can be true of one offer."""
    if (offer.term_years is not None) != (offer.pricing is Pricing.RESERVED):
        raise ImplausibleError(f"a price that is {offer.pricing!s} cannot have the term {offer.term_years}")
    # Hosts of a marketplace are vetted or not; a list price is a company's, or of vetted hosts.
    allowed = ("secure", "community") if offer.kind == "marketplace" else ("cloud", "secure")
    if offer.seller not in allowed:
        raise ImplausibleError(f"seller {offer.seller!r} of a {offer.kind} is none of {', '.join(allowed)}")
    median = offer.ask_median_usd_per_hour
    if median is not None and price(str(median), offer.kind) < offer.price_usd_per_hour:
        raise ImplausibleError(f"a median of {median} is below the cheapest ask")


def check(struct: Offer | Coverage, latest: date = date.max) -> None:
    """Raise unless an offer or a coverage that was stored or fetched keeps every rule.

    Args:
        struct: Its fields are of their types.
        latest: The last day that a date in it may name.

    Raises:
        ImplausibleError: With the reason.
    """
    if isinstance(struct, Coverage):
        check_field("provider", struct.provider)
        check_stamp(f"{struct.day}T00:00:00Z", latest)
        for field, values in (
            ("pricing", struct.pricings),
            ("gpu_key", struct.gpu_keys),
            ("source", struct.vendors),
        ):
            for value in values:
                check_field(field, value)
        return
    for field in struct.__struct_fields__:
        check_field(field, getattr(struct, field), latest)
    price(str(struct.price_usd_per_hour), struct.kind)
    check_together(struct)


def price(text: str, kind: str = "vm", usd_per_unit: Decimal | None = None) -> Decimal:
    """Return a price of the whole instance [USD/h], or raise with the reason; free costs 0 and only that.

    Args:
        text: The price.
        kind: What sort of offer it is of.
        usd_per_unit: What a unit of its currency is worth; None is US dollars.
    """
    try:
        figure, value = float(text), Decimal(text)
    except (InvalidOperation, ValueError):
        raise ImplausibleError(f"price {text[:40]!r} is not a number") from None
    if not value.is_finite():
        raise ImplausibleError(f"price {text[:40]!r} is not finite")
    if kind == "free":
        if value != 0:
            raise ImplausibleError(f"price {text[:40]} of a free offer is not 0")
        return value
    if value <= 0:
        raise ImplausibleError(f"price {text[:40]} is not above 0")
    if not _LOW <= figure * float(usd_per_unit or 1) <= _HIGH:
        said = f"{text[:40]} USD/h" if usd_per_unit is None else f"{text[:40]} x {usd_per_unit} USD/h"
        raise ImplausibleError(f"price {said} is outside {MIN_USD_PER_HOUR} to {MAX_USD_PER_HOUR:,}")
    return value if usd_per_unit is None else value * usd_per_unit


def exchange_rate(text: str) -> Decimal:
    """Return what a unit of a currency is worth [USD], or raise with the reason."""
    value = figure_in(text)
    if value is None or not LEAST_USD_PER_UNIT <= value <= MOST_USD_PER_UNIT:
        limits = f"{LEAST_USD_PER_UNIT:.7f} to {MOST_USD_PER_UNIT:g} USD"
        raise ImplausibleError(f"exchange rate {text[:40]!r} is not a number from {limits}")
    return Decimal(text)


def check_text(text: str) -> None:
    """Raise unless a text can be shown in a terminal, a page and a spreadsheet as what it says."""
    if text.startswith(("=", "+", "-", "@")):
        raise ImplausibleError(f"cell {text[:40]!r} starts like a spreadsheet formula")
    if len(text) > MAX_CELL_CHARACTERS:
        raise ImplausibleError(f"cell {text[:20]!r}... is longer than {MAX_CELL_CHARACTERS} characters")
    if not text.isprintable() and any(unicodedata.category(c).startswith("C") for c in text):
        raise ImplausibleError(f"cell {text[:40]!r} holds control characters")


@lru_cache(maxsize=10_000)
def read_kind(text: str) -> str:
    """Return the kind of ``KINDS`` that a word names, in whatever case and spacing, one or several.

    >>> read_kind("cloud"), read_kind("Attach Fees"), read_kind("")
    ('vm', 'attach-fee', 'vm')

    Raises:
        ImplausibleError: If it names none.
    """
    word = "-".join(re.split(r"[\s_-]+", text.strip().lower()))
    named = (KIND_SYNONYMS.get(each, each) for each in (word, word.removesuffix("s")))
    kind = next((each for each in named if each in KINDS), text)
    check_field("kind", kind)
    return kind


@lru_cache(maxsize=10_000)
def check_day(text: str, latest: date) -> None:
    """Raise unless a price can be of a full or partial date, which is no later than ``latest``."""
    day = price_day(text)
    if day > latest:
        raise ImplausibleError(f"price date {text} lies in the future")
    if day < EARLIEST_DAY:
        raise ImplausibleError(f"price date {text} is before {EARLIEST_DAY.year}")


def check_stamp(text: str, latest: date) -> None:
    """Raise unless a text is a time in UTC, YYYY-MM-DDTHH:MM:SSZ, of no later day than ``latest``."""
    parts = _STAMP.fullmatch(text)
    if parts is None:
        raise ImplausibleError(f"the time {text[:40]!r} is not YYYY-MM-DDTHH:MM:SSZ")
    check_day(parts[1], latest)
