"""The profile of a workload: what one step computes and moves."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.models.case import Case, MemoryFormat, Recipe
from gpubench.models.record import Record
from gpubench.precisions import AMP, Precision
from gpubench.recipes import Checkpointing, ParallelMode, TaskKind, Trainable

# Shape of a photograph after the input pipeline.
_PHOTOGRAPH_SHAPE = (3, 224, 224)


class OperatorKind(StrEnum):
    """The kinds of operator that the roofline distinguishes."""

    CONV3X3 = "conv3x3"
    CONV = "conv"
    DEPTHWISE = "depthwise"
    MATMUL = "matmul"
    MEMORY = "memory"
    OPTIMIZER = "optimizer"


CONVOLUTIONS = frozenset({OperatorKind.CONV3X3, OperatorKind.CONV, OperatorKind.DEPTHWISE})


class Operator(Record, frozen=True, kw_only=True):
    """``count`` identical kernels of one step. FLOPs and bytes are per kernel, at 4 bytes per element."""

    kind: OperatorKind
    count: int
    flops_per_sample: float = 0.0
    bytes_per_sample: float = 0.0
    flops_fixed: float = 0.0
    bytes_fixed: float = 0.0


class MemoryLine(Record, frozen=True, kw_only=True):
    """Bytes alive at one moment of a step: a constant part and a part per sample.

    Attributes:
        gradient_bytes: Weight gradients among the fixed bytes.
    """

    fixed_bytes: float
    bytes_per_sample: float
    gradient_bytes: float = 0.0

    def at(self, batch_size: int) -> float:
        """Return the bytes alive at this batch size."""
        return self.fixed_bytes + batch_size * self.bytes_per_sample


class MemoryPoint(Record, frozen=True, kw_only=True):
    """The memory alive in a step at one separately traced batch size.

    Attributes:
        moments: Candidates for the peak, whatever share of the gradients is held. Their bytes are all fixed,
            because the batch is.
        saved_bytes: Memory left alive by the forward pass and the loss.
    """

    batch_size: int
    moments: tuple[MemoryLine, ...]
    saved_bytes: float


# A growth exponent that falls by at most this much between pairs of points counts as constant.
_EXPONENT_TOLERANCE = 0.01


class StepMemory(Record, frozen=True, kw_only=True):
    """Traced peak memory of one step as a function of the batch size: the maximum of its lines.

    The peak is not linear if samples interact or a large batch takes another code path. ``points`` were then
    traced, and a value between two of them is taken from the line that joins them in log-log space (their
    chord), which is above every sum of powers of the batch size.

    Attributes:
        is_amp: Whether it ran under autocast of either type. fp32 and tf32 need the same memory.
        lines: Sorted by bytes per sample; fitted to two small batches.
        weights_bytes: Parameters and buffers, included in every line.
        trained_bytes: Weights that are trained, even if this step is a forward pass.
        optimizer_bytes: Optimizer state, included in every line.
        saved: Other memory left alive by the forward pass and the loss, including the prebuilt batches.
        recipe: Weight type, checkpointing and similar settings of the traced case.
        points: Sorted by batch; the lines are valid up to the first. Empty if they are valid for all batches.
        largest_traced: The batch up to which the lines are known to be valid, if no larger batch could be
            traced; None if a large one was.
        keeping: The same step in a loop that keeps a reference to the model's outputs until the step ends, as
            most loops do; None if that takes no more memory.
        least: The same step in the loop that takes the least memory; None if that is this one.
    """

    task: TaskKind
    is_amp: bool
    lines: tuple[MemoryLine, ...]
    weights_bytes: float = 0.0
    trained_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    saved: MemoryLine | None = None
    recipe: Recipe = Recipe()
    points: tuple[MemoryPoint, ...] = ()
    largest_traced: int | None = None
    keeping: StepMemory | None = None
    least: StepMemory | None = None

    def peak(self, batch_size: int, gradients: float = 1.0) -> MemoryLine:
        """Return the moment of peak memory at this batch size.

        Args:
            batch_size: Samples.
            gradients: Share of the gradients held, below 1 if they are sharded.
        """

        def highest(moments: Iterable[MemoryLine]) -> MemoryLine:
            return max(moments, key=lambda line: line.at(batch_size) - (1 - gradients) * line.gradient_bytes)

        if self.is_on_lines(batch_size):
            return highest(self.lines)
        place = self._place(batch_size)
        low, high = (highest(self.points[at].moments) for at in (place, place + 1))
        return MemoryLine(
            fixed_bytes=self._chord(place, batch_size, low.fixed_bytes, high.fixed_bytes),
            bytes_per_sample=0.0,
            gradient_bytes=min(low.gradient_bytes, high.gradient_bytes),
        )

    def saved_at(self, batch_size: int) -> float:
        """Return the memory left alive by forward pass and loss at this batch size [B]; 0 if unknown."""
        if self.is_on_lines(batch_size):
            return self.saved.at(batch_size) if self.saved is not None else 0.0
        place = self._place(batch_size)
        low, high = (self.points[at].saved_bytes for at in (place, place + 1))
        return self._chord(place, batch_size, low, high)

    def changed(self, change: Callable[[MemoryLine], MemoryLine], **fields: Any) -> StepMemory:
        """Return the step with a function applied to each of its moments, and other fields replaced."""
        points = tuple(
            msgspec.structs.replace(point, moments=tuple(map(change, point.moments))) for point in self.points
        )
        keeping = self.keeping and self.keeping.changed(change, **fields)
        lines = tuple(map(change, self.lines))
        return msgspec.structs.replace(self, lines=lines, points=points, keeping=keeping, **fields)

    def is_on_lines(self, batch_size: int) -> bool:
        """Whether the lines are valid at this batch size."""
        return not self.points or batch_size <= self.points[0].batch_size

    def is_traced_at(self, batch_size: int) -> bool:
        """Whether this batch size is in the traced range."""
        if self.points:
            return batch_size <= self.points[-1].batch_size
        return self.largest_traced is None or batch_size <= self.largest_traced

    def around(self, batch_size: int) -> tuple[int, int]:
        """Return the traced batch sizes below and above one that is beyond the lines."""
        place = self._place(batch_size)
        return self.points[place].batch_size, self.points[place + 1].batch_size

    def bound(self, batch_size: int) -> float:
        """Return an upper bound on the ratio of actual to estimated memory at this batch size.

        It is 1 if the estimate is certain: on the lines, at a traced batch, and between points where memory
        grows more and more steeply, so no sum of powers is above the chord. It is also 1 beyond the traced
        range, where no bound is known. Otherwise it is the larger peak of the two traced batches around this
        one, divided by the estimate.
        """
        if self.is_on_lines(batch_size) or not self.is_traced_at(batch_size):
            return 1.0
        place = self._place(batch_size)
        peaks = [max(moment.fixed_bytes for moment in point.moments) for point in self.points]
        if batch_size == self.points[place + 1].batch_size or self._only_steepens(peaks, place):
            return 1.0
        return max(1.0, max(peaks[place : place + 2]) / self.peak(batch_size).fixed_bytes)

    def _place(self, batch_size: int) -> int:
        # Return the index of the point below a batch; beyond the last point, the second to last.
        batches = [point.batch_size for point in self.points]
        return min(bisect.bisect_left(batches, batch_size), len(batches) - 1) - 1

    def _chord(self, place: int, batch_size: int, low: float, high: float) -> float:
        one, two = self.points[place].batch_size, self.points[place + 1].batch_size
        share = math.log(batch_size / one) / math.log(two / one)
        if share > 1:
            high = max(low, high)  # beyond the last point the exponent is assumed not to fall
        return low ** (1 - share) * high**share if low > 0 else share * high

    def _only_steepens(self, peaks: Sequence[float], place: int) -> bool:
        # Whether the growth exponent never falls from the pair of points before this one to the pair after.
        around = range(max(0, place - 1), min(len(peaks), place + 3))
        exponents = [
            math.log(peaks[b] / peaks[a]) / math.log(self.points[b].batch_size / self.points[a].batch_size)
            for a, b in pairwise(around)
        ]
        return all(one <= two + _EXPONENT_TOLERANCE for one, two in pairwise(exponents))


class BlockSizes(Record, frozen=True, kw_only=True):
    """The repeated blocks of a model, which FSDP gathers one at a time, and the parameters outside them.

    Attributes:
        largest_parameters: Parameters of the largest block.
        outside_parameters: All other parameters: embedding, last norm, head.
    """

    count: int
    largest_parameters: int
    outside_parameters: int


class DecodeWork(Record, frozen=True, kw_only=True):
    """Memory traffic and arithmetic of generating one token for each sequence of a batch.

    Attributes:
        weight_bytes: Weights read once per batch [B].
        cache_bytes_per_token: Keys and values of one token of one sequence [B].
        flops_per_token: Matrix products for one token of one sequence, without attention [FLOP].
    """

    weight_bytes: float
    cache_bytes_per_token: float
    flops_per_token: float


CheckpointingFrom = tuple[tuple[int, Checkpointing], ...]
"""The checkpointing of a job by its minimum number of GPUs, in ascending order."""


def checkpointing_over(by_gpu_count: CheckpointingFrom, gpu_count: int) -> Checkpointing | None:
    """Return the checkpointing of a job on this many GPUs; None to keep the recipe's."""
    reached = [how for fewest, how in by_gpu_count if gpu_count >= fewest]
    return reached[-1] if reached else None


