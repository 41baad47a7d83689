"""Time and money: pure formulas in hours and US dollars, the expected price, and the cost of tokens.

The formulas take numbers or arrays and have worked examples. Tables print the expected price, and sorting,
costs and budgets use it. It is the median of the drawn prices; the printed interval covers 90 % of them.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple, TypeVar

import numpy as np

from gpubench.arrays import Floats, Indices
from gpubench.draws import normals
from gpubench.interval import Interval
from gpubench.labels import HOST_LISTING
from gpubench.models import Asks, Estimate, Offer, Pricing, Row
from gpubench.offers.dates import DAYS_PER_YEAR, HOURS_PER_YEAR, USUAL_DRIFT, age_days
from gpubench.offers.table import (
    ASKS_HALF_LIFE_DAYS,
    LEAST_ASK_SPREAD,
    SETS_ITS_PRICES,
    SPOT_SPREAD,
    AskKey,
    Column,
    Offers,
    kinds_of,
    spread_of,
)
from gpubench.profile import known_profile
from gpubench.stats import Z90

Figure = TypeVar("Figure", float, Floats)

SECONDS_PER_HOUR = 3600.0
SECOND_IN_HOURS = 1 / 3600
HOURS_PER_MONTH = HOURS_PER_YEAR / 12
MINUTES_PER_HOUR = 60.0

# Tolerance in hours: 2.0000000001 hours are billed as 2.
_ROUNDING = 1e-9


def samples_per_usd(samples_per_s: Figure, usd_per_hour: Figure) -> Figure:
    """Return the samples per dollar: 3600 x samples/s / price.

    1,000 samples/s at 2.50 USD/h are 3600 x 1000 / 2.50 = 1,440,000 samples per dollar.
    """
    return SECONDS_PER_HOUR * samples_per_s / usd_per_hour


def train_hours(samples: float, samples_per_s: Figure) -> Figure:
    """Return the hours of work: samples / (rate x 3600).

    90 epochs of 1.281 M images at 3,000/s take 115.29e6 / (3000 x 3600) = 10.675 h.
    """
    return samples / (samples_per_s * SECONDS_PER_HOUR)


def delivered_share(lost_share: Figure) -> Figure:
    """Return the share of its throughput that an instance keeps: 1 / (1 + lost share).

    If interruptions repeat 20 % of the work, 10 h of work take 12 h: 1 / 1.2 = 0.833.
    """
    return 1 / (1 + lost_share)


USUAL_HOURS_BETWEEN = 24.0
"""Assumed time between interruptions of a spot machine [h]; no source states a rate for today's GPUs."""
# Assumed times to write a checkpoint, and to resume at the same step on another machine.
_CHECKPOINT_HOURS, _RESTART_HOURS = 1 / 60, 5 / 60


HOST_HOURS_BETWEEN = 168.0
"""Assumed time between failures of a private host [h]: a week; no source states a rate."""


def checkpoint_interval_hours(interruptions_per_hour: float) -> float:
    """Return the time between checkpoints that loses the least work: sqrt(2 x write time / rate).

    With one interruption in 24 h and a minute to write: sqrt(2 / 60 x 24) = 0.894 h, 54 minutes.
    Source: Young 1974, doi 10.1145/361147.361115; Daly 2006, doi 10.1016/j.future.2004.11.016.
    """
    return math.sqrt(2 * _CHECKPOINT_HOURS / interruptions_per_hour)


def lost_to_interruptions(interruptions_per_hour: float, restart_hours: float = _RESTART_HOURS) -> float:
    """Return the share of work that interruptions cost: writing checkpoints, repeating work and waiting.

    For one interruption in 24 h, 1/60 / 0.894 for writing and (0.894 / 2 + 5/60) / 24 for repeating and
    waiting: 0.0186 + 0.0221 = 0.0407.
    """
    interval = checkpoint_interval_hours(interruptions_per_hour)
    return _CHECKPOINT_HOURS / interval + interruptions_per_hour * (interval / 2 + restart_hours)


def billed_hours(hours: Floats, granularity_hours: Floats) -> Floats:
    """Return the billed hours, rounded up to a multiple of the granularity.

    12.25 h are 13 h if billed by the hour, and 12.25 h if billed by the quarter hour. Any positive time
    is at least one unit, even if it is below the rounding tolerance.
    """
    units = np.ceil((hours - _ROUNDING) / granularity_hours)
    return np.asarray(np.maximum(units, hours > 0) * granularity_hours)


