"""The case: everything that identifies a measured figure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

import msgspec

from gpubench.executions import Execution, Framework
from gpubench.models.record import Record
from gpubench.precisions import Precision
from gpubench.recipes import (
    ADAPTER_BASES,
    LOSS_CHUNKS,
    Checkpointing,
    ParallelMode,
    Stack,
    TaskKind,
    Trainable,
    WeightType,
)

AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
NotNegative = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
"""Limits on stored numbers, checked when a record is read. No real machine exceeds them."""


class MemoryFormat(StrEnum):
    """Layout of image tensors."""

    CHANNELS_LAST = "channels_last"
    CONTIGUOUS = "contiguous"


class Recipe(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How a workload runs, apart from batch and precision. It changes memory and time, but not the task.

    Attributes:
        weight_type: Storage type of the weights; with adapters, of the frozen base weights.
        loss_chunks: Number of token chunks over which the loss is computed in sequence.
        prompt_tokens, new_tokens: Tokens given and generated per sequence; 0 if nothing is generated.
        cache_tokens: Capacity of the key-value cache; 0 for none.
        context_tokens: Length of a training sequence; 0 for the workload's default.
        stack: The implementation that runs the work.
    """

    weight_type: WeightType = WeightType.FLOAT32
    checkpointing: Checkpointing = Checkpointing.NONE
    trainable: Trainable = Trainable.FULL
    loss_chunks: AtLeastOne = 1
    prompt_tokens: NotNegative = 0
    new_tokens: NotNegative = 0
    cache_tokens: NotNegative = 0
    context_tokens: NotNegative = 0
    stack: Stack = Stack.TORCH

    @property
    def fields(self) -> dict[str, Any]:
        """Every field by name, as keyword arguments of a case."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @property
    def words(self) -> str:
        """Differences from the default recipe in words; empty if there are none."""
        return ", ".join(
            _WORDS[name].format(value) for name, value in self.fields.items() if value != _DEFAULTS[name]
        )

    def changed(self, asked: Mapping[str, Any]) -> Recipe:
        """Return the recipe with these fields changed.

        For a generation, the cache then holds all of its tokens. With adapters, the base weights take the
        adapter's usual type unless ``weight_type`` is also given.
        """
        found = msgspec.convert(self.fields | dict(asked), Recipe)
        base = ADAPTER_BASES.get(found.trainable)
        if "trainable" in asked and "weight_type" not in asked and base is not None:
            found = msgspec.structs.replace(found, weight_type=base)
        length = found.prompt_tokens + found.new_tokens
        return msgspec.structs.replace(found, cache_tokens=length) if found.new_tokens else found

    @property
    def cheaper(self) -> tuple[Recipe, ...]:
        """Recipes with one change that may save memory; some may equal this recipe."""
        changes: tuple[dict[str, Any], ...] = (
            *({"checkpointing": how} for how in Checkpointing),
            {"loss_chunks": LOSS_CHUNKS},
            *({"trainable": how, "weight_type": base} for how, base in ADAPTER_BASES.items()),
        )
        return tuple(msgspec.structs.replace(self, **each) for each in changes)

    def at(self, precision: Precision) -> Recipe:
        """Return the recipe with the weight type of a precision: float32, unless it casts the whole model.

        If it does, quantized weights keep their own type.
        """
        if not precision.facts.whole_model:
            return msgspec.structs.replace(self, weight_type=WeightType.FLOAT32)
        if self.weight_type is WeightType.FLOAT32:
            return msgspec.structs.replace(self, weight_type=WeightType(precision.facts.whole_model))
        return self


class Case(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The identity of a measured figure. A comparison of different cases always says that they differ.

    A field added after the first version has a default that describes the earlier measurements. Files omit
    fields with default values, so old files remain readable.

    Attributes:
        batch_size: Samples per step on each GPU.
        gpu_count: GPUs of the job, across all nodes.
        parallel_mode: Always ``single`` for one GPU; for several, ``ddp`` unless another mode is given.
        loss_chunks: Number of token chunks over which the loss is computed in sequence.
        prompt_tokens, new_tokens: Tokens given and generated per sequence; 0 if nothing is generated.
        cache_tokens: Capacity of the key-value cache; 0 for none.
        context_tokens: Length of a training sequence; 0 for the workload's default.
        stack: The implementation that runs the work.
        threads: Number of CPU threads to use; 0 for all that the process may use.
    """

    workload: str
    workload_version: int
    task: TaskKind
    precision: Precision
    execution: Execution
    memory_format: MemoryFormat | None
    batch_size: AtLeastOne
    sample_unit: str
    gpu_count: AtLeastOne = msgspec.field(default_factory=lambda: 1)  # so that files always state it
    framework: Framework = Framework.TORCH
    weight_type: WeightType = WeightType.FLOAT32
    checkpointing: Checkpointing = Checkpointing.NONE
    trainable: Trainable = Trainable.FULL
    parallel_mode: ParallelMode = ParallelMode.SINGLE
    node_count: AtLeastOne = 1
    loss_chunks: AtLeastOne = 1
    prompt_tokens: NotNegative = 0
    new_tokens: NotNegative = 0
    cache_tokens: NotNegative = 0
    context_tokens: NotNegative = 0
    stack: Stack = Stack.TORCH
    threads: NotNegative = 0

    def __post_init__(self) -> None:
        """Set the default parallel mode for the number of GPUs."""
        shared_mode = ParallelMode.DDP if self.parallel_mode is ParallelMode.SINGLE else self.parallel_mode
        mode = ParallelMode.SINGLE if self.gpu_count == 1 else shared_mode
        msgspec.structs.force_setattr(self, "parallel_mode", mode)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of this case."""
        return Recipe(**{name: getattr(self, name) for name in Recipe.__struct_fields__})

    @property
    def setup(self) -> dict[str, Any]:
        """Fields of the work itself that differ from the default: framework, weights, tokens, and so on."""
        return {name: value for name in _WORDS if (value := getattr(self, name)) != _DEFAULTS[name]}

    @property
    def setup_words(self) -> tuple[str, ...]:
        """``setup`` in words, plus a parallel mode other than ``ddp`` and a node count above 1."""
        words = tuple(_WORDS[name].format(value) for name, value in self.setup.items())
        mode = _MODE_WORDS.get(self.parallel_mode)
        nodes = f"{self.node_count} nodes" if self.node_count > 1 else None
        return (*words, *(word for word in (mode, nodes) if word))

    @property
    def on_one_gpu(self) -> Case:
        """The same work on one GPU, with the batch size per GPU of this case."""
        return msgspec.structs.replace(self, gpu_count=1, node_count=1)

    @property
    def whole_on_one_gpu(self) -> Case:
        """The same work on one GPU, with the combined batch size of all GPUs."""
        return msgspec.structs.replace(self.on_one_gpu, batch_size=self.batch_size * self.gpu_count)

    @property
    def label(self) -> str:
        """Display name: ``vgg16 amp-bf16 graph batch 64``; several processes may also run on a CPU."""
        return self.label_with("in {} processes")

    def label_with(self, several: str) -> str:
        """Return the display name with other words for more than one GPU or process."""
        task = "" if self.task is TaskKind.TRAIN else f" {self.task}"
        count = "" if self.gpu_count == 1 else f" {several.format(self.gpu_count)}"
        setup = "".join(f", {word}" for word in self.setup_words)
        return (
            f"{self.workload}{task} {self.precision} {self.execution} batch {self.batch_size:,}{count}{setup}"
        )


_MODE_WORDS = {ParallelMode.FSDP: "fsdp", ParallelMode.INDEPENDENT: "independent jobs"}
_WORDS = {
    "framework": "{}",
    "weight_type": "{} weights",
    "checkpointing": "{} checkpointing",
    "trainable": "{}",
    "loss_chunks": "loss in {} chunks",
    "prompt_tokens": "prompt of {:,} tokens",
    "new_tokens": "{:,} new tokens",
    "cache_tokens": "cache of {:,} tokens",
    "context_tokens": "sequences of {:,} tokens",
    "stack": "{} stack",
    "threads": "CPU threads: {:,}",
}
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Case) if field.name in _WORDS}
