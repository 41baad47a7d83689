"""Each finding appears for a record with the problem, and not for a record without it."""

from __future__ import annotations

import typing

import msgspec
import pytest
from builders import run_of

from gpubench.findings import INFORMATIVE, UNFOUNDED, describe
from gpubench.measure import checks
from gpubench.models import (
    Execution,
    Finding,
    FindingKind,
    Launch,
    Precision,
    Round,
    Status,
    Switches,
    TaskKind,
    TelemetrySample,
)

K = FindingKind


def kinds(measurement, siblings=(), launches=1):
    judged = checks.judge_measurement(measurement, launches, siblings)
    return {f.kind for f in judged.findings} - {K.SHORT_LOOK}, judged  # most rows of these tests are short


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
    assert "use amp-bf16 or fp32" in describe(Finding(kind=K.LOSS_NOT_FINITE))  # fp16 overflows first
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
def test_events_between_samples_are_found_in_the_drivers_own_counters(
    make_measurement, held_clocks_s, expected
):
    """24 rounds of one second."""
    quiet = samples(*[()] * 200)
    found, _ = kinds(
        make_measurement(walls=(1.0,) * 24, launch={"telemetry": quiet, "held_clocks_s": held_clocks_s})
    )
    assert found == expected


@pytest.mark.parametrize(("held_s", "share"), [(9.0, 0.9), (12.0, 1.0)])
def test_clocks_are_held_down_for_at_most_all_of_the_time(make_measurement, held_s, share):
    """Eight rounds of one second, with pauses, in ten seconds of telemetry."""
    launch = {"telemetry": samples(*[()] * 101), "held_clocks_s": {"power": held_s}}
    _, judged = kinds(make_measurement(walls=(1.0,) * 8, launch=launch))
    (found,) = (f for f in judged.findings if f.kind is K.POWER_LIMITED)
    assert found.value == pytest.approx(share, abs=0.01)


def test_a_throttled_row_may_be_ranked_on_request_and_stays_so_when_judged_again(make_measurement):
    hot = make_measurement(launch={"telemetry": samples(*[("hw_slowdown",)] * 5, *[()] * 95)})
    allowed = checks.judge_measurement(hot, 1, allow_throttled=True)
    assert [f.kind for f in allowed.findings] == [K.THROTTLED_ALLOWED]
    assert [f.kind for f in checks.judge_measurement(allowed, 1).findings] == [K.THROTTLED_ALLOWED]
    assert [f.kind for f in checks.judge_measurement(hot, 1).findings] == [K.THROTTLED]


def test_memory_errors_during_the_run_make_it_invalid_and_a_still_counter_does_not(make_measurement):
    assert kinds(make_measurement(launch={"memory_errors": 1}))[1].status is Status.INVALID
    assert kinds(make_measurement(launch={"memory_errors": 0}))[0] == set()


def test_eager_with_a_faster_graph_is_host_bound(make_measurement, make_case):
    eager = make_measurement(walls=(1.2,) * 24)
    graph = make_measurement(walls=(1.0,) * 24, case=make_case(execution=Execution.GRAPH))
    found, judged = kinds(eager, [graph])
    assert found == {K.HOST_BOUND}
    assert judged.findings[0].value == pytest.approx(1.2)
    assert kinds(make_measurement(walls=(1.11,) * 24), [graph])[0] == {K.HOST_BOUND}
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


def test_without_graph_and_profiler_the_issue_time_decides(make_measurement):
    slow_host, fast_host = (0.95, 1.0) * 3, (0.2, 1.0) * 3
    assert kinds(make_measurement(launch={"host_issue_s": slow_host}))[0] == {K.HOST_BOUND}
    assert kinds(make_measurement(launch={"host_issue_s": fast_host}))[0] == set()


