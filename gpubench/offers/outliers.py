"""Is a price believable? A refresh, the list of offers and every ranking ask here, and nowhere else.

There are two standards. Against the last known price of the same instance a jump is set aside when it is
fetched. Against what other providers ask for the same GPU, a price far below or far above that nobody bears
out is listed with the doubt, and does not rank unasked.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from statistics import median
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from gpubench.arrays import Flags
from gpubench.labels import full_name, pricing_words
from gpubench.models import Offer, Pricing
from gpubench.offers.columns import Offers, kinds_of
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

    @property
    def whose(self) -> str:
        """Whose price it is: "the median of 3 other providers ($8.00)"."""
        others = count(self.provider_count, "other provider")
        who = f"the median of {others}" if self.provider_count > 1 else "what the one other provider asks"
        how = ("", ", clouds and marketplaces alike", ", however paid")[self.loosened]
        return f"{who}{how} ({format_usd(self.median_usd)})"


class _Key(NamedTuple):
    """What a price is judged by, beside its height."""

    gpu_key: str
    pricing: Pricing
    kind: str
    provider: str


class _Voices(NamedTuple):
    """The one price for which each provider stands [USD per GPU-hour], and all of them in order."""

    by_provider: Mapping[str, float]
    ordered: Sequence[float]

    def of_others(self, provider: str) -> tuple[int, float] | None:
        """Return how many others there are, and the median of theirs; None where there are none."""
        own = self.by_provider.get(provider)
        count = len(self.ordered) - (own is not None)
        if not count:
            return None
        left_out = len(self.ordered) if own is None else bisect_left(self.ordered, own)
        low, high = (self.ordered[at + (at >= left_out)] for at in ((count - 1) // 2, count // 2))
        return count, (low + high) / 2


class _Asked(NamedTuple):
    """Prices that can bear one out [USD per GPU-hour], in order: all of them, and those of each provider."""

    ordered: Sequence[float]
    by_provider: Mapping[str, Sequence[float]]

    def somebody_else(self, provider: str, usd: float) -> bool:
        """Return whether anybody but a provider asks about as much."""
        return _about(self.ordered, usd) > _about(self.by_provider.get(provider, ()), usd)

    def of_about(self, usd: float) -> set[str]:
        """Return the providers that ask about as much."""
        return {name for name, prices in self.by_provider.items() if _about(prices, usd)}


def _about(ordered: Sequence[float], usd: float) -> int:
    """Return how many prices are within ``WITNESS_RATIO`` of one."""
    return bisect_right(ordered, usd * WITNESS_RATIO) - bisect_left(ordered, usd / WITNESS_RATIO)


class AskedPrices:
    """What each provider asks for an hour of each GPU.

    A provider has one voice, the median of its own prices: its regions and instances are set by one hand.
    """

    def __init__(self, offers: Iterable[Offer]) -> None:
        """Part prices by GPU, by how they are paid, and by provider."""
        self._standard_of = cache(self._find_standard)
        self._voices = cache(self._find_voices)
        self._asked = cache(self._find_asked)
        self._prices: dict[str, dict[_Pay, dict[str, list[float]]]] = {}
        for offer in offers:
            usd = offer.usd_per_gpu_hour
            if offer.pricing is Pricing.OWNED or offer.kind in NOT_RANKED or usd <= 0:
                continue
            paid = self._prices.setdefault(offer.gpu_key, {}).setdefault(_pay(offer), {})
            paid.setdefault(offer.provider.casefold(), []).append(usd)

    def doubt(self, offer: Offer) -> str | None:
        """Return why a price is likely a mistake, with its figures; None where it is believed.

        It is doubted below a fifth of the median of the other providers, and above five times that of its own
        kind, unless a second provider asks within twice as much or as little. What nobody
        else sells has no standard: believed.
        """
        own = offer.usd_per_gpu_hour
        if (standard := self._standard_of_doubt(offer)) is None:
            return None
        return (
            f"{format_usd(own)} a GPU-hour is {format_number(own / standard.median_usd, 2)} times "
            f"{standard.whose}, and no second provider is within {WITNESS_RATIO:g}x of it"
        )

    def doubt_in_short(self, offer: Offer) -> str | None:
        """Return the same in a few words: "0.00091 times what 4 others ask"; None where it is believed."""
        if (standard := self._standard_of_doubt(offer)) is None:
            return None
        others = "1 other asks" if standard.provider_count == 1 else f"{standard.provider_count} others ask"
        return f"{format_number(offer.usd_per_gpu_hour / standard.median_usd, 2)} times what {others}"

    def _standard_of_doubt(self, offer: Offer) -> Standard | None:
        """Return what the others ask where that makes a price doubtful."""
        key = _key(offer)
        return self._standard_of(key) if self._is_doubted(key, offer.usd_per_gpu_hour) else None

    def is_below(self, offer: Offer) -> bool:
        """Return whether a price is under what the others ask: only such a one can be a false answer."""
        standard = self._standard_of(_key(offer))
        return standard is not None and offer.usd_per_gpu_hour < standard.median_usd

    def doubted(self, offers: Offers) -> Flags:
        """Return which prices are likely a mistake."""
        alike = kinds_of(offers.gpu_key, offers.pricing, offers.kind, offers.provider)
        keys = [_Key(*each) for each in alike.values]
        standards = map(self._standard_of, keys)
        middle = np.array([math.nan if each is None else each.median_usd for each in standards], dtype=float)
        usd, standard = offers.usd_per_gpu_hour, middle[alike.codes]
        doubted = (usd < standard / MAX_RATIO) | (usd > standard * MAX_RATIO)  # no standard is no doubt
        for at in np.flatnonzero(doubted).tolist():
            doubted[at] = self._is_doubted(keys[alike.codes[at]], float(usd[at]))
        return doubted

    def _is_doubted(self, key: _Key, usd: float) -> bool:
        """Hold a price to its standard, and ask whether anybody else bears it out.

        One that is too high is held to the median of its own kind, and a lone cent must not throw out an
        honest one: one other provider of its kind is enough where a further one, of any kind, bears that
        one out.
        """
        standard = self._standard_of(key)
        if standard is None:
            return False
        ratio = usd / standard.median_usd
        is_low = ratio * MAX_RATIO * LOOSENING**standard.loosened < 1
        if not is_low and (ratio <= MAX_RATIO or standard.loosened):
            return False
        name = key.provider.casefold()
        paid_alike = [self._asked(key.gpu_key, each) for each in {key.pricing, Pricing.ON_DEMAND}]
        if not is_low and standard.provider_count == 1:
            witnesses = set().union(*(asked.of_about(standard.median_usd) for asked in paid_alike))
            if len(witnesses - {name}) < 2:
                return False
        return not any(asked.somebody_else(name, usd) for asked in paid_alike)

    def _find_standard(self, key: _Key) -> Standard | None:
        """Return what the others ask for the same; None where nobody does, or no such price is judged.

        Asked are those of the same kind who are paid alike, else all who are paid alike, else all.
        """
        if key.pricing is Pricing.OWNED or key.kind in NOT_RANKED:
            return None
        scopes: list[_Scope] = [(key.pricing, key.kind == "marketplace"), (key.pricing, None), (None, None)]
        for loosened, scope in enumerate(scopes):
            others = self._voices(key.gpu_key, scope).of_others(key.provider.casefold())
            if others is not None:
                provider_count, median_usd = others
                return Standard(median_usd, provider_count, loosened)
        return None

    def _find_voices(self, gpu_key: str, scope: _Scope) -> _Voices:
        """Return the one price for which each provider stands [USD per GPU-hour]."""
        found: dict[str, list[float]] = {}
        for pay, name, prices in self._prices_of(gpu_key):
            if scope[0] in {None, pay[0]} and scope[1] in {None, pay[1]}:
                found.setdefault(name, []).extend(prices)
        voices = {name: median(prices) for name, prices in found.items()}
        return _Voices(voices, sorted(voices.values()))

    def _find_asked(self, gpu_key: str, pricing: Pricing) -> _Asked:
        """Return the prices that can bear one out, those that leave the card's form factor open included."""
        left_open = (key for key, spec in load_specs().items() if gpu_key in spec.variants)
        found: dict[str, list[float]] = {}
        for pay, name, prices in self._prices_of(gpu_key, *left_open):
            if pay[0] is pricing:
                found.setdefault(name, []).extend(prices)
        by_provider = {name: sorted(prices) for name, prices in found.items()}
        return _Asked(sorted(chain.from_iterable(by_provider.values())), by_provider)

    def _prices_of(self, gpu_key: str, *more: str) -> Iterator[tuple[_Pay, str, list[float]]]:
        """Yield the prices for a GPU; for one whose form factor is open, those of all that it can be."""
        spec = load_specs().get(gpu_key)
        for key in (gpu_key, *(spec.variants if spec else ()), *more):
            for pay, by_provider in self._prices.get(key, {}).items():
                for name, prices in by_provider.items():
                    yield pay, name, prices


