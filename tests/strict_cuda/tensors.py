"""The tensors on the device and torch's operations on them: every aten call on one is one kernel.

The tensors are CPU tensors; those "on the device" are identified by their storage and report that device. So
torch's own autograd, optimizers and gradient scaler run for real. Two modes watch: one sees the functions
that Python calls (where devices are named), the other the aten operators below autograd.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from strict_cuda import memory
from strict_cuda.graphs import Recorder
from strict_cuda.machine import Machine, RaceError

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
TRIAL_BYTES = 64 * 1024**2
"""Workspace that cuDNN takes when it tries its algorithms on a new shape.

Source: aten/src/ATen/native/cudnn/Conv_v8.cpp, benchmark mode; the size is this fake's own.
"""

WORKSPACE_BYTES = 64 * 1024**2
"""Workspaces of cuBLAS and cuBLASLt on each stream with a product, kept until they are released.

Source: aten/src/ATen/cuda/CublasHandlePool.cpp, getChosenWorkspaceSize (32 MiB at compute capability 9.0) and
getCurrentCUDABlasHandle; measured on an H200 at torch 2.11 as 66 MiB more allocated for each further stream.
"""

_FREE = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::detach"}
)
"""Operators that launch nothing: they allocate memory or create another view of it.

Source: aten/src/ATen/native/cuda/TensorFactories.cu, empty_cuda and empty_strided_cuda.
"""
_WAITING = frozenset(
    {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::_unique2"}
)
"""Operators that copy a result to the host and therefore wait for it.

Source: aten/src/ATen/native/cuda/CUDAScalar.cu (_local_scalar_dense), aten/src/ATen/native/cuda/Nonzero.cu,
aten/src/ATen/native/cuda/Unique.cu; aten/src/ATen/native/cuda/Equal.cpp asks for an item, and masked_select
(aten/src/ATen/native/cuda/IndexKernel.cpp) indexes by its mask.
"""
_BY_INDEX = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
"""Operators that also accept indices from the host. Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp,
make_info."""
_LENGTHS_ON_HOST = frozenset({"aten::_pack_padded_sequence", "aten::_pack_padded_sequence_backward"})
"""Operators that read lengths on the host. Source: aten/src/ATen/native/PackedSequence.cpp, checkLongTensor."""
_PACK = "aten::_pack_padded_sequence"
"""The second result of this operator, the sizes of the batches, is on the host.

Source: aten/src/ATen/native/PackedSequence.cpp.
"""
_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})
"""Products with float32 operands that TF32 rounds. Source: aten/src/ATen/Context.cpp, allowTF32CuBLAS."""
_REDUCED = (torch.float16, torch.bfloat16)
_CONVOLUTION, _RECURRENT_LAYER = "aten::convolution", "aten::mkldnn_rnn_layer"
"""The cuDNN operators that TF32 rounds, each with its own switch.

Source: aten/src/ATen/Context.cpp, allowTF32CuDNN(op).
"""
_TF32_BITS_LOST = 13
"""Bits of the 23-bit float32 mantissa that TF32 drops. Source: CUDA C++ Programming Guide, "Alternate Floating
Point".
"""
_HIDDEN_WRITES = {"aten::native_batch_norm": (3, 4)}
"""Arguments that are written although the schema does not say so: the running statistics in training.