def job_cost(
    billed: Floats,
    usd_per_hour: Floats,
    storage_usd_per_month: Figure,
    egress_usd: Figure,
    tax: float,
) -> Floats:
    """Return what a job costs: (billed x price + storage x billed / 730 + egress) x (1 + tax).

    13 h at 2.00 USD/h, 73 USD of storage a month, 5 USD of egress, 20 % tax:
    (26 + 73 x 13 / 730 + 5) x 1.2 = (26 + 1.3 + 5) x 1.2 = 38.76 USD.
    """
    usd = billed * usd_per_hour  # the other terms are usually zero, and slow with a million draws
    if np.any(storage_usd_per_month):
        usd = usd + storage_usd_per_month * billed / HOURS_PER_MONTH
    if np.any(egress_usd):
        usd = usd + egress_usd
    return usd * (1 + tax) if tax else usd


# --- the expected price ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Market:
    """What the expected prices depend on.

    Attributes:
        today: The day as of which price ages are computed.
        asks: The asking prices of hosts, by GPU and pricing.
        drift: Standard deviation of the logarithm of a list price, or of a card's price, after a year.
        card_share: For hardware to own, the share of the cost of a useful hour that is proportional to the
            price of the cards; 0 for a price that the buyer quoted, which is certain.
    """

    today: date
    asks: Mapping[AskKey, Asks]
    drift: float = USUAL_DRIFT
    card_share: Mapping[Offer, float] = field(default_factory=dict)


def ask_words(asks: Asks | None) -> str:
    """Describe a host's asking price: "one of 10 listings", or "one host's listing" if it is the only one."""
    return (
        f"one {HOST_LISTING}" if asks is None or asks.ask_count < 2 else f"one of {asks.ask_count} listings"
    )


@dataclass(frozen=True, slots=True)
class Prices:
    """Columns over N offers [USD/h of the instance].

    Attributes:
        expected: The expected price; the actual price is as likely to be above it as below it.
        sigma: Standard deviation of the logarithm of the price.
        group: The group of each price. A provider sets all its prices of a GPU, so these form a group and
            move together. Each host's listing is a separate group.
        names: Maps a group to its name, which seeds its draws: they do not depend on other groups.
    """

    expected: Floats
    sigma: Floats
    group: Indices
    names: Callable[[int], tuple[str, ...]]

    @property
    def half_width(self) -> Floats:
        """Half the width of the 90 % interval of the price's logarithm."""
        return Z90 * self.sigma


def prices_of(offers: Iterable[Offer], market: Market) -> Prices:
    """Return the expected price of each offer; the price of quoted hardware is certain.

    If the price of a card moves, the cost of all hardware with that card moves, in proportion to the cards'
    share of that cost.
    """
    every = Offers.of(offers)
    expected = every.price.copy()
    days = every.price_date.figures(lambda day: age_days(day, market.today))
    drifting_share = np.where(every.is_owned, 0.0, 1.0)
    for row in np.flatnonzero(every.is_owned).tolist():
        drifting_share[row] = market.card_share.get(every[row], 0.0)
    sigma = drifting_share * market.drift * np.sqrt(days / DAYS_PER_YEAR)
    hosts = every.kind.equals("marketplace") & (every.price > 0)
    hosts &= ~every.provider.is_in(SETS_ITS_PRICES.__contains__)
    for row in np.flatnonzero(hosts).tolist():
        offer = every[row]
        if (asks := market.asks.get((offer.gpu_key, offer.pricing))) is not None:
            listed = float(offer.price_usd_per_hour)
            expected[row], sigma[row] = _listing_price(listed, offer.gpu_count, asks, float(days[row]))
    sigma[hosts] = np.maximum(sigma[hosts], LEAST_ASK_SPREAD)
    spot = every.pricing.equals(Pricing.SPOT) & ~hosts
    kept = 0.5 ** (days[spot] / ASKS_HALF_LIFE_DAYS)  # as in ``_listing_price``
    sigma[spot] = np.maximum(sigma[spot], SPOT_SPREAD * np.sqrt(1 - kept**2))
    # A number for each listing, 0 for other prices.
    listing = np.where(hosts, np.arange(1, len(every) + 1), 0)
    numbered = Column(listing, range(len(every) + 1))
    groups = kinds_of(every.provider, every.gpu_key, every.pricing, numbered)

    def name(group: int) -> tuple[str, ...]:
        *named, number = groups.values[group]
        if number:  # distinguishes a host's listing from the provider's other listings of this GPU
            o = every[number - 1]
            named += (o.instance, o.region, o.gpu_count, o.price_usd_per_hour, o.price_date)
        return tuple(map(str, named))

    return Prices(expected, sigma, groups.codes, name)


