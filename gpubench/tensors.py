"""Finds and replaces tensors in nested values, and intercepts operator calls."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode


def with_tensors(
    value: Any, change: Callable[[Tensor], Any], instead: Callable[[Any], Any] = lambda _: None
) -> Any:
    """Return the value with every nested tensor replaced.

    Lists, tuples, named tuples, mappings and dataclasses are rebuilt; other values are returned unchanged.

    Args:
        value: Any value.
        change: Maps a tensor to its replacement.
        instead: Returns a replacement for a part, which is then not searched; None to search it.
    """
    if isinstance(value, Tensor):
        return change(value)
    if (whole := instead(value)) is not None:
        return whole
    if isinstance(value, list | tuple):
        parts = [with_tensors(part, change, instead) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        found = {name: with_tensors(part, change, instead) for name, part in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return found
        made: Any = copy.copy(value)
        for name, part in found.items():  # the outputs of transformers refuse ``update``
            made[name] = part
        return made
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            changed = with_tensors(getattr(value, field.name), change, instead)
            object.__setattr__(made, field.name, changed)  # the only way for a frozen dataclass
        return made
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """Return every nested tensor in a value, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    with_tensors(value, note)
    return found


# Private accessors for ``sparse_coo``, because the public ones refuse a tensor that is not coalesced.
_PARTS_OF_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield every tensor in these arguments, nested in lists and tuples; a sparse tensor yields its parts."""
    for value in values:
        if isinstance(value, torch.Tensor):
            parts = _PARTS_OF_SPARSE.get(value.layout)
            yield from (getattr(value, part)() for part in parts) if parts else (value,)
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def has_sparse_gradients(model: nn.Module) -> bool:
    """Return whether a layer, such as an embedding, gives its weight a sparse gradient."""
    return any(getattr(module, "sparse", False) for module in model.modules())


def storage_id(tensor: Tensor) -> int:
    """Return an id of a tensor's storage for its lifetime; on the meta device there is no data address."""
    if tensor.layout is not torch.strided:
        return id(tensor)  # a sparse tensor has several storages
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - torch offers no other identity of a storage


# --- calls ------------------------------------------------------------------------------------------------


class EveryCall(TorchDispatchMode):
    """Passes every operator call inside the block to a function, which returns the result of the call.

    The function receives the operator, its arguments, and its keyword arguments. In inference mode torch does
    not split operators that consist of others, such as ``linear``; here they are split, as in other modes.
    """

    def __init__(self, call: Callable[[Any, Sequence[Any], dict[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's own check takes as long as a call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        out = result_of_parts(self, func, args, kwargs or {})
        return self._call(func, args, kwargs or {}) if out is NotImplemented else out


def result_of_parts(
    mode: TorchDispatchMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call the parts of a composite operator under a mode; NotImplemented if it has none or is already split.

    Torch splits composite operators itself, except in inference mode.
    """
    if not torch.is_inference_mode_enabled() or func.namespace == "prim":  # prim calls are queries
        return NotImplemented
    with mode:
        return func.decompose(*args, **kwargs)


@contextmanager
def replaced(owner: Any, **others: Callable[..., Any]) -> Iterator[None]:
    """Replace functions of a class or module inside the block."""
    with ExitStack() as after:
        for name, other in others.items():
            after.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, other)
        yield


@contextmanager
def plain_encoders() -> Iterator[None]:
    """Turn off, inside the block, the fast path of encoder layers in eval mode: its operators need values."""
    with ExitStack() as after:
        after.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield


@contextmanager
def plain_checks() -> Iterator[None]:
    """Let torch's checks pass immediately if their condition is True, inside the block.

    Torch would first ask whether the condition is symbolic, which takes longer than most of its rules for
    tensors without values.
    """
    check = torch._check_with  # noqa: SLF001 - all of torch's checks call it

    def checked(error: type[Exception], condition: Any, message: Any) -> None:
        if condition is not True:
            check(error, condition, message)

    with replaced(torch, _check_with=checked):
        yield


@contextmanager
def autocast_on_cpu(*devices: str) -> Iterator[None]:
    """Make a model's own autocast for these devices apply to the CPU, inside the block."""
    start = torch.autocast.__init__

    def on_cpu(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        start(self, "cpu" if device_type in devices else device_type, *args, **kwargs)

    with replaced(torch.autocast, __init__=on_cpu):
        yield


_MOVING = {"cuda", "pin_memory", "to"}
_CHANGING = (torch.dtype, torch.memory_format, Tensor)


@contextmanager
def off_gpu() -> Iterator[None]:
    """Keep a model's tensors off a GPU that its code names or makes the default, inside the block.

    It is active while a model is built, traced, or run as the reference. Many scripts check
    ``torch.cuda.is_available()`` once and then always name that device.
    """
    if isinstance(next(iter(_get_current_function_mode_stack()[-1:]), None), _OffGpu):
        yield  # every call passes each mode
        return
    with (
        _OffGpu(),
        replaced(torch, set_default_device=lambda _: None),  # which would also override the meta device
        replaced(
            torch.cuda, set_device=lambda _: None, device=lambda _: nullcontext(), current_device=lambda: 0
        ),
    ):
        yield


class _OffGpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = getattr(func, "__name__", "")
        if not kwargs and name not in _MOVING:
            return func(*args)  # nearly every call; even reading an attribute of a tensor is one
        kwargs = dict(kwargs or {})
        if _is_gpu(kwargs.get("device")):
            del kwargs["device"]
        if name in {"cuda", "pin_memory"}:
            return args[0]
        # A move to a GPU, named by position or by the keyword that was just removed.
        if name == "to" and (_is_gpu(args[1] if len(args) > 1 else None) or len(args) == 1):
            args = (args[0], *(each for each in args[2:] if isinstance(each, _CHANGING)))
            if len(args) == 1 and not kwargs.keys() & {"dtype", "memory_format", "copy", "other"}:
                return args[0]
        return func(*args, **kwargs)


def _is_gpu(device: Any) -> bool:
    return type(device) is int or (isinstance(device, str | torch.device) and str(device).startswith("cuda"))
