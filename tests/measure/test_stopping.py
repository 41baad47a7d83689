"""The stop rule and the warm-up rule on simulated series: no clock, no device."""

from __future__ import annotations

import math
from statistics import fmean

import msgspec
import numpy as np
import pytest
from scripted import GPU_BOUND, HOST_BOUND, correlated

from gpubench import stats
from gpubench.measure.budget import DEFAULT, LEAST_ROUNDS, PUBLISH, QUICK, SLOW_STEPS_S, Budget
from gpubench.measure.loop import StepState, StopRule, Verdict, WarmUp, stop_rule
from gpubench.models import FindingKind, Round, TelemetrySample

LONG = msgspec.structs.replace(PUBLISH, timed_s=90.0, timed_least_s=10.0)
"""A budget with a timed part that may be cut short."""
STEP_S = 0.02
STEPS_PER_ROUND = 25
MOST_STEPS = 10_000


def step_times(phi: float, steps: int, rng: np.random.Generator) -> np.ndarray:
    """1 + AR(1) with a 3 % coefficient of variation, times 20 ms."""
    return STEP_S * correlated(phi, 0.03, steps, rng)


def timed(budget: Budget, noise: tuple[float, float], trials: int, seed: int = 0) -> list[StopRule]:
    """Return stop rules that have ended, each fed rounds as long as the budget requests."""
    spread, phi = noise
    rng = np.random.default_rng(seed)
    rules = []
    for _ in range(trials):
        rule = stop_rule(budget)
        for value in correlated(phi, spread, 2 * math.ceil(budget.timed_s / budget.round_s) + 20, rng):
            if rule.feed(float(value), float(value) * budget.round_s) is not Verdict.GO_ON:
                break
        rules.append(rule)
    return rules


def coverage(rules: list[StopRule]) -> float:
    """Return the share of the rules with an interval that contains the true mean, 1."""
    held = [abs(fmean(rule.accepted) - 1) <= rule.half_width() * fmean(rule.accepted) for rule in rules]
    return fmean(held)


def simulate(phi: float, trials: int, seed: int = 0) -> tuple[float, float]:
    """Return the share of trials that stopped, and of those the share in which the interval held the true mean."""
    rng = np.random.default_rng(seed)
    stopped = covered = 0
    for _ in range(trials):
        rounds = step_times(phi, MOST_STEPS, rng).reshape(-1, STEPS_PER_ROUND).mean(1).tolist()
        rule = StopRule(target=0.005)
        if any(rule.feed(r, r * STEPS_PER_ROUND) is Verdict.DONE for r in rounds):
            stopped += 1
            covered += abs(fmean(rule.accepted) / STEP_S - 1) <= rule.half_width()
    return stopped / trials, covered / max(stopped, 1)


@pytest.mark.parametrize(
    ("phi", "trials"), [(0.0, 1000), (0.5, 500), (0.9, 120), pytest.param(0.9, 1000, marks=pytest.mark.slow)]
)
def test_the_interval_contains_the_true_mean_in_92_percent_or_more(phi, trials):
    """The acceptance test of the contract: fixed seed, drift guard on, checked every round."""
    stopped, held = simulate(phi, trials)
    assert stopped > 0.99
    assert 0.92 <= held <= 0.99


@pytest.mark.parametrize(
    ("rounds", "phi", "least"),
    [
        (10, 0.0, 0.95),
        (10, 0.5, 0.92),
        (10, 0.7, 0.90),
        (20, 0.7, 0.92),
        (26, 0.7, 0.93),
        (40, 0.9, 0.92),
        (180, 0.6, 0.93),
    ],
)
def test_the_interval_of_a_short_series_is_as_wide_as_its_correlation_demands(rounds, phi, least):
    """At a correlation of 0.7, the plain standard error covers the mean of 10 rounds in 79 %, of 26 in 88 %."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(1000):
        values = correlated(phi, 0.01, rounds, rng).tolist()
        held += abs(fmean(values) - 1) <= stats.relative_half_width(values) * fmean(values)
    assert least <= held / 1000 <= 0.99


@pytest.mark.parametrize("trials", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_series_that_never_settles_rarely_stops(trials):
    stopped, _ = simulate(0.98, trials)
    assert stopped < 0.05


@pytest.mark.parametrize("timed_s", [1.0, 2.0, 2.6, 5.0])
def test_a_gpu_bound_row_of_a_quick_run_converges(timed_s):
    """With an H200's noise, at most 2 % of rows fail to converge, in any time that a short run leaves."""
    rules = timed(msgspec.structs.replace(QUICK, timed_s=timed_s), GPU_BOUND, 300)
    assert fmean(not rule.converged() for rule in rules) <= 0.02
    assert min(len(rule.rounds) for rule in rules) >= LEAST_ROUNDS
    assert coverage(rules) >= 0.88
    restless = timed(msgspec.structs.replace(QUICK, timed_s=timed_s), (0.002, 0.7), 300)
    assert fmean(not rule.converged() for rule in restless) <= 0.02


