"""Converts the quotes of all sources to offers: identifies the GPU, and checks plausibility.

A cloud's GPU name ("H100", "A100") leaves the form factor open. The name of the instance does not:
p5.48xlarge has eight SXM cards, whatever a price list calls them. data/instances.csv lists these instances.
Each field has one rule, which applies to cells of tables, to answers, and to the structs of a file.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec

from gpubench.folders import data_table
from gpubench.labels import PRICING_WORDS
from gpubench.models import Offer
from gpubench.names import tpu_slice
from gpubench.offers.dates import price_day
from gpubench.offers.request import KIND_SYNONYMS, KINDS, TO_RENT
from gpubench.offers.sources import NO_HOST, Complete, Quote, SourceItem
from gpubench.offers.table import (
    MAX_USD_PER_HOUR,
    MIN_USD_PER_HOUR,
    UNSTATED_NOTE,
    Coverage,
    OfferKey,
    OfferTable,
    SetAside,
    offer_key,
)
from gpubench.pricings import Pricing
from gpubench.specs import known_keys, load_specs, offered_gpu_key, offered_keys
from gpubench.units import GIB, figure_in, listing, plain

# --- quotes ----------------------------------------------------------------------------------------------


class ReadQuotes(NamedTuple):
    """The quotes of an answer, as offers and rows that are set aside.

    Attributes:
        unusable: Offers that are identified, but have an unusable price or another unusable value.
        claims: The parts for which the answer is complete.
    """

    table: OfferTable
    unusable: tuple[Offer, ...]
    claims: tuple[Complete, ...]


def read_quotes(
    quotes: Iterable[SourceItem], retrieved_at: str | None, latest: date | None = None
) -> ReadQuotes:
    """Turn quotes into offers; unknown, implausible and duplicate quotes are set aside with the reason.

    Args:
        quotes: The quotes of a source, an import or the user's table.
        retrieved_at: UTC time of the retrieval; its day is the date of undated quotes.
        latest: A price with a later day is set aside, because it would count as fresh until that day. None
            for the day after the retrieval.
    """
    latest = latest or price_day((retrieved_at or "")[:10]) + timedelta(days=1)
    offers: dict[OfferKey, Offer] = {}
    rows: dict[OfferKey, Quote] = {}
    set_aside: dict[SetAside, None] = {}
    unusable: list[Offer] = []
    claims: list[Complete] = []
    for quote in quotes:
        if isinstance(quote, Complete):
            claims.append(quote)
            continue
        if isinstance(quote, SetAside):
            set_aside[SetAside(plain(quote.row, 120), plain(quote.reason))] = None
            continue
        try:
            offer = _offer(quote, retrieved_at, latest)
        except ValueError as reason:
            set_aside[_aside(quote, str(reason))] = None
            if quote.row is None:
                with suppress(ValueError):
                    unusable.append(_offer(_identity_only(quote), retrieved_at, latest))
            continue
        before = offers.get(key := offer_key(offer))
        # Two rows of a table may give one name to different machines.
        if before and quote.row and (offer.gpu_key, offer.gpu_count) != (before.gpu_key, before.gpu_count):
            named = f"{offer.instance} ({offer.gpu_count}x {quote.gpu})"
            offer = msgspec.structs.replace(offer, instance=named)
            key = offer_key(offer)
        other = offers.get(key)
        is_kept = other is None or price_day(offer.price_date) > price_day(other.price_date)
        if other is not None:
            dropped = rows[key] if is_kept else quote
            set_aside[_aside(dropped, _TWICE.format(PRICING_WORDS[offer.pricing].replace(" ", "-")))] = None
        if is_kept:
            offers[key], rows[key] = offer, quote
    table = OfferTable(offers=tuple(offers.values()), set_aside=tuple(set_aside))
    return ReadQuotes(table, tuple(unusable), tuple(claims))


_TWICE = "a second {} price of this instance in this region; the newer one is kept, else the first"


def _aside(quote: Quote, reason: str) -> SetAside:
    words = " ".join(str(each) for each in (quote.provider, quote.instance, quote.region) if each)
    return SetAside(plain(quote.row or words, 120), plain(reason))


def _identity_only(quote: Quote) -> Quote:
    # Return a quote with only the fields that identify its offer.
    unstated = dict.fromkeys(
        ("vcpus", "ram_gib", "price_date", "note", "in_stock", "ask_count", "ask_median")
    )
    kind = "vm" if quote.kind == "free" else quote.kind
    return msgspec.structs.replace(quote, price="1", kind=kind, host=NO_HOST, **unstated)


def _offer(quote: Quote, retrieved_at: str | None, latest: date) -> Offer:
    is_table = quote.row is not None
    if not is_table:  # plug-in sources may fill in anything
        msgspec.convert(msgspec.structs.asdict(quote), Quote)
    if (tpu := tpu_slice(quote.gpu)) is not None:  # one "v5litepod-8" is eight chips
        chips = {"gpu": f"tpu-{tpu[0]}", "gpu_count": tpu[1], "gpu_memory_gib": None}
        quote = msgspec.structs.replace(quote, **chips, shared=None)
    # Quotes often differ only in region and price, and rows of a table also in instance. All else is cached.
    own = {"instance": "", "row": ""} if is_table else {}
    shared = quote.shared or msgspec.structs.replace(quote, region=None, price="", **own)
    facts = _facts(shared, retrieved_at, latest)
    offer = msgspec.structs.replace(
        facts,
        instance=read_field("instance", quote.instance if is_table else _instance(quote, facts.gpu_key)),
        region=read_field("region", quote.region),
        price_usd_per_hour=_read_price(quote.price, quote.kind, quote.usd_per_unit),
    )
    _check_together(offer)
    return offer


@lru_cache(maxsize=10_000)
def _facts(quote: Quote, retrieved_at: str | None, latest: date) -> Offer:
    # Return the offer of a quote without its instance, region and price.
    machine = find_machine(quote.provider, quote.instance)  # None for a row of a table
    vcpus, count, ram_gib = quote.vcpus, quote.gpu_count, quote.ram_gib
    if machine is not None:
        vcpus, count, ram_gib = vcpus or machine.vcpus, count or machine.gpu_count, ram_gib or machine.ram_gib
    provider = quote.provider if quote.row is None else ""
    key = machine.gpu_key if machine else _identify(provider, quote.instance, quote.gpu, quote.gpu_memory_gib)
    notes = (quote.note, UNSTATED_NOTE if load_specs()[key].variants else None)
    price_date = quote.price_date or (retrieved_at or "")[:10]
    if not price_date:
        raise ImplausibleError("no price date: an undated price cannot be compared")
    check_day(price_date, latest)
    host = {} if quote.host is NO_HOST else msgspec.structs.asdict(quote.host)
    return Offer(
        provider=read_field("provider", quote.provider),
        instance="",
        region=None,
        gpu_key=key,
        gpu_count=read_field("gpu_count", count),
        vcpus=read_field("vcpus", vcpus),
        ram_bytes=_ram_bytes(ram_gib),
        price_usd_per_hour=MIN_USD_PER_HOUR,
        pricing=Pricing(read_field("pricing", quote.pricing)),
        kind=read_field("kind", quote.kind),
        price_date=price_date,
        source=read_field("source", quote.source),
        note=read_field("note", "; ".join(filter(None, notes))),
        term_years=read_field("term_years", quote.term_years),
        retrieved_at=retrieved_at,
        in_stock=quote.in_stock,
        stock_date=None if quote.in_stock is None or retrieved_at is None else retrieved_at[:10],
        ask_count=read_field("ask_count", quote.ask_count),
        ask_median_usd_per_hour=(
            None if quote.ask_median is None else _read_price(quote.ask_median, quote.kind)
        ),
        seller=quote.seller,
        is_floor=quote.is_floor,
        **{field: read_field(field, stated) for field, stated in host.items()},
    )


def _instance(quote: Quote, key: str) -> str:
    """Return the instance's name, plus what distinguishes it from others.

    Google's N1 machines take any GPU, so their name includes the GPU. A marketplace names instances after the
    GPU, with one name for both sizes of the A100, so their name includes the memory unless the GPU name is
    unique.
    """
    is_named = quote.provider != "gcp" or find_machine(quote.provider, quote.instance) is not None
    if not is_named and quote.gpu and not quote.gpu.startswith("tpu-"):
        return f"{quote.instance or 'n1'} + {quote.gpu_count}x {quote.gpu}"
    if quote.kind == "marketplace" and quote.gpu and quote.instance.endswith(quote.gpu):
        memory_bytes = load_specs()[key].memory_bytes
        if memory_bytes is not None and offered_gpu_key(quote.gpu) != key:
            return f"{quote.instance} {memory_bytes / GIB:g}GB"
    return quote.instance


@lru_cache(maxsize=100_000)
def _identify(provider: str, instance: str, gpu: str, memory_gib: float | None) -> str:
    # Return the key of a GPU, found by its name or else by the name of the instance, which often contains it.
    # Google's long names include the form factor, unlike its short ones: V100 is nvidia-tesla-v100.
    google = (f"nvidia-tesla-{gpu.lower()}",) if provider == "gcp" else ()
    for name in (*google, gpu, instance):
        if name and (key := offered_gpu_key(name, memory_gib)) is not None:
            return key
    what = f"GPU {gpu[:60]!r}" if gpu or not instance else f"the GPU of instance {instance[:60]!r}"
    memory = "" if memory_gib is None else f" with {memory_gib:g} GiB"
    if provider:  # the user cannot change the names of a source
        raise ImplausibleError(f"{what}{memory} is unknown or ambiguous")
    meant = offered_keys(gpu) or known_keys(gpu)
    why = f"may mean {listing(meant, most=4)}" if meant else "is unknown"
    raise ImplausibleError(f"{what}{memory} {why}: name it by its key, as gpubench list --gpus shows it")


@lru_cache(maxsize=10_000)
def _ram_bytes(stated: float | str | None) -> int | None:
    if stated in {None, ""}:
        return None
    ram_gib = figure_in(str(stated))
    if ram_gib is None or math.isinf(ram_gib * GIB):
        raise ImplausibleError(f"RAM {str(stated)[:40]!r} is not a plausible number of GiB")
    return read_field("ram_bytes", round(ram_gib * GIB))  # type: ignore[no-any-return]


# --- machines --------------------------------------------------------------------------------------------


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """An instance in data/instances.csv; a field is None if the instance name does not determine it."""

    provider: str
    instance: str
    gpu_key: str
    gpu_count: int | None
    vcpus: float | None
    ram_gib: float | None


@cache
def find_machine(provider: str, instance: str) -> Machine | None:
    """Return the machine that an instance name means; None if it is not in the table.

    An instance in the table that ends in ``*`` matches every name with that prefix; the longest match counts.
    """
    name, rows = instance.lower(), _machines()
    if (provider, name) in rows:
        return rows[provider, name]
    patterns = (stem for cloud, stem in rows if cloud == provider and stem.endswith("*"))
    stem = max((each for each in patterns if name.startswith(each[:-1])), key=len, default=None)
    return None if stem is None else rows[provider, stem]


@cache
def _machines() -> Mapping[tuple[str, str], Machine]:
    return {(each.provider, each.instance.lower()): each for each in data_table("instances.csv", Machine)}


# --- plausibility -----------------------------------------------------------------------------------------

_LOW, _HIGH = float(MIN_USD_PER_HOUR), float(MAX_USD_PER_HOUR)

# Limits of exchange rates [USD]: a rial is worth a few millionths, a dong 0.00004, a Kuwaiti dinar 3.25.
_LEAST_USD_PER_UNIT, _MOST_USD_PER_UNIT = 1e-7, 10.0

MAX_CELL_CHARACTERS = 600
# No rental price is older than this.
_EARLIEST_DAY = date(2000, 1, 1)

# Upper limits of figures; each figure is unknown or above 0.
_MOST: Mapping[str, float] = {
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
WHOLE = frozenset({"gpu_count", "ram_bytes", "term_years", "ask_count", "disk_bytes"})
NAMES = frozenset({"provider", "instance", "source"})
"""Texts that must not be empty."""
TEXTS = NAMES | {"region", "note", "host_id", "machine_id"}
DAYS = frozenset({"price_date", "stock_date", "retrieved_at"})

_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2})T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)


class ImplausibleError(ValueError):
    """A row has an unusable value; the message is the reason shown to the user."""


@lru_cache(maxsize=100_000, typed=True)
def read_field(field: str, stated: Any) -> Any:
    """Return the value of an offer's field from a cell or a source; a blank value is unknown.

    Raises:
        ImplausibleError: If the value is implausible.
    """
    value = None if stated == "" else stated
    if value is not None and field in _MOST:
        value = figure_in(str(value))
        if value is None:
            raise ImplausibleError(f"{field} {str(stated)[:40]!r} is not a number")
        if field in WHOLE and value != int(value):
            raise ImplausibleError(f"{field} {str(stated)[:40]} is not a whole number")
        value = int(value) if field in WHOLE else value
    _check_field(field, value)
    return value


def _check_field(field: str, value: Any, latest: date = date.max) -> None:
    """Raise unless a value is plausible for a field of an offer or of a coverage.

    Args:
        field: The name of the field.
        value: The value; None if unknown.
        latest: The last valid day of a date.
    """
    if value in (None, "") and (field in NAMES or field == "gpu_count"):
        raise ImplausibleError(f"no {field} given")
    if value is None:
        return
    if field in _MOST and not 0 < value <= _MOST[field]:
        raise ImplausibleError(f"{field} {str(value)[:40]} is not above 0 and at most {_MOST[field]:,}")
    if field in TEXTS:
        _check_text(value)
    if field in DAYS:
        check_stamp(value, latest) if field == "retrieved_at" and "T" in value else check_day(value, latest)
    if field == "gpu_key" and value not in load_specs():
        raise ImplausibleError(f"GPU {value[:60]!r} is unknown")
    if field == "pricing" and value not in TO_RENT:
        raise ImplausibleError(f"pricing {value[:40]!r} is not one of {', '.join(TO_RENT)}")
    if field == "kind" and value not in KINDS:
        raise ImplausibleError(f"kind {value[:40]!r} is not one of {', '.join(KINDS)}")


def _check_together(offer: Offer) -> None:
    # Raise unless an offer's fields, plausible one by one, are plausible together.
    if (offer.term_years is not None) != (offer.pricing is Pricing.RESERVED):
        raise ImplausibleError(
            f"pricing {offer.pricing!s} with term_years {offer.term_years}: a reserved price needs a term, "
            "and no other price has one"
        )
    # On a marketplace, a host asks the price, vetted (secure) or not. Elsewhere a company asks it, for its
    # own machines or for those of vetted hosts.
    allowed = ("secure", "community") if offer.kind == "marketplace" else ("cloud", "secure")
    if offer.seller not in allowed:
        raise ImplausibleError(
            f"seller {offer.seller!r} of a {offer.kind} is not one of {', '.join(allowed)}"
        )
    median = offer.ask_median_usd_per_hour
    if median is not None and _read_price(median, offer.kind) < offer.price_usd_per_hour:
        raise ImplausibleError(f"a median of {median} is below the cheapest listing")


def check(struct: Offer | Coverage, latest: date = date.max) -> None:
    """Raise unless a stored or fetched offer or coverage meets every rule.

    Args:
        struct: The offer or coverage; the types of its fields are correct.
        latest: The last valid day of a date in it.

    Raises:
        ImplausibleError: With the reason.
    """
    if isinstance(struct, Coverage):
        _check_field("provider", struct.provider)
        check_stamp(f"{struct.day}T00:00:00Z", latest)
        for field, values in (
            ("pricing", struct.pricings),
            ("gpu_key", struct.gpu_keys),
            ("source", struct.vendors),  # vendors follow the rules of any text that must not be empty
        ):
            for value in values:
                _check_field(field, value)
        return
    for field in struct.__struct_fields__:
        _check_field(field, getattr(struct, field), latest)
    _read_price(struct.price_usd_per_hour, struct.kind)
    _check_together(struct)


def _read_price(stated: Decimal | float | str, kind: str, usd_per_unit: Decimal | None = None) -> Decimal:
    """Return the price of an entire instance [USD/h], or raise with the reason; only free offers cost 0.

    Args:
        stated: The price.
        kind: The kind of its offer.
        usd_per_unit: The exchange rate of its currency; None for US dollars.
    """
    text = str(round(stated, 6) if isinstance(stated, float) else stated)
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
        stated = f"{text[:40]} USD/h" if usd_per_unit is None else f"{text[:40]} x {usd_per_unit} USD/h"
        raise ImplausibleError(f"price {stated} is outside {MIN_USD_PER_HOUR} to {MAX_USD_PER_HOUR:,}")
    return value if usd_per_unit is None else value * usd_per_unit


def exchange_rate(text: str) -> Decimal:
    """Return the exchange rate of a currency [USD per unit], or raise with the reason."""
    value = figure_in(text)
    if value is None or not _LEAST_USD_PER_UNIT <= value <= _MOST_USD_PER_UNIT:
        limits = f"{_LEAST_USD_PER_UNIT:.7f} to {_MOST_USD_PER_UNIT:g} USD"
        raise ImplausibleError(f"exchange rate {text[:40]!r} is not a number from {limits}")
    return Decimal(text)


def _check_text(text: str) -> None:
    # Raise unless a text is safe to show in a terminal, a page and a spreadsheet.
    if text.startswith(("=", "+", "-", "@")):
        raise ImplausibleError(f"cell {text[:40]!r} starts like a spreadsheet formula")
    if len(text) > MAX_CELL_CHARACTERS:
        raise ImplausibleError(f"cell {text[:20]!r}... is longer than {MAX_CELL_CHARACTERS} characters")
    if not text.isprintable() and any(unicodedata.category(c).startswith("C") for c in text):
        raise ImplausibleError(f"cell {text[:40]!r} contains control characters")


@lru_cache(maxsize=10_000)
def read_kind(text: str) -> str:
    """Return the kind in ``KINDS`` that a word names, in any case and spacing, singular or plural.

    >>> read_kind("cloud"), read_kind("Attach Fees"), read_kind("")
    ('vm', 'attach-fee', 'vm')

    Raises:
        ImplausibleError: If the word names no kind.
    """
    word = "-".join(re.split(r"[\s_-]+", text.strip().lower()))
    named = (KIND_SYNONYMS.get(each, each) for each in (word, word.removesuffix("s")))
    kind = next((each for each in named if each in KINDS), text)
    _check_field("kind", kind)
    return kind


@lru_cache(maxsize=10_000)
def check_day(text: str, latest: date) -> None:
    """Raise unless a full or partial date is possible for a price and not later than ``latest``."""
    day = price_day(text)
    if day > latest:
        raise ImplausibleError(f"date {text} is in the future")
    if day < _EARLIEST_DAY:
        raise ImplausibleError(f"date {text} is before {_EARLIEST_DAY.year}")


def check_stamp(text: str, latest: date) -> None:
    """Raise unless a text is a UTC time, YYYY-MM-DDTHH:MM:SSZ, on a day not later than ``latest``."""
    parts = _STAMP.fullmatch(text)
    if parts is None:
        raise ImplausibleError(f"the time {text[:40]!r} is not YYYY-MM-DDTHH:MM:SSZ")
    check_day(parts[1], latest)
