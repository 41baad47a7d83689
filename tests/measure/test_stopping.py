"""The stop rule and the warm-up rule on simulated series: no clock, no device."""

from __future__ import annotations

import math
from statistics import fmean

import msgspec
import numpy as np
import pytest
from scipy.signal import lfilter

from gpubench import stats
from gpubench.measure.budget import DEFAULT, QUICK
from gpubench.measure.stopping import Heap, StopRule, Verdict, WarmUp
from gpubench.models import Round, TelemetrySample

STEP_S = 0.02
STEPS_PER_ROUND = 25
MOST_STEPS = 10_000


def step_times(phi: float, steps: int, rng: np.random.Generator) -> np.ndarray:
    """1 + AR(1) with a 3 % coefficient of variation, times 20 ms."""
    noise = rng.standard_normal(steps) * 0.03 * math.sqrt(1 - phi**2)
    series, _ = lfilter([1.0], [1.0, -phi], noise, zi=[phi * rng.standard_normal() * 0.03])
    return STEP_S * (1 + series)


def simulate(phi: float, trials: int, seed: int = 0) -> tuple[float, float]:
    """Share of trials that stopped, and among them the share whose interval held the true mean."""
    rng = np.random.default_rng(seed)
    stopped = covered = 0
    for _ in range(trials):
        rounds = step_times(phi, MOST_STEPS, rng).reshape(-1, STEPS_PER_ROUND).mean(1).tolist()
        rule = StopRule(target=0.005)
        if any(rule.feed(r, r * STEPS_PER_ROUND) is Verdict.DONE for r in rounds):
            stopped += 1
            covered += abs(fmean(rule.accepted) / STEP_S - 1) <= rule.half_width()
    return stopped / trials, covered / max(stopped, 1)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_the_interval_holds_the_true_mean_in_92_to_98_percent(phi):
    """The acceptance test of the contract: 1000 trials, fixed seed, drift guard on, checked every round."""
    stopped, coverage = simulate(phi, 1000)
    assert stopped > 0.99
    assert 0.92 <= coverage <= 0.98


def test_a_series_that_never_settles_rarely_stops():
    stopped, _ = simulate(0.98, 200)
    assert stopped < 0.05


@pytest.mark.slow
def test_a_series_that_never_settles_rarely_stops_in_a_thousand_trials():
    stopped, _ = simulate(0.98, 1000)
    assert stopped < 0.05


def test_independent_steps_would_claim_far_too_much():
    """What a rule for independent samples does at phi = 0.9: it is right in under 40 % of its claims."""
    rng = np.random.default_rng(1)
    held = stopped = 0
    for _ in range(300):
        steps = step_times(0.9, 2000, rng)
        n = np.arange(1, 2001)
        mean = np.cumsum(steps) / n
        variance = (np.cumsum(steps**2) - n * mean**2) / np.maximum(n - 1, 1)
        width = 1.96 * np.sqrt(np.maximum(variance, 0) / n) / mean
        ready = np.flatnonzero((n >= 30) & (width <= 0.005))
        if ready.size:
            stopped += 1
            held += abs(mean[ready[0]] / STEP_S - 1) <= width[ready[0]]
    assert stopped > 250
    assert held / stopped <= 0.40


def test_equal_rounds_stop_at_the_least_number():
    rule = StopRule(target=0.005)
    verdicts = [rule.feed(0.02, 0.5) for _ in range(20)]
    assert verdicts == [Verdict.GO_ON] * 19 + [Verdict.DONE]


def test_slow_steps_need_ten_rounds():
    rule = StopRule(target=0.005)
    verdicts = [rule.feed(1.5, 1.5) for _ in range(10)]
    assert verdicts == [Verdict.GO_ON] * 9 + [Verdict.DONE]


def test_a_wide_series_ends_at_its_deadline_and_says_so():
    rule = StopRule(target=0.005, deadline_s=10)
    rng = np.random.default_rng(0)
    verdicts = [rule.feed(float(v), 0.5) for v in 0.02 * (1 + 0.2 * rng.standard_normal(20))]
    assert verdicts[-1] is Verdict.OUT_OF_TIME
    assert verdicts.count(Verdict.GO_ON) == 19
    assert not rule.converged()


def test_rounds_before_a_step_in_the_level_are_left_out():
    """The clock drops after twenty rounds: the mean of both levels would be that of neither."""
    rng = np.random.default_rng(3)
    levels = [STEP_S * 0.98] * 20 + [STEP_S] * 60
    rule = StopRule(target=0.0005)
    for level in levels:
        value = level * (1 + 0.001 * float(rng.standard_normal()))
        if rule.feed(value, value * STEPS_PER_ROUND) is Verdict.DONE:
            break
    assert rule.left_out >= 20
    assert fmean(rule.accepted) == pytest.approx(STEP_S, rel=5e-4)


def test_the_drift_guard_lowers_the_bias_of_a_series_that_heats_up():
    """3 % of heating with a time constant of 100 steps, step noise 3 %, over 300 trials."""
    rng = np.random.default_rng(5)
    biases: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(300):
        steps = np.arange(4000)
        times = step_times(0.0, 4000, rng) * (1 - 0.03 * np.exp(-steps / 100))
        rounds = times.reshape(-1, STEPS_PER_ROUND).mean(1).tolist()
        for guarded in (True, False):
            rule = StopRule(target=0.005) if guarded else Unguarded(target=0.005)
            any(rule.feed(r, r * STEPS_PER_ROUND) is Verdict.DONE for r in rounds)
            biases[guarded].append(fmean(rule.accepted) / STEP_S - 1)
    assert abs(fmean(biases[True])) < abs(fmean(biases[False]))


