"""Peak memory of one step, from a profile alone: what search, prediction and ranking all go by."""

from __future__ import annotations

import math

from gpubench.models import OperatorKind, Precision, TaskKind, WorkloadProfile
from gpubench.workload import BATCH_COUNT

MOST_BATCH = 2**20
"""No batch beyond this is searched or ranked: throughput has long stopped growing, and nobody trains so."""
WORKSPACE_BYTES = 256 * 1024**2
"""Scratch space of cuDNN and cuBLAS."""
FP32_BYTES = 4
GRADIENT_SHARE = 0.5
"""Of what the widest operator reads and writes: the gradient of its output."""


def peak_memory_bytes(
    profile: WorkloadProfile, task: TaskKind, precision: Precision, batch_size: int
) -> float:
    """Estimate the peak of one step: weights, gradients, optimizer state, activations, inputs, workspace."""
    return fixed_bytes(profile, task, precision) + batch_size * bytes_per_sample(profile, task, precision)


def fixed_bytes(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> float:
    """The part that does not grow with the batch."""
    weights = float(profile.parameters * FP32_BYTES)
    if precision.is_amp:
        weights *= 1.5  # autocast keeps a half-precision copy during the forward pass
    if task is TaskKind.INFER:
        return weights + WORKSPACE_BYTES
    state = profile.trainable_parameters * (FP32_BYTES + profile.optimizer_bytes_per_parameter)
    return weights + state + WORKSPACE_BYTES


def bytes_per_sample(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> float:
    """Activations of one sample, all saved ones in training, and its place in each prebuilt batch."""
    scale = 0.5 if precision.is_amp else 1.0
    train = task is TaskKind.TRAIN
    operators = profile.train if train else profile.infer
    widest = max(
        (op.bytes_per_sample for op in operators if op.kind is not OperatorKind.OPTIMIZER), default=0
    )
    saved = profile.saved_bytes_per_sample if train else 0.0
    inputs = BATCH_COUNT * FP32_BYTES * math.prod(profile.sample_shape)
    return inputs + scale * max(saved + GRADIENT_SHARE * widest, widest)  # frozen layers save nothing


def largest_batch(profile: WorkloadProfile, task: TaskKind, precision: Precision, room_bytes: float) -> int:
    """The largest batch whose peak stays within ``room_bytes``, ``MOST_BATCH`` at most; 0 where none does."""
    room = room_bytes - fixed_bytes(profile, task, precision)
    each = max(1.0, bytes_per_sample(profile, task, precision))
    return max(0, min(MOST_BATCH, math.floor(room / each)))
