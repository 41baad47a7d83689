"""Estimate the memory of a step on one GPU in three separate figures, each with its interval.

FSDP works by blocks, as in torch's ``fully_shard``: weights, gradients and optimizer state are sharded
evenly; blocks are gathered one after the other, the next one while the current one computes; gradients are
reduced block by block. Weights outside the blocks (embedding, head) are gathered once and stay for the whole
step.
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
"""The current block, the next one, and the receive buffer of the next one."""


BEYOND_FACTOR = 2.0
"""Ratio of upper end to figure above the largest traced batch, if the memory does not grow along lines."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU at the peak of a step [B].

    Attributes:
        separate: Only in reserved memory: bytes that are alive at another moment, in a pool that nothing else
            can use in the meantime.
        pinned: Only in reserved memory, except its lower end: memory in use when a CUDA graph is captured,
            which the graph cannot use.
        least, most: Lower and upper end as multiples of the total: 1 if this batch was traced, or is on lines
            through others. The loop that gpubench measures frees the outputs of the model before the backward
            pass; ``most`` also covers a loop that keeps them, ``least`` the loop that takes the least memory.
    """

    weights: float
    gradients: float
    optimizer: float
    saved: float
    transient: float
    separate: float = 0.0
    pinned: float = 0.0
    least: float = 1.0
    most: float = 1.0

    @property
    def total(self) -> float:
        """All memory allocated at the peak."""
        return self.weights + self.gradients + self.optimizer + self.saved + self.transient

    def scaled(self, scale: float) -> Held:
        """Return the same with every amount of memory multiplied by a factor."""
        if scale == 1.0:
            return self
        parts = (name for name in self.__struct_fields__ if name not in {"least", "most"})
        return msgspec.structs.replace(self, **{name: scale * getattr(self, name) for name in parts})


def held_by_one(step: StepMemory, batch_size: int, *, buckets: bool, kept: bool = False) -> Held:
    """Return the peak memory of a GPU that holds all weights.

    Args:
        step: The traced step.
        batch_size: Samples on this GPU.
        buckets: Whether gradients are summed with those of other GPUs: torch's DistributedDataParallel holds
            a second copy of them, in buckets.
        kept: Whether all gradients are alive through the whole step, because those of several micro-batches
            are summed.
    """

    def held_in(loop: StepMemory) -> Held:
        line = loop.peak(batch_size, gradients=0.0 if kept else 1.0)
        held = _held(loop, line, batch_size)
        return msgspec.structs.replace(
            held, gradients=(loop.trained_bytes if kept else held.gradients) + buckets * loop.trained_bytes
        )

    return _in_every_loop(step, held_in)


def on_several(
    step: StepMemory, profile: WorkloadProfile, case: Case, *, stored: float = 1.0, kept: bool = False
) -> Held:
    """Return the peak memory of one of several GPUs that shard weights, gradients and optimizer states.

    Args:
        step: The step, traced with weights of the gathered type.
        profile: Profile of the workload, for its blocks.
        case: Batch on each GPU, and number of GPUs.
        stored: Ratio of element sizes, shard to gathered weight: 2 if shards are float32 and weights are
            gathered in bfloat16 (MixedPrecisionPolicy).
        kept: As in ``held_by_one``; each micro-batch reduces and shards its gradients.
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

    def held_in(loop: StepMemory) -> Held:
        line = loop.peak(case.batch_size, gradients=0.0 if kept else stored / count)
        held = _held(loop, line, case.batch_size)
        sharded = (step.trained_bytes if kept else held.gradients) * stored / count
        return Held(
            weights=step.weights_bytes * stored / count,
            gradients=sharded + min(held.gradients, trained_share * outside) + reduced,
            optimizer=step.optimizer_bytes * stored / count,
            saved=held.saved,
            transient=held.transient + gathered,
            separate=step.trained_bytes * stored / count - sharded,
            most=held.most,
        )

    return _in_every_loop(step, held_in)


