"""Peak memory of one step from a profile alone, and whether it fits: search and ranking ask here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpubench.models import MemoryLine, OperatorKind, Precision, TaskKind, WorkloadProfile
from gpubench.units import GIB, MIB
from gpubench.workload import BATCH_COUNT

MOST_BATCH = 2**20
"""No batch beyond this is searched or ranked: throughput has long stopped growing, and nobody trains so."""
WORKSPACE_BYTES = 256 * MIB
"""Scratch space of cuDNN and cuBLAS, which torch's allocator hands out beside the tensors."""
CONTEXT_BYTES = GIB // 2
"""Of a CUDA context with torch's kernels in it: about 0.5 GiB on Hopper, less on older GPUs. It is outside of
what torch counts as allocated."""
MARGIN = 1.05
"""Over a peak: real steps agree with the trace to within 3 %, and the allocator rounds up and leaves gaps."""
SAFE_SHARE = 0.92
"""Of a GPU's listed memory a program finds at least this: ECC takes 1/16 of GDDR memory, the driver up to
0.6 GiB. A T4 of 16 GiB has 14.75 GiB to give."""
UNTRACED_FACTOR = 2.0
"""Over the formula for a model that could not be traced: it is too low by up to this for language models."""
FP32_BYTES = 4
GRADIENT_SHARE = 0.5
"""Of what the widest operator reads and writes: the gradient of its output."""


def peak_memory_bytes(
    profile: WorkloadProfile, task: TaskKind, precision: Precision, batch_size: int
) -> float:
    """Estimate the peak of one step, as torch counts what is allocated, with the libraries' workspace [B].

    Weights, gradients, optimizer state, activations, transients, and the prebuilt batches. Traced where the
    model could be, else the formula's estimate, raised by what it was ever too low.
    """
    return WORKSPACE_BYTES + max(
        line.fixed_bytes + batch_size * line.bytes_per_sample for line in _lines(profile, task, precision)
    )


def upper_bound_bytes(peak_bytes: float) -> float:
    """What a card must have for a step of this peak to run on it for certain [B]."""
    return MARGIN * peak_bytes + CONTEXT_BYTES


def fits(peak_bytes: float, memory_bytes: float) -> bool:
    """Whether the upper bound of a peak stays within what a program finds of a card's memory."""
    return upper_bound_bytes(peak_bytes) <= SAFE_SHARE * memory_bytes


def largest_batch(
    profile: WorkloadProfile, task: TaskKind, precision: Precision, memory_bytes: float, factor: float = 1.0
) -> int:
    """The largest batch that ``fits``, ``MOST_BATCH`` at most; 0 where none does.

    Args:
        profile: Of the workload.
        task: A training step or a forward pass.
        precision: Of the case.
        memory_bytes: Of the card.
        factor: Measured over estimated peak, where this workload was measured.
    """
    peak = (SAFE_SHARE * memory_bytes - CONTEXT_BYTES) / MARGIN / factor
    room = peak - WORKSPACE_BYTES
    largest = min(_most(line, room) for line in _lines(profile, task, precision))
    while largest and not fits(factor * peak_memory_bytes(profile, task, precision, largest), memory_bytes):
        largest -= 1  # rounding, where a batch fits to the byte
    return largest


def _most(line: MemoryLine, room_bytes: float) -> int:
    left = room_bytes - line.fixed_bytes
    if left < 0:
        return 0
    return min(MOST_BATCH, math.floor(left / max(1.0, line.bytes_per_sample)))


def _lines(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> Sequence[MemoryLine]:
    """The traced lines of this task and precision, or the formula's one."""
    for traced in profile.memory:
        if traced.task is task and traced.is_amp is precision.is_amp:
            return traced.lines
    return (_formula(profile, task, precision),)


# --- the formula, for what cannot be traced ------------------------------------------------------------


def _formula(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> MemoryLine:
    inputs = BATCH_COUNT * FP32_BYTES * math.prod(profile.sample_shape)
    activations = _activation_bytes(profile, task, precision)
    return MemoryLine(
        fixed_bytes=UNTRACED_FACTOR * _fixed_bytes(profile, task, precision),
        bytes_per_sample=UNTRACED_FACTOR * activations + inputs,
    )


def _fixed_bytes(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> float:
    weights = float(profile.parameters * FP32_BYTES)
    if precision.is_amp:
        weights *= 1.5  # autocast keeps a half-precision copy during the forward pass
    if task is TaskKind.INFER:
        return weights
    return weights + profile.trainable_parameters * (FP32_BYTES + profile.optimizer_bytes_per_parameter)


def _activation_bytes(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> float:
    """Activations of one sample, all saved ones in training; frozen layers save nothing."""
    scale = 0.5 if precision.is_amp else 1.0
    train = task is TaskKind.TRAIN
    operators = profile.train if train else profile.infer
    widest = max(
        (op.bytes_per_sample for op in operators if op.kind is not OperatorKind.OPTIMIZER), default=0
    )
    saved = profile.saved_bytes_per_sample if train else 0.0
    return scale * max(saved + GRADIENT_SHARE * widest, widest)
