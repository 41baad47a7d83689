"""An additive roofline of one step: the times of arithmetic, memory traffic and launches add up.

For published models only totals are known (model_profiles.csv); for a workload, its operators are. Because
the roofline is a sum, coefficients fitted to totals apply to operators too. The usual roofline, the larger of
arithmetic and traffic for each operator, lacks this property and scored worse; see docs/decisions.md.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import (
    DecodeWork,
    Execution,
    GpuSpec,
    MemoryFormat,
    Operator,
    OperatorKind,
    Precision,
    TaskKind,
    WeightType,
    WorkloadProfile,
)
from gpubench.predict.chips import Chips, Mode, architecture_of, predecessor

KINDS = (OperatorKind.CONV3X3, OperatorKind.CONV, OperatorKind.MATMUL, OperatorKind.DEPTHWISE)
HALF_BYTES = 0.5  # share of the fp32 traffic that remains with ``Precision.in_half``
CAST_BYTES = 6
"""Bytes that autocast moves to cast one weight or its gradient: 4 in fp32 and 2 in half precision."""
HOST_POWER = 2.0
"""Host and GPU overlap in part: step^2 = gpu^2 + host^2, as measured on an H200."""
HOST_SHARE_LIMIT = 0.7
"""Ratio of host time to step time above which the host, not the GPU, sets the pace."""
WINOGRAD_SAVES = 4.0
"""Largest ratio of counted to performed multiplications: 144 to 36 for 4x4 tiles of 3x3 kernels (Lavin and
Gray 2015, arXiv:1509.09308)."""
CHAIN_SAVED = 0.6
"""Share of the traffic of chains of operators that stays in registers if a compiler or the author fuses them.

It was chosen to match measurements of adapters with fused kernels on an A100 and of compiled GPT-2.
"""
FUSED_AT_MEASURED_RATE = 0.5
"""Share of the matrix products of usual width that run at the rate measured for large products, instead of
the fitted rate, if chains of operators are fused.

It was chosen to match compiled GPT-2 on 16 cards, where fusing saves half of the time that products lose to
the lower rate.
"""
USUAL_WIDTH = 512.0
"""Typical width of a matrix product in published networks.

The width of m x k times k x n is 1 / (1/m + 1/n + 1/k), which is twice the ratio of FLOPs to bytes at 4 bytes
per element. The fitted rate is that of products of typical width. Wider products are faster: as the width
grows, the rate approaches the one measured for large products.
"""
ABOVE_STATED_CLOCK = 1.1
"""Largest ratio of the actual clock to the datasheet's: consumer cards boost a few percent above it."""
HOST_S_PER_OPERATOR: Mapping[str, float] = {
    **{
        execution.value: seconds
        for execution in Execution
        if (seconds := execution.facts.host_s_per_operator) is not None
    },
    **dict.fromkeys(("", "fused"), Execution.EAGER.facts.host_s_per_operator or 0.0),
}
"""Host time per operator if it was not measured [s], by the execution of a published row ("" if none)."""
DEVIATIONS = ("compute", "tensor", "bandwidth")
"""An architecture's log factors on arithmetic, on tensor-core arithmetic, and on memory bandwidth.

They are fitted per architecture. A factor per GPU would be learned from the few harnesses (benchmark
programs) that ran on it, and would do more harm than good for any other harness. docs/decisions.md has the
figures.
"""


