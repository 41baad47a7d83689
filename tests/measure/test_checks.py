"""Every finding from a record that shows it, and none from one that does not."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.findings import describe
from gpubench.measure import checks
from gpubench.models import (
    DeviceProfile,
    Environment,
    Execution,
    Finding,
    FindingKind,
    Precision,
    Round,
    Run,
    Status,
    TaskKind,
    TelemetrySample,
)

K = FindingKind


def kinds(measurement, siblings=(), launches=1):
    judged = checks.judge(measurement, launches, siblings)
    return {f.kind for f in judged.findings}, judged


def samples(*reasons: tuple[str, ...]):
    return tuple(TelemetrySample(t_s=0.1 * i, clock_event_reasons=r) for i, r in enumerate(reasons))


def test_a_sound_row_has_no_finding(make_measurement):
    found, judged = kinds(make_measurement())
    assert found == set()
    assert judged.status is Status.OK


@pytest.mark.parametrize(
    ("launch", "kind"),
    [
        ({"precision_errors": {"matmul": 3e-4, "conv": 4e-7}}, K.TF32_IN_FORCE),
        ({"reference_error": 2e-4}, K.LOSS_DIFFERS),
        ({"graph_error": 2e-4}, K.LOSS_DIFFERS),
        ({"parameters_moved": False}, K.PARAMETERS_FROZEN),
        ({"skipped_steps": 30}, K.STEPS_SKIPPED),
    ],
)
def test_unsound_work_makes_the_row_invalid(make_measurement, launch, kind):
    found, judged = kinds(make_measurement(launch=launch))
    assert kind in found
    assert judged.status is Status.INVALID
    assert kind in judged.reason


def test_amp_may_differ_more_and_its_switches_may_be_tf32(make_measurement, make_case):
    launch = {"precision_errors": {"matmul": 3e-4}, "reference_error": 1e-2}
    found, _ = kinds(make_measurement(case=make_case(precision=Precision.AMP_BF16), launch=launch))
    assert found == set()


def test_a_loss_that_is_not_a_number_makes_the_row_invalid(make_measurement):
    found, judged = kinds(make_measurement(losses=[1.0] * 23 + [float("nan")]))
    assert found == {K.LOSS_NOT_FINITE}
    assert judged.status is Status.INVALID
    stored = msgspec.json.decode(msgspec.json.encode(judged), type=type(judged))
    assert stored.loss_trace[-1] is None


def test_a_loss_that_does_not_fall_makes_training_invalid_and_not_inference(make_measurement, make_case):
    flat = [2.0] * 24
    assert K.LOSS_NOT_FALLING in kinds(make_measurement(losses=flat))[0]
    assert kinds(make_measurement(losses=flat, case=make_case(task=TaskKind.INFER)))[0] == set()


def test_the_loss_trace_starts_at_the_seed_and_counts_the_warm_up(make_measurement):
    warmup = tuple(Round(steps=1, wall_s=1.0, loss=9.0 - i) for i in range(5))
    m = make_measurement(losses=[0.001] * 24, launch={"warmup": warmup, "loss_curve": (10.0, 9.5)})
    found, judged = kinds(m)
    assert judged.loss_trace[:3] == (10.0, 9.5, 9.0)
    assert found == set()


@pytest.mark.parametrize(("count", "expected"), [(100, 20), (24, 4), (10, 4), (6, 3), (5, 2)])
def test_a_fifth_holds_a_whole_rotation_of_batches(count, expected):
    assert checks.fifth(count) == expected


def test_rounds_that_spread_are_noisy(make_measurement):
    found, judged = kinds(make_measurement(walls=(1.0, 1.1) * 12))
    assert found == {K.NOISY}
    assert judged.status is Status.OK


def test_a_round_twice_as_long_as_the_others_is_a_gap_in_the_clock(make_measurement):
    assert kinds(make_measurement(walls=(1.0,) * 23 + (2.5,)))[0] == {K.CLOCK_GAP}


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([()] * 200, set()),
        ([("sw_power_cap",)] * 20 + [()] * 180, {K.POWER_LIMITED}),
        ([("sw_power_cap",)] * 19 + [()] * 181, set()),
        ([("sw_thermal_slowdown",)] * 2 + [()] * 198, {K.THROTTLED}),
        ([("hw_slowdown",)] + [("hw_thermal_slowdown",)] + [()] * 198, {K.THROTTLED}),
        ([("hw_thermal_slowdown",)] + [()] * 199, set()),
        ([("hw_power_brake_slowdown",)] + [()] * 199, {K.THROTTLED}),
        ([("display_clock_setting", "0x200")] * 200, {K.CLOCK_EVENTS}),
    ],
)
def test_clock_event_reasons_are_judged_by_their_share(make_measurement, reasons, expected):
    found, judged = kinds(make_measurement(launch={"telemetry": samples(*reasons)}))
    assert found == expected
    assert judged.status is Status.OK


@pytest.mark.parametrize(
    ("held_clocks_s", "expected"),
    [
        ({"thermal": 0.0, "power": 0.0, "reliability": 0.0}, set()),
        ({"thermal": 0.24}, {K.THROTTLED}),
        ({"thermal": 0.23}, set()),
        ({"power": 2.5}, {K.POWER_LIMITED}),
        ({"power": 2.3}, set()),
        ({"low_utilization": 24.0}, set()),
        ({"board_limit": 0.24, "reliability": 0.24}, {K.CLOCK_EVENTS}),
    ],
)
def test_what_falls_between_samples_is_found_in_the_drivers_own_counters(
    make_measurement, held_clocks_s, expected
):
    """24 rounds of one second."""
    quiet = samples(*[()] * 200)
    found, _ = kinds(
        make_measurement(walls=(1.0,) * 24, launch={"telemetry": quiet, "held_clocks_s": held_clocks_s})
    )
    assert found == expected


def test_a_throttled_row_may_be_ranked_on_request_and_stays_so_when_judged_again(make_measurement):
    hot = make_measurement(launch={"telemetry": samples(*[("hw_slowdown",)] * 5, *[()] * 95)})
    allowed = checks.judge(hot, 1, allow_throttled=True)
    assert [f.kind for f in allowed.findings] == [K.THROTTLED_ALLOWED]
    assert [f.kind for f in checks.judge(allowed, 1).findings] == [K.THROTTLED_ALLOWED]
    assert [f.kind for f in checks.judge(hot, 1).findings] == [K.THROTTLED]


def test_memory_errors_during_the_run_make_it_invalid_and_a_still_counter_does_not(make_measurement):
    assert kinds(make_measurement(launch={"memory_errors": 1}))[1].status is Status.INVALID
    assert kinds(make_measurement(launch={"memory_errors": 0}))[0] == set()


def test_eager_beside_a_faster_graph_is_host_bound(make_measurement, make_case):
    eager = make_measurement(walls=(1.2,) * 24)
    graph = make_measurement(walls=(1.0,) * 24, case=make_case(execution=Execution.GRAPH))
    found, judged = kinds(eager, [graph])
    assert found == {K.HOST_BOUND}
    assert judged.findings[0].value == pytest.approx(1.2)
    near = make_measurement(walls=(1.09,) * 24)
    assert kinds(near, [graph])[0] == set()
    assert kinds(graph, [eager])[0] == set()


def test_a_gpu_that_idles_is_host_bound(make_measurement):
    assert kinds(make_measurement(launch={"gpu_busy": 0.26}))[0] == {K.HOST_BOUND}
    assert kinds(make_measurement(launch={"gpu_busy": 1.03}))[0] == set()


def test_a_device_that_reports_idle_while_rounds_are_timed_is_host_bound(make_measurement, make_case):
    idle = tuple(TelemetrySample(t_s=0.1 * i, clock_event_reasons=(), idle=i == 7) for i in range(20))
    found, judged = kinds(make_measurement(launch={"gpu_busy": 0.97, "telemetry": idle}))
    assert found == {K.HOST_BOUND}
    assert (judged.findings[0].value, judged.findings[0].limit) == (0.05, 0.0)
    assert kinds(make_measurement(launch={"telemetry": idle[:7]}))[0] == set()
    graph = make_measurement(case=make_case(execution=Execution.GRAPH), launch={"telemetry": idle})
    assert kinds(graph)[0] == set()


def test_without_graph_and_profiler_the_issue_time_tells(make_measurement):
    slow_host, fast_host = (0.95, 1.0) * 3, (0.2, 1.0) * 3
    assert kinds(make_measurement(launch={"host_issue_s": slow_host}))[0] == {K.HOST_BOUND}
    assert kinds(make_measurement(launch={"host_issue_s": fast_host}))[0] == set()


def test_more_than_the_peak_is_implausible_with_room_for_fp32_convolutions(make_measurement, make_case):
    """640 samples a round of one second: 640 FLOP/s at one FLOP a sample."""

    def row(precision, peak):
        return make_measurement(
            walls=(1.0,) * 24,
            case=make_case(precision=precision),
            flops_per_sample=1.0,
            peak_flops_per_s=peak,
        )

    assert kinds(row(Precision.AMP_BF16, 600.0))[0] == {K.IMPLAUSIBLE}
    assert kinds(row(Precision.AMP_BF16, 600.0))[1].status is Status.INVALID
    assert kinds(row(Precision.FP32, 600.0))[0] == set()
    assert kinds(row(Precision.FP32, 640 / 2.3))[0] == {K.IMPLAUSIBLE}


def test_fewer_launches_than_planned_are_said(make_measurement):
    assert kinds(make_measurement(), launches=3)[0] == {K.LAUNCHES_MISSING}


def test_energy_that_was_integrated_or_is_missing_is_said_and_a_short_region_is_no_fault(make_measurement):
    assert kinds(make_measurement(launch={"energy_source": "power_integral"}))[0] == {K.NO_ENERGY_COUNTER}
    unknown = {"energy_source": None}
    assert kinds(make_measurement(walls=(1.0,) * 24, launch=unknown))[0] == {K.NO_ENERGY_COUNTER}
    assert kinds(make_measurement(walls=(0.1,) * 24, launch=unknown))[0] == set()


def test_what_only_the_child_could_see_is_passed_on(make_measurement):
    own = (Finding(kind=K.NOT_STEADY, value="temperature"), Finding(kind=K.DRIFTING, value=-0.02))
    assert kinds(make_measurement(launch={"findings": own}))[0] == {K.NOT_STEADY, K.DRIFTING}


def run_of(*measurements, budget="default", **device):
    return Run(
        run_id="x",
        started_at="2026-11-20T00:00:00Z",
        budget=budget,
        seed=0,
        device=DeviceProfile(backend="cuda", **device),
        environment=Environment(gpubench="0", python="3.11", os="linux"),
        measurements=measurements,
    )


def test_a_device_without_telemetry_is_said_once_for_the_run(make_measurement):
    bare = make_measurement()
    bare = msgspec.structs.replace(
        bare, launches=(msgspec.structs.replace(bare.launches[0], telemetry_source="none"),)
    )
    assert [f.kind for f in checks.of_run(run_of(bare))] == [K.NO_TELEMETRY]
    assert [f.kind for f in checks.of_run(run_of(bare, budget="quick"))] == [K.NO_TELEMETRY]
    assert checks.of_run(run_of(make_measurement())) == ()


def test_what_a_device_did_in_the_warm_up_is_not_held_against_the_rounds(make_measurement, make_case):
    """Before the first timed round it was throttled and idle, after it neither."""
    early = TelemetrySample(t_s=-1.0, clock_event_reasons=("hw_thermal_slowdown",), idle=True)
    late = TelemetrySample(t_s=0.0, clock_event_reasons=(), idle=False)
    assert kinds(make_measurement(launch={"telemetry": (early, late)}))[0] == set()
    shown = TelemetrySample(t_s=0.1, clock_event_reasons=("hw_thermal_slowdown",), idle=True)
    assert kinds(make_measurement(launch={"telemetry": (early, shown)}))[0] == {K.THROTTLED, K.HOST_BOUND}


def test_every_kind_of_finding_has_words_and_a_next_action():
    for kind in FindingKind:
        assert ";" in describe(Finding(kind=kind))
