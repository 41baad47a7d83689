"""Time and money: pure formulas over numbers or arrays, in hours and US dollars, with worked examples.

Here a price is a number; ``prices`` has the expected price and its uncertainty.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from gpubench.arrays import Floats
from gpubench.offers.dates import HOURS_PER_YEAR

Figure = TypeVar("Figure", float, Floats)

SECONDS_PER_HOUR = 3600.0
SECOND_IN_HOURS = 1 / 3600
HOURS_PER_MONTH = HOURS_PER_YEAR / 12
MINUTES_PER_HOUR = 60.0

_ROUNDING = 1e-9
"""Tolerance in hours: 2.0000000001 hours are billed as 2."""


def samples_per_usd(samples_per_s: Figure, usd_per_hour: Figure) -> Figure:
    """Return the samples per dollar: 3600 x samples/s / price.

    1,000 samples/s at 2.50 USD/h are 3600 x 1000 / 2.50 = 1,440,000 samples for a dollar.
    """
    return SECONDS_PER_HOUR * samples_per_s / usd_per_hour


def train_hours(samples: float, samples_per_s: Figure) -> Figure:
    """Return the hours of work: samples / (rate x 3600).

    90 epochs of 1.281 M images at 3,000/s are 115.29e6 / (3000 x 3600) = 10.675 h.
    """
    return samples / (samples_per_s * SECONDS_PER_HOUR)


def delivered_share(lost_share: Figure) -> Figure:
    """Return the share of its throughput that an instance keeps: 1 / (1 + lost share).

    If interruptions repeat 20 % of the work, 10 h of work take 12 h: 1 / 1.2 = 0.833.
    """
    return 1 / (1 + lost_share)


USUAL_HOURS_BETWEEN = 24.0
"""Time between interruptions of a spot machine, assumed: no source states a rate for today's GPUs [h]."""
CHECKPOINT_HOURS, RESTART_HOURS = 1 / 60, 5 / 60
"""Time to write a checkpoint, and to resume at the same step on another machine, assumed."""


HOST_HOURS_BETWEEN = 168.0
"""Time between failures of a private host, assumed: a week; no source states a rate [h]."""


def checkpoint_interval_hours(interruptions_per_hour: float) -> float:
    """Return the time between checkpoints that loses the least: sqrt(2 x write / rate).

    With one interruption in 24 h and a minute to write: sqrt(2 / 60 x 24) = 0.894 h, 54 minutes.
    Source: Young 1974, doi 10.1145/361147.361115; Daly 2006, doi 10.1016/j.future.2004.11.016.
    """
    return math.sqrt(2 * CHECKPOINT_HOURS / interruptions_per_hour)


def lost_to_interruptions(interruptions_per_hour: float, restart_hours: float = RESTART_HOURS) -> float:
    """Return the share of work that interruptions cost: writing, repeating and waiting.

    1/60 / 0.894 for writing, and (0.894 / 2 + 5/60) / 24 for repeating and waiting: 0.0186 + 0.0221 = 0.0407.
    """
    interval = checkpoint_interval_hours(interruptions_per_hour)
    return CHECKPOINT_HOURS / interval + interruptions_per_hour * (interval / 2 + restart_hours)


def billed_hours(hours: Floats, granularity_hours: Floats) -> Floats:
    """Return the billed hours, rounded up to a multiple of the granularity.

    12.25 h billed by the hour are 13 h, billed by the quarter of an hour 12.25 h. Any positive time is at
    least one unit, even if it is below the rounding tolerance.
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
    usd = billed * usd_per_hour  # further steps are slow with a million draws and rarely needed
    if np.any(storage_usd_per_month):
        usd = usd + storage_usd_per_month * billed / HOURS_PER_MONTH
    if np.any(egress_usd):
        usd = usd + egress_usd
    return usd * (1 + tax) if tax else usd
