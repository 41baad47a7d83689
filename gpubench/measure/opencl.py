"""Micro-benchmarks through OpenCL: copies, transfers, launches and arithmetic, under the one stop rule.

A repetition on a GPU is timed by the profile of its event, with the cache cleared before it; on a CPU, and
where host and device both work, on the clock that waits for the queue.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyopencl as cl

from gpubench.errors import NoDeviceError
from gpubench.measure import micro
from gpubench.measure.budget import Budget
from gpubench.measure.checks import IEEE_ERROR
from gpubench.measure.loop import Clock
from gpubench.measure.micro import CACHE_BYTES, gemm
from gpubench.measure.peaks import CPU_GEMM_SIZES, GEMM_SIZES
from gpubench.measure.probes import Make, Probe, Timer, by_clock, deadline_in, measure_all, repeat
from gpubench.models import DeviceProfile, Finding, FindingKind, MicroResult
from gpubench.units import Bytes, Seconds

CHAINS = 8
"""Chains of dependent operations in one work-item: enough to hide the latency of each."""
CHAIN_STEPS = 2048
ITEMS_PER_UNIT = 1 << 14
"""Work-items for each compute unit: several for every lane that it has."""
FLOP_PER_STEP = 2.0
_TOO_LARGE = frozenset(
    {
        cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
        cl.status_code.INVALID_BUFFER_SIZE,
        cl.status_code.OUT_OF_RESOURCES,
        cl.status_code.OUT_OF_HOST_MEMORY,
    }
)
"""How a device refuses a buffer; some find out only when it is first used."""
_GAIN, _OFFSET = 0.5, 1.0
"""Of x' = gain x + offset, which ends at 2 whatever it begins with: the result shows that it was computed."""
_FIXED_POINT = _OFFSET / (1 - _GAIN)
_FORMATS = {"fp64": ("double", np.float64, "cl_khr_fp64"), "fp16": ("half", np.float16, "cl_khr_fp16")}
"""Formats beside fp32: their name in OpenCL C, that of numpy, and the extension that a device needs."""

_SOURCE = """
#pragma OPENCL FP_CONTRACT ON
{pragma}
__kernel void chains(__global {type} *out, const {scalar} gain, const {scalar} offset) {{
    const size_t item = get_global_id(0);
    {type} {declared};
    for (int step = 0; step < {steps}; ++step) {{
        {body}
    }}
    out[item] = ({summed}) / ({scalar}){chains};
}}
"""
_ONE_SOURCE = "__kernel void one(__global float *x) { x[0] += 1.0f; }"


@dataclass(frozen=True)
class Queue:
    """A device, its context, and a queue that keeps the times of what runs in it."""

    device: Any
    context: Any
    queue: Any

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the host's processor, which has no transfers to itself."""
        return bool(self.device.type & cl.device_type.CPU)

    def lanes(self, scalar: str) -> int:
        """Values that one work-item computes side by side: a CPU's vector registers want to be filled."""
        return max(1, getattr(self.device, f"native_vector_width_{scalar}")) if self.is_cpu else 1

    def clock(self) -> Clock:
        """Return the clock that waits for the queue."""
        return Clock(synchronize=self.queue.finish)

    def buffer(self, size: Bytes, flags: int = 0) -> Any:
        """Return a buffer of the device."""
        return cl.Buffer(self.context, cl.mem_flags.READ_WRITE | flags, size)

    def repetition(self, kernel: Any, items: int, *kept: Any) -> Callable[[], object]:
        """Return what runs a kernel once; it keeps the buffers, which the kernel itself lets go."""

        def run(_: tuple[Any, ...] = kept) -> object:
            return cl.enqueue_nd_range_kernel(self.queue, kernel, (items,), None)

        return run


def open_queue(profile: DeviceProfile) -> Queue:
    """Open the device of a profile.

    Raises:
        NoDeviceError: If it is no longer at its place, or cannot be opened.
    """
    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
        place = profile.index or 0
        device = devices[place] if place < len(devices) else None
        if device is None or device.name.strip() != (profile.name or ""):
            raise NoDeviceError(f"opencl:{place} is no longer {profile.name}; see gpubench probe")
        context = cl.Context([device])
        queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    except cl.Error as error:
        raise NoDeviceError(f"OpenCL cannot open {profile.name}: {error}") from error
    return Queue(device, context, queue)


