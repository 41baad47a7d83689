"""Trace as on a GPU, without values: tensors are fake, and torch infers the result of each call only once.

Torch determines shape, type and storage of every result, and checks each call; a step has thousands of calls,
but only a few dozen different ones. Results are cached by operator, shapes, strides, types and all other
arguments, but not by a view's offset in its storage, which differs in each step of a loop. If anything else
might matter, torch computes the call every time.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from gpubench.profile.cuda_rules import RULES, cuda_rules, grouped_products_on_meta
from gpubench.tensors import (
    autocast_on_cpu,
    plain_checks,
    plain_encoders,
    replaced,
    result_of_parts,
    storage_id,
    tensors_in,
)

DEVICE = torch.ops.prim.device.default
"""The call that reads a tensor's device, made several times per operator."""
_FUSED_UPDATES = "aten::_fused_"
"""Start of the names of operators that update all weights in place; fake tensors have no rule for them."""
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
# Creates a result from the arguments of its call
_Answer = Callable[["QuickFakeMode", Sequence[Any]], Any]
# Takes an operator, its arguments, its keyword arguments and its result
_Note = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], object]


class QuickFakeMode(FakeTensorMode):
    """Torch's mode of fake tensors, with a cache.

    Attributes:
        calls: Operators called so far, excluding those that torch calls to compute a result.
    """

    def __init__(self, known: dict[Any, _Answer | None] | None = None, **options: Any) -> None:
        """Start with the cached answers ``known``, made under the same rules, and extend them."""
        super().__init__(**options)
        self.cache_enabled = False  # torch's own cache compares more, and takes several times as long
        self._answers = {} if known is None else known
        self._note: _Note | None = None
        self.calls = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and this check takes as long as an answer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer one call of an operator."""
        # No mode needs the functions called and attributes read here
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - torch offers no public way
            return self._dispatched(func, types, args, kwargs or {})

    def _dispatched(self, func: Any, types: Any, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
        if func is DEVICE:
            return args[0].fake_device
        note = self._note
        if note is None:
            return self._answered(func, types, args, given)
        out = result_of_parts(self, func, args, given)
        if out is not NotImplemented:
            return out
        self._note = None  # for the calls by which torch computes a result
        try:
            out = self._answered(func, types, args, given)
        finally:
            self._note = note
        note(func, args, given, out)
        return out

    @contextmanager
    def noting(self, note: _Note) -> Iterator[None]:
        """Pass every operator call inside the block to a function, with its result."""
        self._note = note
        try:
            yield
        finally:
            self._note = None

    def _answered(self, func: Any, types: Any, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
        self.calls += 1
        try:
            state = torch.get_default_dtype(), torch.is_inference_mode_enabled()
            key = (func, self._key(args), self._key(given.values()), *given, *state)
        except _Unknown:
            return self._ask(func, types, args, given)
        if key not in self._answers:
            out = self._ask(func, types, args, given)
            self._answers[key] = _answer(self, func, args, given, out)
            return out
        answer = self._answers[key]
        return self._ask(func, types, args, given) if answer is None else answer(self, args)

    def _ask(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        calls = self.calls
        if func.name().startswith(_FUSED_UPDATES):
            return None
        rule = RULES.get(func)  # torch refuses these, as their shapes depend on values
        out = rule(*args) if rule else super().__torch_dispatch__(func, types, args, kwargs)
        self.calls = calls
        return out

    def _key(self, values: Iterable[Any]) -> tuple[Any, ...]:
        # The properties of these arguments that determine the result; raises _Unknown if others may matter
        return tuple([self._part(value) for value in values])

    def _part(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            if value.fake_mode is not self or not _is_plain(value):
                raise _Unknown
            return value.shape, value.stride(), value.dtype, value.fake_device
        if kind in {list, tuple}:
            return kind, self._key(value)
        if kind not in _PLAIN:
            raise _Unknown
        return kind, value


def _is_plain(tensor: FakeTensor) -> bool:
    # Whether shape and type describe a tensor fully; a complex tensor may be a conjugate
    return (
        tensor.constant is None
        and tensor.layout is torch.strided
        and not tensor.dtype.is_complex
        and not tensor.is_inference()
    )


class _Unknown(Exception):  # noqa: N818 - not an error: torch computes the result
    """An argument that shape and type do not describe fully."""


def _answer(
    mode: QuickFakeMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> _Answer | None:
    """Return how to create this result again; None if torch must compute it every time."""
    schema = getattr(func, "_schema", None)  # the only place where torch declares shared storage
    if schema is None or torch.Tag.inplace_view in func.tags or "resize" in schema.name:
        return None
    aliases = [r.alias_info for r in schema.returns]
    if not any(aliases):
        return _fresh(
            mode, out, {storage_id(t) for t in tensors_in((*args, *kwargs.values())) if type(t) is FakeTensor}
        )
    is_of_first = len(aliases) == 1 and type(out) is FakeTensor and args and type(args[0]) is FakeTensor
    if not is_of_first or storage_id(out) != storage_id(args[0]):
        return None
    if aliases[0].is_write:
        return (lambda _, args: args[0]) if out is args[0] else None
    # The offset of these is not relative to the first argument, or is in elements of another size
    if "as_strided" in schema.name or out.dtype is not args[0].dtype:
        return None
    return _view(mode, out, out.storage_offset() - args[0].storage_offset())


def _fresh(mode: QuickFakeMode, out: Any, of_arguments: set[int]) -> _Answer | None:
    """Return how to create a result that has its own storage: a tensor, or several, some possibly None.

    Return None if a tensor shares its storage with another or with an argument, so torch must compute the
    call.
    """
    if type(out) is FakeTensor:
        make = _tensor(mode, out, of_arguments)
        return None if make is None else lambda mode, _: make(mode)
    is_known = isinstance(out, tuple | list) and all(type(x) in {FakeTensor, type(None)} for x in out)
    if not is_known or len({storage_id(x) for x in out if x is not None}) < sum(x is not None for x in out):
        return None
    makes = [(lambda _: None) if x is None else _tensor(mode, x, of_arguments) for x in out]
    if None in makes:
        return None
    several = list if isinstance(out, list) else tuple
    return lambda mode, _: several([make(mode) for make in makes])  # type: ignore[misc]


def _tensor(
    mode: QuickFakeMode, out: FakeTensor, of_arguments: set[int]
) -> Callable[[QuickFakeMode], FakeTensor] | None:
    if storage_id(out) in of_arguments or not _is_plain(out):
        return None
    shape, stride, dtype, wrap = out.shape, out.stride(), out.dtype, _wrapping(mode, out.fake_device)
    size = out.untyped_storage().nbytes()

    def make(mode: QuickFakeMode) -> FakeTensor:
        return wrap(mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"))

    return make if make(mode).untyped_storage().nbytes() == size else None


def _view(mode: QuickFakeMode, out: FakeTensor, beyond: int) -> _Answer:
    # A view that begins this many elements after the first argument
    shape, stride, dtype, wrap = out.shape, out.stride(), out.dtype, _wrapping(mode, out.fake_device)

    def make(mode: QuickFakeMode, args: Sequence[Any]) -> FakeTensor:
        storage, offset = args[0].untyped_storage(), args[0].storage_offset() + beyond
        view = torch.empty((0,), dtype=dtype, device="meta").set_(storage, offset, shape, stride)
        return wrap(mode, view)

    return make


def _wrapping(mode: QuickFakeMode, device: torch.device) -> Callable[[QuickFakeMode, Tensor], FakeTensor]:
    """Return a function that turns a meta tensor into a fake one as torch's constructor does.

    The constructor also checks its arguments, which takes most of its time.
    """
    with in_kernel_invocation_manager(mode):
        first = FakeTensor(mode, torch.empty(0, device="meta"), device)
    state, named = dict(vars(first)), first.fake_device  # with its index

    def wrap(mode: QuickFakeMode, tensor: Tensor) -> FakeTensor:
        made: Any = Tensor._make_subclass(  # noqa: SLF001 - as the constructor does
            FakeTensor, tensor, False, dispatch_device=True, device_for_backend_keys=named
        )
        vars(made).update(state, fake_mode=mode)
        return made  # type: ignore[no-any-return]

    return wrap


_KNOWN: dict[Any, _Answer | None] = {}
"""All answers of this process: the traces of a model at other recipes and batch sizes share most calls."""


# --- a GPU without values --------------------------------------------------------------------------------


@contextmanager
def gpu_without_values() -> Iterator[QuickFakeMode]:
    """Make tensors fake inside the block, and treat them as a GPU would.

    Garbage collection is off inside the block, since its timing differs from run to run.
    """
    gc.collect()
    with ExitStack() as after, warnings.catch_warnings():
        if gc.isenabled():
            after.callback(gc.enable)
        gc.disable()
        # copying fake tensors warns; the model's own warnings were shown before
        warnings.simplefilter("ignore")
        quick = QuickFakeMode(_KNOWN, allow_non_fake_inputs=True)
        autocast = autocast_on_cpu("cuda", "meta")  # the tensors are on the CPU, with the rules of a GPU
        for rules in (
            plain_encoders(),
            plain_checks(),
            _no_draws(),
            grouped_products_on_meta(),
            cuda_rules(),
            autocast,
        ):
            after.enter_context(rules)
        with quick as mode, _plain_casts(), _plain_copies():
            yield mode


@contextmanager
def _no_draws() -> Iterator[None]:
    # Skip truncated normal initialization inside the block: torch rejects draws by their value.
    with replaced(nn.init, _no_grad_trunc_normal_=lambda tensor, *_, **__: tensor):
        yield


@contextmanager
def _plain_casts() -> Iterator[None]:
    """Let a model be cast inside the block, as by ``.to(torch.bfloat16)``: torch's own swap rejects fakes."""
    known: dict[int, tuple[Any, Any]] = {}  # holds the old weight too, so that no other gets its address

    def apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        for child in self.children() if recurse else ():
            child._apply(fn)  # noqa: SLF001 - as torch does; a recurrent layer overrides it
        for name, weight in self._parameters.items():
            if weight is not None:
                if id(weight) not in known:
                    known[id(weight)] = weight, nn.Parameter(fn(weight.detach()), weight.requires_grad)
                self._parameters[name] = known[id(weight)][1]
        for name, buffer in self._buffers.items():
            self._buffers[name] = None if buffer is None else fn(buffer)
        return self

    with replaced(nn.Module, _apply=apply):
        yield


@contextmanager
def _plain_copies() -> Iterator[None]:
    """Let a model be copied inside the block: torch's deep copy includes the mode, and crashes."""

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)]._is_param = isinstance(self, nn.Parameter)  # noqa: SLF001 - as torch does
        return memo[id(self)]

    with replaced(FakeTensor, __deepcopy__=copied):
        yield


@contextmanager
def numpy_bytes() -> Iterator[list[int]]:
    """List the bytes of each NumPy array that becomes a tensor inside the block: these have values."""
    seen: list[int] = []

    def counted(make: Callable[..., Any]) -> Callable[..., Any]:
        def inner(data: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(int(getattr(data, "nbytes", 0)))
            return make(data, *args, **kwargs)

        return inner

    makers = {name: counted(getattr(torch, name)) for name in ("from_numpy", "as_tensor", "tensor")}
    with replaced(torch, **makers):
        yield seen
