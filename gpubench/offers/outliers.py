"""Decides whether a price is plausible, for a refresh, the list of offers and every ranking.

There are two tests. First, a fetched price that jumps from the last known price of the same instance is set
aside. Second, an unconfirmed price far below or far above the others is listed with the reason, and is not
ranked by default. "The others" are other hosts of the same source and other providers; if nobody else sells
the GPU, they are the GPUs that cost the least per unit of memory bandwidth. A price can be confirmed only by
another provider, in a table by another author: one file can contain any number of provider names.
"""

import math
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags
from gpubench.labels import full_name, pricing_words
from gpubench.models import Offer, Pricing
from gpubench.offers.table import (
    BY_USER,
    NOT_RANKED,
    UNSTATED,
    Column,
    OfferKey,
    Offers,
    OfferTable,
    SetAside,
    kinds_of,
    offer_key,
    places_by_kind,
)
from gpubench.specs import load_specs
from gpubench.units import count, format_number, format_usd, plain

MAX_RATIO = 5.0
"""A price is considered a mistake if it differs by more than this factor from the last known price of the
same instance or from the median of the other providers. Providers differ by a factor of 7. The only shipped
price below 0.3 times the median of others of its kind is one cloud's V100, and it is confirmed."""

# No hourly price exceeds the others by this factor, not even the user's own: a month has 730 hours.
_NEVER_HOURLY_RATIO = 50.0

LOOSENING = 2.0
"""Factor by which the limit widens for each respect (kind of seller, pricing) in which the prices differ."""

# A second provider with a price within this ratio confirms a price.
_WITNESS_RATIO = 2.0

# Minimum number of hosts at one source for comparing the cheapest with their median.
_FEWEST_ASKS = 3

ADMITTED_BY = "the setting accept-outliers"

_ROUNDING = 1e-9

# In words: the prices compared are of the same kind and pricing, of any kind, or of any kind and pricing.
_LOOSENED = ("", ", on clouds and marketplaces together", ", at any pricing")


class ReferencePrice(NamedTuple):
    """A reference price [USD per GPU-hour], and its origin in words.

    Attributes:
        low, high: Prices outside this range are doubtful.
        unconfirmed: Why a price outside the range is not confirmed, as the end of a sentence.
        is_contestable: Whether the prices of other providers can confirm a price outside the range.
        providers: Number of other providers behind it; 0 if it is not a median of providers.
    """

    usd: float
    words: str
    short_words: str
    low: float
    high: float = math.inf
    unconfirmed: str = ""
    is_contestable: bool = False
    providers: int = 0


class _Asks(NamedTuple):
    """Columns over N current prices, usually for one GPU and the variants that its name can mean.

    Attributes:
        usd: Price [USD per GPU-hour].
        gpus: Number of GPUs in the offer.
        is_host: Whether a marketplace host asks the price; hosts may ask a sixth of a cloud's price.
        pricing, provider, origin: Codes of the pricing, of the provider, and of the table's author.
    """

    usd: NDArray[Any]
    gpus: NDArray[Any]
    pricing: NDArray[Any]
    is_host: NDArray[Any]
    provider: NDArray[Any]
    origin: NDArray[Any]


class _Author(NamedTuple):
    """The author of a price, as codes. Origin 0, the shipped table, is trusted; provider -1 is unknown."""

    provider: int
    origin: int


@cache
def _name(provider: str) -> str:
    # Spellings of one provider may differ in case, spaces and punctuation.
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", provider).casefold()))


