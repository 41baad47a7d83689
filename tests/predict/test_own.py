"""The user's own machine: micro-benchmarks correct the card; eager and graph runs time the host."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.models import Execution, MicroResult, Precision
from gpubench.predict.chips import Mode, chips_of
from gpubench.predict.estimate import estimate
from gpubench.predict.model import host_s_per_operator, measured_chip
from gpubench.predict.question import Question, case_for, readings_of
from gpubench.predict.roofline import work_of
from gpubench.profile import load_profiles
from gpubench.specs import load_specs
from predict.runs import run_of

H200, H100, T4 = "nvidia-h200-sxm-141gb", "nvidia-h100-sxm-80gb", "nvidia-tesla-t4-16gb"
SPECS = load_specs()


@pytest.fixture(scope="module")
def vgg16():
    return load_profiles()["vgg16"]


def micro(name, precision, value, unit) -> MicroResult:
    return MicroResult(
        name=name, precision=precision, size="8192", value=value, low=None, high=None, unit=unit, n=9
    )


def test_measured_peaks_of_a_healthy_card_stay_close_to_the_datasheet():
    """These are the readings of an H200; no figure moves by more than 8 %."""
    chip = chips_of([SPECS[H200]])
    read = measured_chip(
        chip,
        [
            micro("gemm", "fp32", 51.3, "TFLOP/s"),
            micro("gemm", "tf32", 348.5, "TFLOP/s"),
            micro("gemm", "bf16", 680.9, "TFLOP/s"),
            micro("device_copy", None, 4267, "GB/s"),
            micro("launch", None, 3.9e-6, "s"),
        ],
        (1.0, 1.0),
    )
    assert read.peaks[0] == pytest.approx(chip.peaks[0], rel=0.08)
    assert read.bandwidth == pytest.approx(chip.bandwidth, rel=0.02)


def test_an_anchor_slowed_by_its_power_limit_predicts_others_faster(vgg16):
    question = Question(profile=vgg16)
    run = run_of(H200, (case_for(question, SPECS[H200]), 2000.0))
    capped = msgspec.structs.replace(run, micro=(micro("gemm", "bf16", 300, "TFLOP/s"),))
    plain, corrected = (estimate(question, [SPECS[H100]], own=[r])[H100].samples_per_s for r in (run, capped))
    assert corrected > 1.05 * plain


def test_implausible_measured_peak_is_capped():
    chip = chips_of([SPECS[H200]])
    read = measured_chip(
        chip,
        [micro("gemm", "fp16", 1e9, "TFLOP/s"), micro("gemm", "tf32", float("nan"), "TFLOP/s")],
        (1.0, 1.0),
    )
    assert read.peaks[0, Mode.HALF] == pytest.approx(1.2 * chip.peaks[0, Mode.HALF])
    assert read.peaks[0, Mode.TF32] == chip.peaks[0, Mode.TF32]


def test_the_host_is_timed_by_the_same_case_eager_and_as_a_graph(vgg16):
    graph, eager = (
        case_for(Question(profile=vgg16, execution=e), SPECS[H200])
        for e in (Execution.GRAPH, Execution.EAGER)
    )
    question = Question(profile=vgg16, execution=Execution.EAGER)
    readings = readings_of(question, [run_of(H200, (graph, 64 / 0.003), (eager, 64 / 0.005))], [])
    operators = float(work_of(vgg16.train, 64).operators[0])
    assert host_s_per_operator(readings, operators) == pytest.approx(0.004 / operators, rel=1e-3)
    assert host_s_per_operator(readings[:1], operators) is None


def test_the_newest_graph_of_a_case_times_the_host(vgg16):
    graph, eager = (
        case_for(Question(profile=vgg16, execution=e), SPECS[H200])
        for e in (Execution.GRAPH, Execution.EAGER)
    )
    question = Question(profile=vgg16, execution=Execution.EAGER)
    older = msgspec.structs.replace(run_of(H200, (graph, 64 / 0.004)), started_at="2026-11-19T12:00:00Z")
    readings = readings_of(question, [older, run_of(H200, (graph, 64 / 0.003), (eager, 64 / 0.005))], [])
    assert host_s_per_operator(readings, 1.0) == pytest.approx(0.004, rel=1e-3)


def test_every_precision_of_a_run_finds_its_own_anchor(vgg16):
    """An AMP question starts from the AMP row, not from the fp32 row of the same run."""
    cases = {
        p: case_for(Question(profile=vgg16, precision=p), SPECS[H200])
        for p in (Precision.FP32, Precision.AMP_BF16)
    }
    run = run_of(H200, (cases[Precision.FP32], 700.0), (cases[Precision.AMP_BF16], 3500.0))
    amp = estimate(Question(profile=vgg16), [SPECS[H100]], own=[run])[H100]
    fp32 = estimate(Question(profile=vgg16, precision=Precision.FP32), [SPECS[H100]], own=[run])[H100]
    assert amp.samples_per_s > 2.5 * fp32.samples_per_s
    assert amp.anchored
    assert fp32.anchored
