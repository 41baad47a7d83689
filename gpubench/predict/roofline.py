"""A roofline of one step, additive: arithmetic, memory traffic and launches each take their time.

Published models are known by their totals alone (model_profiles.csv), a workload by its operators. A sum
over operators is the same number whether it is taken per operator or per total, so coefficients that were
fitted on totals hold for operators too. A form that takes the larger of arithmetic and traffic per
operator has no such property, and scored worse; see docs/decisions/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import IntEnum
from functools import cache
from math import log
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import (
    GpuSpec,
    MemoryFormat,
    Operator,
    OperatorKind,
    Precision,
    TaskKind,
    WeightType,
    WorkloadProfile,
)
from gpubench.predict.power import PowerAndClock, power_and_clock
from gpubench.predict.question import capability_of

REFERENCE_WIDTH = {"tf32": 512.0, "half": 1024.0}
"""FLOP per clock of a multiprocessor's tensor cores at which the efficiencies are stated: Turing's, half
precision; and half of it in TF32."""
REFERENCE_L2_BYTES = 6 * 2**20  # at which the share of the bandwidth is stated: a V100, an RTX 3090
KINDS = (OperatorKind.CONV3X3, OperatorKind.CONV, OperatorKind.MATMUL, OperatorKind.DEPTHWISE)
HALF_BYTES = 0.5  # of the fp32 traffic, under AMP
CAST_BYTES = 6
"""What autocast moves to cast one weight, or the gradient of one: 4 bytes on one side, 2 on the other."""
HOST_POWER = 2.0
"""Host and GPU work side by side, not perfectly: step^2 = gpu^2 + host^2, as read on an H200."""
HARNESS_POWER = 1.25
"""The same of a published harness, whose host also loads, copies and logs: less of that is hidden."""


DUAL_ISSUE = frozenset({"CDNA3", "CDNA4", "RDNA3", "RDNA4"})
"""Architectures of other vendors whose FP32 rate counts two operations a lane."""


class Mode(IntEnum):
    """The arithmetic that an operator really uses, whatever the label says."""

    FP32 = 0
    TF32 = 1
    HALF = 2


class Coefficients(msgspec.Struct, frozen=True, kw_only=True):
    """What the fit finds. Efficiencies are shares of the dense peak.

    Attributes:
        conv_fp32_dual, matmul_fp32_dual: For chips that issue two FP32 operations a lane (GA10x and on).
        winograd_*: Gain of 3x3 convolutions of stride 1, whose multiplications can be fewer than counted.
            No published row has strict-FP32 convolutions on a chip of dual issue: there the priors stand,
            whose product stays below the peak.
        depthwise: Share of the FP32 peak.
        width: Exponent with which the efficiency of tensor cores falls as a multiprocessor's get wider: a
            Hopper core that does four times what a Turing core does in a clock is harder to feed.
        cache: Exponent with which the traffic that reaches the memory falls as the L2 cache gets larger.
        operator_floor_s: Time of the smallest kernel [s].
        power_exponent: With which the clock that a chip holds grows with its watts per multiprocessor.
        channels_last: Log gain of convolutions on tensor cores in that layout.
        no_optimizer: Log of what steps without an optimizer, with a copy from the host, take longer.
        fused: Log of the traffic that torch.compile saves, which keeps values in registers between operators.
    """

    conv_fp32: float
    conv_fp32_dual: float
    conv_tf32: float
    conv_half: float
    matmul_fp32: float
    matmul_fp32_dual: float
    matmul_tf32: float
    matmul_half: float
    winograd_fp32: float
    winograd_fp32_dual: float
    winograd_tf32: float
    winograd_half: float
    depthwise: float
    bandwidth_fp32: float
    bandwidth_half: float
    width: float
    cache: float
    operator_floor_s: float
    power_exponent: float
    channels_last: float
    no_optimizer: float
    fused: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """What steps compute and move; n steps, or one to be broadcast.

    Attributes:
        flops: (n, 4) FLOP per step by ``KINDS``.
        bytes_: (n,) bytes per step at 4 per element, optimizer apart.
        optimizer_bytes: (n,) bytes that stay at fp32 under AMP.
        cast_bytes: (n,) bytes that autocast adds in half precision, to cast weights and their gradients.
        operators: (n,) kernels per step.
    """

    flops: Floats
    bytes_: Floats
    optimizer_bytes: Floats
    cast_bytes: Floats
    operators: Floats


@dataclass(frozen=True, kw_only=True)
class Chips:
    """Datasheet figures of n GPUs.

    Attributes:
        peaks: (n, 3) FLOP/s by ``Mode``, NaN where unknown; FP32 where there are no tensor cores.
        tensor: (n, 3) whether tensor cores do that mode.
        bandwidth: (n,) bytes per second of the memory.
        dual_issue: (n,) two FP32 pipes a lane, of which training seldom fills the second.
        width: (n, 3) log of FLOP per clock of one multiprocessor over ``REFERENCE_WIDTH``; 0 where not known.
        l2: (n,) log of the L2 cache over ``REFERENCE_L2_BYTES``; 0 where not known.
        power, clock: (n,) logs over what is usual for the compute capability: watts per multiprocessor (inf
            where not known), and the clock that the peaks are stated at.
    """

    peaks: Floats
    tensor: Flags
    bandwidth: Floats
    dual_issue: Flags
    width: Floats
    l2: Floats
    power: Floats
    clock: Floats


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What n steps compute in.

    Attributes:
        conv, matmul: (n,) ``Mode`` of convolutions and of matrix products.
        half: (n,) whether activations move at 2 bytes per element.
        channels_last: (n,) layout of images.
        no_optimizer: (n,) the step ends with the backward pass.
        compiled: (n,) torch.compile joined its operators.
    """

    conv: Indices
    matmul: Indices
    half: Flags
    channels_last: Flags
    no_optimizer: Flags
    compiled: Flags


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds per step, (n,) each; ``gpu_s`` is the sum of the first three, ``step_s`` has the host too."""

    compute_s: Floats
    memory_s: Floats
    floor_s: Floats
    gpu_s: Floats
    host_s: Floats
    step_s: Floats


def work_of(operators: Sequence[Operator], batch_size: int, cast_bytes: float = 0.0) -> Work:
    """Sum the operators of one step at this batch by kind; ``cast_bytes`` as ``cast_bytes_of`` has them."""
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
        cast_bytes=np.array([cast_bytes]),
        operators=np.array([float(count)]),
    )


def cast_bytes_of(profile: WorkloadProfile, task: TaskKind) -> float:
    """Bytes that autocast moves in one step to cast weights, and in training their gradients back.

    0 where the weights are stored in half precision.
    """
    if profile.recipe.weight_type is not WeightType.FLOAT32:
        return 0.0
    cast = profile.parameters + (profile.trainable_parameters if task is TaskKind.TRAIN else 0)
    return float(CAST_BYTES * cast)


def chips_of(specs: Sequence[GpuSpec]) -> Chips:
    """Figures of the specification table as arrays.

    A GPU without tensor cores runs half precision at its FP32 rate, and TF32 likewise; a tensor core
    whose rate is not stated is NaN, so that nothing is predicted rather than something.
    """
    rows = [_figures(spec) for spec in specs]
    return Chips(
        peaks=np.array([row[0] for row in rows]).reshape(-1, len(Mode)),
        tensor=np.array([row[1] for row in rows], dtype=bool).reshape(-1, len(Mode)),
        bandwidth=np.array([spec.memory_bandwidth_bytes_per_s or np.nan for spec in specs]),
        dual_issue=np.array([row[2] for row in rows], dtype=bool),
        width=np.array([_width(spec) for spec in specs], dtype=float).reshape(-1, len(Mode)),
        l2=np.log([(spec.l2_bytes or REFERENCE_L2_BYTES) / REFERENCE_L2_BYTES for spec in specs]),
        power=np.array([row[3].power for row in rows], dtype=float),
        clock=np.array([row[3].clock for row in rows], dtype=float),
    )


_T = TypeVar("_T")


def take(table: _T, rows: NDArray[Any]) -> _T:
    """The chosen rows of a dataclass of arrays (Work, Chips, Arithmetic ...), nested ones included."""

    def chosen(value: Any) -> Any:
        return take(value, rows) if is_dataclass(value) else value[rows]

    return _rebuilt(table, lambda name: chosen(getattr(table, name)))


def stack(tables: Sequence[_T]) -> _T:
    """Dataclasses of arrays, one below the other, nested ones included."""

    def joined(name: str) -> Any:
        values = [getattr(table, name) for table in tables]
        return stack(values) if is_dataclass(values[0]) else np.concatenate(values)

    return _rebuilt(tables[0], joined)


def _rebuilt(like: _T, value_of: Callable[[str], Any]) -> _T:
    changes: Any = {field.name: value_of(field.name) for field in fields(like)}  # type: ignore[arg-type]
    return replace(like, **changes)  # type: ignore[type-var]


def mode_of(precision: Precision) -> Mode:
    """Arithmetic of convolutions and matrix products alike at a precision of the product."""
    assert precision.facts.predicted_as is not None  # ``domain_gap`` has refused it
    return Mode[precision.facts.predicted_as.upper()]


def arithmetic_of(
    precision: Precision, memory_format: MemoryFormat | None, n: int, *, compiled: bool = False
) -> Arithmetic:
    """The arithmetic of n steps of the product, which always have their optimizer, at one precision."""
    mode = np.full(n, int(mode_of(precision)))
    return Arithmetic(
        conv=mode,
        matmul=mode,
        half=np.full(n, mode_of(precision) is Mode.HALF),
        channels_last=np.full(n, memory_format is MemoryFormat.CHANNELS_LAST),
        no_optimizer=np.zeros(n, dtype=bool),
        compiled=np.full(n, compiled),
    )


def step_times(
    work: Work,
    chips: Chips,
    arithmetic: Arithmetic,
    coefficients: Coefficients,
    *,
    host_s_per_operator: Floats | float,
    host_power: float = HOST_POWER,
    deviations: Floats | None = None,
) -> Times:
    """Predict n steps, one per row of the broadcast inputs.

    Args:
        work: n steps or one.
        chips: n GPUs or one.
        arithmetic: What they compute in.
        coefficients: From the calibration.
        host_s_per_operator: Host time per kernel; 0 inside a CUDA graph [s].
        host_power: Exponent of the sum of GPU and host: 1 is one after the other, infinity wholly side by
            side.
        deviations: (n, 3) logs by which each GPU beats its datasheet; see ``fit.DEVIATIONS``.
    """
    c = coefficients
    own = np.zeros((len(chips.bandwidth), 3)) if deviations is None else deviations
    conv_index, conv_s = _conv_s(work, chips, arithmetic, c)
    index = _efficiency_index(arithmetic.matmul, chips)
    efficiency = np.take((c.matmul_fp32, c.matmul_fp32_dual, c.matmul_tf32, c.matmul_half), index)
    compute = (
        conv_s
        + work.flops[..., 2] / (efficiency * _usable_peak(arithmetic.matmul, index, chips, c))
        + work.flops[..., 3] / (c.depthwise * chips.peaks[..., Mode.FP32])
    )
    on_tensor = (conv_index >= 2) | (index >= 2)
    slower = c.no_optimizer * arithmetic.no_optimizer
    compute = compute * np.exp(slower - log_throttle(chips, c) - own[:, 0] - own[:, 1] * on_tensor)
    moved = np.where(arithmetic.half, work.bytes_ * HALF_BYTES + work.cast_bytes, work.bytes_)
    moved = moved + work.optimizer_bytes
    share = np.where(arithmetic.half, c.bandwidth_half, c.bandwidth_fp32)
    saved = own[:, 2] + c.cache * chips.l2 + c.fused * arithmetic.compiled
    memory = moved / (share * chips.bandwidth) * np.exp(slower - saved)
    floor = work.operators * c.operator_floor_s * np.exp(slower)
    gpu = compute + memory + floor
    host = work.operators * host_s_per_operator * np.exp(slower) + 0 * gpu
    return Times(
        compute_s=compute,
        memory_s=memory,
        floor_s=floor + 0 * gpu,
        gpu_s=gpu,
        host_s=host,
        step_s=(gpu**host_power + host**host_power) ** (1 / host_power),
    )


def log_throttle(chips: Chips, coefficients: Coefficients) -> Floats:
    """Log of the share of its stated clock that each chip holds on its power, (n,); at most 0."""
    held = coefficients.power_exponent * chips.power
    return np.asarray(np.minimum(0.0, held - chips.clock), dtype=float)


def _conv_s(work: Work, chips: Chips, arithmetic: Arithmetic, c: Coefficients) -> tuple[Indices, Floats]:
    index = _efficiency_index(arithmetic.conv, chips)
    efficiency = np.take((c.conv_fp32, c.conv_fp32_dual, c.conv_tf32, c.conv_half), index)
    winograd = np.take((c.winograd_fp32, c.winograd_fp32_dual, c.winograd_tf32, c.winograd_half), index)
    layout = np.exp(-c.channels_last * (arithmetic.channels_last & (index >= 2)))
    flops = work.flops[..., 0] / winograd + work.flops[..., 1]
    return index, flops / (efficiency * _usable_peak(arithmetic.conv, index, chips, c)) * layout


def _efficiency_index(mode: Indices, chips: Chips) -> Indices:
    """0 FP32, 1 FP32 on two pipes, 2 TF32, 3 half; without tensor cores every mode counts as FP32."""
    plain = np.where(chips.dual_issue, 1, 0)
    return np.where(_pick(chips.tensor, mode), np.where(mode == Mode.TF32, 2, 3), plain)


def _usable_peak(mode: Indices, index: Indices, chips: Chips, c: Coefficients) -> Floats:
    """Peak, lowered where a multiprocessor's tensor cores are wide: they outrun what feeds them."""
    wide = np.where(index < 2, 0.0, c.width * _pick(chips.width, mode))
    result: Floats = _pick(chips.peaks, mode) * np.exp(-wide)
    return result


