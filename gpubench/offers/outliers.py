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
from collections.abc import Iterable
from functools import cache, cached_property
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

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

_ROUNDING = 1e-9

_LOOSENED = ("", ", clouds and marketplaces alike", ", however paid")


class Standard(NamedTuple):
    """What a price is held to [USD per GPU-hour], and in words whose price that is.

    Attributes:
        unless: What would have borne the price out, and is not there.
        loosened: In how many respects the others differ.
        providers: How many others ask it; 0 where it is no median of others.
    """

    usd: float
    whose: str
    in_short: str
    unless: str = ""
    loosened: int = 0
    providers: int = 0


class _Asks(NamedTuple):
    """Prices on sale for one GPU, and for each card that a name of open form factor can mean; arrays (N,).

    Attributes:
        usd: Of a GPU-hour.
        gpus: How many the offer has.
        pricing, is_host: How it is paid, and whether on a marketplace: hosts there ask down to a sixth.
        provider, origin: Who set it, and the table that says so, as places in lists.
    """

    usd: NDArray[Any]
    gpus: NDArray[Any]
    pricing: NDArray[Any]
    is_host: NDArray[Any]
    provider: NDArray[Any]
    origin: NDArray[Any]


class _Hand(NamedTuple):
    """Who set a price; an origin of 0 can be trusted, and a provider of -1 sells nothing that is known."""

    provider: int
    origin: int


