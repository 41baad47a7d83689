"""The one training step and the one forward pass; what differs between precisions differs here only."""

from __future__ import annotations

import copy
import inspect
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpubench.discovery import load_workload
from gpubench.foreign_code import lacks_memory
from gpubench.measure.quantize import QUANTIZED, compute_in_fp8, compute_in_int8, place_narrow, quantize
from gpubench.models import Case, Execution, MemoryFormat, Precision, TaskKind, WeightType
from gpubench.tensors import tensors_of, with_tensors
from gpubench.workload import Task, forward, set_mode

AUTOCAST_TYPES: dict[Precision, torch.dtype] = {
    precision: getattr(torch, name) for precision in Precision if (name := precision.facts.autocast)
}
HALF_TYPES = {WeightType.BFLOAT16: torch.bfloat16, WeightType.FLOAT16: torch.float16}
"""Of weights that are cast whole, and their inputs with them."""
FUSED_WHERE_SHARDED = frozenset({torch.optim.Adam, torch.optim.AdamW})
"""Of the fused kernels torch spreads these over the parts of a sharded parameter, and fails at the others."""

PlaceModel = Callable[[nn.Module, Case, torch.device], nn.Module]


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task on its device, ready to be stepped.

    Attributes:
        scaler: The gradient scaler of amp-fp16, part of the timed step; None elsewhere.
        cache_enabled: Autocast's weight cache: on as users have it, off inside a graph.
        new_tokens: Tokens that a step generates after its prompts; 0 is one forward pass.
        tokens_at_s: When each token of each generation was on the host, after its submission [s].
    """

    case: Case
    device: torch.device
    model: nn.Module
    batches: tuple[tuple[Any, Any], ...]
    loss: Callable[[Any, Any], Tensor]
    optimizer: Optimizer | None
    scaler: torch.amp.GradScaler | None = None
    cache_enabled: bool = True
    new_tokens: int = 0
    tokens_at_s: list[tuple[float, ...]] = field(default_factory=list)

    def batch(self, index: int) -> tuple[Any, Any]:
        """The prebuilt batch of a step; batches rotate, because one alone is learned by heart."""
        return self.batches[index % len(self.batches)]

    def autocast(self) -> AbstractContextManager[Any]:
        """Autocast of the case's precision; nothing for fp32 and tf32."""
        dtype = AUTOCAST_TYPES.get(self.case.precision)
        if dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=dtype, cache_enabled=self.cache_enabled)

    def step(self, index: int) -> Tensor:
        """Do one step of the case's task: a loss for train, the outputs for infer."""
        inputs, targets = self.batch(index)
        if self.new_tokens:
            return generate(self, Turn(self), index)
        if self.optimizer is None:
            return infer(self, inputs)
        return train(self, self.optimizer, inputs, targets)

    def edge_loss(self, result: Tensor, index: int) -> float:
        """Copy the loss of a finished step to the host; called at the edge of a round, never inside.

        In inference a model may answer with what its loss does not take: then a number of the outputs.
        """
        if self.optimizer is not None:
            return float(result)
        with torch.inference_mode(), self.autocast():
            try:
                return float(self.loss(result, self.batch(index)[1]))
            except Exception:  # noqa: BLE001 - the author's code, given what it was not written for
                return number_of(result)


def train(work: Work, optimizer: Optimizer, inputs: Any, targets: Any) -> Tensor:
    """One training step: zero the gradients, forward and loss under autocast, backward, update."""
    optimizer.zero_grad()
    with work.autocast():
        loss = work.loss(forward(work.model, inputs), targets)
    if work.scaler is None:
        loss.backward()
        optimizer.step()
    else:
        work.scaler.scale(loss).backward()
        work.scaler.step(optimizer)
        work.scaler.update()
    return loss.detach()


def number_of(outputs: Any) -> float:
    """Return the sum of the first floating tensor of a model's outputs, whatever they are; 0 without one."""
    return next((float(t.float().sum()) for t in tensors_of(outputs) if t.is_floating_point()), 0.0)


