"""Will it fit? The question's peak memory on a card, and the largest batch that the card holds."""

from __future__ import annotations

from gpubench.models import GpuSpec, Precision
from gpubench.predict.question import Question
from gpubench.profile import memory


def peak_memory_bytes(question: Question, precision: Precision, batch_size: int) -> float:
    """Estimate the peak of one step of the question [B]."""
    return memory.peak_memory_bytes(question.profile, question.task, precision, batch_size)


def fits(need_bytes: float, spec: GpuSpec) -> bool:
    """Whether the upper bound of a peak fits on a card whose memory is known."""
    assert spec.memory_bytes is not None
    return memory.fits(need_bytes, spec.memory_bytes)


def largest_batch(question: Question, precision: Precision, spec: GpuSpec, factor: float = 1.0) -> int:
    """The largest batch that ``fits`` the card; 0 where none does.

    Args:
        question: Workload and task.
        precision: Of the case.
        spec: A GPU whose memory is known.
        factor: Measured over predicted peak, where this workload was measured.
    """
    assert spec.memory_bytes is not None
    return memory.largest_batch(question.profile, question.task, precision, spec.memory_bytes, factor)