@cache
def _name(provider: str) -> str:
    """Return the letters and digits of a provider's name: one seller may be spelled in many ways."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", provider).casefold()))


class AskedPrices:
    """What each provider asks for an hour of each GPU, and which of these prices are likely a mistake.

    A provider has one voice, the median of its own prices: its regions and instances are set by one hand.
    """

    def __init__(self, offers: Iterable[Offer]) -> None:
        """Lay prices out by GPU."""
        self._every = every = Offers.of(offers)
        self._standard_of = cache(self._find_standard)
        self._asks = cache(self._find_asks)
        self._voices = cache(self._find_voices)
        self._is_alone = cache(self._find_alone)
        self._least = cache(self._find_least)
        self._names = {name: at for at, name in enumerate(dict.fromkeys(map(_name, every.provider.values)))}
        self._tables = {name: at for at, name in enumerate(dict.fromkeys((UNTOLD, *every.origin.values)))}
        self._pricings = {pricing: at for at, pricing in enumerate(Pricing)}
        is_sold = ~every.is_owned & ~every.kind.is_in(NOT_RANKED.__contains__) & (every.usd_per_gpu_hour > 0)
        codes = np.where(is_sold, every.gpu_key.codes, -1)
        in_order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[in_order], np.arange(len(every.gpu_key.values) + 1))
        self._rows = {key: in_order[ends[at] : ends[at + 1]] for at, key in enumerate(every.gpu_key.values)}
        index = (every[at] for at in np.flatnonzero(every.kind.equals("index")).tolist())
        self._hosts = {
            (offer.provider, offer.gpu_key, offer.pricing): _of_hosts(offer.ask_count, offer.usd_per_gpu_hour)
            for offer in index
            if offer.ask_count is not None
        }

    @cached_property
    def _origins(self) -> dict[Any, int]:
        origins = zip(self._every, self._every.origin.cells(), strict=True)
        return {offer_key(each): self._tables[told] for each, told in origins if told != UNTOLD}

    @cached_property
    def _columns(self) -> _Asks:
        every = self._every
        return _Asks(
            usd=every.usd_per_gpu_hour,
            gpus=every.gpu_count.figures(int),
            pricing=every.pricing.figures(self._pricings.__getitem__),
            is_host=every.kind.equals("marketplace"),
            provider=every.provider.figures(lambda each: self._names[_name(each)]),
            origin=every.origin.figures(self._tables.__getitem__),
        )

    def _find_asks(self, *gpu_keys: str) -> _Asks:
        rows = [self._rows[key] for key in dict.fromkeys(gpu_keys) if key in self._rows]
        places = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        return _Asks(*(column[places] for column in self._columns))

    def _hand(self, offer: Offer) -> _Hand:
        origin = self._origins.get(offer_key(offer), 0)
        return _Hand(self._names.get(_name(offer.provider), -1), origin)

    # --- what is said of a price -------------------------------------------------------------------------

    def doubt(self, offer: Offer) -> str | None:
        """Return why a price is likely a mistake, with its figures; None where it is believed.

        It is doubted below a fifth of the median of the hosts in its own source. It is doubted below a fifth
        of the median of the other providers, and above five times that of its own kind, unless a second
        provider in another table asks within twice as much or as little. What nobody else sells is doubted,
        unless it is shipped, below half of what the cheapest GPUs cost by their bandwidth. A price that is no
        higher than the same provider's for half as many GPUs is doubted, unless it is shipped or borne out.
        """
        if (standard := self._doubted_by(offer)) is None:
            return None
        usd = offer.usd_per_gpu_hour
        ratio = format_number(usd / standard.usd, 2)
        whose = f"{standard.whose} ({format_usd(standard.usd)})"
        return f"{format_usd(usd)} a GPU-hour is {ratio} times {whose}{standard.unless}"

    def doubt_in_short(self, offer: Offer) -> str | None:
        """Return the same in a few words: "0.00091 times what 4 others ask"; None where it is believed."""
        standard = self._doubted_by(offer)
        return None if standard is None else _times(offer, standard)

    def is_below(self, offer: Offer) -> bool:
        """Return whether a doubtful price is under what it is held to: only that can be a false answer."""
        standard = self._doubted_by(offer)
        return standard is not None and offer.usd_per_gpu_hour < standard.usd

    def caution(self, offer: Offer) -> str | None:
        """Return what to say of a price that is believed though nothing confirms it; None if something does.

        That is a price of a GPU that nobody else sells, unless it is a company's list price that is shipped
        or the user's own, and one under half of what the others ask.
        """
        if offer.pricing is Pricing.OWNED:
            return None
        if offer.is_floor and offer.kind != "marketplace":
            return 'a "starting at" price'
        hand = self._hand(offer)
        standard = self._standard_of(offer.gpu_key, offer.pricing, offer.kind, hand)
        is_taken = hand.origin in {self._tables.get(BY_USER), 0 if offer.seller == "cloud" else None}
        if not is_taken and (standard is None or self._is_alone(offer.gpu_key, hand)):
            return "a price that no other source confirms"
        usd = offer.usd_per_gpu_hour
        if standard is None or usd * WITNESS_RATIO >= standard.usd or self._witnesses(offer, hand, usd):
            return None
        return _times(offer, standard)

    def doubted(self, offers: Offers) -> Flags:
        """Return which prices are likely a mistake, of offers of one table with those that were laid out."""
        return offers.spread(self._every, self._flags)

    @cached_property
    def _flags(self) -> Flags:
        every = self._every
        alike = kinds_of(
            every.gpu_key, every.pricing, every.kind, every.provider, every.origin, every.gpu_count
        )
        low, high = np.array([self._limits(each) for each in alike.values]).reshape(-1, 2).T[:, alike.codes]
        usd, median_of = every.usd_per_gpu_hour, every.column("ask_median_usd_per_hour")
        suspects: Flags = (usd <= low) | (usd >= high) | ~median_of.equals(None)
        for at in np.flatnonzero(suspects).tolist():
            suspects[at] = self._doubted_by(every[at]) is not None
        return suspects

    def _limits(self, alike: tuple[Any, ...]) -> tuple[float, float]:
        """Return between which prices none is doubted, unless its own source tells what others there ask."""
        gpu_key, pricing, kind, provider, origin, gpu_count = alike
        if pricing is Pricing.OWNED or kind in NOT_RANKED:
            return -math.inf, math.inf
        hand = _Hand(self._names[_name(provider)], self._tables[origin])
        standard = self._standard_of(gpu_key, pricing, kind, hand)
        hosts = self._hosts.get((provider, gpu_key, pricing))
        lows, high = [0.0], math.inf
        if standard is not None:
            lows.append(standard.usd / MAX_RATIO / LOOSENING**standard.loosened)
            high = math.inf if standard.loosened else standard.usd * MAX_RATIO
        if hosts is not None and kind == "marketplace":
            lows.append(hosts.usd / MAX_RATIO)
        if hand.origin != 0:
            fewer = self._least(gpu_key, pricing, hand).items()
            lows += [n * usd / gpu_count for n, usd in fewer if 2 * n <= gpu_count]
            if (cheapest := self._cheapest_by_bandwidth(gpu_key, hand)) is not None:
                lows.append(cheapest.usd / WITNESS_RATIO)
        return max(lows) * (1 + _ROUNDING), high * (1 - _ROUNDING)

    # --- what a price is held to -------------------------------------------------------------------------

    def _doubted_by(self, offer: Offer) -> Standard | None:
        """Return what the others ask where that makes a price doubtful."""
        usd, gpu_key, hand = offer.usd_per_gpu_hour, offer.gpu_key, self._hand(offer)
        if offer.pricing is Pricing.OWNED or offer.kind in NOT_RANKED:
            return None
        hosts = None
        if offer.ask_median_usd_per_hour is not None:
            hosts = _of_hosts(offer.ask_count or 0, float(offer.ask_median_usd_per_hour) / offer.gpu_count)
        elif offer.kind == "marketplace":
            hosts = self._hosts.get((offer.provider, gpu_key, offer.pricing))
        if hosts is not None and hosts.providers >= FEWEST_ASKS and usd * MAX_RATIO < hosts.usd:
            return hosts
        standard = self._standard_of(gpu_key, offer.pricing, offer.kind, hand)
        if standard is not None and self._is_far(offer, hand, standard):
            return standard
        if hand.origin == 0:  # what ships was read row by row
            return None
        fewer = self._for_fewer(offer, hand)
        if fewer is not None and not self._witnesses(offer, hand, usd, of_its_kind=True):
            return fewer
        cheapest = self._cheapest_by_bandwidth(gpu_key, hand)
        return cheapest if cheapest is not None and usd * WITNESS_RATIO < cheapest.usd else None

    def _cheapest_by_bandwidth(self, gpu_key: str, hand: _Hand) -> Standard | None:
        """Return what a GPU that nobody else sells would cost at the rate of the cheapest, where known."""
        spec, rate = load_specs().get(gpu_key), self._least_usd_per_byte
        bandwidth = None if spec is None else spec.memory_bandwidth_bytes_per_s
        if rate is None or bandwidth is None or not self._is_alone(gpu_key, hand):
            return None
        whose = "what the cheapest GPUs cost by their bandwidth"
        return Standard(rate * bandwidth, whose, whose, ", and no other provider sells this GPU")

    def _is_far(self, offer: Offer, hand: _Hand, standard: Standard) -> bool:
        """Hold a price to its standard, and ask whether anybody else bears it out.

        One that is too high is held to the median of its own kind, and a lone cent must not throw out an
        honest one: one other provider of its kind is enough where a further one, of any kind, bears that
        one out.
        """
        ratio = offer.usd_per_gpu_hour / standard.usd
        is_low = ratio * MAX_RATIO * LOOSENING**standard.loosened < 1
        if not is_low and (ratio <= MAX_RATIO or standard.loosened):
            return False
        if not is_low and standard.providers == 1 and len(self._witnesses(offer, hand, standard.usd)) < 2:
            return False
        return not self._witnesses(offer, hand, offer.usd_per_gpu_hour)

    def _find_standard(self, gpu_key: str, pricing: Pricing, kind: str, hand: _Hand) -> Standard | None:
        """Return what the others ask for the same; None where nobody does, or no such price is judged.

        Asked are those of the same kind who are paid alike, else all who are paid alike, else all: of a
        stranger's table those in other tables, before anybody beside it.
        """
        if pricing is Pricing.OWNED or kind in NOT_RANKED:
            return None
        for origin in dict.fromkeys((hand.origin, 0)):
            for loosened in range(len(_LOOSENED)):
                voices = self._voices(gpu_key, pricing, kind == "marketplace", loosened, origin)
                others = [usd for provider, usd in voices.items() if provider != hand.provider]
                if others:
                    return _of_others(others, loosened)
        return None

    def _find_voices(
        self, gpu_key: str, pricing: Pricing, is_host: bool, loosened: int, origin: int
    ) -> dict[int, float]:
        """Return the one price for which each provider stands, in tables of other hands than one."""
        asks = self._asks(*_means(gpu_key))
        paid = asks.pricing == self._pricings[pricing]
        scope = (paid & (asks.is_host == is_host), paid, np.ones(len(paid), dtype=bool))[loosened]
        is_another_hand = (origin == 0) | (asks.origin != origin)
        return _voices(asks, scope & is_another_hand)

    def _for_fewer(self, offer: Offer, hand: _Hand) -> Standard | None:
        """Return what the same provider asks for half as many GPUs or fewer, where that is as much in all."""
        total_usd = offer.usd_per_gpu_hour * offer.gpu_count
        for fewer, usd in self._least(offer.gpu_key, offer.pricing, hand).items():
            if 2 * fewer <= offer.gpu_count and fewer * usd >= total_usd:
                whose = f"what it asks for {fewer} of them"
                return Standard(usd, whose, whose)
        return None

    def _find_least(self, gpu_key: str, pricing: Pricing, hand: _Hand) -> dict[int, float]:
        """Return the least that a provider asks for a GPU-hour by the number of GPUs, the fewest first."""
        asks = self._asks(gpu_key)
        own = (asks.provider == hand.provider) & (asks.origin == hand.origin)
        own &= asks.pricing == self._pricings[pricing]
        return {int(n): float(asks.usd[own & (asks.gpus == n)].min()) for n in np.unique(asks.gpus[own])}

    def _of_another(self, asks: _Asks, hand: _Hand) -> Flags:
        """Return which prices can bear one out: another provider's, in a table that another wrote."""
        is_another: Flags = (asks.provider != hand.provider) & (asks.origin != (hand.origin or -1))
        return is_another

    def _find_alone(self, gpu_key: str, hand: _Hand) -> bool:
        """Return whether nobody else, in a table that another wrote, sells the GPU at all."""
        return not self._of_another(self._asks(*_means(gpu_key)), hand).any()

    def _witnesses(self, offer: Offer, hand: _Hand, usd: float, *, of_its_kind: bool = False) -> set[int]:
        """Return the providers that bear a price out, those who leave the form factor open included.

        A private host and a company that rents are of two kinds.
        """
        asks = self._asks(*_means(offer.gpu_key, or_open=True))
        paid = [self._pricings[each] for each in (offer.pricing, Pricing.ON_DEMAND)]
        near = (asks.usd >= usd / WITNESS_RATIO) & (asks.usd <= usd * WITNESS_RATIO)
        near &= ((asks.pricing == paid[0]) | (asks.pricing == paid[1])) & self._of_another(asks, hand)
        if of_its_kind:
            near &= asks.is_host == (offer.kind == "marketplace")
        return set(asks.provider[near].tolist())

    @cached_property
    def _least_usd_per_byte(self) -> float | None:
        """The least that a GPU costs by its bandwidth, of those that several shipped providers sell."""
        found = []
        for gpu_key in self._rows:
            spec, asks = load_specs().get(gpu_key), self._asks(gpu_key)
            shipped = (asks.pricing == self._pricings[Pricing.ON_DEMAND]) & (asks.origin == 0)
            voices = _voices(asks, shipped).values()
            if spec is not None and spec.memory_bandwidth_bytes_per_s and len(voices) > 1:
                found.append(median(voices) / spec.memory_bandwidth_bytes_per_s)
        return min(found, default=None)


