"""The shipped readings of one card: their origin, their units, and the models that are not ours."""

from __future__ import annotations

import pytest

from gpubench.measure.micro import gemm_probes, other_probes
from gpubench.models import DeviceProfile, Execution, Precision, TaskKind
from gpubench.profile import load_profiles
from gpubench.readings import h200_readings
from gpubench.specs import load_specs


def test_they_say_where_they_are_from():
    read = h200_readings()
    assert (read.card, read.date, read.torch, read.driver) == (
        "NVIDIA H200",
        "2026-11-20",
        "2.11.0+cu130",
        "580.159.04",
    )
    assert read.gpu_key in load_specs()
    assert "share no code" in read.source


def test_each_workload_that_was_read_was_at_its_main_batch_and_every_usual_precision():
    steps = h200_readings().steps
    names = {step.workload for step in steps}
    assert len(names) == 11
    usual = [precision for precision in Precision if precision.is_usual]
    read = {(s.workload, s.batch_size, s.precision) for s in steps}
    assert read == {(name, load_profiles()[name].main_batch, each) for name in names for each in usual}


def test_values_are_in_si_units():
    step = next(
        s for s in h200_readings().steps if (s.workload, s.precision) == ("vgg16", Precision.AMP_BF16)
    )
    assert step.step_s[Execution.EAGER] == pytest.approx(0.02027, rel=1e-3)
    assert step.step_s[Execution.GRAPH] == pytest.approx(0.01968, rel=1e-3)
    assert step.most_peak_bytes == pytest.approx(6.63e9, rel=1e-2)
    assert h200_readings().micro["gemm", "bf16", "4096"] == pytest.approx(722.7e12, rel=1e-4)
    assert h200_readings().micro["device copy", None, "2048 MiB"] == pytest.approx(4.267e12, rel=1e-3)
    assert h200_readings().micro["launch device", None, "1 launch"] == pytest.approx(3.87e-6, rel=1e-2)


def test_micro_benchmarks_have_the_names_that_gpubench_gives_them():

    h200 = DeviceProfile(backend="cuda", compute_capability=(9, 0))
    probes = [*other_probes(alone=False), *gemm_probes(h200)]
    read_there = {
        p for p in probes if p.precision not in {"fp8", "int8"}
    }  # that loop did not multiply in this format
    assert set(h200_readings().micro) == {(p.name, p.precision, p.size) for p in read_there}


def test_models_that_only_share_a_name_are_never_offered_for_ours():
    read = h200_readings()
    others = {step.workload for step in read.steps if not step.ours}
    assert others == {"bert_base", "transformer"}
    train = TaskKind.TRAIN
    assert read.step_time_s("bert_base", 16, Precision.FP32, Execution.EAGER, train) is None
    assert read.step_time_s("cnn", 512, Precision.FP32, Execution.GRAPH, train) == pytest.approx(
        1.14e-3, rel=1e-2
    )
    assert read.step_time_s("cnn", 64, Precision.FP32, Execution.GRAPH, train) is None
    assert read.step_time_s("cnn", 512, Precision.FP32, Execution.COMPILE, train) is None
    assert read.step_time_s("cnn", 512, Precision.FP32, Execution.GRAPH, TaskKind.INFER) is None
