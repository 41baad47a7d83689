"""Will it fit? Peak memory of one step, and the largest batch that a card holds."""

from __future__ import annotations

import math

from gpubench.models import GpuSpec, OperatorKind, Precision, TaskKind
from gpubench.predict.question import Question

SAFE_SHARE = 0.92  # of the card: the rest is the driver, the context and fragments
WORKSPACE_BYTES = 256 * 1024**2  # cuDNN and cuBLAS scratch space
FP32_BYTES = 4
GRADIENT_SHARE = 0.5  # of what the widest operator reads and writes: the gradient of its output


def peak_memory_bytes(question: Question, precision: Precision, batch_size: int) -> float:
    """Estimate the peak of one step: weights, gradients, optimizer state, saved activations, workspace."""
    return fixed_bytes(question, precision) + batch_size * bytes_per_sample(question, precision)


def fixed_bytes(question: Question, precision: Precision) -> float:
    """The part that does not grow with the batch."""
    profile = question.profile
    weights = float(profile.parameters * FP32_BYTES)
    if precision.is_amp:
        weights *= 1.5  # autocast keeps a half-precision copy during the forward pass
    if question.task is TaskKind.INFER:
        return weights + WORKSPACE_BYTES
    state = profile.trainable_parameters * (FP32_BYTES + profile.optimizer_bytes_per_parameter)
    return weights + state + WORKSPACE_BYTES


def bytes_per_sample(question: Question, precision: Precision) -> float:
    """Activations of one sample: all saved ones in training, the largest operator's in inference."""
    scale = 0.5 if precision.is_amp else 1.0
    profile = question.profile
    operators = profile.train if question.task is TaskKind.TRAIN else profile.infer
    widest = max(
        (op.bytes_per_sample for op in operators if op.kind is not OperatorKind.OPTIMIZER), default=0
    )
    saved = profile.saved_bytes_per_sample if question.task is TaskKind.TRAIN else 0.0
    return scale * max(saved + GRADIENT_SHARE * widest, widest)  # frozen layers save nothing, yet run


def largest_batch(question: Question, precision: Precision, spec: GpuSpec, factor: float = 1.0) -> int:
    """The largest batch that stays under ``SAFE_SHARE`` of the card; 0 where none does.

    Args:
        question: Workload and task.
        precision: Of the case.
        spec: A GPU whose memory is known.
        factor: Measured over predicted peak, where this workload was measured.
    """
    assert spec.memory_bytes is not None
    room = SAFE_SHARE * spec.memory_bytes / factor - fixed_bytes(question, precision)
    each = max(1.0, bytes_per_sample(question, precision))
    return max(0, math.floor(room / each))
