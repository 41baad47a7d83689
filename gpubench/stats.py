"""Statistics of series of times: pure functions of numbers.

The stop rule's interval treats rounds as correlated, because they are: rounds of 0.5 s on a cooled
data-centre card show a lag-1 autocorrelation of 0.6. See docs/method.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

CONFIDENCE = 0.95


def lag1_autocorrelation(values: Sequence[float]) -> float:
    """Lag-1 autocorrelation, floored at 0: ``max(0, sum d_i d_(i+1) / sum d_i^2)``."""
    mean = fmean(values)
    deviations = [value - mean for value in values]
    total = sum(d * d for d in deviations)
    if total == 0:
        return 0.0
    return max(0.0, sum(a * b for a, b in pairwise(deviations)) / total)


def effective_sample_size(values: Sequence[float]) -> float:
    """Number of independent values that would carry as much information: ``n (1 - r1) / (1 + r1)``."""
    r1 = lag1_autocorrelation(values)
    return len(values) * (1 - r1) / (1 + r1)


def relative_half_width(values: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Half-width of the mean's confidence interval over the mean, right under lag-1 autocorrelation.

    ``t(1 - a/2, max(ESS - 1, 1)) * sqrt(s^2 / max(ESS, 2)) / mean``; None below two values.
    """
    if len(values) < 2:
        return None
    mean = fmean(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    if variance == 0:
        return 0.0
    ess = effective_sample_size(values)
    return (
        student_t_quantile((1 + confidence) / 2, max(ess - 1, 1)) * math.sqrt(variance / max(ess, 2)) / mean
    )


def student_t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Quantile of Student's t distribution (scipy's special function, not its slow-to-import stats)."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, probability))


def median_absolute_deviation(values: Sequence[float]) -> float:
    """Median of the absolute deviations from the median (unscaled)."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def percentile(values: Sequence[float], share: float) -> float:
    """Linear-interpolation percentile; ``share`` from 0 to 1."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def interquartile_range(values: Sequence[float]) -> float:
    """Third minus first quartile."""
    return percentile(values, 0.75) - percentile(values, 0.25)


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive values."""
    return math.exp(fmean(math.log(value) for value in values))
