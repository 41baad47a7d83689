"""Published training rates of standard workloads on one card, to compare with predictions."""

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


# If the batch sizes differ by more than this factor, that alone may explain a different rate.
_FAR = 4


def including(predicted: Interval, reading: CardReading, batch_size: int) -> Interval:
    """Return an interval widened to include a published rate; an interval without ends is unchanged.

    Throughput rises with the batch size. A faster rate at a far larger batch therefore does not widen the
    interval, nor does a slower rate at a far smaller batch.

    Args:
        predicted: The prediction at ``batch_size``.
        reading: The published rate, at its own batch.
        batch_size: Samples per step of the prediction.
    """
    if predicted.low is None or predicted.high is None:
        return predicted
    rate, batch_ratio = reading.samples_per_s, reading.batch_size / batch_size
    return Interval(
        predicted.value,
        low=predicted.low if batch_ratio < 1 / _FAR else min(predicted.low, rate),
        high=predicted.high if batch_ratio > _FAR else max(predicted.high, rate),
    )
