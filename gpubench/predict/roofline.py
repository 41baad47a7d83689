"""A roofline of one step: time bound by arithmetic, by memory bandwidth, and by the host.

The published models are known by their totals alone (model_profiles.csv), a workload by its operators.
Both are treated as totals per kind of operator here, so that coefficients fitted on the first hold for
the second. See docs/prediction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpubench.models import GpuSpec, Operator, OperatorKind, Precision
from gpubench.predict.question import capability_of

Array: TypeAlias = NDArray[np.float64]

REFERENCE_RIDGE = 100.0  # FLOP per byte at which the efficiencies are stated
KINDS = (OperatorKind.CONV3X3, OperatorKind.CONV, OperatorKind.MATMUL, OperatorKind.DEPTHWISE)


class Mode(IntEnum):
    """The arithmetic that an operator really uses, whatever the label says."""

    FP32 = 0
    TF32 = 1
    HALF = 2


class Coefficients(msgspec.Struct, frozen=True, kw_only=True):
    """What the fit finds. Efficiencies are shares of the dense peak at 100 FLOP per byte.

    Each tuple is (FP32, FP32 with dual issue, TF32, half precision on tensor cores).
    """

    conv: tuple[float, float, float, float]
    matmul: tuple[float, float, float, float]
    conv3x3_gain: tuple[float, float, float, float]
    depthwise: float
    bandwidth_fp32: float
    bandwidth_half: float
    ridge_exponent: float
    ridge_share_fp32: float
    overlap_power: float
    l2_gain: float
    operator_floor_s: float
    host_s_per_operator: float
    host_power: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """What steps compute and move; n steps, or one to be broadcast.

    Attributes:
        flops: (n, 4) FLOP per step by ``KINDS``.
        bytes_: (n,) bytes per step at 4 per element, optimizer apart.
        optimizer_bytes: (n,) bytes that stay at fp32 under AMP.
        operators: (n,) kernels per step.
    """

    flops: Array
    bytes_: Array
    optimizer_bytes: Array
    operators: Array


@dataclass(frozen=True, kw_only=True)
class Chips:
    """Datasheet figures of n GPUs.

    Attributes:
        peaks: (n, 3) FLOP/s by ``Mode``, NaN where unknown; FP32 where there are no tensor cores.
        tensor: (n, 3) whether tensor cores do that mode.
        bandwidth: (n,) bytes per second of the memory.
        l2_bytes: (n,) 0 where unknown: no gain is assumed.
        dual_issue: (n,) two FP32 pipes a lane, of which training seldom fills the second.
    """

    peaks: Array
    tensor: NDArray[np.bool_]
    bandwidth: Array
    l2_bytes: Array
    dual_issue: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What n steps compute in: mode of convolutions, of matrix products, and 2-byte activations or not."""

    conv: NDArray[np.int64]
    matmul: NDArray[np.int64]
    half: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds per step; ``gpu_s`` is the whole of the GPU, ``step_s`` with the host."""

    compute_s: Array
    memory_s: Array
    floor_s: Array
    gpu_s: Array
    host_s: Array
    step_s: Array


def work_of(operators: Sequence[Operator], batch_size: int) -> Work:
    """Sum the operators of one step at this batch by kind."""
    flops = np.zeros((1, len(KINDS)))
    moved, optimizer, count = 0.0, 0.0, 0
    for op in operators:
        size = op.count * (op.bytes_per_sample * batch_size + op.bytes_fixed)
        if op.kind in KINDS:
            flops[0, KINDS.index(op.kind)] += op.count * (op.flops_per_sample * batch_size + op.flops_fixed)
        if op.kind is OperatorKind.OPTIMIZER:
            optimizer += size
        else:
            moved += size
        count += op.count
    return Work(
        flops=flops,
        bytes_=np.array([moved]),
        optimizer_bytes=np.array([optimizer]),
        operators=np.array([float(count)]),
    )


def chips_of(specs: Sequence[GpuSpec]) -> Chips:
    """Figures of the specification table as arrays.

    A GPU without tensor cores runs half precision at its FP32 rate, and TF32 likewise; a tensor core
    whose rate is not stated is NaN, so that nothing is predicted rather than something.
    """
    return Chips(
        peaks=np.array([_peaks(spec) for spec in specs]).reshape(-1, len(Mode)),
        tensor=np.array([[_tensor_peak(spec, mode) is not None for mode in Mode] for spec in specs]),
        bandwidth=np.array([spec.memory_bandwidth_bytes_per_s or np.nan for spec in specs]),
        l2_bytes=np.array([float(spec.l2_bytes or 0) for spec in specs]),
        dual_issue=np.array([_issues_two(spec) for spec in specs], dtype=bool),
    )


def mode_of(precision: Precision) -> Mode:
    """Arithmetic of convolutions and matrix products alike at a precision of the product."""
    return {Precision.FP32: Mode.FP32, Precision.TF32: Mode.TF32}.get(precision, Mode.HALF)


def arithmetic_of(precision: Precision, n: int) -> Arithmetic:
    """The arithmetic of n steps at one precision of the product."""
    mode = np.full(n, int(mode_of(precision)))
    return Arithmetic(conv=mode, matmul=mode, half=np.full(n, precision.is_amp))


def step_times(
    work: Work,
    chips: Chips,
    arithmetic: Arithmetic,
    host_s_per_operator: Array | float,
    coefficients: Coefficients,
) -> Times:
    """Predict n steps, one per row of the broadcast inputs.

    Args:
        work: n steps or one.
        chips: n GPUs or one.
        arithmetic: What they compute in.
        host_s_per_operator: Host time per kernel; 0 inside a CUDA graph [s].
        coefficients: From the calibration.
    """
    c = coefficients
    compute = _compute_s(work, chips, arithmetic, c)
    memory = _memory_s(work, chips, arithmetic.half, c)
    floor = work.operators * c.operator_floor_s + 0 * memory
    p = c.overlap_power
    gpu = (compute**p + memory**p + floor**p) ** (1 / p)
    host = work.operators * host_s_per_operator + 0 * gpu
    q = c.host_power
    return Times(
        compute_s=compute,
        memory_s=memory,
        floor_s=floor,
        gpu_s=gpu,
        host_s=host,
        step_s=(gpu**q + host**q) ** (1 / q),
    )


def _compute_s(work: Work, chips: Chips, arithmetic: Arithmetic, c: Coefficients) -> Array:
    index = _efficiency_index(arithmetic.conv, chips)
    conv = work.flops[..., 0] / np.take(c.conv3x3_gain, index) + work.flops[..., 1]
    conv_s = conv / (np.take(c.conv, index) * _effective_peak(arithmetic.conv, chips, c))
    index = _efficiency_index(arithmetic.matmul, chips)
    matmul_s = work.flops[..., 2] / (np.take(c.matmul, index) * _effective_peak(arithmetic.matmul, chips, c))
    result: Array = conv_s + matmul_s + work.flops[..., 3] / (c.depthwise * chips.peaks[..., Mode.FP32])
    return result


def _memory_s(work: Work, chips: Chips, half: NDArray[np.bool_], c: Coefficients) -> Array:
    moved = work.bytes_ * np.where(half, 0.5, 1.0) + work.optimizer_bytes
    share = np.where(half, c.bandwidth_half, c.bandwidth_fp32)
    cached = np.minimum(1.0, chips.l2_bytes * work.operators / np.maximum(moved, 1.0))
    result: Array = moved / (share * chips.bandwidth * (1 + c.l2_gain * cached))
    return result


def _efficiency_index(mode: NDArray[np.int64], chips: Chips) -> NDArray[np.int64]:
    """Index into the coefficient tuples: tensor modes on a GPU without tensor cores count as FP32."""
    plain = np.where(chips.dual_issue, 1, 0)
    return np.where(_pick(chips.tensor, mode), np.where(mode == Mode.TF32, 2, 3), plain)


def _pick(table: NDArray[Any], mode: NDArray[np.int64]) -> NDArray[Any]:
    """The column of each row's mode."""
    return np.where(
        mode == Mode.FP32, table[..., 0], np.where(mode == Mode.TF32, table[..., 1], table[..., 2])
    )


