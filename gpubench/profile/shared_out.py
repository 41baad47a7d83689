"""What one GPU holds of a traced step: all of it, or its share where several shard weights and states (FSDP).

FSDP by blocks, as torch's ``fully_shard`` does it: weights, gradients and optimizer state are shared out
evenly; the blocks are gathered one after the other, the next while one computes; gradients are reduced block
by block. What lies outside of the blocks (embedding, head) is gathered once and stays for the whole step.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpubench.models import BlockSizes, Case, MemoryLine, StepMemory, WorkloadProfile

GATHERED_BLOCKS = 3.0
"""The block at work, the next one, and the buffer in which the next one arrived."""


BEYOND_FACTOR = 2.0
"""Upper end over the figure at a batch beyond all that were traced of a step that is not on lines."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU holds at the highest moment of a step [B].

    Attributes:
        apart: Of the reserved memory alone: what is alive at another moment, and comes from a pool of its own
            that nothing else may use meanwhile.
        pinned: Of the reserved memory alone, and not of its lower end: what a CUDA graph finds held and of
            no use to it.
        least, most: Shares of the total between which it lies by what it was told from: 1 where that was a
            trace of this batch, or lines through others. The loop that gpubench measures lets go of the
            outputs of the model before the backward pass; most is at least what one holds that keeps them.
    """

    weights: float
    gradients: float
    optimizer: float
    saved: float
    transient: float
    apart: float = 0.0
    pinned: float = 0.0
    least: float = 1.0
    most: float = 1.0

    @property
    def total(self) -> float:
        """All that is allocated at that moment."""
        return self.weights + self.gradients + self.optimizer + self.saved + self.transient

    def scaled(self, scale: float) -> Held:
        """All of it times a factor."""
        if scale == 1.0:
            return self
        parts = (name for name in self.__struct_fields__ if name not in {"least", "most"})
        return msgspec.structs.replace(self, **{name: scale * getattr(self, name) for name in parts})


def held_by_one(step: StepMemory, batch_size: int, *, buckets: bool, kept: bool = False) -> Held:
    """What a GPU holds that has all weights.

    Args:
        step: As traced.
        batch_size: Samples on this GPU.
        buckets: Whether gradients are summed with those of other GPUs: torch's DistributedDataParallel holds
            them once more, in buckets.
        kept: Whether all gradients are alive through the whole step, because they are summed over several.
    """

    def by(loop: StepMemory) -> Held:
        line = loop.peak(batch_size, gradients=0.0 if kept else 1.0)
        held = _held(loop, line, batch_size)
        gradients = loop.trained_bytes if kept else held.gradients
        return msgspec.structs.replace(held, gradients=gradients + (loop.trained_bytes if buckets else 0.0))

    return _by_either_loop(step, by)


def on_several(
    step: StepMemory, profile: WorkloadProfile, case: Case, *, stored: float = 1.0, kept: bool = False
) -> Held:
    """What one of several GPUs holds that share out weights, gradients and states.

    Args:
        step: Traced in the type in which the weights are gathered.
        profile: Of the workload, for its blocks.
        case: Batch on each GPU, and how many there are.
        stored: Size of a share's element over that of a gathered weight: 2 where shares are float32, and
            weights are gathered in bfloat16 (MixedPrecisionPolicy).
        kept: As ``held_by_one`` takes it; each micro-batch reduces its own gradients.
    """
    count = case.gpu_count
    blocks = profile.blocks or BlockSizes(  # a model without blocks is gathered whole
        count=0, largest_parameters=0, outside_parameters=profile.parameters
    )
    element = step.weights_bytes / profile.parameters
    trained_share = step.trained_bytes / step.weights_bytes
    outside, block = blocks.outside_parameters * element, blocks.largest_parameters * element
    gathered = outside + GATHERED_BLOCKS * block
    reduced = trained_share * block * (1.0 + stored)

    def by(loop: StepMemory) -> Held:
        line = loop.peak(case.batch_size, gradients=0.0 if kept else stored / count)
        held = _held(loop, line, case.batch_size)
        shared = (step.trained_bytes if kept else held.gradients) * stored / count
        return Held(
            weights=step.weights_bytes * stored / count,
            gradients=shared + min(held.gradients, trained_share * outside) + reduced,
            optimizer=step.optimizer_bytes * stored / count,
            saved=held.saved,
            transient=held.transient + gathered,
            apart=step.trained_bytes * stored / count - shared,
            most=held.most,
        )

    return _by_either_loop(step, by)


def _by_either_loop(step: StepMemory, by: Callable[[StepMemory], Held]) -> Held:
    """What a loop holds that lets go of the outputs; its upper end is what one holds that keeps them."""
    held = by(step)
    if step.keeping is None:
        return held
    kept = by(step.keeping)
    return msgspec.structs.replace(held, most=max(held.most, kept.most * kept.total / held.total))


def _held(step: StepMemory, line: MemoryLine, batch_size: int) -> Held:
    rest = line.at(batch_size) - step.weights_bytes - step.optimizer_bytes - line.gradient_bytes
    saved = min(rest, step.saved_at(batch_size))
    return Held(
        weights=step.weights_bytes,
        gradients=line.gradient_bytes,
        optimizer=step.optimizer_bytes,
        saved=saved,
        transient=rest - saved,
        most=step.bound(batch_size) if step.is_traced_at(batch_size) else BEYOND_FACTOR,
    )
