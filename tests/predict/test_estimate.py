"""Measured figures stay as measured, a prediction names its anchor, and a CPU anchors nothing."""

from __future__ import annotations

import math
import re
from statistics import median

import msgspec
import numpy as np
import pytest
from memory_cases import traced_bytes
from msgspec.structs import replace
from scipy.stats import binomtest

from gpubench.errors import MisuseError
from gpubench.findings import UNFOUNDED
from gpubench.interval import Interval
from gpubench.models import (
    Case,
    Checkpointing,
    Estimate,
    Execution,
    Finding,
    FindingKind,
    Framework,
    Launch,
    MemoryBasis,
    ParallelMode,
    Precision,
    Round,
    TaskKind,
    TelemetrySample,
    Trainable,
    WeightType,
)
from gpubench.predict import model
from gpubench.predict.answers import draw, reasons
from gpubench.predict.calibration import load_calibration
from gpubench.predict.estimate import estimate
from gpubench.predict.memory import need_of, scale_of
from gpubench.predict.memory_answer import answer_memory
from gpubench.predict.model import differences
from gpubench.predict.question import (
    Question,
    Refusal,
    case_for,
    peaks_of,
    question_of,
    readings_of,
    why_impossible,
)
from gpubench.predict.roofline import ABOVE_STATED_CLOCK, work_of
from gpubench.probe.amd import matrix_formats
from gpubench.profile import load_profiles, profile_of
from gpubench.readings import h200_readings
from gpubench.record.store import reference_runs
from gpubench.specs import load_specs, require_spec
from gpubench.units import GIB
from predict.profiles import published
from predict.runs import run_of

T4 = "nvidia-tesla-t4-16gb"
H100 = "nvidia-h100-sxm-80gb"
H200 = "nvidia-h200-sxm-141gb"
MI300X = "amd-mi300x-192gb"
RTX3090 = "nvidia-geforce-rtx-3090-24gb"
RTX3060, RTX2080TI = "nvidia-geforce-rtx-3060-12gb", "nvidia-geforce-rtx-2080-ti-11gb"
ORDER = (
    RTX2080TI,
    RTX3090,
    "nvidia-geforce-rtx-4090-24gb",
    "nvidia-a100-sxm-80gb",
    H100,
    H200,
    "nvidia-b200-sxm-180gb",
)


@pytest.fixture(scope="module")
def vgg16():
    return Question(profile=published("vgg16"))


def ask(question, *keys, **runs):
    return estimate(question, [load_specs()[key] for key in keys], **runs)


def case_on(question, key) -> Case:
    case = case_for(question, load_specs()[key])
    assert isinstance(case, Case)
    return case


def test_the_order_of_well_known_cards_is_plausible(vgg16):
    """The T4 and the RTX 3060 may come in either order: the T4 has 2.5 times the tensor rate, but less bandwidth and only 70 W."""
    speeds = [answer.samples_per_s for answer in ask(vgg16, *ORDER).values()]
    assert speeds == sorted(speeds)
    slower = ask(vgg16, T4, RTX3060)
    assert all(each.samples_per_s < 0.7 * speeds[0] for each in slower.values())
    assert speeds[ORDER.index(H100)] > 4 * slower[T4].samples_per_s


def test_the_level_agrees_with_a_reading_of_an_h200(vgg16):
    """Hand-written loops measured 3251 images/s at batch 64 in amp-bf16 and channels_last, as a CUDA graph."""
    answer = ask(vgg16, H200)[H200]
    assert answer.low < 3251 < answer.high
    assert not answer.anchored
    assert "not anchored" in answer.method


def test_own_measurements_come_before_reference_ones_and_both_before_predictions(vgg16):
    case = case_on(vgg16, T4)
    own, shipped = run_of(T4, (case, 150.0), run_id="own"), run_of(T4, (case, 140.0), run_id="shipped")
    assert ask(vgg16, T4, own=[own], reference=[shipped])[T4].samples_per_s == pytest.approx(150, rel=1e-3)
    answer = ask(vgg16, T4, reference=[shipped])[T4]
    assert (answer.basis, answer.evidence) == ("reference", ("shipped",))
    assert ask(vgg16, T4)[T4].basis == "predicted"
    assert answer.high / answer.samples_per_s > 1.05, "it was measured on another card in another host"


