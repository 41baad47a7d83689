"""Positive controls: a proof of a precision that could not fail on this device proves nothing."""

from __future__ import annotations

import time
from contextlib import nullcontext

import pytest
import torch

from gpubench.measure import checks, step
from gpubench.measure.step import control_on, switches_for
from gpubench.models import FindingKind, Measurement, Precision, Status
from strict_cuda.conftest import KERNEL_S
from strict_cuda.machine import Machine

K = FindingKind


@pytest.fixture
def gpu(make_gpu):
    return make_gpu(Machine(cost=lambda name: KERNEL_S, tf32="as switched"))


def found(done, case) -> set[FindingKind]:
    """Return the parent's findings about the proofs of a launch."""
    row = Measurement(case=case, status=Status.OK, launches=(done.launch,))
    kinds = {finding.kind for finding in checks.judge_measurement(row, 1).findings}
    return kinds & {K.PRECISION_UNPROVEN, K.TF32_IN_FORCE, K.SWITCHES_CHANGED}


def test_tf32_shows_in_the_operators_by_which_fp32_is_proven(gpu):
    for name, operators in (("cnn", {"matmul", "conv"}), ("lstm", {"matmul", "conv", "rnn"})):
        done = gpu.measure(name, precision=Precision.FP32, batch_size=2)
        assert done.launch.control_errors.keys() == done.launch.precision_errors.keys() == operators
        assert min(done.launch.control_errors.values()) > 1e-4
        assert found(done, gpu.case(name, precision=Precision.FP32, batch_size=2)) == set()


def test_device_that_never_shows_tf32_leaves_fp32_unproven(make_gpu):
    gpu = make_gpu(Machine(cost=lambda name: KERNEL_S, tf32="never"))
    done = gpu.measure("cnn", precision=Precision.FP32, batch_size=2)
    assert found(done, gpu.case("cnn", precision=Precision.FP32, batch_size=2)) == {K.PRECISION_UNPROVEN}


def test_other_precisions_need_no_control(gpu):
    done = gpu.measure("cnn", precision=Precision.TF32, batch_size=2)
    assert done.launch.control_errors == {}


def test_the_control_is_computed_once_in_a_process(gpu, monkeypatch):
    made = []
    real = step.probe_errors

    def counted(*args, **kwargs):
        made.append(torch.backends.cuda.matmul.allow_tf32)
        return real(*args, **kwargs)

    monkeypatch.setattr(step, "probe_errors", counted)
    for _ in range(2):
        gpu.measure("cnn", precision=Precision.FP32, batch_size=2)
    assert made.count(True) == 1
    assert made.count(False) == 4  # before and after the rounds of each


def test_controls_and_the_proofs_of_three_cases_take_the_host_under_a_second(make_gpu, monkeypatch):
    """If TF32 shows in no control, all of them are computed, and their float64 values once, for few images.

    cnn, lstm and vgg16 are proven before and after their rounds. A device computes its convolutions without the host.
    """
    device = make_gpu(Machine(cost=lambda name: KERNEL_S, tf32="never")).desk.hardware.device
    real, took_s = step._convolve, []

    def convolve(image, kernel):
        if not image.is_cuda:
            return real(image, kernel)
        images, channels, edge, _ = image.shape
        return step._proof(step.PROOF_SIZE, channels, edge, images)[1]["conv"].float().to(device)

    monkeypatch.setattr(step, "_convolve", convolve)
    for _ in range(2):
        step._proof.cache_clear()
        step._recurrent_proof.cache_clear()
        began_s = time.process_time()
        control = control_on(device)
        for recurrent in (False, True, False) * 2:
            step.errors_on(device, Precision.FP32, recurrent=recurrent, scale=control.scale)
        took_s.append(time.process_time() - began_s)
    assert control.scale == step.CONTROL_SCALES[-1]
    assert min(took_s) < 1.0


@pytest.fixture
def small_in_fp32(monkeypatch):
    """Compute small convolutions in fp32 regardless of the switch, as cuDNN does on an H100.

    Returns:
        The scale of each convolution on the device, and whether TF32 was on.
    """
    real, seen = step._convolve, []

    def convolve(image, kernel):
        small = image.is_cuda and image.shape[1] <= step.PROOF_CHANNELS
        if image.is_cuda:
            seen.append((image.shape[1] // step.PROOF_CHANNELS, torch.backends.cudnn.allow_tf32))
        with switches_for(Precision.FP32) if small else nullcontext():
            return real(image, kernel)

    monkeypatch.setattr(step, "_convolve", convolve)
    return seen


def test_a_convolution_too_small_for_tf32_is_proven_by_a_larger_one(gpu, small_in_fp32):
    control = control_on(gpu.desk.hardware.device)
    assert control.scale == step.CONTROL_SCALES[1]
    assert control.errors["conv"] > 1e-4
    small_in_fp32.clear()
    done = gpu.measure("cnn", precision=Precision.FP32, batch_size=2)
    assert {scale for scale, tf32 in small_in_fp32 if not tf32} == {control.scale}
    assert found(done, gpu.case("cnn", precision=Precision.FP32, batch_size=2)) == set()


@pytest.mark.parametrize(("amp", "least"), [(Precision.AMP_BF16, 1e-3), (Precision.AMP_FP16, 1e-4)])
def test_amp_is_proven_under_autocast(gpu, amp, least):
    done = gpu.measure("cnn", precision=amp, batch_size=2)
    errors = done.launch.precision_errors
    assert least < min(errors.values()) <= max(errors.values()) < amp.facts.product_error
    assert found(done, gpu.case("cnn", precision=amp, batch_size=2)) == set()


def test_autocast_that_leaves_an_operator_in_float32_does_not_prove_amp(gpu, monkeypatch):
    real = step._convolve

    def apart(image, kernel):
        with torch.autocast("cuda", enabled=False):
            return real(image, kernel)

    monkeypatch.setattr(step, "_convolve", apart)
    done = gpu.measure("cnn", precision=Precision.AMP_BF16, batch_size=2)
    assert done.launch.precision_errors["conv"] is None
    assert done.launch.precision_errors["matmul"] is not None
    case = gpu.case("cnn", precision=Precision.AMP_BF16, batch_size=2)
    assert found(done, case) == {K.PRECISION_UNPROVEN}


def test_a_control_restores_the_switches(gpu):
    with switches_for(Precision.FP32) as strict:
        control_on(gpu.desk.hardware.device)
        assert step.read_switches() == strict