Source: aten/src/ATen/native/cuda/Normalization.cu, batch_norm_cuda.
"""
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Functions that use cuDNN on a GPU. Source: aten/src/ATen/native/cudnn/RNN.cpp."""
_OF_PACKED = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})
"""Operators that take the sizes of packed batches from the host. Source: aten/src/ATen/native/RNN.cpp, ONE_HIDDEN_RNN."""
_LAYERS_ARGUMENT, _DROPOUT_ARGUMENT, _TRAIN_ARGUMENT = 4, 5, 6
"""Places in torch.lstm(input, hx, params, has_biases, layers, dropout, train, ...); for a packed sequence the
sizes of its batches follow the input.

Source: torch/nn/modules/rnn.py, LSTM.forward.
"""
_UNSAFE_TO_AUTOCAST = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
)
"""The message of CUDA's autocast for the one operator that it bans. Source: aten/src/ATen/autocast_mode.cpp,
binary_cross_entropy_banned, registered for AutocastCUDA and the other accelerators; the CPU's autocast casts
to float32.
"""
_NOT_IN_TRAINING = "cudnn RNN backward can only be called in training mode"
"""Source: aten/src/ATen/native/cudnn/RNN.cpp, _cudnn_rnn_backward_input."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The facts about an aten operator, which are looked up at each of a million calls."""

    name: str
    view: bool
    writes: tuple[int, ...]
    write_names: tuple[str, ...]
    random: bool
    launches: bool
    waits: bool
    indexes: bool
    tries: bool
    multiplies: bool
    takes_tf32: bool
    convolves: bool


_kinds: dict[int, Kind] = {}


def kind_of(func: Any) -> Kind:
    """Look up an operator; torch keeps each operator alive, so its identity is a key."""
    known = _kinds.get(id(func))
    return known if known is not None else _learn(func)


