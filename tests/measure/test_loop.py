"""The clock and the rounds, on a scripted clock: what is inside a timed block, and what is outside."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.measure.budget import DEFAULT, PUBLISH, QUICK, budget_of
from gpubench.measure.loop import (
    Clock,
    Loop,
    OutOfTimeError,
    Series,
    StepState,
    StoppedError,
    time_rounds,
    warm_up,
)
from gpubench.models import FindingKind, TelemetrySample

LONG = msgspec.structs.replace(PUBLISH, timed_s=90.0, timed_least_s=10.0)
"""A budget with a timed part that may be cut short."""


def test_the_clock_waits_for_the_device_at_both_edges(fake_clock):
    order = []
    clock = Clock(
        synchronize=lambda: order.append("wait"), now_ns=lambda: order.append("read") or fake_clock.now
    )
    clock.time(lambda: order.append("work"))
    assert order == ["wait", "read", "work", "wait", "read"]


def make_loop(fake_clock, step_s=0.02, read_s=0.3, **options):
    """A loop with steps of ``step_s`` and a loss that takes ``read_s`` to copy."""
    times = step_s if callable(step_s) else lambda _: step_s

    def advance(index):
        fake_clock.advance(times(index))
        return index

    def edge_loss(result, index):
        assert result == index
        fake_clock.advance(read_s)
        return 5.0 - 1e-3 * index

    return Loop(
        advance=advance,
        edge_loss=edge_loss,
        clock=Clock(synchronize=fake_clock.synchronize, now_ns=fake_clock.now_ns),
        **options,
    )


def test_a_round_times_its_steps_and_not_the_copy_of_the_loss(fake_clock):
    loop = make_loop(fake_clock)
    done = loop.round(10)
    assert done.steps == 10
    assert done.wall_s == pytest.approx(0.2)
    assert done.loss == pytest.approx(5.0 - 9e-3)
    assert fake_clock.waits == 2


def test_steps_continue_counting_from_round_to_round_so_that_batches_rotate(fake_clock):
    seen = []
    loop = make_loop(fake_clock)
    loop.advance = lambda index: seen.append(index) or index
    loop.round(3)
    loop.round(2)
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("is_async", "outside_s"), [(False, 1.3), (True, 1.0)])
def test_work_that_a_clock_does_not_wait_for_is_not_a_pause(fake_clock, is_async, outside_s):
    """Reading the loss takes 0.3 s: a device may have computed until then, a CPU has not."""
    loop = make_loop(fake_clock, is_async=is_async)
    before_s = loop.outside_s()
    loop.round(3)
    fake_clock.advance(1.0)
    assert loop.outside_s() - before_s == pytest.approx(outside_s)


@pytest.mark.parametrize(
    ("step_s", "batches", "expected"),
    [(0.3, 4, 2), (0.02, 4, 28), (0.02, 1, 25), (2.0, 4, 1), (1e-9, 4, 100_000)],
)
def test_a_round_contains_whole_rotations_of_the_batches(fake_clock, step_s, batches, expected):
    assert make_loop(fake_clock, batches=batches).steps_for(0.5, step_s) == expected


def test_no_step_begins_after_the_deadline(fake_clock):
    loop = make_loop(fake_clock)
    loop.deadline_s = loop.clock.now_s() + 0.05
    with pytest.raises(OutOfTimeError):
        loop.round(10)
    assert loop.index == 3


def test_a_stop_takes_effect_between_rounds(fake_clock):
    loop = make_loop(fake_clock, stopped=lambda: loop.index >= 4)
    loop.round(4)
    with pytest.raises(StoppedError):
        loop.round(4)
    assert loop.index == 4


def test_the_warm_up_keeps_its_times_and_sizes_the_rounds(fake_clock):
    series = Series()
    reports = []
    loop = make_loop(
        fake_clock, batches=4, report=lambda done, _, rule, *__: reports.append((rule is not None, done))
    )
    warm_up(loop, LONG, series)
    assert sum(r.steps for r in series.warmup) >= LONG.warmup_steps
    assert sum(r.wall_s for r in series.warmup) >= LONG.warmup_least_s
    assert series.steps_per_round == 28
    assert series.findings == []
    assert [done for _, done in reports] == series.warmup
    assert not any(timed for timed, _ in reports)


def test_a_warm_up_that_does_not_settle_continues_with_a_finding(fake_clock):
    series = Series()
    warm_up(make_loop(fake_clock, step_s=lambda i: 0.02 * (1 + 0.5 * ((i // 200) % 2))), LONG, series)
    assert [f.kind for f in series.findings] == [FindingKind.NOT_STEADY]
    assert series.findings[0].value == "step time"


def test_under_a_time_limit_the_warm_up_takes_half_of_the_remaining_time(fake_clock):
    series = Series()
    loop = make_loop(fake_clock, step_s=lambda i: 0.02 * (1 + 0.5 * ((i // 20) % 2)), read_s=0.0)
    loop.deadline_s = loop.clock.now_s() + 10
    warm_up(loop, LONG, series)
    assert 4.9 < sum(r.wall_s for r in series.warmup) < 6.0


def test_timed_rounds_stop_once_the_figure_is_certain_and_exclude_nothing(fake_clock):
    series = Series(steps_per_round=25)
    time_rounds(make_loop(fake_clock), LONG, series)
    assert len(series.timed) == 20
    assert series.findings == []
    assert all(r.left_out is None for r in series.timed)
    assert series.ended_s - series.began_s == pytest.approx(20 * (0.5 + 0.3))


@pytest.mark.parametrize(("swing", "ends_s"), [(0.08, 90.0), (0.8, 20.0)])
def test_timed_rounds_that_never_agree_end_at_the_deadline_or_when_it_is_hopeless(fake_clock, swing, ends_s):
    """Two fast rounds and two slow ones alternate; the finding says how long the target would take."""
    series = Series(steps_per_round=25)
    restless = make_loop(fake_clock, step_s=lambda i: 0.02 * (1 + swing * ((i // 50) % 2)), read_s=0.0)
    time_rounds(restless, LONG, series)
    (finding,) = series.findings
    assert finding.kind is FindingKind.NOT_CONVERGED
    assert "which takes about" in finding.limit
    assert sum(r.wall_s for r in series.timed) == pytest.approx(ends_s, abs=1)


def test_rounds_before_a_drop_of_the_clock_are_marked_and_kept(fake_clock):
    series = Series(steps_per_round=25)
    budget = msgspec.structs.replace(LONG, target=1e-5)
    noise = lambda i: 0.02 * (0.97 if i < 600 else 1.0) * (1 + 1e-3 * ((i * 2654435761 >> 8) % 7 - 3))  # noqa: E731
    time_rounds(make_loop(fake_clock, step_s=noise, read_s=0.0), budget, series)
    left_out = [r for r in series.timed if r.left_out == "drift"]
    assert len(left_out) >= 20
    assert series.timed[: len(left_out)] == left_out
    assert FindingKind.DRIFTING in {f.kind for f in series.findings}


def test_a_much_longer_round_is_marked_and_counts(fake_clock):
    """Steps of 20 ms; the machine sleeps for two seconds in step 130, in the sixth round."""
    series = Series(steps_per_round=25)
    budget = msgspec.structs.replace(LONG, timed_s=15.0)
    asleep = make_loop(fake_clock, step_s=lambda i: 2.0 if i == 130 else 0.02, read_s=0.0)
    time_rounds(asleep, budget, series)
    assert [i for i, r in enumerate(series.timed) if r.mark == "clock_gap"] == [5]
    assert series.timed[5].left_out is None


def test_telemetry_of_the_warm_up_is_kept_with_that_of_the_rounds(fake_clock):
    def samples():
        return [TelemetrySample(t_s=fake_clock.now * 1e-9)]

    series = Series()
    loop = make_loop(fake_clock, read_s=0.0, samples=samples)
    warm_up(loop, QUICK, series)
    count = len(series.telemetry)
    assert count == len(series.warmup)
    time_rounds(loop, QUICK, series)
    assert len(series.telemetry) > count + len(series.timed)
    assert sum(s.t_s <= series.began_s for s in series.telemetry) == count + 1


def test_a_deadline_in_the_timed_part_keeps_the_rounds_so_far(fake_clock):
    series = Series(steps_per_round=25)
    loop = make_loop(fake_clock, read_s=0.0)
    loop.deadline_s = loop.clock.now_s() + 3
    time_rounds(loop, LONG, series)
    assert len(series.timed) == 6
    short = Series(steps_per_round=25)
    loop.deadline_s = loop.clock.now_s() + 0.7
    with pytest.raises(OutOfTimeError):
        time_rounds(loop, LONG, short)


def test_rounds_that_were_stopped_are_judged_like_any_others(fake_clock):
    series = Series(steps_per_round=25)
    with pytest.raises(StoppedError):
        time_rounds(make_loop(fake_clock, stopped=lambda: len(series.timed) == 6), LONG, series)
    assert len(series.timed) == 6
    assert {f.kind for f in series.findings} == {FindingKind.NOT_CONVERGED}


def test_the_gradient_scale_is_noted_at_every_round_edge(fake_clock):
    scales = iter(range(1, 100))
    series = Series(steps_per_round=25)
    time_rounds(make_loop(fake_clock, step_state=lambda: StepState(scale=float(next(scales)))), LONG, series)
    assert series.scales == [float(n) for n in range(1, 22)]


def test_short_drifting_series_is_reported_at_its_deadline_with_no_round_excluded(fake_clock):
    """Ten rounds of half a second, each one percent longer."""
    series = Series(steps_per_round=25)
    loop = make_loop(fake_clock, step_s=lambda i: 0.02 * (1 + 0.01 * (i // 25)), read_s=0.0)
    time_rounds(loop, QUICK, series)
    assert len(series.timed) == 10
    assert {f.kind for f in series.findings} == {FindingKind.DRIFTING, FindingKind.NOT_CONVERGED}
    (drift,) = (f for f in series.findings if f.kind is FindingKind.DRIFTING)
    assert drift.value == pytest.approx(1.02 / 1.07 - 1)
    assert drift.limit == 0.005
    assert all(r.left_out is None for r in series.timed)


def test_a_short_series_that_only_spreads_is_not_reported_as_drifting(fake_clock):
    series = Series(steps_per_round=25)
    loop = make_loop(fake_clock, step_s=lambda i: 0.02 * (1 + 0.1 * (i // 25 % 2)), read_s=0.0)
    time_rounds(loop, QUICK, series)
    assert {f.kind for f in series.findings} == {FindingKind.NOT_CONVERGED}


def test_the_budgets_are_those_of_the_contract():
    assert (QUICK.launches, QUICK.target, QUICK.timed_s) == (1, 0.02, 5.0)
    assert (QUICK.warmup_steps, QUICK.warmup_least_s, QUICK.warmup_most_s) == (10, 1.2, 8.0)
    assert (QUICK.round_s, QUICK.window_s, QUICK.judge_temperature) == (0.1, 0.3, False)
    on_cpu = budget_of("quick", on_cpu=True)
    assert (on_cpu.warmup_least_s, on_cpu.window_s) == (2.0, 0.4)
    assert (DEFAULT.launches, DEFAULT.target) == (3, 0.015)
    assert (DEFAULT.timed_least_s, DEFAULT.timed_s) == (2.0, 4.0)
    assert (DEFAULT.warmup_steps, DEFAULT.warmup_least_s, DEFAULT.warmup_most_s) == (10, 1.2, 8.0)
    assert (PUBLISH.launches, PUBLISH.target) == (8, 0.005)
    assert PUBLISH.timed_least_s == PUBLISH.timed_s == 30.0
    assert (PUBLISH.warmup_steps, PUBLISH.warmup_least_s, PUBLISH.warmup_most_s) == (50, 10.0, 180.0)
    assert (PUBLISH.round_s, PUBLISH.window_s, PUBLISH.agreement) == (0.5, 2.0, 0.005)
    assert budget_of("publish", on_cpu=False) is PUBLISH
    assert budget_of("quick", on_cpu=True).warmup_steps == 5
