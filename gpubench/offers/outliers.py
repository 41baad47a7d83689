"""Is a price believable? A refresh, the list of offers and every ranking ask here, and nowhere else.

There are two standards. Against the last known price of the same instance a jump is set aside when it is
fetched. Against what other providers ask for the same GPU, a price far below or far above that nobody bears
out is listed with the doubt, and does not rank unasked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from statistics import median
from typing import NamedTuple, TypeAlias

import msgspec

from gpubench.models import Offer, Pricing
from gpubench.offers.table import NOT_RANKED, OfferKey, OfferTable, SetAside, offer_key
from gpubench.specs import load_specs
from gpubench.units import count, format_number, format_usd, plain

MAX_RATIO = 5.0
"""Beyond this ratio, to the last known price of the same instance or to the median of the other providers, a
price is taken for a mistake. Providers differ 7 times from the cheapest to the dearest; of the shipped prices
one cloud's V100 alone is under 0.3 of the median of the others of its kind, and it is borne out."""

LOOSENING = 2.0
"""The limit widens by this for each respect (kind of seller, way of paying) in which the others differ."""

WITNESS_RATIO = 2.0
"""A second provider whose price is within this ratio bears a price out."""

ADMITTED_BY = "--accept-outliers"

_Pay: TypeAlias = tuple[Pricing, bool]
"""How it is paid, and whether on a marketplace: hosts there ask down to a sixth of what clouds do."""

_Scope: TypeAlias = tuple[Pricing | None, bool | None]
"""Whose prices count: those paid and sold so; None is any."""


class Standard(NamedTuple):
    """What the other providers ask for a GPU-hour; ``loosened`` counts in how many respects they differ."""

    median_usd: float
    provider_count: int
    loosened: int


class Market:
    """What each provider asks for an hour of each GPU.

    A provider has one voice, the median of its own prices: its regions and instances are set by one hand.
    """

    def __init__(self, offers: Iterable[Offer]) -> None:
        """Sort prices by GPU, by how they are paid, and by provider."""
        self._prices: dict[str, dict[_Pay, dict[str, list[float]]]] = {}
        self._known_voices: dict[tuple[str, _Scope], dict[str, float]] = {}
        self._standards: dict[tuple[str, Pricing, str, str], Standard | None] = {}
        alike: dict[tuple[str, Pricing, str, str], list[float]] = {}  # of 100,000 some hundred are unlike
        for offer in offers:
            alike.setdefault((offer.gpu_key, offer.pricing, offer.kind, offer.provider), []).append(
                _per_gpu(offer)
            )
        for (gpu_key, pricing, kind, provider), prices in alike.items():
            asked = [price for price in prices if price > 0]
            if asked and _is_judged(pricing, kind):
                paid = self._prices.setdefault(gpu_key, {}).setdefault(_pay(pricing, kind), {})
                paid.setdefault(provider.casefold(), []).extend(asked)

    def doubt(self, offer: Offer) -> str | None:
        """Return why a price is likely a mistake, with its figures; None where it is believed.

        It is doubted below a fifth of the median of the other providers, and above five times that of its own
        kind, unless a second provider asks within twice as much or as little. What nobody
        else sells has no standard: believed.
        """
        standard, own = self.standard(offer), _per_gpu(offer)
        if standard is None:
            return None
        ratio = own / standard.median_usd
        too_low = ratio * MAX_RATIO * LOOSENING**standard.loosened < 1
        if not (too_low or self._is_too_high(offer, standard, ratio)) or self._witnesses(offer, own):
            return None
        return (
            f"{format_usd(own)} a GPU-hour is {format_number(ratio, 2)} times {_whose(standard)}, "
            f"and no second provider is within {WITNESS_RATIO:g}x of it"
        )

    def doubted(self, offers: Iterable[Offer]) -> list[tuple[Offer, str]]:
        """Return the offers whose prices are likely a mistake, each with the reason."""
        believed: dict[tuple[str, Pricing, str, str], tuple[float, float]] = {}
        found = []
        for offer in offers:
            key = offer.gpu_key, offer.pricing, offer.kind, offer.provider
            ends = believed.get(key)
            if ends is None:
                standard = self.standard(offer)
                usd = None if standard is None else standard.median_usd
                ends = (-math.inf, math.inf) if usd is None else (usd / MAX_RATIO, usd * MAX_RATIO)
                believed[key] = ends
            if not ends[0] <= _per_gpu(offer) <= ends[1] and (doubt := self.doubt(offer)) is not None:
                found.append((offer, doubt))
        return found

    def is_below(self, offer: Offer) -> bool:
        """Return whether a price is under what the others ask: only such a one can be a false answer."""
        standard = self.standard(offer)
        return standard is not None and _per_gpu(offer) < standard.median_usd

    def _is_too_high(self, offer: Offer, standard: Standard, ratio: float) -> bool:
        """Hold a price to the median of its own kind; a lone cent must not throw out an honest one.

        So one other provider of its kind is enough where a further one, of any kind, bears that one out.
        """
        if ratio <= MAX_RATIO or standard.loosened:
            return False
        return standard.provider_count > 1 or len(self._witnesses(offer, standard.median_usd)) > 1

    def standard(self, offer: Offer) -> Standard | None:
        """Return what the others ask, of the same kind and paid alike where there are such; None for none."""
        key = gpu_key, pricing, kind, provider = offer.gpu_key, offer.pricing, offer.kind, offer.provider
        if key not in self._standards:
            judged = _is_judged(pricing, kind)
            self._standards[key] = (
                self._standard(gpu_key, _pay(pricing, kind), provider.casefold()) if judged else None
            )
        return self._standards[key]

    def _standard(self, gpu_key: str, pay: _Pay, provider: str) -> Standard | None:
        """Ask those of the same kind who are paid alike, else all who are paid alike, else all."""
        scopes: tuple[_Scope, ...] = (pay, (pay[0], None), (None, None))
        for loosened, scope in enumerate(scopes):
            voices = [usd for name, usd in self._voices(gpu_key, scope).items() if name != provider]
            if voices:
                return Standard(median(voices), len(voices), loosened)
        return None

    def _voices(self, gpu_key: str, scope: _Scope) -> dict[str, float]:
        """Return the one price for which each provider stands [USD per GPU-hour]."""
        if (gpu_key, scope) not in self._known_voices:
            found: dict[str, list[float]] = {}
            for pay, name, prices in self._asked(gpu_key):
                if scope[0] in {None, pay[0]} and scope[1] in {None, pay[1]}:
                    found.setdefault(name, []).extend(prices)
            self._known_voices[gpu_key, scope] = {name: median(prices) for name, prices in found.items()}
        return self._known_voices[gpu_key, scope]

    def _witnesses(self, offer: Offer, usd: float) -> set[str]:
        """Return the other providers that ask about as much, paid alike or, for spot, on demand."""
        ways = {offer.pricing, Pricing.ON_DEMAND}
        return {
            name
            for (pricing, _), name, prices in self._asked(offer.gpu_key, *_left_open(offer.gpu_key))
            if pricing in ways and name != offer.provider.casefold()
            for price in prices
            if usd / WITNESS_RATIO <= price <= usd * WITNESS_RATIO
        }

    def _asked(self, gpu_key: str, *more: str) -> Iterator[tuple[_Pay, str, list[float]]]:
        """Yield the prices for a GPU; for one whose form factor is open, those of all that it can be."""
        spec = load_specs().get(gpu_key)
        for key in (gpu_key, *(spec.variants if spec else ()), *more):
            for pay, by_provider in self._prices.get(key, {}).items():
                for name, prices in by_provider.items():
                    yield pay, name, prices