@pytest.mark.parametrize(
    ("work", "of_peak", "expected"),
    [
        ((Precision.FP32, True), 0.99, set()),
        ((Precision.FP32, True), 1.01, {K.ABOVE_PEAK}),
        ((Precision.FP32, True), 2.24, {K.ABOVE_PEAK}),
        ((Precision.FP32, True), 2.26, {K.IMPLAUSIBLE}),
        ((Precision.FP32, None), 2.24, {K.ABOVE_PEAK}),  # an older file lacks ``convolves``
        ((Precision.FP32, False), 0.99, set()),
        ((Precision.FP32, False), 1.01, {K.IMPLAUSIBLE}),
        ((Precision.TF32, True), 0.99, set()),
        ((Precision.TF32, True), 1.01, {K.IMPLAUSIBLE}),
        ((Precision.AMP_BF16, True), 1.01, {K.IMPLAUSIBLE}),
    ],
)
def test_more_than_the_peak_is_implausible_with_room_for_fp32_convolutions(
    make_measurement, make_case, work, of_peak, expected
):
    """640 samples in a round of one second: 640 FLOP/s at one FLOP per sample."""
    precision, convolves = work
    row = make_measurement(
        walls=(1.0,) * 24,
        case=make_case(precision=precision),
        flops_per_sample=1.0,
        peak_flops_per_s=640.0 / of_peak,
        convolves=convolves,
    )
    found, judged = kinds(row)
    assert found == expected
    assert (judged.status is Status.INVALID) == (K.IMPLAUSIBLE in expected)
    # recomputation does not count for MFU, but counts for HFU
    again = msgspec.structs.replace(row, flops_per_sample=0.5, hardware_flops_per_sample=1.0)
    assert kinds(again)[0] == expected


def test_an_unknown_peak_is_reported_once_for_the_run(make_measurement, make_case):
    def row(peak, launch=None, **case):
        return make_measurement(
            case=make_case(**case), flops_per_sample=1.0, peak_flops_per_s=peak, launch=launch
        )

    half_known = [row(None), row(None, batch_size=8), row(9.0, precision=Precision.AMP_BF16)]
    assert checks.of_run(run_of(*half_known)) == (Finding(kind=K.NO_PEAK, value="fp32"),)
    assert checks.of_run(run_of(*half_known, backend="cpu")) == ()
    assert checks.of_run(run_of(row(9.0))) == ()
    assert checks.of_run(run_of(row(None, launch={"rounds": ()}))) == ()
    assert K.NO_PEAK in INFORMATIVE
    assert K.ABOVE_PEAK in INFORMATIVE


def launches_at(make_measurement, *step_s, target=0.005, wobble=0.0):
    """Make one launch per step time, with equal rounds except for a small alternation."""
    walls = [s * 10 * (1 + wobble * (i % 3 - 1)) for s in step_s for i in range(24)]
    whole = make_measurement(walls=walls, target=target)
    (one,) = whole.launches
    parts = [one.rounds[24 * i : 24 * (i + 1)] for i in range(len(step_s))]
    launches = (msgspec.structs.replace(one, index=i, rounds=part) for i, part in enumerate(parts))
    return msgspec.structs.replace(whole, launches=tuple(launches))


def test_launches_that_settle_at_different_speeds_are_reported(make_measurement):
    """22.5, 25.5, 22.5 ms: Student's t of two degrees of freedom, 4.303, times 1.732 / sqrt(3) over 23.5."""
    restless = launches_at(make_measurement, 0.0225, 0.0255, 0.0225)
    found, judged = kinds(restless, launches=3)
    assert found == {K.LAUNCHES_DIFFER, K.NOISY}
    expected = pytest.approx(4.303 * 1.732 / 3**0.5 / 23.5, rel=1e-3)
    assert [(f.value, f.limit) for f in judged.findings[-2:]] == [(expected, 0.005), (expected, 0.05)]
    stored = msgspec.json.decode(msgspec.json.encode(restless), type=type(restless))
    assert kinds(stored, launches=3)[0] == {K.LAUNCHES_DIFFER, K.NOISY}
    unknown = msgspec.structs.replace(restless, target=None)
    assert kinds(unknown, launches=3)[0] == {K.NOISY}
    near = launches_at(make_measurement, 0.0225, 0.0227, 0.0225)  # 1.3 %: wider than requested, but not noisy
    assert kinds(near, launches=3)[0] == {K.LAUNCHES_DIFFER}
    assert K.LAUNCHES_DIFFER in INFORMATIVE
    assert kinds(launches_at(make_measurement, 0.0225, 0.02251, 0.0225), launches=3)[0] == set()
    assert kinds(launches_at(make_measurement, 0.0225))[0] == set()