class Believed(NamedTuple):
    """The offers that are believed, and the identities of those whose price jumped."""

    table: OfferTable
    jumped: frozenset[OfferKey]


def sort_outliers(fresh: OfferTable, known: Iterable[Offer], *, accept: bool = False) -> Believed:
    """Set aside what jumped against its own last price.

    Args:
        fresh: New offers.
        known: Offers known before; historic ones are no standard.
        accept: Keep the jumps too.
    """
    before = {offer_key(offer): offer for offer in known}
    jumps: dict[OfferKey, SetAside] = {}
    for offer in fresh.offers:
        last = before.get(offer_key(offer))
        if accept or last is None or not last.usd_per_gpu_hour or not offer.usd_per_gpu_hour:
            continue
        ratio = offer.usd_per_gpu_hour / last.usd_per_gpu_hour
        if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
            new_usd, old_usd = (format_usd(each.usd_per_gpu_hour * each.gpu_count) for each in (offer, last))
            reason = (
                f"{pricing_words(offer)} price {new_usd} is {format_number(ratio, 2)} times the {old_usd} of "
                f"{last.price_date}; the old price is kept (--accept-outliers takes the new one)"
            )
            jumps[offer_key(offer)] = SetAside(name_of(offer), reason)
    kept = tuple(offer for offer in fresh.offers if offer_key(offer) not in jumps)
    set_aside = (*fresh.set_aside, *jumps.values())
    return Believed(msgspec.structs.replace(fresh, offers=kept, set_aside=set_aside), frozenset(jumps))


def name_of(offer: Offer) -> str:
    """Return who sells what and where, safe to print."""
    return plain(full_name(offer), 80)


def _key(offer: Offer) -> _Key:
    return _Key(offer.gpu_key, offer.pricing, offer.kind, offer.provider)


def _pay(offer: Offer) -> _Pay:
    return offer.pricing, offer.kind == "marketplace"
