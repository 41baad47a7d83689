"""The age of a price, and how far the listed price may be from the price paid.

A date may be only a year or a month. A list price is certain on its date; after that its logarithm follows a
random walk with a step fitted to the table's own history of replaced prices. An ask on a marketplace belongs
to one host at one moment: it may be gone tomorrow, and then another host's ask counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from statistics import fmean, median
from typing import NamedTuple, TypeAlias

from gpubench.models import Asks, Offer, Pricing
from gpubench.models.catalog import Seller
from gpubench.stats import Z90
from gpubench.units import count

STALE_AFTER_DAYS = 30
"""Older prices are marked: within six weeks of 2026, cloud prices moved by 15 %, street prices by 38 %."""

NOT_CURRENT_AFTER_DAYS = 180
"""Age from which a price is not called current."""

_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?", re.ASCII)


# --- age -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def price_day(price_date: str) -> date:
    """Return the oldest day that a full or partial date can mean.

    >>> price_day("2026"), price_day("2026-08"), price_day("2026-08-14")
    (datetime.date(2026, 1, 1), datetime.date(2026, 8, 1), datetime.date(2026, 8, 14))

    Raises:
        ValueError: If it is not YYYY, YYYY-MM or YYYY-MM-DD, or not a calendar day.
    """
    parts = _DATE.fullmatch(price_date)
    if parts is None:
        raise ValueError(f"price date {price_date[:40]!r} is not YYYY, YYYY-MM or YYYY-MM-DD")
    year, month, day = parts.groups()
    try:
        return date(int(year), int(month or 1), int(day or 1))
    except ValueError:
        raise ValueError(f"price date {price_date!r} is not a day of the calendar") from None


def age_days(price_date: str, today: date) -> int:
    """Return the age of a date [days], 0 for a future date; a partial date counts as its oldest day."""
    return max(0, (today - price_day(price_date)).days)


def has_day(price_date: str) -> bool:
    """Return whether a date includes the day, not only a month or a year."""
    return len(price_date) == len("2026-08-14")


def show_price_date(price_date: str) -> str:
    """Return the date in words; a partial date says what is missing.

    >>> show_price_date("2026"), show_price_date("2026-08"), show_price_date("2026-08-14")
    ('2026, day unknown', '2026-08, day unknown', '2026-08-14')
    """
    return price_date if has_day(price_date) else f"{price_date}, day unknown"


def dated(price_date: str, age_days: int | None) -> str:
    """Return a date and its age, which is an upper limit for a partial date.

    >>> dated("2026-08-14", 98), dated("2026-08", 111), dated("2026-08-14", None)
    ('2026-08-14, 98 days old', '2026-08, up to 111 days old', '2026-08-14')
    """
    if age_days is None:
        return price_date
    limit = "" if has_day(price_date) else "up to "
    return f"{price_date}, {limit}{count(age_days, 'day')} old"


def freshness(age_days: int) -> str:
    """Return ``current``, ``stale`` (over 30 days) or ``not current`` (over 180 days)."""
    if age_days > NOT_CURRENT_AFTER_DAYS:
        return "not current"
    return "stale" if age_days > STALE_AFTER_DAYS else "current"


# --- drift of list prices --------------------------------------------------------------------------------

USUAL_DRIFT = 0.27
"""Standard deviation of the logarithm of a list price after a year, from eight prices with two dates (2024
to 2026): five moved (AWS p5 and p4d down by 44 and 33 %, Lambda H100 and B200 up by 33 and 34 %, Verda H100
up by 15 % in six weeks), three did not (AWS p3 twice, Paperspace A4000)."""
USUAL_CHANGES = 8

DAYS_PER_YEAR = 365.25
HOURS_PER_YEAR = 8760.0
"""Hours in a year of 365 days, as used for terms and lifetimes."""


class PriceChange(NamedTuple):
    """The change of one list price between two dates; ``log_ratio`` is 0 for no change."""

    log_ratio: float
    years: float


def change_of(old: Offer, new: Offer) -> PriceChange | None:
    """Return the change of a list price from one table to the next.

    None for asks, for floors, and within one day.
    """
    if new.kind == "marketplace" or old.kind != new.kind or old.is_floor or new.is_floor:
        return None
    days = (price_day(new.price_date) - price_day(old.price_date)).days
    if days <= 0 or old.usd_per_gpu_hour <= 0 or new.usd_per_gpu_hour <= 0:
        return None
    return PriceChange(math.log(new.usd_per_gpu_hour / old.usd_per_gpu_hour), days / DAYS_PER_YEAR)


def drift_of(changes: Iterable[PriceChange]) -> float:
    """Return the standard deviation of the logarithm of a list price after a year.

    The table's own history is weighted by its number of observations, and the usual drift by eight. A price
    that stayed the same for a year counts as much as one that moved.
    """
    known = list(changes)
    variance = sum(change.log_ratio**2 / change.years for change in known)
    return math.sqrt((variance + USUAL_CHANGES * USUAL_DRIFT**2) / (len(known) + USUAL_CHANGES))


# --- asks of marketplaces --------------------------------------------------------------------------------

ASKS_HALF_LIFE_DAYS = 30.0
"""Half-life of an ask [days], assumed: nobody publishes how long hosts keep an offer."""

USUAL_ASK_SPREAD = 0.33
"""Standard deviation of the logarithm of asks for one GPU, over the 27 GPUs of the shipped asks of 2026."""
LEAST_ASK_SPREAD = USUAL_ASK_SPREAD / 2
"""Standard deviation of the logarithm of the price paid for a fresh ask, assumed: the host may be gone, or
not good enough, and then the next one counts."""
USUAL_ASKS = 3
"""The number of asks that weighs as much as the usual spread."""
ASK_TO_LIST: Mapping[Seller, float] = {"community": 0.56, "secure": 0.9}
"""The ask of a kind of host over the median list price of clouds for the same GPU: median of the 23
GPUs with two asks or more since 2026-07 in the shipped tables; for vetted hosts from RunPod's two prices."""
MARKET_ASKS = 0.5
"""The number of asks that weighs as much as the price suggested by clouds: asks for one GPU spread by 0.33,
and their medians by 0.45 around that price, in the logarithm; 0.33^2 / 0.45^2."""