def test_a_gpu_bound_row_takes_little_more_than_the_minimum_time():
    """The minimum is 10 s; an unsteady card takes less than 20 s on average."""
    rules = timed(LONG, GPU_BOUND, 200)
    assert all(rule.converged() for rule in rules)
    assert all(LONG.timed_least_s <= rule.elapsed_s <= 12 for rule in rules)
    assert coverage(rules) >= 0.92
    restless = timed(LONG, (0.005, 0.6), 200)
    assert all(rule.converged() for rule in restless)
    assert fmean(rule.elapsed_s for rule in restless) < 20


def test_a_gpu_bound_row_of_a_default_launch_converges_in_two_seconds():
    rules = timed(DEFAULT, GPU_BOUND, 200)
    assert all(rule.converged() for rule in rules)
    assert all(2.0 <= rule.elapsed_s < 2.2 for rule in rules)
    restless = timed(DEFAULT, (0.005, 0.6), 200)
    assert fmean(not rule.converged() for rule in restless) <= 0.02
    assert fmean(rule.elapsed_s for rule in restless) < 2.4
    host = timed(DEFAULT, HOST_BOUND, 200)
    assert fmean(rule.converged() for rule in host) <= 0.05
    assert all(4.0 <= rule.elapsed_s < 4.3 for rule in host if not rule.converged())
    assert coverage(host) >= 0.92


@pytest.mark.parametrize(("round_s", "timed_s"), [(0.1, 4.0), (1.0, 12.0), (10.0, SLOW_STEPS_S)])
def test_slow_steps_are_timed_until_ten_are_done_or_half_a_minute_is_over(round_s, timed_s):
    assert stop_rule(DEFAULT, round_s).deadline_s == pytest.approx(timed_s)


def test_a_host_bound_row_ends_early_with_a_wide_interval_and_a_reason():
    """0.5 % would take a quarter of an hour: the row ends after 20 of 90 s and says so."""
    rules = timed(LONG, HOST_BOUND, 200)
    assert np.quantile([rule.elapsed_s for rule in rules], 0.95) < 22
    assert max(rule.elapsed_s for rule in rules) < 45
    assert min(rule.elapsed_s for rule in rules) >= 2 * LONG.timed_least_s
    assert coverage(rules) >= 0.92
    unmet = [rule.unmet() for rule in rules]
    assert {f.kind for f in unmet} == {FindingKind.NOT_CONVERGED}
    assert [f.value for f in unmet] == [rule.half_width() for rule in rules]
    needed_s = float(np.median([rule.needed_s() for rule in rules]))
    assert needed_s == pytest.approx((1.96 * 0.05 / 0.005) ** 2 * (1.6 / 0.4) * 0.5, rel=0.25)
    assert unmet[0].limit.startswith("0.50 %, which takes about ")


@pytest.mark.parametrize("spread", [0.005, 0.01])
def test_a_row_that_can_reach_its_target_in_time_rarely_ends_early(spread):
    """At a correlation of 0.6, the target takes 8 and 31 s of rounds on average."""
    rules = timed(LONG, (spread, 0.6), 200)
    assert fmean(rule.verdict() is Verdict.OUT_OF_REACH for rule in rules) <= 0.05


def test_a_row_ends_early_only_once_its_target_is_known_to_be_out_of_reach():
    rule = stop_rule(LONG)
    rng = np.random.default_rng(0)
    verdicts = [rule.feed(float(v), 0.5) for v in correlated(0.6, 0.05, 40, rng)]
    assert verdicts == [Verdict.GO_ON] * 39 + [Verdict.OUT_OF_REACH]


def test_equal_rounds_stop_at_the_minimum_number_of_rounds_and_the_minimum_time():
    rule = StopRule(target=0.005)
    verdicts = [rule.feed(0.02, 0.5) for _ in range(10)]
    assert verdicts == [Verdict.GO_ON] * 9 + [Verdict.DONE]
    longer = StopRule(target=0.005, least_s=6.0)
    verdicts = [longer.feed(0.02, 0.5) for _ in range(12)]
    assert verdicts == [Verdict.GO_ON] * 11 + [Verdict.DONE]


def test_an_unmet_target_names_the_missing_requirement():
    """Nine rounds; ten rounds of unknown time; ten rounds of known time."""
    values = [1.0, 1.1] * 5
    few = StopRule(target=0.005, rounds=values[:9]).unmet()
    assert (few.value, few.limit) == ("9 rounds", "10 rounds")
    wide = StopRule(target=0.005, rounds=values)
    assert (wide.unmet().value, wide.unmet().limit) == (wide.half_width(), 0.005)
    known = StopRule(target=0.005, rounds=values, walls=[0.5] * 10)
    width = 1.96 * math.sqrt(0.05**2 / 9) / 1.05  # alternating rounds show no positive correlation
    assert known.needed_s() == pytest.approx(5.0 * (width / 0.005) ** 2, rel=1e-3)
    assert known.unmet().limit == f"0.50 %, which takes about {known.needed_s() / 60:.0f} min of rounds"


