"""CUDA graphs: a capture has no lasting effect, a replay repeats the computation in the same memory.

Source: aten/src/ATen/cuda/CUDAGraph.cpp and aten/src/ATen/cuda/CUDAGeneratorImpl.cpp.
"""

from __future__ import annotations

import itertools
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from strict_cuda.machine import INVALIDATED, UNJOINED, RaceError, Seen, Stream

if TYPE_CHECKING:
    from strict_cuda.memory import Block
    from strict_cuda.tensors import Device

_handles = itertools.count(1)
_SEVERAL = (list, tuple)


class Place(NamedTuple):
    """A tensor as a kernel sees it: memory and its layout.

    Source: docs/source/notes/cuda.rst, "CUDA Graphs": a graph keeps the addresses of its kernels' arguments.

    ``inner`` numbers memory that the capture made; ``outer`` is memory that was there before. ``conj`` and ``neg``
    say that what is read is the conjugate, or the negative, of what is stored (torch.resolve_conj).
    """

    inner: int | None
    outer: weakref.ref[Any] | None
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool


class Step(NamedTuple):
    """One kernel of a capture, and whether gradients were on, because that decides what operators save.

    The kernel is chosen at the capture: ``rounded`` means a tensor-core kernel, whatever the switches are at
    a replay.

    Source: CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture": a node consists of a kernel
    and its arguments.
    """

    func: Any
    args: Any
    kwargs: Any
    out: Any
    random: bool
    rounded: bool
    grad: bool


class Before(NamedTuple):
    """The state of a stream before its capture, to be restored afterward."""

    issued: int
    seen: Seen