SETS_ITS_PRICES = frozenset({"runpod"})
"""Marketplaces with one price per GPU for all hosts, which behaves like a list price: of 14 pairs of RunPod's
dated prices in the shipped tables, 2 to 61 days apart, none moved."""

SPOT_SPREAD = 0.38
"""Standard deviation of the logarithm of spot prices of one provider for one GPU, over the shipped tables:
the uncertainty of a very old price. It is approached by halves, as for an ask."""


AskKey: TypeAlias = tuple[str, Pricing]


def asks_of(offers: Iterable[Offer]) -> Mapping[AskKey, Asks]:
    """Return the asks of marketplace hosts, by GPU and pricing.

    The number and median of hosts from a source count too. The median of few asks is shrunk toward the price
    that cloud list prices suggest.

    Args:
        offers: Asks, and the list prices of clouds, if any.
    """
    import numpy as np  # imported here because `gpubench list` needs only a day

    from gpubench.offers.columns import Offers, kinds_of

    every = Offers.of(offers)
    sold, is_index = every.usd_per_gpu_hour > 0, every.kind.equals("index")
    of_asks = every.kind.equals("marketplace") | (is_index & ~every.column("ask_count").equals(None))
    found: dict[AskKey, list[Offer]] = {}
    for offer in every.where(sold & of_asks):
        found.setdefault((offer.gpu_key, offer.pricing), []).append(offer)
    clouds = every.where(sold & ~of_asks & ~is_index & every.column("seller").equals("cloud"))
    kinds = kinds_of(clouds.gpu_key, clouds.pricing, clouds.provider)
    usd = clouds.usd_per_gpu_hour[np.argsort(kinds.codes, kind="stable")]
    of_kinds = np.split(usd, np.cumsum(np.bincount(kinds.codes))[:-1])
    by_provider: dict[AskKey, list[float]] = {}
    for (gpu_key, pricing, _), prices in zip(kinds.values, of_kinds, strict=False):  # none where none is
        by_provider.setdefault((gpu_key, pricing), []).append(float(np.median(prices)))
    listed = {key: median(each) for key, each in by_provider.items()}
    return {key: _asks(each, listed.get(key)) for key, each in found.items()}


def _asks(offers: list[Offer], list_usd: float | None) -> Asks:
    """Return the distribution of asks.

    The ends come from the spread, shrunk toward the usual spread if asks are few.

    For one ask of 0.20 with clouds at 1.00, its own weight is 1 of 1.5, so the middle is 0.20^(2/3) times
    0.56^(1/3) = 0.282.
    """
    logs: list[float] = []
    for offer in offers:
        logs.append(math.log(offer.usd_per_gpu_hour))
        middle_usd = offer.ask_median_usd_per_hour
        if middle_usd is not None and (offer.ask_count or 0) >= 2 and middle_usd != offer.price_usd_per_hour:
            logs.append(math.log(float(middle_usd) / offer.gpu_count))
    mean = fmean(logs)
    variance = sum((each - mean) ** 2 for each in logs) + USUAL_ASKS * USUAL_ASK_SPREAD**2
    spread = math.sqrt(variance / (len(logs) - 1 + USUAL_ASKS))
    middle, ask_count = median(logs), sum(offer.ask_count or 1 for offer in offers)
    own_weight = 1.0
    if list_usd is not None:
        ratios = (ASK_TO_LIST["secure" if offer.seller == "secure" else "community"] for offer in offers)
        suggested = math.log(list_usd) + fmean(map(math.log, ratios))
        own_weight = ask_count / (ask_count + MARKET_ASKS)
        middle = own_weight * middle + (1 - own_weight) * suggested
    low, high = (math.exp(middle + side * Z90 * spread) for side in (-1, 1))
    return Asks(
        median_usd_per_hour=math.exp(middle),
        low_usd_per_hour=low,
        high_usd_per_hour=high,
        ask_count=ask_count,
        provider_count=len({offer.provider for offer in offers}),
        own_weight=own_weight,
    )


def spread_of(asks: Asks) -> float:
    """Return the standard deviation of the logarithm of asks."""
    return math.log(asks.high_usd_per_hour / asks.low_usd_per_hour) / 2 / Z90
