"""Statistics of time series: pure functions of numbers.

The stop rule's interval treats rounds as correlated: rounds of 0.5 s on a cooled data-center card have a
lag-1 autocorrelation of 0.6. See docs/method.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from statistics import NormalDist, fmean, median

import msgspec

from gpubench.interval import Interval

CONFIDENCE = 0.95
Z90, Z95 = 1.6449, 1.96
"""Half-widths of the central 90 % and 95 % of a normal distribution, in standard deviations."""
LEAST_FREEDOM = 4.0
"""Minimum degrees of freedom, a little below what was simulated: at a correlation of 0.9, ten to forty values
have the quantile of 5 to 8 degrees."""
LEAST_CASES = 3
"""Minimum number of cases from which to estimate how their variances differ."""
# A case with more than this times the prior's variance keeps its own variance.
UNMODERATED = 3.0
# Smallest variance used in estimating the prior, relative to the median of all cases.
_LEAST_OF_MEDIAN = 1e-5
_MOST_FREEDOM = 1e6
# Maximum iterations of the quantile, and terms of its fraction; both converge after about ten.
_MOST_STEPS = 200


def deviations_of(values: Sequence[float]) -> list[float]:
    """Return the deviations from the mean."""
    low, high = min(values), max(values)
    mean = min(max(math.fsum(values) / len(values), low), high)  # equal values have zero deviation
    return [value - mean for value in values]


def lag1_autocorrelation(deviations: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation of a series from its deviations: ``sum d_i d_(i+1) / sum d_i^2``."""
    total = sum(map(mul, deviations, deviations))
    return 0.0 if total == 0 else sum(map(mul, deviations, deviations[1:])) / total


def relative_half_width(values: Sequence[float]) -> float | None:
    """Return the relative half-width of the mean's confidence interval, for short and correlated series too.

    For n values with deviations d: ``t(0.975, dof) * sqrt(sum d^2 / n / (ESS - 1)) / mean``, where ESS is the
    effective sample size of n values with the ``expected_autocorrelation`` r at a margin of 1, and
    ``dof = min(n - 1, max(n (1 - r^2) - 1, 4))``. None below two values.

    The plain standard error is not enough: with ten to thirty values at the correlation of 0.7 that rounds
    have, it underestimates both spread and correlation, and its "95 %" interval covers the mean in 79 to
    88 % of cases. Dividing by ESS - 1 makes the variance unbiased, as n - 1 does for independent values.
    """
    if len(values) < 2:
        return None
    deviations = deviations_of(values)
    total = sum(map(mul, deviations, deviations))
    if total == 0:
        return 0.0
    n, r = len(values), expected_autocorrelation(deviations, margin=1.0)
    ess = effective_sample_size(n, r)
    freedom = min(n - 1, max(n * (1 - r * r) - 1, LEAST_FREEDOM))
    error = math.sqrt(total / n / (ess - 1))
    return student_t_quantile((1 + CONFIDENCE) / 2, freedom) * error * n / sum(values)


def long_half_width(values: Sequence[float]) -> float:
    """Return the relative half-width of the mean, as if spread and correlation were known.

    It uses the expected correlation, without the margin of ``relative_half_width``, and the normal quantile.
    It is inversely proportional to the square root of the number of values, which determines how long a
    series has to be.
    """
    deviations = deviations_of(values)
    n, r = len(values), expected_autocorrelation(deviations)
    ess = effective_sample_size(n, r)
    variance = sum(map(mul, deviations, deviations)) / n * ess / (ess - 1)
    error = math.sqrt(variance / n * (1 + r) / (1 - r))
    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * error * n / sum(values)


def expected_autocorrelation(deviations: Sequence[float], margin: float = 0.0) -> float:
    """Return the bias-corrected lag-1 autocorrelation, plus a margin in standard errors.

    ``r + (1 + 4 max(r, 0)) / n + margin sqrt((1 - r^2) / n)``, limited to the range from 0 to 1 - 1/n,
    because a correlation longer than the series cannot be distinguished from a drift. The second term
    corrects the bias of a short series (Marriott and Pope 1954, Biometrika 41, 390-402). Without the third
    term, the estimate would be too low, and the interval too narrow, half of the time.
    """
    n, r = len(deviations), lag1_autocorrelation(deviations)
    high = r + (1 + 4 * max(r, 0.0)) / n + margin * math.sqrt(max(1 - r * r, 0.0) / n)
    return min(max(high, 0.0), 1 - 1 / n)


