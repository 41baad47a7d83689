"""CPU and GPU side by side."""

from __future__ import annotations

from datetime import date

import pytest

from gpubench.models import (
    Case,
    DeviceProfile,
    Environment,
    Execution,
    Launch,
    Measurement,
    Precision,
    Round,
    Run,
    Status,
    TaskKind,
)
from gpubench.recommend.beside import beside_cpu
from gpubench.report.data import ReportData
from gpubench.report.section import Paragraph, Table, load_sections


def measurement(
    workload: str, step_s: float, batch: int, precision: Precision = Precision.FP32
) -> Measurement:
    case = Case(
        workload=workload, workload_version=1, task=TaskKind.TRAIN, precision=precision,
        execution=Execution.EAGER, memory_format=None, batch_size=batch, sample_unit="image",
    )  # fmt: skip
    rounds = tuple(Round(steps=10, wall_s=10 * step_s * (1 + 0.001 * (-1) ** n)) for n in range(20))
    launches = (Launch(index=0, rounds=rounds),)
    return Measurement(case=case, status=Status.OK, launches=launches, cpu_threads=2)


def run(backend: str, *measurements: Measurement) -> Run:
    return Run(
        run_id=f"r-{backend}", started_at="2026-11-20T10:00:00Z", budget="quick", seed=0,
        device=DeviceProfile(backend=backend, name=f"the {backend}"),
        environment=Environment(gpubench="0", python="3", os="Linux"), measurements=measurements,
    )  # fmt: skip


CPU = run("cpu", measurement("cnn", 0.01, 64), measurement("cnn", 0.02, 64, Precision.AMP_BF16),
          measurement("vgg16", 1.0, 1))  # fmt: skip
GPU = run(
    "cuda", measurement("vgg16", 0.02, 64), measurement("cnn", 0.001, 512), measurement("lstm", 0.001, 64)
)


def test_the_best_of_each_side_is_compared() -> None:
    cnn, vgg16 = beside_cpu((CPU, GPU))
    assert cnn.workload == "cnn"
    assert cnn.cpu.case.precision is Precision.FP32, "the faster of the two"
    assert cnn.speed_up is not None
    assert cnn.speed_up.value == pytest.approx(512_000 / 6_400, rel=0.01)
    assert cnn.speed_up.low is not None
    assert cnn.speed_up.low < cnn.speed_up.value
    assert cnn.equal_batch is False
    assert vgg16.speed_up is not None
    assert vgg16.speed_up.value == pytest.approx(3200, rel=0.01)


def test_a_small_network_needs_no_gpu() -> None:
    cnn, vgg16 = beside_cpu((CPU, GPU))
    assert not cnn.gpu_needed
    assert cnn.small_job_s == pytest.approx(60_000 / 6_400, rel=0.01)
    assert vgg16.gpu_needed
    assert beside_cpu((CPU,), limit_s=1)[0].gpu_needed


def test_without_a_gpu_the_cpu_stands_alone() -> None:
    cnn, _ = beside_cpu((CPU,))
    assert cnn.gpu is None
    assert cnn.speed_up is None
    assert cnn.equal_batch is None


def test_another_version_is_another_workload() -> None:
    import msgspec

    other = GPU.measurements[1]
    newer = msgspec.structs.replace(other, case=msgspec.structs.replace(other.case, workload_version=2))
    assert beside_cpu((CPU, run("cuda", newer)))[0].gpu is None


def test_without_a_cpu_run_there_is_nothing_to_say() -> None:
    assert beside_cpu((GPU,)) == ()


def test_the_report_names_threads_batches_and_what_needs_no_gpu() -> None:
    section = next(s for s in load_sections() if s.key == "beside")
    block = section.render(ReportData(today=date(2026, 11, 20), runs=(CPU, GPU)))
    assert block is not None
    sentence, table = block.parts
    assert isinstance(sentence, Paragraph)
    assert isinstance(table, Table)
    assert sentence.text.startswith("For cnn no GPU is needed")
    first = table.rows[0]
    assert "the cpu, 2 threads, fp32, eager, batch 64" in first[1]
    assert "the cuda, fp32, eager, batch 512" in first[2]
    assert first[3].startswith("80")