class AskedPrices:
    """Each provider's hourly price for each GPU, and checks for prices that are likely mistakes.

    Each provider has one vote, the median of its prices.
    """

    def __init__(self, offers: Iterable[Offer]) -> None:
        self._every = every = Offers.of(offers)
        self._reference_of = cache(self._find_reference)
        self._asks = cache(self._find_asks)
        self._price_by_provider = cache(self._find_prices)
        self._is_alone = cache(
            lambda key, author: not self._is_independent(self._asks(*_variants_of(key)), author).any()
        )
        self._least = cache(self._find_least)
        self._provider_codes = {
            name: at for at, name in enumerate(dict.fromkeys(map(_name, every.provider.values)))
        }
        self._origin_codes = {
            name: at for at, name in enumerate(dict.fromkeys((UNSTATED, *every.origin.values)))
        }
        self._pricing_codes = {pricing: at for at, pricing in enumerate(Pricing)}
        is_sold = ~every.is_owned & ~every.kind.is_in(NOT_RANKED.__contains__) & (every.usd_per_gpu_hour > 0)
        sold = np.flatnonzero(is_sold)
        by_gpu = places_by_kind(every.gpu_key.codes[sold])
        self._rows = {every.gpu_key.values[code]: sold[places] for code, places in by_gpu.items()}
        index = (every[at] for at in np.flatnonzero(every.kind.equals("index")).tolist())
        self._hosts = {
            (offer.provider, offer.gpu_key, offer.pricing): _reference_of_hosts(
                offer.ask_count, offer.usd_per_gpu_hour
            )
            for offer in index
            if offer.ask_count is not None
        }

    @cached_property
    def _origins(self) -> dict[Any, int]:
        origins = zip(self._every, self._every.origin.cells(), strict=True)
        return {offer_key(each): self._origin_codes[name] for each, name in origins if name != UNSTATED}

    @cached_property
    def _columns(self) -> _Asks:
        every = self._every
        return _Asks(
            usd=every.usd_per_gpu_hour,
            gpus=every.gpu_count.figures(int),
            pricing=every.pricing.figures(self._pricing_codes.__getitem__),
            is_host=every.kind.equals("marketplace"),
            provider=every.provider.figures(lambda each: self._provider_codes[_name(each)]),
            origin=every.origin.figures(self._origin_codes.__getitem__),
        )

    def _find_asks(self, *gpu_keys: str) -> _Asks:
        rows = [self._rows[key] for key in dict.fromkeys(gpu_keys) if key in self._rows]
        places = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        return _Asks(*(column[places] for column in self._columns))

    def _author(self, offer: Offer) -> _Author:
        origin = self._origins.get(offer_key(offer), 0)
        return _Author(self._provider_codes.get(_name(offer.provider), -1), origin)

    # --- the doubts about a price ------------------------------------------------------------------------

    def doubt(self, offer: Offer) -> str | None:
        """Return why a price is likely a mistake, with its figures; None if it is plausible.

        A price is likely a mistake in these cases:

        - It is below a fifth of the median of the hosts in its own source.
        - It is below a fifth of the median of the other providers, or above five times that of its own kind,
          and no second provider in another table is within a factor of two.
        - Nobody else sells the GPU, the price is not a shipped one, and it is below half of what the cheapest
          GPUs would cost for the same memory bandwidth.
        - The whole offer costs no more than the same provider's offer with at most half as many GPUs, and the
          price is neither shipped nor confirmed.
        """
        if (reference := self._doubted_by(offer)) is None:
            return None
        usd = offer.usd_per_gpu_hour
        ratio = format_number(usd / reference.usd, 2)
        words = f"{reference.words} ({format_usd(reference.usd)})"
        hardly = ", so it is hardly the price of an hour" if _is_never_hourly(offer, reference) else ""
        return f"{format_usd(usd)} per GPU-hour is {ratio} times {words}{reference.unconfirmed}{hardly}"

    def doubt_in_short(self, offer: Offer) -> str | None:
        """Return the reason in a few words: "0.00091 times what 4 others ask"; None if it is plausible."""
        reference = self._doubted_by(offer)
        return None if reference is None else _times(offer, reference)

    def is_below(self, offer: Offer) -> bool:
        """Return whether a doubtful price is too low; only a low price can make the answer wrong."""
        reference = self._doubted_by(offer)
        return reference is not None and offer.usd_per_gpu_hour < reference.usd

    def caution(self, offer: Offer) -> str | None:
        """Return the caution for a plausible but unconfirmed price; None if there is none.

        It applies to a company's "starting at" price and to an unconfirmed price under half of what others
        ask. It also applies to a GPU that nobody else sells, unless the price is the user's own or a
        company's list price in the shipped table.
        """
        if offer.pricing is Pricing.OWNED:
            return None
        if offer.is_floor and offer.kind != "marketplace":
            return 'a "starting at" price'
        author = self._author(offer)
        reference = self._reference_of(offer.gpu_key, offer.pricing, offer.kind, author)
        is_trusted = author.origin == self._origin_codes.get(BY_USER) or (
            author.origin == 0 and offer.seller == "cloud"
        )
        if not is_trusted and (reference is None or self._is_alone(offer.gpu_key, author)):
            return "the only listing" if offer.kind == "marketplace" else "unconfirmed price"
        usd = offer.usd_per_gpu_hour
        if reference is None or usd * _WITNESS_RATIO >= reference.usd:
            return None
        # Except for shipped prices, a company's low price is not confirmed by that of a private host.
        is_confirmed = self._confirmed_by(offer, author, usd, same_kind=author.origin != 0)
        return None if is_confirmed else _times(offer, reference)

    def doubted(self, offers: Offers) -> Flags:
        """Return which prices are likely mistakes.

        Args:
            offers: A selection of the constructor's offers, or of these followed by others (see
                ``Offers.joined``).
        """
        return offers.flagged_in(self._every, self._flags)

    def left_out(self, offers: Offers) -> Flags:
        """Return which prices do not rank: likely mistakes, but the user's own only if hardly of an hour."""
        return offers.flagged_in(self._every, self._left_out)

    @cached_property
    def _left_out(self) -> Flags:
        left_out = self._flags.copy()
        for at in np.flatnonzero(left_out & self._every.by_user).tolist():
            reference = self._doubted_by(self._every[at])
            left_out[at] = reference is not None and _is_never_hourly(self._every[at], reference)
        return left_out

    @cached_property
    def _flags(self) -> Flags:
        every, usd = self._every, self._every.usd_per_gpu_hour
        has_median = ~every.ask_median_usd_per_hour.equals(None)
        codes = kinds_of(
            *(every.gpu_key, every.pricing, every.kind, every.provider, every.origin, every.gpu_count),
            Column(has_median.astype(np.int64), (False, True)),
        ).codes
        _, firsts = np.unique(codes, return_index=True)
        limits = [self._limits(every[at]) for at in firsts.tolist()]
        low, high = np.array(limits).reshape(-1, 2).T[:, codes]
        # Only prices outside the limits of their kind are checked one by one.
        suspects: Flags = (usd <= low) | (usd >= high) | has_median
        for at in np.flatnonzero(suspects).tolist():
            suspects[at] = self._doubted_by(every[at]) is not None
        return suspects

    def _limits(self, offer: Offer) -> tuple[float, float]:
        # Return the limits outside which a price must be checked, for an offer and those that differ from it
        # only in price. A price listed with the median of its hosts is always checked.
        found = list(self._references(offer))
        low, high = (
            max((each.low for each in found), default=0.0),
            min((each.high for each in found), default=math.inf),
        )
        return low * (1 + _ROUNDING), high * (1 - _ROUNDING)

    # --- the reference for a price -----------------------------------------------------------------------

    def _doubted_by(self, offer: Offer) -> ReferencePrice | None:
        # Return the first reference price that makes the price of an offer doubtful; None if none does.
        usd = offer.usd_per_gpu_hour
        outside = (each for each in self._references(offer) if not each.low <= usd <= each.high)
        return next((each for each in outside if not self._is_cleared(offer, each)), None)

    def _references(self, offer: Offer) -> Iterator[ReferencePrice]:
        """Yield the reference prices for an offer.

        They are the median of the hosts in its own source, and the price of other providers. If the offer is
        not a shipped one, they also include the same provider's prices for at most half as many GPUs and, if
        nobody else sells this GPU, what the cheapest GPUs would cost for the same memory bandwidth.
        """
        gpu_key, pricing, author = offer.gpu_key, offer.pricing, self._author(offer)
        if pricing is Pricing.OWNED or offer.kind in NOT_RANKED:
            return
        hosts = None
        if offer.ask_median_usd_per_hour is not None:
            hosts = _reference_of_hosts(
                offer.ask_count or 0, float(offer.ask_median_usd_per_hour) / offer.gpu_count
            )
        elif offer.kind == "marketplace":
            hosts = self._hosts.get((offer.provider, gpu_key, pricing))
        yield from filter(None, (hosts, self._reference_of(gpu_key, pricing, offer.kind, author)))
        if author.origin == 0:  # shipped rows were checked one by one
            return
        for fewer, usd in self._least(gpu_key, pricing, author).items():
            if 2 * fewer <= offer.gpu_count:
                words, least = f"its provider's price for {fewer} of them", fewer * usd / offer.gpu_count
                yield ReferencePrice(usd, words, words, least * (1 + _ROUNDING), is_contestable=True)
        spec, rate = load_specs().get(gpu_key), self._least_usd_per_byte
        bandwidth = None if spec is None else spec.memory_bandwidth_bytes_per_s
        if rate is not None and bandwidth is not None and self._is_alone(gpu_key, author):
            words, usd = "the price of the same bandwidth on the cheapest GPUs", rate * bandwidth
            why = ", and no other provider sells this GPU"
            yield ReferencePrice(usd, words, words, usd / _WITNESS_RATIO, unconfirmed=why)

    def _is_cleared(self, offer: Offer, reference: ReferencePrice) -> bool:
        """Return whether a price outside the range of its reference is plausible after all.

        It is plausible if other providers confirm it. A high price is also plausible if its reference is the
        price of a single provider that no other provider confirms: otherwise one absurdly low price could
        discredit an honest one.
        """
        usd, author, is_lone = offer.usd_per_gpu_hour, self._author(offer), reference.providers == 1
        # The single provider always confirms its own price.
        if is_lone and usd > reference.high and len(self._confirmed_by(offer, author, reference.usd)) < 2:
            return True
        by_itself = reference.providers == 0  # compared with the provider's own prices
        return reference.is_contestable and bool(self._confirmed_by(offer, author, usd, same_kind=by_itself))

    def _find_reference(
        self, gpu_key: str, pricing: Pricing, kind: str, author: _Author
    ) -> ReferencePrice | None:
        """Return the reference price from other providers of the same GPU; None if there is none.

        It is the median of the prices of the same kind and pricing, else of the same pricing, else of all.
        For a third-party table, prices in other tables come first.
        """
        for origin in dict.fromkeys((author.origin, 0)):
            for loosened in range(len(_LOOSENED)):
                prices = self._price_by_provider(gpu_key, pricing, kind == "marketplace", loosened, origin)
                others = [usd for provider, usd in prices.items() if provider != author.provider]
                if others:
                    return _reference_of_others(others, loosened)
        return None

    def _find_prices(
        self, gpu_key: str, pricing: Pricing, is_host: bool, loosened: int, origin: int
    ) -> dict[int, float]:
        asks = self._asks(*_variants_of(gpu_key))
        paid = asks.pricing == self._pricing_codes[pricing]
        scope = (paid & (asks.is_host == is_host), paid, np.ones(len(paid), dtype=bool))[loosened]
        is_another_author = (origin == 0) | (asks.origin != origin)
        return _price_by_provider(asks, scope & is_another_author)

    def _find_least(self, gpu_key: str, pricing: Pricing, author: _Author) -> dict[int, float]:
        # Return a provider's lowest price per GPU-hour by number of GPUs, in ascending order.
        asks = self._asks(gpu_key)
        own = (asks.provider == author.provider) & (asks.origin == author.origin)
        own &= asks.pricing == self._pricing_codes[pricing]
        return {int(n): float(asks.usd[own & (asks.gpus == n)].min()) for n in np.unique(asks.gpus[own])}

    def _is_independent(self, asks: _Asks, author: _Author) -> Flags:
        # Return which prices can confirm this author's: those of another provider in another table. Shipped
        # prices can also confirm each other, because no table has the code -1.
        is_another: Flags = (asks.provider != author.provider) & (asks.origin != (author.origin or -1))
        return is_another

    def _confirmed_by(
        self, offer: Offer, author: _Author, usd: float, *, same_kind: bool = False
    ) -> set[int]:
        """Return the providers that confirm a price, including those that leave the form factor open.

        With ``same_kind``, only hosts confirm a host's price, and only companies a company's.
        """
        asks = self._asks(*_variants_of(offer.gpu_key, or_ambiguous=True))
        paid = [self._pricing_codes[each] for each in (offer.pricing, Pricing.ON_DEMAND)]
        near = (asks.usd >= usd / _WITNESS_RATIO) & (asks.usd <= usd * _WITNESS_RATIO)
        near &= ((asks.pricing == paid[0]) | (asks.pricing == paid[1])) & self._is_independent(asks, author)
        if same_kind:
            near &= asks.is_host == (offer.kind == "marketplace")
        return set(asks.provider[near].tolist())

    @cached_property
    def _least_usd_per_byte(self) -> float | None:
        # The lowest price per unit of bandwidth among GPUs that several shipped providers sell.
        found = []
        for gpu_key in self._rows:
            spec, asks = load_specs().get(gpu_key), self._asks(gpu_key)
            shipped = (asks.pricing == self._pricing_codes[Pricing.ON_DEMAND]) & (asks.origin == 0)
            prices = _price_by_provider(asks, shipped).values()
            if spec is not None and spec.memory_bandwidth_bytes_per_s and len(prices) > 1:
                found.append(median(prices) / spec.memory_bandwidth_bytes_per_s)
        return min(found, default=None)