def test_interval_from_another_cards_run_combines_run_and_transfer_errors(vgg16):
    """Half-widths are logarithms. The two errors are independent, as are the errors of card and host.

    The run has only one launch, so its interval also covers the usual difference between processes on a GPU.
    """
    run = run_of(T4, (case_on(vgg16, T4), 140.0))
    rounds = tuple(Round(steps=10, wall_s=wall_s) for wall_s in (4.0, 5.0) * 6)
    alone = tuple(replace(m, launches=(Launch(index=0, rounds=rounds),)) for m in run.measurements)
    run = replace(run, measurements=alone)
    (row,) = run.measurements
    assert row.relative_half_width == pytest.approx(
        math.hypot(alone[0].relative_half_width, 1.96 * 0.003), rel=1e-3
    )
    own = math.log(row.samples_per_s_high / row.samples_per_s_low) / 2
    assert own > math.log(1.05)
    answer = ask(vgg16, T4, reference=[run])[T4]
    half_width = math.log(answer.high / answer.low) / 2
    assert half_width == pytest.approx(math.hypot(own, math.log(1.05), math.log(1.006)))


def test_part_of_a_cards_deviation_is_attributed_to_the_card_itself(vgg16):
    """Only the rest carries over to another chip. A deviation far from the level is attributed to the workload alone."""
    case, level = case_on(vgg16, T4), ask(vgg16, T4)[T4].samples_per_s
    for slow, fast, moved in ((0.9, 1.1, (1.1 / 0.9) ** 0.7), (2.3, 4.6, 2.0), (0.1, 0.2, 2.0)):
        runs = (run_of(T4, (case, level * factor)) for factor in (slow, fast))
        less, more = (ask(vgg16, H100, own=[run])[H100].samples_per_s for run in runs)
        assert more / less == pytest.approx(moved)


def test_a_measurement_on_a_gpu_scales_every_prediction(vgg16):
    case = case_on(vgg16, T4)
    slow, fast = (ask(vgg16, H100, own=[run_of(T4, (case, speed))])[H100] for speed in (10.0, 20.0))
    assert fast.samples_per_s / slow.samples_per_s == pytest.approx(2)
    assert slow.anchored
    assert "from T4" in slow.method
    assert slow.evidence == ("run-1",)


def test_an_anchor_narrows_the_interval(vgg16):
    width = {}
    for name, runs in (("absolute", []), ("ratio", [run_of(H200, (case_on(vgg16, H200), 3166.0))])):
        answer = ask(vgg16, H100, own=runs)[H100]
        width[name] = answer.high / answer.low
    assert width["ratio"] < width["absolute"]


@pytest.mark.parametrize("key", ["cpu", None, T4])
def test_a_cpu_measurement_never_anchors_a_gpu(vgg16, key):
    run = run_of(key, (case_on(vgg16, T4), 1.0), backend="cpu")
    assert ask(vgg16, H100, T4, own=[run]) == ask(vgg16, H100, T4)


@pytest.mark.parametrize("kind", [FindingKind.HOST_BOUND, FindingKind.SHARED_GPU, *sorted(UNFOUNDED)])
def test_flagged_measurement_anchors_no_prediction(vgg16, kind):
    case = case_on(vgg16, T4)
    run = run_of(T4, (case, 10.0), findings=(Finding(kind=kind),))
    assert not ask(vgg16, H100, own=[run])[H100].anchored
    basis = "measured" if kind is FindingKind.HOST_BOUND else "predicted"
    assert ask(vgg16, T4, own=[run])[T4].basis == basis


@pytest.mark.parametrize("kind", sorted(UNFOUNDED))
def test_peak_memory_is_used_even_if_the_host_was_busy(vgg16, kind):
    run = run_of(T4, (case_on(vgg16, T4), 10.0), findings=(Finding(kind=kind),), peak_memory_bytes=GIB)
    assert [reading.peak_memory_bytes for reading in peaks_of(vgg16, [run])] == [GIB]


@pytest.mark.parametrize(("kind", "cpu"), [(FindingKind.HOST_BOUND, "Some CPU"), (FindingKind.NOISY, None)])
def test_a_host_bound_measurement_names_the_cpu_that_limited_it(vgg16, kind, cpu):
    run = run_of(T4, (case_on(vgg16, T4), 10.0), findings=(Finding(kind=kind),))
    run = msgspec.structs.replace(run, environment=msgspec.structs.replace(run.environment, cpu="Some CPU"))
    found = ask(vgg16, T4, own=[run])[T4]
    assert (found.basis, found.host_cpu) == ("measured", cpu)


