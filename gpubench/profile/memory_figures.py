"""The memory of a step on one GPU, in three separate figures, each with its interval.

FSDP by blocks, as torch's ``fully_shard`` does it: weights, gradients and optimizer state are shared out
evenly; the blocks are gathered one after the other, the next while one computes; gradients are reduced block
by block. What lies outside of the blocks (embedding, head) is gathered once and stays for the whole step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gpubench.interval import Interval
from gpubench.models import (
    BlockSizes,
    CardClass,
    Case,
    Execution,
    MeasuredMemory,
    MemoryLine,
    MemoryParts,
    OperatorKind,
    Precision,
    StepMemory,
    TaskKind,
    Trainable,
    WeightType,
    WorkloadProfile,
)
from gpubench.profile.allowance import (
    BLAS_BYTES,
    TRACE_SHARE,
    ClassAllowance,
    device_bytes,
    load_allowance,
)
from gpubench.units import GIB, MIB

GATHERED_BLOCKS = 3.0
"""The block at work, the next one, and the buffer in which the next one arrived."""


BEYOND_FACTOR = 2.0
"""Upper end over the figure at a batch beyond all that were traced of a step that is not on lines."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU at the peak of a step [B].

    Attributes:
        apart: Of the reserved memory alone: what is alive at another moment, and comes from its own pool
            that nothing else may use meanwhile.
        pinned: Of the reserved memory alone, and not of its lower end: what a CUDA graph finds held and of
            no use to it.
        least, most: Shares of the total between which it lies by what it was told from: 1 if that was a
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
    """Memory of a GPU that holds all weights.

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
    """Memory of one of several GPUs that shard weights, gradients and optimizer states.

    Args:
        step: Traced in the type in which the weights are gathered.
        profile: Of the workload, for its blocks.
        case: Batch on each GPU, and how many there are.
        stored: Size of a share's element over that of a gathered weight: 2 where shares are float32, and
            weights are gathered in bfloat16 (MixedPrecisionPolicy).
        kept: As ``held_by_one`` takes it; each micro-batch reduces its own gradients.
    """
    count = case.gpu_count
    blocks = profile.blocks or BlockSizes(  # a model without blocks is gathered at once
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
    """Memory of a loop that frees the outputs; the upper end is that of a loop that keeps them."""
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


WORKSPACE_BYTES = 256 * MIB
"""Scratch space of cuDNN and cuBLAS, which torch's allocator hands out beside the tensors."""
COMMUNICATION_HIGH_BYTES = 1 * GIB
"""Upper end for the communication library: no separate reading of it has been published."""
LEAST_CONTEXT_SHARE = 0.5
"""Of the usual overhead: an H100 had 767 MiB in use beside what torch held, where 1,300 are usual."""
OTHER_CARD_BYTES = 256 * MIB
"""By which context and driver may differ between two cards of one class: half of what two classes do."""
ALGORITHM_SHARE = 1.25
"""Of what the widest convolution reads and writes: what cuDNN's fastest algorithm may take in strict float32,
where no tensor core is used. Above what an H100 read: 1.10 for VGG16, 0.94 for its transfer, beyond what the
same steps took at TF32."""
LIKELY_ALGORITHM_SHARE = 1.0
"""The same, as the two readings have it on average."""
FIXED_BYTES = 128 * MIB
"""Likely reserved memory of a training step beside its tensors, however small: scratch space of cuDNN (55 to
103 MiB for a recurrent layer, and for a convolution in strict fp32) and segments of 2 and 20 MiB that are in
part empty (47 to 140 MiB). Fitted on what an H100 read; a test fits it again, and with each model left out.
On the device it is in the overhead that was read."""
LEAST_KEPT = 1.04
"""Of a step that keeps its outputs over one that lets them go, for its compiled loss to be told: scores in
bfloat16 are 4.2 % of the steps that were read so (2.1 of 50.3 GB, 8,192 tokens, a vocabulary of 128,256)."""
_CONVOLUTIONS = frozenset({OperatorKind.CONV3X3, OperatorKind.CONV})


