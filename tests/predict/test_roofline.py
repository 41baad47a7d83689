"""The roofline: additive, equal for operators and their totals, and unknown where a rate is missing."""

from __future__ import annotations

import enum

import msgspec
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpubench.models import Operator, OperatorKind, Precision, TaskKind
from gpubench.predict.calibration import load_calibration
from gpubench.predict.chips import Mode, chips_of
from gpubench.predict.roofline import CAST_BYTES, arithmetic_of, cast_bytes_of, step_times, work_of
from gpubench.profile import load_profiles
from gpubench.specs import load_specs
from predict.profiles import published

SPECS = load_specs()
PREDICTED = [precision for precision in Precision if precision.facts.predicted_as]
A100 = SPECS["nvidia-a100-sxm-80gb"]


def seconds(operators, spec, precision=Precision.AMP_BF16, batch=64):
    return float(
        step_times(
            work_of(operators, batch),
            chips_of([spec]),
            arithmetic_of(precision, None, 1),
            load_calibration().train.level.coefficients,
            host_s_per_operator=0.0,
            deviations=np.zeros((1, 3)),
        ).step_s[0]
    )


@pytest.mark.parametrize("precision", PREDICTED)
def test_splitting_a_total_into_operators_changes_nothing(precision):
    whole = Operator(kind=OperatorKind.CONV, count=1, flops_per_sample=8e9, bytes_per_sample=4e8)
    part = Operator(kind=OperatorKind.CONV, count=1, flops_per_sample=1e9, bytes_per_sample=5e7)
    floor = load_calibration().train.level.coefficients.operator_floor_s
    apart = seconds([part] * 8, A100, precision) - 8 * floor
    assert seconds([whole], A100, precision) - floor == pytest.approx(apart, rel=1e-9)


@pytest.mark.parametrize("model", ["vgg16", "resnet50"])
def test_a_workload_and_the_published_totals_of_the_same_model_agree(model):
    """The profile traced on the meta device and the published totals give the same time within 5 %."""
    for precision in PREDICTED:
        for key in ("nvidia-tesla-v100-sxm2-16gb", "nvidia-a100-sxm-80gb", "nvidia-geforce-rtx-4090-24gb"):
            traced = seconds(load_profiles()[model].train, SPECS[key], precision)
            totals = seconds(published(model).train, SPECS[key], precision)
            assert traced == pytest.approx(totals, rel=0.05), (precision, key)


def test_missing_datasheet_rate_gives_nan():
    for change in ({"memory_bandwidth_bytes_per_s": None}, {"fp16_tensor_flops_per_s": None}):
        spec = msgspec.structs.replace(A100, **change)
        operators = [Operator(kind=OperatorKind.CONV, count=1, flops_per_sample=1e9, bytes_per_sample=1e6)]
        assert np.isnan(seconds(operators, spec))


def test_more_of_anything_is_never_slower():
    profile = published("resnet50")
    for field in ("memory_bandwidth_bytes_per_s", "tdp_w"):
        better = msgspec.structs.replace(A100, **{field: 1.2 * getattr(A100, field)})
        assert seconds(profile.train, better) <= seconds(profile.train, A100)
    # A faster tensor core needs faster memory to feed it, so both grow here.
    both = msgspec.structs.replace(
        A100,
        fp16_tensor_flops_per_s=1.2 * A100.fp16_tensor_flops_per_s,
        memory_bandwidth_bytes_per_s=1.2 * A100.memory_bandwidth_bytes_per_s,
    )
    assert seconds(profile.train, both) < seconds(profile.train, A100)


def test_half_precision_on_a_gpu_without_tensor_cores_runs_at_its_fp32_rate():
    card = SPECS["nvidia-geforce-gtx-1080-ti-11gb"]
    operators = [Operator(kind=OperatorKind.MATMUL, count=1, flops_per_sample=1e12)]
    assert seconds(operators, card, Precision.AMP_FP16) == pytest.approx(
        seconds(operators, card, Precision.FP32)
    )


def test_tf32_on_amd_runs_at_its_fp32_rate():
    """ROCm leaves TF32 off: published rows of an MI325X with and without it agree to 1 %."""
    chips = chips_of([load_specs()["amd-mi325x-256gb"], load_specs()["nvidia-h100-sxm-80gb"]])
    assert chips.peaks[0, Mode.TF32] == chips.peaks[0, Mode.FP32]
    assert list(chips.tensor[:, Mode.TF32]) == [False, True]


class Casts(TorchDispatchMode):
    """Count the bytes that the casts of autocast read and write."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::_to_copy" and out.shape == (64, 32):
            self.bytes += args[0].nbytes + out.nbytes
        return out


def test_autocast_casts_each_weight_and_its_gradient_once():
    layer = torch.nn.Linear(32, 64, bias=False)
    with Casts() as casts:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(torch.ones(2, 32)).sum()
        loss.backward()
    assert casts.bytes == 2 * CAST_BYTES * layer.weight.numel()


def test_casts_take_time_only_in_half_precision():
    profile = load_profiles()["vgg16"]
    casts = cast_bytes_of(profile, TaskKind.TRAIN)
    assert casts == 2 * CAST_BYTES * profile.parameters
    frozen = load_profiles()["vgg16_transfer"]
    assert (
        cast_bytes_of(frozen, TaskKind.INFER)
        < cast_bytes_of(frozen, TaskKind.TRAIN)
        < 2 * CAST_BYTES * frozen.parameters
    )
    assert cast_bytes_of(load_profiles()["llama_8b"], TaskKind.INFER) == 0

    def step_s(precision, cast_bytes):
        return step_times(
            work_of(profile.train, 64, cast_bytes), chips_of([A100]), arithmetic_of(precision, None, 1),
            load_calibration().train.level.coefficients, host_s_per_operator=0.0,
            deviations=np.zeros((1, 3)),
        ).step_s[0]  # fmt: skip

    assert step_s(Precision.TF32, casts) == step_s(Precision.TF32, 0.0)
    assert step_s(Precision.AMP_BF16, casts) > step_s(Precision.AMP_BF16, 0.0)


def test_an_interrupt_cannot_be_lost_in_a_comparison_of_modes(monkeypatch):
    """NumPy asks the type of an operand for attributes, and ignores what Python code answers, also Ctrl-C."""
    asked = []
    plain = getattr(enum.EnumMeta, "__getattr__", None)  # newer versions of Python have none

    def noting(cls, name):
        asked.append((cls.__name__, name))
        if plain is None:
            raise AttributeError(name)
        return plain(cls, name)

    monkeypatch.setattr(enum.EnumMeta, "__getattr__", noting, raising=False)
    for precision in PREDICTED:
        seconds(published("resnet50").train, A100, precision)
    assert not [each for each in asked if each[1].startswith("__array")]
