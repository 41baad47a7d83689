"""Ratios of two measured throughputs, with the interval that both intervals give."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpubench.report.data import Result
from gpubench.report.words import ratio_words


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as fast ``of`` is as ``to``, with a 95 % interval (None is unknown)."""

    of: Result
    to: Result
    value: float
    low: float | None
    high: float | None

    @property
    def words(self) -> str:
        """The ratio with its interval."""
        return ratio_words(self.value, self.low, self.high)


def ratio(of: Result, to: Result) -> Ratio:
    """Divide two throughputs.

    Both figures are means of independent rounds, so their relative errors add in quadrature on the
    logarithmic scale.
    """
    value = (of.measurement.samples_per_s or 0.0) / (to.measurement.samples_per_s or math.inf)
    widths = [of.measurement.relative_half_width, to.measurement.relative_half_width]
    low = high = None
    if widths[0] is not None and widths[1] is not None:
        factor = math.exp(math.hypot(math.log1p(widths[0]), math.log1p(widths[1])))
        low, high = value / factor, value * factor
    return Ratio(of=of, to=to, value=value, low=low, high=high)
