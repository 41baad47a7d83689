"""A fast wrong answer is not an answer: is the step's arithmetic right, and does a graph do the same work?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpubench.measure.budget import REFERENCE_SAMPLES
from gpubench.measure.execution import Advance, prepare
from gpubench.measure.launch import largest_difference, relative_difference
from gpubench.measure.precision import relative_error
from gpubench.measure.step import Work, to_device
from gpubench.models import Case, Execution, TaskKind
from gpubench.workload import Task, forward

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)  # noqa: SLF001 - common bases
_TRAINING = (*_NORMS, nn.RNNBase)
"""What stays in training mode while dropout is off: else cuDNN computes no gradient of a recurrent layer."""


class Expected(NamedTuple):
    """What a task gives on the CPU in the type of its weights, float32 if not asked for otherwise.

    Attributes:
        outputs: In inference, of at most four samples, (n, ...); None in training, of a model without weights
            (an input pipeline draws what it gives), and where weights are of fewer bits than float32: then
            the CPU errs as the device does, and is no reference for outputs.
    """

    loss: float
    outputs: Tensor | None = None


class Errors(NamedTuple):
    """How far a case is from what the CPU gives, relative; None where that is not known."""

    loss: float | None
    outputs: float | None = None


def reference_errors(work: Work, task: Task, expected: Expected | None = None) -> Errors:
    """Return how far first loss and outputs are from those of the CPU; see ``Expected``.

    The error of outputs is that of all of them, ``|x - y| / |y|``.

    Dropout is off, batch norm works as the case's task has it, and both sides see the same slice of at most
    four samples.

    Args:
        work: The model on its device, untouched by any step.
        task: The same task on the CPU.
        expected: What it gives, where that is known: it is the same for every precision and execution.
    """
    inputs, targets = _reference_batch(task, work.case)
    train = work.case.task is TaskKind.TRAIN
    if expected is None:
        expected = expected_of(task, work.case)
    with torch.no_grad(), steady(work.model, train=train), work.autocast():
        on_device = forward(work.model, to_device(inputs, work.device, work.case))
        found = float(work.loss(on_device, to_device(targets, work.device)))
    loss = relative_difference(found, expected.loss)
    if expected.outputs is None:
        return Errors(loss)
    error = relative_error(on_device.cpu(), expected.outputs.double())
    return Errors(loss, error if math.isfinite(error) else None)


def expected_of(task: Task, case: Case) -> Expected:
    """Return what a task gives on the CPU, of at most four samples."""
    inputs, targets = _reference_batch(task, case)
    train = case.task is TaskKind.TRAIN
    with torch.no_grad(), steady(task.model, train=train):
        outputs = forward(task.model, inputs)
        loss = float(task.loss(outputs, targets))
    types = {p.dtype for p in task.model.parameters() if p.is_floating_point()}
    is_kept = not train and types == {torch.float32} and isinstance(outputs, Tensor)
    return Expected(loss, outputs if is_kept else None)


def graph_error(work: Work, advance: Advance) -> float | None:
    """Return how far the losses of two replays, or compiled steps, are from two eager ones, relative.

    Both start from the same state. Two steps, so that the second loss depends on the update that the first
    one made. A replay takes the random numbers of dropout from the generator as a step does; compiled code
    and recurrent layers draw their own: there dropout is off, and the step is captured once more without it.
    Afterwards the state is what it was.
    """
    train = work.case.task is TaskKind.TRAIN
    drops_inside = train and any(isinstance(m, nn.RNNBase) and m.dropout for m in work.model.modules())
    alike: AbstractContextManager[None] = nullcontext()
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
    """Turn off what is random in training (dropout) and leave mode and buffers as they were.

    Batch norm takes the statistics of its batch in training and its running ones in inference. Recurrent
    layers stay in training mode with a dropout of 0.
    """
    before = {module: module.training for module in model.modules()}
    dropouts = {module: module.dropout for module in before if isinstance(module, nn.RNNBase)}
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train(train)
    for module in before:
        module.training = module.training and isinstance(module, _TRAINING)
    for module in dropouts:
        module.dropout = 0.0
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
        for module, dropout in dropouts.items():
            module.dropout = dropout
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


class _State:
    """Parameters, buffers, optimizer moments and gradient scale at one moment, to return to."""

    def __init__(self, work: Work) -> None:
        self._live = list(work.model.buffers())
        if work.optimizer is not None:  # else parameters stay as they are
            self._live += work.model.parameters()
            for state in work.optimizer.state.values():
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
    torch.manual_seed(0)
    return [work.edge_loss(advance(index), index) for index in range(2)]


def _reference_batch(task: Task, case: Case) -> tuple[Any, Any]:
    """The first samples of the first batch, and of each the tokens that a CPU computes in a moment."""
    inputs, targets = (_slice(part, case.batch_size, task.reference_tokens) for part in task.batches[0])
    return inputs, targets


def _slice(value: Any, batch_size: int, tokens: int | None) -> Any:
    """Take the first samples of every tensor whose first dimension is the batch; leave the others whole."""
    if isinstance(value, tuple):
        return tuple(_slice(part, batch_size, tokens) for part in value)
    if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != batch_size:
        return value
    samples = value[:REFERENCE_SAMPLES]
    return samples if tokens is None or value.dim() == 1 else samples[:, :tokens]
