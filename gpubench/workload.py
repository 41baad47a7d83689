"""Workloads and tasks: the parts of a plug-in or a user's file.

A workload builds a model, synthetic batches that can be learned, and a loss, all on the CPU in float32. It
never mentions device, precision, timing or the step, so that FP32 and AMP differ in one place only.
torch is imported when a workload is built.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
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
    recipe_over,
)
from gpubench.precisions import AMP, Precision, in_memory

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

BATCH_COUNT = 4
"""Prebuilt batches that the steps rotate through: a single one is memorized within a minute, and a zero loss
has zero gradients, unlike training."""

IMAGE_LABELS, TOKEN_LABELS = (0, 1, 2, 3), (1, 2, 3, 4)
"""A small fixed set, so that a step that trains must lower the loss."""

NARROW_STD = 0.02
"""Standard deviation of the weights of a transformer at the start, as its authors chose it."""

USUAL_RECIPE = Recipe()
"""Weights in float32, nothing computed twice, everything trained, the loss at once."""

Batch = tuple[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The inputs of one training step, on the CPU; ``measure`` moves it.

    Attributes:
        model: The module, in float32 or in the type of the recipe; its parameters that require a gradient
            are trained.
        batches: Prebuilt (inputs, targets), rotated step by step. Inputs are a tensor, or a tuple of the
            model's arguments, or tensors in whatever holds them; the batch is in dimension 0.
        loss: ``loss(outputs, targets)``, a scalar tensor.
        optimizer: ``optimizer(parameters, **options)``; ``measure`` adds ``fused`` and ``capturable`` where
            the optimizer takes them.
        reference_tokens: Of each sample, so many are computed on the CPU to check the device against; None is
            the whole sample. A CPU would take minutes for a long sequence.
        new_tokens: Tokens that a step generates after its inputs, the prompts; 0 is one forward pass. Such a
            model also has ``next(ids, place)``, which adds a token to every sequence.
        decode: What each generated token reads and computes.
        again: Builds the same model, loss and optimizer once more, where a copy of the model would not do:
            what a user's own code holds on to, such as a hook or a loss, may name the model itself.
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
    """The inputs of one training step of a Keras model.

    Attributes:
        model: The ``keras.Model``, built under the precision policy that is in force.
        batches: Prebuilt (inputs, targets) as numpy arrays, the batch in dimension 0.
        loss: ``loss(targets, outputs)``, as Keras calls it, a ``keras.Loss``.
        optimizer: A ``keras.Optimizer`` that has trained nothing yet.
    """

    model: Any
    batches: tuple[Batch, ...]
    loss: Any
    optimizer: Any


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A kind of training job that can be built at any batch size.

    Attributes:
        name: As typed on the command line.
        version: Rises whenever what it computes changes; numbers of two versions are never compared.
        sample_unit: What one sample is: image, sequence.
        sample_shape: Shape of one sample, without the batch.
        batches: Default batch sizes: small, main, large.
        is_image: Whether the input is a batch of images, so that a memory format matters.
        tasks: What can be measured with it.
        source: Where the model is described.
        summary: What it is, in a few words, for `gpubench list`.
        build: ``build(batch_size, seed)``; equal seeds give equal tasks.
        tiny: The same code with a preset small enough for a CPU test; None if there is none.
        recipe: How it does its work unless something else is asked for.
        settings: The fields of the recipe that may be changed: ``build`` and ``tiny`` take ``recipe=`` where
            there are any.
        precisions: Those that it is measured at by default; empty is those of the device.
        also_at: Further ones that it is offered at where they are asked for.
        variants: Other recipes whose profiles are shipped, so that questions of them need no torch.
        checkpointing_from: Checkpointing by the fewest GPUs of a job that it is for, by rising number from 1
            on, unless it is asked for; empty is that of the recipe for any number.
        parallel_mode: How the GPUs of one job share it unless it is asked for: whole copies, or a share each.
        is_classic: Whether it is among "all", and may be built whenever a trace is asked for. False of what
            needs a large card, takes minutes to trace, or came after the classic ones.
        check: Raises ``MisuseError`` for a recipe that the model cannot have; asked before anything is built.
        is_run: Whether it is ever built and measured; else it is only described, for memory and ranking.
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

    def recipe_over(self, gpu_count: int) -> Recipe:
        """The recipe of a job of this many GPUs."""
        return recipe_over(self.recipe, self.checkpointing_from, gpu_count)

    def at(self, recipe: Recipe) -> Workload:
        """The workload by another recipe.

        Weights in half precision are nothing that a workload must know of: ``measure`` casts them.

        Raises:
            MisuseError: Naming the field that this workload does not let change.
        """
        if recipe == self.recipe:
            return self
        check_recipe(self.name, self.recipe, recipe, self.settings)
        if self.check is not None:
            self.check(recipe)
        if not self.settings:
            return replace(self, recipe=recipe)
        return replace(
            self,
            recipe=recipe,
            sample_shape=(recipe.context_tokens,) if recipe.context_tokens else self.sample_shape,
            build=partial(self.build, recipe=recipe),
            tiny=None if self.tiny is None else partial(self.tiny, recipe=recipe),
        )

    def __post_init__(self) -> None:
        """Refuse values that no measurement could use."""
        given: object = self.batches
        numbers = given if isinstance(given, tuple) else ()
        if not numbers or not all(type(n) is int and n >= 1 for n in numbers):
            raise MisuseError(
                f"workload {self.name}: batches {self.batches!r}: give whole numbers from 1 up, "
                "as in (8, 32, 128)"
            )


CASTS = frozenset({WeightType.FLOAT32, WeightType.BFLOAT16, WeightType.FLOAT16})
"""Types that the weights of any model can be cast to."""


def _contradiction(recipe: Recipe) -> str | None:
    lies_in, how = recipe.weight_type, recipe.trainable
    if how is Trainable.QLORA and lies_in is not WeightType.NF4:
        return f"QLoRA trains adapters over a base in {WeightType.NF4}, not in {lies_in}: use LoRA for that"
    if how is Trainable.LORA and lies_in not in CASTS:
        return f"LoRA trains adapters over a base in 16 or 32 bits, not in {lies_in}: use QLoRA for 4 bits"
    if how is Trainable.FULL and lies_in not in CASTS and not recipe.new_tokens:
        return f"weights in {lies_in} cannot be trained: use QLoRA, or leave out the type of the weights"
    return None


def check_recipe(name: str, usual: Recipe, recipe: Recipe, settings: Sequence[str]) -> None:
    """Refuse a recipe that differs from the usual one in what cannot be set.

    Raises:
        MisuseError: Naming the first such field, or two that contradict each other.
    """
    for field, value in recipe.fields.items():
        casts = field == "weight_type" and value in CASTS
        if value != getattr(usual, field) and field not in settings and not casts:
            takes = ", ".join(name for name in settings if name != "cache_tokens")
            raise MisuseError(
                f"{name}: {field.replace('_', ' ')} {value} cannot be set: "
                + (f"it takes {takes}" if takes else "it has one recipe alone")
            )
    if wrong := _contradiction(recipe):
        raise MisuseError(f"{name}: {wrong}")


def check_weights(
    name: str,
    recipe: Recipe,
    asked: Mapping[str, Any],
    precisions: Iterable[str],
    offered: Collection[str] = (),
) -> None:
    """Refuse what was asked of the weights where a precision would overwrite it.

    Args:
        name: The workload, for the message.
        recipe: With what was asked.
        asked: What that is, by field.
        precisions: Those asked for by name; ``amp`` is either of its types.
        offered: All that the workload is offered at; empty is every one.

    Raises:
        MisuseError: Naming the first such pair, and what goes together.
    """
    wanted = asked.get("weight_type")
    for precision in precisions:
        held = recipe.at(in_memory(precision))
        if wanted is not None and held.weight_type != wanted:
            able = AMP if wanted == WeightType.FLOAT32 else Precision.BF16
            instead = f"ask for --precision {able}, or " if not offered or able in offered else ""
            raise MisuseError(
                f"{name}: weights in {wanted} at {precision}: there they lie in {held.weight_type}; "
                f"{instead}leave out --recipe weight-type"
            )
        if "trainable" in asked and (wrong := _contradiction(held)):
            raise MisuseError(f"{name}: at {precision} the base lies in {held.weight_type}: {wrong}")


# --- for those who write a workload ------------------------------------------------------------------


class Named(dict[str, Any]):
    """Inputs that are arguments by their names."""


def forward(model: nn.Module, inputs: Any) -> Any:
    """Call a model on its inputs: the parts of a tuple or of ``Named`` are its arguments, all else is one."""
    if isinstance(inputs, Named):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def set_mode(model: nn.Module, *, train: bool) -> nn.Module:
    """Set the mode of a model; a frozen part that its author keeps in eval mode stays in it in training."""
    frozen = [
        module
        for module in (model.modules() if train and model.training else ())
        if not (module.training or any(p.requires_grad for p in module.parameters()))
    ]
    model.train(train)
    for module in frozen:
        module.training = False
    return model


def uncompiled() -> AbstractContextManager[Any]:
    """Run as it was written what an author has compiled: how a step is executed is the case's to say.

    A torch before 2.6 cannot be told so.
    """
    import torch

    set_stance = getattr(torch.compiler, "set_stance", None)
    return nullcontext() if set_stance is None else set_stance("force_eager")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Fix the random numbers of torch, Python and NumPy inside the block; leave those outside as they were.

    A generator object would not do: the meta device refuses it, and layers draw from the global one.
    """
    import random

    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state()  # noqa: NPY002 - models draw from the global generator
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - as above
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002 - as above


