"""Which prices and counts can be true: the checks that every row from a file or a provider passes.

Cells of a table are read by the functions of their columns. Offers and coverages that come as structs are
held to a rule for each field. The limits are the same.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

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

MAX_GPU_COUNT = 1024
MAX_VCPUS = 100_000.0
MAX_RAM_GIB = 1_000_000.0
MAX_DISK_BYTES = 1e18
MAX_BYTES_PER_S = 1e13
MAX_CELL_CHARACTERS = 600


class ImplausibleError(ValueError):
    """One row says something that cannot be used; the message is the reason shown for it."""


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


def gpu_count(text: str) -> int:
    """Return a count of whole GPUs, or raise with the reason."""
    try:
        value = float(text)
    except ValueError:
        raise ImplausibleError(f"GPU count {text[:40]!r} is not a number") from None
    if not math.isfinite(value) or value != int(value):
        raise ImplausibleError(f"GPU count {text[:40]} is not a whole number: a share of a GPU is not ranked")
    if not 1 <= value <= MAX_GPU_COUNT:
        raise ImplausibleError(f"GPU count {text[:40]} is outside 1 to {MAX_GPU_COUNT}")
    return int(value)


def vcpus(text: str) -> float | None:
    """Return a count of virtual CPUs; blank is unknown."""
    return _amount(text, "vCPU count", MAX_VCPUS)


def ram_bytes(text: str, unit: int = GIB) -> int | None:
    """Return host memory [B] from a number of units; blank is unknown."""
    value = _amount(text, "RAM", MAX_RAM_GIB * GIB / unit)
    return None if value is None else round(value * unit)


def way_of_paying(word: str, years: str) -> tuple[Pricing, int | None]:
    """Return how a price is paid, and for how many years if it is reserved; blank years are none.

    Raises:
        ImplausibleError: If that is no way to pay for what is rented.
    """
    if word not in TO_RENT:
        raise ImplausibleError(f"pricing {word[:40]!r} is none of {', '.join(TO_RENT)}")
    term = _amount(years, "term", MAX_TERM_YEARS)
    if term is not None and term != int(term):
        raise ImplausibleError(f"term {years[:40]} is not a whole number of years")
    paid = Pricing(word), None if term is None else int(term)
    _check_term(paid[1], paid[0])
    return paid


def _amount(text: str, what: str, limit: float) -> float | None:
    if not text:
        return None
    value = figure_in(text)
    if value is None or not 0 < value <= limit:
        raise ImplausibleError(f"{what} {text[:40]!r} is not between 0 and {limit:g}")
    return value


def check_text(text: str | None, *_: object) -> None:
    """Raise unless a text can be shown in a terminal, a page and a spreadsheet as what it says."""
    if not text:
        return
    if text[0] in "=+-@":
        raise ImplausibleError(f"cell {text[:40]!r} starts like a spreadsheet formula")
    if len(text) > MAX_CELL_CHARACTERS:
        raise ImplausibleError(f"cell {text[:20]!r}... is longer than {MAX_CELL_CHARACTERS} characters")
    if not text.isprintable() and any(unicodedata.category(c).startswith("C") for c in text):
        raise ImplausibleError(f"cell {text[:40]!r} holds control characters")


def read_kind(text: str) -> str:
    """Return the kind of ``KINDS`` that a word names, in whatever case and spacing, one or several.

    >>> read_kind("cloud"), read_kind("Attach Fees"), read_kind("")
    ('vm', 'attach-fee', 'vm')

    Raises:
        ImplausibleError: If it names none.
    """
    word = "-".join(re.split(r"[\s_-]+", text.strip().lower()))
    named = (KIND_SYNONYMS.get(each, each) for each in (word, word.removesuffix("s")))
    kind = next((each for each in named if each in KINDS), None)
    if kind is None:
        raise ImplausibleError(f"kind {text[:40]!r} is none of {', '.join(KINDS)}")
    return kind


def check_seller(seller: str | None, kind: str) -> None:
    """Raise unless offers of a kind can have a seller; None is not said.

    A marketplace's hosts are vetted or not. What has a list price is sold by a company, or by a marketplace
    that vets the hosts behind it.
    """
    allowed = ("secure", "community") if kind == "marketplace" else ("cloud", "secure")
    if seller not in {None, *allowed}:
        raise ImplausibleError(f"seller {str(seller)[:40]!r} of a {kind} is none of {', '.join(allowed)}")


# --- offers and coverages, field by field ----------------------------------------------------------------

EARLIEST_DAY = date(2000, 1, 1)
"""No GPU that is rented for training is older."""
MAX_TERM_YEARS = 10
MAX_ASK_COUNT = 1_000_000
MAX_NAMES = 1_000
"""Of GPUs or vendors in one coverage; the table has some 200."""

_DAY = r"\d{4}-\d{2}-\d{2}"
_STAMP = re.compile(rf"({_DAY})T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)

_Rule: TypeAlias = Callable[[Any, Any, date], object]
"""Raises unless the value of a field can be true of its struct; no date in it may be after the given day."""


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


def _check_day(text: str | None, _struct: object, latest: date) -> None:
    if text is not None:
        check_day(text, latest)


def _check_whole_day(text: str, _struct: object, latest: date) -> None:
    if not re.fullmatch(_DAY, text, re.ASCII):
        raise ImplausibleError(f"day {text[:40]!r} is not YYYY-MM-DD")
    check_day(text, latest)


def _check_retrieval(text: str | None, _offer: Offer, latest: date) -> None:
    """Tables that were imported have the date of their prices here, without a time."""
    if text is not None and "T" in text:
        check_stamp(text, latest)
    else:
        _check_day(text, _offer, latest)


def _check_name(text: str, *_: object) -> None:
    if not text:
        raise ImplausibleError("it is empty")
    check_text(text)


def _check_key(key: str, *_: object) -> None:
    if key not in load_specs():
        raise ImplausibleError(f"GPU {key[:60]!r} is unknown")


def _check_pricing(pricing: Pricing, *_: object) -> None:
    if pricing not in TO_RENT:
        raise ImplausibleError(f"{pricing!s} is said of your own hardware alone, by --have")


def _check_kind(kind: str, *_: object) -> None:
    if kind not in KINDS:
        raise ImplausibleError(f"kind {kind[:40]!r} is none of {', '.join(KINDS)}")


def _check_term(years: int | None, pricing: Pricing) -> None:
    if (years is not None) != (pricing is Pricing.RESERVED):
        raise ImplausibleError(f"a price that is {pricing!s} cannot have the term {years}")
    _up_to(MAX_TERM_YEARS)(years)


def _check_ask_median(median: Decimal | None, offer: Offer, _latest: date) -> None:
    """Raise if it is no price, or below the offer's own, which is the cheapest of the asks."""
    if median is not None and price(str(median), offer.kind) < offer.price_usd_per_hour:
        raise ImplausibleError(f"a median of {median} is below the cheapest ask")