def test_run_of_one_framework_does_not_anchor_another():
    """Neither a torch run nor the shipped torch loops anchor a prediction for another framework."""
    asked = Question(profile=load_profiles()["vgg16"])
    of_torch = run_of(T4, (case_on(asked, T4), 10.0))
    found = readings_of(asked, [of_torch], [])
    assert {reading.run_id for reading in found} > {"run-1"}, "the loops are among them"
    assert readings_of(msgspec.structs.replace(asked, framework=Framework.KERAS_JAX), [of_torch], []) == []


def test_another_workload_version_or_task_anchors_nothing(vgg16):
    case = case_on(vgg16, T4)
    others = [
        replace(case, **change)
        for change in (
            {"workload_version": 2},
            {"task": TaskKind.INFER},
            {"precision": Precision.FP32},
            {"gpu_count": 4},
            {"framework": Framework.KERAS_TORCH},
            {"weight_type": WeightType.BFLOAT16},
            {"checkpointing": Checkpointing.FULL},
            {"trainable": Trainable.LORA},
            {"loss_chunks": 8},
        )
    ]
    run = run_of(T4, *((other, 10.0) for other in others))
    assert not ask(vgg16, H100, own=[run])[H100].anchored


def test_a_difference_between_anchor_and_question_is_reported(vgg16):
    case = case_on(Question(profile=vgg16.profile, batch_size=32, execution=Execution.EAGER), T4)
    answer = ask(vgg16, H100, own=[run_of(T4, (case, 100.0))])[H100]
    assert "batch 32" in answer.method
    assert "eager" in answer.method


def test_transfer_width_is_independent_of_difference_labels(vgg16, monkeypatch):
    case = case_on(Question(profile=vgg16.profile, batch_size=32, execution=Execution.EAGER), T4)
    own = [run_of(T4, (case, 100.0))]
    before = ask(vgg16, H100, own=own)[H100]
    monkeypatch.setattr(model, "differences", lambda *at: {k: f"there {k}" for k in differences(*at)})
    after = ask(vgg16, H100, own=own)[H100]
    assert "(there precision, there execution, there batch_size)" in after.method
    assert (after.low, after.high) == (before.low, before.high)


def test_a_bf16_prediction_starts_from_amp_if_nothing_closer_was_measured():
    """With bf16 weights, an H100 reached 21.2 sequences/s eagerly and 23.1 as a graph; only its AMP row is shipped."""
    asked = question_of(load_profiles()["llama_1b"], "bf16")
    answer = estimate(asked, [load_specs()[H100]], reference=reference_runs())[H100]
    assert answer.case.weight_type is WeightType.BFLOAT16
    assert answer.anchored
    assert answer.low < 21.2
    assert answer.high > 23.1
    assert "measured at amp-bf16" in answer.method
    assert "float32 weights" in answer.method


def test_run_at_the_same_precision_is_preferred_to_amp_as_anchor(vgg16):
    asked = msgspec.structs.replace(vgg16, precision=Precision.BF16)
    amp, bf16 = case_on(vgg16, T4), case_on(asked, RTX3090)
    runs = [run_of(T4, (amp, 150.0), run_id="amp"), run_of(RTX3090, (bf16, 400.0), run_id="bf16")]
    assert ask(asked, H100, own=runs)[H100].evidence == ("bf16",)
    assert ask(asked, H100, own=runs[:1])[H100].evidence == ("amp",)


def test_no_interval_ends_beyond_the_peak_of_its_gpu():
    """An MI355X peaks at 2.5e15 dense BF16 FLOP/s, and a sequence of 4096 tokens takes 3.9e15 FLOPs.

    Without the limit, the wide interval would end above the rate that follows.
    """
    asked = question_of(load_profiles()["llama_70b"], "bf16")
    spec = load_specs()["amd-mi355x-288gb"]
    answer = estimate(asked, [spec], most_sharing=8)[spec.key]
    most = ABOVE_STATED_CLOCK * spec.bf16_tensor_flops_per_s
    flops = work_of(asked.profile.train, answer.case.batch_size, 0.0).flops.sum()
    assert answer.high / answer.case.batch_size * flops == pytest.approx(most)
    assert answer.high / answer.samples_per_s < answer.samples_per_s / answer.low, "the lower end stays"
    draws = draw([answer], 4000, seed=1)
    assert draws.max() == answer.high
    assert np.mean(draws < answer.low) == pytest.approx(0.05, abs=0.01)


