"""Inference: the cases that are measured, and the latency of single passes."""

from __future__ import annotations

import pytest

from gpubench.measure.guards import LATENCY_PASSES, latencies
from gpubench.measure.loop import Clock
from gpubench.measure.plan import plan
from gpubench.measure.request import RunRequest
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Launch,
    Measurement,
    Precision,
    Status,
    TaskKind,
)
from gpubench.profile import load_profiles
from gpubench.record.figures import measurement_document

CPU = DeviceProfile(backend="cpu", name="a CPU")
GPU = DeviceProfile(backend="cuda", name="a GPU", compute_capability=(9, 0), uuid="GPU-1")


def batches(device: DeviceProfile, workload: str, **options: object) -> list[tuple[TaskKind, int]]:
    request = RunRequest(workloads=(workload,), precisions=("fp32",), executions=("eager",), **options)  # type: ignore[arg-type]
    made = plan(request, device, {workload: load_profiles()[workload]})
    return [(p.case.task, p.case.batch_size) for p in made.cases]


def test_inference_is_measured_at_a_batch_of_one_and_at_the_main_batch() -> None:
    assert batches(GPU, "vgg16", task=TaskKind.INFER) == [(TaskKind.INFER, 1), (TaskKind.INFER, 64)]
    assert batches(CPU, "vgg16", task=TaskKind.INFER) == [(TaskKind.INFER, 1)]
    assert batches(GPU, "vgg16", task=TaskKind.INFER, batch_size=8) == [(TaskKind.INFER, 8)]
    assert batches(GPU, "vgg16") == [(TaskKind.TRAIN, 64)]


def test_an_input_pipeline_is_run_forward_whatever_was_requested() -> None:
    assert batches(GPU, "augment") == [(TaskKind.INFER, 256)]


def measured(*passes: float) -> Measurement:
    case = Case(
        workload="cnn", workload_version=1, task=TaskKind.INFER, precision=Precision.FP32,
        execution=Execution.EAGER, memory_format=None, batch_size=1, sample_unit="image",
    )  # fmt: skip
    half = len(passes) // 2
    launches = (Launch(index=0, latency_s=passes[:half]), Launch(index=1, latency_s=passes[half:]))
    return Measurement(case=case, status=Status.OK, launches=launches)


def test_quantiles_cover_all_launches() -> None:
    found = measured(*(n / 1000 for n in range(1, 101)))
    assert found.latency_p50_s == 0.050
    assert found.latency_p95_s == 0.095
    assert found.latency_p99_s == 0.099
    assert measurement_document(found)["latency_p99_s"] == 0.099


def test_too_few_passes_give_no_high_quantile() -> None:
    found = measured(*(n / 1000 for n in range(1, 51)))
    assert found.latency_p95_s == 0.048
    assert found.latency_p99_s is None
    assert measured().latency_p50_s is None


def test_each_pass_waits_for_the_device_at_both_ends() -> None:
    seen: list[str] = []
    now = iter(range(0, 10**15, 10**6))
    clock = Clock(synchronize=lambda: seen.append("wait"), now_ns=lambda: next(now))
    found = latencies(lambda n: seen.append(f"pass {n}"), clock)  # type: ignore[arg-type, return-value]
    assert len(found) == LATENCY_PASSES
    assert found[0] == pytest.approx(1e-3)
    assert seen[:6] == ["wait", "pass 0", "wait", "wait", "pass 1", "wait"]


def test_slow_passes_end_before_the_time_limit() -> None:
    now = iter(range(0, 10**15, 10**9))
    found = latencies(lambda n: None, Clock(now_ns=lambda: next(now)), most_s=10)  # type: ignore[arg-type, return-value]
    assert 1 <= len(found) <= 6
