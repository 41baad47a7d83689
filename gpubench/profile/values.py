"""Values that a model reads from its tensors: by ``item()``, by ``numpy()``, or as the size of a selection.

A trace without values has two sources for what a model reads. The values of small tensors that follow from
the batch alone are computed beside the trace. All others were read in an earlier step that had values.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from gpubench.profile.cuda_rules import RULES
from gpubench.tensors import EveryCall, replaced, storage_id, tensors_in, with_tensors
from gpubench.units import MIB

# Largest tensors whose values are computed beside a trace: masks, lengths and positions of a batch
_MOST_FLOATS = 2**16
_MOST_BYTES = 4 * MIB
# Limit for all of them together, and the CPU time after which no more values are computed
_MOST_KEPT_BYTES = 512 * MIB
_MOST_KNOWN_S = 10.0
_READING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_TO_HOST = {Tensor.numpy, Tensor.tolist, Tensor.__array__}
_INDEXING = {Tensor.__getitem__, Tensor.__setitem__}
_MAKING = {torch.tensor, torch.as_tensor}
_ONE_HOT = torch.nn.functional.one_hot
_ON_HOST = {*_TO_HOST, *_INDEXING, *_MAKING, _ONE_HOT}
_NUMBER = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - what ``item()`` calls
_NONZERO = torch.ops.aten.nonzero.default

Call = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
Key = tuple[Any, tuple[int, ...], Any]
Reads = dict[Key, list[Any]]
"""What one pass read, in order: by the operator that read it, and the shape and kind of the tensor."""


class _OnHost(TorchFunctionMode):
    """Passes some calls that are not operators to a handler: reads by the host, indexing, and constants."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        call = self._call if func in _ON_HOST else lambda func, args, kwargs: func(*args, **kwargs)
        return call(func, args, kwargs or {})


@dataclass(frozen=True)
class _Selected:
    """Shape and type of each result of a selection.

    Attributes:
        parts: The results; the type is None if it is that of the input.
        is_one: Whether the result is one tensor, not a tuple.
    """

    parts: tuple[tuple[torch.Size, torch.dtype | None], ...]
    is_one: bool

    def like(self, tensor: Tensor) -> Any:
        """Return new tensors of these sizes, on the device of the given one."""
        made = tuple(tensor.new_empty(shape, dtype=dtype or tensor.dtype) for shape, dtype in self.parts)
        return made[0] if self.is_one else made


@contextmanager
def noted() -> Iterator[Reads]:
    """Note what is read from real tensors inside the block."""
    reads: Reads = {}

    def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # If the number of classes is given, a GPU reads no values
        if func is _ONE_HOT and (args[1:] or kwargs):
            before = {key: [*found] for key, found in reads.items()}
            out = func(*args, **kwargs)
            reads.clear()
            reads.update(before)
            return out
        for mask in _masks(func, args):
            _note(reads, torch.nonzero, mask, int(mask.count_nonzero()))
        out = func(*args, **kwargs)
        if _reads(func, args):
            _note(reads, func, args[0], out)
        return out

    with _OnHost(call), EveryCall(call):
        yield reads


@contextmanager
def given(reads: Reads) -> Iterator[Reads]:
    """Inside the block, answer reads from tensors without values by what an earlier step read, in a cycle."""
    answers = {key: itertools.cycle(found) for key, found in reads.items()}

    def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        masks = [(torch.nonzero, mask) for mask in _masks(func, args)]
        if masks and all(_key(*each) in answers for each in masks):
            return func(*_by_counts(args, [next(answers[_key(*each)]) for each in masks]), **kwargs)
        if func not in RULES and _reads(func, args) and (key := _key(func, args[0])) in answers:
            found = next(answers[key])
            return found.like(args[0]) if isinstance(found, _Selected) else copy.deepcopy(found)
        return func(*args, **_kept_on_meta(func, args, kwargs))

    # Reads one number at a time, unlike the ``tolist`` of a real tensor
    each_item = FakeTensor.tolist

    def tolist(fake: FakeTensor) -> Any:
        is_known = _key(Tensor.tolist, fake) in answers
        return call(Tensor.tolist, (fake,), {}) if is_known else each_item(fake)

    with replaced(FakeTensor, tolist=tolist), _OnHost(call), EveryCall(call):
        yield reads


@contextmanager
def numbers_as_1() -> Iterator[list[Any]]:
    """Answer reads of unknown numbers with 1 inside the block, and list the answers.

    This is for an update of the weights: the numbers that it reads, such as norms, change only values.
    """
    read: list[Any] = []

    def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func is not _NUMBER:
            return func(*args, **kwargs)
        # A fake tensor is not queried: its answers (see ``given``) are for the model's own reads, in order
        if not isinstance(args[0], FakeTensor):
            with suppress(RuntimeError):
                return func(*args, **kwargs)
        with _disable_current_modes():
            read.append(torch.ones((), dtype=args[0].dtype, device="cpu").item())
        return read[-1]

    with EveryCall(call):
        yield read


