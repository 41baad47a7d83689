"""Is a price believable? A refresh, the list of offers and every ranking ask here, and nowhere else.

There are two standards. Against the last known price of the same instance a jump is set aside when it is
fetched. A price far below or far above what others ask, which nobody bears out, is listed with the doubt and
does not rank unasked. The others are the hosts beside it in its own source, else the other providers; where
nobody else sells the GPU, they are the cheapest GPUs of all by the bandwidth of their memory.

Only another hand bears a price out: another provider, in a table that another wrote. One file can hold any
number of names.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from statistics import median
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from gpubench.arrays import Flags
from gpubench.labels import full_name, pricing_words
from gpubench.models import Offer, Pricing
from gpubench.offers.columns import BY_USER, UNTOLD, Offers, kinds_of
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

FEWEST_ASKS = 3
"""So many hosts of one source make a median to hold its cheapest one to."""

ADMITTED_BY = "the setting accept-outliers"

_Pay: TypeAlias = tuple[Pricing, bool]
"""How it is paid, and whether on a marketplace: hosts there ask down to a sixth of what clouds do."""

_Scope: TypeAlias = tuple[Pricing | None, bool | None]
"""Whose prices count: those paid and sold so; None is any."""


class Standard(NamedTuple):
    """What others ask for a GPU-hour; ``loosened`` counts in how many respects they differ.

    ``hosts`` are those of its own source, ``by_bandwidth`` is what the cheapest GPUs of all would cost.
    """

    median_usd: float
    provider_count: int
    loosened: int = 0
    hosts: int = 0
    by_bandwidth: bool = False
    fewer: int = 0

    @property
    def whose(self) -> str:
        """Whose price it is: "the median of 3 other providers ($8.00)"."""
        if self.hosts:
            return f"the median of the {self.hosts} hosts there ({format_usd(self.median_usd)})"
        if self.fewer:
            return f"what it asks for {self.fewer} of them ({format_usd(self.median_usd)})"
        if self.by_bandwidth:
            return f"what the cheapest GPUs cost by their bandwidth ({format_usd(self.median_usd)})"
        others = count(self.provider_count, "other provider")
        who = f"the median of {others}" if self.provider_count > 1 else "what the one other provider asks"
        how = ("", ", clouds and marketplaces alike", ", however paid")[self.loosened]
        return f"{who}{how} ({format_usd(self.median_usd)})"

    @property
    def in_short(self) -> str:
        """Whose price it is, in a few words: "what 4 others ask"."""
        if self.hosts or self.by_bandwidth or self.fewer:
            return self.whose.partition(" (")[0]
        who = "1 other asks" if self.provider_count == 1 else f"{self.provider_count} others ask"
        return f"what {who}"


class _Key(NamedTuple):
    """What a price is judged by, beside its height."""

    gpu_key: str
    pricing: Pricing
    kind: str
    provider: str
    origin: str


class _Hand(NamedTuple):
    """Who set a price: the provider, and the table that says so; ``UNTOLD`` is one that can be trusted."""

    provider: str
    origin: str

    def may_bear_out(self, other: _Hand) -> bool:
        return self.provider != other.provider and (self.origin == UNTOLD or self.origin != other.origin)


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


_Asked: TypeAlias = Mapping[_Hand, Sequence[float]]
"""Prices that can bear one out [USD per GPU-hour], those of each hand in order."""


def _of_about(asked: _Asked, usd: float) -> set[_Hand]:
    """Return the hands of which a price is within ``WITNESS_RATIO`` of one."""
    low, high = usd / WITNESS_RATIO, usd * WITNESS_RATIO
    return {hand for hand, prices in asked.items() if bisect_right(prices, high) > bisect_left(prices, low)}


@cache
def _name(provider: str) -> str:
    """Return the letters and digits of a provider's name: one seller may be spelled in many ways."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", provider).casefold()))


