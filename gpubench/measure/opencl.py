"""Micro-benchmarks through OpenCL: copies, transfers, launches and arithmetic, under the one stop rule.

A repetition on a GPU is timed by the profile of its event, with the cache cleared before it; on a CPU, and
where host and device both work, on the clock that waits for the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyopencl as cl

from gpubench.errors import NoDeviceError
from gpubench.measure.budget import Budget
from gpubench.measure.loop import Clock
from gpubench.measure.micro import CACHE_BYTES, other_probes
from gpubench.measure.probes import Make, Probe, Timer, by_clock, deadline_in, measure_all, repeat
from gpubench.models import DeviceProfile, Finding, MicroResult
from gpubench.units import Bytes, Seconds, plain

CHAINS = 8
"""Chains of dependent operations in one work-item: enough to hide the latency of each."""
CHAIN_STEPS = 2048
ITEMS_PER_UNIT = 1 << 14
"""Work-items for each compute unit: several for every lane that it has."""
FLOP_PER_STEP = 2.0
_TOO_LARGE = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.INVALID_BUFFER_SIZE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
)
"""How a device refuses a buffer; some find out only when it is first used."""
_GAIN, _OFFSET = 0.5, 1.0
"""Of x' = gain x + offset, which ends at 2 whatever it begins with: the result shows that it was computed."""
_FIXED_POINT = _OFFSET / (1 - _GAIN)
_FORMATS = {
    "fp32": ("float", np.float32, ""),
    "fp64": ("double", np.float64, "cl_khr_fp64"),
    "fp16": ("half", np.float16, "cl_khr_fp16"),
}
"""Formats: their name in OpenCL C, that of numpy, and the extension that a device needs."""
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


def open_queue(profile: DeviceProfile) -> cl.CommandQueue:
    """Open a queue of the device of a profile that keeps times, and see that the device compiles a kernel.

    Raises:
        NoDeviceError: If it is no longer at its place, cannot be opened, or compiles nothing.
    """
    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
        device = dict(enumerate(devices)).get(profile.index or 0)
        if device is None or plain(device.name.strip(), 120) != profile.name:
            raise NoDeviceError(f"opencl:{profile.index} is no longer {profile.name}; see gpubench probe")
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        queue = cl.CommandQueue(cl.Context([device]), properties=profiling)
    except cl.Error as error:
        raise NoDeviceError(f"OpenCL cannot open {profile.name}: {error}") from error
    compiled(queue, "one", _ONE_SOURCE)
    return queue


def compiled(queue: cl.CommandQueue, name: str, source: str) -> Any:
    """Return a kernel.

    Raises:
        NoDeviceError: If the driver cannot compile for its device, as an old PoCL for a newer processor.
    """
    program = cl.Program(queue.context, source)
    try:
        return cl.Kernel(program.build(), name)
    except cl.Error as error:
        lines = str(error).splitlines()
        seen = next((line for line in lines if "error" in line), lines[0])
        raise NoDeviceError(
            f"the OpenCL driver of {plain(queue.device.name.strip())} cannot compile for it "
            f"({plain(seen, 200)}); install a newer one (for a CPU: a PoCL whose LLVM knows this processor)"
        ) from error


def run_micro(
    queue: cl.CommandQueue,
    profile: DeviceProfile,
    budget: Budget,
    *,
    strict: bool,
    time_s: Seconds | None = None,
) -> Iterator[MicroResult | Finding]:
    """Run the micro-benchmarks of one process: arithmetic of strict fp32, or all else.

    A device that promises more memory than it has refuses a buffer: see ``measure_all``.

    Args:
        queue: Of the device.
        profile: How much memory it says that it has.
        budget: How long and how sure.
        strict: Whether this is the process of strict fp32.
        time_s: Stop before a probe that would begin after this; None for no limit.
    """

    def measure(probe: Probe) -> MicroResult:
        return repeat(probe, probe.make(queue), timer(probe, queue), budget)

    def is_refusal(error: Exception) -> bool:
        return isinstance(error, cl.Error) and error.code in _TOO_LARGE

    yield from measure_all(probes(queue, strict=strict), measure, is_refusal, profile, deadline_in(time_s))


def probes(queue: cl.CommandQueue, *, strict: bool) -> Iterator[Probe]:
    """Multiply-adds of strict fp32; else those of the device's other formats, copies, transfers, launches."""
    if strict:
        yield multiply_add(queue, "fp32")
        return
    told = queue.device.extensions.split()
    yield from (multiply_add(queue, name) for name, form in _FORMATS.items() if form[2] in told)
    yield from other_probes(alone=is_cpu(queue), inside=copy_inside, across=_copy_across, add=add)


