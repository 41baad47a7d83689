"""Rules that only a GPU can test: precision in effect, capture, fidelity, memory, telemetry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpubench.errors import GpuBenchError
from gpubench.measure.budget import QUICK
from gpubench.measure.environment import child_variables
from gpubench.measure.launcher import Launcher
from gpubench.measure.micro import gemm_probes, measure_probe
from gpubench.measure.plan import Plan, PlannedCase, plan
from gpubench.measure.request import RunRequest
from gpubench.measure.step import open_hardware
from gpubench.models import Case, Execution, FindingKind, Precision, Status, TaskKind
from gpubench.probe.select import select_peers
from gpubench.profile import load_profiles


def planned(workload: str, precision: Precision, execution: Execution, batch: int) -> PlannedCase:
    profile = load_profiles()[workload]
    return PlannedCase(
        reference=workload,
        case=Case(
            workload=workload,
            workload_version=profile.version,
            task=TaskKind.TRAIN,
            precision=precision,
            execution=execution,
            memory_format=profile.memory_format_at(precision),
            batch_size=batch,
            sample_unit=profile.sample_unit,
        ),
        flops_per_sample=profile.train_flops_per_sample,
    )


def measure(gpu, *cases: PlannedCase, launches: int = 1):
    made = Plan(budget=msgspec.structs.replace(QUICK, launches=launches), seed=0, cases=cases)
    latest = {m.case: m for m in Launcher(made, gpu).run()}
    return [latest[case.case] for case in cases]


def test_every_precision_and_execution_of_the_classic_three_is_measured(gpu):
    request = RunRequest(budget="quick")
    made = plan(request, gpu, load_profiles())
    found = {m.case: m for m in Launcher(made, gpu).run()}
    assert {(m.case.label, m.status, m.reason) for m in found.values() if m.status is not Status.OK} == set()
    for measurement in found.values():
        assert measurement.peak_memory_bytes > 0
        assert measurement.launches[0].telemetry
        assert FindingKind.TF32_IN_FORCE not in {f.kind for f in measurement.findings}


def test_fp16_with_its_scaler_is_captured_and_trains(gpu):
    cases = [planned(name, Precision.AMP_FP16, Execution.GRAPH, 64) for name in ("cnn", "lstm", "vgg16")]
    for measurement in measure(gpu, *cases):
        assert measurement.status is Status.OK, measurement.reason
        assert measurement.launches[0].graph_error < 2e-2


def test_strict_fp32_is_ieee_and_tf32_is_not(gpu):
    if gpu.compute_capability < (8, 0):
        pytest.skip("no tf32 below compute capability 8.0")
    strict, tf32 = measure(
        gpu,
        planned("cnn", Precision.FP32, Execution.EAGER, 64),
        planned("cnn", Precision.TF32, Execution.EAGER, 64),
    )
    assert max(strict.launches[0].precision_errors.values()) < 1e-5
    assert max(tf32.launches[0].precision_errors.values()) > 1e-5


def test_products_in_fp8_are_faster_than_in_bf16_if_the_card_has_them(gpu):
    hardware = open_hardware(gpu)
    probes = [p for p in gemm_probes(gpu) if p.precision in {"bf16", "fp8"} and p.size == "8192"]
    found = {p.precision: measure_probe(p, hardware, QUICK).value for p in probes}
    print({name: f"{value / 1e12:.0f} TFLOP/s" for name, value in found.items()})
    has = gpu.compute_capability >= (8, 9)
    assert ("fp8" in found) is has
    assert not has or found["fp8"] > 1.3 * found["bf16"]


@pytest.mark.parametrize(("gpus", "jobs"), [(1, "ddp"), (2, "ddp"), (2, "fsdp")])
def test_a_language_model_trains_in_fp8_or_is_refused_with_the_reason(gpu, gpus, jobs):
    """Alone, eagerly and as a graph; in a job eagerly, with complete copies and sharded."""
    pytest.importorskip("torchao", exc_type=ImportError)
    try:
        peers = select_peers(gpu, gpus) if gpus > 1 else ()
    except GpuBenchError as error:
        pytest.skip(str(error))
    request = RunRequest(
        workloads=("llama_1b",),
        precisions=("bf16", "fp8"),
        batch_size=4,
        budget="quick",
        gpus=gpus,
        jobs=jobs,
    )
    made = plan(request, gpu, load_profiles(), peers)
    found = {(m.case.precision, m.case.execution, m.case.gpu_count): m for m in Launcher(made, gpu).run()}
    for key, m in found.items():
        rate = "" if m.samples_per_s is None else f"{2048 * m.samples_per_s:,.0f} tokens/s, {m.mfu:.0%} MFU"
        print(*key, m.status, m.reason, rate, m.findings)
    has = gpu.compute_capability >= (8, 9)
    in_fp8 = [m for (precision, *_), m in found.items() if precision is Precision.FP8]
    assert gpus in {m.case.gpu_count for m in in_fp8}
    for m in in_fp8:
        assert m.status is (Status.OK if has else Status.UNSUPPORTED), m.reason
        assert has or "8.9" in m.reason
        assert FindingKind.LOSS_NOT_FINITE not in {f.kind for f in m.findings}


def test_an_encoder_infers_in_int8_and_states_its_error_or_is_refused_with_the_reason(gpu):
    pytest.importorskip("torchao", exc_type=ImportError)
    request = RunRequest(
        workloads=("bert_base",), precisions=("bf16", "int8"), executions=("eager", "compile"), task="infer",
        batch_size=32, budget="quick", micro="none",
    )  # fmt: skip
    made = plan(request, gpu, load_profiles())
    found = {(m.case.precision, m.case.execution): m for m in Launcher(made, gpu).run()}
    for (precision, execution), m in found.items():
        print(precision, execution, m.status, m.reason, m.samples_per_s, m.output_error)
    has = gpu.compute_capability >= (8, 0)
    for m in (m for (precision, _), m in found.items() if precision is Precision.INT8):
        assert m.status is (Status.OK if has else Status.UNSUPPORTED), m.reason
        assert not has or 0 < m.output_error < 0.1


def test_a_small_batch_is_host_bound_and_its_graph_is_not(gpu):
    eager, graph = measure(
        gpu,
        planned("cnn", Precision.FP32, Execution.EAGER, 64),
        planned("cnn", Precision.FP32, Execution.GRAPH, 64),
    )
    assert graph.step_time_s < eager.step_time_s
    assert FindingKind.HOST_BOUND in {f.kind for f in eager.findings} or eager.gpu_busy >= 0.9


def test_a_batch_that_cannot_fit_is_out_of_memory_and_the_next_case_continues(gpu):
    huge, small = measure(
        gpu,
        planned("bert_base", Precision.FP32, Execution.EAGER, 2048),
        planned("cnn", Precision.FP32, Execution.EAGER, 64),
    )
    assert huge.status is Status.OUT_OF_MEMORY
    assert small.status is Status.OK


def test_two_gpus_train_one_model_faster_than_one(gpu):
    try:
        peers = select_peers(gpu, 2)
    except GpuBenchError as error:
        pytest.skip(str(error))
    request = RunRequest(workloads=("resnet50",), precisions=("amp",), executions=("eager",), gpus=2)
    made = plan(request, gpu, load_profiles(), peers)
    found = {m.case.gpu_count: m for m in Launcher(made, gpu).run()}
    assert found[2].status is Status.OK, found[2].reason
    assert 1 < found[2].samples_per_s / found[1].samples_per_s <= 2 * 1.05


@pytest.mark.parametrize(
    ("workload", "precision", "batch"),
    [("cnn", Precision.FP32, 4096), ("vgg16", Precision.FP32, 64), ("vgg16", Precision.AMP_FP16, 64)],
)
def test_the_harness_takes_as_long_as_a_hand_written_loop(gpu, workload, precision, batch):
    ratio = _ratio_by_hand(gpu, workload, precision, f"{batch}")
    print(f"{workload} {precision}: {ratio:.4f} of the hand-written loop")
    assert ratio == pytest.approx(1, abs=0.01)


def test_telemetry_slows_a_case_by_at_most_a_fifth_of_a_percent(gpu):
    ratio = _ratio_by_hand(gpu, "vgg16", Precision.AMP_FP16, "64", "--sampler")
    print(f"{ratio:.4f} of the time without telemetry")
    assert ratio <= 1.002


def _ratio_by_hand(gpu, *asked: str) -> float:
    script = Path(__file__).parent.parent / "measure" / "beside_hand.py"
    said = subprocess.check_output(
        [sys.executable, script, *asked], env=child_variables(gpu, os.environ), text=True
    )
    return json.loads(said)[0]