def initialize_narrow(module: nn.Module) -> None:
    """Draw embeddings and linear layers from N(0, 0.02), as transformers are; ``model.apply`` takes it.

    A tied embedding at torch's own N(0, 1) would start at a loss near 480.
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

    Zeros would be dishonest: the power a GPU draws, and so its clock, depends on the data.

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
    """Mean loss over every token.

    Shapes:
        logits: (N, T, vocabulary); targets: (N, T).
    """
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def draw_labels(labels: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Draw labels from a set."""
    import torch

    return torch.tensor(labels)[torch.randint(len(labels), tuple(shape))]


# --- torch -----------------------------------------------------------------------------------------------

OR_CPU_BUILD = "on a machine without a GPU install its CPU build first, see pytorch.org"


def need_torch(who: str, error: type[GpuBenchError] = MisuseError, *, beside: Sequence[str] = ()) -> None:
    """Check, without importing it, that torch is installed.

    Args:
        who: What needs it, as the subject of the message.
        error: Raised where torch is missing.
        beside: Further packages that it needs.

    Raises:
        GpuBenchError: With the exact line that installs it.
    """
    if importlib.util.find_spec("torch") is None:
        line = pip_install("torch", *beside)
        raise error(f"{who} needs PyTorch, which is not installed: {line} ({OR_CPU_BUILD})")