def test_predictions_combine_two_owned_gpus(vgg16):
    runs = [
        run_of(T4, (case_on(vgg16, T4), 150.0), run_id="a"),
        run_of(RTX3090, (case_on(vgg16, RTX3090), 400.0), run_id="b"),
    ]
    alone = [ask(vgg16, H100, own=[run])[H100].samples_per_s for run in runs]
    both = ask(vgg16, H100, own=runs)[H100]
    assert min(alone) <= both.samples_per_s <= max(alone)
    assert set(both.evidence) == {"a", "b"}


@pytest.mark.parametrize(
    ("key", "precision", "reason"),
    [
        ("nvidia-tesla-k80-12gb", "amp", "Kepler"),
        ("nvidia-geforce-rtx-5090-d-32gb", "amp", "FP16 tensor rate"),
        (T4, "tf32", "TF32"),
        (T4, "amp-bf16", "BF16"),
        ("nvidia-rtx-pro-4500-blackwell-server-32gb", "fp32", "no peak rates"),
        ("nvidia-geforce-rtx-2060-6gb", "amp", "; largest batch 40 in a CUDA graph"),
    ],
)
def test_refusals_give_their_reason(key, precision, reason):
    precision = precision if precision == "amp" else Precision(precision)
    answer = ask(Question(profile=published("vgg16"), precision=precision, batch_size=128), key)[key]
    assert isinstance(answer, Refusal)
    assert reason in answer.reason


def test_a_measured_language_model_keeps_its_figure_and_anchors_predictions():
    question = Question(profile=profile_of("llama_1b"), precision=Precision.BF16, batch_size=4)
    mine = case_for(question, require_spec(H100))
    assert mine.recipe == question.profile.recipe
    found = ask(question, H100, H200, own=[run_of(H100, (mine, 20.0))])
    assert (found[H100].basis, found[H100].samples_per_s) == ("measured", pytest.approx(20, rel=1e-3))
    assert (found[H200].basis, found[H200].anchored) == ("predicted", True)
    other = msgspec.structs.replace(mine, checkpointing=Checkpointing.FULL)
    found = ask(question, H100, own=[run_of(H100, (other, 20.0))])
    assert (found[H100].basis, found[H100].anchored) == ("predicted", False)


def test_fp8_has_a_figure_where_it_was_measured_and_nowhere_else():
    question = Question(profile=profile_of("llama_1b"), precision=Precision.FP8, batch_size=4)
    mine = case_for(question, require_spec(H100))
    found = ask(question, H100, H200, own=[run_of(H100, (mine, 20.0))])
    assert found[H100].basis == "measured"
    assert "fp8 is measured, never" in found[H200].reason


def test_a_case_without_a_capable_gpu_is_refused_at_once(vgg16):
    at_int8 = msgspec.structs.replace(vgg16, precision=Precision.INT8)
    with pytest.raises(MisuseError, match="--task infer"):
        ask(at_int8, H100)
    infers = msgspec.structs.replace(at_int8, task=TaskKind.INFER)
    assert "int8 is measured, never" in ask(infers, H100)[H100].reason


def test_another_vendors_gpu_lacks_hardware_by_its_rates_and_nvidias_modes_by_name(vgg16):
    """int8 does not need tensor cores, since CPUs have it; among GPUs, only NVIDIA's offer it."""

    def reason(precision: Precision, key: str) -> str | None:
        asked = case_for(
            msgspec.structs.replace(vgg16, precision=precision, task=TaskKind.INFER), require_spec(key)
        )
        return asked.reason if isinstance(asked, Refusal) else None

    for precision in (Precision.TF32, Precision.INT8):
        assert (
            reason(precision, "amd-mi300x-192gb")
            == f"{precision} is only for NVIDIA GPUs here, and Instinct MI300X is not one"
        )
    assert reason(Precision.AMP_BF16, "amd-mi300x-192gb") is None
    assert reason(Precision.AMP_BF16, "amd-mi50-16gb") == "Instinct MI50 16GB has no BF16 hardware"
    assert reason(Precision.AMP_FP16, "amd-mi50-16gb") is None


def test_measured_generation_uses_its_own_times_and_anchors_no_other():
    question = Question(
        profile=profile_of("llama_8b"), precision=Precision.BF16, batch_size=8, task=TaskKind.INFER
    )
    mine = case_for(question, require_spec(H100))
    run = run_of(H100, (mine, 4.0), first_token_s=(0.1,) * 50, per_token_s=(0.015,) * 50)
    found = ask(question, H100, H200, own=[run])
    assert found[H100].basis == "measured"
    assert (found[H100].first_token_s, found[H100].per_token_s.value) == (0.1, 0.015)
    other = found[H200]
    assert (other.anchored, other.first_token_s) == (False, None)
    assert other.per_token_s.low < other.per_token_s.value < other.per_token_s.high, (
        "predicted from the bytes read"
    )
    assert found[H100].per_token_s.low is None
    assert found[H200] == ask(question, H200)[H200]