class Scratch(NamedTuple):
    """Memory besides the tensors, independent of the factor [B].

    Attributes:
        blas: By cuBLAS.
        algorithm: At the most by cuDNN, for a convolution.
        fixed: Of the likely reserved memory alone: the upper end has a workspace for it.
    """

    blas: float = 0.0
    algorithm: float = 0.0
    fixed: float = 0.0

    @property
    def likely(self) -> float:
        """In the likely figures."""
        return self.blas + self.algorithm * LIKELY_ALGORITHM_SHARE / ALGORITHM_SHARE

    @property
    def most(self) -> float:
        """In the upper ends."""
        return self.blas + self.algorithm


def scratch_of(profile: WorkloadProfile, case: Case, card_class: CardClass) -> Scratch:
    """Memory besides the tensors of a case; no fixed part was read in inference."""
    return Scratch(
        blas=blas_bytes(profile, case, card_class),
        algorithm=algorithm_bytes(profile, case, card_class),
        fixed=FIXED_BYTES if case.task is TaskKind.TRAIN else 0.0,
    )


def blas_bytes(profile: WorkloadProfile, case: Case, card_class: CardClass) -> float:
    """Workspace that torch keeps for cuBLAS: the backward pass has its own thread."""
    multiplies = any(op.kind is OperatorKind.MATMUL for op in profile.operators_of(case.task))
    threads = 2 if case.task is TaskKind.TRAIN else 1
    return threads * BLAS_BYTES[card_class] if multiplies else 0.0


def algorithm_bytes(profile: WorkloadProfile, case: Case, card_class: CardClass) -> float:
    """Workspace that cuDNN may take for the widest convolution in strict float32 [B].

    ``cudnn.benchmark`` takes the fastest algorithm for which there is memory. If there is less, it should
    take another; an H100 whose allocator was held to less ended with an error of cuDNN. No more than the
    workspace is in the upper end already.
    """
    if case.precision is not Precision.FP32 or card_class is CardClass.OTHER:
        return 0.0
    operators = profile.operators_of(case.task)
    widest = max((op.bytes_per_sample for op in operators if op.kind in _CONVOLUTIONS), default=0.0)
    more = ALGORITHM_SHARE * case.batch_size * widest
    return more if more > WORKSPACE_BYTES else 0.0


def compiled_loss_of(
    profile: WorkloadProfile, case: Case, step: StepMemory | None, traced_bytes: float, reserved: Interval
) -> Interval | None:
    """Memory that torch's allocator holds if a loop also compiles its loss, unlike gpubench [B].

    Args:
        profile: Of the workload.
        case: As it is compiled, its batch that of one micro-batch.
        step: As traced eagerly; None if it was not.
        traced_bytes: What one GPU holds of it.
        reserved: Of the compiled model with an eager loss: no upper end is above its own.

    Returns:
        None if no reading speaks of such a step: they are of decoders, trained whole in half precision,
        whose scores over a large vocabulary lie beside the loss.
    """
    fitted = load_allowance().compiled_loss
    if fitted is None or step is None or step.keeping is None or case.execution is not Execution.COMPILE:
        return None
    is_decoder = profile.tokens_per_sample is not None and profile.blocks is not None
    in_half = case.precision.is_amp or case.weight_type is not WeightType.FLOAT32
    is_whole = case.task is TaskKind.TRAIN and case.trainable is Trainable.FULL
    batch = case.batch_size
    kept = step.keeping.peak(batch).at(batch) / step.peak(batch).at(batch)
    if not (is_decoder and in_half and is_whole and kept >= LEAST_KEPT):
        return None
    return fitted.of(traced_bytes).each(lambda end: min(end, reserved.high or end))


class Figures(NamedTuple):
    """Allocated by tensors, reserved by torch's allocator, and in use on the device [B]."""

    allocated: Interval
    reserved: Interval
    device: Interval