def effective_sample_size(n: int, autocorrelation: float) -> float:
    """Return the number of independent values that are equivalent to n values of an AR(1) process.

    ``n / (1 + 2 sum (1 - k/n) r^k)`` in closed form; for long series it is ``n (1 - r) / (1 + r)``.
    """
    r = autocorrelation
    inflation = (1 + r) / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)
    return n / inflation


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of a correlated series, without a margin on the correlation."""
    deviations = deviations_of(values)
    n, r = len(values), max(0.0, lag1_autocorrelation(deviations))
    variance = sum(map(mul, deviations, deviations)) / (n - 1)
    return math.sqrt(variance / max(n * (1 - r) / (1 + r), 2))


class Prior(msgspec.Struct, frozen=True):
    """The prior for the variance of each case, from all cases of a suite.

    Attributes:
        variance: The center of the cases' variances.
        freedom: The prior's degrees of freedom; infinite if the variances differ only by chance.
    """

    variance: float
    freedom: float


def prior_of(variances: Sequence[float], freedoms: Sequence[float]) -> Prior | None:
    """Estimate the center and the spread of the variances of several cases.

    The variances are modeled as draws from a scaled inverse chi-squared distribution, with parameters from
    the mean and variance of their logarithms. None with fewer than ``LEAST_CASES`` cases, or if at least half
    of the variances are 0.

    Args:
        variances: One for each case.
        freedoms: Degrees of freedom of each variance.

    Source:
        Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3 (1), article 3, section 6.2.
    """
    if len(variances) < LEAST_CASES or (middle := median(variances)) <= 0:
        return None
    usable = [max(variance, _LEAST_OF_MEDIAN * middle) for variance in variances]
    logs = [
        math.log(variance) - _digamma(freedom / 2) + math.log(freedom / 2)
        for variance, freedom in zip(usable, freedoms, strict=True)
    ]
    excess = variance_of(logs) - fmean(_trigamma(freedom / 2) for freedom in freedoms)
    if excess <= _trigamma(_MOST_FREEDOM / 2):
        return Prior(fmean(variances), math.inf)
    low, high = 1e-6, _MOST_FREEDOM
    while high > low * (1 + 1e-12):  # bisection, because the trigamma function decreases
        freedom = math.sqrt(low * high)
        low, high = (freedom, high) if _trigamma(freedom / 2) > excess else (low, freedom)
    return Prior(math.exp(fmean(logs) + _digamma(high / 2) - math.log(high / 2)), high)


def variance_of(values: Sequence[float]) -> float:
    """Return the sample variance of at least two values, divided by n - 1."""
    return sum(each * each for each in deviations_of(values)) / (len(values) - 1)


def between_launches_half_width(means: Sequence[float], prior: Prior | None = None) -> float | None:
    """Return the relative half-width of the interval from independent launches; None for one launch.

    The interval is Student's t over all launch means. With a prior, the variance is the mean of the launches'
    and the prior's variance, weighted by their degrees of freedom, which add up. The prior has at most the
    weight of the launches, and none if their variance is over ``UNMODERATED`` times the prior's. Without that
    limit, the interval of a single noisy case in a suite would cover the truth 85 % of the time, not 95 %
    (simulated, three launches).

    Args:
        means: One per launch.
        prior: Prior of the relative variances, from all cases of the run.
    """
    count = len(means)
    if count < 2:
        return None
    variance, freedom = variance_of(means) / fmean(means) ** 2, float(count - 1)
    if prior is not None and variance <= UNMODERATED * prior.variance:
        weight = min(prior.freedom, freedom)
        variance = (weight * prior.variance + freedom * variance) / (weight + freedom)
        freedom += weight
    return student_t_quantile((1 + CONFIDENCE) / 2, freedom) * math.sqrt(variance / count)


def rate_interval(rate: float, width: float | None) -> Interval:
    """Return a rate with bounds, from the relative half-width of the times.

    There are no bounds if that width is None, and no upper bound if it is 1 or more.
    """
    if width is None:
        return Interval(rate)
    return Interval(rate, rate / (1 + width), None if width >= 1 else rate / (1 - width))


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with its interval (Student's t); no bounds below two values."""
    if len(values) < 2:
        return Interval(values[0] if values else None)
    middle, error = fmean(values), math.sqrt(variance_of(values) / len(values))
    reach = student_t_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * error
    return Interval(middle, middle - reach, middle + reach)


