"""What one step of a workload computes and moves."""

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

PHOTOGRAPH_SHAPE = (3, 224, 224)
"""What an input pipeline makes of a photograph."""


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
    """``count`` identical kernels of one step. FLOPs and bytes are per kernel, with 4 bytes per element."""

    kind: OperatorKind
    count: int
    flops_per_sample: float = 0.0
    bytes_per_sample: float = 0.0
    flops_fixed: float = 0.0
    bytes_fixed: float = 0.0


class MemoryLine(Record, frozen=True, kw_only=True):
    """Bytes alive at one moment of a step: what is there at any batch, and what each sample adds.

    Attributes:
        gradient_bytes: Gradients of the weights among them, which do not grow with the batch.
    """

    fixed_bytes: float
    bytes_per_sample: float
    gradient_bytes: float = 0.0

    def at(self, batch_size: int) -> float:
        """Bytes at this batch size."""
        return self.fixed_bytes + batch_size * self.bytes_per_sample


class MemoryPoint(Record, frozen=True, kw_only=True):
    """What was alive in a step at one batch size, traced by itself.

    Attributes:
        moments: Of which one is the highest, whatever share of the gradients is held; none grows.
        saved_bytes: What the forward pass and the loss left alive.
    """

    batch_size: int
    moments: tuple[MemoryLine, ...]
    saved_bytes: float


# By how much an exponent may fall from one pair of points to the next and still count as not falling.
_STEEPER = 0.01


class StepMemory(Record, frozen=True, kw_only=True):
    """Peak memory of one step over the batch size, traced: the highest of its lines.

    If each sample meets each other, or where a large batch takes another course, it is not a line: then
    ``points`` were traced, and what lies between two of them is read off their chord in logarithms of
    both, which is above every sum of powers of the batch.

    Attributes:
        is_amp: Under autocast, of either type; fp32 and tf32 need the same.
        lines: By rising bytes per sample; of two small batches.
        weights_bytes: Parameters and buffers, in every line.
        trained_bytes: Of the weights, those that take a gradient; a forward pass counts them too.
        optimizer_bytes: State of the optimizer, in every line.
        saved: What the forward pass and the loss leave alive beside these, the prebuilt batches included.
        recipe: Weights, checkpointing and similar of the case that was traced.
        points: By rising batch; the lines hold up to the first. None if they hold for large batches too.
        largest_traced: The batch up to which the lines are known to hold, where no larger one could be
            traced; None if a large one was.
        keeping: The same step by a loop that has a name for the outputs of the model until its end, as most
            have; None if that takes no more.
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

    def peak(self, batch_size: int, gradients: float = 1.0) -> MemoryLine:
        """The moment of the step that needs most at this batch size.

        Args:
            batch_size: Samples.
            gradients: Share of the gradients that is held, below 1 if they are sharded.
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
        """What the forward pass and the loss leave alive at this batch size [B]; 0 if it is unknown."""
        if self.is_on_lines(batch_size):
            return self.saved.at(batch_size) if self.saved is not None else 0.0
        place = self._place(batch_size)
        low, high = (self.points[at].saved_bytes for at in (place, place + 1))
        return self._chord(place, batch_size, low, high)

    def changed(self, of: Callable[[MemoryLine], MemoryLine], **fields: Any) -> StepMemory:
        """The step with each of its moments changed, and other fields replaced."""
        points = tuple(
            msgspec.structs.replace(point, moments=tuple(map(of, point.moments))) for point in self.points
        )
        kept = self.keeping and self.keeping.changed(of, **fields)
        lines = tuple(map(of, self.lines))
        return msgspec.structs.replace(self, lines=lines, points=points, keeping=kept, **fields)

    def is_on_lines(self, batch_size: int) -> bool:
        """Whether the lines hold at this batch size."""
        return not self.points or batch_size <= self.points[0].batch_size

    def is_traced_at(self, batch_size: int) -> bool:
        """Whether this batch size lies among those that were traced."""
        if self.points:
            return batch_size <= self.points[-1].batch_size
        return self.largest_traced is None or batch_size <= self.largest_traced

    def around(self, batch_size: int) -> tuple[int, int]:
        """The traced batches between which one beyond the lines lies."""
        place = self._place(batch_size)
        return self.points[place].batch_size, self.points[place + 1].batch_size

    def bound(self, batch_size: int) -> float:
        """How many times its figure a step may take at this batch size, by what lies around it.

        1 if that is known: on the lines, at a traced batch, and where memory grows ever more steeply, so
        that no sum of powers is above the chord. Else the figure of the next larger traced batch.
        """
        if self.is_on_lines(batch_size) or not self.is_traced_at(batch_size):
            return 1.0
        place = self._place(batch_size)
        peaks = [max(moment.fixed_bytes for moment in point.moments) for point in self.points]
        if batch_size == self.points[place + 1].batch_size or self._only_steepens(peaks, place):
            return 1.0
        return max(1.0, max(peaks[place : place + 2]) / self.peak(batch_size).fixed_bytes)

    def _place(self, batch_size: int) -> int:
        """Return the index of the point below a batch; beyond the last point, the last but one."""
        batches = [point.batch_size for point in self.points]
        return min(bisect.bisect_left(batches, batch_size), len(batches) - 1) - 1

    def _chord(self, place: int, batch_size: int, low: float, high: float) -> float:
        one, two = self.points[place].batch_size, self.points[place + 1].batch_size
        share = math.log(batch_size / one) / math.log(two / one)
        if share > 1:
            high = max(low, high)  # beyond the last point nothing is taken to fall
        return low ** (1 - share) * high**share if low > 0 else share * high

    def _only_steepens(self, peaks: Sequence[float], place: int) -> bool:
        """Whether the exponents of growth rise into this pair of points, and out of it."""
        around = range(max(0, place - 1), min(len(peaks), place + 3))
        exponents = [
            math.log(peaks[b] / peaks[a]) / math.log(self.points[b].batch_size / self.points[a].batch_size)
            for a, b in pairwise(around)
        ]
        return all(one <= two + _STEEPER for one, two in pairwise(exponents))


