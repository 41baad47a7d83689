"""Published figures for a card and a standard workload, to compare with an answer."""

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
        software: The software and, if stated, its source of data.
    """

    workload: str
    gpu_key: str
    math: str
    batch_size: int
    samples_per_s: float
    software: str
    source: str

    def words(self, sample_unit: str) -> str:
        """Return the rate and its description in words."""
        rate = f"{format_number(self.samples_per_s)} {per_second(sample_unit)}"
        return f"{rate} published at batch {self.batch_size:,} ({plain(self.software, 80)})"


@cache
def _readings() -> dict[tuple[str, str, str], CardReading]:
    return {(row.workload, row.gpu_key, row.math): row for row in data_table(READINGS_FILE, CardReading)}


def reading_of(workload: str, gpu_key: str, precision: Precision) -> CardReading | None:
    """Return the published figure for a workload on a card at a precision; None if there is none."""
    math = "amp" if precision.is_amp else str(precision)
    return _readings().get((workload, gpu_key, math))


def within(predicted: Interval, reading: CardReading) -> Interval:
    """Return an interval widened to include a reading; an interval without ends is unchanged."""
    if predicted.low is None or predicted.high is None:
        return predicted
    rate = reading.samples_per_s
    return Interval(predicted.value, min(predicted.low, rate), max(predicted.high, rate))
