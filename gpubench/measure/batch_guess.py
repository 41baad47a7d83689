"""Where to begin the search for the largest batch: what the memory model expects to fit."""

from __future__ import annotations

import math

from gpubench.models import Precision, TaskKind, WorkloadProfile
from gpubench.workload import BATCH_COUNT

SAFE_SHARE = 0.9
"""Of the device's memory: the rest is the context, the library and fragments."""
FP32_BYTES = 4


def guess_batch(profile: WorkloadProfile, task: TaskKind, precision: Precision, memory_bytes: int) -> int:
    """Guess the largest batch from weights, gradients, optimizer state, inputs and kept activations.

    Args:
        profile: Of the workload.
        task: Training keeps activations, gradients and state; a forward pass none of them.
        precision: AMP keeps its activations at half the size.
        memory_bytes: Of the device [B].

    Returns:
        At least 1; only the start of a search.
    """
    train = task is TaskKind.TRAIN
    state = profile.trainable_parameters * (FP32_BYTES + profile.optimizer_bytes_per_parameter)
    fixed = profile.parameters * FP32_BYTES + (state if train else 0)
    operators = profile.train if train else profile.infer
    widest = max((o.bytes_per_sample for o in operators), default=0.0)
    kept = widest + (profile.saved_bytes_per_sample if train else 0.0)
    inputs = BATCH_COUNT * FP32_BYTES * math.prod(profile.sample_shape)
    each = inputs + kept * (0.5 if precision.is_amp else 1.0)
    return max(1, math.floor((SAFE_SHARE * memory_bytes - fixed) / each))