def _in_every_loop(step: StepMemory, held_in: Callable[[StepMemory], Held]) -> Held:
    """Return the memory of a loop that frees the outputs, with the ends of loops that take more or less."""
    held = held_in(step)
    if step.least is not None:
        held = msgspec.structs.replace(held, least=held_in(step.least).total / held.total)
    if step.keeping is None:
        return held
    kept = held_in(step.keeping)
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
"""Scratch space of cuDNN and cuBLAS, which torch's allocator provides in addition to the tensors."""
COMMUNICATION_HIGH_BYTES = 1 * GIB
"""Assumed upper end for the communication library; no separate reading of it has been published."""
LEAST_CONTEXT_SHARE = 0.5
"""Smallest share of the usual overhead: on an H100, 767 MiB were in use outside torch instead of 1,300."""
OTHER_CARD_BYTES = 256 * MIB
"""Difference in context and driver between two cards of one class: half that between two classes."""
ALGORITHM_SHARE = 1.25
"""Upper limit of the memory of cuDNN's fastest algorithm in strict float32, without tensor cores, as a share
of the traffic of the widest convolution. It is above the measurements on an H100, taken as the excess over
the same steps at TF32: 1.10 for vgg16, 0.94 for vgg16_transfer."""
LIKELY_ALGORITHM_SHARE = 1.0
"""The average of the two measurements, rounded."""
FIXED_BYTES = 128 * MIB
"""Likely reserved memory of any training step in addition to its tensors, even a small one: scratch space of
cuDNN (55 to 103 MiB for a recurrent layer, and for a convolution in strict fp32) and partly empty segments of
2 and 20 MiB (47 to 140 MiB). It is fitted to measurements on an H100; a test repeats the fit, also with each
model left out. In the memory in use, the fitted overhead includes it."""
LEAST_KEPT = 1.04
"""Smallest ratio of a step's memory with its outputs kept to that with them freed, for an estimate with a
compiled loss: scores in bfloat16 are 4.2 % of the measured steps (2.1 of 50.3 GB, 8,192 tokens, vocabulary
128,256)."""
_CONVOLUTIONS = frozenset({OperatorKind.CONV3X3, OperatorKind.CONV})


class Scratch(NamedTuple):
    """Memory in addition to the tensors, independent of the allowance's factor [B].

    Attributes:
        blas: Used by cuBLAS.
        algorithm: Upper limit for cuDNN's algorithm for a convolution.
        fixed: Only in the likely reserved memory: the upper end has a workspace for it.
    """

    blas: float = 0.0
    algorithm: float = 0.0
    fixed: float = 0.0

    @property
    def likely(self) -> float:
        """The part that the likely figures include."""
        return self.blas + self.algorithm * LIKELY_ALGORITHM_SHARE / ALGORITHM_SHARE


def scratch_of(profile: WorkloadProfile, case: Case, card_class: CardClass) -> Scratch:
    """Return the memory in addition to the tensors of a case; inference showed no fixed part."""
    return Scratch(
        blas=blas_bytes(profile, case, card_class),
        algorithm=algorithm_bytes(profile, case, card_class),
        fixed=FIXED_BYTES if case.task is TaskKind.TRAIN else 0.0,
    )


def blas_bytes(profile: WorkloadProfile, case: Case, card_class: CardClass) -> float:
    """Return torch's workspaces for cuBLAS [B]: one per thread; a backward pass runs in a second thread."""
    multiplies = any(op.kind is OperatorKind.MATMUL for op in profile.operators_of(case.task))
    threads = 2 if case.task is TaskKind.TRAIN else 1
    return threads * BLAS_BYTES[card_class] if multiplies else 0.0


def algorithm_bytes(profile: WorkloadProfile, case: Case, card_class: CardClass) -> float:
    """Return the workspace that cuDNN may take for the widest convolution in strict float32 [B].

    ``cudnn.benchmark`` chooses the fastest algorithm for which there is memory. With less memory it should
    choose another; on an H100 with a limited allocator, cuDNN failed instead. A workspace of up to
    ``WORKSPACE_BYTES`` counts as 0, because every upper end already includes that much.
    """
    if case.precision is not Precision.FP32 or card_class is CardClass.OTHER:
        return 0.0
    operators = profile.operators_of(case.task)
    widest = max((op.bytes_per_sample for op in operators if op.kind in _CONVOLUTIONS), default=0.0)
    workspace = ALGORITHM_SHARE * case.batch_size * widest
    return workspace if workspace > WORKSPACE_BYTES else 0.0