class Coefficients(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted coefficients. Efficiencies are shares of the dense peak.

    Attributes:
        conv_fp32_dual, matmul_fp32_dual: For chips that issue two FP32 operations per lane (GA10x and later).
        winograd_*: Speedup of 3x3 convolutions of stride 1, which can need fewer multiplications than are
            counted. No published row has strict-FP32 convolutions on a dual-issue chip; for those, the priors
            of the fit are kept, and speedup times efficiency stays below 1.
        depthwise: Share of the FP32 peak.
        width, width_matmul: Exponents with which the efficiency falls as a multiprocessor's tensor cores get
            wider, in convolutions and in products of usual width. A Hopper core does four times the work of a
            Turing core per clock and is harder to feed.
        cache: Exponent with which the traffic that reaches the memory falls as the L2 cache gets larger.
        operator_floor_s: Time of the smallest kernel [s].
        power_exponent: Exponent with which the sustained clock of a chip grows with its watts per
            multiprocessor.
        channels_last: Log gain of convolutions on tensor cores in that layout.
        no_optimizer: Log slowdown of steps that have no optimizer but copy their input from the host.
        fused: Log of the factor by which torch.compile cuts the traffic of inference, as values stay in
            registers.
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
    width_matmul: float
    cache: float
    operator_floor_s: float
    power_exponent: float
    channels_last: float
    no_optimizer: float
    fused: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """The arithmetic operations and traffic of n steps, or of one step to be broadcast.

    Attributes:
        flops: (n, 4) FLOP per step by ``KINDS``.
        bytes_: (n,) bytes per step at 4 per element, without the optimizer.
        optimizer_bytes: (n,) bytes that the optimizer moves, in fp32 under AMP too.
        cast_bytes: (n,) bytes that autocast adds in half precision by casting weights and their gradients.
        operators: (n,) kernels per step.
        wide_flops: (n,) the part of ``flops`` due to widths above ``USUAL_WIDTH``. On tensor cores, it runs
            at the measured rate instead of the fitted one. 0 if the shapes of the products are unknown.
        chain_bytes, chain_operators: (n,) the parts of ``bytes_`` and ``operators`` outside products,
            convolutions and the optimizer: torch.compile fuses chains of these operators.
    """

    flops: Floats
    bytes_: Floats
    optimizer_bytes: Floats
    cast_bytes: Floats
    operators: Floats
    wide_flops: Floats
    chain_bytes: Floats
    chain_operators: Floats


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The arithmetic, data types and layout of n steps.

    Attributes:
        conv, matmul: (n,) ``Mode`` of convolutions and of matrix products.
        half: (n,) whether activations move at 2 bytes per element.
        channels_last: (n,) whether images are in that layout.
        no_optimizer: (n,) whether the step ends with the backward pass.
        compiled: (n,) whether the step is compiled inference; its savings are fitted.
        chains_fused: (n,) whether it is a training step whose chains of operators are fused, by torch.compile
            or by fused kernels.
    """

    conv: Indices
    matmul: Indices
    half: Flags
    channels_last: Flags
    no_optimizer: Flags
    compiled: Flags
    chains_fused: Flags


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds per step, (n,) each.

    Attributes:
        gpu_s: Sum of the first two, and of the minimum times of all kernels.
        step_s: GPU and host, which overlap in part.
    """

    compute_s: Floats
    memory_s: Floats
    gpu_s: Floats
    host_s: Floats
    step_s: Floats


def work_of(operators: Sequence[Operator], batch_size: int, cast_bytes: float = 0.0) -> Work:
    """Sum the operators of one step at this batch by kind; ``cast_bytes`` is from ``cast_bytes_of``."""
    kinds = [op.kind for op in operators]
    sizes = [op.count * (op.bytes_per_sample * batch_size + op.bytes_fixed) for op in operators]
    flops = [op.count * (op.flops_per_sample * batch_size + op.flops_fixed) for op in operators]

    def total(amounts: Iterable[float], *wanted: OperatorKind) -> float:
        return float(sum(amount for amount, kind in zip(amounts, kinds, strict=True) if kind in wanted))

    # A product's share above the usual width is 1 - USUAL_WIDTH / width. A product over an empty batch has
    # none.
    wide = [
        done * max(0.0, 1 - USUAL_WIDTH * size / (2 * done)) if done else 0.0
        for done, size in zip(flops, sizes, strict=True)
    ]
    counts = [op.count for op in operators]
    return Work(
        flops=np.array([[total(flops, kind) for kind in KINDS]]),
        bytes_=np.array(
            [total(sizes, *(kind for kind in OperatorKind if kind is not OperatorKind.OPTIMIZER))]
        ),
        optimizer_bytes=np.array([total(sizes, OperatorKind.OPTIMIZER)]),
        cast_bytes=np.array([cast_bytes]),
        operators=np.array([total(counts, *OperatorKind)]),
        wide_flops=np.array([total(wide, OperatorKind.MATMUL)]),
        chain_bytes=np.array([total(sizes, OperatorKind.MEMORY)]),
        chain_operators=np.array([total(counts, OperatorKind.MEMORY)]),
    )


def cast_bytes_of(profile: WorkloadProfile, task: TaskKind) -> float:
    """Return the bytes that autocast moves in one step to cast weights and, in training, gradients back.

    0 if the weights are stored in half precision.
    """
    if profile.recipe.weight_type is not WeightType.FLOAT32:
        return 0.0
    cast = profile.parameters + (profile.trainable_parameters if task is TaskKind.TRAIN else 0)
    return float(CAST_BYTES * cast)


def arithmetic_of(
    precision: Precision,
    memory_format: MemoryFormat | None,
    n: int,
    *,
    compiled: bool = False,
    chains_fused: bool = False,
) -> Arithmetic:
    """Return the arithmetic of n steps at one precision, as gpubench measures them: with the optimizer."""
    assert precision.facts.predicted_as is not None  # ``domain_gap`` has refused other precisions
    mode = np.full(n, int(Mode[precision.facts.predicted_as.upper()]))
    return Arithmetic(
        conv=mode,
        matmul=mode,
        half=np.full(n, precision.in_half),
        channels_last=np.full(n, memory_format is MemoryFormat.CHANNELS_LAST),
        no_optimizer=np.zeros(n, dtype=bool),
        compiled=np.full(n, compiled),
        chains_fused=np.full(n, chains_fused),
    )


def leading_mode(work: Work, arithmetic: Arithmetic) -> Indices:
    """Return the arithmetic that most FLOPs of each step use, depthwise convolutions aside, (n,)."""
    is_conv = work.flops[..., 0] + work.flops[..., 1] > work.flops[..., 2]
    return np.where(is_conv, arithmetic.conv, arithmetic.matmul)


def deviations_of(known: Mapping[str, Sequence[float]], gpu_keys: Sequence[str]) -> Floats:
    """Return the deviations of each GPU's architecture or its newest known predecessor, (len(gpu_keys), 3).

    They are 0 if neither was fitted.
    """
    nothing = (0.0,) * len(DEVIATIONS)
    names = [architecture_of(key) for key in gpu_keys]
    sources = {name: name if name in known else predecessor(name, known) for name in set(names)}
    rows = [known.get(sources[name] or "", nothing) for name in names]
    return np.array(rows, dtype=float).reshape(-1, len(DEVIATIONS))


def step_times(
    work: Work,
    chips: Chips,
    arithmetic: Arithmetic,
    coefficients: Coefficients,
    *,
    host_s_per_operator: Floats | float,
    deviations: Floats,
    host_power: float = HOST_POWER,
) -> Times:
    """Predict n steps, one per row of the broadcast inputs.

    Args:
        work: n steps or one.
        chips: n GPUs or one.
        arithmetic: Their arithmetic.
        coefficients: From the calibration.
        host_s_per_operator: Host time per operator; 0 inside a CUDA graph [s].
        deviations: (n, 3) log factors by which each GPU is faster than its datasheet; see ``DEVIATIONS``.
        host_power: Exponent with which GPU and host time add up: 1 for no overlap, infinity for full overlap.
    """
    c = coefficients
    products_s = _conv_s(work, chips, arithmetic, c) + _matmul_s(work, chips, arithmetic, c)
    compute = products_s + work.flops[..., 3] / (c.depthwise * chips.peaks[..., Mode.FP32])
    on_tensor = _pick(chips.tensor, arithmetic.conv) | _pick(chips.tensor, arithmetic.matmul)
    slower = c.no_optimizer * arithmetic.no_optimizer
    compute = compute * np.exp(
        slower - log_throttle(chips, c) - deviations[:, 0] - deviations[:, 1] * on_tensor
    )
    moved = moved_bytes(work, arithmetic.half, chains_fused=arithmetic.chains_fused)
    share = np.where(arithmetic.half, c.bandwidth_half, c.bandwidth_fp32)
    saved = deviations[:, 2] + c.cache * chips.l2 + c.fused * arithmetic.compiled
    memory = moved / (share * chips.bandwidth) * np.exp(slower - saved)
    launched = (work.operators - work.chain_operators * arithmetic.chains_fused) * np.exp(slower)
    gpu = compute + memory + launched * c.operator_floor_s
    host = launched * host_s_per_operator + 0 * gpu  # 0 * gpu broadcasts to n steps
    return Times(
        compute_s=compute,
        memory_s=memory,
        gpu_s=gpu,
        host_s=host,
        step_s=(gpu**host_power + host**host_power) ** (1 / host_power),
    )


def moved_bytes(work: Work, half: Flags | bool, *, chains_fused: Flags | bool = False) -> Floats:
    """Return the bytes that each step reads and writes, (n,).

    Args:
        work: n steps or one.
        half: Whether an element takes 2 bytes.
        chains_fused: Whether chains of operators are fused.
    """
    fp32_bytes = work.bytes_ - np.where(chains_fused, CHAIN_SAVED * work.chain_bytes, 0.0)
    moved: Floats = np.where(half, fp32_bytes * HALF_BYTES + work.cast_bytes, fp32_bytes)
    return moved + work.optimizer_bytes


def least_step_s(work: Work, chips: Chips, arithmetic: Arithmetic, *, at_best_rate: bool = False) -> Floats:
    """Return a lower bound on the time of each step, (n,): its FLOPs at the peak of the datasheet [s].

    The clock may exceed the stated one by the factor ``ABOVE_STATED_CLOCK``. Convolutions that Winograd may
    shorten are counted with its largest possible savings. Bytes set no bound, since the traffic that a fused
    kernel or a cache saves is unknown.

    Args:
        work: n steps or one.
        chips: n GPUs or one.
        arithmetic: Their arithmetic.
        at_best_rate: Whether to assume that tensor cores run at the best rate measured in their family,
            ``chips.product_best``, and that Winograd saves nothing on NVIDIA's tensor cores. Of 165 published
            readings of VGG on NVIDIA's tensor cores, only one is faster than this, by 2 %. Elsewhere Winograd
            must be allowed for: 29 of 73 readings on NVIDIA's FP32 pipes exceed the peak, by a factor of up
                to
            1.8, and so does VGG on the matrix instructions of a Radeon.
    """
    saves = np.where(_pick(chips.tensor, arithmetic.conv) & chips.nvidia & at_best_rate, 1.0, WINOGRAD_SAVES)
    tensor_share = chips.product_best if at_best_rate else ABOVE_STATED_CLOCK
    conv = work.flops[..., 0] / saves + work.flops[..., 1]
    least: Floats = work.flops[..., 3] / chips.peaks[..., Mode.FP32] / ABOVE_STATED_CLOCK
    for flops, mode in ((conv, arithmetic.conv), (work.flops[..., 2], arithmetic.matmul)):
        share = np.where(_pick(chips.tensor, mode), tensor_share, ABOVE_STATED_CLOCK)
        least = least + flops / (_pick(chips.peaks, mode) * share)
    return least


def log_throttle(chips: Chips, coefficients: Coefficients) -> Floats:
    """Return log(sustained clock / stated clock) of each chip, (n,); 0 if its power suffices."""
    sustained = coefficients.power_exponent * chips.power
    return np.asarray(np.minimum(0.0, sustained - chips.clock), dtype=float)


def _conv_s(work: Work, chips: Chips, arithmetic: Arithmetic, c: Coefficients) -> Floats:
    efficiencies = (c.conv_fp32, c.conv_fp32_dual, c.conv_tf32, c.conv_half)
    speedups = (c.winograd_fp32, c.winograd_fp32_dual, c.winograd_tf32, c.winograd_half)
    efficiency, winograd = (_of_pipes(each, arithmetic.conv, chips) for each in (efficiencies, speedups))
    gain = c.channels_last * (arithmetic.channels_last & _pick(chips.tensor, arithmetic.conv))
    flops = work.flops[..., 0] / winograd + work.flops[..., 1]
    return np.asarray(flops / (efficiency * _usable_peak(arithmetic.conv, chips, c.width)) * np.exp(-gain))


def _matmul_s(work: Work, chips: Chips, arithmetic: Arithmetic, c: Coefficients) -> Floats:
    efficiencies = (c.matmul_fp32, c.matmul_fp32_dual, c.matmul_tf32, c.matmul_half)
    efficiency = _of_pipes(efficiencies, arithmetic.matmul, chips)
    fitted = efficiency * _usable_peak(arithmetic.matmul, chips, c.width_matmul)
    products = work.flops[..., 2]
    sped_up = np.where(arithmetic.chains_fused, FUSED_AT_MEASURED_RATE * (products - work.wide_flops), 0.0)
    at_measured = np.where(_pick(chips.tensor, arithmetic.matmul), work.wide_flops + sped_up, 0.0)
    measured = _pick(chips.peaks, arithmetic.matmul) * chips.product
    return (products - at_measured) / fitted + at_measured / measured


# Plain integers: comparing an array with a member of an enumeration runs the enumeration's Python code, and
# NumPy ignores every exception raised there, even for Ctrl-C or SIGTERM.
_FP32, _TF32 = int(Mode.FP32), int(Mode.TF32)


def _of_pipes(coefficients: Sequence[float], mode: Indices, chips: Chips) -> Floats:
    """Return each step's coefficient, from those of FP32, FP32 on two pipes, TF32 and half, (n,).

    Without tensor cores, every mode runs in FP32.
    """
    plain = np.where(chips.dual_issue, 1, 0)
    index = np.where(_pick(chips.tensor, mode), np.where(mode == _TF32, 2, 3), plain)
    return np.take(coefficients, index)


def _usable_peak(mode: Indices, chips: Chips, width: float) -> Floats:
    # The peak, lowered if a multiprocessor's tensor cores are wide: the data paths cannot feed them fully.
    wide = np.where(_pick(chips.tensor, mode), width * _pick(chips.width, mode), 0.0)
    return np.asarray(_pick(chips.peaks, mode) * np.exp(-wide), dtype=float)


def _pick(table: NDArray[Any], mode: Indices) -> NDArray[Any]:
    return np.where(mode == _FP32, table[..., 0], np.where(mode == _TF32, table[..., 1], table[..., 2]))


_T = TypeVar("_T")


def take(table: _T, rows: NDArray[Any]) -> _T:
    """Return the chosen rows of a dataclass of arrays and of the dataclasses nested in it."""
    return _joined([table], lambda arrays: arrays[0][rows])


def stack(tables: Sequence[_T]) -> _T:
    """Concatenate dataclasses of arrays by row, along with the dataclasses nested in them."""
    return _joined(tables, np.concatenate)


def _joined(tables: Sequence[_T], join: Callable[[Sequence[Any]], Any]) -> _T:
    if not is_dataclass(tables[0]):
        joined: _T = join(tables)
        return joined
    parts = {field.name: [getattr(each, field.name) for each in tables] for field in fields(tables[0])}
    changes = {name: _joined(values, join) for name, values in parts.items()}
    return replace(tables[0], **changes)  # type: ignore[type-var]


# --- the time to generate one token -------------------------------------------------------------------------

# The time is that of reading the weights and the cache from memory once, plus a fixed time. Two numbers are
# fitted to 58 published decode rates of llama.cpp at batch 1 on 12 GPUs: the share of the datasheet's
# bandwidth that is reached, and the fixed time. Other engines are predicted with the same two numbers and
# marked as not validated. ``tests/decode_fit.py`` has the fit; a test checks that it still gives these
# numbers.

VALIDATED_ENGINE = "llama.cpp"
DECODE_BANDWIDTH_SHARE = 0.931137888108705
"""Share of the datasheet's bandwidth reached when reading weights and cache."""
TOKEN_FIXED_S = 0.0033595253159264837
"""Fixed time per token [s]."""
TOKEN_HALF_WIDTH = 0.3414250190429823
"""Log half-width of the interval: the largest, over all GPUs, of the median error on the rows of a GPU that
was left out of the fit."""
TOKEN_FACTOR = math.exp(TOKEN_HALF_WIDTH)
"""Ratio of a time to the lower end of its interval, and of the upper end to the time."""
DECODE_COMPUTE_SHARE = 0.5
"""Assumed share of the dense tensor peak that matrix products with few rows reach. It matters only at large
batches, which no published row covers."""


def token_time(work: DecodeWork, context_tokens: float, batch_size: int, spec: GpuSpec) -> float | None:
    """Predict the time to generate one token for every sequence [s]; None if the bandwidth is unknown.

    Args:
        work: Bytes to read and FLOPs to compute for one token.
        context_tokens: Tokens in the cache of each sequence, on average over the generation.
        batch_size: Sequences generated in parallel; the weights are read once for all of them.
        spec: The card.
    """
    bandwidth = spec.memory_bandwidth_bytes_per_s
    if not bandwidth:
        return None
    moved = work.weight_bytes + batch_size * context_tokens * work.cache_bytes_per_token
    reading_s = moved / (DECODE_BANDWIDTH_SHARE * bandwidth)
    peak = spec.bf16_tensor_flops_per_s or spec.fp16_tensor_flops_per_s or spec.fp32_flops_per_s
    computing_s = batch_size * work.flops_per_token / (DECODE_COMPUTE_SHARE * peak) if peak else 0.0
    return max(reading_s, computing_s) + TOKEN_FIXED_S