def measured_figures(
    allowance: ClassAllowance,
    there: ClassAllowance | None,
    measured: MeasuredMemory,
    pinned_bytes: float,
) -> Figures:
    """What was read stands as it is; what was not is what the allocator and the driver add to it.

    That differs little within one model. A context read on another class of card is exchanged for one of
    this. What was read above what the allocator usually adds is cache, which it hands back where another card
    has less: it is no need of the step.
    What a graph finds pinned is in what was read of a graph, and in nothing that was read of an eager step.
    """
    spread = math.exp(allowance.half_width_within)
    peak = measured.allocated_bytes
    usual = allowance.factor * peak
    held, low, high = usual, peak, usual * spread
    if measured.reserved_bytes is not None:
        in_it, pinned_bytes = (pinned_bytes, 0.0) if measured.in_graph else (0.0, pinned_bytes)
        held = low = high = min(measured.reserved_bytes, usual * spread + in_it)
    reserved = Interval(held + pinned_bytes, low, high + pinned_bytes)
    overhead = allowance.overhead_bytes
    most = (overhead + held) * spread
    device = Interval(overhead + held + pinned_bytes, overhead / spread + low, most + pinned_bytes)
    if measured.device_bytes is not None and there is not None:
        used = min(max(low, measured.device_bytes + overhead - there.overhead_bytes), most)
        moved = abs(overhead - there.overhead_bytes) / 2
        moved += 0.0 if measured.same_card else OTHER_CARD_BYTES
        device = Interval(used + pinned_bytes, max(low, used - moved), used + moved + pinned_bytes)
    return Figures(Interval(peak, peak, peak), reserved, device)


def estimated(allowance: ClassAllowance, held: Held, gpu_count: int, scratch: Scratch) -> Figures:
    """The share of the factor that is scratch space, and so allocated, is unknown: it is in the upper end.

    What torch keeps for cuBLAS is known, and fixed; on the device it is in the overhead that was read, as are
    scratch space and segments of a small step. What a graph finds pinned is likely, and in no lower end.
    In a small step scratch space is more than the factor says, and it is so on the device too. A device never
    holds less than its tensors, however wide the interval of its class; a context may be half of the usual.
    """
    spread = math.exp(allowance.half_width)
    least, most = held.least, held.most
    peak, reserved = held.total, held.total + held.apart
    joined = COMMUNICATION_HIGH_BYTES if gpu_count > 1 else 0.0

    def upper(held_bytes: float) -> float:
        return max(most * allowance.factor * spread * held_bytes, most * held_bytes + WORKSPACE_BYTES)

    low = least * (1 - TRACE_SHARE) * peak
    device_low = min(
        device_bytes(allowance, least * reserved) / spread,
        LEAST_CONTEXT_SHARE * allowance.overhead_bytes + least * reserved,
    )
    device_high = device_bytes(allowance, most * reserved) * spread
    return Figures(
        Interval(peak + scratch.likely, low, upper(peak) + scratch.algorithm),
        Interval(
            allowance.factor * reserved + scratch.likely + scratch.fixed + held.pinned,
            low,
            upper(reserved) + scratch.most + held.pinned,
        ),
        Interval(
            device_bytes(allowance, reserved) + scratch.likely - scratch.blas + held.pinned,
            max(low, device_low),
            max(device_high, allowance.overhead_bytes + upper(reserved))
            + scratch.algorithm
            + held.pinned
            + joined,
        ),
    )


def parts_of(held: Held, figures: Figures, scratch: Scratch) -> MemoryParts:
    """Split the likely figure; a measured peak that differs from the trace shows in the transients."""
    allocated, device, high = figures.allocated.value, figures.device.value, figures.device.high
    assert allocated is not None
    assert device is not None
    assert high is not None
    activations = max(0.0, allocated - scratch.likely - held.weights - held.optimizer - held.gradients)
    saved = min(held.saved, activations)
    return MemoryParts(
        weights_bytes=held.weights,
        gradients_bytes=held.gradients,
        optimizer_bytes=held.optimizer,
        saved_bytes=saved,
        transient_bytes=activations - saved,
        workspace_bytes=device - held.weights - held.optimizer - held.gradients - activations,
        margin_bytes=high - device,
    )
