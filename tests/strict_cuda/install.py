"""Replaces torch.cuda with the fake in this process, and restores it.

Only code that talks to the driver is replaced. torch.cuda.graph, GradScaler, the optimizers, autograd and
autocast's own class stay torch's. Works on a CPU build of torch and on a CUDA build without a driver."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint

from strict_cuda.compiler import compiler
from strict_cuda.graphs import graph_class
from strict_cuda.machine import Event, Machine, Stream
from strict_cuda.profiler import profiler
from strict_cuda.tensors import CPU, CUDA, Device, Functions, Kernels

if not hasattr(torch.nn, "Buffer"):  # torch 2.4
    # Before anything is replaced, because torch's compiler checks the classes of torch.cuda when it is loaded. Other
    # releases load the compiler in the processes that train.
    import torch._dynamo

H200 = SimpleNamespace(
    name="NVIDIA H200",
    uuid="00000000-0000-0000-0000-000000000000",
    multi_processor_count=132,
    major=9,
    minor=0,
    pci_bus_id=0,
    pci_domain_id=0,
    pci_device_id=6,
)
"""Torch's properties of the card with the recorded NVML answers.

Source: torch/cuda/__init__.py, get_device_properties; the values are those of the recording.
"""


@contextmanager
def installed(machine: Machine | None = None, properties: SimpleNamespace = H200) -> Iterator[Device]:
    """Make torch.cuda a fake device until the end of the block; yield the device."""
    machine = machine or Machine()
    device = Device(machine)
    with ExitStack() as stack:
        for owner, name, value in replacements(device, properties):
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        stack.enter_context(Functions(device))
        stack.enter_context(Kernels(device))
        yield device


def replacements(device: Device, properties: SimpleNamespace) -> list[tuple[Any, str, Any]]:
    """List the replacements with their places."""
    machine = device.machine
    facts = SimpleNamespace(**vars(properties), total_memory=machine.memory.total)
    parallel = torch.nn.parallel.DistributedDataParallel
    accelerator = getattr(torch, "accelerator", None)  # torch 2.4 has none
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: device.name.index,
        "set_device": device.choose,
        "init": lambda: machine.call("init"),
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: properties.major >= 8,
        "get_device_properties": lambda index=0: facts,
        "get_device_name": lambda index=0: properties.name,
        "get_device_capability": lambda index=0: (properties.major, properties.minor),
        "get_arch_list": lambda: [f"sm_{properties.major}{properties.minor}"],
        "manual_seed": device.seed,
        "manual_seed_all": device.seed,
        "nccl": SimpleNamespace(version=lambda: (2, 28, 9)),
    }
    return [
        *((torch.cuda, name, value) for name, value in (cuda | _work(machine) | _memory(machine)).items()),
        (torch.cuda, "CUDAGraph", graph_class(device)),
        (torch.cuda.graph, "default_capture_stream", None),
        (torch._C, "_host_emptyCache", lambda: None),
        (torch._C, "_cuda_clearCublasWorkspaces", device.clear_workspaces),
        (torch.backends.cuda, "is_built", lambda: True),
        (torch.backends.cudnn, "version", lambda: 91300),
        (
            torch.backends.cudnn,
            "is_acceptable",
            lambda tensor: False,
        ),  # the weights of an LSTM are not moved
        (torch.version, "cuda", "13.0"),
        # Otherwise torch keeps each seed, with its stack, for a device that is never opened.
        *((other, "manual_seed_all", lambda seed: None) for other in (torch.xpu, torch.mtia)),
        *((accelerator, name, value) for name, value in _accelerator(machine).items() if accelerator),
        (torch, "autocast", _autocast(torch.autocast)),
        (torch, "compile", compiler(machine)),
        (torch.compiler, "reset", lambda: machine.call("compiler_reset")),
        (torch.profiler, "profile", profiler(machine)),
        (
            torch.optim.Optimizer,
            "_group_tensors_by_device_and_dtype",
            staticmethod(_grouped(torch.optim.Optimizer._group_tensors_by_device_and_dtype, device)),
        ),
        (
            torch.nn.utils.clip_grad,
            "_group_tensors_by_device_and_dtype",
            _grouped(torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype, device),
        ),
        (
            torch.utils.checkpoint,
            "_allowed_determinism_checks_to_fns",
            _told(torch.utils.checkpoint._allowed_determinism_checks_to_fns, device),
        ),
        (parallel, "__init__", _on_the_device(parallel.__init__, device)),
        (parallel, "_pre_forward", _on_the_device(parallel._pre_forward, device)),
        (
            torch.distributed,
            "init_process_group",
            _without_nccl(torch.distributed.init_process_group, device),
        ),
        (time, "perf_counter_ns", lambda: machine.now_ns),
        (time, "perf_counter", lambda: machine.now_ns * 1e-9),
    ]


def _work(machine: Machine) -> dict[str, Any]:
    """Streams and events. Source: torch/cuda/__init__.py and torch/cuda/streams.py."""

    @contextmanager
    def stream(chosen: Stream | None) -> Iterator[None]:
        """Source: torch/cuda/__init__.py, StreamContext: None changes nothing."""
        before, machine.stream = machine.stream, chosen or machine.stream
        try:
            yield
        finally:
            machine.stream = before

    return {
        "synchronize": lambda device=None: machine.drain(),
        "Stream": _type(lambda _, *__, **___: machine.new_stream()),
        "Event": _type(lambda _, enable_timing=False, **__: Event(machine, enable_timing)),
        "current_stream": lambda device=None: machine.stream,
        "default_stream": lambda device=None: machine.default,
        "stream": stream,
        "is_current_stream_capturing": lambda: machine.capture_of(machine.stream) is not None,
    }


def _type(new: Callable[..., Any]) -> type:
    """Return a class that makes another object, because libraries name streams in their annotations."""
    return type("Made", (), {"__new__": new})


def _accelerator(machine: Machine) -> dict[str, Any]:
    """The device under the name common to all accelerators, which newer optimizers use.

    Source: torch/accelerator/__init__.py; torch/optim/optimizer.py, _accelerator_graph_capture_health_check.
    """
    return {
        "current_accelerator": lambda check_available=False: CUDA,
        "current_stream": lambda device=None: machine.stream,
    }


def _memory(machine: Machine) -> dict[str, Any]:
    """The allocator's figures. Source: torch/cuda/memory.py."""
    memory = machine.memory

    def reset_peak(device: Any = None) -> None:
        """Source: c10/cuda/CUDACachingAllocator.cpp, resetPeakStats: the peak becomes the present."""
        memory.peak, memory.peak_reserved = memory.allocated, memory.reserved

    def empty_cache() -> None:
        """Source: c10/cuda/CUDACachingAllocator.cpp, release_block: cudaFree, which no capture permits."""
        machine.call("empty_cache", synchronizes=True)
        memory.empty_cache()

    def set_fraction(fraction: float, device: Any = None) -> None:
        """Source: torch/cuda/memory.py, set_per_process_memory_fraction."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        memory.fraction = fraction

    def fraction(device: Any = None) -> float:
        """Source: torch/cuda/memory.py, get_per_process_memory_fraction: all of it if nothing was set."""
        return 1.0 if memory.fraction is None else memory.fraction

    return {
        "memory_allocated": lambda device=None: memory.allocated,
        "max_memory_allocated": lambda device=None: memory.peak,
        "max_memory_reserved": lambda device=None: memory.peak_reserved,
        "memory_reserved": lambda device=None: memory.reserved,
        "reset_peak_memory_stats": reset_peak,
        "memory_stats": lambda device=None: memory.stats(),
        "mem_get_info": lambda device=None: (memory.unreserved, memory.total),
        "set_per_process_memory_fraction": set_fraction,
        "get_per_process_memory_fraction": fraction,
        "empty_cache": empty_cache,
    }


def _autocast(real: type) -> type:
    """Let autocast on the device use the CPU's, where the tensors are; the operator rules of the CPU differ.

    Source: torch/amp/autocast_mode.py.
    """

    class autocast(real):  # noqa: N801 - as torch names it
        def __init__(self, device_type: str, dtype: Any = None, **options: Any) -> None:
            if device_type == CUDA.type:
                device_type, dtype = CPU.type, dtype or torch.float16
            super().__init__(device_type, dtype, **options)

    return autocast


def _grouped(real: Callable[..., Any], device: Device) -> Callable[..., Any]:
    """Name the device in torch's groups of tensors, which its C++ part reads from the CPU tensors.

    Source: torch/optim/optimizer.py, Optimizer._group_tensors_by_device_and_dtype.
    """

    def grouped(tensors: Any, with_indices: bool = False) -> Any:
        found = real(tensors, with_indices)
        there = any(t is not None and device.holds(t) for t in tensors[0])
        return (
            {(device.name if there else place, kind): v for (place, kind), v in found.items()}
            if there
            else found
        )

    return grouped


def _told(checks: dict[str, Callable[[Any], Any]], device: Device) -> dict[str, Callable[[Any], Any]]:
    """Name the device in the metadata of a recomputed tensor: inside a Python backward pass the mode that
    names it is inactive.

    Source: torch/utils/checkpoint.py, _default_meta_extractor.
    """

    def told(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def of(tensor: Any) -> Any:
            known = check(tensor)
            return known | {"device": device.name} if known and device.holds(tensor) else known

        return of

    return {name: told(check) for name, check in checks.items()}


def _on_the_device(real: Callable[..., Any], device: Device) -> Callable[..., Any]:
    """Put the buckets that DistributedDataParallel creates in C++ on the device of its parameters.

    Source: torch/csrc/distributed/c10d/reducer.cpp, initialize_buckets, called at the start and when buckets are
    rebuilt before a forward pass.
    """

    @functools.wraps(real)
    def method(*args: Any, **kwargs: Any) -> Any:
        with device.here():
            return real(*args, **kwargs)

    return method


def _without_nccl(real: Callable[..., None], device: Device) -> Callable[..., None]:
    """Use gloo in place of NCCL, because the tensors are on the CPU. One device in two processes is refused.

    Source: torch/distributed/distributed_c10d.py, init_process_group; NCCL, src/init.cc, "Duplicate GPU detected",
    where NCCL reports it at the first exchange.
    """

    @functools.wraps(real)
    def init(backend: str | None = None, **options: Any) -> None:
        nccl = backend is not None and "nccl" in backend
        real("gloo" if nccl else backend, **options)
        if not nccl:
            return
        used: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(used, device.name.index)
        if len(set(used)) < len(used):
            raise RuntimeError(f"Duplicate GPU detected: the processes use CUDA devices {used}")

    return init
