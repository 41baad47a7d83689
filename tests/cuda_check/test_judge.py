"""How the readings of a check are judged: each rule from both sides of its limit."""

from __future__ import annotations

import msgspec
import pytest

from cuda_check.builders import (
    blocks,
    case,
    check,
    clock,
    faults,
    load,
    proof,
    row,
    with_part,
)
from gpubench.cuda_check.judge import confirms, fault_of, judge, states_of
from gpubench.cuda_check.run import STEPS
from gpubench.models import (
    Cause,
    Execution,
    Finding,
    FindingKind,
    GraphProof,
    PartState,
    Precision,
    Status,
)


def states(made, part: str) -> dict[str, str]:
    return {v.what: v.state for v in judge(made) if v.part == part}


def state_of(made, part: str, words: str) -> str:
    """Return the state of the only row of a part with these words in its name."""
    (state,) = (v.state for v in judge(made) if v.part == part and words in v.what)
    return state


def replaced(made, **changes):
    return msgspec.structs.replace(made, **changes)


def test_a_sound_card_passes_everything_and_is_confirmed():
    made = check()
    assert {v.state for v in judge(made)} <= {"ok", "shown"}
    assert confirms(made)


# --- parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["precision", "clock", "graph", "faults"])
@pytest.mark.parametrize("state", [PartState.LEFT_OUT, PartState.NOT_REACHED, PartState.INTERRUPTED])
def test_without_a_core_part_nothing_fails_and_nothing_is_confirmed(name, state):
    made = with_part(check(), name, state=state, reason="no time left")
    assert "FAILED" not in states_of(judge(made))
    assert states(made, name)["the part itself"] == "left out"
    assert not confirms(made)


def test_a_failed_part_fails_the_check_and_keeps_its_readings():
    made = with_part(check(), "load", state=PartState.FAILED, reason="the process was killed")
    assert "FAILED" in states_of(judge(made))
    assert state_of(made, "load", "counted energy") == "ok"


@pytest.mark.parametrize("name", STEPS)
def test_a_part_that_timed_out_neither_fails_nor_confirms_a_card(name):
    made = with_part(check(), name, state=PartState.CUT_OFF, reason="cut off during timed", took_s=31.0)
    assert states(made, name)["the part itself"] == "cut off"
    assert "cut off" in states_of(judge(made))
    assert "FAILED" not in states_of(judge(made))
    assert not confirms(made)


def test_a_check_that_did_not_end_confirms_nothing():
    assert not confirms(check(finished_at=None))


def test_without_a_proof_of_strict_fp32_nothing_is_confirmed():
    made = check(precisions=tuple(proof(p) for p in Precision if p is not Precision.FP32))
    assert "FAILED" not in states_of(judge(made))
    assert not confirms(made)


def test_cases_skipped_for_lack_of_time_do_not_prevent_confirmation():
    made = check(left_out=dict.fromkeys(("cnn tf32 graph batch 512", "cnn fp32 graph batch 64"), "no time"))
    (verdict,) = (v for v in judge(made) if v.what == "cases not tried")
    assert (verdict.state, verdict.found.split()[0], verdict.reason) == ("left out", "2", "no time")
    assert confirms(made)


def test_unsupported_compiled_case_is_reported_and_any_other_refusal_fails():
    """Torch up to 2.11 finds nothing to compile in a lone recurrent layer."""
    for workload, state in (("lstm", "ok"), ("cnn", "FAILED")):
        refused = row(Status.UNSUPPORTED, "compiled nothing", workload=workload, execution=Execution.COMPILE)
        found = {v.what: v for v in judge(check(cases=(refused,))) if v.part == "cases"}
        assert found["a few steps of each case"].state == state
        assert ("case not supported here" in found) == (state == "ok")


# --- ratios -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "noise", "state"),
    [
        (1.0, 0.0, "ok"),
        (1.009, 0.0005, "ok"),
        (1.012, 0.005, "undecided"),
        (1.0, 0.05, "undecided"),
        (1.05, 0.005, "FAILED"),
        (0.97, 0.005, "FAILED"),
    ],
)
def test_a_ratio_fails_only_with_its_whole_interval_outside(ratio, noise, state):
    made = check(clock=clock(by_hand=blocks(ratio, noise)))
    assert state_of(made, "clock", "hand-written") == state
    assert ("FAILED" in states_of(judge(made))) == (state == "FAILED")
    assert confirms(made) == (state == "ok")


def test_too_few_blocks_decide_nothing():
    assert state_of(check(clock=clock(by_hand=blocks(fours=1))), "clock", "hand-written") == "undecided"


