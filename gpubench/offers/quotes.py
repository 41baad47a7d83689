"""From quotes to offers: which GPU is meant, and can it be true. One place for every source and import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from gpubench.models import Offer, Pricing
from gpubench.names import tpu_slice
from gpubench.offers import plausible
from gpubench.offers.dates import price_day
from gpubench.offers.instances import Machine, find_machine
from gpubench.offers.plausible import ImplausibleError
from gpubench.offers.source import Complete, Quote
from gpubench.offers.table import UNSTATED_NOTE, OfferKey, OfferTable, SetAside, offer_key
from gpubench.specs import load_specs, offered_gpu_key
from gpubench.units import GIB, plain


class Sorted(NamedTuple):
    """The offers of an answer, those it names without a price that can be used, and where it is complete."""

    table: OfferTable
    unusable: tuple[Quote, ...]
    claims: tuple[Complete, ...]


def offers_of_quotes(quotes: Iterable[Quote | Complete], retrieved_at: str) -> OfferTable:
    """Return the table of ``sort_quotes``."""
    return sort_quotes(quotes, retrieved_at).table


def sort_quotes(quotes: Iterable[Quote | Complete], retrieved_at: str) -> Sorted:
    """Turn quotes into offers; what is unknown, implausible or a duplicate is set aside with the reason.

    Args:
        quotes: As a source or an import found them.
        retrieved_at: UTC time of the retrieval; its day dates the quotes that carry no date.
    """
    offers: dict[OfferKey, Offer] = {}
    set_aside: list[SetAside] = []
    unusable: list[Quote] = []
    claims: list[Complete] = []
    for quote in quotes:
        if isinstance(quote, Complete):
            claims.append(quote)
            continue
        try:
            offer = _offer(quote, retrieved_at)
            if offers.setdefault(offer_key(offer), offer) is not offer:
                raise ImplausibleError(f"a second {offer.pricing} price of this instance in this region")
        except ValueError as reason:
            words = " ".join(word for word in (quote.provider, quote.instance, quote.region or "") if word)
            set_aside.append(SetAside(plain(words), plain(str(reason))))
            unusable.append(quote)
    table = OfferTable(offers=tuple(offers.values()), set_aside=tuple(set_aside))
    return Sorted(table, tuple(unusable), tuple(claims))


def named_in(quote: Quote, retrieved_at: str) -> Offer | None:
    """Return the offer that a quote names, at a price that stands for none; None if it names none."""
    try:
        return _offer(
            msgspec.structs.replace(quote, price="1", kind="vm" if quote.kind == "free" else quote.kind),
            retrieved_at,
        )
    except ValueError:
        return None


def _offer(quote: Quote, retrieved_at: str) -> Offer:
    quote = _tpu_in_chips(quote)
    machine = find_machine(quote.provider, quote.instance)
    key, note = _identify(quote, machine), quote.note
    instance = _instance(quote, machine, key)
    if load_specs()[key].variants:
        note = f"{note}; {UNSTATED_NOTE}" if note else UNSTATED_NOTE
    price_date = quote.price_date or retrieved_at[:10]
    price_day(price_date)
    texts = (quote.provider, quote.instance, quote.region or "", quote.source, note or "")
    plausible.check_texts(texts)
    if not (quote.provider and quote.instance):
        raise ImplausibleError("no provider or no instance named")
    return Offer(
        provider=quote.provider,
        instance=instance,
        region=quote.region or None,
        gpu_key=key,
        gpu_count=plausible.gpu_count(_text(quote.gpu_count, machine and machine.gpu_count)),
        vcpus=plausible.vcpus(_text(quote.vcpus, machine and machine.vcpus)),
        ram_bytes=plausible.ram_bytes(_text(quote.ram_gib, machine and machine.ram_gib)),
        price_usd_per_hour=plausible.price(_price_text(quote.price), quote.kind),
        pricing=Pricing(quote.pricing),
        kind=quote.kind,
        price_date=price_date,
        source=quote.source,
        note=note,
        term_years=quote.term_years,
        retrieved_at=retrieved_at,
        in_stock=quote.in_stock,
        stock_date=None if quote.in_stock is None else retrieved_at[:10],
        ask_count=quote.ask_count,
        ask_median_usd_per_hour=None
        if quote.ask_median is None
        else plausible.price(_price_text(quote.ask_median), quote.kind),
    )


def _tpu_in_chips(quote: Quote) -> Quote:
    """Restate a TPU slice ("v5litepod-8", one piece) as its chips, the unit of the specification table."""
    found = tpu_slice(quote.gpu)
    if found is None:
        return quote
    version, chips = found
    return msgspec.structs.replace(quote, gpu=f"tpu-{version}", gpu_count=chips, gpu_memory_gib=None)


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
        key = offered_gpu_key(name, quote.gpu_memory_gib) if name else None
        if key is not None:
            break
    else:
        what = f"GPU {quote.gpu[:60]!r}" if quote.gpu else f"the GPU of instance {quote.instance[:60]!r}"
        memory = f" with {quote.gpu_memory_gib:g} GiB" if quote.gpu_memory_gib else ""
        raise ImplausibleError(f"{what}{memory} is unknown or ambiguous")
    return key


def _price_text(price: float | str) -> str:
    """Return a price as text; binary fractions such as 0.30000000000000004 are cut at a millionth."""
    return price if isinstance(price, str) else str(round(price, 6))


def _text(said: float | str | None, known: float | None) -> str:
    """What the source says, else what the instance's name tells, as text for the checks; "" is unknown."""
    value = known if said in {None, ""} else said
    return "" if value is None else str(value)
