"""From quotes to offers: which GPU is meant, and can it be true. One place for every source and table.

A cloud's GPU name ("H100", "A100") leaves the form factor open. The name of its instance does not:
p5.48xlarge has eight SXM cards, whatever a price list calls them. data/instances.csv, read here alone, knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from typing import NamedTuple

import msgspec

from gpubench.folders import data_table
from gpubench.labels import PRICING_WORDS
from gpubench.models import Offer
from gpubench.names import tpu_slice
from gpubench.offers import plausible
from gpubench.offers.dates import price_day
from gpubench.offers.plausible import ImplausibleError
from gpubench.offers.sources import NO_HOST, Complete, Quote, Said, Unread
from gpubench.offers.table import UNSTATED_NOTE, OfferKey, OfferTable, SetAside, offer_key
from gpubench.pricings import Pricing
from gpubench.specs import known_keys, load_specs, offered_gpu_key, offered_keys
from gpubench.units import GIB, figure_in, listing, plain

# --- quotes ----------------------------------------------------------------------------------------------


class Sorted(NamedTuple):
    """The offers of an answer, those it names without a price that can be used, and where it is complete."""

    table: OfferTable
    unusable: tuple[Offer, ...]
    claims: tuple[Complete, ...]


def sort_quotes(quotes: Iterable[Said], retrieved_at: str | None, latest: date | None = None) -> Sorted:
    """Turn quotes into offers; what is unknown, implausible or a duplicate is set aside with the reason.

    Args:
        quotes: As a source, an import or a table of one's own has them.
        retrieved_at: UTC time of the retrieval; its day dates the quotes that carry no date.
        latest: A price of a later day is set aside: it would count as fresh until that day has passed. None
            is the day after the retrieval.
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
        if isinstance(quote, Unread):
            set_aside[SetAside(plain(quote.row, 120), plain(quote.reason))] = None
            continue
        try:
            offer = _offer(quote, retrieved_at, latest)
        except ValueError as reason:
            set_aside[_aside(quote, str(reason))] = None
            if quote.row is None:
                with suppress(ValueError):
                    unusable.append(_offer(_named_alone(quote), retrieved_at, latest))
            continue
        key, dropped = offer_key(offer), quote
        if (other := offers.get(key)) is not None:
            if price_day(offer.price_date) > price_day(other.price_date):
                dropped, other = rows[key], None
            set_aside[_aside(dropped, _SECOND.format(PRICING_WORDS[offer.pricing]))] = None
        if other is None:
            offers[key], rows[key] = offer, quote
    table = OfferTable(offers=tuple(offers.values()), set_aside=tuple(set_aside))
    return Sorted(table, tuple(unusable), tuple(claims))


_SECOND = "a second {} price of this instance in this region; that of the later day is kept, else the first"


def _aside(quote: Quote, reason: str) -> SetAside:
    words = " ".join(str(each) for each in (quote.provider, quote.instance, quote.region) if each)
    return SetAside(plain(quote.row or words, 120), plain(reason))


def _named_alone(quote: Quote) -> Quote:
    """Return the offer that a quote names, with nothing else of it, at a price that stands for none."""
    unsaid = dict.fromkeys(("vcpus", "ram_gib", "price_date", "note", "in_stock", "ask_count", "ask_median"))
    kind = "vm" if quote.kind == "free" else quote.kind
    return msgspec.structs.replace(quote, price="1", kind=kind, host=NO_HOST, **unsaid)


def _offer(quote: Quote, retrieved_at: str | None, latest: date) -> Offer:
    is_table = quote.row is not None
    if not is_table:  # sources of others may fill in anything
        msgspec.convert(msgspec.structs.asdict(quote), Quote)
    if (tpu := tpu_slice(quote.gpu)) is not None:  # "v5litepod-8", one piece, is eight chips
        version, chips = tpu
        quote = msgspec.structs.replace(quote, gpu=f"tpu-{version}", gpu_count=chips, gpu_memory_gib=None)
    machine = None if is_table else find_machine(quote.provider, quote.instance)
    vcpus, count, ram_gib = quote.vcpus, quote.gpu_count, quote.ram_gib
    if machine is not None:
        vcpus, count, ram_gib = vcpus or machine.vcpus, count or machine.gpu_count, ram_gib or machine.ram_gib
    where = ("", "") if is_table else (quote.provider, quote.instance)
    key = machine.gpu_key if machine else _identify(*where, quote.gpu, quote.gpu_memory_gib)
    note = quote.note or None
    if load_specs()[key].variants:
        note = f"{note}; {UNSTATED_NOTE}" if note else UNSTATED_NOTE
    price_date = quote.price_date or (retrieved_at or "")[:10]
    if not price_date:
        raise ImplausibleError("no price date: a price without a date says nothing")
    plausible.check_day(price_date, latest)
    host = {} if quote.host is NO_HOST else msgspec.structs.asdict(quote.host)
    read = plausible.read
    offer = Offer(
        provider=read("provider", quote.provider),
        instance=read("instance", quote.instance if is_table else _instance(quote, machine, key)),
        region=read("region", quote.region),
        gpu_key=key,
        gpu_count=read("gpu_count", count),
        vcpus=read("vcpus", vcpus),
        ram_bytes=_ram_bytes(ram_gib),
        price_usd_per_hour=_price(quote.price, quote.kind, quote.usd_per_unit),
        pricing=Pricing(read("pricing", quote.pricing)),
        kind=read("kind", quote.kind),
        price_date=price_date,
        source=read("source", quote.source),
        note=read("note", note),
        term_years=read("term_years", quote.term_years),
        retrieved_at=retrieved_at,
        in_stock=quote.in_stock,
        stock_date=None if quote.in_stock is None or retrieved_at is None else retrieved_at[:10],
        ask_count=read("ask_count", quote.ask_count),
        ask_median_usd_per_hour=None if quote.ask_median is None else _price(quote.ask_median, quote.kind),
        seller=quote.seller,
        is_floor=quote.is_floor,
        **{field: read(field, said) for field, said in host.items()},
    )
    plausible.check_together(offer)
    return offer