def test_one_noisy_launch_widens_the_interval_no_more_than_it_moves_the_estimate(make_measurement):
    calm = launches_at(make_measurement, 0.02, 0.02, 0.02, wobble=0.001)
    wild = launches_at(make_measurement, 0.02, 0.02, 0.02, wobble=0.04)
    one = msgspec.structs.replace(calm, launches=(*calm.launches[:2], wild.launches[2]))
    two = msgspec.structs.replace(calm, launches=(calm.launches[0], *wild.launches[1:]))
    assert one.relative_half_width == pytest.approx(calm.relative_half_width)
    assert two.relative_half_width == pytest.approx(wild.relative_half_width)
    assert wild.relative_half_width > 10 * calm.relative_half_width


def test_unconverged_launch_is_flagged_from_the_stored_rounds(make_measurement):
    """The interval is too wide, or narrow by chance after six rounds; the finding is not repeated."""
    wide = make_measurement(walls=(1.0, 1.02, 0.98) * 8, target=0.002)
    found, judged = kinds(wide)
    assert found == {K.NOT_CONVERGED}
    width = wide.relative_half_width
    (said,) = (f for f in judged.findings if f.kind is K.NOT_CONVERGED)
    assert said.value == width
    assert said.limit.startswith("0.20 %, which takes about ")
    both = make_measurement(walls=(1.0, 1.02, 0.98) * 8, target=0.002, launch={"findings": (said,)})
    assert [f for f in kinds(both)[1].findings if f.kind is K.NOT_CONVERGED] == [said]
    few, _ = kinds(make_measurement(walls=(1.0,) * 6, target=0.002))[1].findings
    assert (few.kind, few.value, few.limit) == (K.NOT_CONVERGED, "6 rounds", "10 rounds")
    drifting = tuple(1.0 + 0.001 * i for i in range(24))  # 0.7 % spread, and each round like the last
    assert kinds(make_measurement(walls=drifting, target=0.02))[0] == {K.NOT_CONVERGED}
    assert kinds(make_measurement(walls=(1.0,) * 24, target=0.002))[0] == set()
    assert kinds(make_measurement(walls=(1.0, 1.02, 0.98) * 8))[0] == set()


def test_among_several_findings_of_a_kind_the_largest_stays():
    def drift(*values):
        (kept,) = checks.unique(Finding(kind=K.DRIFTING, value=v) for v in values)
        return kept.value

    assert drift(-0.08, 0.006) == -0.08
    assert drift(0.006, -0.08) == -0.08
    assert drift(0.08, -0.006) == 0.08
    assert drift(None, 0.01) == 0.01
    assert drift(0.01, "not finite") == "not finite"
    assert drift("not finite", 0.01) == "not finite"
    assert drift("first", "second") == "first"


def strict(**changes):
    fields = {
        "cudnn_allow_tf32": False,
        "matmul_allow_tf32": False,
        "conv_fp32_precision": "ieee",
        "rnn_fp32_precision": "ieee",
        "matmul_fp32_precision": "ieee",
    }
    return Switches(**(fields | changes))


def test_a_switch_with_a_wrong_value_makes_the_row_invalid(make_measurement, make_case):
    assert kinds(make_measurement(launch={"switches": strict()}))[0] == set()
    found, judged = kinds(make_measurement(launch={"switches": strict(matmul_allow_tf32=True)}))
    assert found == {K.SWITCHES_CHANGED}
    assert judged.findings[0].value == "matmul_allow_tf32=True"
    assert judged.status is Status.INVALID
    tf32 = make_measurement(case=make_case(precision=Precision.TF32), launch={"switches": strict()})
    assert kinds(tf32)[0] == {K.SWITCHES_CHANGED}