@cache
def _variants_of(gpu_key: str, *, or_ambiguous: bool = False) -> tuple[str, ...]:
    # Return a GPU key with the variants that it can mean, and on request the ambiguous keys that can mean it.
    spec = load_specs().get(gpu_key)
    ambiguous = (key for key, each in load_specs().items() if or_ambiguous and gpu_key in each.variants)
    return (gpu_key, *(spec.variants if spec else ()), *ambiguous)


def _price_by_provider(asks: _Asks, which: Flags) -> dict[int, float]:
    # Return the median price of each provider [USD per GPU-hour].
    providers, usd = asks.provider[which], asks.usd[which]
    return {each: median(usd[providers == each].tolist()) for each in np.unique(providers).tolist()}


def _reference_of_others(prices: list[float], loosened: int) -> ReferencePrice:
    n, how, usd = len(prices), _LOOSENED[loosened], median(prices)
    who = f"the median of {count(n, 'other provider')}" if n > 1 else "what the only other provider asks"
    short = "what 1 other asks" if n == 1 else f"what {n} others ask"
    unconfirmed = f", and no second provider is within {_WITNESS_RATIO:g}x of it"
    low, high = usd / MAX_RATIO / LOOSENING**loosened, math.inf if loosened else usd * MAX_RATIO
    return ReferencePrice(usd, f"{who}{how}", short, low, high, unconfirmed, is_contestable=True, providers=n)