class AskedPrices:
    """What each provider asks for an hour of each GPU.

    A provider has one voice, the median of its own prices: its regions and instances are set by one hand.
    """

    def __init__(self, offers: Iterable[Offer]) -> None:
        """Part prices by GPU, by how they are paid, and by provider."""
        self._standard_of = cache(self._find_standard)
        self._voices = cache(self._find_voices)
        self._asked = cache(self._find_asked)
        self._is_alone = cache(self._find_alone)
        self._prices: dict[str, dict[_Pay, dict[_Hand, list[float]]]] = {}
        self._origins: dict[OfferKey, str] = {}
        self._hosts: dict[tuple[str, str, Pricing], Standard] = {}
        self._least: dict[tuple[str, Pricing, _Hand], dict[int, float]] = {}
        every = Offers.of(offers)
        for offer, origin in zip(every, every.origin.cells(), strict=True):
            usd = offer.usd_per_gpu_hour
            if offer.kind == "index" and offer.ask_count is not None:
                median_of = Standard(usd, 0, hosts=offer.ask_count)
                self._hosts[offer.provider, offer.gpu_key, offer.pricing] = median_of
            if offer.pricing is Pricing.OWNED or offer.kind in NOT_RANKED or usd <= 0:
                continue
            if origin != UNTOLD:
                self._origins[offer_key(offer)] = origin
            hand = _Hand(_name(offer.provider), origin)
            paid = self._prices.setdefault(offer.gpu_key, {}).setdefault(_pay(offer), {})
            paid.setdefault(hand, []).append(usd)
            least = self._least.setdefault((offer.gpu_key, offer.pricing, hand), {})
            least[offer.gpu_count] = min(usd, least.get(offer.gpu_count, usd))

    def doubt(self, offer: Offer) -> str | None:
        """Return why a price is likely a mistake, with its figures; None where it is believed.

        It is doubted below a fifth of the median of the hosts in its own source. It is doubted below a fifth
        of the median of the other providers, and above five times that of its own kind, unless a second
        provider in another table asks within twice as much or as little. What nobody else sells is doubted,
        unless it is shipped, below half of what the cheapest GPUs cost by their bandwidth. A price that is no
        higher than the same provider's for half as many GPUs is doubted, unless it is shipped or borne out.
        """
        own = offer.usd_per_gpu_hour
        if (standard := self._standard_of_doubt(offer)) is None:
            return None
        words = f"{format_usd(own)} a GPU-hour is {format_number(own / standard.median_usd, 2)} times"
        if standard.hosts or standard.fewer:
            return f"{words} {standard.whose}"
        who = "no other provider sells this GPU" if standard.by_bandwidth else "no second provider is within"
        near = "" if standard.by_bandwidth else f" {WITNESS_RATIO:g}x of it"
        return f"{words} {standard.whose}, and {who}{near}"

    def doubt_in_short(self, offer: Offer) -> str | None:
        """Return the same in a few words: "0.00091 times what 4 others ask"; None where it is believed."""
        if (standard := self._standard_of_doubt(offer)) is None:
            return None
        return f"{format_number(offer.usd_per_gpu_hour / standard.median_usd, 2)} times {standard.in_short}"

    def caution(self, offer: Offer) -> str | None:
        """Return what to say of a price that is believed though nothing confirms it; None if something does.

        That is a price of a GPU that nobody else sells, unless it is a company's list price that is shipped
        or the user's own, and one under half of what the others ask.
        """
        if offer.pricing is Pricing.OWNED:
            return None
        if offer.is_floor and offer.kind != "marketplace":
            return 'a "starting at" price'
        usd, standard = offer.usd_per_gpu_hour, self._standard_of(self._key(offer))
        hand = self._hand(offer)
        is_listed = offer.seller == "cloud" and hand.origin == UNTOLD
        if not (is_listed or hand.origin == BY_USER) and (
            standard is None or self._is_alone(offer.gpu_key, hand)
        ):
            return "a price that no other source confirms"
        if standard is None:
            return None
        paid_alike = offer.pricing, Pricing.ON_DEMAND
        is_low = usd * WITNESS_RATIO < standard.median_usd
        if not is_low or self._witnesses(offer.gpu_key, hand, usd, *paid_alike):
            return None
        return f"{format_number(usd / standard.median_usd, 2)} times {standard.in_short}"

    def _standard_of_doubt(self, offer: Offer) -> Standard | None:
        """Return what the others ask where that makes a price doubtful."""
        usd, key, hosts = offer.usd_per_gpu_hour, self._key(offer), self._hosts_of(offer)
        if hosts is not None and hosts.hosts >= FEWEST_ASKS and usd * MAX_RATIO < hosts.median_usd:
            return hosts
        hand = self._hand(offer)
        if self._is_doubted(key, hand, usd):
            return self._standard_of(key)
        if (fewer := self._as_much_for_fewer(offer, hand)) is not None:
            return fewer
        is_a_strangers = hand.origin != UNTOLD and self._is_alone(offer.gpu_key, hand)
        cheapest = self._cheapest_by_bandwidth(offer) if is_a_strangers else None
        return cheapest if cheapest is not None and usd * WITNESS_RATIO < cheapest.median_usd else None

    def _as_much_for_fewer(self, offer: Offer, hand: _Hand) -> Standard | None:
        """Return what the same provider asks for half as many GPUs or fewer, where that is as much in all."""
        least = self._least.get((offer.gpu_key, offer.pricing, hand), {})
        total_usd = offer.usd_per_gpu_hour * offer.gpu_count
        asked = [(n, usd) for n, usd in least.items() if 2 * n <= offer.gpu_count and n * usd >= total_usd]
        paid_alike = offer.pricing, Pricing.ON_DEMAND
        if hand.origin == UNTOLD or not asked:  # what ships was read row by row
            return None
        if self._witnesses(offer.gpu_key, hand, offer.usd_per_gpu_hour, *paid_alike):
            return None
        fewest, usd = min(asked)
        return Standard(usd, 0, fewer=fewest)

    def _hosts_of(self, offer: Offer) -> Standard | None:
        """Return what the hosts beside an ask want, as its own source says or said of that GPU."""
        if offer.ask_median_usd_per_hour is not None:
            usd = float(offer.ask_median_usd_per_hour) / offer.gpu_count
            return Standard(usd, 0, hosts=offer.ask_count or 0)
        is_ask = offer.kind == "marketplace"
        return self._hosts.get((offer.provider, offer.gpu_key, offer.pricing)) if is_ask else None

    def _find_alone(self, gpu_key: str, hand: _Hand) -> bool:
        """Return whether nobody else, in a table that another wrote, sells the GPU at all."""
        return not any(other.may_bear_out(hand) for _, other, _ in self._prices_of(gpu_key))

    def _cheapest_by_bandwidth(self, offer: Offer) -> Standard | None:
        """Return what the GPU would cost at the rate of the cheapest; None where nobody knows."""
        spec, rate = load_specs().get(offer.gpu_key), self._least_usd_per_byte
        bandwidth = None if spec is None else spec.memory_bandwidth_bytes_per_s
        if rate is None or bandwidth is None or offer.pricing is Pricing.OWNED or offer.kind in NOT_RANKED:
            return None
        return Standard(rate * bandwidth, 0, by_bandwidth=True)

    @cached_property
    def _least_usd_per_byte(self) -> float | None:
        """The least that a GPU costs by its bandwidth, of those that several shipped providers sell."""
        found = []
        for gpu_key, prices in self._prices.items():
            spec, voices = load_specs().get(gpu_key), list[float]()
            for (pricing, _), by_hand in prices.items():
                if pricing is Pricing.ON_DEMAND:
                    voices += (median(each) for hand, each in by_hand.items() if hand.origin == UNTOLD)
            if spec is not None and spec.memory_bandwidth_bytes_per_s and len(voices) > 1:
                found.append(median(voices) / spec.memory_bandwidth_bytes_per_s)
        return min(found, default=None)

    def is_below(self, offer: Offer) -> bool:
        """Return whether a doubtful price is under what it is held to: only that can be a false answer."""
        standard = self._standard_of_doubt(offer)
        return standard is not None and offer.usd_per_gpu_hour < standard.median_usd

    def doubted(self, offers: Offers) -> Flags:
        """Return which prices are likely a mistake."""
        alike = kinds_of(offers.gpu_key, offers.pricing, offers.kind, offers.provider, offers.origin)
        standards = (self._standard_of(_Key(*each)) for each in alike.values)
        middle = np.array([math.nan if each is None else each.median_usd for each in standards], dtype=float)
        usd, standard = offers.usd_per_gpu_hour, middle[alike.codes]
        within = (usd >= standard / MAX_RATIO) & (usd <= standard * MAX_RATIO)  # false without a standard
        strangers = [
            each[4] != UNTOLD and self._is_alone(each[0], _Hand(_name(each[3]), each[4]))
            for each in alike.values
        ]
        alone = np.array(strangers, dtype=bool)[alike.codes]
        suspects: Flags = ~within | offers.kind.equals("marketplace") | alone
        for at in np.flatnonzero(suspects).tolist():
            suspects[at] = self._standard_of_doubt(offers[at]) is not None
        return suspects

    def _key(self, offer: Offer) -> _Key:
        origin = self._hand(offer).origin
        return _Key(offer.gpu_key, offer.pricing, offer.kind, offer.provider, origin)

    def _hand(self, offer: Offer) -> _Hand:
        return _Hand(_name(offer.provider), self._origins.get(offer_key(offer), UNTOLD))

    def _witnesses(self, gpu_key: str, hand: _Hand, usd: float, *pricings: Pricing) -> set[_Hand]:
        """Return the hands that bear a price out."""
        asked = (self._asked(gpu_key, pricing) for pricing in pricings)
        near = set[_Hand]().union(*(_of_about(each, usd) for each in asked))
        return {each for each in near if each.may_bear_out(hand)}

    def _is_doubted(self, key: _Key, hand: _Hand, usd: float) -> bool:
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
        paid_alike = key.pricing, Pricing.ON_DEMAND
        if not is_low and standard.provider_count == 1:
            witnesses = self._witnesses(key.gpu_key, hand, standard.median_usd, *paid_alike)
            if len({each.provider for each in witnesses}) < 2:
                return False
        return not self._witnesses(key.gpu_key, hand, usd, *paid_alike)

    def _find_standard(self, key: _Key) -> Standard | None:
        """Return what the others ask for the same; None where nobody does, or no such price is judged.

        Asked are those of the same kind who are paid alike, else all who are paid alike, else all: of a
        stranger's table those in other tables, before anybody beside it.
        """
        if key.pricing is Pricing.OWNED or key.kind in NOT_RANKED:
            return None
        scopes: list[_Scope] = [(key.pricing, key.kind == "marketplace"), (key.pricing, None), (None, None)]
        for origin in dict.fromkeys((key.origin, UNTOLD)):
            for loosened, scope in enumerate(scopes):
                others = self._voices(key.gpu_key, scope, origin).of_others(_name(key.provider))
                if others is not None:
                    provider_count, median_usd = others
                    return Standard(median_usd, provider_count, loosened)
        return None

    def _find_voices(self, gpu_key: str, scope: _Scope, origin: str) -> _Voices:
        """Return the one price for which each provider stands [USD per GPU-hour]."""
        found: dict[str, list[float]] = {}
        for pay, hand, prices in self._prices_of(gpu_key):
            is_another_hand = origin == UNTOLD or hand.origin != origin
            if is_another_hand and scope[0] in {None, pay[0]} and scope[1] in {None, pay[1]}:
                found.setdefault(hand.provider, []).extend(prices)
        voices = {name: median(prices) for name, prices in found.items()}
        return _Voices(voices, sorted(voices.values()))

    def _find_asked(self, gpu_key: str, pricing: Pricing) -> _Asked:
        """Return the prices that can bear one out, those that leave the card's form factor open included."""
        left_open = (key for key, spec in load_specs().items() if gpu_key in spec.variants)
        found: dict[_Hand, list[float]] = {}
        for pay, hand, prices in self._prices_of(gpu_key, *left_open):
            if pay[0] is pricing:
                found.setdefault(hand, []).extend(prices)
        return {hand: sorted(prices) for hand, prices in found.items()}

    def _prices_of(self, gpu_key: str, *more: str) -> Iterator[tuple[_Pay, _Hand, list[float]]]:
        """Yield the prices for a GPU; for one whose form factor is open, those of all that it can be."""
        spec = load_specs().get(gpu_key)
        for key in (gpu_key, *(spec.variants if spec else ()), *more):
            for pay, by_provider in self._prices.get(key, {}).items():
                for hand, prices in by_provider.items():
                    yield pay, hand, prices


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
                f"{last.price_date}; the old price is kept (accept-outliers takes the new one)"
            )
            jumps[offer_key(offer)] = SetAside(name_of(offer), reason)
    kept = tuple(offer for offer in fresh.offers if offer_key(offer) not in jumps)
    set_aside = (*fresh.set_aside, *jumps.values())
    return Believed(msgspec.structs.replace(fresh, offers=kept, set_aside=set_aside), frozenset(jumps))


def name_of(offer: Offer) -> str:
    """Return who sells what and where, safe to print."""
    return plain(full_name(offer), 80)


def _pay(offer: Offer) -> _Pay:
    return offer.pricing, offer.kind == "marketplace"
