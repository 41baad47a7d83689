"""A fast wrong answer is not an answer: is the step's arithmetic right, and does a graph do the same work?"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gpubench.measure.budget import REFERENCE_SAMPLES
from gpubench.measure.execution import Advance, prepare
from gpubench.measure.launch import largest_difference, relative_difference
from gpubench.measure.precision import relative_error
from gpubench.measure.step import Work, copied, seed_all, to_device
from gpubench.models import Case, Execution, TaskKind
from gpubench.tensors import OffGpu, tensors_of, with_tensors
from gpubench.workload import Batch, Task, forward, set_mode

_DROPOUT = ("drop", "stochasticdepth")
"""In the names of modules that drop at random while they are in training mode."""
RANDOM = "it draws random numbers in its forward pass, and a CPU draws others"
NO_NUMBER = "in inference it gives nothing of one form that both could be held by"
SAME_LOSS = 1e-6
"""Relative difference of two losses of the same step on the CPU, where rounding may differ by its threads."""


class Expected(NamedTuple):
    """What a task gives on the CPU in the type of its weights, float32 if not asked for otherwise.

    Attributes:
        loss: None where it says nothing of the device, and in inference where the loss does not take what the
            model answers then.
        outputs: In inference, of at most four samples, (n, ...); None in training, of a model without weights
            (an input pipeline draws what it gives), and where weights are of fewer bits than float32: then
            the CPU errs as the device does, and is no reference for outputs.
        is_whole: Whether it is of the whole batch, which a few samples could not be cut from.
        unchecked: Why nothing of it can be held against the device; None where something can.
        draws: Whether the forward pass draws random numbers, dropout apart.
        needs_grad: Whether it fails without autograd, because model or loss take derivatives.
        carries: Whether another pass of the same model gives another loss, because it carries something on.
        rebinds: Whether what it carries on are tensors that each pass makes anew.
    """

    loss: float | None
    outputs: Tensor | None = None
    is_whole: bool = False
    unchecked: str | None = None
    draws: bool = False
    needs_grad: bool = False
    carries: bool = False
    rebinds: bool = False


class Errors(NamedTuple):
    """How far a case is from what the CPU gives, relative; None where that is not known."""

    loss: float | None
    outputs: float | None = None


def reference_errors(work: Work, task: Task, expected: Expected | None = None) -> Errors:
    """Return how far first loss and outputs are from those of the CPU; see ``Expected``.

    The error of outputs is that of all of them, ``|x - y| / |y|``.

    Dropout is off, batch norm works as the case's task has it, and both sides see the same slice of at most
    four samples, or the whole batch where none can be cut.

    Args:
        work: The model on its device, untouched by any step.
        task: The same task on the CPU.
        expected: What it gives, where that is known: it is the same for every precision and execution.
    """
    if expected is None:
        expected = expected_of(task, work.case)
    if expected.unchecked is not None:
        return Errors(None)
    inputs, targets = task.batches[0] if expected.is_whole else _reference_batch(task, work.case)
    train = work.case.task is TaskKind.TRAIN
    loss = error = None
    with torch.set_grad_enabled(expected.needs_grad), steady(work.model, train=train), work.autocast():
        on_device = forward(work.model, to_device(inputs, work.device, work.case))
        if expected.loss is not None:
            found = work.loss(on_device, to_device(targets, work.device))
            loss = relative_difference(float(found.detach()), expected.loss)
    if expected.outputs is not None:
        error = relative_error(on_device.cpu(), expected.outputs.double())
    return Errors(loss, error if error is not None and math.isfinite(error) else None)


def expected_of(task: Task, case: Case) -> Expected:
    """Return what a task gives on the CPU, of at most four samples where these can be cut from its batch.

    It is computed twice, from two seeds: what draws random numbers, or gives two losses, has no reference. A
    user's own model is built anew for each, because a pass may leave its traces in it.
    """
    train = case.task is TaskKind.TRAIN
    ways = list(itertools.product((False, True) if train else (False,), (False, True)))
    for needs_grad, is_whole in ways:
        try:
            batch = task.batches[0] if is_whole else _reference_batch(task, case)
            spent = unspent(task)
            before = _held(spent.model)
            loss, outputs, draws = _on_cpu(spent, batch, train=train, seed=0, grad=needs_grad)
            break
        except Exception:  # the author's code may need more samples, or autograd
            if (needs_grad, is_whole) == ways[-1]:
                raise
    again, _, _ = _on_cpu(unspent(task), batch, train=train, seed=1, grad=needs_grad)
    carries = spent is not task and _differ(
        _on_cpu(spent, batch, train=train, seed=0, grad=needs_grad)[0], loss
    )
    rebinds = carries and any(a is not b for a, b in itertools.zip_longest(before, _held(spent.model)))
    has_weights = any(True for _ in task.model.parameters())
    if _differ(again, loss) or (draws and has_weights):
        return Expected(None, unchecked=RANDOM, draws=True, carries=carries, rebinds=rebinds)
    types = {p.dtype for p in task.model.parameters() if p.is_floating_point()}
    is_kept = not train and types == {torch.float32} and isinstance(outputs, Tensor)
    unchecked = NO_NUMBER if loss is None and not is_kept else None
    kept = outputs if is_kept else None
    return Expected(loss, kept, is_whole, unchecked, needs_grad=needs_grad, carries=carries, rebinds=rebinds)


def _held(model: nn.Module) -> list[Tensor]:
    """Return the tensors that the modules of a model hold on to, but for its parameters."""
    return [
        tensor
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in {"_parameters", "_modules"}
        for tensor in tensors_of(value)
    ]


def _differ(loss: float | None, other: float | None) -> bool:
    difference = None if loss is None or other is None else relative_difference(loss, other)
    return (difference or 0.0) > SAME_LOSS


def _on_cpu(
    task: Task, batch: Batch, *, train: bool, seed: int, grad: bool
) -> tuple[float | None, Any, bool]:
    """Return loss and outputs of a batch on the CPU, and whether random numbers were drawn for them.

    No loss is that of inference by a model whose answer its loss does not take.
    """
    inputs, targets = batch
    with (
        OffGpu(),
        torch.random.fork_rng(devices=[]),
        torch.set_grad_enabled(grad),
        steady(task.model, train=train),
    ):
        seed_all(seed)
        before = _randomness()
        outputs = forward(task.model, inputs)
        try:
            loss = float(torch.as_tensor(task.loss(outputs, targets)).detach())
        except Exception:
            if train:
                raise
            loss = None
        return loss, outputs, _randomness() != before


def unspent(task: Task) -> Task:
    """Return a task to be thrown away after a pass, where the model is a user's own; else the task itself."""
    return task if task.again is None else copied(task)


