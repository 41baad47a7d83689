"""Checks, comparisons and the effects of AMP and of more GPUs on scripted records, and the verbs that print them."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from command import here

from gpubench.effects import amp_effects, document, ratio, results_of, scaling_effects
from gpubench.errors import MisuseError
from gpubench.findings import INFORMATIVE
from gpubench.heat import Moment
from gpubench.interval import Interval
from gpubench.models import (
    DeviceProfile,
    Execution,
    Finding,
    FindingKind,
    Launch,
    MicroResult,
    Precision,
    Round,
    Status,
    Switches,
)
from gpubench.record import store
from gpubench.record.compare import Comparison, Row, compare
from gpubench.record.request import read_tolerance
from gpubench.record.run_check import check_run
from gpubench.units import GIB


def launch(index=0, step_s=0.1, spread=0.01, **changes):
    walls = [step_s * 4 * (1 + spread * (i % 3 - 1)) for i in range(24)]
    rounds = tuple(Round(steps=4, wall_s=w, loss=2.0 - 0.01 * i) for i, w in enumerate(walls))
    fields = {
        "telemetry_source": "nvml",
        "energy_source": "counter",
        "precision_errors": {"matmul": 5e-7},
        "switches": Switches(
            cudnn_allow_tf32=False,
            matmul_allow_tf32=False,
            conv_fp32_precision="ieee",
            rnn_fp32_precision="ieee",
            matmul_fp32_precision="ieee",
        ),
        "reference_error": 1e-7,
        "parameters_moved": True,
    }
    return Launch(index=index, rounds=rounds, **(fields | changes))


def with_launch(run, *launches, **case_changes):
    row = run.measurements[0]
    case = msgspec.structs.replace(row.case, **case_changes)
    row = msgspec.structs.replace(
        row, case=case, launches=launches, flops_per_sample=1e6, peak_flops_per_s=66.9e12
    )
    return msgspec.structs.replace(
        run, measurements=(row,), finished_at="2026-11-20T00:10:00Z", planned=(case,), budget="default"
    )


def typed(*arguments):
    done = here(*arguments)
    return done.returncode, done.stdout, done.stderr


# --- check --------------------------------------------------------------------------------------------------


def test_a_sound_run_has_no_problem(make_run):
    found = check_run(with_launch(make_run(), launch()))
    assert found.issues == ()
    assert found.trustworthy


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"gpu_busy": 0.2}, "HOST_BOUND"),
        ({"spread": 0.2}, "NOISY"),
        ({"findings": (Finding(kind=FindingKind.NOT_STEADY, value="step time"),)}, "NOT_STEADY"),
        ({"precision_errors": {"conv": 3e-4}}, "TF32_IN_FORCE"),
        ({"memory_errors": 2}, "MEMORY_ERRORS"),
    ],
)
def test_doubts_about_a_row_are_named_with_a_fix(make_run, changes, kind):
    found = check_run(with_launch(make_run(), launch(**changes)))
    (issue,) = [d for d in found.issues if d.kind == kind]
    assert issue.weight == "problem"
    assert ";" in issue.text
    assert not found.trustworthy


@pytest.mark.parametrize("kind", [FindingKind.POWER_CAPPED, FindingKind.SHARED_GPU])
def test_doubts_about_the_whole_run_are_named(make_run, kind):
    run = msgspec.structs.replace(
        with_launch(make_run(), launch()), findings=(Finding(kind=kind, value=0.6),)
    )
    found = check_run(run)
    assert [(d.kind, d.case, d.weight) for d in found.issues] == [(kind, None, "problem")]


def test_a_variable_that_slows_every_step_is_a_problem(make_run):
    run = with_launch(make_run(), launch())
    environment = msgspec.structs.replace(run.environment, variables={"CUDA_LAUNCH_BLOCKING": "1"})
    slow = msgspec.structs.replace(run, environment=environment)
    (issue,) = (each for each in check_run(slow).issues if each.weight == "problem")
    assert issue.kind == "SLOWED"
    assert issue.text.startswith("CUDA_LAUNCH_BLOCKING=1 makes every kernel wait")
    assert check_run(card(slow, backend="cpu")).trustworthy


def test_missing_energy_and_telemetry_are_notes(make_run):
    long = launch(energy_source=None, step_s=1.0)
    found = check_run(with_launch(make_run(), long))
    assert [(d.kind, d.weight) for d in found.issues] == [("NO_ENERGY_COUNTER", "note")]
    assert found.trustworthy
    assert FindingKind.NO_TELEMETRY in INFORMATIVE


def test_interrupted_run_and_its_unmeasured_cases_are_problems(make_run):
    run = with_launch(make_run(), launch())
    other = msgspec.structs.replace(run.planned[0], workload="vgg16")
    found = check_run(msgspec.structs.replace(run, finished_at=None, planned=(*run.planned, other)))
    assert {d.kind for d in found.issues} == {"UNFINISHED", "NOT_MEASURED"}
    assert all(f"`gpubench run --resume {run.run_id}`" in d.text for d in found.issues)


def test_a_run_that_was_interrupted_and_its_case_say_so_and_how_to_continue(make_run):
    run = with_launch(make_run(), launch())
    cut = msgspec.structs.replace(
        run.measurements[0], status=Status.INTERRUPTED, reason="stopped during warm-up"
    )
    found = check_run(
        msgspec.structs.replace(
            run, finished_at="2026-11-20T00:10:00Z", interrupted=True, measurements=(cut,)
        )
    )
    assert [d.kind for d in found.issues[:2]] == ["INTERRUPTED", "INTERRUPTED"]
    assert all(f"`gpubench run --resume {run.run_id}`" in d.text for d in found.issues[:2])
    assert found.issues[1].text.startswith("interrupted: ")


def test_a_case_that_ran_out_of_time_has_a_next_action(make_run):
    run = with_launch(make_run(), launch())
    late = msgspec.structs.replace(run.measurements[0], status=Status.TIMEOUT, reason="the time limit came")
    (issue, *_) = check_run(msgspec.structs.replace(run, measurements=(late,))).issues
    assert issue.text.startswith("timeout: ")
    assert f"`gpubench run --resume {run.run_id}`, with more time" in issue.text


def test_impossible_scaling_is_a_problem(make_run):
    run = with_launch(make_run(), launch())
    one = run.measurements[0]
    eight = msgspec.structs.replace(
        one, case=msgspec.structs.replace(one.case, gpu_count=8), launches=(launch(step_s=0.04),)
    )
    found = check_run(msgspec.structs.replace(run, measurements=(one, eight)))
    (scaling,) = [d for d in found.issues if d.kind == "SCALING"]
    assert (scaling.weight, scaling.value, scaling.limit) == (
        "problem",
        pytest.approx(20),
        pytest.approx(8.4),
    )
    assert "INVALID" in {d.kind for d in found.issues}


@pytest.mark.parametrize(("spread", "believed"), [(0.4, True), (0.02, False), (None, False)])
def test_noisy_single_gpu_baseline_does_not_make_scaling_impossible(make_run, spread, believed):
    """Two GPUs cannot be 2.3 times as fast as one, unless both intervals together allow less than twice."""
    run = with_launch(make_run(), launch())
    one = run.measurements[0]
    alone = (
        launch(spread=spread) if spread else msgspec.structs.replace(launch(), rounds=launch().rounds[1:2])
    )
    one = msgspec.structs.replace(one, launches=(alone,))
    assert (one.relative_half_width is None) == (spread is None)
    two = msgspec.structs.replace(
        one, case=msgspec.structs.replace(one.case, gpu_count=2), launches=(launch(step_s=0.1 / 1.15),)
    )
    found = check_run(msgspec.structs.replace(run, measurements=(one, two)))
    assert ("SCALING" not in {d.kind for d in found.issues}) == believed


def card(run, **changes):
    return msgspec.structs.replace(run, device=msgspec.structs.replace(run.device, **changes))


def product(value, **changes):
    fields = {"name": "gemm", "precision": "bf16", "size": "4096", "value": value, "low": None, "high": None}
    return MicroResult(**(fields | {"unit": "FLOP/s", "n": 20} | changes))


def test_micro_benchmarks_are_examined_too(make_run):
    run = card(with_launch(make_run(), launch()), gpu_key="nvidia-h200-sxm-141gb")
    wide = product(7e14, findings=(Finding(kind=FindingKind.NOT_CONVERGED, value=0.2, limit=0.02),))
    found = check_run(msgspec.structs.replace(run, measurements=(), planned=(), micro=(wide,)))
    assert [(d.kind, d.micro, d.weight) for d in found.issues] == [
        ("NOT_CONVERGED", "gemm bf16 4096", "problem")
    ]
    beside = check_run(msgspec.structs.replace(run, micro=(wide,)))
    assert [(d.micro, d.weight) for d in beside.issues] == [("gemm bf16 4096", "note")]
    found = check_run(msgspec.structs.replace(run, micro=(product(9e15),)))
    (issue,) = found.issues
    assert (issue.kind, issue.limit) == ("IMPLAUSIBLE", 1.0)
    assert issue.value == pytest.approx(9.1, rel=0.01)
    assert check_run(msgspec.structs.replace(run, micro=(product(9e14),))).trustworthy


def test_a_power_cap_is_detected_in_the_stored_limits(make_run):
    run = card(with_launch(make_run(), launch()), power_limit_w=300.0, power_limit_default_w=700.0)
    (issue,) = check_run(run).issues
    assert (issue.kind, issue.case, issue.weight) == ("POWER_CAPPED", None, "problem")
    assert issue.value == pytest.approx(0.429)
    assert check_run(card(run, power_limit_w=690.0)).issues == ()


GUARDS = {
    "switches": (None, "fp32 switches read back"),
    "reference_error": (None, "first loss against float32 on the CPU"),
    "parameters_moved": (None, "moving parameters"),
}


@pytest.mark.parametrize("name", GUARDS)
def test_guard_that_did_not_run_is_a_note_and_not_a_problem(make_run, name):
    value, words = GUARDS[name]
    found = check_run(with_launch(make_run(), launch(**{name: value})))
    (issue,) = found.issues
    assert (issue.kind, issue.weight) == ("NOT_CHECKED", "note")
    assert issue.text.endswith(words)
    assert found.trustworthy


def test_missing_guards_are_reported_only_if_they_apply(make_run):
    on = Switches(
        cudnn_allow_tf32=True,
        matmul_allow_tf32=True,
        conv_fp32_precision="tf32",
        rnn_fp32_precision="tf32",
        matmul_fp32_precision="tf32",
    )
    bare = launch(switches=on, precision_errors={})
    run = with_launch(make_run(), bare, precision=Precision.AMP_FP16, execution=Execution.GRAPH)
    assert {d.text.rpartition(": ")[2] for d in check_run(run).issues} == {
        "graph against eager",
        "skipped steps",
        "matrix product and convolution against float64",
    }
    compiled = with_launch(make_run(), launch(), execution=Execution.COMPILE)
    assert [d.text.rpartition(": ")[2] for d in check_run(compiled).issues] == ["compile against eager"]
    run = with_launch(make_run(), launch(reference_error=None))
    assert check_run(card(run, backend="cpu")).issues == ()
    half = with_launch(make_run(), launch(switches=on, reference_error=None), precision=Precision.BF16)
    (issue,) = check_run(card(half, backend="cpu")).issues
    assert issue.text.endswith("first loss against float32 on the CPU")
    assert "memory errors" in check_run(card(run, ecc_enabled=True)).issues[-1].text
    short = launch(loss_curve=())
    short = msgspec.structs.replace(short, rounds=short.rounds[:4])
    _, unchecked, *_ = check_run(with_launch(make_run(), short)).issues  # the first says how short it is
    assert "falling loss" in unchecked.text
    unknown = with_launch(make_run(), launch())
    (row,) = unknown.measurements
    row = msgspec.structs.replace(row, peak_flops_per_s=None)
    assert "peak" in check_run(msgspec.structs.replace(unknown, measurements=(row,))).issues[0].text


# --- compare ------------------------------------------------------------------------------------------------


def test_a_ratio_combines_the_intervals_of_both_runs(make_run):
    a, b = (with_launch(make_run(), launch(step_s=s)).measurements[0] for s in (0.1, 0.11))
    found = ratio(a, b)
    assert found.value == pytest.approx(1.1)
    width = (1 + a.relative_half_width) ** (2**0.5)
    assert found.high / found.value == pytest.approx(width, rel=1e-3)
    assert found.holds(1) is False


def test_a_card_that_may_still_slow_down_widens_one_side_of_the_ratio(make_run):
    a, b = (with_launch(make_run(), launch(step_s=s)).measurements[0] for s in (0.1, 0.11))
    a, warming = msgspec.structs.replace(a), msgspec.structs.replace(a)  # copies lack the prior of their run
    warming.__dict__["moments"] = [Moment(step_s=0.1, temperature_c=c, clock_hz=1.9e9) for c in (50.0, 60.0)]
    assert warming.slowing_to_come > 0
    cool, hot, under = ratio(a, b), ratio(warming, b), ratio(b, warming)
    assert hot.high == cool.high
    assert hot.low < cool.low
    assert hot.low == pytest.approx(1 / under.high)
    b.__dict__["moments"] = warming.moments
    both = ratio(warming, b)
    assert both.high * both.low == pytest.approx(both.value**2)  # heat affects both equally


def test_a_regression_fails_only_beyond_its_interval(make_run):
    base = with_launch(make_run(), launch())
    (slower,) = compare(base, with_launch(make_run(), launch(step_s=0.105))).rows
    assert slower.verdict.startswith("A is 1.05 times (1.")
    assert slower.verdict.endswith(") as fast as B")
    assert slower.slower_than(0.03)
    assert not slower.slower_than(0.06)
    (wild,) = compare(base, with_launch(make_run(), launch(step_s=0.105, spread=0.5))).rows
    assert wild.verdict.startswith("no difference found; ")
    assert not wild.slower_than(0.03)
    assert wild.undecided_at(0.03)
    assert not wild.undecided_at(0.9)
    (faster,) = compare(base, with_launch(make_run(), launch(step_s=0.05))).rows
    assert faster.verdict.startswith("B is 2.00 times (1.9")


def test_cases_that_differ_are_not_compared_and_the_difference_is_named(make_run):
    a, b = with_launch(make_run(), launch()), with_launch(make_run(), launch(), batch_size=32)
    with pytest.raises(MisuseError, match="batch_size 64 against 32"):
        compare(a, b)
    with pytest.raises(MisuseError, match="workload_version 1 against 2"):
        compare(a, with_launch(make_run(), launch(), workload_version=2))


def test_devices_are_compared_only_on_request(make_run):
    a = with_launch(make_run(), launch())
    other = msgspec.structs.replace(a.device, gpu_key="nvidia-a100-sxm-80gb")
    b = msgspec.structs.replace(a, device=other)
    with pytest.raises(MisuseError, match="--by device"):
        compare(a, b)
    assert compare(a, b, across_devices=True).rows


def test_differing_software_is_reported(make_run):
    a = with_launch(make_run(), launch())
    b = msgspec.structs.replace(a, environment=msgspec.structs.replace(a.environment, torch="2.9"))
    assert compare(a, b).remarks[-1].endswith("A None, B 2.9")


def test_differing_variables_and_limits_of_the_card_are_reported(make_run):
    def with_variables(**variables):
        run = with_launch(make_run(), launch())
        environment = msgspec.structs.replace(run.environment, variables=variables)
        return msgspec.structs.replace(run, environment=environment)

    a, b = with_variables(), card(with_variables(CUDA_LAUNCH_BLOCKING="1"), power_limit_w=350.0)
    assert compare(a, b).remarks[1:] == (
        "power_limit_w differs: A None, B 350.0",
        "CUDA_LAUNCH_BLOCKING differs: A not set, B 1",
    )
    other = card(a, gpu_key="nvidia-l4-24gb", power_limit_w=72.0)  # another model has another limit
    assert compare(a, other, across_devices=True).remarks[1:] == ()


def test_an_interval_of_one_process_excludes_differences_between_processes(make_run):
    once = with_launch(make_run(), launch())
    thrice = with_launch(make_run(), *(launch(index) for index in range(3)))
    (remark,) = compare(once, thrice).remarks
    assert remark.startswith("only one launch in")
    assert compare(once, once).remarks[0].startswith("only one launch in")
    assert compare(thrice, thrice).remarks == ()


def test_doubts_about_a_compared_figure_are_shown_with_it(make_run):
    a = with_launch(make_run(), launch())
    found = (Finding(kind=FindingKind.NOISY), Finding(kind=FindingKind.NO_ENERGY_COUNTER))
    noisy = msgspec.structs.replace(a.measurements[0], findings=found)
    shared = (Finding(kind=FindingKind.SHARED_GPU),)
    b = msgspec.structs.replace(a, measurements=(noisy,), findings=shared)
    comparison = compare(a, b)
    (row,) = comparison.rows
    assert (row.a_findings, row.b_findings) == ((), (FindingKind.NOISY,))
    assert any("findings: SHARED_GPU" in remark for remark in comparison.remarks)


def test_a_case_that_broke_in_b_fails_and_one_not_measured_is_reported(make_run):
    a = with_launch(make_run(), launch())
    row = a.measurements[0]
    other = msgspec.structs.replace(row, case=msgspec.structs.replace(row.case, batch_size=32))
    both = msgspec.structs.replace(a, measurements=(row, other))
    for status in (
        Status.INVALID,
        Status.FAILED,
        Status.OUT_OF_MEMORY,
        Status.TIMEOUT,
        Status.UNSUPPORTED,
        Status.INTERRUPTED,
    ):
        b = msgspec.structs.replace(a, measurements=(row, msgspec.structs.replace(other, status=status)))
        assert [each.case for each in compare(both, b).failed(0.03)] == [other.case]
    left_out = compare(both, a)
    assert left_out.failed(0.03) == ()
    assert left_out.remarks[-1].endswith(f": {other.case.label} (in A)")
    all_broken = msgspec.structs.replace(
        a, measurements=(msgspec.structs.replace(row, status=Status.FAILED),)
    )
    assert [each.case for each in compare(a, all_broken).failed(0.03)] == [row.case]


def test_a_row_states_in_which_run_its_batch_is_the_largest_that_fits(make_run):
    a = with_launch(make_run(), launch())
    fixed = a.measurements[0]
    searched = msgspec.structs.replace(fixed, batch_choice="largest")
    b = msgspec.structs.replace(a, measurements=(searched,))
    label = fixed.case.label
    for pair, words in (((a, a), ""), ((a, b), " in B"), ((b, a), " in A"), ((b, b), "")):
        (row,) = compare(*pair).rows
        end = f", the largest that fits{words}" if b in pair else ""
        assert row.label == f"{label}{end}"
        assert (row.a_batch_choice, row.b_batch_choice) == tuple(r.measurements[0].batch_choice for r in pair)
    broken = msgspec.structs.replace(searched, status=Status.FAILED)
    found = compare(a, msgspec.structs.replace(a, measurements=(broken,)))
    assert found.broken[0].label == broken.label
    other = msgspec.structs.replace(searched, case=msgspec.structs.replace(fixed.case, batch_size=4096))
    left_out = compare(msgspec.structs.replace(a, measurements=(fixed, other)), a)
    assert left_out.remarks[-1].endswith("largest that fits (in A)")


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [(0.98, 1.01, "passed"), (0.60, 1.19, "undecided"), (0.90, 0.96, "failed"), (None, None, "undecided")],
)
def test_a_row_that_may_be_slower_by_more_than_the_tolerance_is_undecided(make_run, low, high, state):
    case = make_run().measurements[0].case
    row = Row(case=case, a=1.0, b=0.95, ratio=Interval(0.95, low, high))
    found = Comparison(rows=(row,))
    assert (bool(found.failed(0.03)), bool(found.undecided(0.03))) == (
        state == "failed",
        state == "undecided",
    )


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((0.602, 0.845, 1.186), "no difference found; 39.8 % would have been detected"),
        ((0.998, 1.000, 1.002), "no difference found; 0.2 % would have been detected"),
        ((0.99, 1.1, 1.2), "no difference found; 20 % would have been detected"),
        ((0.96, 0.97, 0.98), "A is 1.03 times (1.02 to 1.04) as fast as B"),
        ((1.0004, 1.0010, 1.0016), "B is 1.0010 times (1.0004 to 1.0016) as fast as A"),
        ((1.46, 1.5, 1.54), "B is 1.50 times (1.46 to 1.54) as fast as A"),
        ((None, 0.97, None), "undecided: the interval of the ratio is not known"),
        ((0.7, 0.97, None), "undecided: the interval of the ratio is not known"),
    ],
)
def test_a_difference_is_claimed_only_if_the_interval_excludes_zero(make_run, ends, verdict):
    low, value, high = ends
    row = Row(case=make_run().measurements[0].case, a=1.0, b=value, ratio=Interval(value, low, high))
    assert row.verdict == verdict


@pytest.mark.parametrize(("text", "value"), [("3%", 0.03), ("3 %", 0.03), ("0.03", 0.03), ("0", 0.0)])
def test_a_tolerance_is_parsed_as_a_share(text, value):
    assert read_tolerance(text, "--fail-over") == pytest.approx(value)


@pytest.mark.parametrize("text", ["3", "x", "-1%", "nan", "100%", ""])
def test_an_invalid_share_is_refused(text):
    with pytest.raises(MisuseError, match="--fail-over"):
        read_tolerance(text, "--fail-over")


def test_amp_is_compared_with_strict_fp32_of_the_same_work(make_run):
    curve = (2.4, 2.3, 2.2, 2.1, 2.0, 1.9, 1.8, 1.7)
    fp32 = with_launch(make_run(), launch(loss_curve=curve, peak_memory_bytes=1000)).measurements[0]
    amp = with_launch(
        make_run(),
        launch(step_s=0.05, loss_curve=tuple(v * 1.01 for v in curve), peak_memory_bytes=600),
        precision=Precision.AMP_BF16,
        memory_format="channels_last",
    ).measurements[0]
    run = msgspec.structs.replace(make_run(), measurements=(fp32, amp))
    (effect,) = amp_effects(results_of(run))
    assert effect.value == pytest.approx(2.0)
    assert effect.memory_ratio == pytest.approx(0.6)
    assert effect.loss_gap.value == pytest.approx(0.01)
    assert effect.baseline.case.precision is Precision.FP32
    (shown,) = document(run)["amp"]
    assert shown["loss_gap"] == effect.loss_gap.value
    assert shown["curve_steps"] == len(curve)
    assert amp_effects(results_of(msgspec.structs.replace(make_run(), measurements=(amp,)))) == ()


# --- the verbs ----------------------------------------------------------------------------------------------


def test_check_and_compare_answer_with_their_exit_codes(tmp_path, make_run):
    sound = with_launch(make_run(run_id="20261120t000000z-aaaa"), launch())
    slow = with_launch(make_run(run_id="20261121t000000z-bbbb"), launch(step_s=0.12, gpu_busy=0.3))
    for run in (sound, slow):
        store.write_run(tmp_path, run)
    where = ("--results", str(tmp_path))
    assert typed("check", "20261120", *where)[0] == 0
    code, out, _ = typed("check", "latest", *where, "--json")
    assert code == 1
    document = json.loads(out)
    assert document["trustworthy"] is False
    assert document["issues"][0]["kind"] == "HOST_BOUND"
    wide = product(7e14, findings=(Finding(kind=FindingKind.NOT_CONVERGED, value=0.2, limit=0.02),))
    path = store.write_run(
        tmp_path / "micro", msgspec.structs.replace(sound, micro=(wide,), measurements=(), planned=())
    )
    code, out, _ = typed("check", str(path))
    assert code == 1
    assert "- gemm bf16 4096: 20 %, limit 2.0 %" in out
    code, out, err = typed("compare", "20261120", "latest", *where, "--fail-over", "3%", "--json")
    assert code == 1, err
    assert json.loads(out)["rows"][0]["verdict"].startswith("A is 1.20 times (1.")
    assert "slower in B" in err
    assert "broken" not in err
    assert typed("compare", "20261120", "latest", *where, "--fail-over", "30%")[0] == 0
    row = msgspec.structs.replace(slow.measurements[0], status=Status.INVALID, reason="IMPLAUSIBLE")
    store.write_run(tmp_path, msgspec.structs.replace(slow, measurements=(row,)))
    code, _, err = typed("compare", "20261120", "latest", *where, "--fail-over", "30%")
    assert code == 1
    assert "(invalid: IMPLAUSIBLE)" in err
    assert err.count(row.case.label) == 1, err
    assert "slower in B" not in err
    assert typed("compare", "20261120", "latest", *where)[0] == 0
    code, out, err = typed("compare", "20261120", "nowhere", *where)
    assert (code, out) == (2, "")
    code, out, _ = typed("results", "list", *where, "--json")
    assert code == 0
    assert [run["run_id"] for run in json.loads(out)["runs"]] == [sound.run_id, slow.run_id]


def test_names_from_a_file_reach_the_terminal_without_escapes_or_markup(tmp_path, make_run):
    evil = "NVIDIA [/x][red]\x1b[31m\x07 H200"
    run = with_launch(make_run(), launch(gpu_busy=0.1))
    run = msgspec.structs.replace(run, device=msgspec.structs.replace(run.device, name=evil, gpu_key=None))
    row = msgspec.structs.replace(
        run.measurements[0], case=msgspec.structs.replace(run.measurements[0].case, workload=evil)
    )
    store.write_run(tmp_path, msgspec.structs.replace(run, measurements=(row,), planned=(row.case,)))
    for verb in (("results", "list"), ("check", "latest"), ("compare", "latest", "latest")):
        _, out, err = typed(*verb, "--results", str(tmp_path))
        assert "\x1b" not in out + err
        assert "\x07" not in out + err
        assert "[/x]" in out


def test_one_broken_file_of_several_is_counted_and_a_single_one_is_misuse(tmp_path, make_run):
    path = store.write_run(tmp_path, make_run())
    path.with_name("broken.json").write_text("{")
    code, _, err = typed("results", "list", "--results", str(tmp_path))
    assert code == 0
    assert "1 of 2 files" in err
    path.with_name("broken.json").unlink()
    path.write_text("{")
    os.utime(path, (0, 0))
    code, _, err = typed("results", "list", "--results", str(tmp_path))
    assert code == 2
    assert "set aside" in err


def test_several_gpus_are_compared_with_one_of_the_same_run(make_run):
    """Both rows have the same step time, in which four GPUs process four batches."""
    one = with_launch(make_run(), launch()).measurements[0]
    four = msgspec.structs.replace(one, case=msgspec.structs.replace(one.case, gpu_count=4))
    (effect,) = scaling_effects(results_of(msgspec.structs.replace(make_run(), measurements=(one, four))))
    assert effect.result.case.gpu_count == 4
    assert (effect.interval.value, effect.efficiency.value) == (pytest.approx(4), pytest.approx(1))
    assert effect.efficiency.low == pytest.approx(effect.interval.low / 4)
    assert scaling_effects(results_of(msgspec.structs.replace(make_run(), measurements=(four,)))) == ()


def test_batch_split_across_gpus_is_compared_with_the_full_batch_on_one(make_run):
    one = with_launch(make_run(), launch()).measurements[0]
    quarter = {"gpu_count": 4, "node_count": 2, "batch_size": one.case.batch_size // 4}
    four = msgspec.structs.replace(one, case=msgspec.structs.replace(one.case, **quarter))
    (effect,) = scaling_effects(results_of(msgspec.structs.replace(make_run(), measurements=(one, four))))
    assert (effect.baseline.case, effect.value) == (one.case, pytest.approx(1))


def test_an_impossible_figure_is_refused_by_compare_as_by_results_add(tmp_path, make_run):
    """Otherwise `check` calls a row invalid, and `compare` calls it a million times as fast."""
    sound = with_launch(make_run(run_id="20261120t000000z-aaaa"), launch(step_s=0.1, gpu_busy=0.99))
    absurd = with_launch(make_run(run_id="20261121t000000z-bbbb"), launch(step_s=1e-7, gpu_busy=0.99))
    paths = [str(store.write_run(tmp_path, run)) for run in (sound, absurd)]
    assert typed("compare", paths[0], paths[0])[0] == 0
    for pair in (paths, paths[::-1]):
        code, out, err = typed("compare", *pair)
        assert (code, out) == (2, "")
        assert "20261121t000000z-bbbb cannot be true: measurement 0 claims to be valid, but" in err
        assert err.count("\n") == 1


def test_a_run_with_the_same_case_twice_is_refused(tmp_path, make_run):
    """A comparison would use one of the two figures, a table would show both."""
    run = with_launch(make_run(), launch(step_s=0.1, gpu_busy=0.99))
    twice = msgspec.structs.replace(run, measurements=run.measurements * 2)
    path = tmp_path / "twice.json"
    path.write_bytes(msgspec.json.encode(twice))
    for command in (("check", str(path)), ("results", "add", str(path), "--results", str(tmp_path / "r"))):
        code, _, err = typed(*command)
        assert code == 2
        assert f"measured twice: {run.measurements[0].label}" in err


def test_a_device_with_the_memory_of_another_one_is_refused(tmp_path, make_run):
    """A run of a CPU, edited to claim the key of an H100, was stored and used as one of an H100."""
    for gib, code in ((23.5, 2), (79.6, 0)):
        claimed = {"name": "NVIDIA H100 80GB HBM3", "gpu_key": "nvidia-h100-sxm-80gb"}
        device = DeviceProfile(backend="cuda", memory_bytes=int(gib * GIB), **claimed)
        path = tmp_path / "run.json"
        path.write_bytes(msgspec.json.encode(make_run(device=device)))
        found, _, err = typed("results", "add", str(path), "--results", str(tmp_path / "r"))
        assert found == code
        assert ("has 23.5 GiB and claims to be nvidia-h100-sxm-80gb" in err) == (code == 2)