def run_micro(
    opened: Queue, profile: DeviceProfile, budget: Budget, *, strict: bool, time_s: Seconds | None = None
) -> Iterator[MicroResult | Finding]:
    """Run the micro-benchmarks of one process: arithmetic of strict fp32, or all else.

    A device that promises more memory than it has refuses a buffer: see ``measure_all``.

    Args:
        opened: Where.
        profile: How much memory it says that it has.
        budget: How long and how sure.
        strict: Whether this is the process of strict fp32.
        time_s: Stop before a probe that would begin after this; None for no limit.
    """
    chosen = [*arithmetic(opened, strict=strict), *(() if strict else other_probes(opened))]

    def measure(probe: Probe) -> MicroResult:
        result = repeat(probe, probe.make(opened), timer(probe, opened), budget)
        return proved(result, probe, opened)

    def is_refusal(error: Exception) -> bool:
        return isinstance(error, cl.Error) and error.code in _TOO_LARGE

    yield from measure_all(chosen, measure, is_refusal, profile, deadline_in(time_s))


def timer(probe: Probe, opened: Queue) -> Timer:
    """Return what times one repetition: the event's own profile on a GPU, else the clock."""
    if opened.is_cpu or not probe.on_device:
        return by_clock(probe, opened.clock())
    cache = opened.buffer(CACHE_BYTES)

    def by_event(action: Callable[[], Any]) -> Seconds:
        cl.enqueue_fill_buffer(opened.queue, cache, np.uint8(0), 0, CACHE_BYTES)
        event = action()
        event.wait()
        return float(event.profile.end - event.profile.start) * 1e-9

    return by_event


def proved(result: MicroResult, probe: Probe, opened: Queue) -> MicroResult:
    """Doubt a matrix product whose result is not that of IEEE fp32."""
    if probe.name != "gemm":
        return result
    error = product_error(opened)
    if error <= IEEE_ERROR:
        return result
    doubt = Finding(kind=FindingKind.TF32_IN_FORCE, value=error, limit=IEEE_ERROR)
    return msgspec.structs.replace(result, findings=(*result.findings, doubt))


# --- arithmetic ------------------------------------------------------------------------------------------


def arithmetic(opened: Queue, *, strict: bool) -> Iterator[Probe]:
    """Multiply-adds in each format that the device has, and matrix products where CLBlast is installed."""
    if not strict:
        told = opened.device.extensions.split()
        yield from (multiply_add(opened, name) for name, form in _FORMATS.items() if form[2] in told)
        return
    yield multiply_add(opened, "fp32")
    if clblast() is not None:
        yield from (product(size) for size in (CPU_GEMM_SIZES if opened.is_cpu else GEMM_SIZES["fp32"]))


def multiply_add(opened: Queue, precision: str) -> Probe:
    """Chains of dependent multiply-adds in registers: 2 FLOP each. It is no matrix product."""
    scalar, number, extension = _FORMATS.get(precision, ("float", np.float32, ""))
    lanes = opened.lanes(scalar)
    type_name = f"{scalar}{lanes}" if lanes > 1 else scalar
    items = ITEMS_PER_UNIT * opened.device.max_compute_units // lanes
    size = items * lanes * np.dtype(number).itemsize
    names = [f"x{i}" for i in range(CHAINS)]
    source = _SOURCE.format(
        pragma=f"#pragma OPENCL EXTENSION {extension} : enable" if extension else "",
        type=type_name,
        scalar=scalar,
        declared=", ".join(f"{x} = ({type_name})(({scalar})(item % 64 + {i}))" for i, x in enumerate(names)),
        steps=CHAIN_STEPS,
        body=" ".join(f"{x} = {x} * gain + offset;" for x in names),
        summed=" + ".join(names),
        chains=CHAINS,
    )

    def make(queue: Queue) -> Callable[[], object]:
        kernel = cl.Kernel(cl.Program(queue.context, source).build(), "chains")
        out = queue.buffer(size)
        kernel.set_args(out, number(_GAIN), number(_OFFSET))
        cl.enqueue_nd_range_kernel(queue.queue, kernel, (items,), None).wait()
        result = np.empty(items * lanes, number)
        cl.enqueue_copy(queue.queue, result, out).wait()
        if not np.allclose(result.astype(np.float64), _FIXED_POINT, rtol=1e-2):
            raise ArithmeticError(f"{precision} multiply-adds of {queue.device.name} give wrong results")
        return queue.repetition(kernel, items, out)

    return Probe(
        name="multiply-add",
        precision=precision,
        size=f"{items * lanes * CHAINS} chains of {CHAIN_STEPS}",
        unit="FLOP/s",
        work=FLOP_PER_STEP * CHAINS * CHAIN_STEPS * items * lanes,
        memory_bytes=size,
        make=make,
    )