class BlockSizes(Record, frozen=True, kw_only=True):
    """The repeated blocks of a model: what FSDP gathers, one at a time, and what lies outside of them.

    Attributes:
        largest_parameters: Of one block, the largest.
        outside_parameters: Of all else: embedding, last norm, head.
    """

    count: int
    largest_parameters: int
    outside_parameters: int


class DecodeWork(Record, frozen=True, kw_only=True):
    """What one generated token reads and computes, per forward pass over a batch of sequences.

    Attributes:
        weight_bytes: Weights read once for the whole batch [B].
        cache_bytes_per_token: Keys and values of one token of one sequence [B].
        flops_per_token: Products of one token of one sequence, without attention [FLOP].
    """

    weight_bytes: float
    cache_bytes_per_token: float
    flops_per_token: float


CheckpointingFrom = tuple[tuple[int, Checkpointing], ...]
"""Checkpointing by the fewest GPUs of a job that it is for, by rising number."""


def checkpointing_over(by_fewest: CheckpointingFrom, gpu_count: int) -> Checkpointing | None:
    """Return the checkpointing of a job of this many GPUs; None is that of the recipe for any number."""
    held = [how for fewest, how in by_fewest if gpu_count >= fewest]
    return held[-1] if held else None


def recipe_over(usual: Recipe, by_fewest: CheckpointingFrom, gpu_count: int) -> Recipe:
    """Return the recipe of a job of this many GPUs."""
    how = checkpointing_over(by_fewest, gpu_count)
    return usual if how is None else msgspec.structs.replace(usual, checkpointing=how)


