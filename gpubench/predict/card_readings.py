"""What others published of a card and a workload of the package: held against what is told of it.

The figures are of other software, batches and data paths, so they move no prediction. One that lies outside
of an interval widens it that far, and each is said with its software.
"""

from __future__ import annotations

from functools import cache

import msgspec

from gpubench.folders import data_table
from gpubench.interval import Interval
from gpubench.models import Precision
from gpubench.units import format_number, per_second, plain

READINGS_FILE = "card_readings.csv"


class CardReading(msgspec.Struct, frozen=True, kw_only=True):
    """One published rate of training.

    Attributes:
        math: ``fp32``, ``tf32``, or ``amp`` for either of its types.
        software: With where the data came from, where that is stated.
    """

    workload: str
    gpu_key: str
    math: str
    batch_size: int
    samples_per_s: float
    software: str
    source: str

    def words(self, sample_unit: str) -> str:
        """Say the rate, and what it is of."""
        rate = f"{format_number(self.samples_per_s)} {per_second(sample_unit)}"
        return f"{rate} published at batch {self.batch_size:,} ({plain(self.software, 80)})"


@cache
def _readings() -> dict[tuple[str, str, str], CardReading]:
    return {(row.workload, row.gpu_key, row.math): row for row in data_table(READINGS_FILE, CardReading)}


def reading_of(workload: str, gpu_key: str, precision: Precision) -> CardReading | None:
    """Return what was published of a workload on a card at a precision; None if nothing was."""
    math = "amp" if precision.is_amp else str(precision)
    return _readings().get((workload, gpu_key, math))


def within(told: Interval, reading: CardReading) -> Interval:
    """Return an interval with the end moved out to a reading beyond it; one without ends as it is."""
    if told.low is None or told.high is None:
        return told
    rate = reading.samples_per_s
    return Interval(told.value, min(told.low, rate), max(told.high, rate))