def _randomness() -> tuple[object, ...]:
    """Return the state of the generators that a model draws from on the CPU."""
    numbers = np.random.get_state(legacy=False)  # noqa: NPY002 - models draw from the global generator
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(numbers)


def graph_error(work: Work, advance: Advance, *, draws: bool = False, carries: bool = False) -> float | None:
    """Return how far the losses of two replays, or compiled steps, are from two eager ones, relative.

    Both start from the same state. Two steps, so that the second loss depends on the update that the first
    one made. A replay takes the random numbers of dropout from the generator as a step does; compiled code
    and recurrent layers draw their own: there dropout is off, and the step is captured once more without it.
    Afterwards the state is what it was.

    Args:
        work: The case, past its first steps.
        advance: Replays, or runs compiled steps.
        draws: Whether the forward pass draws random numbers, dropout apart; compiled code draws others.
        carries: As ``Expected`` has it: nothing brings such a model back to where it was.
    """
    train = work.case.task is TaskKind.TRAIN
    drops_inside = train and any(isinstance(m, nn.RNNBase) and m.dropout for m in work.model.modules())
    alike: AbstractContextManager[None] = nullcontext()
    if carries or (draws and (work.case.execution is Execution.COMPILE or drops_inside)):
        return None
    if work.case.execution is Execution.COMPILE or drops_inside:
        alike = steady(work.model, train=train)
    state = _State(work)
    with alike:
        if work.case.execution is Execution.GRAPH and drops_inside:
            advance = prepare(work)
            state.restore()
        eager = _two_losses(work, work.step)
        state.restore()
        prepared = _two_losses(work, advance)
    state.restore()
    return largest_difference(prepared, eager)