def compiled_loss_of(
    profile: WorkloadProfile, case: Case, step: StepMemory | None, traced_bytes: float, reserved: Interval
) -> Interval | None:
    """Return what torch's allocator holds if a loop also compiles its loss, unlike gpubench [B].

    Args:
        profile: Profile of the workload.
        case: The compiled case, with the batch of one micro-batch.
        step: The step as traced eagerly; None if it was not traced.
        traced_bytes: The traced memory of the step on one GPU.
        reserved: Reserved memory of the compiled model with an eager loss; the result never exceeds its upper
            end.

    Returns:
        The reserved memory; None if no measurement covers this step: only decoders were measured, fully
        trained in half precision, with scores over a large vocabulary.
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
    """Memory allocated by tensors, reserved by torch's allocator, and in use on the device [B]."""

    allocated: Interval
    reserved: Interval
    device: Interval


def measured_figures(
    allowance: ClassAllowance,
    there: ClassAllowance | None,
    measured: MeasuredMemory,
    pinned_bytes: float,
) -> Figures:
    """Return the measured figures, and estimate those not measured from what allocator and driver add.

    These additions differ little within one model. A context measured on another class of card is replaced by
    one of this class. Reserved memory above the usual addition of the allocator is cache, which the step does
    not need: the allocator returns it on a card with less memory. A measurement of a graph includes its
    pinned memory; one of an eager step does not.

    Args:
        allowance: For the class of card to estimate.
        there: The same for the class of the measured card; None if that is unknown.
        measured: The measured figures.
        pinned_bytes: Memory that is pinned if the step runs in a CUDA graph.
    """
    spread = math.exp(allowance.half_width_within)
    peak = measured.allocated_bytes
    usual = allowance.factor * peak
    held, low, high = usual, peak, usual * spread
    if measured.reserved_bytes is not None:
        included, pinned_bytes = (pinned_bytes, 0.0) if measured.in_graph else (0.0, pinned_bytes)
        held = low = high = min(measured.reserved_bytes, usual * spread + included)
    reserved = Interval(held + pinned_bytes, low, high + pinned_bytes)
    overhead = allowance.overhead_bytes
    most = (overhead + held) * spread
    device = Interval(overhead + held + pinned_bytes, overhead / spread + low, most + pinned_bytes)
    if measured.device_bytes is not None and there is not None:
        used = min(max(low, measured.device_bytes + overhead - there.overhead_bytes), most)
        error = abs(overhead - there.overhead_bytes) / 2 + (0 if measured.same_card else OTHER_CARD_BYTES)
        device = Interval(used + pinned_bytes, max(low, used - error), used + error + pinned_bytes)
    return Figures(Interval(peak, peak, peak), reserved, device)


def estimated(allowance: ClassAllowance, held: Held, gpu_count: int, scratch: Scratch) -> Figures:
    """Estimate the three figures from the tensors at the peak.

    Part of the allowance's factor is scratch space, which counts as allocated. Its size is unknown, so only
    the upper end includes it. In a small step, scratch space exceeds its share of the factor, so every upper
    end adds at least ``WORKSPACE_BYTES``. Torch's workspaces for cuBLAS have a known, fixed size. In the
    memory in use, the fitted overhead includes them, as well as the scratch space and segments of a small
    step. Memory that is pinned in a graph is in the likely figure, but never in the lower end. The lower end
    of the memory in use allows for a context of half the usual size, but is never below that of the tensors.
    """
    spread = math.exp(allowance.half_width)
    least, most = held.least, held.most
    peak, reserved = held.total, held.total + held.separate
    communication = COMMUNICATION_HIGH_BYTES if gpu_count > 1 else 0.0

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
            upper(reserved) + (scratch.blas + scratch.algorithm) + held.pinned,
        ),
        Interval(
            device_bytes(allowance, reserved) + scratch.likely - scratch.blas + held.pinned,
            max(low, device_low),
            max(device_high, allowance.overhead_bytes + upper(reserved))
            + scratch.algorithm
            + held.pinned
            + communication,
        ),
    )


def parts_of(held: Held, figures: Figures, scratch: Scratch) -> MemoryParts:
    """Split the likely figure; the transients include any difference of a measured peak from the trace."""
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