@cache
def _means(gpu_key: str, *, or_open: bool = False) -> tuple[str, ...]:
    """Return a GPU and all that it can be where its form factor is open, or those that leave it open."""
    spec = load_specs().get(gpu_key)
    left_open = (key for key, each in load_specs().items() if or_open and gpu_key in each.variants)
    return (gpu_key, *(spec.variants if spec else ()), *left_open)


def _voices(asks: _Asks, which: Flags) -> dict[int, float]:
    """Return the one price for which each provider stands [USD per GPU-hour]."""
    providers, usd = asks.provider[which], asks.usd[which]
    return {each: median(usd[providers == each].tolist()) for each in np.unique(providers).tolist()}


def _of_others(voices: list[float], loosened: int) -> Standard:
    n, how = len(voices), _LOOSENED[loosened]
    who = f"the median of {count(n, 'other provider')}" if n > 1 else "what the one other provider asks"
    short = "what 1 other asks" if n == 1 else f"what {n} others ask"
    unless = f", and no second provider is within {WITNESS_RATIO:g}x of it"
    return Standard(median(voices), f"{who}{how}", short, unless, loosened, n)


def _of_hosts(hosts: int, usd: float) -> Standard:
    whose = f"the median of the {hosts} hosts there"
    return Standard(usd, whose, whose, providers=hosts)


def _times(offer: Offer, standard: Standard) -> str:
    return f"{format_number(offer.usd_per_gpu_hour / standard.usd, 2)} times {standard.in_short}"


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