def _instance(quote: Quote, machine: Machine | None, key: str) -> str:
    """Return the instance's name, with what it takes to tell it from others.

    Google's N1 machines take any GPU, so there the GPU is part of it. A marketplace calls an instance by its
    GPU, and both A100 by one name: there the memory is part of it, unless the name alone means this card.
    """
    if quote.provider == "gcp" and machine is None and quote.gpu and not quote.gpu.startswith("tpu-"):
        return f"{quote.instance or 'n1'} + {quote.gpu_count}x {quote.gpu}"
    if quote.kind == "marketplace" and quote.gpu and quote.instance.endswith(quote.gpu):
        memory_bytes = load_specs()[key].memory_bytes
        if memory_bytes is not None and offered_gpu_key(quote.gpu) != key:
            return f"{quote.instance} {memory_bytes / GIB:g}GB"
    return quote.instance


@lru_cache(maxsize=100_000)
def _identify(provider: str, instance: str, gpu: str, memory_gib: float | None) -> str:
    """Return the key of a GPU: by its name, else by that of the instance, which often holds it."""
    # Google's own types name the form factor where its short names do not: V100 is nvidia-tesla-v100.
    google = (f"nvidia-tesla-{gpu.lower()}",) if provider == "gcp" else ()
    for name in (*google, gpu, instance):
        if name and (key := offered_gpu_key(name, memory_gib)) is not None:
            return key
    what = f"GPU {gpu[:60]!r}" if gpu else f"the GPU of instance {instance[:60]!r}"
    memory = f" with {memory_gib:g} GiB" if memory_gib else ""
    if provider:  # a source's word, which nobody can change
        raise ImplausibleError(f"{what}{memory} is unknown or ambiguous")
    meant = offered_keys(gpu) or known_keys(gpu)
    why = f"can be any of {listing(meant, most=4)}: name one" if meant else "is unknown: name it by its key"
    raise ImplausibleError(f"{what} {why}, of those that gpubench list --gpus shows")


@lru_cache(maxsize=10_000)
def _ram_bytes(said: float | str | None) -> int | None:
    if said in {None, ""}:
        return None
    ram_gib = figure_in(str(said))
    if ram_gib is None:
        raise ImplausibleError(f"RAM {str(said)[:40]!r} is not a number")
    return plausible.read("ram_bytes", round(ram_gib * GIB))  # type: ignore[no-any-return]


def _price(price: float | str, kind: str, usd_per_unit: Decimal | None = None) -> Decimal:
    """Return a price, checked; binary fractions such as 0.30000000000000004 are cut at a millionth."""
    return plausible.price(price if isinstance(price, str) else str(round(price, 6)), kind, usd_per_unit)


# --- machines --------------------------------------------------------------------------------------------


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance holds, a row of data/instances.csv; None is not known from the name."""

    provider: str
    instance: str
    gpu_key: str
    gpu_count: int | None
    vcpus: float | None
    ram_gib: float | None


@cache
def find_machine(provider: str, instance: str) -> Machine | None:
    """Return the machine of an instance name; None where the table has no such name.

    A row's instance may end in ``*``: it then stands for every name that begins so; the longest wins.
    """
    name = instance.lower()
    rows = _table().get(provider, {})
    exact = rows.get(name)
    if exact is not None:
        return exact
    stems = [stem for stem in rows if stem.endswith("*") and name.startswith(stem[:-1])]
    return rows[max(stems, key=len)] if stems else None


@cache
def _table() -> Mapping[str, Mapping[str, Machine]]:
    table: dict[str, dict[str, Machine]] = {}
    for machine in data_table("instances.csv", Machine):
        table.setdefault(machine.provider, {})[machine.instance.lower()] = machine
    return table
