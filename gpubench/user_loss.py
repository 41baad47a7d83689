"""Losses that use their own tensors: a loss module moves with the model; other tensors are detected."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gpubench.compiler import uncompiled
from gpubench.tensors import EveryCall, plain_checks, storage_id, tensors_in, tensors_of
from gpubench.workload import Task, forward, seeded

# Functions and methods that put a tensor on the device of another, or on a named device.
_MOVING = frozenset({"to", "type_as", "cuda", "tensor", "as_tensor", "new_tensor"})
_PLACES = (str, torch.device, Tensor)
# Operators that also accept their second argument, a source or indices, from the host.
_FROM_HOST = frozenset({"aten::copy_", "aten::index", "aten::index_put_", "aten::_index_put_impl_"})


class ModelWithLoss(nn.Module):
    """A model together with its loss module, so both are moved and trained.

    Calling it calls the model. ``train()`` sets only the model's mode; the loss keeps its author's.
    """

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the model."""
        return self.model(*inputs, **named)

    def train(self, mode: bool = True) -> ModelWithLoss:
        """Set the mode of the model."""
        self.training = mode
        self.model.train(mode)
        return self


def with_loss(model: nn.Module, loss: Callable[..., Any]) -> tuple[nn.Module, Callable[..., Any]]:
    """Return a model and its loss. If the loss is a module with tensors, the returned model includes it.

    The same goes for a loss that is a method of a module. The modules of the loss are copied, because builds
    may share one loss, and moving one build to the meta device must not move the others. The copies share the
    tensors; modules that are also in the model are not copied.
    """
    module = getattr(loss, "__self__", loss)
    if not isinstance(module, nn.Module) or not [*module.parameters(), *module.buffers()]:
        return model, loss
    own = {id(part) for part in model.modules()}
    if id(module) in own:  # a method of the model: its tensors are already moved and trained
        return model, loss
    # Tensors that are plain attributes of the modules, as in a spectral norm.
    attributes = (tensors_in(vars(part).values()) for part in module.modules())
    tensors = (*module.parameters(), *module.buffers(), *chain.from_iterable(attributes))
    own_loss: Any = copy.deepcopy(loss, {id(part): part for part in (*model.modules(), *tensors)})
    return ModelWithLoss(model, getattr(own_loss, "__self__", own_loss)), own_loss


def loose_tensor(task: Task) -> str | None:
    """Describe a tensor that a loss uses but neither the loss nor the model registers; None if there is none.

    A single number on the CPU works on every device, and tensors that the loss moves itself are fine. The
    forward pass and the loss are run to find out; if one fails, the result is what was found until then.
    """
    watch = _Watch(task)
    # Errors are suppressed, because the trace of the step reports them.
    with uncompiled(), seeded(0), suppress(Exception), plain_checks(), watch, EveryCall(watch.call):
        outputs = forward(task.model, task.batches[0][0])
        watch.is_loss = True
        task.loss(outputs, task.batches[0][1])
    return watch.found


class _Watch(TorchFunctionMode):
    """Tracks the storages of tensors that move with the model, and of tensors derived from them."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.is_loss = False
        self.found: str | None = None
        self._known: dict[int, Any] = {}
        self._note([task.batches[0], [*task.model.parameters(), *task.model.buffers()]])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Mark tensors that the author moves as known; a move to the same device never reaches ``call``."""
        del types
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        given = [*(args if name == "new_tensor" else args[1:]), *(kwargs or {}).values()]
        if name in _MOVING and any(isinstance(each, _PLACES) for each in given):
            self._note(out)
        return out

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator, and check whether it combines a tensor of unknown origin with a known one."""
        name = func._schema.name  # noqa: SLF001 - an operator has no public name
        on_device = (*args[:1], *args[2:]) if name in _FROM_HOST else args
        taken = [*tensors_in(on_device), *tensors_in(kwargs.values())]
        foreign = [tensor for tensor in taken if storage_id(tensor) not in self._known]
        is_mixed = len(foreign) < len(taken)
        if self.is_loss and is_mixed and self.found is None:
            self.found = next(
                (f"one of shape {tuple(t.shape)}, in {name}" for t in foreign if t.dim() or t.requires_grad),
                None,
            )
        out = func(*args, **kwargs)
        # Also known: results of known tensors, tensors made without inputs, and all of the forward pass.
        if is_mixed or not taken or not self.is_loss:
            self._note(out)
        return out

    def _note(self, value: Any) -> None:
        for part in tensors_in(tensors_of(value)):
            self._known[storage_id(part)] = part.untyped_storage()  # kept alive: no address is reused