class Known:
    """Values, computed beside the trace, of small tensors on the meta device that follow from the batch.

    Attributes:
        has_missed: Whether an unknown value was read.
    """

    def __init__(self, *, others_as_1: bool = False, one_of: int = 1) -> None:
        """Start without values.

        Args:
            others_as_1: Whether an unknown number is read as 1, and an unknown condition as True.
            one_of: With ``others_as_1``, an unknown condition selects one in this many elements.
        """
        self.has_missed = False
        self._one_of = one_of
        self._reads: Reads = {}
        self._others_as_1 = others_as_1
        # By storage, so that a view has the values of its base; the weak reference keeps storage ids unique
        self._values: dict[int, tuple[StorageWeakRef, Tensor]] = {}
        self._bytes = 0
        self._until_s = time.process_time() + _MOST_KNOWN_S

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow all calls inside the block, and answer those that read values."""
        with _OnHost(self._on_function), EveryCall(self._on_operator):
            yield

    @contextmanager
    def reading(self) -> Iterator[Reads]:
        """Collect what is read inside the block."""
        self._reads = {}
        yield self._reads

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Treat the values of these tensors as unknown."""
        for tensor in tensors:
            self._values.pop(storage_id(tensor), None)

    def _valued(self, tensor: Tensor) -> Tensor:
        # The tensor with its values; raises KeyError if they are unknown
        if not tensor.is_meta:
            return tensor
        values = self._values[storage_id(tensor)][1]
        if values.dtype is not tensor.dtype:
            raise KeyError(tensor.dtype)
        return values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _on_function(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func in _INDEXING:  # torch turns a list into a tensor without a call that could be followed
            return func(args[0], _lists_as_tensors(args[1]), *args[2:], **kwargs)
        if func in _TO_HOST:
            with self._noting_misses():
                return self._read(func, args, kwargs)
        out = func(*args, **kwargs)
        if func in _MAKING and out.is_meta and not isinstance(args and args[0], Tensor):
            self._keep(out, func(*args, **{**kwargs, "device": "cpu"}).detach())
        return out

    def _on_operator(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if time.process_time() > self._until_s:
            self._values.clear()
        if func in RULES:  # a loss: a GPU's kernel copies the lengths to the host
            _note(self._reads, func, args[0], None)
        elif _reads(func, args):
            with self._noting_misses():
                return self._read(func, args, kwargs)
        if self._others_as_1 and func in {_NUMBER, _NONZERO} and args[0].is_meta:
            if func is _NUMBER:
                return torch.ones((), dtype=args[0].dtype).item()
            return args[0].new_empty((self._count(args[0]), args[0].dim()), dtype=torch.int64)
        counts: list[int] = []
        with self._noting_misses():
            counts = [self._count(mask) for mask in _masks(func, args)]
        for mask, count in zip(_masks(func, args), counts, strict=False):
            _note(self._reads, torch.nonzero, mask, count)
        given_args = _by_counts(args, counts) if counts else args
        out = func(*given_args, **_kept_on_meta(func, args, kwargs))
        self._follow(func, args, kwargs, out)
        return out

    def _count(self, mask: Tensor) -> int:
        # How many elements a condition selects; raises KeyError if that is unknown
        if self._others_as_1 and mask.is_meta and storage_id(mask) not in self._values:
            return mask.numel() // self._one_of
        return int(self._valued(mask).count_nonzero())

    @contextmanager
    def _noting_misses(self) -> Iterator[None]:
        try:
            yield
        except KeyError:
            self.has_missed = True

    def _read(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with _disable_current_modes():
            found = self._computed(func, args, kwargs)
            answer = _note(self._reads, func, args[0], found)
        if not isinstance(answer, _Selected) or not args[0].is_meta:
            return found
        out = answer.like(args[0])
        for meta, real in zip(tensors_in([out]), tensors_in([found]), strict=True):
            self._keep(meta, real)
        return out

    def _computed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        # The result with values; raises KeyError if those of an argument are unknown
        on_cpu = _blank if _takes_shape_only(func) else self._valued
        args, kwargs = with_tensors((args, dict(kwargs)), on_cpu)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return func(*args, **kwargs)

    def _follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Compute the values of a result if all arguments have values; otherwise forget what was written."""
        names = (spec.name for spec in func._schema.arguments)  # noqa: SLF001 - the only place where torch marks them
        bound = {**dict(zip(names, args, strict=False)), **kwargs}
        written = [
            tensor
            for spec in func._schema.arguments  # noqa: SLF001 - as above
            if (value := bound.get(spec.name)) is not None
            and spec.alias_info is not None
            and spec.alias_info.is_write
            for tensor in tensors_in([value])
        ]
        made = [tensor for tensor in tensors_in([out]) if storage_id(tensor) not in self._values]
        if not made and not written:
            return  # the results are views of known tensors
        if all(tensor.is_meta and _is_small(tensor) for tensor in made):
            with suppress(Exception), _disable_current_modes():
                found = self._computed(func, args, kwargs)
                for meta, real in zip(tensors_in([out]), tensors_in([found]), strict=True):
                    self._keep(meta, real)
                return
        self.forget(written)

    def _keep(self, meta: Tensor, real: Tensor) -> None:
        if meta.layout is not torch.strided or storage_id(meta) in self._values:
            return
        storage = meta.untyped_storage()
        with _disable_current_modes():
            values = torch.zeros(storage.nbytes() // meta.element_size(), dtype=meta.dtype, device="cpu")
            values.as_strided(meta.shape, meta.stride(), meta.storage_offset()).copy_(real)
        self._values[storage_id(meta)] = StorageWeakRef(storage), values
        self._bytes += values.nbytes
        if self._bytes > _MOST_KEPT_BYTES:
            self._values = {key: held for key, held in self._values.items() if not held[0].expired()}
            self._bytes = sum(held[1].nbytes for held in self._values.values())
            if self._bytes > _MOST_KEPT_BYTES / 2:
                self._values, self._bytes = {}, 0


def _is_small(tensor: Tensor) -> bool:
    is_float = tensor.is_floating_point() or tensor.is_complex()
    return tensor.numel() <= _MOST_FLOATS if is_float else tensor.nbytes <= _MOST_BYTES


@cache
def _takes_shape_only(func: Any) -> bool:
    name = getattr(func, "__name__", "").partition(".")[0]
    return name.startswith("new_") or name.endswith("_like")


def _blank(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _reads(func: Any, args: Sequence[Any]) -> bool:
    return _is_reading(func) and bool(args) and isinstance(args[0], Tensor)


@cache
def _is_reading(func: Any) -> bool:
    # The size of an index's result depends on values only if there is a mask, and masks are counted
    # separately
    return func in _TO_HOST or (bool(_READING & {*getattr(func, "tags", ())}) and not _is_index(func))


@cache
def _is_index(func: Any) -> bool:
    return getattr(func, "namespace", "") == "aten" and func._schema.name == "aten::index"  # noqa: SLF001


def _masks(func: Any, args: Sequence[Any]) -> list[Tensor]:
    if not _is_index(func):
        return []
    return [each for each in args[1] if each is not None and each.dtype in {torch.bool, torch.uint8}]


def _by_counts(args: Sequence[Any], counts: Sequence[int]) -> tuple[Any, ...]:
    """Return the arguments of an index operator; if the tensor has no values, indices replace masks."""
    if type(args[0]) is Tensor and not args[0].is_meta:
        return (*args,)
    found: list[Any] = []
    left = iter(counts)
    for each in args[1]:
        if each is None or each.dtype not in {torch.bool, torch.uint8}:
            found.append(each)
        else:
            count = next(left)
            found += [each.new_empty((count,), dtype=torch.int64) for _ in range(each.dim())]
    return args[0], found, *args[2:]


def _kept_on_meta(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call, without the device if it would copy from the meta device."""
    if func is torch.ops.aten._to_copy.default and args[0].is_meta:  # noqa: SLF001 - what ``cpu()`` calls
        return {name: value for name, value in kwargs.items() if name != "device"}
    return kwargs


def _key(func: Any, tensor: Tensor) -> Key:
    # All types of float are one kind, because autocast changes them
    kind = "float" if tensor.is_floating_point() else tensor.dtype
    return func, tuple(tensor.shape), kind


def _note(reads: Reads, func: Any, tensor: Tensor, found: Any) -> Any:
    """Note what was read from a tensor, and return what was noted: of tensors, shapes and types."""
    sizes = tuple(
        (part.shape, None if part.dtype is tensor.dtype else part.dtype) for part in tensors_in([found])
    )
    answer: Any = _Selected(sizes, isinstance(found, Tensor)) if sizes else copy.deepcopy(found)
    reads.setdefault(_key(func, tensor), []).append(answer)
    return answer


def are_checks(one: Reads, other: Reads) -> bool:
    """Return whether reads from two batches only check results: all are single floats or equal conditions."""
    if one.keys() != other.keys() or any(shape for _, shape, _ in one):
        return False
    pairs = [pair for key in one for pair in itertools.zip_longest(one[key], other[key])]
    return all(
        type(a) is type(b) and (isinstance(a, float) or (isinstance(a, bool) and a == b)) for a, b in pairs
    )


def _lists_as_tensors(index: Any) -> Any:
    """Return the index with tensors in place of lists of numbers or of conditions."""
    if isinstance(index, tuple):
        return tuple(_lists_as_tensors(part) for part in index)
    if isinstance(index, list) and index and all(isinstance(part, int) for part in index):
        return torch.tensor(index, device="cpu")
    return index