def fingerprint(model: nn.Module) -> list[Tensor]:
    """Return a copy of the start of every trained parameter, to see later whether any has moved.

    Of a sharded one what this process has: to gather it takes all processes.
    """
    trained = (p.detach() for p in model.parameters() if p.requires_grad)
    own = (p.to_local() if hasattr(p, "to_local") else p for p in trained)
    return [part.reshape(-1)[:1024].clone() for part in own]


def has_moved(model: nn.Module, before: list[Tensor]) -> bool:
    """Whether any trained parameter differs from its fingerprint."""
    return any(not torch.equal(a, b) for a, b in zip(fingerprint(model), before, strict=True))


@contextmanager
def steady(model: nn.Module, *, train: bool) -> Iterator[None]:
    """Turn dropout off and leave modes, rates and buffers as they were.

    In training all other modules stay in training mode, for a model may answer otherwise without: batch norm
    takes the statistics of its batch. Dropout is each module with "drop" in the name of its class, and each
    rate with "drop" in its name: that of a recurrent layer, of attention, of a function that takes it.
    """
    modules = {module: module.training for module in model.modules()}
    rates = [
        (module, name, rate)
        for module in modules
        for name, rate in vars(module).items()
        if "drop" in name.lower() and isinstance(rate, float)
    ]
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    set_mode(model, train=train)
    for module in modules:
        if any(word in type(module).__name__.lower() for word in _DROPOUT):
            module.training = False
    for module, name, _ in rates:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, training in modules.items():
            module.training = training
        for module, name, rate in rates:
            setattr(module, name, rate)
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


class _State:
    """Parameters, buffers, optimizer moments and gradient scale at one moment, to return to."""

    def __init__(self, work: Work) -> None:
        self._live = list(work.model.buffers())
        if work.optimizer is not None:  # else parameters stay as they are
            self._live += work.model.parameters()
            for state in getattr(work.optimizer, "state", {}).values():
                self._live += (value for value in state.values() if isinstance(value, Tensor))
        if work.scaler is not None:
            scale = (getattr(work.scaler, name, None) for name in ("_scale", "_growth_tracker"))
            self._live += (value for value in scale if isinstance(value, Tensor))
        self._kept = [tensor.detach().clone() for tensor in self._live]

    def restore(self) -> None:
        """Write the kept values into the same memory, which a captured graph goes on using."""
        with torch.no_grad():
            for tensor, kept in zip(self._live, self._kept, strict=True):
                tensor.copy_(kept)


def _two_losses(work: Work, advance: Advance) -> list[float]:
    seed_all(0)
    return [work.edge_loss(advance(index), index) for index in range(2)]


def _reference_batch(task: Task, case: Case) -> Batch:
    """The first samples of the first batch, and of each the tokens that a CPU computes in a moment."""
    inputs, targets = (_slice(part, case.batch_size, task.reference_tokens) for part in task.batches[0])
    return inputs, targets


def _slice(value: Any, batch_size: int, tokens: int | None) -> Any:
    """Take the first samples of every tensor, and of every list by sample, that is as long as the batch.

    Others stay whole.
    """

    def is_by_sample(part: Any) -> bool:
        return isinstance(part, Tensor) and part.dim() > 0 and len(part) == batch_size

    def cut(tensor: Tensor) -> Tensor:
        if not is_by_sample(tensor):
            return tensor
        samples = tensor[:REFERENCE_SAMPLES]
        return samples if tokens is None or tensor.dim() == 1 else samples[:, :tokens]

    def cut_list(part: Any) -> Any:
        by_sample = isinstance(part, list | tuple) and len(part) == batch_size > REFERENCE_SAMPLES
        return part[:REFERENCE_SAMPLES] if by_sample and not all(map(is_by_sample, part)) else None

    return with_tensors(value, cut, cut_list)