def _pick(table: NDArray[Any], mode: Indices) -> NDArray[Any]:
    """The column of each row's mode."""
    return np.where(
        mode == Mode.FP32, table[..., 0], np.where(mode == Mode.TF32, table[..., 1], table[..., 2])
    )


@cache
def _figures(spec: GpuSpec) -> tuple[list[float], list[bool], bool, PowerAndClock]:
    """Peaks by mode, tensor cores by mode, dual issue, power and clock of one GPU."""
    fp32 = spec.fp32_flops_per_s or np.nan
    tf32, half = spec.tf32_tensor_flops_per_s, spec.fp16_tensor_flops_per_s
    capability = capability_of(spec)
    if capability is None:
        tf32 = None  # ROCm leaves TF32 off: an MI325X trains as fast with it as without, to 1 %
    # Another vendor's data sheet that states no matrix rate means none: then FP32 pipes do the work.
    before_tf32 = capability is None or capability < (8, 0)
    without_tensor = capability is None or spec.tensor_core_count == 0
    dual = spec.architecture in DUAL_ISSUE if capability is None else capability >= (8, 6)
    peaks = [
        fp32,
        tf32 or (fp32 if before_tf32 else np.nan),
        half or (fp32 if without_tensor else np.nan),
    ]
    return peaks, [False, tf32 is not None, half is not None], dual, power_and_clock(spec)


def _width(spec: GpuSpec) -> list[float]:
    """Logs of tensor FLOP per clock and multiprocessor over the reference, by mode; 0 where not known."""
    if not (spec.sm_count and spec.cuda_core_count and spec.fp32_flops_per_s):
        return [0.0, 0.0, 0.0]
    clocks_per_s = spec.fp32_flops_per_s / (2 * spec.cuda_core_count) * spec.sm_count
    rates = (spec.tf32_tensor_flops_per_s, spec.fp16_tensor_flops_per_s)
    references = (REFERENCE_WIDTH["tf32"], REFERENCE_WIDTH["half"])
    wide = [log(r / clocks_per_s / ref) if r else 0.0 for r, ref in zip(rates, references, strict=True)]
    return [0.0, *wide]
