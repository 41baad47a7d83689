"""What a check does, in which order, and that it fits: by its own arithmetic."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_check.builders import H200, T4
from gpubench.cuda_check import cases
from gpubench.cuda_check.cases import EXECUTIONS, batch_of, part_of, slowness, step_takes_s
from gpubench.cuda_check.plan import (
    LEAST_FIRST,
    LIMIT_S,
    PARTS,
    make_plan,
    quick_within,
    run_s,
)
from gpubench.cuda_check.run import _until_s
from gpubench.measure.capability import why_no_precision
from gpubench.models import DeviceProfile, Execution, Precision, TaskKind
from gpubench.profile import load_profiles
from gpubench.profile.memory import planned_peak_bytes
from gpubench.readings import h200_readings

RTX_3090 = DeviceProfile(
    backend="cuda", compute_capability=(8, 6), memory_bytes=24 << 30, memory_bandwidth_bytes_per_s=936e9
)
RTX_4090 = DeviceProfile(
    backend="cuda", compute_capability=(8, 9), memory_bytes=24 << 30, memory_bandwidth_bytes_per_s=1008e9
)
SMALL = DeviceProfile(
    backend="cuda", compute_capability=(7, 5), memory_bytes=4 << 30, memory_bandwidth_bytes_per_s=128e9
)
SILENT = DeviceProfile(backend="cuda", compute_capability=(8, 0))
SLOWEST = DeviceProfile(
    backend="cuda", compute_capability=(7, 5), memory_bytes=2 << 30, memory_bandwidth_bytes_per_s=48e9
)
CARDS = {"H200": H200, "3090": RTX_3090, "T4": T4, "small": SMALL, "slowest": SLOWEST, "silent": SILENT}
TRAINED = {n for n, p in load_profiles().items() if TaskKind.TRAIN in p.tasks and p.is_classic}
UNREAD = TRAINED - {step.workload for step in h200_readings().steps}


@pytest.fixture(autouse=True)
def _every_extra(monkeypatch):
    """Whatever is installed where these tests run."""
    monkeypatch.setattr(cases, "is_installed", lambda package: True)


@pytest.fixture(params=CARDS)
def card(request):
    return CARDS[request.param]


def test_the_parts_add_up_to_at_most_five_minutes_on_any_card(card):
    made = make_plan(card)
    assert made.limit_s == LIMIT_S == 300
    assert sum(made.expected_s.values()) <= LIMIT_S
    assert made.parts() == tuple(name for name in PARTS if name != "scaling")


def test_every_part_begins_on_the_slowest_card_in_its_order():
    """The opening parts have all their time whatever the later ones take."""
    made = make_plan(SLOWEST)
    names = [name for name in made.parts() if name in made.expected_s]
    assert {"device", "precision", "clock", "graph", "faults", "fp32"} <= set(names)
    for number, name in enumerate(names):
        before_s = sum(made.expected_s[earlier] for earlier in names[:number])
        assert _until_s(made, names[number:], 0.0) - before_s >= made.expected_s[name]


@pytest.mark.parametrize("late_start_s", [1.0, 3.0, 9.0])
def test_where_processes_start_late_the_trials_give_up_their_time(late_start_s):
    """Each of them starts as late as the first: one each for precision, fp32 and the quick run, 4 for the faults."""
    made, late = make_plan(H200), make_plan(H200, late_start_s=late_start_s)
    longer = {name: late.least_s(name) - made.least_s(name) for name in made.expected_s}
    starts = {"precision": 1, "faults": 4, "fp32": 1, "quick": 1}
    assert longer == pytest.approx({name: starts.get(name, 0) * late_start_s for name in longer}, abs=1e-9)
    before_s, after_s = (sum(t.expected_s for t in plan.trials) for plan in (made, late))
    assert before_s - after_s == pytest.approx(sum(longer.values()), abs=1.0)
    assert not late.given_up_s
    assert sum(late.expected_s.values()) <= LIMIT_S
    whole_s = run_s(late.quick[0], H200)
    assert (
        quick_within(late, H200, whole_s) != late.quick[0] == quick_within(late, H200, whole_s + late_start_s)
    )


def test_where_they_start_later_still_the_quick_run_and_what_is_compiled_go_first():
    """No part loses time before: the case by hand, that of the graph and that under load keep theirs."""
    made, late = make_plan(H200), make_plan(H200, late_start_s=14.0)
    assert late.given_up_s.keys() == {"quick"}
    kept = ("clock", "graph", "load")
    assert [late.expected_s[name] for name in kept] == [made.expected_s[name] for name in kept]
    assert make_plan(H200, late_start_s=20.0).given_up_s.keys() == {"quick", "compile"}


def test_what_proves_the_harness_may_take_the_time_of_trials_and_nothing_else():
    made = make_plan(H200)
    names = list(made.parts())
    for name, trials in (("clock", ("cases", "fp32")), ("faults", ("fp32",)), ("compile", ())):
        later = names[names.index(name) :]
        trials_s = sum(made.expected_s[part] - made.least_s(part) for part in trials)
        others_s = sum(made.expected_s[part] for part in later[1:])
        assert _until_s(made, later, 0.0) == pytest.approx(LIMIT_S - others_s + trials_s)


@given(st.floats(2e9, 8e12))
def test_what_does_not_fit_a_slow_card_is_given_up_from_the_least_telling_on(bandwidth):
    card = msgspec.structs.replace(SLOWEST, memory_bandwidth_bytes_per_s=bandwidth)
    made = make_plan(card)
    assert made.parts() == tuple(name for name in PARTS if name != "scaling")
    assert set(made.given_up_s) == set([n for n in LEAST_FIRST if n != "scaling"][: len(made.given_up_s)])
    assert sum(made.expected_s.values()) <= LIMIT_S
    if not made.given_up_s:
        return
    assert {"device", "precision", "cases"} <= made.expected_s.keys()
    assert {part_of(t.case) for t in made.trials} <= made.expected_s.keys()


def test_the_largest_share_of_the_quick_run_is_made_that_there_is_time_for():
    made = make_plan(H200)
    counts = [(len(share.cases), share.micro) for share in made.quick]
    assert counts == [(18, "also"), (18, "none"), (12, "none"), (6, "none")]
    for share in made.quick:
        assert quick_within(made, H200, run_s(share, H200)) == share
    assert quick_within(made, H200, float("inf")) == made.quick[0]
    assert quick_within(made, H200, 1.0) == made.quick[-1]
    assert made.expected_s["quick"] == run_s(made.quick[-1], H200)
    assert len(make_plan(H200, full=True).quick) == 1


def test_on_an_h200_every_workload_but_one_is_tried_as_a_graph_at_its_best_amp_and_at_fp32():
    """Its trial does as many eager steps; the quick run has eager rows of its own."""
    made = make_plan(H200)
    tried = {(t.case.workload, t.case.precision, t.case.execution) for t in made.trials}
    for precision in (Precision.AMP_BF16, Precision.FP32):
        assert {(name, precision, Execution.GRAPH) for name in TRAINED - {"transformer"}} <= tried
    eager, replayed = Execution.GRAPH.facts.tried_steps
    assert eager >= replayed


def test_a_workload_that_was_never_read_is_expected_to_take_what_its_flops_let_expect():
    """By hand: under a new head ResNet-50 is a forward pass, 8.2 GFLOP an image, at a tenth to half of 989 TFLOP/s."""
    assert "resnet50_transfer" in UNREAD
    trials = {
        (t.case.workload, t.case.precision, t.case.execution): t for t in make_plan(H200, full=True).trials
    }
    trial = trials["resnet50_transfer", Precision.AMP_BF16, Execution.GRAPH]
    forward_s = trial.case.batch_size * 8.2e9 / 989e12
    assert 2 * forward_s < step_takes_s(trial.case, 1.0) < 10 * forward_s
    assert step_takes_s(trial.case, 2.0) == 2 * step_takes_s(trial.case, 1.0)
    eager = trials["resnet50_transfer", Precision.AMP_BF16, Execution.EAGER]
    assert step_takes_s(eager.case, 1.0) > step_takes_s(trial.case, 1.0), "the host sets the pace"


def test_all_of_it_is_every_workload_at_every_precision_in_both_executions(card):
    made = make_plan(card, full=True)
    here = [p for p in Precision if p.is_usual and why_no_precision(p, card) is None]
    tried = {(t.case.workload, t.case.precision, t.case.execution) for t in made.trials if not is_forward(t)}
    assert {*product(TRAINED, here, EXECUTIONS)} <= tried
    assert len(made.trials) == len({t.case for t in made.trials})
    named = {label.split()[0] for label in made.left_out}
    lacks_bf16 = why_no_precision(Precision.BF16, card) is not None
    run = {
        n for n, p in load_profiles().items() if p.is_run and not (lacks_bf16 and p.precisions == ("bf16",))
    }
    assert {t.case.workload for t in made.trials} | named == run
    assert made.limit_s is None
    assert len(made.quick[0].cases) >= 6 * (len(here) - 1)
    assert made.given_up_s == {}


def is_forward(trial) -> bool:
    return trial.case.task is TaskKind.INFER


def test_all_of_it_has_what_only_some_workloads_are_offered_at():
    """By hand, on a card that has every precision; the input pipelines are no models, and none is captured."""
    made = make_plan(H200, full=True)
    found: dict[tuple[str, TaskKind], set[Precision]] = {}
    for trial in made.trials:
        found.setdefault((trial.case.workload, trial.case.task), set()).add(trial.case.precision)
    usual = {p for p in Precision if p.is_usual}
    for name in ("vit_b16", "unet_ddpm", "bert_base", "transformer"):
        assert found[name, TaskKind.TRAIN] == usual | {Precision.BF16, Precision.FP8}, name
        assert found[name, TaskKind.INFER] == {Precision.INT8}, name
    assert found["cnn", TaskKind.TRAIN] == usual | {Precision.BF16}
    amps = {Precision.AMP_FP16, Precision.AMP_BF16}
    assert found["llama_1b", TaskKind.TRAIN] - amps == {Precision.BF16, Precision.FP8}
    assert found["llama_8b_lora", TaskKind.TRAIN] == {Precision.BF16, Precision.FP8}
    assert found["llama_8b_qlora", TaskKind.TRAIN] == found["llama_8b", TaskKind.INFER] == {Precision.BF16}
    assert found["augment", TaskKind.INFER] == {Precision.FP32}
    executions = {t.case.execution for t in made.trials if t.case.workload.startswith("augment")}
    assert executions == {Execution.EAGER}
    assert {label.split()[0] for label in made.left_out} == {"llama_8b_fsdp"}, made.left_out


def test_what_lacks_a_package_or_room_on_the_card_is_named_and_not_tried(monkeypatch):
    monkeypatch.setattr(cases, "is_installed", lambda package: False)
    made = make_plan(RTX_4090, full=True)
    reasons = {label: reason for label, reason in made.left_out.items() if "fsdp" not in label}
    for label, reason in reasons.items():
        in_8_bits = " fp8 " in label or " int8 " in label or " nf4 " in label
        if label.startswith("augment"):
            assert "kornia" in reason
        elif in_8_bits:
            assert reason.startswith("torchao"), label
            assert "pip install 'torchao>=" in reason, label
        else:
            assert reason.startswith("it takes about "), label
    assert "llama_1b amp-bf16 graph batch 4, loss in 8 chunks" in reasons
    assert {t.case.precision for t in made.trials}.isdisjoint({Precision.FP8, Precision.INT8})
    assert {t.case.workload for t in made.trials} >= {"vit_b16", "unet_ddpm", "llama_1b", "llama_8b"}
    monkeypatch.setattr(cases, "is_installed", lambda package: True)
    assert all(
        t.expected_bytes <= RTX_4090.memory_bytes
        for t in make_plan(RTX_4090, full=True).trials
        if t.case.workload not in TRAINED
    )


def test_the_time_announced_for_all_of_it_has_the_large_workloads_in_it():
    """By hand: 8e9 weights are drawn in two minutes, and a token of an eager pass takes its 1462 launches, 38 ms."""
    trials = {t.case.label: t for t in make_plan(H200, full=True).trials}
    (eager,) = (t for label, t in trials.items() if label.startswith("llama_8b infer bf16 eager"))
    (graph,) = (t for label, t in trials.items() if label.startswith("llama_8b infer bf16 graph"))
    assert step_takes_s(eager.case, 1.0) == pytest.approx(128 * 0.038, rel=0.2)
    assert step_takes_s(graph.case, 1.0) == pytest.approx(0.2 + 128 * 0.0044, rel=0.1)
    assert 120 < eager.expected_s < 300
    made = make_plan(H200, full=True)
    assert made.expected_s["cases"] == pytest.approx(
        sum(t.expected_s for t in made.trials if part_of(t.case) == "cases")
    )


def test_a_case_is_either_tried_or_named_as_left_out(card):
    """Of the trained workloads at the usual precisions; what else there is belongs to all of it alone."""
    made, everything = make_plan(card), make_plan(card, full=True)
    tried = {t.case.label for t in made.trials}
    assert tried.isdisjoint(made.left_out)
    usual = {
        t.case.label for t in everything.trials if t.case.workload in TRAINED and t.case.precision.is_usual
    }
    assert tried | made.left_out.keys() == usual
    assert {t.case.label for t in everything.trials}.isdisjoint(everything.left_out)
    assert tried, "the classic three are cheap enough for any card"


def test_cases_of_a_workload_follow_each_other_and_strict_fp32_comes_last():
    made = make_plan(H200)
    strict = [t.case.precision is Precision.FP32 for t in made.trials]
    assert strict == sorted(strict)
    for part in (False, True):
        names = [t.case.workload for t, s in zip(made.trials, strict, strict=True) if s == part]
        runs = [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]
        assert len(runs) == len(set(runs))


def test_a_slower_card_is_given_fewer_cases():
    assert slowness(H200) == slowness(SILENT) == 1.0
    assert slowness(T4) == pytest.approx(15.0)
    unsaid = msgspec.structs.replace(T4, name="Tesla T4", memory_bandwidth_bytes_per_s=None)
    assert slowness(unsaid) == pytest.approx(15.0, rel=0.01), "the data sheet tells it"
    assert len(make_plan(T4).trials) < len(make_plan(H200).trials)


def test_the_proofs_run_on_a_case_that_fits_the_card_twice(card):
    proof = make_plan(card).proof
    if card.memory_bytes is not None:
        needed = planned_peak_bytes(load_profiles()[proof.workload], proof)
        assert 2 * needed < card.memory_bytes
    assert (proof.workload == "vgg16") == (card in [H200, RTX_3090, T4])


def test_three_cases_are_compiled_and_the_classic_three_are_run_quickly():
    made = make_plan(H200)
    assert [t.case.workload for t in made.compiled] == ["cnn", "vgg16", "lstm"]
    for share in made.quick:
        assert {c.case.workload for c in share.cases} == {"cnn", "lstm", "vgg16"}
    assert {c.case.precision for c in made.quick[-1].cases} == {Precision.AMP_BF16}
    assert make_plan(H200, full=True).quick[0].micro == "also"


def test_with_several_gpus_there_is_one_part_more():
    peer = msgspec.structs.replace(H200, index=1)
    made = make_plan(H200, (peer,))
    assert "scaling" in made.parts()
    assert {c.case.gpu_count for c in made.scaling.cases} == {1, 2}
    assert sum(made.expected_s.values()) <= LIMIT_S


@pytest.mark.parametrize("share", [0.9, 2.0, 10.0])
def test_a_batch_is_found_for_a_peak(share):
    made = make_plan(H200)
    capped, room = made.capped, share * made.amounts.cap_bytes
    profile = load_profiles()["cnn"]

    def peak_of(batch: int) -> float:
        return planned_peak_bytes(profile, msgspec.structs.replace(capped, batch_size=batch))

    batch = batch_of(capped, room)
    assert peak_of(batch) <= room < peak_of(batch + 1)
    assert batch_of(capped, 0.0) == 1