class WorkloadProfile(Record, frozen=True, kw_only=True):
    """What one step of a workload computes and moves, read on the meta device; no GPU, no weights.

    Attributes:
        forward_flops_per_sample: Forward pass alone [FLOP], 2 per multiply-add.
        train_flops_per_sample: Forward and both backward products [FLOP]: the model's own arithmetic. Frozen
            weights have no gradient product; what is computed again is in ``train`` alone.
        saved_bytes_per_sample: Activations kept for the backward pass, at fp32 [B].
        saved_bytes_per_pair: Their growth with the square of the batch; set if ``memory`` is empty [B].
        batches: Default batches: small, main, large.
        train, infer: Operators of one training step and one forward pass.
        summary: What the model is, in a few words.
        tasks: What can be measured with it; an input pipeline is only ever run forward.
        memory: Peak memory of each task, with autocast and without; empty if it could not be traced.
        memory_untraced: Why it could not be.
        blocks: The repeated blocks; None if there are none.
        recipe: By which the work is done.
        settings: The fields of the recipe that may be changed.
        precisions: Those that it is measured at by default; empty is those of the device.
        also_at: Further ones that it is offered at where they are asked for.
        checkpointing_from: Checkpointing by the fewest GPUs of a job that it is for, unless told otherwise;
            empty is that of the recipe for any number.
        parallel_mode: How the GPUs of one job share it, unless told otherwise.
        is_classic: Whether it is among "all".
        is_run: Whether it can be built and measured; otherwise only memory and ranking know it.
        is_by_shape: Whether the closed form of a language model's shape gave it; otherwise it was traced.
        tokens_per_sample: Of a sample of tokens; None if the input is something else.
        decode: Of each generated token; None if nothing is generated.
        is_contiguous_only: Whether a step fails where its images are channels_last.
        is_eager_only: Whether a step looks at values of its tensors, which no CUDA graph can.
        why_no_amp: Why a training step fails under a GPU's autocast; None if it does not.
        variants: Profiles of the same workload by other recipes.
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
    checkpointing_from: tuple[tuple[int, Checkpointing], ...] = ()
    parallel_mode: ParallelMode = ParallelMode.DDP
    is_classic: bool = True
    is_run: bool = True
    is_by_shape: bool = False
    tokens_per_sample: int | None = None
    decode: DecodeWork | None = None
    saved_bytes_per_pair: float = 0.0
    is_contiguous_only: bool = False
    is_eager_only: bool = False
    why_no_amp: str | None = None
    variants: tuple[WorkloadProfile, ...] = ()

    def checkpointing_over(self, gpu_count: int) -> Checkpointing | None:
        """The checkpointing of a job of this many GPUs; None is that of the recipe, whatever their number."""
        return checkpointing_over(self.checkpointing_from, gpu_count)

    def recipe_over(self, gpu_count: int) -> Recipe:
        """The recipe of a job of this many GPUs."""
        return recipe_over(self.recipe, self.checkpointing_from, gpu_count)

    def shared_by(self, case: Case, gpu_count: int, mode: ParallelMode) -> Case:
        """The case as a job of this many GPUs with the same batch each, by the recipe of that size."""
        how = self.checkpointing_over(gpu_count) or case.checkpointing
        return msgspec.structs.replace(case, gpu_count=gpu_count, parallel_mode=mode, checkpointing=how)

    def at(self, recipe: Recipe) -> WorkloadProfile | None:
        """The profile by this recipe; None if it was not traced."""
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
        """The profile with the weights in the type of the precision, where that was traced; else this one."""
        return self.at(self.recipe.at(precision)) or self

    def task_for(self, asked: str) -> TaskKind:
        """The task asked for; of what is never trained, inference: training is asked for by default.

        Raises:
            MisuseError: If inference is asked for, and the workload is only trained.
        """
        task = TaskKind(asked)
        if task is TaskKind.INFER and task not in self.tasks:
            serving = ", or ask for llama_1b, llama_8b or llama_70b" if self.tokens_per_sample else ""
            raise MisuseError(f"{self.name} is trained and nothing else: leave out --task infer{serving}")
        return task if task in self.tasks or not self.settings else self.tasks[0]

    @property
    def offered(self) -> tuple[str, ...]:
        """All precisions that the workload is offered at; empty is every one."""
        return (*self.precisions, *self.also_at)

    def why_not_at(self, precision: Precision) -> str | None:
        """Say why the workload is not offered at a precision; None if it is."""
        offered, facts = self.offered, precision.facts
        if facts.in_blocks and self.blocks is None:
            return f"{precision} is of the linear layers in repeated blocks, and {self.name} has none"
        if facts.in_blocks and self.recipe.trainable is Trainable.QLORA:
            return f"{precision} needs weights in bfloat16, and those of {self.name} lie in 4 bits"
        if not offered or {precision, facts.beside} & {*offered} or (precision.is_amp and AMP in offered):
            return None
        return f"{self.name} is offered at {' and '.join(offered)}, not at {precision}"

    def why_not_trained_at(self, precision: Precision) -> str | None:
        """Say why a training step fails on a GPU at a precision; None if it does not."""
        if not precision.is_amp or self.why_no_amp is None:
            return None
        return f"a training step of {self.name} fails under a GPU's autocast: {self.why_no_amp}"

    @property
    def usual_precision(self) -> Precision | None:
        """The precision of a question that names none; None is mixed precision."""
        if self.why_no_amp is not None:
            return Precision.FP32
        return Precision(self.precisions[0]) if self.precisions and self.precisions[0] != AMP else None

    @property
    def hardware_flops_per_sample(self) -> float:
        """Arithmetic of a training step with what is computed again [FLOP]."""
        return sum(operator.count * operator.flops_per_sample for operator in self.train)

    def operators_of(self, task: TaskKind) -> tuple[Operator, ...]:
        """The operators of one step of a task."""
        return self.train if task is TaskKind.TRAIN else self.infer

    def convolves(self, task: TaskKind) -> bool:
        """Whether a step of this task holds convolutions."""
        return any(operator.kind in CONVOLUTIONS for operator in self.operators_of(task))

    def memory_format_at(self, precision: Precision) -> MemoryFormat | None:
        """Return the faster layout of images: channels_last but at strict fp32; None for other inputs.

        VGG16 at amp-fp16 on an H200: 3045 against 2086 images/s; at strict fp32 channels_last costs 7 %.
        """
        if not self.is_image:
            return None
        is_contiguous = precision is Precision.FP32 or self.is_contiguous_only
        return MemoryFormat.CONTIGUOUS if is_contiguous else MemoryFormat.CHANNELS_LAST

    @property
    def takes_photographs(self) -> bool:
        """Whether a sample is a photograph that must be decoded, cropped and augmented first."""
        return self.is_image and self.sample_shape == PHOTOGRAPH_SHAPE

    @property
    def main_batch(self) -> int:
        """The batch that a headline uses: the second default, or the only one."""
        return self.batches[min(1, len(self.batches) - 1)]
