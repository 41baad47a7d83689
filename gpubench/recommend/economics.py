"""Time and money: pure formulas over numbers or arrays. Hours and US dollars; each has a worked example."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Figure = TypeVar("Figure", float, NDArray[np.float64])

SECONDS_PER_HOUR = 3600.0
HOURS_PER_YEAR = 8760.0


def samples_per_usd(samples_per_s: Figure, price_usd_per_hour: Figure) -> Figure:
    """Return what a dollar buys: 3600 x samples/s / price.

    1,000 samples/s at 2.50 USD/h are 3600 x 1000 / 2.50 = 1,440,000 samples for a dollar.
    """
    return SECONDS_PER_HOUR * samples_per_s / price_usd_per_hour


def usd_per_million_samples(samples_per_dollar: Figure) -> Figure:
    """Return the price of a million samples: 1e6 / 1,440,000 = 0.694 USD."""
    return 1e6 / samples_per_dollar


def train_hours(samples: float, samples_per_s: Figure) -> Figure:
    """Return the hours of work: samples / (rate x 3600).

    90 epochs of 1.281 M images at 3,000/s are 115.29e6 / (3000 x 3600) = 10.675 h.
    """
    return samples / (samples_per_s * SECONDS_PER_HOUR)
