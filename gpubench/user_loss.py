"""A loss with tensors of its own: as a module it goes wherever the model goes, else it is refused."""

from __future__ import annotations

import copy
import dis
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

_MOVING = frozenset({"to", "type_as"})
"""Methods that take a tensor to the device of another."""
_REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})
_DEPTH = 4


class Joined(nn.Module):
    """A model, and the module of its loss beside it, so that whatever is done to one is done to both.

    Calling it calls the model, and its mode is the model's: the loss keeps the mode that its author gave it.
    """

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *inputs: Any) -> Any:
        """Call the model."""
        return self.model(*inputs)

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
    if not isinstance(module, nn.Module) or not _has_tensors(module):
        return model, loss
    own = {id(part) for part in model.modules()}
    if id(module) in own:  # a method of the model: what it reads is moved and trained already
        return model, loss
    shared = (*model.modules(), *module.parameters(), *module.buffers())
    own_loss: Any = copy.deepcopy(loss, {id(part): part for part in shared})
    return Joined(model, getattr(own_loss, "__self__", own_loss)), own_loss


def loose_tensor(loss: Any) -> str | None:
    """Say where a loss keeps a tensor that no module of its own registers; None where it keeps none.

    A single number on the CPU works on every device, and what the loss moves itself is no fault.

    >>> import torch
    >>> weight = torch.ones(4)
    >>> loose_tensor(functools.partial(nn.functional.cross_entropy, weight=weight))
    'weight of its functools.partial'
    >>> loose_tensor(lambda outputs, targets: (weight * outputs).sum())
    'weight, which its function finds outside'
    >>> loose_tensor(nn.CrossEntropyLoss(weight=weight)) is None
    True
    """
    return next(_loose(loss, type(loss).__name__, is_moved=True, seen=set()), None)


def _loose(value: Any, place: str, *, is_moved: bool, seen: set[int], depth: int = 0) -> Iterator[str]:
    """Yield the place of each loose tensor; what ``is_moved`` registers goes wherever the model goes."""
    if isinstance(value, Tensor) and (value.dim() > 0 or value.requires_grad):
        yield place
    if isinstance(value, Tensor | type | ModuleType) or id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        if not is_moved and _has_tensors(value):
            yield place
        for child in value.children():
            yield from _loose(child, place, is_moved=is_moved, seen=seen, depth=depth + 1)
    if isinstance(value, MethodType) and not _moves(value.__func__):
        yield from _loose(value.__self__, f"{place}.__self__", is_moved=is_moved, seen=seen, depth=depth)
    for name, part in _held_by(value):
        yield from _loose(part, name or place, is_moved=False, seen=seen, depth=depth + 1)


def _held_by(value: Any) -> Iterable[tuple[str, Any]]:
    """Return what a value refers to and no module registers, each with its place for people."""
    if isinstance(value, FunctionType):
        return _held_by_function(value)
    if isinstance(value, MethodType):
        return [("", value.__func__)]
    if isinstance(value, functools.partial):
        given = (*enumerate(value.args), *value.keywords.items())
        return [
            ("its functools.partial", value.func),
            *((f"{n} of its functools.partial", v) for n, v in given),
        ]
    if isinstance(value, Mapping):
        return [("", part) for part in value.values()]
    if isinstance(value, list | tuple | set):
        return [("", part) for part in value]
    return _held_by_object(value) if hasattr(value, "__dict__") else ()


def _held_by_object(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, and the function that calling it runs."""
    name = "forward" if isinstance(value, nn.Module) else "__call__"
    called = getattr(type(value), name, None)
    if isinstance(called, FunctionType):
        if _moves(called):
            return
        yield "", called
    for name, part in vars(value).items():
        if not (isinstance(value, nn.Module) and name in _REGISTERED):
            yield f"attribute {name}", part


def _held_by_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function finds outside of its arguments: defaults, closure, names of its file."""
    if (function.__module__ or "").partition(".")[0] == "torch" or _moves(function):
        return
    code, found = function.__code__, dict[str, Any]()
    defaults = function.__defaults__ or ()
    found.update(zip(reversed(code.co_varnames[: code.co_argcount]), reversed(defaults), strict=False))
    found.update(function.__kwdefaults__ or {})
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is not bound yet
            found[name] = cell.cell_contents
    found.update({name: function.__globals__.get(name) for name in sorted(_names(code))})
    yield from ((f"{name}, which its function finds outside", part) for name, part in found.items())


def _moves(function: Any) -> bool:
    """Whether a function takes a tensor that it was not handed to another device."""
    return isinstance(function, FunctionType) and _moves_in(
        function.__code__, len(function.__defaults__ or ())
    )


def _moves_in(code: CodeType, defaults: int = 0) -> bool:
    """The same of its code: moving what it is handed, or casting to another type, moves nothing it holds."""
    handed = code.co_varnames[: code.co_argcount - defaults]
    read = tuple(dis.get_instructions(code))
    for at, instruction in enumerate(read):
        if instruction.opname in {"LOAD_METHOD", "LOAD_ATTR"} and instruction.argval in _MOVING:
            of = read[at - 1]
            is_handed = of.opname.startswith("LOAD_FAST") and _last(of.argval) in handed
            if not (is_handed and _last(of.argval) != "self") and not _is_cast(read[at + 1 : at + 4]):
                return True
    return any(_moves_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))


def _last(names: str | tuple[str, ...]) -> str:
    """Return the name on top of the stack: some instructions load two."""
    return names if isinstance(names, str) else names[-1]


def _is_cast(called_with: Sequence[dis.Instruction]) -> bool:
    """Whether a call has one argument that is a type: ``torch.long``, or the ``dtype`` of something."""
    _, name, call = called_with
    is_type = name.argval == "dtype" or isinstance(getattr(torch, str(name.argval), None), torch.dtype)
    return is_type and (call.opname in {"PRECALL", "CALL"} or call.argval == ("dtype",))


def _names(code: CodeType) -> set[str]:
    """Return the names outside of its own that a function reads, with those of functions inside of it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _has_tensors(module: nn.Module) -> bool:
    return any(True for _ in (*module.parameters(), *module.buffers()))