@pytest.mark.parametrize("error", [None, float("nan"), float("inf")])
def test_a_probe_error_that_is_not_a_number_does_not_prove_fp32(make_measurement, make_case, error):
    launch = {"precision_errors": {"matmul": 5e-7, "conv": error}}
    row = make_measurement(launch=launch)
    assert kinds(row)[0] == {K.TF32_IN_FORCE}
    stored = msgspec.json.decode(msgspec.json.encode(row), type=type(row))
    assert kinds(stored)[0] == {K.TF32_IN_FORCE}
    amp = make_measurement(case=make_case(precision=Precision.AMP_BF16), launch=launch)
    assert kinds(amp)[0] == {K.PRECISION_UNPROVEN}


@pytest.mark.parametrize("error", [None, float("nan"), 1e-5, 5e-7])
def test_fp32_is_unproven_if_tf32_passes_the_same_proof(make_measurement, error):
    launch = {"precision_errors": {"matmul": 5e-7, "conv": 3e-7}, "control_errors": {"matmul": 3e-4}}
    assert kinds(make_measurement(launch=launch))[0] == set()
    launch["control_errors"] |= {"conv": error}
    found, judged = kinds(make_measurement(launch=launch))
    assert found == {K.PRECISION_UNPROVEN}
    assert (judged.status, judged.findings[0].value) == (Status.OK, "conv under TF32")


def test_a_recurrent_layer_under_tf32_must_err_more_than_its_own_limit(make_measurement):
    launch = {"precision_errors": {"matmul": 5e-7, "rnn": 6e-6}, "control_errors": {"rnn": 4e-5}}
    assert kinds(make_measurement(launch=launch))[0] == {K.PRECISION_UNPROVEN}


@pytest.mark.parametrize(
    ("came_s", "found"),
    [(None, set()), (0.0, set()), (23.0, set()), (28.7, set()), (28.8, {K.CLOCK_DISAGREES})],
)
def test_round_times_must_add_up_to_their_arrival_times(make_measurement, came_s, found):
    """24 rounds of a second: they arrive within 23 s of the first, and the limit is four fifths of that."""
    row = make_measurement(launch={"rounds": rounds([1.0] * 24), "told_in_s": came_s})
    seen, judged = kinds(row)
    assert seen == found
    assert judged.status is (Status.INVALID if found else Status.OK)


@pytest.mark.parametrize(
    ("load", "found"), [(0.1, {K.CLOCK_DISAGREES}), (0.9, {K.HOST_BUSY, K.CLOCK_DISAGREES})]
)
def test_a_wrong_clock_is_detected_in_a_short_series_and_on_a_busy_host(make_measurement, load, found):
    launch = {"rounds": rounds([0.1] * 11), "told_in_s": 1.26, "host_load": load}
    assert kinds(make_measurement(launch=launch))[0] == found


@pytest.mark.parametrize(
    ("changes", "found", "share"),
    [
        ({"gemm_flops_per_s": 1e12}, set(), 1.0),
        ({"gemm_flops_per_s": 0.5e12, "convolves": True}, {K.ABOVE_PEAK}, 2.0),
        ({"gemm_flops_per_s": 0.5e12}, {K.ABOVE_PEAK}, 2.0),
        ({"gemm_flops_per_s": 0.5e12, "convolves": False}, {K.PRODUCT_IMPLAUSIBLE}, None),
        ({"gemm_flops_per_s": 0.4e12}, {K.PRODUCT_IMPLAUSIBLE}, None),
        ({"gemm_flops_per_s": 0.4e12, "peak_flops_per_s": 2e12}, {K.PRODUCT_IMPLAUSIBLE}, None),
        ({"gemm_flops_per_s": 0.4e12, "peak_flops_per_s": 0.4e12}, {K.IMPLAUSIBLE}, None),
    ],
)
def test_a_row_faster_than_the_best_product_is_wrong_or_the_product_is(
    make_measurement, changes, found, share
):
    """On a busy CPU a row reached 240 % of the fastest matrix product; the row was right."""
    plain = msgspec.structs.replace(make_measurement(), peak_flops_per_s=None)
    row = msgspec.structs.replace(plain, flops_per_sample=1e12 / plain.samples_per_s, **changes)
    seen, judged = kinds(row)
    assert seen == found
    assert judged.status is (Status.INVALID if K.IMPLAUSIBLE in found else Status.OK)
    assert judged.mfu_of_gemm == (share if share is None else pytest.approx(share))


