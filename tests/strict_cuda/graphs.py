"""CUDA graphs: a capture runs nothing that lasts, a replay computes the same again into the same memory.

Source: aten/src/ATen/cuda/CUDAGraph.cpp (capture_begin, capture_end, replay, reset) and
aten/src/ATen/cuda/CUDAGeneratorImpl.cpp (random numbers of a replay follow the generator, those of a capture
do not move it).
"""

from __future__ import annotations

import itertools
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from strict_cuda.machine import INVALIDATED, NOT_PERMITTED, RaceError

if TYPE_CHECKING:
    from strict_cuda.tensors import Device

_handles = itertools.count(1)


class Place(NamedTuple):
    """A tensor as a kernel sees it: some memory, and how it is read.

    ``inner`` numbers memory that the capture made; ``outer`` is memory that was there before.
    """

    inner: int | None
    outer: weakref.ref[Any] | None
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Step(NamedTuple):
    """One kernel of a capture; whether gradients were on decides what some operators keep for backward.

    The kernel is chosen at the capture: ``rounded`` says that it is one of tensor cores, whatever the switches
    say at a replay.
    """

    func: Any
    args: Any
    kwargs: Any
    out: Any
    random: bool
    rounded: bool
    grad: bool


class Recorder:
    """One capture: the kernels that are issued meanwhile, and what they must not have changed by its end."""

    def __init__(self, device: Device, pool: object) -> None:
        self.device = device
        self.pool = pool
        self.invalid = False
        self.steps: list[Step] = []
        self.inner: dict[int, int] = {}
        self.made: dict[int, weakref.ref[Any]] = {}
        self._numbers = itertools.count()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.random_state = device.random_state.clone()

    def created(self, key: int, storage: Any) -> None:
        """Memory that the capture makes."""
        number = self.inner[key] = next(self._numbers)
        self.made[number] = weakref.ref(storage)

    def forget(self, key: int) -> None:
        """Memory that is freed: its address may come again and mean something else."""
        self.inner.pop(key, None)

    def before(self, written: list[Tensor]) -> None:
        """Keep what memory from outside holds before the capture's own bookkeeping writes to it."""
        for tensor in written:
            key = tensor.untyped_storage()._cdata
            if key not in self.inner and key not in self._kept:
                flat = _whole(tensor)
                self._kept[key] = (flat, flat.clone())

    def record(self, func: Any, args: Any, kwargs: Any, out: Any, *, random: bool, rounded: bool) -> None:
        """Note one kernel."""
        places = (self._places(args), self._places(kwargs), self._places(out))
        self.steps.append(Step(func, *places, random, rounded, torch.is_grad_enabled()))

    def finish(self) -> None:
        """A capture executes nothing: what it wrote outside is undone, what it made holds no values."""
        for live, kept in self._kept.values():
            live.copy_(kept)
        self._kept.clear()
        self.device.random_state = self.random_state
        for alive in self.made.values():
            storage = alive()
            if storage is not None:
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)  # NaN in every float type

    def _places(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            key = value.untyped_storage()._cdata
            inner = self.inner.get(key)
            outer = None if inner is not None else weakref.ref(value.untyped_storage())
            return Place(
                inner, outer, value.dtype, tuple(value.shape), value.stride(), value.storage_offset()
            )
        if isinstance(value, list | tuple):
            return type(value)(self._places(part) for part in value)
        if isinstance(value, dict):
            return {name: self._places(part) for name, part in value.items()}
        return value


def graph_class(device: Device) -> type:
    """Make the class that stands for torch.cuda.CUDAGraph on a device."""
    machine = device.machine

    class CUDAGraph:
        """A recorded step."""

        def __init__(self, keep_graph: bool = False) -> None:
            self._recorder: Recorder | None = None
            self._pool: object = None
            self._ended = False
            self._stream = machine.stream

        def capture_begin(self, pool: object = None, **_: Any) -> None:
            if machine.stream is machine.default:
                raise RuntimeError(
                    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to "
                    "replay them on the default stream.)"
                )
            machine.call("capture_begin")
            if not any(s.issued for s in machine.streams if s is not machine.default):
                raise RaceError(
                    "nothing ran on a side stream before this capture: what is made at first use, such as "
                    "library handles and gradients, would be made inside it (docs/source/notes/cuda.rst)"
                )
            self._stream = machine.stream
            self._pool = (0, next(_handles)) if pool is None else pool
            machine.memory.underway.add(self._pool)
            machine.memory.current = self._pool
            self._recorder = machine.capture = Recorder(device, self._pool)

        def capture_end(self) -> None:
            if machine.stream is not self._stream:
                raise RuntimeError("Capture must end on the same stream it began on.")
            recorder, machine.capture = self._recorder, None
            assert recorder is not None
            machine.memory.current = None
            with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                recorder.finish()
            if not (recorder.invalid and machine.old_allocator):
                machine.memory.underway.discard(self._pool)
            if recorder.invalid:
                self._recorder = None
                raise RuntimeError(INVALIDATED)
            pool = machine.memory.pools.get(self._pool)
            if pool is not None:
                pool.graphs += 1
            self._ended = True

        def pool(self) -> object:
            if not self._ended:
                raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
            return self._pool

        def replay(self) -> None:
            recorder = self._recorder
            if recorder is None or not self._ended:
                raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
            if machine.capture is not None:
                raise RuntimeError(NOT_PERMITTED)
            machine.call("graph_launch")
            machine.spend(machine.replay_issue_s)
            with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                _replay(recorder, device)

        def reset(self) -> None:
            if self._ended:
                self._ended = False
                pool = machine.memory.pools.get(self._pool)
                if pool is not None:
                    pool.graphs -= 1

        __del__ = reset

    return CUDAGraph


def _replay(recorder: Recorder, device: Device) -> None:
    from strict_cuda.tensors import computed

    machine = device.machine
    memory: dict[int, Any] = {}

    def tensor(place: Place) -> Tensor:
        if place.inner is not None:
            storage = memory[place.inner]
        else:
            storage = place.outer()
            if storage is None:
                raise RaceError("a graph uses memory that was freed after its capture")
            block = device.blocks.get(storage._cdata)
            if block is not None and not machine.sees(block.written):
                raise RaceError(f"a graph uses what stream {block.written[0]} wrote, without waiting for it")
        return torch.empty(0, dtype=place.dtype).set_(storage, place.offset, place.size, place.stride)

    with torch._C._AutoDispatchBelowAutograd():
        for step in recorder.steps:
            with torch.set_grad_enabled(step.grad), device.drawing() if step.random else nullcontext():
                args, kwargs = _built(step.args, tensor), _built(step.kwargs, tensor)
                found = computed(step.func, args, kwargs, rounded=step.rounded)
            machine.run(step.func._schema.name)
            for place, made in zip(_leaves(step.out), _leaves(found), strict=True):
                if place.inner is not None:
                    memory.setdefault(place.inner, made.untyped_storage())
        for number, storage in memory.items():
            alive = recorder.made[number]()
            if alive is not None:
                target = torch.empty(0, dtype=torch.uint8).set_(alive)
                target.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
                device.blocks[alive._cdata].written = (machine.stream.number, machine.stream.issued)


def _built(value: Any, tensor: Any) -> Any:
    if isinstance(value, Place):
        return tensor(value)
    if isinstance(value, list | tuple):
        return type(value)(_built(part, tensor) for part in value)
    if isinstance(value, dict):
        return {name: _built(part, tensor) for name, part in value.items()}
    return value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Place | Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    return []


def _whole(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