def ratio_of_blocks(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Return the ratio of the times of two kinds of blocks, with its interval.

    The blocks ran in the order first, second, second, first, and so on. Each group of four gives one
    logarithm of the ratio, in which a steady drift cancels out. The interval is Student's t over the groups.
    The result is None with fewer than two groups, unequal numbers of blocks, or a time that is not positive.

    Args:
        first: Times of the blocks of the first kind, in order.
        second: Times of the blocks of the second kind, equally many.
    """
    fours = len(first) // 2
    if fours < 2 or len(first) != len(second) or min(*first, *second) <= 0:
        return None
    logs = [
        fmean(math.log(a) for a in first[2 * n : 2 * n + 2])
        - fmean(math.log(b) for b in second[2 * n : 2 * n + 2])
        for n in range(fours)
    ]
    return mean_interval(logs).each(math.exp)


def student_t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return a quantile of Student's t distribution, for a probability above 0 and below 1.

    It uses Halley's method on the upper tail, starting from the expansion about the normal quantile; each
    step triples the number of correct digits. scipy has the function too (``special.stdtrit``, equal to nine
    digits), but importing it would add a quarter of a second to every verb that shows an interval.

    Source:
        Abramowitz and Stegun 1964, 26.7.5, for the expansion.
    """
    if probability < 0.5:
        return -student_t_quantile(1 - probability, degrees_of_freedom)
    n = degrees_of_freedom
    z = NormalDist().inv_cdf(probability)
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    log_peak = _log_half_step(n / 2) - math.log(n * math.pi) / 2
    for _ in range(_MOST_STEPS):
        density = math.exp(log_peak - (n + 1) / 2 * math.log1p(t * t / n))
        step = (_upper_tail(t, n) - (1 - probability)) / density
        step /= 1 - step * (n + 1) * t / (n + t * t) / 2
        t += step
        if abs(step) <= 1e-5 * t:  # the next step would be of the order of its cube
            break
    return t


def _digamma(x: float) -> float:
    # The derivative of the logarithm of the gamma function: recurrence, then series (DLMF 5.5.2, 5.11.2).
    steps = 0.0
    while x < 10:
        steps, x = steps + 1 / x, x + 1
    return math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6) - steps


def _trigamma(x: float) -> float:
    # The derivative of the digamma function (DLMF 5.15.5, 5.15.8).
    steps = 0.0
    while x < 10:
        steps, x = steps + 1 / x**2, x + 1
    return 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5) + 1 / (42 * x**7) + steps


def _upper_tail(t: float, degrees_of_freedom: float) -> float:
    """Return P(T > t) of Student's t for t >= 0: half the incomplete beta function I_x(n/2, 1/2)."""
    a, b = degrees_of_freedom / 2, 0.5
    square = t * t / degrees_of_freedom
    x, y = 1 / (1 + square), square / (1 + square)
    if y == 0:
        return 0.5
    front = math.exp(_log_half_step(a) - a * math.log1p(square) + b * math.log(y / math.pi))
    if x < (a + 1) / (a + b + 2):  # where the fraction converges; elsewhere its mirror image does
        return front * _beta_fraction(a, b, x) / a / 2
    return 0.5 - front * _beta_fraction(b, a, y) / b / 2


def _log_half_step(a: float) -> float:
    # ``log(gamma(a + 1/2) / gamma(a))``; for large ``a`` by its series, because the difference loses digits.
    if a < 50:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function (DLMF 8.17.22) by Lentz's method."""
    numerator, denominator = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = denominator
    for m in range(1, _MOST_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            denominator = 1 / (1 + term * denominator)
            numerator = 1 + term / numerator
            value *= denominator * numerator
        if abs(denominator * numerator - 1) < 1e-15:
            break
    return value


def median_absolute_deviation(values: Sequence[float]) -> float:
    """Return the median of the absolute deviations from the median (unscaled)."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by linear interpolation; ``share`` is from 0 to 1."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def interquartile_range(values: Sequence[float]) -> float:
    """Return the third quartile minus the first."""
    return percentile(values, 0.75) - percentile(values, 0.25)