def test_the_largest_batch_named_in_a_refusal_fits():
    key = "nvidia-geforce-rtx-2060-6gb"
    profile = published("vgg16")
    refusal = ask(Question(profile=profile, batch_size=128), key)[key]
    largest = int(re.search(r"largest batch (\d+)", refusal.reason)[1])
    assert ask(Question(profile=profile, batch_size=largest), key)[key].memory_text.startswith("fits (")
    eager_alone = ask(Question(profile=profile, batch_size=largest + 1), key)[key]
    assert "in eager steps" in eager_alone.memory_text
    assert FindingKind.EAGER_MEMORY in {finding.kind for finding in eager_alone.findings}
    eager = Question(profile=profile, batch_size=128, execution=Execution.EAGER)
    largest = int(re.search(r"largest batch (\d+)", ask(eager, key)[key].reason)[1])
    assert isinstance(ask(msgspec.structs.replace(eager, batch_size=largest), key)[key], Estimate)
    assert isinstance(ask(msgspec.structs.replace(eager, batch_size=largest + 1), key)[key], Refusal)


def test_a_measured_peak_scales_the_memory_gate(vgg16):
    case = case_on(vgg16, T4)
    free = ask(vgg16, H100)[H100].peak_memory_bytes
    run = run_of(T4, (case, 150.0), peak_memory_bytes=2 * free)
    assert ask(vgg16, H100, own=[run])[H100].peak_memory_bytes == pytest.approx(2 * free, rel=0.01)


def test_a_peak_measured_on_several_gpus_does_not_apply_to_one(vgg16):
    spec = load_specs()[H100]
    one = case_on(vgg16, H100)
    several = {
        mode: msgspec.structs.replace(one, gpu_count=2, parallel_mode=mode)
        for mode in (ParallelMode.DDP, ParallelMode.FSDP)
    }
    run = run_of(H100, (several[ParallelMode.DDP], 5000.0), peak_memory_bytes=9 * GIB)
    peaks = peaks_of(vgg16, [run])
    assert readings_of(vgg16, [run], []) == readings_of(vgg16, [], []), "its speed belongs to another case"
    needs = {mode: need_of(vgg16, case, spec, peaks) for mode, case in several.items()}
    assert needs[ParallelMode.DDP].basis is MemoryBasis.MEASURED
    assert needs[ParallelMode.DDP].allocated.value == 9 * GIB
    assert needs[ParallelMode.FSDP].basis is MemoryBasis.TRACED
    assert need_of(vgg16, one, spec, peaks) == need_of(vgg16, one, spec, [])
    larger = msgspec.structs.replace(several[ParallelMode.DDP], batch_size=2 * one.batch_size)
    told = [traced_bytes(vgg16.profile, larger, need_of(vgg16, larger, spec, known)) for known in (peaks, [])]
    assert told[0] / told[1] == pytest.approx(scale_of(vgg16, larger, peaks)) != 1


def test_a_peak_at_tf32_does_not_count_for_strict_fp32(vgg16):
    """A convolution in strict fp32 takes cuDNN memory that it does not take at TF32. Both kinds of AMP need the same."""
    spec = load_specs()[H100]
    tf32 = msgspec.structs.replace(case_on(vgg16, H100), precision=Precision.TF32)
    peaks = peaks_of(vgg16, [run_of(H100, (tf32, 1500.0), peak_memory_bytes=6271 * 2**20)])
    basis = {
        precision: need_of(vgg16, msgspec.structs.replace(tf32, precision=precision), spec, peaks).basis
        for precision in (Precision.TF32, Precision.FP32, Precision.AMP_BF16)
    }
    assert basis[Precision.TF32] is MemoryBasis.MEASURED
    assert basis[Precision.FP32] is basis[Precision.AMP_BF16] is MemoryBasis.TRACED
    amp = msgspec.structs.replace(tf32, precision=Precision.AMP_BF16)
    half = peaks_of(vgg16, [run_of(H100, (amp, 3000.0), peak_memory_bytes=4578 * 2**20)])
    other = msgspec.structs.replace(tf32, precision=Precision.AMP_FP16)
    assert need_of(vgg16, other, spec, half).basis is MemoryBasis.MEASURED


