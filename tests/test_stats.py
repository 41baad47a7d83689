"""Statistics compared with hand-computed and published figures."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import stats


def test_student_t_agrees_with_the_printed_table():
    """Two-sided 95 %: 12.706 at 1, 2.262 at 9, 1.960 for the normal limit (any printed t table)."""
    assert stats.student_t_quantile(0.975, 1) == pytest.approx(12.706, abs=1e-3)
    assert stats.student_t_quantile(0.975, 9) == pytest.approx(2.262, abs=1e-3)
    assert stats.student_t_quantile(0.975, 1e7) == pytest.approx(1.960, abs=1e-3)


@given(
    st.floats(0.001, 0.999),
    st.one_of(st.integers(1, 30), st.floats(1.0, 1000.0), st.sampled_from([1e4, 1e5, 1e7])),
)
def test_student_t_agrees_with_scipy(probability, degrees_of_freedom):
    from scipy.special import stdtrit

    expected = stdtrit(degrees_of_freedom, probability)
    found = stats.student_t_quantile(probability, degrees_of_freedom)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def lag1(values):
    return max(0.0, stats.lag1_autocorrelation(stats.deviations_of(values)))


def prudent(values):
    return stats.expected_autocorrelation(stats.deviations_of(values), margin=1.0)


def test_alternating_values_have_no_positive_autocorrelation():
    values = [1.0, 2.0] * 10
    assert lag1(values) == 0.0
    assert stats.effective_sample_size(20, lag1(values)) == 20


def test_linear_trend_has_a_small_effective_sample_size():
    """1..10: d = -4.5..4.5, sum d^2 = 82.5, sum of neighbors' products = 57.75, so r1 = 0.7."""
    values = [float(i) for i in range(1, 11)]
    assert lag1(values) == pytest.approx(0.7)
    # 10 / (1 + 2 (0.9 x 0.7 + 0.8 x 0.7^2 + ... + 0.1 x 0.7^9)), and n (1 - r) / (1 + r) of a long series
    inflation = 1 + 2 * sum((1 - k / 10) * 0.7**k for k in range(1, 10))
    assert stats.effective_sample_size(10, 0.7) == pytest.approx(10 / inflation)
    assert stats.effective_sample_size(10**6, 0.7) == pytest.approx(1e6 * 0.3 / 1.7, rel=1e-5)


def test_a_correlation_is_estimated_high_but_within_the_limit_of_the_series():
    """1..10: 0.7 + 3.8 / 10 + sqrt(0.51 / 10) is beyond 0.9, and alternating values have none."""
    assert prudent([float(i) for i in range(1, 11)]) == 0.9
    assert prudent([1.0, 2.0] * 10) == 0.0
    calm = [1.0, 1.0, -1.0, -1.0] * 25  # the products of neighbors cancel, except for the one that is cut off
    expected = 0.01 + 1.04 / 100 + math.sqrt((1 - 0.01**2) / 100)
    assert prudent(calm) == pytest.approx(expected)


def test_the_interval_of_a_ramp_matches_the_hand_calculation():
    """1..10: r = 0.9, so ESS = 1.374; dof = 4; sum d^2 / n = 8.25."""
    ess = 10 / (1 + 2 * sum((1 - k / 10) * 0.9**k for k in range(1, 10)))
    assert ess == pytest.approx(1.374, abs=1e-3)
    expected = 2.7764 * math.sqrt(8.25 / (ess - 1)) / 5.5
    assert stats.relative_half_width([float(i) for i in range(1, 11)]) == pytest.approx(expected, rel=1e-4)


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=60))
def test_no_interval_is_narrower_than_for_independent_values(values):
    """The limit is the number of degrees of freedom, which a correlation lowers and never raises."""
    independent = float(np.std(values, ddof=1)) / math.sqrt(len(values)) / float(np.mean(values))
    quantile = stats.student_t_quantile(0.975, len(values) - 1)
    assert stats.relative_half_width(values) >= quantile * independent * (1 - 1e-6) - 1e-12


def test_the_required_length_of_a_series_follows_from_spread_and_correlation():
    """Independent values of spread s give 1.96 s / sqrt(n), and four times as many give half of it."""
    rng = np.random.default_rng(0)
    values = 1 + 0.01 * rng.standard_normal(4000)
    assert stats.long_half_width(values.tolist()) == pytest.approx(1.96 * 0.01 / 4000**0.5, rel=0.05)
    ratio = stats.long_half_width(values[:1000].tolist()) / stats.long_half_width(values.tolist())
    assert ratio == pytest.approx(2.0, rel=0.08)