def _effective_peak(mode: NDArray[np.int64], chips: Chips, c: Coefficients) -> Array:
    """Peak, lowered where arithmetic outruns memory: a fast tensor core is harder to feed."""
    peak = _pick(chips.peaks, mode)
    exponent = c.ridge_exponent * np.where(_efficiency_index(mode, chips) < 2, c.ridge_share_fp32, 1.0)
    result: Array = peak * (peak / chips.bandwidth / REFERENCE_RIDGE) ** -exponent
    return result


def _peaks(spec: GpuSpec) -> list[float]:
    fp32 = spec.fp32_flops_per_s or np.nan
    return [fp32, *(_tensor_or(spec, mode, fp32) for mode in (Mode.TF32, Mode.HALF))]


def _tensor_or(spec: GpuSpec, mode: Mode, fp32: float) -> float:
    peak = _tensor_peak(spec, mode)
    if peak is not None:
        return peak
    if mode is Mode.TF32:
        return fp32 if (capability_of(spec) or (0, 0)) < (8, 0) else np.nan
    return fp32 if spec.tensor_core_count == 0 else np.nan


def _tensor_peak(spec: GpuSpec, mode: Mode) -> float | None:
    if mode is Mode.TF32:
        return spec.tf32_tensor_flops_per_s
    return spec.fp16_tensor_flops_per_s if mode is Mode.HALF else None


def _issues_two(spec: GpuSpec) -> bool:
    """GA10x, Ada, Hopper and Blackwell count two FP32 pipes per lane that training seldom fills."""
    capability = capability_of(spec)
    return capability is not None and capability >= (8, 6)
