"""What stands in for kernels that run on a GPU only, where a step is counted without one.

Each is taken to give a tensor like the largest that it takes, and to keep what it takes for its backward
pass. That is enough for a bound of the memory; of its arithmetic nothing is known.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction
from torch.utils._python_dispatch import TorchDispatchMode

from gpubench.own_files import own_line

HINT = "as a torch.library.custom_op with register_fake it could be"
_NO_KERNEL = re.compile(r"Could not run '([^']+)' with arguments from the '(?:CPU|Meta)' backend")
_NO_FAKE = re.compile(r"no fake impl registered|" + _NO_KERNEL.pattern)
_WANTS_CUDA = re.compile(r"\bis_cuda\b|\b(?:cuda|gpu)\b", re.IGNORECASE)
_TRITON_WANTS_CUDA = re.compile(r"\b0 active drivers\b|cannot be accessed from Triton \(cpu tensor")


def missing_kernel(error: BaseException | None) -> str | None:
    """Say which kernel a step lacks away from a GPU; None where an error is anything else.

    The dispatcher of torch says so, or an assertion of the model's on the device of a tensor, or what an
    autograd function calls: an extension by its check of the device, or Triton, which finds no driver.

    >>> missing_kernel(NotImplementedError("Could not run 'a::b' with arguments from the 'CPU' backend."))
    'a::b has no kernel for the CPU'
    >>> missing_kernel(ValueError("shapes cannot be multiplied")) is None
    True
    """
    if isinstance(error, NotImplementedError) and (found := _NO_KERNEL.search(str(error))):
        place = own_line(error)
        return f"{found[1]} has no kernel for the CPU" + (f" ({place})" if place else "")
    if error is None or not _wants_cuda(error):
        return None
    place = own_line(error)
    return "a kernel of its own takes CUDA tensors alone" + (f" ({place})" if place else "")


def _wants_cuda(error: BaseException) -> bool:
    if isinstance(error, AssertionError):
        frames = traceback.extract_tb(error.__traceback__)
        line = frames[-1].line or "" if frames else ""
        return bool(_WANTS_CUDA.search(f"{error} {line}"))
    if not isinstance(error, RuntimeError | ValueError):
        return False
    # Its line may say CUDA and mean something else: here the message alone tells
    says = _WANTS_CUDA.search(str(error)) or _TRITON_WANTS_CUDA.search(str(error))
    return bool(says and functions_of(error))


def functions_of(error: BaseException) -> set[type]:
    """Return the user's autograd functions that an error passed through."""
    codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    return {
        each
        for each in _below(torch.autograd.Function)
        if any(
            getattr(getattr(each, name, None), "__code__", None) in codes for name in ("forward", "backward")
        )
    }


@contextmanager
def standing_in(functions: Sequence[type]) -> Iterator[None]:
    """Let these autograd functions, and each operator without a kernel, give a tensor like its largest."""

    class Missing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            try:
                return func(*args, **(kwargs or {}))
            except (NotImplementedError, RuntimeError) as error:
                if not _NO_FAKE.search(str(error)):
                    raise
                like = _largest((*args, *(kwargs or {}).values()))
                outs = [like.clone() for _ in func._schema.returns]  # noqa: SLF001 - nothing else tells how many
                return tuple(outs) if len(outs) > 1 else next(iter(outs), None)

    names = {"forward": _forward, "backward": _backward, "setup_context": _SingleLevelFunction.setup_context}
    before = {each: {name: vars(each).get(name) for name in names} for each in functions}
    for each in functions:
        for name, function in names.items():
            setattr(each, name, staticmethod(function))
    try:
        with Missing():  # type: ignore[no-untyped-call]
            yield
    finally:
        for each, own in before.items():
            for name, theirs in own.items():
                delattr(each, name)
                if theirs is not None:  # it was not inherited
                    setattr(each, name, theirs)


def _forward(ctx: Any, *args: Any) -> Any:
    ctx.save_for_backward(*(a if isinstance(a, torch.Tensor) else None for a in args))
    return _largest(args).clone()


def _backward(ctx: Any, *_: Any) -> Any:
    return tuple(None if a is None or not a.is_floating_point() else a.clone() for a in ctx.saved_tensors)


def _largest(values: Sequence[Any]) -> Any:
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if not tensors:
        raise RuntimeError("a kernel that takes no tensor has nothing that could stand in for what it gives")
    return max(tensors, key=lambda t: (t.is_floating_point(), t.numel()))


def _below(kind: type) -> Iterator[type]:
    each: type
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