class Unguarded(StopRule):
    def _drifts(self, least_half: int) -> bool:
        return False


def test_a_series_that_drifts_all_along_does_not_pass_for_converged():
    """1 % in a hundred rounds, no noise: autocorrelation leaves an effective sample size of a few."""
    rule = StopRule(target=0.005, deadline_s=100 * 0.5)
    for index in range(100):
        verdict = rule.feed(STEP_S * (1 + 0.02 * index / 100), 0.5)
    assert verdict is Verdict.OUT_OF_TIME


def test_without_drift_nothing_is_left_out():
    rule = StopRule(target=0.005)
    rng = np.random.default_rng(4)
    for value in STEP_S * (1 + 0.002 * rng.standard_normal(20)):
        rule.feed(float(value), 0.5)
    assert rule.left_out == 0


# --- warm-up -----------------------------------------------------------------------------------------


def warm(budget=DEFAULT, **changes) -> WarmUp:
    return WarmUp(budget=msgspec.structs.replace(budget, **changes))


def feed(rule: WarmUp, step_s: float, count: int, steps: int = 25, **seen) -> Verdict:
    verdict = Verdict.GO_ON
    for _ in range(count):
        verdict = rule.feed(Round(steps=steps, wall_s=step_s * steps), **seen)
        if verdict is not Verdict.GO_ON:
            break
    return verdict


def test_warm_up_lasts_at_least_its_steps_and_its_seconds():
    rule = warm()
    assert feed(rule, 0.02, 100) is Verdict.DONE
    assert rule.elapsed_s >= DEFAULT.warmup_least_s
    slow = warm(warmup_least_s=0.0)
    assert feed(slow, 3.0, 49, steps=1) is Verdict.OUT_OF_TIME


def test_warm_up_goes_on_until_four_windows_agree():
    rule = warm()
    for step_s in (0.020, 0.0202, 0.0204, 0.0206, 0.0208, 0.021):
        assert feed(rule, step_s, 4) is Verdict.GO_ON
    assert rule.unsettled() == "step time"
    assert feed(rule, 0.021, 12) is Verdict.DONE


def test_warm_up_that_never_agrees_ends_at_its_cap():
    rule = warm()
    verdict = Verdict.GO_ON
    index = 0
    while verdict is Verdict.GO_ON:
        verdict = feed(rule, 0.02 * (1 + 0.1 * (index % 2)), 4)
        index += 1
    assert verdict is Verdict.OUT_OF_TIME
    assert rule.elapsed_s >= DEFAULT.warmup_most_s


def at(t_s: float, celsius: float, clock: float = 1.98e9) -> list[TelemetrySample]:
    return [TelemetrySample(t_s=t_s, temperature_c=celsius, sm_clock_hz=clock)]


def test_a_rising_temperature_keeps_warming_up_and_quick_does_not_judge_it():
    def heat(rule: WarmUp, degrees_per_s: float) -> Verdict:
        verdict, t = Verdict.GO_ON, 0.0
        while verdict is Verdict.GO_ON:
            t += 0.5
            verdict = rule.feed(Round(steps=25, wall_s=0.5), at(t, 40 + degrees_per_s * t))
        return verdict

    rising, flat, quick = warm(), warm(), warm(judge_temperature=False)
    assert heat(rising, 0.101) is Verdict.OUT_OF_TIME
    assert rising.unsettled() == "temperature"
    assert rising.temperature_slope() == pytest.approx(0.101)
    assert heat(flat, 0.099) is Verdict.DONE
    assert heat(quick, 0.2) is Verdict.DONE


def test_a_clock_that_still_moves_keeps_warming_up():
    def spread(share: float) -> WarmUp:
        rule = warm()
        for index in range(40):
            rule.feed(Round(steps=25, wall_s=0.5), at(index * 0.5, 50, 1.98e9 * (1 - share * (index % 2))))
        return rule

    assert spread(0.0201).unsettled() == "clock"
    assert spread(0.0199).unsettled() is None


@pytest.mark.parametrize(("budget", "agreement"), [(DEFAULT, 0.005), (QUICK, 0.02)])
def test_windows_agree_within_what_the_budget_says(budget, agreement):
    def windows(apart: float) -> WarmUp:
        rule = warm(budget)
        for index in range(80):
            rule.feed(Round(steps=25, wall_s=budget.window_s * (1 + apart * (index % 2))))
        return rule

    assert windows(agreement * 1.01).unsettled() == "step time"
    assert windows(agreement * 0.99).unsettled() is None


def test_an_allocator_that_still_grows_keeps_warming_up():
    rule = warm()
    for index in range(40):
        verdict = rule.feed(Round(steps=25, wall_s=0.5), heap=Heap(segments=index, retries=0))
    assert verdict is Verdict.GO_ON
    assert rule.unsettled() == "allocator"


def test_a_gradient_scale_that_still_falls_keeps_warming_up():
    rule = warm()
    for index in range(40):
        verdict = rule.feed(Round(steps=25, wall_s=0.5), heap=Heap(scale=65536.0 / 2**index))
    assert verdict is Verdict.GO_ON
    assert rule.unsettled() == "gradient scale"


def test_the_half_width_is_that_of_the_contract():
    """h = t(0.975, max(ESS - 1, 1)) sqrt(s^2 / max(ESS, 2)) / m, by hand for 1..10 (r1 = 0.7)."""
    values = [float(v) for v in range(1, 11)]
    ess = 10 * 0.3 / 1.7
    expected = stats.student_t_quantile(0.975, 1) * math.sqrt(82.5 / 9 / 2) / 5.5
    assert ess < 2
    assert stats.relative_half_width(values) == pytest.approx(expected)