def _reference_of_hosts(hosts: int, usd: float) -> ReferencePrice:
    words = f"the median of the {hosts} hosts there"
    return ReferencePrice(usd, words, words, usd / MAX_RATIO if hosts >= _FEWEST_ASKS else 0.0)


def _is_never_hourly(offer: Offer, reference: ReferencePrice) -> bool:
    return offer.usd_per_gpu_hour > _NEVER_HOURLY_RATIO * reference.usd


def _times(offer: Offer, reference: ReferencePrice) -> str:
    return f"{format_number(offer.usd_per_gpu_hour / reference.usd, 2)} times {reference.short_words}"


def set_aside_jumps(
    fresh: OfferTable, known: Iterable[Offer], *, accept: bool = False
) -> tuple[OfferTable, frozenset[OfferKey]]:
    """Set aside offers with a price jump since the last known price.

    Args:
        fresh: New offers.
        known: Previously known offers; historic ones are ignored.
        accept: Whether to keep jumps too.

    Returns:
        The plausible offers, and the identities of offers with a price jump.
    """
    before = {offer_key(offer): offer for offer in known if offer.kind != "historic"}
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
                f"{last.price_date}; the old price is kept (accept-outliers accepts the new one)"
            )
            jumps[offer_key(offer)] = SetAside(name_of(offer), reason)
    kept = tuple(offer for offer in fresh.offers if offer_key(offer) not in jumps)
    set_aside = (*fresh.set_aside, *jumps.values())
    return msgspec.structs.replace(fresh, offers=kept, set_aside=set_aside), frozenset(jumps)


def name_of(offer: Offer) -> str:
    """Return provider, instance and region, safe to print."""
    return plain(full_name(offer), 80)