def test_a_wide_series_ends_at_its_deadline_and_says_so():
    rule = StopRule(target=0.005, deadline_s=10)
    rng = np.random.default_rng(0)
    verdicts = [rule.feed(float(v), 0.5) for v in 0.02 * (1 + 0.2 * rng.standard_normal(20))]
    assert verdicts[-1] is Verdict.OUT_OF_TIME
    assert verdicts.count(Verdict.GO_ON) == 19
    assert not rule.converged()


def test_rounds_before_a_step_in_the_level_are_left_out():
    """The clock drops after twenty rounds: the mean over both levels would describe neither."""
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
    """300 trials of steps with 3 % noise that get 3 % longer with a time constant of 100 steps."""
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


def test_a_series_that_always_drifts_does_not_count_as_converged():
    """2 % in a hundred rounds without noise: autocorrelation leaves an effective sample size of a few."""
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


# --- warm-up ------------------------------------------------------------------------------------------------


def warm(budget=LONG, **changes) -> WarmUp:
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
    assert rule.elapsed_s >= LONG.warmup_least_s
    slow = warm(warmup_least_s=0.0)
    assert feed(slow, 4.0, 49, steps=1) is Verdict.OUT_OF_TIME


def test_slow_step_warm_up_gets_time_for_its_minimum_steps_up_to_thirty_seconds():
    assert warm(DEFAULT).most_s(0.01) == DEFAULT.warmup_most_s
    assert feed(warm(DEFAULT), 1.0, 20, steps=1) is Verdict.DONE
    assert warm(DEFAULT).most_s(1.0) == 14.0
    assert warm(DEFAULT).most_s(60.0) == SLOW_STEPS_S
    assert WarmUp(budget=DEFAULT, limit_s=3.0).most_s(60.0) == 3.0


def test_warm_up_continues_until_four_windows_agree():
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
    assert rule.elapsed_s >= LONG.warmup_most_s


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
    assert heat(rising, 0.034) is Verdict.OUT_OF_TIME
    assert rising.unsettled() == "temperature"
    assert rising.temperature_slope() == pytest.approx(0.034)
    assert heat(flat, 0.033) is Verdict.DONE
    assert heat(quick, 0.2) is Verdict.DONE


def test_a_clock_that_still_moves_keeps_warming_up():
    def spread(share: float) -> WarmUp:
        rule = warm()
        for index in range(40):
            rule.feed(Round(steps=25, wall_s=0.5), at(index * 0.5, 50, 1.98e9 * (1 - share * (index % 2))))
        return rule

    assert spread(0.0201).unsettled() == "clock"
    assert spread(0.0199).unsettled() is None


@pytest.mark.parametrize(("budget", "agreement"), [(LONG, 0.005), (QUICK, 0.02), (DEFAULT, 0.02)])
def test_windows_must_agree_within_the_limit_of_the_budget(budget, agreement):
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
        verdict = rule.feed(Round(steps=25, wall_s=0.5), state=StepState(segments=index, retries=0))
    assert verdict is Verdict.GO_ON
    assert rule.unsettled() == "allocator"


def test_a_gradient_scale_that_still_falls_keeps_warming_up():
    rule = warm()
    for index in range(40):
        verdict = rule.feed(Round(steps=25, wall_s=0.5), state=StepState(scale=65536.0 / 2**index))
    assert verdict is Verdict.GO_ON
    assert rule.unsettled() == "gradient scale"


@pytest.mark.parametrize(
    "noise", [HOST_BOUND, (0.1, 0.6), (0.02, 0.6)], ids=["host", "restless host", "calm host"]
)
@pytest.mark.parametrize("budget", [QUICK, LONG], ids=["quick", "publish"])
def test_a_host_bound_warm_up_ends_though_no_four_windows_agree(budget, noise):
    """Waiting for four equal windows took 118 s of the 120 at a spread of 5 %."""
    spread, phi = noise
    rng = np.random.default_rng(0)
    lengths = []
    for _ in range(100):
        rule = warm(budget)
        rounds = correlated(phi, spread, 400, rng) * budget.round_s
        any(rule.feed(Round(steps=5, wall_s=float(w))) is not Verdict.GO_ON for w in rounds)
        lengths.append(rule.elapsed_s)
    assert fmean(lengths) < budget.warmup_least_s + 2 * budget.window_s
    assert np.quantile(lengths, 0.95) < budget.warmup_least_s + 5 * budget.window_s


def test_rounds_that_jump_do_not_hide_a_step_time_that_still_falls():
    """Rounds 3 % apart around medians that fall by 4 % from window to window."""
    rule = warm(warmup_least_s=0.0, warmup_steps=1)
    for window in range(4):
        for wobble in (0.985, 1.015, 0.985, 1.015):
            rule.feed(Round(steps=25, wall_s=0.6 * wobble * 0.96**window))
    assert rule.unsettled() == "step time"
    for wobble in (0.985, 1.015, 0.985, 1.015):
        rule.feed(Round(steps=25, wall_s=0.6 * wobble * 0.96**2))
    assert rule.unsettled() is None