def test_equal_rounds_have_zero_width_and_one_round_has_an_unknown_width():
    assert stats.relative_half_width([2.0] * 5) == 0.0
    assert stats.relative_half_width([2.0]) is None


def test_percentile_and_interquartile_range_match_the_definitions():
    assert stats.percentile([1, 2, 3, 4], 0.5) == 2.5
    assert stats.interquartile_range([1, 2, 3, 4, 5]) == 2


def test_three_launches_give_students_interval():
    """Means 1, 2, 3: s = 1, so t(0.975, 2) / sqrt(3) / 2 = 4.303 / 3.464."""
    assert stats.between_launches_half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / 3**0.5 / 2, rel=1e-4)
    assert stats.between_launches_half_width([1.0]) is None


def test_no_launch_is_left_out_of_the_interval():
    """1, 2, 3, 4, 100: s^2 = 7610 / 4; t(0.975, 4) = 2.776."""
    expected = 2.77645 * math.sqrt(7610 / 4 / 5) / 22
    assert stats.between_launches_half_width([1.0, 100.0, 3.0, 2.0, 4.0]) == pytest.approx(expected, rel=1e-4)


def moderated(variances, freedoms):
    """Smyth's estimate from scipy's functions and a separate root finder."""
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    half = np.asarray(freedoms) / 2
    logs = np.log(variances) - digamma(half) + np.log(half)
    excess = logs.var(ddof=1) - polygamma(1, half).mean()
    if excess <= 0:
        return math.inf, float(np.mean(variances))
    freedom = 2 * brentq(lambda x: polygamma(1, x) - excess, 1e-6, 1e6, xtol=1e-14, rtol=1e-13)
    return freedom, float(np.exp(logs.mean() + digamma(freedom / 2) - np.log(freedom / 2)))


@given(
    st.lists(
        st.tuples(st.floats(1e-8, 1e-2), st.sampled_from([1.0, 2.0, 7.0, 30.0])), min_size=3, max_size=20
    )
)
def test_the_prior_of_a_suite_matches_an_independent_implementation(cases):
    variances, freedoms = zip(*cases, strict=True)
    middle = float(np.median(variances))
    expected = moderated([max(each, 1e-5 * middle) for each in variances], freedoms)
    found = stats.prior_of(variances, freedoms)
    if expected[0] < 1e5:
        assert (found.freedom, found.variance) == pytest.approx(expected, rel=1e-6)
    else:
        assert found.freedom > 1e4


def test_variance_prior_recovers_the_distribution_of_simulated_variances():
    """4000 variances with 4 degrees of freedom; the true ones are 0.5 x 6 / chi-squared(6)."""
    rng = np.random.default_rng(0)
    true = 0.5 * 6 / rng.chisquare(6, 4000)
    found = stats.prior_of((true * rng.chisquare(4, 4000) / 4).tolist(), [4.0] * 4000)
    assert (found.variance, found.freedom) == pytest.approx((0.5, 6.0), rel=0.12)


def test_two_cases_have_no_prior_and_neither_have_equal_launches():
    assert stats.prior_of([1e-6, 1e-6], [2.0, 2.0]) is None
    assert stats.prior_of([0.0, 0.0, 1e-6], [2.0, 2.0, 2.0]) is None
    assert stats.prior_of([1e-6] * 7, [2.0] * 7) == stats.Prior(pytest.approx(1e-6), math.inf)


def test_launch_variance_prior_is_weighed_against_the_measured_launches():
    """Launches 0.99, 1, 1.01: variance 1e-4, two degrees of freedom."""
    means, plain = [0.99, 1.0, 1.01], 4.30265 * 0.01 / math.sqrt(3)
    width = stats.between_launches_half_width
    assert width(means) == pytest.approx(plain, rel=1e-4)
    sure = width(means, stats.Prior(5e-5, math.inf))
    assert sure == pytest.approx(2.77645 * math.sqrt((2 * 5e-5 + 2 * 1e-4) / 4 / 3), rel=1e-4)
    unsure = width(means, stats.Prior(5e-5, 1.0))
    assert unsure == pytest.approx(3.18245 * math.sqrt((5e-5 + 2 * 1e-4) / 3 / 3), rel=1e-4)
    assert width(means, stats.Prior(1e-4 / 3.1, math.inf)) == width(means)