def test_the_slope_over_two_calls_is_not_compared_with_the_time_of_all_calls(make_measurement):
    slopes = tuple(msgspec.structs.replace(done, call_s=0.5) for done in rounds([0.01] * 24))
    assert kinds(make_measurement(launch={"rounds": slopes, "told_in_s": 20.0}))[0] == set()


@pytest.mark.parametrize(
    ("launch", "found"),
    [
        ({"host_load": 0.5, "host_steal": 0.02}, set()),
        ({"host_load": 0.51}, {K.HOST_BUSY}),
        ({"host_steal": 0.021}, {K.HOST_BUSY}),
        ({}, set()),
    ],
)
def test_a_busy_host_is_reported_and_the_row_stays(make_measurement, launch, found):
    seen, judged = kinds(make_measurement(launch=launch))
    assert (seen, judged.status) == (found, Status.OK)


def test_a_row_from_a_busy_host_or_without_proof_neither_leads_nor_anchors():
    assert {K.HOST_BUSY, K.PRECISION_UNPROVEN} == UNFOUNDED
    assert not UNFOUNDED & INFORMATIVE


def test_fp32_without_a_probe_is_unproven(make_measurement, make_case):
    launch = {"precision_errors": {}}
    assert kinds(make_measurement(launch=launch))[0] == {K.PRECISION_UNPROVEN}
    assert K.PRECISION_UNPROVEN not in INFORMATIVE
    assert kinds(make_measurement(case=make_case(precision=Precision.TF32), launch=launch))[0] == set()


def test_the_issue_time_is_ignored_if_the_scaler_waits(make_measurement, make_case):
    def row(fused, **case):
        launch = {"host_issue_s": (0.95, 1.0) * 3, "fused": fused}
        return make_measurement(case=make_case(**case), launch=launch)

    fp16 = {"precision": Precision.AMP_FP16}
    assert kinds(row(False, **fp16))[0] == set()
    assert kinds(row(None, **fp16))[0] == set()
    assert kinds(row(True, **fp16))[0] == {K.HOST_BOUND}
    assert kinds(row(False, precision=Precision.AMP_BF16))[0] == {K.HOST_BOUND}
    assert kinds(row(None, **fp16, task=TaskKind.INFER))[0] == {K.HOST_BOUND}


def test_an_invalid_row_full_of_not_a_number_is_stored_and_read_back(make_measurement):
    """Every field of a launch that may be a float; the clock's own times are whole nanoseconds."""

    def wild(kind):
        if typing.get_origin(kind) is dict:
            return {"a": float("nan"), "b": 1.0}
        if typing.get_origin(kind) is tuple:
            return (float("nan"), 1.0)
        return float("nan")

    floats = {
        name: wild(kind)
        for name, kind in typing.get_type_hints(Launch).items()
        if not name.startswith("_") and "float" in str(kind)
    }
    assert {"precision_errors", "event_s", "host_issue_s", "latency_s", "cold_s", "held_clocks_s"} <= set(
        floats
    )
    assert {"reference_error", "graph_error", "gpu_busy", "loss_curve", "energy_j"} <= set(floats)
    row = make_measurement(launch=floats)
    stored = msgspec.json.decode(msgspec.json.encode(row), type=type(row))
    judged = kinds(stored)[1]
    assert judged.status is Status.INVALID
    again = msgspec.json.decode(msgspec.json.encode(judged), type=type(judged))
    assert again == judged
    assert (again.launches[0].event_s, again.launches[0].precision_errors) == (
        (None, 1.0),
        {"a": None, "b": 1.0},
    )


WITHIN, BEYOND = 0.99, 1.01
"""Values just inside and just outside a limit."""


def reference(precision, limit):
    return lambda share: ({"reference_error": limit * share}, {"precision": precision}, K.LOSS_DIFFERS)