class Sorted(NamedTuple):
    """The offers that are believed, and the identities of those whose price jumped."""

    table: OfferTable
    jumped: frozenset[OfferKey]


def sort_outliers(fresh: OfferTable, known: Iterable[Offer], *, accept: bool = False) -> Sorted:
    """Set aside what jumped against its own last price.

    Args:
        fresh: New offers.
        known: Offers known before; historic ones are no standard.
        accept: Keep the jumps too.
    """
    before: Mapping[OfferKey, Offer] = {offer_key(offer): offer for offer in known}
    kept: list[Offer] = []
    set_aside = list(fresh.set_aside)
    jumped: set[OfferKey] = set()
    for offer in fresh.offers:
        last = before.get(offer_key(offer))
        if last is None or not last.price_usd_per_hour or not offer.price_usd_per_hour:
            kept.append(offer)
            continue
        ratio = _per_gpu(offer) / _per_gpu(last)
        if accept or 1 / MAX_RATIO <= ratio <= MAX_RATIO:
            kept.append(offer)
        else:
            jumped.add(offer_key(offer))
            set_aside.append(SetAside(name_of(offer), _reason(offer, last, ratio)))
    table = msgspec.structs.replace(fresh, offers=tuple(kept), set_aside=tuple(set_aside))
    return Sorted(table, frozenset(jumped))


def name_of(offer: Offer) -> str:
    """Return who sells what and where, safe to print."""
    return plain(f"{offer.provider} {offer.instance} {offer.region or ''}".strip(), 80)


def _is_judged(pricing: Pricing, kind: str) -> bool:
    """Return whether a price is that of a machine today: no other is judged, or a standard for others."""
    return pricing is not Pricing.OWNED and kind not in NOT_RANKED


@cache
def _left_open(gpu_key: str) -> tuple[str, ...]:
    """Return the rows that can mean this card, because a price list leaves its form factor open."""
    return tuple(key for key, spec in load_specs().items() if gpu_key in spec.variants)


def _pay(pricing: Pricing, kind: str) -> _Pay:
    return pricing, kind == "marketplace"


def _per_gpu(offer: Offer) -> float:
    return float(offer.price_usd_per_hour) / offer.gpu_count


def _whose(standard: Standard) -> str:
    """Return whose price the standard is: "the median of 3 other providers ($8.00)"."""
    others = count(standard.provider_count, "other provider")
    who = f"the median of {others}" if standard.provider_count > 1 else "what the one other provider asks"
    how = ("", ", clouds and marketplaces alike", ", however paid")[standard.loosened]
    return f"{who}{how} ({format_usd(standard.median_usd)})"


def _reason(offer: Offer, last: Offer, ratio: float) -> str:
    new, old = (format_usd(float(o.price_usd_per_hour)) for o in (offer, last))
    return (
        f"{offer.pricing} price {new} is {format_number(ratio, 2)} times the {old} of {last.price_date}; "
        "the old price is kept (--accept-outliers takes the new one)"
    )