def infer(work: Work, inputs: Any) -> Tensor:
    """One forward pass without a trace of autograd."""
    with torch.inference_mode(), work.autocast():
        outputs: Tensor = forward(work.model, inputs)
        return outputs


class Turn:
    """One generation over a batch of prompts: its latest ids and scores, and how it goes on.

    A CUDA graph replays ``start`` and ``go_on`` over the same memory; that is why ids and place live on the
    device and are written in place.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.prompt_tokens = work.batches[0][0].shape[1]
        self.ids = torch.zeros(len(work.batches[0][0]), dtype=torch.int64, device=work.device)
        self.place = torch.zeros(1, dtype=torch.int64, device=work.device)
        self.scores: Tensor | None = None

    def start(self, index: int) -> None:
        """Compute the prompts and the first new token of each."""
        self._take(infer(self.work, self.work.batch(index)[0]))
        self.place.fill_(self.prompt_tokens)

    def go_on(self) -> None:
        """Add a token to every sequence."""
        with torch.inference_mode(), self.work.autocast():
            self._take(self.work.model.next(self.ids, self.place))  # type: ignore[operator]
        self.place.add_(1)

    def _take(self, scores: Tensor) -> None:
        """Choose the likeliest token; greedy, so that nothing is drawn."""
        self.ids.copy_(scores.argmax(-1))
        if self.scores is None:
            self.scores = torch.empty_like(scores)
        self.scores.copy_(scores)


def generate(
    work: Work,
    turn: Turn,
    index: int,
    start: Callable[[int], None] | None = None,
    go_on: Callable[[], None] | None = None,
) -> Tensor:
    """Generate every new token of one batch, each id copied to the host before the next is begun.

    Args:
        work: Its ``tokens_at_s`` takes the times.
        turn: The generation.
        index: Of the step, and so of the batch.
        start: In place of the turn's own, such as the replay of its graph.
        go_on: The same of one further token.

    Returns:
        The scores of the last token, (N, vocabulary).
    """
    began_s = time.perf_counter()
    (start or turn.start)(index)
    turn.ids.tolist()
    at_s = [time.perf_counter() - began_s]
    for _ in range(work.new_tokens - 1):
        (go_on or turn.go_on)()
        turn.ids.tolist()
        at_s.append(time.perf_counter() - began_s)
    work.tokens_at_s.append(tuple(at_s))
    assert turn.scores is not None
    return turn.scores


def built(reference: str, case: Case, seed: int) -> Task:
    """Build the task of a case on the CPU, by the case's recipe."""
    return load_workload(reference).at(case.recipe).build(case.batch_size, seed)