class WorkloadProfile(Record, frozen=True, kw_only=True):
    """What one step of a workload computes and moves, traced on the meta device without a GPU or weights.

    Attributes:
        forward_flops_per_sample: Forward pass alone [FLOP], 2 per multiply-add.
        train_flops_per_sample: Forward and both backward products [FLOP]: the model's own arithmetic. Frozen
            weights have no gradient product; recomputation is only in ``train``.
        saved_bytes_per_sample: Activations saved for the backward pass, at fp32 [B].
        saved_bytes_per_pair: Their growth with the square of the batch size; set only if ``memory`` is empty
            [B].
        batches: Default batches: small, main, large.
        train, infer: Operators of one training step and one forward pass.
        summary: What the model is, in a few words.
        tasks: The tasks that can be measured; an input pipeline only runs forward.
        memory: Peak memory of each task, with and without autocast; empty if it could not be traced.
        memory_untraced: Why memory could not be traced; if ``memory`` has training, why inference could not.
        blocks: The repeated blocks; None if there are none.
        recipe: The recipe of the profiled step.
        settings: The recipe fields that a user may change.
        precisions: Precisions measured by default; empty for those of the device.
        also_at: Further precisions available on request.
        checkpointing_from: Default checkpointing by the minimum number of GPUs of a job; empty to use the
            recipe for any number.
        parallel_mode: How the GPUs of one job share the work by default.
        is_classic: Whether "all" includes this workload.
        is_run: Whether it can be built and measured; otherwise only memory and ranking support it.
        is_by_shape: Whether the profile was derived from the shape of a language model, not from a trace.
        tokens_per_sample: Tokens of one sample; None if the input is not tokens.
        decode: The work of each generated token; None if nothing is generated.
        is_contiguous_only: Whether a step fails with channels_last images.
        is_eager_only: Whether each step reads tensor values on the host, which is impossible in a CUDA graph.
        is_eager_in_inference: Whether only inference reads them.
        why_no_amp: Why a training step fails under autocast on a GPU; None if it does not.
        variants: Profiles of the same workload with other recipes.
    """

    name: str
    version: int
    summary: str = ""
    sample_unit: str
    sample_shape: tuple[int, ...]
    is_image: bool
    source: str
    optimizer: str
    parameters: int
    trainable_parameters: int
    batches: tuple[int, ...]
    forward_flops_per_sample: float
    train_flops_per_sample: float
    saved_bytes_per_sample: float
    optimizer_bytes_per_parameter: float
    train: tuple[Operator, ...]
    infer: tuple[Operator, ...]
    tasks: tuple[TaskKind, ...] = (TaskKind.TRAIN, TaskKind.INFER)
    memory: tuple[StepMemory, ...] = ()
    memory_untraced: str | None = None
    blocks: BlockSizes | None = None
    recipe: Recipe = Recipe()
    settings: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    also_at: tuple[str, ...] = ()
    checkpointing_from: CheckpointingFrom = ()
    parallel_mode: ParallelMode = ParallelMode.DDP
    is_classic: bool = True
    is_run: bool = True
    is_by_shape: bool = False
    tokens_per_sample: int | None = None
    decode: DecodeWork | None = None
    saved_bytes_per_pair: float = 0.0
    is_contiguous_only: bool = False
    is_eager_only: bool = False
    is_eager_in_inference: bool = False
    why_no_amp: str | None = None
    variants: tuple[WorkloadProfile, ...] = ()

    def shared_by(self, case: Case, gpu_count: int, mode: ParallelMode) -> Case:
        """Return the case on this many GPUs, with the same batch per GPU and the checkpointing for them."""
        how = checkpointing_over(self.checkpointing_from, gpu_count) or case.checkpointing
        return msgspec.structs.replace(case, gpu_count=gpu_count, parallel_mode=mode, checkpointing=how)

    def at(self, recipe: Recipe) -> WorkloadProfile | None:
        """Return the profile with this recipe; None if it was not traced."""
        if recipe == self.recipe:
            return self
        found = next((variant for variant in self.variants if variant.recipe == recipe), None)
        if found is None:
            return None
        rest = tuple(
            v for v in (msgspec.structs.replace(self, variants=()), *self.variants) if v is not found
        )
        return msgspec.structs.replace(found, variants=rest)

    def at_precision(self, precision: Precision) -> WorkloadProfile:
        """Return the profile with the weight type of the precision if it was traced; otherwise this one."""
        return self.at(self.recipe.at(precision)) or self

    def task_for(self, asked: str) -> TaskKind:
        """Return the requested task, or the only task of a workload that has settings and is never trained.

        Training is the default, so a request for it is never refused here.

        Raises:
            MisuseError: If inference is requested and the workload is only trained.
        """
        task = TaskKind(asked)
        if task is TaskKind.INFER and task not in self.tasks:
            serving = "; llama_8b (Llama 3 8B) supports it" if self.tokens_per_sample else ""
            raise MisuseError(f"inference of {self.name} is not modeled: leave out --task infer{serving}")
        return task if task in self.tasks or not self.settings else self.tasks[0]

    @property
    def offered(self) -> tuple[str, ...]:
        """All precisions that the workload supports; empty if it supports every precision."""
        return (*self.precisions, *self.also_at)

    def why_not_at(self, precision: Precision) -> str | None:
        """Return why the workload does not support a precision; None if it does."""
        offered, facts = self.offered, precision.facts
        if facts.in_blocks and self.blocks is None:
            return f"{precision} applies to the linear layers in repeated blocks, and {self.name} has none"
        if facts.in_blocks and self.recipe.trainable is Trainable.QLORA:
            return f"{precision} needs weights in bfloat16, and those of {self.name} have 4 bits"
        if not offered or {precision, facts.comes_with} & {*offered} or (precision.is_amp and AMP in offered):
            return None
        return f"{self.name} supports {' and '.join(offered)}, not {precision}"

    def why_not_trained_at(self, precision: Precision) -> str | None:
        """Return why a training step fails on a GPU at a precision; None if it does not."""
        if not precision.is_amp or self.why_no_amp is None:
            return None
        return f"a training step of {self.name} fails under autocast on a GPU: {self.why_no_amp}"

    @property
    def usual_precision(self) -> Precision | None:
        """The default precision; None for mixed precision."""
        if self.why_no_amp is not None:
            return Precision.FP32
        return Precision(self.precisions[0]) if self.precisions and self.precisions[0] != AMP else None

    @property
    def hardware_flops_per_sample(self) -> float:
        """Arithmetic of a training step for one sample, including recomputation [FLOP]."""
        return sum(operator.count * operator.flops_per_sample for operator in self.train)

    def operators_of(self, task: TaskKind) -> tuple[Operator, ...]:
        """Return the operators of one step of a task."""
        return self.train if task is TaskKind.TRAIN else self.infer

    def convolves(self, task: TaskKind) -> bool:
        """Return whether a step of this task includes convolutions."""
        return any(operator.kind in CONVOLUTIONS for operator in self.operators_of(task))

    def memory_format_at(self, precision: Precision) -> MemoryFormat | None:
        """Return the faster image layout that works; None for other inputs.

        That is channels_last, except at strict fp32 and for a workload that fails with it. With
        channels_last, VGG16 on an H200 reaches 3045 images/s instead of 2086 at amp-fp16, but is 7 % slower
        at strict fp32.
        """
        if not self.is_image:
            return None
        is_contiguous = precision is Precision.FP32 or self.is_contiguous_only
        return MemoryFormat.CONTIGUOUS if is_contiguous else MemoryFormat.CHANNELS_LAST

    @property
    def takes_photographs(self) -> bool:
        """Whether a sample is a photograph that must be decoded, cropped and augmented first."""
        return self.is_image and self.sample_shape == _PHOTOGRAPH_SHAPE

    @property
    def main_batch(self) -> int:
        """The batch for headline figures: the second default, or the only one."""
        return self.batches[min(1, len(self.batches) - 1)]
