"""Workloads and tasks: the interface for plug-ins and users' files.

A workload builds a model, learnable synthetic batches, and a loss, all on the CPU in float32. It does not
depend on device, precision, timing or the step: FP32 and AMP use the same workload. torch is imported only
when a workload is built.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any

from gpubench.errors import GpuBenchError, MisuseError
from gpubench.installing import pip_install
from gpubench.models import (
    Checkpointing,
    DecodeWork,
    ParallelMode,
    Recipe,
    TaskKind,
    Trainable,
    WeightType,
)
from gpubench.precisions import AMP, Precision, in_memory

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

BATCH_COUNT = 4
"""Number of prebuilt batches that the steps cycle through. A single batch would be memorized within a minute,
and its zero loss would have zero gradients, unlike real training."""

IMAGE_LABELS, TOKEN_LABELS = (0, 1, 2, 3), (1, 2, 3, 4)
"""A small fixed set of labels, so a training step must lower the loss."""

NARROW_STD = 0.02
"""Standard deviation of a transformer's initial weights, as chosen by its authors."""

USUAL_RECIPE = Recipe()
"""The default recipe: float32 weights, no recomputation, everything trained, an unchunked loss."""

Batch = tuple[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one training step needs, on the CPU; ``measure`` moves it to the device.

    Attributes:
        model: The module, in float32 or in the type of the recipe; parameters that require a gradient are
            trained.
        batches: Prebuilt (inputs, targets), used in rotation. Inputs are a tensor, a tuple of the model's
            arguments, or tensors in another container; the batch is dimension 0.
        loss: ``loss(outputs, targets)``, a scalar tensor.
        optimizer: ``optimizer(parameters, **options)``; ``measure`` adds ``fused`` and ``capturable`` if the
            optimizer accepts them.
        reference_tokens: Number of tokens of each sample in the reference computation on the CPU; None for
            all. A CPU would take minutes for a long sequence.
        new_tokens: Tokens that a step generates after its prompts; 0 for one forward pass. A model that
            generates also has ``next(ids, place)``, which adds a token to every sequence.
        decode: Memory traffic and arithmetic per generated token.
        again: Builds the same model, loss and optimizer again. Set for a user's model, because a hook or loss
            may refer to the model, so a copy might not work.
    """

    model: nn.Module
    batches: tuple[Batch, ...]
    loss: Callable[[Any, Any], Tensor]
    optimizer: Callable[..., Optimizer]
    reference_tokens: int | None = None
    new_tokens: int = 0
    decode: DecodeWork | None = None
    again: Callable[[], Task] | None = None


@dataclass(frozen=True, kw_only=True)
class KerasTask:
    """What one training step of a Keras model needs.

    Attributes:
        model: The ``keras.Model``, built under the current precision policy.
        batches: Prebuilt (inputs, targets) as numpy arrays, with the batch in dimension 0.
        loss: ``loss(targets, outputs)`` in Keras's order, a ``keras.Loss``.
        optimizer: A new ``keras.Optimizer``, which has not taken a step.
    """

    model: Any
    batches: tuple[Batch, ...]
    loss: Any
    optimizer: Any


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A kind of training job that can be built at any batch size.

    Attributes:
        name: Its name on the command line.
        version: Increases whenever the computation changes; figures of two versions are never compared.
        sample_unit: What one sample is: image, sequence.
        sample_shape: Shape of one sample, without the batch.
        batches: Default batch sizes: small, main, large.
        is_image: Whether the input is a batch of images, so a memory format matters.
        tasks: The tasks that can be measured with it.
        source: Publication that describes the model.
        summary: A short description for `gpubench list`.
        build: ``build(batch_size, seed)``; equal seeds give equal tasks.
        tiny: The same code with a preset small enough for a CPU test; None if there is none.
        recipe: The default recipe.
        settings: The fields of the recipe that may be changed; if there are any, ``build`` and ``tiny`` take
            ``recipe=``.
        precisions: Precisions measured by default; empty to use the device's.
        also_at: Further precisions available on request.
        variants: Other recipes with shipped profiles, so questions about them need no torch.
        checkpointing_from: Default checkpointing by the minimum number of GPUs of a job, in ascending order
            from 1; empty to use the recipe for any number.
        parallel_mode: How the GPUs of one job share the model by default: a full copy on each, or a shard.
        is_classic: Whether it is part of "all", and may be built on a CPU to be traced. False for workloads
            that need a large card, take minutes to trace, or were added later.
        check: Raises ``MisuseError`` for a recipe that is impossible for the model, before anything is built.
        is_run: Whether it can be built and measured; else it is only described, for memory and ranking.
        shorter: Two versions with fewer layers, from which the trace of this workload is extrapolated: the
            second has one more period (repeating group of layers) than the first. The number is how many more
            periods than the first version this workload has. None to trace all layers.
    """

    name: str
    version: int
    sample_unit: str
    sample_shape: tuple[int, ...]
    batches: tuple[int, ...]
    is_image: bool
    source: str
    build: Callable[..., Task]
    tiny: Callable[..., Task] | None = None
    summary: str = ""
    tasks: tuple[TaskKind, ...] = (TaskKind.TRAIN, TaskKind.INFER)
    recipe: Recipe = USUAL_RECIPE
    settings: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    also_at: tuple[str, ...] = ()
    variants: tuple[Recipe, ...] = ()
    checkpointing_from: tuple[tuple[int, Checkpointing], ...] = ()
    parallel_mode: ParallelMode = ParallelMode.DDP
    is_classic: bool = True
    is_run: bool = True
    check: Callable[[Recipe], None] | None = None
    shorter: tuple[Workload, Workload, int] | None = None

    def at(self, recipe: Recipe) -> Workload:
        """Return the workload with another recipe.

        A workload need not support half-precision weights: ``measure`` casts them.

        Raises:
            MisuseError: Naming the field that cannot be changed for this workload.
        """
        if recipe == self.recipe:
            return self
        check_recipe(self.name, self.recipe, recipe, self.settings)
        if self.check is not None:
            self.check(recipe)
        if not self.settings:
            return replace(self, recipe=recipe)
        return self.built(
            lambda build: partial(build, recipe=recipe),
            recipe=recipe,
            sample_shape=(recipe.context_tokens,) if recipe.context_tokens else self.sample_shape,
            tiny=None if self.tiny is None else partial(self.tiny, recipe=recipe),
        )

    def built(self, by: Callable[[Callable[..., Task]], Callable[..., Task]], **fields: Any) -> Workload:
        """Return the workload with other fields, and with ``by`` applied to every ``build``."""
        shorter = self.shorter and (
            self.shorter[0].built(by, **fields),
            self.shorter[1].built(by, **fields),
            self.shorter[2],
        )
        return replace(self, build=by(self.build), shorter=shorter, **fields)

    def __post_init__(self) -> None:
        """Refuse values that no measurement can use."""
        given: object = self.batches
        numbers = given if isinstance(given, tuple) else ()
        if not numbers or not all(type(n) is int and n >= 1 for n in numbers):
            raise MisuseError(
                f"workload {self.name}: batches {self.batches!r}: give whole numbers from 1 up, "
                "as in (8, 32, 128)"
            )


CASTS = frozenset({WeightType.FLOAT32, WeightType.BFLOAT16, WeightType.FLOAT16})
"""Weight types to which any model can be cast."""


def _contradiction(recipe: Recipe) -> str | None:
    stored, how = recipe.weight_type, recipe.trainable
    if how is Trainable.QLORA and stored is not WeightType.NF4:
        return f"QLoRA trains adapters over a base in {WeightType.NF4}: omit weight-type={stored}"
    if how is Trainable.LORA and stored not in CASTS:
        return f"LoRA trains adapters over a base in 16 or 32 bits, not in {stored}: --qlora is for 4 bits"
    if how is Trainable.FULL and stored is WeightType.NF4:
        return (
            f"{stored} is only for the base under QLoRA's adapters: add --qlora or omit --recipe weight-type"
        )
    if how is Trainable.FULL and stored not in CASTS and not recipe.new_tokens:
        return (
            f"weights in {stored} are only for generation, which llama_8b does: "
            "to train, add --qlora or leave out --recipe weight-type"
        )
    return None


def check_recipe(name: str, usual: Recipe, recipe: Recipe, settings: Sequence[str]) -> None:
    """Refuse a recipe that differs from the default in a field that cannot be set.

    Raises:
        MisuseError: Naming the first of these fields, or two contradictory fields.
    """
    for field, value in recipe.fields.items():
        casts = field == "weight_type" and value in CASTS
        if value != getattr(usual, field) and field not in settings and not casts:
            takes = ", ".join(name for name in settings if name != "cache_tokens")
            asked = {"trainable": f"--{value}", "context_tokens": f"--context {value}"}
            shown = asked.get(field, f"{field.replace('_', ' ')} {value}")
            known = f"it takes {takes}" if takes else "it has only one recipe; leave it out"
            raise MisuseError(f"{name}: {shown} cannot be set: {known}")
    if wrong := _contradiction(recipe):
        raise MisuseError(f"{name}: {wrong}")


def check_weights(
    name: str,
    recipe: Recipe,
    asked: Mapping[str, Any],
    precisions: Iterable[str],
    offered: Collection[str] = (),
) -> None:
    """Refuse a requested weight type that a precision would override.

    Args:
        name: The workload, for the message.
        recipe: The recipe including the requested changes.
        asked: The requested changes, by field.
        precisions: The requested precisions; ``amp`` stands for fp16 and bf16.
        offered: All precisions that the workload supports; empty for all.

    Raises:
        MisuseError: Naming the first incompatible pair, and what is compatible.
    """
    wanted = asked.get("weight_type")
    for precision in precisions:
        stored = recipe.at(in_memory(precision))
        if wanted is not None and stored.weight_type != wanted:
            able = AMP if wanted == WeightType.FLOAT32 else Precision.BF16
            instead = f"use --precision {able}, or " if not offered or able in offered else ""
            raise MisuseError(
                f"{name}: weights in {wanted} at {precision}: they are stored in {stored.weight_type}; "
                f"{instead}leave out --recipe weight-type"
            )
        if "trainable" in asked and (wrong := _contradiction(stored)):
            raise MisuseError(f"{name}: at {precision} the base is stored in {stored.weight_type}: {wrong}")


# --- helpers for workload authors --------------------------------------------------------------------


class Named(dict[str, Any]):
    """Inputs that are passed as keyword arguments."""


def forward(model: nn.Module, inputs: Any) -> Any:
    """Call a model on its inputs; the items of a tuple or of ``Named`` are separate arguments."""
    if isinstance(inputs, Named):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def set_mode(model: nn.Module, *, train: bool) -> nn.Module:
    """Set the mode of a model; frozen parts that its author put in eval mode stay in it during training."""
    frozen = [
        module
        for module in model.modules()
        if train and model.training
        if not (module.training or any(p.requires_grad for p in module.parameters()))
    ]
    model.train(train)
    for module in frozen:
        module.training = False
    return model


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, Python and NumPy inside the block; after it, restore the generators' states on the CPU.

    A generator object would not work: the meta device refuses it, and layers use the global generator.
    """
    import random

    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state()  # noqa: NPY002 - models draw from the global generator
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # otherwise torch would store this call with its stack trace
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - as above
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002 - as above


def copy_of(task: Task) -> Task:
    """Return the task with a copy of its model and loss, and an optimizer of the copy's parameters.

    A function that makes the optimizer may take parameters from the original model, to group them; the copy's
    parameters replace them.
    """
    model, loss = copy.deepcopy((task.model, task.loss))
    if not isinstance(task.optimizer, FunctionType):
        return replace(task, model=model, loss=loss)

    @wraps(task.optimizer)
    def of_copy(*args: Any, **options: Any) -> Optimizer:
        made = task.optimizer(*args, **options)
        twins = dict(zip(map(id, task.model.parameters()), model.parameters(), strict=True))
        for group in getattr(made, "param_groups", ()):
            group["params"] = [twins.get(id(each), each) for each in group["params"]]
        return made

    return replace(task, model=model, loss=loss, optimizer=of_copy)


def initialize_narrow(module: nn.Module) -> None:
    """Initialize embeddings and linear layers from N(0, 0.02), as in transformers; use with ``model.apply``.

    A tied embedding with torch's default N(0, 1) would start at a loss near 480.
    """
    from torch import nn

    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=NARROW_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def image_batches(
    batch_size: int, shape: Sequence[int], labels: Sequence[int] = IMAGE_LABELS, count: int = BATCH_COUNT
) -> tuple[Batch, ...]:
    """Draw images from N(0, 1) and their labels from a small fixed set. Call it inside ``seeded``.

    Zeros would be unrealistic: the power draw of a GPU, and with it the clock, depends on the data.

    Shapes:
        inputs: (N, *shape) float32; targets: (N,) int64.
    """
    import torch

    return tuple((torch.randn(batch_size, *shape), draw_labels(labels, (batch_size,))) for _ in range(count))


def token_batches(
    batch_size: int,
    length: int,
    vocabulary: int,
    labels: Sequence[int] = TOKEN_LABELS,
    *,
    label_each_token: bool = False,
    count: int = BATCH_COUNT,
) -> tuple[Batch, ...]:
    """Draw tokens uniformly and labels from a small fixed set. Call it inside ``seeded``.

    Shapes:
        inputs: (N, length) int64 in [0, vocabulary); targets: (N,) or (N, length) int64.
    """
    import torch

    shape = (batch_size, length) if label_each_token else (batch_size,)
    return tuple(
        (torch.randint(vocabulary, (batch_size, length)), draw_labels(labels, shape)) for _ in range(count)
    )


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over every token.

    Shapes:
        logits: (N, T, vocabulary); targets: (N, T).
    """
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def draw_labels(labels: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Draw labels of a shape from a set."""
    import torch

    return torch.tensor(labels)[torch.randint(len(labels), tuple(shape))]


# --- torch -----------------------------------------------------------------------------------------------

OR_CPU_BUILD = "on a machine without a GPU install its CPU build first, see pytorch.org"


def need_torch(who: str, error: type[GpuBenchError] = MisuseError, *, also: Sequence[str] = ()) -> None:
    """Check that torch is installed, without importing it.

    Args:
        who: What needs torch, as the subject of the message.
        error: Raised if torch is missing.
        also: Further packages that are needed.

    Raises:
        GpuBenchError: With the exact line that installs it.
    """
    if importlib.util.find_spec("torch") is None:
        line = pip_install("torch", *also)
        raise error(f"{who} needs PyTorch, which is not installed: {line} ({OR_CPU_BUILD})")
