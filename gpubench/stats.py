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
TRIM_FROM_LAUNCHES = 5
"""Fewer launches are too few to leave the best and the worst out."""


def lag1_autocorrelation(values: Sequence[float]) -> float:
    """Lag-1 autocorrelation, floored at 0: ``max(0, sum d_i d_(i+1) / sum d_i^2)``."""
    return _lag1(_deviations(values))


def _deviations(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    mean = min(max(math.fsum(values) / len(values), low), high)  # so that equal values deviate by nothing
    return [value - mean for value in values]


def _lag1(deviations: Sequence[float]) -> float:
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
    error, ess = standard_error(values)
    if error == 0:
        return 0.0
    quantile = student_t_quantile((1 + confidence) / 2, max(ess - 1, 1))
    return quantile * error * len(values) / sum(values)


def standard_error(values: Sequence[float]) -> tuple[float, float]:
    """Standard error of the mean of a correlated series, and the effective sample size behind it."""
    deviations = _deviations(values)
    r1 = _lag1(deviations)
    ess = len(values) * (1 - r1) / (1 + r1)
    variance = sum(d * d for d in deviations) / (len(values) - 1)
    return math.sqrt(variance / max(ess, 2)), ess


def between_launches_half_width(means: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Half-width over the mean of the interval that independent launches give; None for one launch.

    Student's t over the launch means; from five launches on the best and the worst are trimmed and the
    width is that of a trimmed mean with its winsorised variance.

    Source:
        Tukey and McLaughlin 1963, Sankhya A 25, 331-352.
    """
    count = len(means)
    if count < 2:
        return None
    ordered = sorted(means)
    cut = 1 if count >= TRIM_FROM_LAUNCHES else 0
    if cut:
        ordered = [ordered[1], *ordered[1:-1], ordered[-2]]
    middle = fmean(ordered[cut : count - cut])
    variance = sum((value - fmean(ordered)) ** 2 for value in ordered) / (count - 1)
    error = math.sqrt(variance / count) / (1 - 2 * cut / count)
    return student_t_quantile((1 + confidence) / 2, count - 2 * cut - 1) * error / middle


def ratio_of_blocks(
    first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float] | None:
    """Return the ratio of two kinds of blocks and its interval; None below two runs of four blocks.

    The blocks ran in the order first, second, second, first, and again. Each four give one logarithm of the
    ratio, in which a steady drift cancels; Student's t is taken over these.

    Args:
        first: Times of the blocks of one kind, in their order.
        second: Of the other kind, as many.
        confidence: Of the interval.
    """
    fours = len(first) // 2
    if fours < 2 or len(first) != len(second) or min(*first, *second) <= 0:
        return None
    logs = [
        fmean(math.log(a) for a in first[2 * n : 2 * n + 2])
        - fmean(math.log(b) for b in second[2 * n : 2 * n + 2])
        for n in range(fours)
    ]
    middle = fmean(logs)
    error = math.sqrt(math.fsum((x - middle) ** 2 for x in logs) / (fours - 1) / fours)
    reach = student_t_quantile((1 + confidence) / 2, fours - 1) * error
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


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
