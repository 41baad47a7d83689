"""The price that a buyer should expect to pay, and its uncertainty: one model for every figure.

The expected price orders the rows, is printed, sets cost and budget, and is the median of the draws; the ends
of its interval hold nine tenths of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple

import numpy as np

from gpubench.arrays import Floats, Indices
from gpubench.draws import normals
from gpubench.labels import HOSTS_ASK
from gpubench.models import Asks, Offer, Pricing
from gpubench.offers.columns import Column, Offers, kinds_of
from gpubench.offers.dates import (
    ASKS_HALF_LIFE_DAYS,
    DAYS_PER_YEAR,
    LEAST_ASK_SPREAD,
    SETS_ITS_PRICES,
    SPOT_SPREAD,
    USUAL_DRIFT,
    AskKey,
    age_days,
    spread_of,
)
from gpubench.stats import Z90


@dataclass(frozen=True, slots=True)
class Market:
    """How prices move.

    Attributes:
        today: The day that ages count to.
        asks: The asks of hosts for each GPU.
        drift: Standard deviation of the logarithm of a list price after a year, and of a card's.
        card_share: For hardware to buy at a dated price, the share of the cost of a useful hour that follows
            the price of the cards. A price that the buyer quoted is certain and has no entry.
    """

    today: date
    asks: Mapping[AskKey, Asks]
    drift: float = USUAL_DRIFT
    card_share: Mapping[Offer, float] = field(default_factory=dict)


def ask_words(asks: Asks | None) -> str:
    """Return whose price a host's ask is: "one of 10 asks", or one host's alone."""
    return f"one {HOSTS_ASK}" if asks is None or asks.ask_count < 2 else f"one of {asks.ask_count} asks"


@dataclass(frozen=True, slots=True)
class Prices:
    """Columns over N offers [USD/h of the instance].

    Attributes:
        expected: The price to expect; the real one is as likely to be above it as below it.
        sigma: Standard deviation of its logarithm.
        group: Prices of one group move together, because a provider sets all its prices of a GPU. Each ask
            is a group of its own.
        names: Name of each group. It seeds the draws, which therefore do not depend on the other groups.
    """

    expected: Floats
    sigma: Floats
    group: Indices
    names: Callable[[int], tuple[str, ...]]

    @property
    def half_width(self) -> Floats:
        """Half the width of the 9-in-10 interval of the logarithm."""
        return Z90 * self.sigma


def prices_of(offers: Iterable[Offer], market: Market) -> Prices:
    """Return the expected price of each offer; the price of quoted hardware is certain.

    Card prices move together in every set of hardware, in proportion to the share of the cards in its cost.
    """
    every = Offers.of(offers)
    expected = every.price.copy()
    days = every.price_date.figures(lambda day: age_days(day, market.today))
    moving = np.where(every.is_owned, 0.0, 1.0)
    for row in np.flatnonzero(every.is_owned).tolist():
        moving[row] = market.card_share.get(every[row], 0.0)
    sigma = moving * market.drift * np.sqrt(days / DAYS_PER_YEAR)
    hosts = every.kind.equals("marketplace") & (every.price > 0)
    hosts &= ~every.provider.is_in(SETS_ITS_PRICES.__contains__)
    for row in np.flatnonzero(hosts).tolist():
        offer = every[row]
        if (asks := market.asks.get((offer.gpu_key, offer.pricing))) is not None:
            listed = float(offer.price_usd_per_hour)
            expected[row], sigma[row] = _ask(listed, offer.gpu_count, asks, float(days[row]))
    sigma[hosts] = np.maximum(sigma[hosts], LEAST_ASK_SPREAD)
    spot = every.pricing.equals(Pricing.SPOT) & ~hosts
    since_read = 1 - 0.25 ** (days[spot] / ASKS_HALF_LIFE_DAYS)
    sigma[spot] = np.maximum(sigma[spot], SPOT_SPREAD * np.sqrt(since_read))
    host = np.where(hosts, np.arange(1, len(every) + 1), 0)
    alone = Column(host, range(len(every) + 1))
    groups = kinds_of(every.provider, every.gpu_key, every.pricing, alone)

    def name(group: int) -> tuple[str, ...]:
        *named, ask = groups.values[group]
        if ask:  # distinguishes the ask of a host from others of this provider for the GPU
            o = every[ask - 1]
            named += (o.instance, o.region, o.gpu_count, o.price_usd_per_hour, o.price_date)
        return tuple(map(str, named))

    return Prices(expected, sigma, groups.codes, name)


class DrawnPrices(NamedTuple):
    """The price of N rows in every joint draw, a few rows at a time: 1,500 rows take 24 MB.

    Attributes:
        expected: (N,) of the instance [USD/h].
        moves: (M, D) factors; rows of one group with the same uncertainty share one.
        which: (N,) the row of each among the moves.
    """

    expected: Floats
    moves: Floats
    which: Indices

    def of(self, rows: slice) -> Floats:
        """Return the (n, D) prices of some rows [USD/h]."""
        return np.asarray(self.moves[self.which[rows]] * self.expected[rows][:, None])


def drawn_prices(prices: Prices, rows: Indices, draws: int, seed: int) -> DrawnPrices:
    """Draw the prices of these rows.

    The moves of a group do not depend on the other rows.
    """
    sigma, groups = prices.sigma[rows], prices.group[rows]
    kinds = np.stack([np.where(sigma == 0, -1.0, groups), sigma], axis=1)  # a certain price moves in no group
    _, first, which = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    moves = np.ones((len(first), draws))
    group = None
    for move, (its_group, its_sigma) in zip(moves, kinds[first].tolist(), strict=True):
        if not its_sigma:
            continue
        if its_group != group:
            group = its_group
            walk = normals(draws, seed, "price", *prices.names(int(group)))
        np.exp(walk * its_sigma, out=move)
    return DrawnPrices(prices.expected[rows], moves, which.reshape(-1))


def _ask(usd_per_hour: float, gpu_count: int, asks: Asks, days: float) -> tuple[float, float]:
    """Return the price to expect from an ask of this age, and its sigma.

    With each half-life, the logarithm of the ask moves halfway to the median of all asks, and its spread
    grows toward that of all asks. Example: after one half-life, an ask of 0.20 is expected at
    sqrt(0.20 x 0.40) = 0.283 if the median is 0.40. If there are few asks, even a fresh one is moved, by the
    weight of the clouds' prices.
    """
    kept = asks.own_weight * 0.5 ** (days / ASKS_HALF_LIFE_DAYS)
    middle = math.log(asks.median_usd_per_hour * gpu_count)
    listed = math.log(usd_per_hour)
    return math.exp(middle + (listed - middle) * kept), spread_of(asks) * math.sqrt(1 - kept**2)
