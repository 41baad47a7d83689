"""Prices as they may be when they are paid: drawn from their age, and of marketplaces from all asks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from gpubench.arrays import Floats, Indices
from gpubench.models import Asks, Offer, Pricing
from gpubench.offers.dates import age_days
from gpubench.offers.moves import (
    ASKS_HALF_LIFE_DAYS,
    DAYS_PER_YEAR,
    USUAL_DRIFT,
    AskKey,
    spread_of,
)

_AT_ONCE = 200
"""Groups whose walks are drawn together: what they take stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Market:
    """What is known of how prices move.

    Attributes:
        today: The day that ages count to.
        asks: What hosts ask for each GPU.
        drift: Standard deviation of the logarithm of a list price after a year.
    """

    today: date
    asks: Mapping[AskKey, Asks]
    drift: float = USUAL_DRIFT


@dataclass(frozen=True, slots=True)
class Prices:
    """Columns over N offers [USD/h of the instance].

    Attributes:
        sigma: Standard deviation of the logarithm of a list price since its date; 0 of an ask.
        group: Prices of one group move together: one hand sets a provider's prices of a GPU.
        group_count: How many groups there are.
        stands: Probability that the price is still the one listed; below 1 of asks alone.
        other_log: Where it does not stand, logarithm of what the middle host asks.
        other_sigma: Standard deviation of the logarithm of what hosts ask.
    """

    listed: Floats
    sigma: Floats
    group: Indices
    group_count: int
    stands: Floats
    other_log: Floats
    other_sigma: Floats


def prices_of(offers: Sequence[Offer], market: Market) -> Prices:
    """Lay out what is known of each offer's price; owned hardware costs what it costs."""
    listed = np.array([float(offer.price_usd_per_hour) for offer in offers])
    groups: dict[tuple[str, str, Pricing], int] = {}
    group = np.array(
        [groups.setdefault((o.provider, o.gpu_key, o.pricing), len(groups)) for o in offers], dtype=np.int64
    )
    age_of = {day: age_days(day, market.today) for day in {offer.price_date for offer in offers}}
    days = np.array([age_of[offer.price_date] for offer in offers], dtype=float)
    sigma = market.drift * np.sqrt(days / DAYS_PER_YEAR)
    sigma[np.array([offer.pricing is Pricing.OWNED for offer in offers], dtype=bool)] = 0.0
    stands, other_log, other_sigma = np.ones(len(offers)), np.zeros(len(offers)), np.zeros(len(offers))
    for row, offer in enumerate(offers):
        if offer.kind != "marketplace":
            continue
        asks = market.asks.get((offer.gpu_key, offer.pricing))
        if asks is not None and offer.pricing is not Pricing.OWNED:
            sigma[row] = 0.0
            stands[row] = 0.5 ** (days[row] / ASKS_HALF_LIFE_DAYS)
            other_log[row] = math.log(asks.median_usd_per_hour * offer.gpu_count)
            other_sigma[row] = spread_of(asks)
    return Prices(listed, sigma, group, len(groups), stands, other_log, other_sigma)


def drawn_prices(prices: Prices, rows: Indices, draws: int, seed: int) -> Floats:
    """Return the (N, D) price of these rows in every joint draw [USD/h]."""
    random = np.random.default_rng((seed, 2))
    result = np.repeat(prices.listed[rows][:, None], draws, axis=1)
    drifting = np.flatnonzero(prices.sigma[rows])
    if len(drifting):
        group, sigma = prices.group[rows], prices.sigma[rows]
        by_group = drifting[np.argsort(group[drifting], kind="stable")]
        for start in range(0, prices.group_count, _AT_ONCE):
            count = min(_AT_ONCE, prices.group_count - start)
            walks = random.standard_normal((count, draws))
            ends = np.searchsorted(group[by_group], (start, start + count))
            for place in by_group[slice(*ends)].tolist():
                result[place] *= np.exp(walks[group[place] - start] * sigma[place])
    fleeting = np.flatnonzero(prices.stands[rows] < 1)
    if len(fleeting):
        chosen = rows[fleeting]
        gone = random.random((len(chosen), draws)) >= prices.stands[chosen][:, None]
        noise = random.standard_normal((len(chosen), draws)) * prices.other_sigma[chosen][:, None]
        others = np.exp(prices.other_log[chosen][:, None] + noise)
        result[fleeting] = np.where(gone, others, result[fleeting])
    return result