LIMITS = {
    "noise": lambda share: ({"rounds": quartiles(0.05 * share)}, {}, K.NOISY),
    "gap": lambda share: ({"rounds": rounds([1.0] * 23 + [2.0 * share])}, {}, K.CLOCK_GAP),
    "probe": lambda share: ({"precision_errors": {"conv": 1e-5 * share}}, {}, K.TF32_IN_FORCE),
    "probe of a recurrent layer": lambda share: (
        {"precision_errors": {"conv": 1e-6, "rnn": 4.5e-5 * share}},
        {},
        K.TF32_IN_FORCE,
    ),
    "loss fp32": reference(Precision.FP32, 1e-4),
    "loss tf32": reference(Precision.TF32, 1e-2),
    "loss amp-fp16": reference(Precision.AMP_FP16, 2e-2),
    "loss amp-bf16": reference(Precision.AMP_BF16, 2e-2),
    "graph": lambda share: ({"graph_error": 1e-4 * share}, {}, K.LOSS_DIFFERS),
    "skipped": lambda share: (
        {"skipped_steps": round(500 * share), "timed_steps": 10_000},
        {"precision": Precision.AMP_FP16},
        K.STEPS_SKIPPED,
    ),
    "issue": lambda share: ({"host_issue_s": (0.9 * share, 1.0) * 3}, {}, K.HOST_BOUND),
    "busy": lambda share: ({"gpu_busy": 0.9 / share}, {}, K.HOST_BOUND),
}


def rounds(walls):
    return tuple(Round(steps=10, wall_s=w, loss=2.0 - 0.01 * i) for i, w in enumerate(walls))


def quartiles(spread):
    """24 rounds with quartiles ``spread`` apart, around a median of 1 s."""
    return rounds([1 - spread / 2, 1 - spread / 2, 1.0, 1.0, 1 + spread / 2, 1 + spread / 2] * 4)


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_is_the_one_in_the_contract(make_measurement, make_case, name):
    for share in (WITHIN, BEYOND):
        launch, case, kind = LIMITS[name](share)
        found, _ = kinds(make_measurement(case=make_case(**case), launch=launch))
        assert found == ({kind} if share > 1 else set()), share


def test_fewer_launches_than_planned_are_reported(make_measurement):
    assert kinds(make_measurement(), launches=3)[0] == {K.LAUNCHES_MISSING}


def test_integrated_or_missing_energy_is_reported_and_a_short_region_is_not_a_fault(make_measurement):
    assert kinds(make_measurement(launch={"energy_source": "power_integral"}))[0] == {K.NO_ENERGY_COUNTER}
    unknown = {"energy_source": None}
    assert kinds(make_measurement(walls=(1.0,) * 24, launch=unknown))[0] == {K.NO_ENERGY_COUNTER}
    assert kinds(make_measurement(walls=(0.1,) * 24, launch=unknown))[0] == set()


def test_findings_of_the_child_are_passed_on(make_measurement):
    own = (Finding(kind=K.NOT_STEADY, value="temperature"), Finding(kind=K.DRIFTING, value=-0.02))
    assert kinds(make_measurement(launch={"findings": own}))[0] == {K.NOT_STEADY, K.DRIFTING}


def test_a_device_without_telemetry_is_reported_once_for_the_run(make_measurement):
    bare = make_measurement()
    bare = msgspec.structs.replace(
        bare, launches=(msgspec.structs.replace(bare.launches[0], telemetry_source="none"),)
    )
    assert [f.kind for f in checks.of_run(run_of(bare))] == [K.NO_TELEMETRY]
    assert [f.kind for f in checks.of_run(run_of(bare, budget="quick"))] == [K.NO_TELEMETRY]
    assert checks.of_run(run_of(make_measurement())) == ()


@pytest.mark.parametrize(("seconds", "said"), [(0.1, True), (0.33, True), (0.34, False)])
def test_short_row_states_what_it_was_too_short_to_detect(make_measurement, seconds, said):
    """24 rounds: 8 s of them show a stall that occurs every 7 s."""
    judged = checks.judge_measurement(make_measurement(walls=(seconds,) * 24), 1)
    found = [(f.value, f.limit) for f in judged.findings if f.kind is K.SHORT_LOOK]
    assert found == ([(f"{24 * seconds:.1f} s a launch", "8 s")] if said else [])
    assert K.SHORT_LOOK in INFORMATIVE