@pytest.mark.parametrize(
    ("spreads", "least"),
    [((0.003,) * 7, 0.94), ((0.003,) * 4 + (0.07,) * 3, 0.91), ((0.003,) * 6 + (0.07,), 0.93)],
    ids=["alike", "two kinds", "one restless"],
)
def test_intervals_of_three_launches_in_a_suite_contain_the_truth(spreads, least):
    rng, held = np.random.default_rng(2), np.zeros(len(spreads))
    for _ in range(600):
        runs = (1 + rng.standard_normal((len(spreads), 3)) * np.array(spreads)[:, None]).tolist()
        prior = stats.prior_of([stats.variance_of(run) for run in runs], [2.0] * len(runs))
        widths = [stats.between_launches_half_width(run, prior) for run in runs]
        held += [abs(fmean(run) - 1) <= width * fmean(run) for run, width in zip(runs, widths, strict=True)]
    assert (held / 600).min() >= least
    assert (held / 600).max() <= 0.995


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=60))
def test_the_standard_error_agrees_with_its_parts(values):
    """The parts are numpy's variance and the lag-1 autocorrelation."""
    r1 = lag1(values)
    ess = len(values) * (1 - r1) / (1 + r1)
    expected = math.sqrt(float(np.var(values, ddof=1)) / max(ess, 2))
    assert stats.standard_error(values) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_equal_values_have_zero_spread_despite_rounding_of_the_mean():
    """The sum of 24 times 0.0009, divided by 24, differs in the last digit."""
    assert math.fsum([0.0009] * 24) / 24 != 0.0009
    assert stats.standard_error([0.0009] * 24) == 0.0
    assert stats.relative_half_width([0.0009] * 24) == 0.0


def test_the_ratio_of_blocks_is_computed_from_logarithms():
    """Groups with ratios 2 and 8 in turn: the logarithms are ln 4 -+ ln 2; t(0.975, 3) = 3.182."""
    first = [2.0, 2.0, 8.0, 8.0, 2.0, 2.0, 8.0, 8.0]
    found = stats.ratio_of_blocks(first, [1.0] * 8)
    ratio, low, high = found.value, found.low, found.high
    assert ratio == pytest.approx(4.0)
    reach = 3.182 * math.sqrt(4 * math.log(2) ** 2 / 3 / 4)
    assert math.log(high / ratio) == pytest.approx(reach, rel=1e-3)
    assert math.log(ratio / low) == pytest.approx(reach, rel=1e-3)


def test_a_steady_drift_cancels_in_groups_of_four_blocks():
    times = [1.0 + 0.01 * n for n in range(24)]
    fours = [times[n : n + 4] for n in range(0, 24, 4)]
    first = [t for a, _, _, d in fours for t in (a, d)]
    second = [t for _, b, c, _ in fours for t in (b, c)]
    found = stats.ratio_of_blocks(first, second)
    assert found.value == pytest.approx(1.0, abs=1e-4)
    assert found.high - found.low < 1e-4


def test_equal_blocks_have_a_ratio_of_zero_width_and_few_blocks_have_none():
    found = stats.ratio_of_blocks([3.0] * 4, [2.0] * 4)
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    for first, second in (([1.0, 1.0], [1.0, 1.0]), ([1.0] * 4, [1.0] * 6), ([1.0] * 4, [0.0] * 4)):
        assert stats.ratio_of_blocks(first, second) is None


def test_the_interval_of_a_ratio_contains_it_under_drift_and_correlation():
    """With 0.2 % noise at correlation 0.5 and 0.1 % drift per block, 95 % of the intervals contain the ratio."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(1000):
        error, times = 0.0, []
        for n in range(20):
            error = 0.5 * error + math.sqrt(0.75) * rng.normal(0, 0.002)
            times.append((1 + 0.001 * n) * math.exp(error))
        first = [1.01 * t for n, t in enumerate(times) if n % 4 in {0, 3}]
        second = [t for n, t in enumerate(times) if n % 4 in {1, 2}]
        held += stats.ratio_of_blocks(first, second).holds(1.01)
    assert 0.92 < held / 1000 < 0.97