class Recorder:
    """One capture: the kernels issued during it, and the memory that must be unchanged at its end.

    Source: CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture".
    """

    def __init__(self, device: Device, pool: object) -> None:
        self.device = device
        self.pool = pool
        self.invalid = False
        self.steps: list[Step] = []
        self.inner: dict[int, int] = {}
        self.made: dict[int, weakref.ref[Any]] = {}
        self._numbers = itertools.count()
        self.workspaces: dict[int, Block] = {}
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        self.random_state = device.random_state.clone()
        self.origin = device.machine.stream
        self._streams: dict[Stream, Before] = {}
        self.join(self.origin)

    def holds(self, stream: Stream) -> bool:
        """Whether a stream's work is captured."""
        return stream in self._streams

    def join(self, stream: Stream) -> None:
        """Capture a stream's work from now on.

        Source: CUDA C++ Programming Guide, "Cross-stream Dependencies and Events".
        """
        if stream not in self._streams:
            self._streams[stream] = Before(stream.issued, dict(stream.seen))

    def unjoined(self) -> bool:
        """Whether a captured kernel is not an ancestor of anything that the origin stream waits for.

        Source: cudaErrorStreamCaptureUnjoined (CUDA runtime, driver_types.h) and cudaStreamGetCaptureInfo (CUDA
        runtime API): nodes that the origin cannot reach are refused.
        """
        return any(
            stream.issued > max(before.issued, self.origin.seen.get(stream.number, 0))
            for stream, before in self._streams.items()
            if stream is not self.origin
        )

    def created(self, key: int, storage: Any) -> None:
        """Register memory that the capture allocates."""
        number = self.inner[key] = next(self._numbers)
        self.made[number] = weakref.ref(storage)

    def forget(self, key: int) -> None:
        """Forget freed memory: its address may be used again for something else."""
        self.inner.pop(key, None)

    def before(self, written: list[Tensor]) -> None:
        """Save the content of outer memory before the capture's own bookkeeping writes to it."""
        for tensor in written:
            key = tensor.untyped_storage()._cdata
            if key not in self.inner and key not in self._kept:
                flat = _whole(tensor)
                self._kept[key] = (flat, flat.clone())
                self._marks[key] = self.device.blocks[key].written

    def record(self, func: Any, args: Any, kwargs: Any, out: Any, *, random: bool, rounded: bool) -> None:
        """Record one kernel."""
        places = (self._places(args), self._places(kwargs), _leaves(self._places(out)))
        self.steps.append(Step(func, *places, random, rounded, torch.is_grad_enabled()))

    def finish(self) -> None:
        """End the capture without effect: writes to outer memory are undone, new memory has no values.

        Source: cudaStreamBeginCapture and cudaStreamEndCapture (CUDA runtime API): work pushed into a
        capturing stream is not executed, and all streams of the capture leave it at its end. Random
        numbers: aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, Note [CUDA Graph-safe RNG states].
        """
        blocks = self.device.blocks
        for key, (live, kept) in self._kept.items():
            with torch.inference_mode():  # the tensor was created within the capture
                live.copy_(kept)
            if key in blocks:
                blocks[key].written = self._marks[key]
        self._kept.clear()
        for stream, before in self._streams.items():
            stream.issued, stream.seen = before
        self.device.random_state = self.random_state
        for alive in self.made.values():
            storage = alive()
            if storage is not None:
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)  # NaN in every float type
                blocks[storage._cdata].written = (self.origin.number, self.origin.issued)

    def _places(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            key = value.untyped_storage()._cdata
            inner = self.inner.get(key)
            outer = None if inner is not None else weakref.ref(value.untyped_storage())
            size, stride, offset = tuple(value.shape), value.stride(), value.storage_offset()
            return Place(inner, outer, value.dtype, size, stride, offset, value.is_conj(), value.is_neg())
        if isinstance(value, _SEVERAL):
            return type(value)([self._places(part) for part in value])
        if isinstance(value, dict):
            return {name: self._places(part) for name, part in value.items()}
        return value


def graph_class(device: Device) -> type:
    """Make the replacement for torch.cuda.CUDAGraph on a device."""
    machine = device.machine

    class CUDAGraph:
        """A recorded step.

        Source: aten/src/ATen/cuda/CUDAGraph.cpp, class CUDAGraph.
        """

        def __init__(self, keep_graph: bool = False) -> None:
            self._recorder: Recorder | None = None
            self._pool: object = None
            self._ended = False
            self._stream = machine.stream

        def capture_begin(self, pool: object = None, **_: Any) -> None:
            """Source: aten/src/ATen/cuda/CUDAGraph.cpp, CUDAGraph::capture_begin.

            docs/source/notes/cuda.rst, "Whole-network capture", requires earlier work on a side stream; torch
            does not check.
            """
            if machine.stream is machine.default:
                raise RuntimeError(
                    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to "
                    "replay them on the default stream.)"
                )
            if self._ended:
                raise RuntimeError(
                    "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new "
                    "instance."
                )
            if machine.capture is not None:
                raise NotImplementedError("the fake takes one capture at a time")
            machine.call("capture_begin")
            if not any(s.issued for s in machine.streams if s is not machine.default):
                raise RaceError(
                    "nothing ran on a side stream before this capture: what is made at first use, such as "
                    "library handles and gradients, would be made inside it"
                )
            self._stream = machine.stream
            self._pool = (0, next(_handles)) if pool is None else pool
            machine.memory.begin_capture(self._pool)
            self._recorder = machine.capture = Recorder(device, self._pool)

        def capture_end(self) -> None:
            """Source: aten/src/ATen/cuda/CUDAGraph.cpp, CUDAGraph::capture_end and CUDAGraph::reset.

            Up to torch 2.11 the driver's error is raised before the allocator learns of the end (pull request
            180395). A failed capture never releases its pool, because reset checks whether it ended well.
            """
            if machine.stream is not self._stream:
                raise RuntimeError("Capture must end on the same stream it began on.")
            recorder, machine.capture = self._recorder, None
            assert recorder is not None
            failure = INVALIDATED if recorder.invalid else UNJOINED if recorder.unjoined() else None
            with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                recorder.finish()
            if failure is None or not machine.old_allocator:
                machine.memory.end_capture(self._pool)
            if failure is not None:
                self._recorder = None
                raise RuntimeError(failure)
            self._ended = True

        def pool(self) -> object:
            """Source: aten/src/ATen/cuda/CUDAGraph.cpp, CUDAGraph::pool."""
            if not self._ended:
                raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
            return self._pool

        def replay(self) -> None:
            """Source: aten/src/ATen/cuda/CUDAGraph.cpp, CUDAGraph::replay.

            If the current stream captures, aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, replay_prologue,
            refuses."""
            recorder = self._recorder
            if recorder is None or not self._ended:
                raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
            machine.call("graph_launch")
            if machine.capture_of(machine.stream) is not None:
                raise RuntimeError("Cannot prepare for replay during capturing stage.")
            machine.spend(machine.replay_issue_s)
            with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                _replay(recorder, device)

        def reset(self) -> None:
            """Source: aten/src/ATen/cuda/CUDAGraph.cpp, CUDAGraph::reset."""
            if self._ended:
                self._ended = False
                machine.memory.release_pool(self._pool)

        __del__ = reset

    return CUDAGraph


def _replay(recorder: Recorder, device: Device) -> None:
    """Run the kernels of a graph in the current stream, on the memory of their capture.

    Source: cudaGraphLaunch (CUDA runtime API, "Graph Management"), which orders a launch after earlier work
    of its stream; docs/source/notes/cuda.rst, "CUDA Graphs", for the memory that must stay alive.
    """
    from strict_cuda.tensors import computed, kind_of

    machine = device.machine
    memory: dict[int, Any] = {}
    if not device.has_workspaces(recorder.workspaces):
        raise RaceError("a graph uses a workspace of cuBLAS that was taken back after its capture")

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
        found = torch.empty(0, dtype=place.dtype).set_(storage, place.offset, place.size, place.stride)
        found = torch._conj(found) if place.conj else found
        return torch._neg_view(found) if place.neg else found

    with torch._C._AutoDispatchBelowAutograd():
        for step in recorder.steps:
            args, kwargs = _built(step.args, tensor), _built(step.kwargs, tensor)
            if step.grad is not torch.is_grad_enabled():
                torch.set_grad_enabled(step.grad)
            kind = kind_of(step.func)
            with device.drawing() if step.random else nullcontext():
                found = computed(kind, step.func, args, kwargs, rounded=step.rounded)
            machine.run(kind.name)
            for place, made in zip(step.out, _leaves(found), strict=True):
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
    if isinstance(value, _SEVERAL):
        return type(value)([_built(part, tensor) for part in value])
    if isinstance(value, dict):
        return {name: _built(part, tensor) for name, part in value.items()}
    return value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (Place, Tensor)):
        return [value]
    if isinstance(value, _SEVERAL):
        return [leaf for part in value for leaf in _leaves(part)]
    return []


def _whole(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