def heated(make_measurement, celsius, clocks=(1.98e9,) * 3):
    row = launches_at(make_measurement, 0.0225, 0.02251, 0.0225)
    launches = (
        msgspec.structs.replace(
            launch, telemetry=(TelemetrySample(t_s=0.1, temperature_c=degrees, sm_clock_hz=clock),)
        )
        for launch, degrees, clock in zip(row.launches, celsius, clocks, strict=True)
    )
    return msgspec.structs.replace(row, launches=tuple(launches))


def test_a_card_that_is_still_warming_up_lowers_the_low_end_and_is_reported(make_measurement):
    steady, warming = (heated(make_measurement, (50.0, 60.0, last)) for last in (60.0, 63.0))
    assert K.NOT_HEAT_SOAKED not in kinds(steady, launches=3)[0]
    found, judged = kinds(warming, launches=3)
    assert K.NOT_HEAT_SOAKED in found
    (said,) = (f for f in judged.findings if f.kind is K.NOT_HEAT_SOAKED)
    assert said.value == warming.slowing_to_come > 0.014
    assert "not heat-soaked" in describe(said)
    assert warming.samples_per_s_high == steady.samples_per_s_high
    lower = warming.samples_per_s / (1 + warming.relative_half_width + said.value)
    assert warming.samples_per_s_low == pytest.approx(lower)
    assert lower < steady.samples_per_s_low


def test_a_run_of_one_launch_says_that_its_intervals_cover_one_process(make_measurement):
    """In an interrupted run of three launches, each row says which launches are missing."""
    run = msgspec.structs.replace(run_of(make_measurement()), launch_count=1)
    assert [f.kind for f in checks.of_run(run)] == [K.ONE_PROCESS]
    assert checks.of_run(msgspec.structs.replace(run, launch_count=3)) == ()
    assert checks.of_run(msgspec.structs.replace(run, measurements=())) == ()


def test_events_of_the_warm_up_do_not_count_against_the_rounds(make_measurement):
    """The device was throttled and idle before the first timed round, and neither after that."""
    early = TelemetrySample(t_s=-1.0, clock_event_reasons=("hw_thermal_slowdown",), idle=True)
    late = TelemetrySample(t_s=0.0, clock_event_reasons=(), idle=False)
    assert kinds(make_measurement(launch={"telemetry": (early, late)}))[0] == set()
    shown = TelemetrySample(t_s=0.1, clock_event_reasons=("hw_thermal_slowdown",), idle=True)
    assert kinds(make_measurement(launch={"telemetry": (early, shown)}))[0] == {K.THROTTLED, K.HOST_BOUND}


def test_every_kind_of_finding_has_a_text_and_a_next_action():
    for kind in FindingKind:
        assert ";" in describe(Finding(kind=kind))


@pytest.mark.parametrize(
    ("began", "ended", "said"),
    [
        (("00:00:05", "00:01:30"), "00:02:00", None),
        (("00:01:30", "00:01:10"), "00:02:00", None),  # the network may correct a clock by this much
        (("00:00:05", "00:01:30"), None, None),  # the run continues
        ((None, None), "00:02:00", None),  # as in older files
        (("00:10:00", "00:01:00"), "00:12:00", "2026-11-20T00:10:00Z, then 2026-11-20T00:01:00Z"),
        (("00:00:05", "00:10:00"), "00:01:00", "2026-11-20T00:10:00Z, then 2026-11-20T00:01:00Z"),
    ],
)
def test_dates_that_go_back_show_that_the_clock_was_set_back(make_measurement, began, ended, said):
    def at(time):
        return time and f"2026-11-20T{time}Z"

    first, second = (
        make_measurement(launch={"sequence": place, "began_at": at(time)}) for place, time in enumerate(began)
    )
    run = msgspec.structs.replace(run_of(second, first), started_at=at("00:00:00"), finished_at=at(ended))
    found = [each.value for each in checks.of_run(run) if each.kind is K.CLOCK_SET_BACK]
    assert found == ([said] if said else [])
    assert K.CLOCK_SET_BACK in INFORMATIVE