def _learn(func: Any) -> Kind:
    schema = func._schema
    name = schema.name
    writes = [n for n, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
    writes += _HIDDEN_WRITES.get(name, ())
    known = _kinds[id(func)] = Kind(
        name=name,
        view=bool(func.is_view) or name == "aten::detach",
        writes=tuple(writes),
        write_names=tuple(schema.arguments[n].name for n in writes),
        random=torch.Tag.nondeterministic_seeded in func.tags,
        launches=name not in _FREE,
        waits=name in _WAITING,
        indexes=name in _BY_INDEX,
        tries="convolution" in name and "backward" not in name,
        multiplies=name in _PRODUCTS,
        takes_tf32=name in {*_PRODUCTS, _CONVOLUTION, _RECURRENT_LAYER},
        convolves="convolution" in name,
    )
    return known


@dataclass(slots=True)
class Block:
    """One storage on the device."""

    taken: memory.Block
    alive: weakref.ref[Any]
    written: tuple[int, int]


@dataclass
class RecurrentDropout:
    """cuDNN's state of dropout inside recurrent layers. Source: aten/src/ATen/native/cudnn/RNN.cpp, DropoutState."""

    buffer: Tensor
    random_state: Tensor
    stale: bool = False


class Device:
    """The storages on the device, with their allocation and release."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.name = CUDA
        self.blocks: dict[int, Block] = {}
        self.pinned: dict[int, weakref.ref[Any]] = {}
        self.inside = 0
        """Depth of nested functions with a result on the device."""
        self.calls: list[tuple[Any, Any]] = []
        """Arguments of the functions underway: what they create is where their tensors are."""
        self.moving = False
        self.on_host = False
        self.random_state = torch.Generator().manual_seed(0).get_state()
        self.dropout: RecurrentDropout | None = None
        self._workspaces: dict[int, memory.Block] = {}
        self._tried: set[tuple[Any, ...]] = set()

    def choose(self, index: int) -> None:
        """Become the device with this index: a process has one device, and each process its own fake.

        Source: torch/cuda/__init__.py, set_device.
        """
        self.machine.call("set_device")
        self.name = torch.device("cuda", index)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        return self.holds_any([tensor])

    def holds_any(self, tensors: list[Tensor]) -> bool:
        """Whether one of these tensors is on the device; other fakes of this process are not queried."""
        blocks = self.blocks
        with torch._C.DisableTorchFunction():
            for tensor in tensors:  # a generator would take as long as the check itself
                if _storage(tensor)._cdata in blocks:
                    return True
        return False

    def adopt(self, storage: Any, recorder: Recorder | None) -> None:
        """Put a new storage on the device: its bytes come from the allocator, for the current stream.

        Source: aten/src/ATen/cuda/EmptyTensor.cpp, empty_cuda, and c10/cuda/CUDACachingAllocator.cpp,
        DeviceCachingAllocator::malloc.
        """
        key = storage._cdata
        stream, heap, blocks = self.machine.stream, self.machine.memory, self.blocks
        pool = None if recorder is None else recorder.pool
        taken = heap.take(storage.nbytes(), stream.number, pool)

        def gone(_: object) -> None:
            heap.give(taken)
            blocks.pop(key, None)
            if recorder is not None:
                recorder.forget(key)

        blocks[key] = Block(taken, weakref.ref(storage, gone), (stream.number, stream.issued))
        if recorder is not None:
            recorder.created(key, storage)

    @property
    def recorder(self) -> Recorder | None:
        """The capture that records the current work."""
        if self.machine.capture is None:
            return None
        found = self.machine.capture_of(self.machine.stream)
        return found if isinstance(found, Recorder) else None

    # --- one aten operator --------------------------------------------------------------------------------

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one aten operator, on the host or as a kernel in the device's current stream.

        Source: c10/cuda/CUDAStream.h, getCurrentCUDAStream. One kernel per operator is the fake's own rule.
        """
        tensors = _operands(args, kwargs)
        blocks = self.blocks
        there = [b for t in tensors if (b := blocks.get(_storage(t)._cdata)) is not None]
        if not (there or self.moving or (not tensors and self._creates_here())):
            return func(*args, **kwargs)
        kind = kind_of(func)
        if kind.view:
            out = computed(kind, func, args, kwargs)
            if all(self.holds(t) for t in _made(out)):
                return out  # other operators with that schema, such as aten::to, may make a copy
        if len(there) < len(tensors):
            self._same_place(kind, tensors)
        self._no_race(there)
        if kind.waits or (kind.indexes and _by_mask(args)):
            self.machine.drain(self.machine.stream, name=kind.name)
        recorder = self.recorder
        written = _chosen(kind, args, kwargs) if kind.writes else ()
        if recorder is not None:
            recorder.before(written)
        if kind.tries:
            self._try_algorithms(tensors)
        elif kind.multiplies:
            self._give_workspace()
        if kind.launches:
            self.machine.launch(kind.name)
        rounded = kind.takes_tf32 and self.rounds(kind)
        out = self._compute(kind, func, args, kwargs, rounded=rounded)
        self._note(kind.name, out, written, recorder)
        if recorder is not None:
            recorder.record(func, args, kwargs, out, random=kind.random, rounded=rounded)
        return out

    def _creates_here(self) -> bool:
        """Whether an operator without tensors creates its result on the device."""
        if self.inside or (_in_backward() and not self.on_host):
            return True
        return any(self.holds_any(_operands(*call)) for call in self.calls)

    def _note(self, name: str, out: Any, written: Sequence[Tensor], recorder: Recorder | None) -> None:
        """Put the results of an operator on the device, and mark what it wrote."""
        blocks = self.blocks
        results = _made(out)
        for made in results[:1] if name == _PACK else results:
            storage = _storage(made)
            if storage._cdata not in blocks:  # else it was written, or returned unchanged (aten::type_as)
                self.adopt(storage, recorder)
        if written:
            mark = self._mark()
            for tensor in written:
                block = blocks.get(_storage(tensor)._cdata)
                if block is not None:
                    block.written = mark

    def _compute(
        self, kind: Kind, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, rounded: bool
    ) -> Any:
        """Compute on the CPU; random numbers come from the device's own generator."""
        if not kind.random:
            return computed(kind, func, args, kwargs, rounded=rounded)
        with self.drawing():
            return computed(kind, func, args, kwargs, rounded=rounded)

    def rounds(self, kind: Kind) -> bool:
        """Whether tensor cores round the operands of an operator that supports TF32.

        Source: aten/src/ATen/Context.cpp, allowTF32CuBLAS and allowTF32CuDNN.
        """
        tf32 = self.machine.tf32
        if tf32 == "never":
            return False
        recurrent = kind.name == _RECURRENT_LAYER
        if tf32 == "always" or (tf32 == "in recurrent layers" and recurrent):
            return True
        if kind.multiplies:
            return bool(torch.backends.cuda.matmul.allow_tf32)
        layers = getattr(torch.backends.cudnn, "rnn" if recurrent else "conv", None)
        if layers is None:  # before torch 2.9
            return bool(torch.backends.cudnn.allow_tf32)
        return layers.fp32_precision == "tf32"

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw random numbers from the device's generator inside the block, and leave the host's unchanged.

        Source: aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, getDefaultCUDAGenerator: each device has its own.
        """
        host = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        try:
            yield
        finally:
            self.random_state = torch.get_rng_state()
            torch.set_rng_state(host)

    def _same_place(self, kind: Kind, tensors: list[Tensor]) -> None:
        """Source: aten/src/ATen/core/op_registration/adaption.cpp, common_device_check_failure.

        A host scalar without dimensions is allowed: aten/src/ATen/TensorIterator.cpp, compute_types.
        """
        if self.moving or kind.indexes or kind.name in _LENGTHS_ON_HOST:
            return
        sizes = kind.name in _OF_PACKED
        if any(t.dim() for t in tensors if not (self.holds(t) or (sizes and t.dtype is torch.int64))):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"({kind.name})"
            )

    def _no_race(self, there: list[Block]) -> None:
        """Source: CUDA C++ Programming Guide, "Streams": they run concurrently unless one waits for another."""
        machine = self.machine
        number = machine.stream.number
        for block in there:
            written = block.written
            if written[0] != number and not machine.sees(written):
                raise RaceError(f"written by stream {written[0]}, used by stream {number}")

    def _try_algorithms(self, tensors: list[Tensor]) -> None:
        """Take cuDNN's workspace for a new shape and release it, which raises the peak.

        Source: aten/src/ATen/native/cudnn/Conv_v8.cpp, benchmark mode; an algorithm without enough memory is skipped.
        """
        seen = tuple((tuple(t.shape), t.dtype) for t in tensors)
        if not torch.backends.cudnn.benchmark or seen in self._tried:
            return
        self._tried.add(seen)
        heap = self.machine.memory
        try:
            block = heap.take(TRIAL_BYTES, self.machine.stream.number, getattr(self.recorder, "pool", None))
        except torch.cuda.OutOfMemoryError:
            return
        heap.give(block)

    def _give_workspace(self) -> None:
        """Give cuBLAS a workspace on a stream without one; inside a capture it comes from the capture's pool.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp, cublas_handle_stream_to_workspace.
        """
        number = self.machine.stream.number
        if number not in self._workspaces:
            pool = getattr(self.recorder, "pool", None)
            self._workspaces[number] = self.machine.memory.take(WORKSPACE_BYTES, number, pool)
        if self.recorder is not None:
            self.recorder.workspaces[number] = self._workspaces[number]

    def has_workspaces(self, those: dict[int, memory.Block]) -> bool:
        """Whether the workspaces in a capture still belong to their streams.

        Source: docs/source/notes/cuda.rst, "CUDA Graphs": a graph keeps the addresses of its kernels' arguments.
        """
        return those.items() <= self._workspaces.items()

    def clear_workspaces(self) -> None:
        """Source: aten/src/ATen/cuda/CublasHandlePool.cpp, clearCublasWorkspaces."""
        while self._workspaces:
            self.machine.memory.give(self._workspaces.popitem()[1])

    def _mark(self) -> tuple[int, int]:
        stream = self.machine.stream
        return stream.number, stream.issued

    # --- between host and device --------------------------------------------------------------------------

    @contextmanager
    def here(self) -> Iterator[None]:
        """Put everything created inside the block on the device."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def upload(self, source: Tensor, *, non_blocking: bool, **changes: Any) -> Tensor:
        """Copy a host tensor to the device; the host waits except for page-locked memory.

        Source: aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda.
        """
        self._transfer(source, non_blocking=non_blocking, from_host=True)
        self.moving = True
        try:
            return source.clone() if not changes else source.to(**changes, copy=True)
        finally:
            self.moving = False

    def download(self, source: Tensor, *, non_blocking: bool = False, **changes: Any) -> Tensor:
        """Copy a device tensor to the host; the host waits for it unless the copy is non-blocking.

        Source: aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda.
        """
        self._transfer(source, non_blocking=non_blocking, from_host=False)
        with torch._C.DisableTorchFunction(), _unwatched():
            out = source.detach().to(**changes, copy=True)
        return out.requires_grad_(source.requires_grad) if source.requires_grad else out

    def copy(self, target: Tensor, source: Tensor, *, non_blocking: bool) -> Tensor:
        """``target.copy_(source)`` between the two places. Source: aten/src/ATen/native/cuda/Copy.cu."""
        self._transfer(source, non_blocking=non_blocking, from_host=self.holds(target))
        with torch._C.DisableTorchFunction(), _unwatched(), torch.no_grad():
            target.copy_(source)
        if self.holds(target):
            self.blocks[_storage(target)._cdata].written = self._mark()
        return target

    def _transfer(self, source: Tensor, *, non_blocking: bool, from_host: bool) -> None:
        """Source: aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda: a copy that blocks is followed by a wait.

        A copy from pageable memory "may be synchronous" too (CUDA runtime API, "API synchronization behavior").
        """
        machine = self.machine
        host_side = source if from_host else None
        waits = not (non_blocking and (host_side is None or self.is_pinned(host_side)))
        if self.holds(source):
            self._no_race([self.blocks[_storage(source)._cdata]])
        machine.call("memcpy", synchronizes=waits)
        if self.recorder is not None:
            raise NotImplementedError("the fake records no transfers between host and device in a graph")
        seconds = source.numel() * source.element_size() / machine.transfer_bytes_per_s
        machine.spend(machine.issue_s)
        machine.stream.done_ns = max(machine.now_ns, machine.stream.done_ns) + round(seconds * 1e9)
        if waits:
            machine.drain(machine.stream, name="memcpy")

    def pin(self, tensor: Tensor) -> Tensor:
        """Page-lock a host tensor. Source: aten/src/ATen/native/Memory.cpp, pin_memory."""
        storage = _storage(tensor)
        key = storage._cdata
        self.pinned[key] = weakref.ref(storage, lambda _: self.pinned.pop(key, None))
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a host tensor is page-locked. Source: aten/src/ATen/native/Memory.cpp, is_pinned."""
        return _storage(tensor)._cdata in self.pinned

    def seed(self, seed: int) -> None:
        """Seed the device's generator, as torch.manual_seed does (torch/random.py).

        Source: aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, set_current_seed: recurrent layers then need a new
        state, which is refused inside a capture.
        """
        if self.recorder is not None:
            raise RuntimeError("Cannot call CUDAGeneratorImpl::set_current_seed during CUDA graph capture.")
        self.random_state = torch.Generator().manual_seed(seed).get_state()
        if self.dropout is not None:
            self.dropout.stale = True

    @contextmanager
    def drawing_recurrently(self) -> Iterator[None]:
        """Draw from the random numbers that cuDNN keeps in its own memory for dropout inside recurrent
        layers.

        Source: aten/src/ATen/native/cudnn/RNN.cpp, DropoutState: one for the device, created at its first use
        and again after each seed; a graph continues to use the memory of its capture's state."""
        if self.dropout is None or self.dropout.stale:
            self.dropout = None
            with self.here():
                buffer = torch.zeros(64, device=CPU)
            self.dropout = RecurrentDropout(buffer, torch.Generator().manual_seed(1).get_state())
        kept = self.dropout
        kept.buffer.add_(1)
        kept.random_state, self.random_state = self.random_state, kept.random_state
        try:
            yield
        finally:
            kept.random_state, self.random_state = self.random_state, kept.random_state


def computed(kind: Kind, func: Any, args: Any, kwargs: Any, *, rounded: bool = False) -> Any:
    """Compute on the CPU; half-precision operators that are missing or slow there are computed in float32 and
    rounded.

    With ``rounded`` the operands are rounded as tensor cores round float32.
    """
    if rounded:
        args = _mapped(args, _rounded)
    if not (kind.convolves and _reduced_format((args, kwargs)) is torch.float16):
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if _reduced_format((args, kwargs)) is None or "same scalar type" in str(error):
                raise  # a GPU has every kernel, and refuses operands that do not match
    reduced = _reduced_format((args, kwargs))
    out = func(*_mapped(args, _single), **_mapped(kwargs, _single))
    return _mapped(out, lambda t: t.to(reduced) if t.dtype is torch.float32 else t)


class Kernels(TorchDispatchMode):
    """Sees every aten operator below autograd."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Skip the wrapper that disables the compiler: it takes a tenth of all time, and there is no compiler
        here.

        Source: torch/utils/_python_dispatch.py, TorchDispatchMode.__init_subclass__.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a tensor made of others: the operations on those are seen
        device = self.device
        with torch._C.DisableTorchFunction():
            if not kwargs:
                return device.run(func, args, {})
            asked = kwargs.get("device")
            if asked is None or asked.type != "cuda":
                return device.run(func, args, kwargs)
            with device.here():  # from a hook of autograd, where the other mode is inactive
                return device.run(func, args, kwargs | {"device": CPU})


class Functions(TorchFunctionMode):
    """Sees every function of torch that Python calls, where devices are named and host and device are separated."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self._special: dict[str, Callable[..., Any]] = {
            "to": self._to,
            "cuda": lambda func, args, kwargs: self._to(func, (args[0], CUDA), {}),
            "cpu": lambda func, args, kwargs: self._to(func, (args[0], CPU), {}),
            "copy_": self._copy,
            "__deepcopy__": self._deep_copy,
            "tolist": self._to_host,
            "numpy": self._numpy,
            "__array__": self._numpy,
            "pin_memory": lambda func, args, kwargs: device.pin(args[0].clone()),
            "is_pinned": lambda func, args, kwargs: device.is_pinned(args[0]),
            "binary_cross_entropy": self._banned,
            "ctc_loss": self._connectionist,
            "backward": self._backward,
            "tensor": self._from_host,
            "as_tensor": self._from_host,
        } | dict.fromkeys(_RECURRENT, self._recurrent)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._property(func, args, kwargs)
        special = self._special.get(name)
        if special is not None:
            return special(func, args, kwargs)
        return self._plain(func, args, kwargs)

    def _plain(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = self.device
        asked, pinned = (kwargs.get("device"), kwargs.pop("pin_memory", False)) if kwargs else (None, False)
        if asked is not None and torch.device(asked).type == "cuda":
            with device.here():
                return func(*args, **(kwargs | {"device": CPU}))
        if asked is not None or pinned:
            out = func(*args, **kwargs)
            return device.pin(out) if pinned else out
        device.calls.append((args, kwargs))  # almost every call passes this path, and few create anything
        try:
            return func(*args, **kwargs)
        finally:
            device.calls.pop()

    def _property(self, func: Any, args: Any, kwargs: Any) -> Any:
        asked = func.__self__
        if asked is Tensor.device and self.device.holds(args[0]):
            return self.device.name
        if asked is Tensor.is_cuda:
            return self.device.holds(args[0])
        if asked is Tensor.is_cpu:
            return not self.device.holds(args[0])
        return func(*args, **kwargs)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Source: aten/src/ATen/native/TensorConversions.cpp, to_impl: nothing is copied if nothing changes."""
        tensor, *rest = args
        if rest and isinstance(rest[0], Tensor):
            place = self.device.name if self.device.holds(rest[0]) else CPU
            rest = [place, rest[0].dtype, *rest[1:]]
        options = {k: v for k, v in kwargs.items() if k != "copy"}
        where, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*rest, **options)
        changes = {k: v for k, v in (("dtype", dtype), ("memory_format", memory_format)) if v is not None}
        there = self.device.holds(tensor)
        if where is None or (where.type == "cuda") == there:
            with self.device.here() if there else nullcontext():
                return tensor.to(**changes, copy=kwargs.get("copy", False)) if changes else tensor
        if there:
            return self.device.download(tensor, non_blocking=non_blocking, **changes)
        return self.device.upload(tensor, non_blocking=non_blocking, **changes)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Source: aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda."""
        target, source = args[0], args[1] if len(args) > 1 else kwargs["src"]
        if self.device.holds(target) == self.device.holds(source):
            return func(*args, **kwargs)
        asked = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        return self.device.copy(target, source, non_blocking=asked)

    def _deep_copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Source: torch/_tensor.py, Tensor.__deepcopy__: besides the tensor it takes the earlier copies."""
        with self.device.here() if self.device.holds(args[0]) else nullcontext():
            return func(*args, **kwargs)

    def _to_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.device.holds(args[0]):
            return func(self.device.download(args[0]), *args[1:], **kwargs)
        return func(*args, **kwargs)

    def _numpy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Source: torch/csrc/utils/tensor_numpy.cpp, tensor_to_numpy."""
        if self.device.holds(args[0]):
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                "memory first."
            )
        return func(*args, **kwargs)

    def _from_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Source: torch/csrc/utils/tensor_new.cpp, internal_new_from_data: it is created on the host and copied."""
        asked = kwargs.get("device")
        if asked is None or torch.device(asked).type != "cuda" or self.device.holds_any(_operands(args, {})):
            return self._plain(func, args, kwargs)
        wants = kwargs.get("requires_grad", False)
        made = func(*args, **{k: v for k, v in kwargs.items() if k != "requires_grad"} | {"device": CPU})
        return self.device.upload(made, non_blocking=False).requires_grad_(wants)

    def _banned(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Source: aten/src/ATen/autocast_mode.cpp, binary_cross_entropy_banned."""
        if torch.is_autocast_enabled(CPU.type) and self.device.holds_any(_operands(args, kwargs)):
            raise RuntimeError(_UNSAFE_TO_AUTOCAST)
        with self.device.here():
            return func(*args, **kwargs)

    def _backward(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Source: torch/csrc/autograd/engine.cpp, Engine::execute: its results are on the device of its root."""
        before, self.device.on_host = self.device.on_host, not self.device.holds_any(_operands(args, {}))
        try:
            return self._plain(func, args, kwargs)
        finally:
            self.device.on_host = before

    def _connectionist(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Lengths may be on the host. Source: aten/src/ATen/native/LossCTC.cpp, ctc_loss: it moves them itself."""
        if self.device.holds(args[0]):
            lengths = (
                n if self.device.holds(n) else self.device.upload(n, non_blocking=False) for n in args[2:4]
            )
            args = (*args[:2], *lengths, *args[4:])
        return self._plain(func, args, kwargs)

    def _recurrent(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A recurrent layer: cuDNN keeps what its backward pass needs only in training mode.

        Source: aten/src/ATen/native/cudnn/RNN.cpp, _cudnn_rnn_backward_input checks fn_train; dropout is between
        layers, in training.
        """
        if not self.device.holds(args[0]):
            return func(*args, **kwargs)
        is_packed = isinstance(args[3], list | tuple)
        places = (_TRAIN_ARGUMENT, _DROPOUT_ARGUMENT, _LAYERS_ARGUMENT)
        trains, dropout, layers = (args[place + is_packed] for place in places)
        drops = trains and dropout > 0 and layers > 1
        with self.device.here(), self.device.drawing_recurrently() if drops else nullcontext():
            out = func(*args, **kwargs)
        if not trains:
            for tensor in _tensors((out,)):
                if tensor.requires_grad:
                    tensor.register_hook(_not_in_training)
        return out


def _storage(tensor: Tensor) -> Any:
    """Return a tensor's storage: of the values if it is sparse or jagged, of the inner tensor if torch.func wraps it."""
    while type(tensor) is Tensor and is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    if tensor.layout is torch.strided:
        return tensor.untyped_storage()
    values = tensor._values  # a method of a sparse tensor, an attribute of a jagged one
    return (values() if callable(values) else values).untyped_storage()


def _not_in_training(grad: Tensor) -> Tensor:
    """Source: aten/src/ATen/native/cudnn/RNN.cpp, _cudnn_rnn_backward_input."""
    raise RuntimeError(_NOT_IN_TRAINING)


def _by_mask(args: tuple[Any, ...]) -> bool:
    """Whether an index waits: an index by a mask first finds its true places.

    Source: aten/src/ATen/native/IndexingUtils.h, expandTensors. The fake is stricter for assigning one number at a
    mask, which torch fills (aten/src/ATen/native/TensorAdvancedIndexingUtils.h, canDispatchToMaskedFill).
    """
    return any(i is not None and i.dtype in {torch.bool, torch.uint8} for i in args[1])


def _chosen(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operator writes."""
    places = [args[n] for n in kind.writes if n < len(args)]
    places += [kwargs[name] for name in kind.write_names if name in kwargs]
    return _tensors(places)


def _made(out: Any) -> list[Tensor]:
    """The tensors that an operator returns."""
    return [out] if isinstance(out, Tensor) else _tensors((out,))


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _gather(value, found)
    return found


def _operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors among the arguments of a call."""
    found: list[Tensor] = []
    _gather(args, found)
    if kwargs:
        _gather(kwargs.values(), found)
    return found


_PLAIN = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout}
)
"""Types of almost all arguments that are not tensors and contain none."""


_SEVERAL = (list, tuple)


def _gather(parts: Iterable[Any], found: list[Tensor]) -> None:
    for part in parts:
        kind = type(part)
        if kind is Tensor:
            found.append(part)
        elif kind in _PLAIN:
            continue
        elif isinstance(part, Tensor):
            found.append(part)
        elif isinstance(part, dict):
            _gather(part.values(), found)
        elif isinstance(part, _SEVERAL):
            _gather(part, found)


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, _SEVERAL):
        return type(value)(_mapped(part, change) for part in value)
    if isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    return torch.float32 if value is torch.float16 else value


def _reduced_format(value: Any) -> torch.dtype | None:
    """Return the half-precision type among the tensors; a CPU without AVX-512 lacks a bfloat16 LSTM too."""
    return next((t.dtype for t in _tensors(value) if t.dtype in _REDUCED), None)


def _rounded(tensor: Tensor) -> Tensor:
    """Round a float32 mantissa to the 10 bits that TF32 has."""
    if tensor.dtype is not torch.float32:
        return tensor
    with torch._C.DisableTorchFunction(), _unwatched(), torch.no_grad():
        half = 1 << (_TF32_BITS_LOST - 1)
        bits = (tensor.detach().contiguous().view(torch.int32) + half) >> _TF32_BITS_LOST << _TF32_BITS_LOST
        return bits.view(torch.float32)


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _REDUCED else tensor


def _in_backward() -> bool:
    """Whether the autograd engine is running: tensors that it creates from nothing belong to the gradients."""
    return torch._C._current_autograd_node() is not None


def _unwatched() -> Any:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