def test_a_peak_measured_with_a_recipe_replaces_the_traced_one():
    question = Question(profile=load_profiles()["llama_8b_lora"], precision=Precision.BF16)
    case = case_on(question, H100)
    run = run_of(H100, (case, 2.0), peak_memory_bytes=21 * GIB)
    found = need_of(question, case, load_specs()[H100], peaks_of(question, [run]))
    assert (found.basis, found.allocated.value) == (MemoryBasis.MEASURED, 21 * GIB)


def test_each_measured_figure_replaces_its_predicted_one(vgg16):
    """A figure measured on an H100 is used unchanged there; on an H200 it allows for a different CUDA context."""
    case = case_on(vgg16, H100)
    run = run_of(
        H100,
        (case, 3000.0),
        peak_memory_bytes=5 * GIB,
        peak_reserved_bytes=6 * GIB,
        telemetry=(
            TelemetrySample(t_s=-1.0, memory_used_bytes=9 * GIB),
            TelemetrySample(t_s=0.5, memory_used_bytes=7 * GIB),
        ),
    )
    (measurement,) = run.measurements
    assert (measurement.peak_reserved_bytes, measurement.device_bytes) == (6 * GIB, 7 * GIB)
    here, there = (ask(vgg16, key, own=[run])[key] for key in (H100, H200))
    assert [x.peak_memory_bytes for x in (here, there)] == [5 * GIB] * 2
    assert here.device_bytes == Interval(7 * GIB, 7 * GIB, 7 * GIB)
    assert there.device_bytes.value == 7 * GIB
    assert 6 * GIB <= there.device_bytes.low < 7 * GIB < there.device_bytes.high < 7.5 * GIB


def test_memory_and_prediction_agree_about_a_card_with_a_run(vgg16):
    """Two cards differ only in name, and one of them was measured: a step that ran there fits, whatever its peak."""
    sxm, pcie = "nvidia-a100-sxm-80gb", "nvidia-a100-pcie-80gb"
    case = case_on(vgg16, sxm)
    full = round(79.9 * GIB)
    run = run_of(sxm, (case, 150.0), peak_memory_bytes=full, peak_reserved_bytes=full)
    told = {
        key: card.fit
        for card in answer_memory(vgg16, [load_specs()[pcie], load_specs()[sxm]], own=[run]).cards
        for key in card.gpu_keys
    }
    shown = ask(msgspec.structs.replace(vgg16, batch_size=vgg16.batch), sxm, pcie, own=[run])
    assert told[sxm].text() == shown[sxm].memory_text
    assert told[sxm].ran
    assert told[sxm].need.device_bytes == shown[sxm].device_bytes
    assert isinstance(shown[pcie], Refusal)
    assert told[pcie].text() in shown[pcie].reason


def test_a_host_bound_step_has_no_interval_and_its_graph_is_not_host_bound():
    profile = published("resnet50_cifar", batches=(8, 16, 32))
    eager = ask(Question(profile=profile, execution=Execution.EAGER), H200)[H200]
    assert eager.low is None
    assert any(f.kind is FindingKind.HOST_BOUND for f in eager.findings)
    graph = ask(Question(profile=profile), H200)[H200]
    assert graph.host_share == 0
    assert graph.low < graph.samples_per_s < graph.high
    assert graph.samples_per_s > 1.5 * eager.samples_per_s


def test_a_step_does_not_become_faster_by_becoming_host_bound():
    """At the limit only the interval disappears; the speed has no jump there."""
    rates, bound = [], []
    for batch_size in range(20, 60, 2):
        profile = load_profiles()["resnet50"]
        eager = Question(profile=profile, execution=Execution.EAGER, batch_size=batch_size)
        answer = ask(eager, H200)[H200]
        rates.append(answer.samples_per_s)
        bound.append(answer.low is None)
    assert set(bound) == {True, False}
    assert rates == sorted(rates)


def test_the_shares_of_a_step_add_up_to_at_most_one(vgg16):
    answer = ask(vgg16, H100)[H100]
    assert 0.9 < answer.compute_share + answer.bandwidth_share + answer.host_share <= 1


@pytest.mark.parametrize("batch_size", [0, -1])
def test_an_impossible_batch_is_misuse(batch_size):
    with pytest.raises(MisuseError, match="batch"):
        ask(Question(profile=published("vgg16"), batch_size=batch_size), T4)


