"""Published training rates of standard workloads on a card, to compare with predictions."""

from __future__ import annotations

from functools import cache

import msgspec

from gpubench.folders import data_table
from gpubench.interval import Interval
from gpubench.models import Precision
from gpubench.units import format_number, per_second, plain

READINGS_FILE = "card_readings.csv"


class CardReading(msgspec.Struct, frozen=True, kw_only=True):
    """One published training rate.

    Attributes:
        math: ``fp32``, ``tf32``, or ``amp`` for both kinds of AMP.
        software: The software and, if stated, where its training data came from.
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
    """Return the published rate of a workload on a card at a precision; None if there is none."""
    math = "amp" if precision.is_amp else str(precision)
    return _readings().get((workload, gpu_key, math))


# A batch size that differs by more than this factor may explain a different rate.
_FAR = 4


def within(predicted: Interval, reading: CardReading, batch_size: int) -> Interval:
    """Return an interval widened to include a reading; an interval without ends is unchanged.

    Throughput rises with the batch size. A faster rate at a far larger batch therefore does not contradict
    the prediction, nor does a slower rate at a far smaller one. Neither widens the interval.

    Args:
        predicted: The prediction at ``batch_size``.
        reading: The published rate, at its own batch.
        batch_size: Samples per step of the prediction.
    """
    if predicted.low is None or predicted.high is None:
        return predicted
    rate, batches = reading.samples_per_s, reading.batch_size / batch_size
    return Interval(
        predicted.value,
        low=predicted.low if batches * _FAR < 1 else min(predicted.low, rate),
        high=predicted.high if batches > _FAR else max(predicted.high, rate),
    )