def seed_all(seed: int) -> None:
    """Fix the random numbers that a model may draw: those of torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - models draw from the global generator


def copied(task: Task, build_again: Callable[[], Task] | None = None) -> Task:
    """Build the model of a task once more, or copy it, and its loss with it where that is of a module.

    Args:
        task: It stays as it is.
        build_again: Gives the same task where no copy can be trained, as of a scripted module.
    """
    if task.again is not None:
        made = task.again()
        pairs = list(zip(made.model.parameters(), task.model.parameters(), strict=False))
        if all(new is not old for new, old in pairs):  # a file may hand out one model again and again
            with torch.no_grad():
                for new, old in pairs:  # drawn by a generator of its own they differ
                    new.copy_(old)
            return replace(made, batches=task.batches)
    is_module = isinstance(getattr(task.loss, "__self__", task.loss), nn.Module)
    try:
        model, loss = copy.deepcopy((task.model, task.loss if is_module else None))
        is_sound = all(p.is_leaf for p in model.parameters())
    except Exception as error:  # the author's code: old weight norms, locks and generators refuse
        if build_again is None or lacks_memory(error):
            raise
        is_sound = False
    if not is_sound and build_again is not None:
        return build_again()
    return replace(task, model=model, loss=task.loss if loss is None else loss)


def to_the_device(model: nn.Module, case: Case, device: torch.device) -> nn.Module:
    """Put a whole model on the device."""
    del case
    return model.to(device)


def move(task: Task, case: Case, device: torch.device, place: PlaceModel = to_the_device) -> Work:
    """Put a task on the device in the case's memory format; the model becomes the device's own.

    Args:
        task: On the CPU. Its model is moved, not copied: pass a copy to keep it. A model in float32 is cast
            where the case has its weights in half precision, and its inputs with it.
        case: What is to be measured.
        device: Where.
        place: Puts the model there; the processes of a job may each take a part.
    """
    train_it = case.task is TaskKind.TRAIN
    cast = HALF_TYPES.get(case.weight_type)
    model = task.model if cast is None else task.model.to(cast)
    if case.weight_type is WeightType.NF4:
        place_narrow(model, case, device)
    if case.precision.facts.in_blocks:
        compute_in_fp8(model, case.workload, device)
    model = set_mode(place(model, case, device), train=train_it)
    if case.weight_type in QUANTIZED:
        quantize(model, case.weight_type)
    if case.precision is Precision.INT8:
        compute_in_int8(model, case.workload, device)
    if case.memory_format is MemoryFormat.CHANNELS_LAST:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = tuple((to_device(x, device, case), to_device(y, device)) for x, y in task.batches)
    return Work(
        case=case,
        device=device,
        model=model,
        batches=batches,
        loss=task.loss,
        optimizer=make_optimizer(task.optimizer, model, case) if train_it else None,
        scaler=torch.amp.GradScaler(device.type)
        if train_it and case.precision.facts.scales_gradients
        else None,
        cache_enabled=case.execution.facts.caches_weights,
        new_tokens=task.new_tokens,
    )


def to_device(value: Any, device: torch.device, case: Case | None = None) -> Any:
    """Move every tensor in a value; inputs take the case's memory format and half-precision type.

    What has a ``to`` of its own moves itself; what holds no tensor stays as it is.
    """
    cast = None if case is None else HALF_TYPES.get(case.weight_type)
    images = 4

    def move_one(tensor: Tensor) -> Tensor:
        moved = tensor.to(device)
        if cast is not None and moved.is_floating_point():
            moved = moved.to(cast)
        if case is not None and case.memory_format is MemoryFormat.CHANNELS_LAST and moved.dim() == images:
            return moved.contiguous(memory_format=torch.channels_last)
        return moved

    def move_itself(part: Any) -> Any:
        return copy.copy(part).to(device) if callable(getattr(part, "to", None)) else None

    return with_tensors(value, move_one, move_itself)


def make_optimizer(factory: Callable[..., Optimizer], model: nn.Module, case: Case) -> Optimizer:
    """Make the optimizer fused where it can be, and capturable inside a graph.

    Fused Adam and SGD take the gradient scale themselves; unfused ones make GradScaler wait for the
    device at every step, which no graph allows.
    """
    options: dict[str, bool] = {"fused": True}
    if case.execution is Execution.GRAPH:
        options["capturable"] = True
    bound = getattr(factory, "keywords", {})
    accepted = _keywords(factory)
    options = {name: value for name, value in options.items() if name in accepted and name not in bound}
    parameters = [p for p in model.parameters() if p.requires_grad]
    sharded = any(hasattr(p, "to_local") for p in parameters)
    unfused = sharded and getattr(factory, "func", factory) not in FUSED_WHERE_SHARDED
    # Torch refuses these at the first step, not where the optimizer is made.
    sparse = any(getattr(module, "sparse", False) for module in model.modules())
    if unfused or sparse or any(p.is_complex() for p in parameters):
        options.pop("fused", None)
    try:
        return factory(parameters, **options)
    except RuntimeError:  # "fused=True requires ...": types or devices without a fused kernel
        options.pop("fused", None)
        return factory(parameters, **options)


def is_fused(optimizer: Optimizer | None) -> bool | None:
    """Whether every parameter group is updated by a fused kernel; None without an optimizer."""
    groups = getattr(optimizer, "param_groups", None)  # an optimizer need not be torch's
    return None if groups is None else all(group.get("fused") is True for group in groups)


def _keywords(factory: Callable[..., Optimizer]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # a callable of C code tells nothing
        return frozenset()