def test_every_figure_is_finite_and_inside_its_interval():
    asked = [Question(profile=published("resnet50"), precision=precision) for precision in Precision]
    possible = [question for question in asked if why_impossible(question) is None]
    assert [each.precision for each in asked if each not in possible] == [Precision.FP8, Precision.INT8]
    for question in possible:
        for answer in estimate(question, list(load_specs().values())).values():
            if isinstance(answer, Estimate):
                assert math.isfinite(answer.samples_per_s)
                assert 0 < answer.low < answer.samples_per_s < answer.high
                assert np.isfinite([answer.compute_share, answer.bandwidth_share]).all()


def test_a_network_smaller_than_every_published_one_gets_a_wider_interval_that_contains_its_reading():
    """Hand-written loops on an H200 ran cnn in fp32 at batch 4096, as a CUDA graph, at 590 k samples/s."""
    question = Question(profile=load_profiles()["cnn"], precision=Precision.FP32, batch_size=4096)
    answer = ask(question, H200)[H200]
    assert "every published model" in answer.method
    assert answer.low < 590e3 < answer.high


LARGE = ("lstm_large", "vgg16", "vgg16_transfer", "resnet50")
"""Workloads of the shipped readings that fill an H200."""


def steps_as_a_graph():
    """Yield the question and the throughput of each shipped reading of our own models as a CUDA graph."""
    for step in h200_readings().steps:
        question = Question(
            profile=load_profiles()[step.workload], precision=step.precision, batch_size=step.batch_size
        )
        yield question, step.batch_size / step.step_s[Execution.GRAPH]


def test_another_vendor_is_predicted_with_the_width_of_its_own_error(vgg16):
    """The fit uses NVIDIA cards only. An MI325X took 2.5 times as long as it says, so the MI300X is lowered too."""
    answers = ask(vgg16, "amd-mi300x-192gb", H100)
    amd, nvidia = answers["amd-mi300x-192gb"], answers[H100]
    assert amd.high / amd.low > nvidia.high / nvidia.low
    assert FindingKind.OUT_OF_DOMAIN in {finding.kind for finding in amd.findings}
    assert load_calibration().train.level.deviations["CDNA3"][0] < -0.5


def test_a_user_without_a_gpu_starts_from_the_shipped_readings():
    question = Question(profile=load_profiles()["vgg16"])
    answers = ask(question, H200, H100)
    assert (answers[H200].basis, answers[H100].basis) == ("reference", "predicted")
    assert answers[H100].anchored
    assert [each.rpartition(" on ")[2] for each in answers[H100].evidence] == ["NVIDIA H200, 2026-11-20"]
    assert (answers[H100].high / answers[H100].low) ** 0.5 < 1.4


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "lstm_large", "bert_base", "transformer", "vit_b16"])
def test_a_large_workload_with_a_reading_is_predicted_within_a_factor_of_1_4(name):
    nvidia = [spec for spec in load_specs().values() if spec.vendor == "NVIDIA" and not spec.variants]
    answers = estimate(Question(profile=load_profiles()[name]), nvidia, reference=reference_runs()).values()
    told = [each for each in answers if isinstance(each, Estimate) and each.basis == "predicted" and each.low]
    assert len(told) > 50
    assert median(each.high / each.samples_per_s for each in told) < 1.4


def test_shipped_measurement_on_a_card_is_its_answer():
    steps = [*steps_as_a_graph()]
    assert len(steps) > 30
    for question, rate in steps:
        answer = ask(question, H200)[H200]
        assert answer.samples_per_s == pytest.approx(rate)
        assert answer.low < rate < answer.high


def test_host_bound_readings_anchor_no_prediction():
    question = Question(profile=load_profiles()["cnn"], execution=Execution.EAGER, batch_size=512)
    assert "CUDA graph" in ask(question, H100)[H100].method


def test_only_the_users_measurement_is_used():
    question = Question(profile=load_profiles()["vgg16"])
    answer = ask(question, H100, own=[run_of(T4, (case_on(question, T4), 150.0))])[H100]
    assert answer.evidence == ("run-1",)


def test_a_model_that_only_shares_a_name_has_no_anchor(vgg16):
    assert not ask(vgg16, H100)[H100].anchored


def test_large_workloads_are_within_their_intervals_without_their_own_reading():
    """The readings are compared with the level alone, as for a model that has no readings on the card."""
    errors, inside = {}, []
    for question, rate in steps_as_a_graph():
        name = question.profile.name
        if name in LARGE:
            stranger = msgspec.structs.replace(question.profile, name=f"own_{name}")
            answer = ask(msgspec.structs.replace(question, profile=stranger), H200)[H200]
            errors.setdefault(name, []).append(abs(answer.samples_per_s / rate - 1))
            inside.append(answer.low < rate < answer.high)
    every = [error for each in errors.values() for error in each]
    assert np.mean(every) < 0.18
    assert np.median(every) < 0.16
    assert np.mean(errors["vgg16"]) < 0.21
    assert np.mean(errors["resnet50"]) < 0.20
    assert binomtest(sum(inside), len(inside), 0.9).pvalue > 0.05