_ROW_MAJOR, _NO_TRANSPOSE = 101, 111
"""Of CLBlast's C interface."""


def clblast() -> Any:
    """Return CLBlast's fp32 matrix product; None where the library is not installed."""
    found = ctypes.util.find_library("clblast")
    if found is None:
        return None
    product = ctypes.CDLL(found).CLBlastSgemm
    whole, pointer = ctypes.c_size_t, ctypes.c_void_p
    operand: list[Any] = [pointer, whole, whole]
    product.argtypes = [
        *[ctypes.c_int] * 3, *[whole] * 3, ctypes.c_float, *operand, *operand, ctypes.c_float, *operand,
        pointer, pointer,
    ]  # fmt: skip
    return product


def _multiply(_precision: str, size: int) -> Make:
    def make(opened: Queue) -> Callable[[], object]:
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((size, size), dtype=np.float32) for _ in range(2))
        return _product(opened, a, b)[0]

    return make


def product(size: int) -> Probe:
    """A square fp32 matrix product by CLBlast, which hands out no event to time it by."""
    return gemm("fp32", size, _multiply, on_device=False)


def product_error(opened: Queue) -> float:
    """Return the largest error of a product against float64, over the largest value."""
    random, size = np.random.default_rng(1), 256
    a, b = (random.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    call, out = _product(opened, a, b)
    call()
    got = np.empty((size, size), np.float32)
    cl.enqueue_copy(opened.queue, got, out).wait()
    exact = a.astype(np.float64) @ b
    return float(np.abs(got - exact).max() / np.abs(exact).max())


def _product(opened: Queue, a: Any, b: Any) -> tuple[Callable[[], object], Any]:
    size, multiply = a.shape[0], clblast()
    copied = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    left, right = (cl.Buffer(opened.context, copied, hostbuf=each) for each in (a, b))
    out = opened.buffer(a.nbytes)
    queue = ctypes.c_void_p(opened.queue.int_ptr)

    def call() -> None:
        status = multiply(
            _ROW_MAJOR, _NO_TRANSPOSE, _NO_TRANSPOSE, size, size, size,
            1.0, left.int_ptr, 0, size, right.int_ptr, 0, size, 0.0, out.int_ptr, 0, size,
            ctypes.byref(queue), None,
        )  # fmt: skip
        if status != 0:
            raise RuntimeError(f"CLBlast refused a product of {size} with status {status}")

    return call, out


# --- copies, transfers, launches -------------------------------------------------------------------------


def other_probes(opened: Queue) -> Iterator[Probe]:
    """Copies, transfers and launches."""
    return micro.other_probes(alone=opened.is_cpu, inside=copy_inside, across=_copy_across, add=add)


def copy_inside(size: Bytes) -> Make:
    """Copy one buffer of the device to another, both written before: what never was may not be there yet."""

    def make(opened: Queue) -> Callable[[], object]:
        source, target = opened.buffer(size), opened.buffer(size)
        for each in (source, target):
            cl.enqueue_fill_buffer(opened.queue, each, np.uint8(1), 0, size)
        return lambda: cl.enqueue_copy(opened.queue, target, source)

    return make


def _copy_across(to_device: bool, pinned: bool, size: Bytes) -> Make:
    def make(opened: Queue) -> Callable[[], object]:
        there = opened.buffer(size)
        if pinned:
            staged = opened.buffer(size, cl.mem_flags.ALLOC_HOST_PTR)
            flags = cl.map_flags.READ | cl.map_flags.WRITE
            here, _ = cl.enqueue_map_buffer(opened.queue, staged, flags, 0, (size,), np.uint8)
        else:
            here = np.empty(size, np.uint8)
        here[:] = 1
        target, source = (there, here) if to_device else (here, there)
        return lambda: cl.enqueue_copy(opened.queue, target, source, is_blocking=False)

    return make


def add(opened: Queue) -> Callable[[], object]:
    """Add one to one element."""
    kernel = cl.Kernel(cl.Program(opened.context, _ONE_SOURCE).build(), "one")
    one = opened.buffer(4)
    kernel.set_args(one)
    return opened.repetition(kernel, 1, one)
