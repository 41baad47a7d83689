"""What one step of a workload computes and moves."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gpubench.models.case import MemoryFormat, Recipe, TaskKind, Trainable
from gpubench.models.record import Record
from gpubench.precisions import AMP, Precision

PHOTOGRAPH_SHAPE = (3, 224, 224)
"""What an input pipeline makes of a photograph."""


class OperatorKind(StrEnum):
    """The kinds of operator that the roofline tells apart."""

    CONV3X3 = "conv3x3"
    CONV = "conv"
    DEPTHWISE = "depthwise"
    MATMUL = "matmul"
    MEMORY = "memory"
    OPTIMIZER = "optimizer"


CONVOLUTIONS = frozenset({OperatorKind.CONV3X3, OperatorKind.CONV, OperatorKind.DEPTHWISE})


class Operator(Record, frozen=True, kw_only=True):
    """``count`` alike kernels of one step. FLOPs and bytes are of one of them, bytes at 4 per element."""

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


class StepMemory(Record, frozen=True, kw_only=True):
    """Peak memory of one step over the batch size, traced: the highest of its lines.

    Attributes:
        is_amp: Under autocast, of either type; fp32 and tf32 are alike.
        lines: By rising bytes per sample.
        weights_bytes: Parameters and buffers, in every line.
        trained_bytes: Of the weights, those that take a gradient; a forward pass counts them too.
        optimizer_bytes: State of the optimizer, in every line.
        saved: What the forward pass and the loss leave alive beside these, the prebuilt batches included.
        recipe: Weights, checkpointing and the like of the case that was traced.
    """

    task: TaskKind
    is_amp: bool
    lines: tuple[MemoryLine, ...]
    weights_bytes: float = 0.0
    trained_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    saved: MemoryLine | None = None
    recipe: Recipe = Recipe()

    def peak(self, batch_size: int, gradients: float = 1.0) -> MemoryLine:
        """The moment of the step that needs most at this batch size.

        Args:
            batch_size: Samples.
            gradients: Share of the gradients that is held, below 1 where they are sharded.
        """
        return max(self.lines, key=lambda line: line.at(batch_size) - (1 - gradients) * line.gradient_bytes)


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
        flops_per_token: Products of one token of one sequence, attention apart [FLOP].
    """

    weight_bytes: float
    cache_bytes_per_token: float
    flops_per_token: float


class WorkloadProfile(Record, frozen=True, kw_only=True):
    """What one step of a workload computes and moves, read on the meta device; no GPU, no weights.

    Attributes:
        forward_flops_per_sample: Forward pass alone [FLOP], 2 per multiply-add.
        train_flops_per_sample: Forward and both backward products [FLOP]: the model's own arithmetic. Frozen
            weights have no gradient product; what is computed again is in ``train`` alone.
        saved_bytes_per_sample: Activations kept for the backward pass, at fp32 [B].
        batches: Default batches: small, main, large.
        train, infer: Operators of one training step and one forward pass.
        summary: What the model is, in a few words.
        tasks: What can be measured with it; an input pipeline is only ever run forward.
        memory: Peak memory of each task, with autocast and without; empty where it could not be traced.
        memory_untraced: Why it could not be.
        blocks: The repeated blocks; None where there are none.
        recipe: By which the work is done.
        settings: The fields of the recipe that may be changed.
        precisions: Those that it is measured at by default; empty is those of the device.
        is_classic: Whether it is among "all".
        is_run: Whether it is ever built and measured; else memory and ranking alone know it.
        tokens_per_sample: Of a sample of tokens; None where the input is something else.
        decode: Of each generated token; None where nothing is generated.
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
    is_classic: bool = True
    is_run: bool = True
    tokens_per_sample: int | None = None
    decode: DecodeWork | None = None
    variants: tuple[WorkloadProfile, ...] = ()

    def at(self, recipe: Recipe) -> WorkloadProfile | None:
        """The profile by this recipe; None where it was not traced."""
        if recipe == self.recipe:
            return self
        others = {variant.recipe: variant for variant in self.variants}
        found = others.get(recipe)
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
        """The task asked for, or the only one that there is: a generation is never trained."""
        task = TaskKind(asked)
        return task if task in self.tasks or not self.settings else self.tasks[0]

    def why_not_at(self, precision: Precision) -> str | None:
        """Say why the workload is not offered at a precision; None where it is."""
        offered, facts = self.precisions, precision.facts
        if facts.in_blocks and self.blocks is None:
            return f"{precision} is of the linear layers in repeated blocks, and {self.name} has none"
        if facts.in_blocks and self.recipe.trainable is Trainable.QLORA:
            return f"{precision} needs weights in bfloat16, and those of {self.name} lie in 4 bits"
        if not offered or {precision, facts.beside} & {*offered} or (precision.is_amp and AMP in offered):
            return None
        return f"{self.name} is offered at {' and '.join(offered)}, not at {precision}"

    @property
    def usual_precision(self) -> Precision | None:
        """The precision of a question that names none; None is mixed precision."""
        return Precision(self.precisions[0]) if self.precisions and self.precisions[0] != AMP else None

    @property
    def hardware_flops_per_sample(self) -> float:
        """Arithmetic of a training step with what is computed again [FLOP]."""
        return sum(operator.count * operator.flops_per_sample for operator in self.train)

    def convolves(self, task: TaskKind) -> bool:
        """Whether a step of this task holds convolutions."""
        operators = self.train if task is TaskKind.TRAIN else self.infer
        return any(operator.kind in CONVOLUTIONS for operator in operators)

    def memory_format_at(self, precision: Precision) -> MemoryFormat | None:
        """Return the faster layout of images: channels_last but at strict fp32; None for other inputs.

        VGG16 at amp-fp16 on an H200: 3045 against 2086 images/s; at strict fp32 channels_last costs 7 %.
        """
        if not self.is_image:
            return None
        return MemoryFormat.CONTIGUOUS if precision is Precision.FP32 else MemoryFormat.CHANNELS_LAST

    @property
    def takes_photographs(self) -> bool:
        """Whether a sample is an image that somebody decodes, crops and augments first."""
        return self.is_image and self.sample_shape == PHOTOGRAPH_SHAPE

    @property
    def main_batch(self) -> int:
        """The batch that a headline uses: the second default, or the only one."""
        return self.batches[min(1, len(self.batches) - 1)]