class DrawnPrices(NamedTuple):
    """The price of N rows in every joint draw, computed for a few rows at a time to save memory.

    Attributes:
        expected: (N,) expected price of the instance [USD/h].
        moves: (M, D) factors on the price; rows of one group with the same uncertainty share a factor.
        which: (N,) the row of ``moves`` that applies to each price.
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
    kinds = np.stack([np.where(sigma == 0, -1.0, groups), sigma], axis=1)  # certain prices have no group
    _, first, which = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    moves = np.ones((len(first), draws))
    group = None  # the kinds are sorted, so rows of one group follow each other
    for move, (its_group, its_sigma) in zip(moves, kinds[first].tolist(), strict=True):
        if not its_sigma:
            continue
        if its_group != group:
            group = its_group
            walk = normals(draws, seed, "price", *prices.names(int(group)))
        np.exp(walk * its_sigma, out=move)
    return DrawnPrices(prices.expected[rows], moves, which.reshape(-1))


def _listing_price(usd_per_hour: float, gpu_count: int, asks: Asks, days: float) -> tuple[float, float]:
    """Return the expected price for a listing of this age [USD/h of the instance], and its sigma.

    With each half-life, the logarithm of the price moves halfway to the median of all hosts, and its spread
    grows toward that of all hosts. Example: after one half-life, a price of 0.20 is expected at
    sqrt(0.20 x 0.40) = 0.283 if the median is 0.40. If there are few hosts, even a fresh price is shifted
    toward that median, by the weight that the clouds' prices have in it.
    """
    kept = asks.own_weight * 0.5 ** (days / ASKS_HALF_LIFE_DAYS)
    middle = math.log(asks.median_usd_per_hour * gpu_count)
    listed = math.log(usd_per_hour)
    return math.exp(middle + (listed - middle) * kept), spread_of(asks) * math.sqrt(1 - kept**2)


# --- tokens ---------------------------------------------------------------------------------------------

MILLION = 1e6


class GenerationTimes(NamedTuple):
    """The times of one static batch, predicted or measured.

    Attributes:
        first_token_s: Time to the first token.
        per_token_s: Time of each token after the first.
    """

    first_token_s: Interval
    per_token_s: Interval


def generation_times(estimate: Estimate) -> GenerationTimes | None:
    """Return the times of a generation, or None for other work.

    If the generation was measured, both times have the relative error of its total time.
    """
    case, per_token_s = estimate.case, estimate.per_token_s
    if case.new_tokens == 0 or per_token_s.value is None:
        return None
    if estimate.first_token_s is not None:
        return GenerationTimes(
            first_token_s=_measured(estimate, estimate.first_token_s),
            per_token_s=_measured(estimate, per_token_s.value),
        )
    rest = case.new_tokens - 1
    rates = (estimate.samples_per_s, estimate.high, estimate.low)
    tokens_s = (per_token_s.value, per_token_s.low, per_token_s.high)
    first = (
        None if rate is None or token_s is None else case.batch_size / rate - rest * token_s
        for rate, token_s in zip(rates, tokens_s, strict=True)
    )
    return GenerationTimes(first_token_s=Interval(*first), per_token_s=per_token_s)


def _measured(estimate: Estimate, seconds: float) -> Interval:
    # Return a measured time with the relative interval of the whole generation.
    ends = (estimate.high, estimate.low)
    return Interval(
        seconds, *(None if end is None else seconds * estimate.samples_per_s / end for end in ends)
    )


def token_cost(row: Row) -> Interval | None:
    """Return the cost of a million tokens [USD]; for generation, of generated tokens. None if unknown."""
    return next(reversed(token_costs(row).values()), None)


def token_costs(row: Row) -> dict[str, Interval]:
    """Return the cost of a million tokens on an offer [USD] by kind of token; empty if unknown.

    The cost of training follows from the throughput of the whole instance. The cost of generation is that of
    one static batch on each GPU; a server with continuous batching has other costs.
    """
    case = row.estimate.case
    profile = known_profile(case.workload)
    if row.parts or profile is None or not profile.tokens_per_sample:
        return {}
    times = generation_times(row.estimate)
    if times is not None:
        usd_per_s = row.usd_per_hour.each(lambda usd: usd / row.offer.gpu_count / SECONDS_PER_HOUR)

        def cost(time: Interval, tokens: int) -> Interval:
            return time.times(usd_per_s).each(lambda usd: MILLION * usd / tokens)

        return {
            "prefill": cost(times.first_token_s, case.batch_size * case.prompt_tokens),
            "decode": cost(times.per_token_s, case.batch_size),
        }
    if case.new_tokens:
        return {}
    samples = MILLION / (case.context_tokens or profile.tokens_per_sample)

    def usd_at(samples_per_usd: float | None) -> float | None:
        return samples / samples_per_usd if samples_per_usd else None

    per_usd = row.samples_per_usd
    usd = Interval(*map(usd_at, (per_usd.value, per_usd.high, per_usd.low)))
    return {"training": usd} if case.task == "train" else {"forward pass": usd}