def test_graph_time_may_differ_from_a_hand_written_graph_by_two_percent():
    for ratio, state in ((1.015, "ok"), (0.985, "ok"), (1.03, "FAILED"), (0.9, "FAILED")):
        made = check(graph=GraphProof(case=case(), by_hand=blocks(ratio)))
        assert list(states(made, "graph").values()) == [state]


def test_telemetry_may_cost_at_most_half_a_percent():
    for ratio, state in ((1.004, "ok"), (0.97, "ok"), (1.007, "FAILED")):
        made = check(load=load(sampled=blocks(ratio)))
        assert state_of(made, "load", "telemetry") == state


# --- clock --------------------------------------------------------------------------------------------------


def test_timer_that_does_not_synchronize_fails_the_event_and_issue_time_checks():
    made = check(clock=clock(by_hand=blocks(0.2), events=blocks(0.2)))  # both sides of a pair are then 4 ms
    assert state_of(made, "clock", "CUDA-event") == "FAILED"
    assert state_of(made, "clock", "without synchronizing") == "FAILED"


def test_host_bound_case_leaves_the_clock_checks_undecided():
    made = check(clock=clock(by_hand=blocks(1.3), issue_s=(0.019, 0.02, 0.021)))
    assert (
        state_of(made, "clock", "hand-written")
        == state_of(made, "clock", "without synchronizing")
        == "undecided"
    )
    assert "FAILED" not in states_of(judge(made))


def test_clock_without_readings_is_not_called_cpu_bound():
    made = check(clock=clock(issue_s=()))
    reasons = {v.reason for v in judge(made) if v.part == "clock" and v.state == "undecided"}
    assert reasons == {"too few readings"}


# --- energy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "state"), [(0.92, "ok"), (1.08, "ok"), (1.2, "FAILED"), (0.8, "FAILED"), (0.0, "FAILED")]
)
def test_the_energy_counter_agrees_with_the_power_within_ten_percent(scale, state):
    assert state_of(check(load=load(scale)), "load", "counted energy") == state


def test_a_card_without_a_counter_or_without_power_is_left_out():
    for made in (load(energy_edges_j=(None, None)), load(samples=())):
        assert state_of(check(load=made), "load", "counted energy") == "left out"


def test_power_before_the_judged_region_does_not_count():
    assert state_of(check(load=load(1.0)), "load", "counted energy") == "ok"  # earlier samples show 200 W


# --- precision ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "error", "state"),
    [
        (Precision.FP32, 3e-4, "FAILED"),
        (Precision.TF32, 3e-7, "FAILED"),
        (Precision.AMP_FP16, 0.3, "FAILED"),
        (Precision.AMP_BF16, 5e-3, "ok"),
    ],
)
def test_precision_check_passes_only_at_the_expected_float64_error(precision, error, state):
    made = check(precisions=(proof(precision, error),))
    assert states(made, "precision")[f"{precision} against float64"] == state


def test_an_error_beyond_its_limit_or_a_wrong_switch_fails():
    sound = proof(Precision.FP32)
    for made in (
        replaced(sound, errors=sound.errors | {"rnn": None}),
        replaced(sound, errors=sound.errors | {"rnn": 4.6e-5}),
        replaced(sound, errors=sound.errors | {"matmul": 1.1e-5}),
        replaced(sound, switches=proof(Precision.TF32).switches),
    ):
        assert states(check(precisions=(made,)), "precision")["fp32 against float64"] == "FAILED"


def test_an_fp32_recurrent_layer_has_a_wider_limit_than_a_product():
    """An H100 has an error of 5.7e-6 in IEEE fp32, and 3.6e-4 in TF32."""
    sound = proof(Precision.FP32)
    made = replaced(sound, errors=sound.errors | {"rnn": 4.4e-5})
    assert states(check(precisions=(made,)), "precision")["fp32 against float64"] == "ok"


@pytest.mark.parametrize(
    ("error", "state"), [(3e-4, "ok"), (3e-7, "undecided"), (1e-5, "undecided"), (None, "undecided")]
)
def test_fp32_is_proven_only_by_operators_in_which_tf32_shows(error, state):
    """An H100 computed a small convolution in fp32 under TF32, too, so a correct result there proves nothing."""
    shown = dict.fromkeys(("matmul", "conv", "rnn"), 3e-4)
    made = check(precisions=(replaced(proof(Precision.FP32), control_errors=shown | {"conv": error}),))
    seen = {v.what: v for v in judge(made) if v.part == "precision"}
    assert seen["fp32 against float64"].state == "ok"
    unproven = [v for v in seen.values() if v.state == "undecided"]
    assert [v.reason.split(":")[0] for v in unproven] == ([] if state == "ok" else ["conv"])
    assert confirms(made) == (state == "ok")