def _up_to(most: float) -> Callable[..., None]:
    """Return the rule of a figure that is above 0 and has a limit, or is unknown."""

    def check(value: float | None, *_: object) -> None:
        if value is not None and not 0 < value <= most:
            raise ImplausibleError(f"{str(value)[:40]} is not between 0 and {most:,g}")

    return check


def _each(rule: Callable[[Any], None]) -> _Rule:
    """Return the rule of a list whose items each keep a rule."""

    def check(items: Sequence[Any], *_: object) -> None:
        if len(items) > MAX_NAMES:
            raise ImplausibleError(f"it has {len(items):,} items, over {MAX_NAMES:,}")
        for item in items:
            rule(item)

    return check


def _anything(*_: object) -> None:
    """Take any value of the field's type: whether something is so."""


OFFER_RULES: Mapping[str, _Rule] = {
    "provider": _check_name,
    "instance": _check_name,
    "region": check_text,
    "gpu_key": _check_key,
    "gpu_count": _up_to(MAX_GPU_COUNT),
    "vcpus": _up_to(MAX_VCPUS),
    "ram_bytes": _up_to(MAX_RAM_GIB * GIB),
    "price_usd_per_hour": lambda usd, offer, _: price(str(usd), offer.kind),
    "pricing": _check_pricing,
    "kind": _check_kind,
    "price_date": _check_day,
    "source": _check_name,
    "note": check_text,
    "term_years": lambda years, offer, _: _check_term(years, offer.pricing),
    "retrieved_at": _check_retrieval,
    "in_stock": _anything,
    "stock_date": _check_day,
    "ask_count": _up_to(MAX_ASK_COUNT),
    "ask_median_usd_per_hour": _check_ask_median,
    "seller": lambda seller, offer, _: check_seller(seller, offer.kind),
    "is_floor": _anything,
    "host_id": check_text,
    "machine_id": check_text,
    "reliability": _up_to(1.0),
    "pcie_bytes_per_s": _up_to(MAX_BYTES_PER_S),
    "download_bytes_per_s": _up_to(MAX_BYTES_PER_S),
    "upload_bytes_per_s": _up_to(MAX_BYTES_PER_S),
    "disk_bytes": _up_to(MAX_DISK_BYTES),
}
"""What each field of an offer may say; a test finds a field without a rule."""

COVERAGE_RULES: Mapping[str, _Rule] = {
    "provider": _check_name,
    "day": _check_whole_day,
    "pricings": _each(_check_pricing),
    "vendors": _each(_check_name),
    "gpu_keys": _each(_check_key),
    "whole_provider": _anything,
}
"""What each field of a coverage may say."""


_RULES: Mapping[type, Mapping[str, _Rule]] = {Offer: OFFER_RULES, Coverage: COVERAGE_RULES}


def check(struct: Offer | Coverage, latest: date = date.max) -> None:
    """Raise unless an offer or a coverage that was stored or fetched keeps every rule.

    Args:
        struct: Its fields are of their types.
        latest: The last day that a date in it may name.

    Raises:
        ImplausibleError: With the field and the reason.
    """
    for field, rule in _RULES[type(struct)].items():
        try:
            rule(getattr(struct, field), struct, latest)
        except ValueError as reason:
            raise ImplausibleError(f"{field}: {reason}") from None
