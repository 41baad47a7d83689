"""The ratio of two measurements of the same work, with its interval on the log scale."""

from __future__ import annotations

import math

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import Measurement


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of one measurement over another's; ``low`` and ``high`` bound 95 %, None if unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def holds_one(self) -> bool | None:
        """Whether the two may be equal; None where that cannot be told."""
        return None if self.low is None or self.high is None else self.low <= 1 <= self.high


def ratio(measurement: Measurement, baseline: Measurement) -> Ratio:
    """Return the throughput of one measurement over that of another.

    The logarithms of the two are independent, so their half-widths add in quadrature.

    Raises:
        MisuseError: If one of them has no figure.
    """
    mine, theirs = measurement.samples_per_s, baseline.samples_per_s
    if mine is None or theirs is None:
        missing = measurement if mine is None else baseline
        raise MisuseError(f"{missing.case.label} has no figure ({missing.status}): nothing to compare")
    value = mine / theirs
    widths = (measurement.relative_half_width, baseline.relative_half_width)
    if widths[0] is None or widths[1] is None:
        return Ratio(value=value)
    spread = math.hypot(math.log1p(widths[0]), math.log1p(widths[1]))
    return Ratio(value=value, low=value * math.exp(-spread), high=value * math.exp(spread))
