"""A loss with its own tensors: a module moves with the model; anything else is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gpubench.tensors import EveryCall, storage_id, tensors_in, tensors_of
from gpubench.workload import Task, forward, seeded, uncompiled

_MOVING = frozenset({"to", "type_as", "cuda"})
"""Methods that take a tensor to the device of another, or to one that is named."""
_PLACES = (str, torch.device, Tensor)


class Joined(nn.Module):
    """A model, and the module of its loss beside it, so that both are moved and trained together.

    Calling it calls the model, and its mode is the model's; the loss keeps its author's mode.
    """

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the model."""
        return self.model(*inputs, **named)

    def train(self, mode: bool = True) -> Joined:
        """Set the mode of the model."""
        self.training = mode
        self.model.train(mode)
        return self


def joined(model: nn.Module, loss: Callable[..., Any]) -> tuple[nn.Module, Callable[..., Any]]:
    """Return a model and its loss, joined where the loss is a module with tensors, or a method of one.

    The modules of the loss become copies that hold the same tensors, but for those that the model has too: a
    file may keep one loss for all builds, and one build is put on the meta device.
    """
    module = getattr(loss, "__self__", loss)
    if not isinstance(module, nn.Module) or not [*module.parameters(), *module.buffers()]:
        return model, loss
    own = {id(part) for part in model.modules()}
    if id(module) in own:  # a method of the model: what it reads is moved and trained already
        return model, loss
    shared = (*model.modules(), *module.parameters(), *module.buffers())
    own_loss: Any = copy.deepcopy(loss, {id(part): part for part in shared})
    return Joined(model, getattr(own_loss, "__self__", own_loss)), own_loss


def loose_tensor(task: Task) -> str | None:
    """Return a tensor that a loss uses but neither it nor the model registers; None if there is none.

    A single number on the CPU works on every device, and what the loss moves itself is no fault. The step is
    tried for it, so a loss that is never reached has no such tensor either.
    """
    watch = _Watch(task)
    seen = EveryCall(watch.call)
    with uncompiled(), seeded(0), suppress(Exception), watch, seen:  # what else is wrong its trace will tell
        outputs = forward(task.model, task.batches[0][0])
        watch.is_loss = True
        task.loss(outputs, task.batches[0][1])
    return watch.found


class _Watch(TorchFunctionMode):
    """Knows the storage of each tensor that goes where the model goes, and of all that is made of it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.is_loss = False
        self.found: str | None = None
        self._known: dict[int, Any] = {}
        self._note([task.batches[0], [*task.model.parameters(), *task.model.buffers()]])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note what its author moves, which is no operator where it lies there already."""
        del types
        out = func(*args, **(kwargs or {}))
        given = [*args[1:], *(kwargs or {}).values()]
        if getattr(func, "__name__", "") in _MOVING and any(isinstance(each, _PLACES) for each in given):
            self._note(out)
        return out

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator, and see whether it takes a tensor of unknown origin beside a known one."""
        taken = [*tensors_in(args), *tensors_in(kwargs.values())]
        foreign = [tensor for tensor in taken if storage_id(tensor) not in self._known]
        is_mixed = len(foreign) < len(taken)
        if self.is_loss and is_mixed and self.found is None:
            shapes = (tuple(t.shape) for t in foreign if t.dim() or t.requires_grad)
            self.found = next((f"one of shape {shape}, in {func._schema.name}" for shape in shapes), None)  # noqa: SLF001
        out = func(*args, **kwargs)
        if is_mixed or not taken or not self.is_loss:
            self._note(out)
        return out

    def _note(self, value: Any) -> None:
        for tensor in tensors_of(value):
            for part in tensors_in([tensor]):
                self._known[storage_id(part)] = part.untyped_storage()  # held, or another had its address