def named(*names: str) -> tuple[dict[str, object], ...]:
    return tuple(
        {"function": "nvmlDeviceGetName", "device": f"{n}", "value": name} for n, name in enumerate(names)
    )


@pytest.mark.parametrize(
    ("identity", "names", "state"),
    [
        ("UUID", ("NVIDIA H200", "NVIDIA H200"), "ok"),
        ("PCI bus id", (), "ok"),
        ("name and SM count only", ("NVIDIA H200", "Tesla T4"), "ok"),
        ("name and SM count only", ("NVIDIA H200", "NVIDIA H200"), "undecided"),
        ("name and SM count only", (), "undecided"),
    ],
)
def test_name_does_not_identify_a_card_among_several_with_that_name(identity, names, state):
    made = check(identity=identity, nvml=named(*names))
    (verdict,) = (v for v in judge(made) if v.what == "CUDA and NVML see the same device")
    assert verdict.state == state
    assert (verdict.reason is None) == (identity != "name and SM count only")
    assert confirms(made) == (state == "ok")


# --- cases --------------------------------------------------------------------------------------------------

SMALL, LARGE = 8 * 1024**3, 80 * 1024**3


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (row(), None),
        (row(execution=Execution.GRAPH), None),
        (row(reference_error=0.05), "reference error"),
        (row(reference_error=None), "reference error not finite"),
        (row(execution=Execution.GRAPH, graph_error=0.05), "graph error"),
        (row(execution=Execution.GRAPH, graph_error=None), "not finite"),
        (row(execution=Execution.COMPILE, graph_error=0.05), "compile error"),
        (row(peak_memory_bytes=None), "peak memory"),
        (row(findings=(Finding(kind=FindingKind.LOSS_DIFFERS, value="not finite"),)), "LOSS_DIFFERS"),
        (row(findings=(Finding(kind=FindingKind.ONE_BATCH, value=1),)), None),
        (row(Status.FAILED, "CUDA error: illegal address"), "illegal address"),
        (row(Status.UNSUPPORTED, "capturing", execution=Execution.GRAPH), "unsupported"),
        (row(Status.UNSUPPORTED, "compiled nothing", workload="lstm", execution=Execution.COMPILE), None),
        (row(Status.UNSUPPORTED, "compiled nothing", workload="cnn", execution=Execution.COMPILE), "compiled nothing"),
        (row(Status.OUT_OF_MEMORY, "batch 64", expected_bytes=6e9), None),
        (row(Status.OUT_OF_MEMORY, "batch 64", expected_bytes=6e8), "out_of_memory"),
        (row(Status.OUT_OF_MEMORY, "batch 64"), "out_of_memory"),
    ],
)  # fmt: skip
def test_each_fault_of_a_case_is_named(made, wrong):
    fault = fault_of(made, SMALL)
    assert (fault is None) if wrong is None else (wrong in fault)


def test_the_same_lack_of_memory_is_a_fault_on_a_larger_card():
    assert fault_of(row(Status.OUT_OF_MEMORY, "batch 64", expected_bytes=6e9), LARGE) is not None


@pytest.mark.parametrize("changes", [{"precision": Precision.FP32}, {"execution": Execution.COMPILE}])
def test_failed_case_fails_the_cases_part(changes):
    made = check(cases=(*check().cases, row(Status.FAILED, "no", **changes)))
    (wrong,) = (v for v in judge(made) if v.state == "FAILED")
    assert wrong.part == "cases"
    assert "no" in wrong.reason


# --- injected faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"waiting": row(execution=Execution.GRAPH)},
        {"waiting": row(Status.UNSUPPORTED, "operation failed due to a previous error")},
        {"waiting": row(Status.UNSUPPORTED, "a model that says capturing")},
        {"waiting": row(Status.FAILED, "stream is capturing", cause=Cause.REFUSED_IN_CAPTURE)},
        {"after_waiting": row(Status.FAILED, "internal assert")},
        {"too_large": row()},
        {"too_large": row(Status.FAILED, "CUDNN_STATUS_EXECUTION_FAILED")},
        {"after_too_large": row(Status.OUT_OF_MEMORY, "batch 64")},
    ],
    ids=lambda c: next(iter(c)),
)
def test_each_injected_fault_has_one_correct_outcome(changes):
    made = check(faults=faults(**changes))
    assert [v.part for v in judge(made) if v.state == "FAILED"] == ["faults"]


def test_oversized_batch_that_fits_fails_the_check():
    (wrong,) = [v for v in judge(check(faults=faults(too_large=row()))) if v.state == "FAILED"]
    assert wrong.reason == "it fit"