def test_inference_is_predicted_from_its_own_fit():
    """Compiling saves memory traffic in a forward pass; the rows and the interval come from the fit for inference."""
    profile = published("resnet50")
    spec = load_specs()["nvidia-geforce-rtx-4090-24gb"]
    found = {}
    for execution in (Execution.GRAPH, Execution.COMPILE):
        question = Question(profile=profile, task=TaskKind.INFER, execution=execution)
        (found[execution],) = estimate(question, [spec]).values()
    graph, compiled = found[Execution.GRAPH], found[Execution.COMPILE]
    assert compiled.samples_per_s > 1.1 * graph.samples_per_s
    learned = load_calibration().infer
    assert math.log(graph.high / graph.samples_per_s) == pytest.approx(learned.level.half_width(spec))
    assert learned.rows_by_gpu[spec.key] > 100
    assert f"{learned.rows} in all" in reasons(graph)


def test_other_vendors_have_error_widths_of_their_own_product_line():
    learned = load_calibration().train.ratio
    instinct, radeon, rdna3 = (
        load_specs()[k] for k in ("amd-mi210-64gb", "amd-radeon-rx-6800-16gb", "amd-radeon-rx-7900-xtx-24gb")
    )
    assert learned.half_width(instinct) < math.log(2.5) < learned.half_width(radeon)
    for spec in (instinct, radeon):  # matrix cores: one harness each, larger errors
        assert learned.half_width(spec, half=True) > 1.9 * learned.half_width(spec)
    assert learned.half_width(rdna3, half=True) < learned.half_width(radeon, half=True)
    assert learned.half_width(rdna3) < math.log(4)


def test_published_rows_of_another_vendor_are_counted_although_no_fit_uses_them(vgg16):
    (answer,) = ask(vgg16, "amd-mi325x-256gb").values()
    fitted = load_calibration().train
    assert fitted.apart_by_gpu.keys().isdisjoint(fitted.rows_by_gpu)
    assert f"{fitted.apart_by_gpu[answer.gpu_key]} published rows of this GPU (scored separately)" in reasons(
        answer
    )


@pytest.mark.parametrize("key", ["google-tpu-v5e", "intel-gaudi2-96gb", "apple-m4"])
def test_a_device_that_the_catalog_only_lists_has_neither_speed_nor_memory_and_says_why(key):
    """A TPU computes in bf16 natively; its software rules it out, as the catalog states."""
    lora = question_of(load_profiles()["llama_8b_lora"], "bf16")
    spec = load_specs()[key]
    (refusal,) = ask(lora, key).values()
    assert refusal.reason == spec.not_ranked_because
    assert [each.reason for each in answer_memory(lora, [spec]).refused] == [spec.not_ranked_because]


def test_a_measured_card_of_another_vendor_is_predicted_closely_at_other_batches(vgg16):
    """A vendor's errors are errors of the level, which cancels for a measured card."""
    measured = run_of(MI300X, (case_for(vgg16, load_specs()[MI300X]), 2000.0))
    asked = msgspec.structs.replace(vgg16, batch_size=vgg16.batch * 2)
    same, other = ask(asked, MI300X, "amd-mi325x-256gb", own=[measured]).values()
    assert math.sqrt(same.high / same.low) < 1.4
    assert math.sqrt(other.high / other.low) > 3


@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD"])
def test_amp_resolves_to_the_precision_that_a_run_on_the_card_would_use(vendor):
    """The compute capability decides for an NVIDIA card, and the formats of the matrix units for an AMD card."""
    question = question_of(profile_of("resnet50"), "amp")
    cards = [spec for spec in load_specs().values() if spec.vendor == vendor]
    found = {spec.key: case_for(question, spec) for spec in cards}
    told = {key: case.precision for key, case in found.items() if isinstance(case, Case)}
    assert {Precision.AMP_BF16, Precision.AMP_FP16} >= set(told.values())
    for key, precision in told.items():
        spec = load_specs()[key]
        if vendor == "AMD":
            has_bf16 = "bf16" in matrix_formats(spec.compute_capability)
        else:
            has_bf16 = float(spec.compute_capability) >= 8.0
        assert (precision is Precision.AMP_BF16) == has_bf16, key
    assert told
