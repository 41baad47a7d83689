"""From quotes to offers: which GPU is meant, and can it be true. One place for every source and import.

A cloud's GPU name ("H100", "A100") leaves the form factor open. The name of its instance does not:
p5.48xlarge has eight SXM cards, whatever a price list calls them. data/instances.csv, read here alone, knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from functools import cache
from typing import NamedTuple

import msgspec

from gpubench.folders import data_table
from gpubench.labels import PRICING_WORDS
from gpubench.models import Offer, Pricing
from gpubench.names import tpu_slice
from gpubench.offers import plausible
from gpubench.offers.dates import price_day
from gpubench.offers.plausible import ImplausibleError
from gpubench.offers.sources import Complete, HostFacts, Quote, Said, Unread
from gpubench.offers.table import UNSTATED_NOTE, OfferKey, OfferTable, SetAside, offer_key
from gpubench.specs import load_specs, offered_gpu_key
from gpubench.units import GIB, plain

# --- quotes ----------------------------------------------------------------------------------------------


class Sorted(NamedTuple):
    """The offers of an answer, those it names without a price that can be used, and where it is complete."""

    table: OfferTable
    unusable: tuple[Offer, ...]
    claims: tuple[Complete, ...]


def sort_quotes(quotes: Iterable[Said], retrieved_at: str) -> Sorted:
    """Turn quotes into offers; what is unknown, implausible or a duplicate is set aside with the reason.

    Args:
        quotes: As a source or an import found them.
        retrieved_at: UTC time of the retrieval; its day dates the quotes that carry no date.
    """
    offers: dict[OfferKey, Offer] = {}
    set_aside: list[SetAside] = []
    unusable: list[Offer] = []
    claims: list[Complete] = []
    for quote in quotes:
        if isinstance(quote, Complete):
            claims.append(quote)
            continue
        if isinstance(quote, Unread):
            set_aside.append(SetAside(plain(quote.row), plain(quote.reason)))
            continue
        try:
            offer = _offer(quote, retrieved_at)
            if offers.setdefault(offer_key(offer), offer) is not offer:
                raise ImplausibleError(
                    f"a second {PRICING_WORDS[offer.pricing]} price of this instance in this region"
                )
        except ValueError as reason:
            words = " ".join(str(each) for each in (quote.provider, quote.instance, quote.region) if each)
            set_aside.append(SetAside(plain(words), plain(str(reason))))
            with suppress(ValueError):
                unusable.append(_offer(_named_alone(quote), retrieved_at))
    table = OfferTable(offers=tuple(offers.values()), set_aside=tuple(set_aside))
    return Sorted(table, tuple(unusable), tuple(claims))


def _named_alone(quote: Quote) -> Quote:
    """Return the offer that a quote names, with nothing else of it, at a price that stands for none."""
    unsaid = dict.fromkeys(("vcpus", "ram_gib", "price_date", "note", "in_stock", "ask_count", "ask_median"))
    kind = "vm" if quote.kind == "free" else quote.kind
    return msgspec.structs.replace(quote, price="1", kind=kind, host=HostFacts(), **unsaid)


def _offer(quote: Quote, retrieved_at: str) -> Offer:
    msgspec.convert(msgspec.structs.asdict(quote), Quote)  # sources of others may fill in anything
    if (tpu := tpu_slice(quote.gpu)) is not None:  # "v5litepod-8", one piece, is eight chips
        version, chips = tpu
        quote = msgspec.structs.replace(quote, gpu=f"tpu-{version}", gpu_count=chips, gpu_memory_gib=None)
    machine = find_machine(quote.provider, quote.instance)
    key, note = _identify(quote, machine), quote.note
    instance = _instance(quote, machine, key)
    if load_specs()[key].variants:
        note = f"{note}; {UNSTATED_NOTE}" if note else UNSTATED_NOTE
    offer = Offer(
        provider=quote.provider,
        instance=instance,
        region=quote.region or None,
        gpu_key=key,
        gpu_count=plausible.gpu_count(_text(quote.gpu_count, machine.gpu_count if machine else None)),
        vcpus=plausible.vcpus(_text(quote.vcpus, machine.vcpus if machine else None)),
        ram_bytes=plausible.ram_bytes(_text(quote.ram_gib, machine.ram_gib if machine else None)),
        price_usd_per_hour=_price(quote.price, quote.kind),
        pricing=Pricing(quote.pricing),
        kind=quote.kind,
        price_date=quote.price_date or retrieved_at[:10],
        source=quote.source,
        note=note,
        term_years=quote.term_years,
        retrieved_at=retrieved_at,
        in_stock=quote.in_stock,
        stock_date=None if quote.in_stock is None else retrieved_at[:10],
        ask_count=quote.ask_count,
        ask_median_usd_per_hour=None if quote.ask_median is None else _price(quote.ask_median, quote.kind),
        seller=quote.seller,
        **msgspec.structs.asdict(quote.host),
    )
    plausible.check(offer, price_day(retrieved_at[:10]) + timedelta(days=1))
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


def _identify(quote: Quote, machine: Machine | None) -> str:
    """Return the key: by the instance's name first, which knows the form factor, then by the GPU's."""
    if machine is not None:
        return machine.gpu_key
    # Google's own types name the form factor where its short names do not: V100 is nvidia-tesla-v100.
    google = (f"nvidia-tesla-{quote.gpu.lower()}",) if quote.provider == "gcp" else ()
    for name in (*google, quote.gpu, quote.instance):
        if name and (key := offered_gpu_key(name, quote.gpu_memory_gib)) is not None:
            return key
    what = f"GPU {quote.gpu[:60]!r}" if quote.gpu else f"the GPU of instance {quote.instance[:60]!r}"
    memory = f" with {quote.gpu_memory_gib:g} GiB" if quote.gpu_memory_gib else ""
    raise ImplausibleError(f"{what}{memory} is unknown or ambiguous")


def _price(price: float | str, kind: str) -> Decimal:
    """Return a price, checked; binary fractions such as 0.30000000000000004 are cut at a millionth."""
    return plausible.price(price if isinstance(price, str) else str(round(price, 6)), kind)


def _text(said: float | str | None, known: float | None) -> str:
    """What the source says, else what the instance's name tells, as text for the checks; "" is unknown."""
    value = known if said in {None, ""} else said
    return "" if value is None else str(value)


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