def is_cpu(queue: cl.CommandQueue) -> bool:
    """Whether the device is the host's processor, which has no transfers to itself."""
    return bool(queue.device.type & cl.device_type.CPU)


def timer(probe: Probe, queue: cl.CommandQueue) -> Timer:
    """Return what times one repetition: the event's own profile on a GPU, else the clock."""
    if is_cpu(queue) or not probe.on_device:
        return by_clock(probe, Clock(synchronize=queue.finish))
    cache = buffer(queue, CACHE_BYTES)

    def by_event(action: Callable[[], Any]) -> Seconds:
        cl.enqueue_fill_buffer(queue, cache, np.uint8(0), 0, CACHE_BYTES)
        event = action()
        event.wait()
        return float(event.profile.end - event.profile.start) * 1e-9

    return by_event


def multiply_add(queue: cl.CommandQueue, precision: str) -> Probe:
    """Chains of dependent multiply-adds in registers: 2 FLOP each. It is no matrix product.

    On a CPU each work-item fills a vector register, without which PoCL reaches a tenth of the rate.
    """
    scalar, number, extension = _FORMATS[precision]
    lanes = max(1, getattr(queue.device, f"native_vector_width_{scalar}")) if is_cpu(queue) else 1
    type_name = f"{scalar}{lanes}" if lanes > 1 else scalar
    items = ITEMS_PER_UNIT * queue.device.max_compute_units // lanes
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

    def make(queue: cl.CommandQueue) -> Callable[[], object]:
        out, result = buffer(queue, size), np.empty(items * lanes, number)
        run = repetition(queue, compiled(queue, "chains", source), items, out, number(_GAIN), number(_OFFSET))
        run()
        cl.enqueue_copy(queue, result, out).wait()
        if not np.allclose(result.astype(np.float64), _FIXED_POINT, rtol=1e-2):
            raise ArithmeticError(f"{precision} multiply-adds of {queue.device.name} give wrong results")
        return run

    return Probe(
        name="multiply-add",
        precision=precision,
        size=f"{items * lanes * CHAINS} chains of {CHAIN_STEPS}",
        unit="FLOP/s",
        work=FLOP_PER_STEP * CHAINS * CHAIN_STEPS * items * lanes,
        memory_bytes=size,
        make=make,
    )


def buffer(queue: cl.CommandQueue, size: Bytes, flags: int = 0) -> Any:
    """Return a buffer of the device."""
    return cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | flags, size)


def repetition(queue: cl.CommandQueue, kernel: Any, items: int, *arguments: Any) -> Callable[[], object]:
    """Return what runs a kernel once; it keeps the arguments, which the kernel itself lets go."""
    kernel.set_args(*arguments)

    def run(_: tuple[Any, ...] = arguments) -> object:
        return cl.enqueue_nd_range_kernel(queue, kernel, (items,), None)

    return run


def copy_inside(size: Bytes) -> Make:
    """Copy one buffer of the device to another, both written before: what never was may not be there yet."""

    def make(queue: cl.CommandQueue) -> Callable[[], object]:
        source, target = buffer(queue, size), buffer(queue, size)
        for each in (source, target):
            cl.enqueue_fill_buffer(queue, each, np.uint8(1), 0, size)
        return lambda: cl.enqueue_copy(queue, target, source)

    return make


def _copy_across(to_device: bool, pinned: bool, size: Bytes) -> Make:
    def make(queue: cl.CommandQueue) -> Callable[[], object]:
        there, here = buffer(queue, size), np.empty(size, np.uint8)
        if pinned:
            staged = buffer(queue, size, cl.mem_flags.ALLOC_HOST_PTR)
            flags = cl.map_flags.READ | cl.map_flags.WRITE
            here, _ = cl.enqueue_map_buffer(queue, staged, flags, 0, (size,), np.uint8)
        here[:] = 1
        target, source = (there, here) if to_device else (here, there)
        return lambda: cl.enqueue_copy(queue, target, source, is_blocking=False)

    return make


def add(queue: cl.CommandQueue) -> Callable[[], object]:
    """Add one to one element."""
    return repetition(queue, compiled(queue, "one", _ONE_SOURCE), 1, buffer(queue, 4))
