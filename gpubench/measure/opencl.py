"""Micro-benchmarks through OpenCL: copies, transfers and arithmetic, on a clock that waits for the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyopencl as cl
from pyopencl.array import Array, empty, zeros

from gpubench.errors import NoDeviceError
from gpubench.measure.budget import Budget
from gpubench.measure.loop import Clock
from gpubench.measure.micro import copies
from gpubench.measure.probes import Action, Probe, by_clock, deadline_in, measure_all, repeat
from gpubench.models import DeviceProfile, Finding, MicroResult
from gpubench.units import Bytes, Seconds, plain

# Chains of dependent operations in one work-item: enough of them to hide the latency of an operation.
CHAINS = 8
# Steps of a chain; with this many, the launch takes only a few thousandths of the kernel's time.
CHAIN_STEPS = 4096
# Work-items per compute unit: several for each of its lanes.
ITEMS_PER_UNIT = 1 << 14
# The errors with which a device refuses a buffer; some devices report them only at its first use.
_TOO_LARGE = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.INVALID_BUFFER_SIZE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
)
# For each format: its type in OpenCL C, its type in NumPy, and the extension that a device needs.
_FORMATS = {
    "fp32": ("float", np.float32, ""),
    "fp64": ("double", np.float64, "cl_khr_fp64"),
    "fp16": ("half", np.float16, "cl_khr_fp16"),
}
_SOURCE = """
#pragma OPENCL FP_CONTRACT ON
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#ifdef cl_khr_fp16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif
__kernel void chains(__global TYPE *out, const SCALAR gain, const SCALAR offset) {
    const TYPE a = (TYPE)((SCALAR)(get_global_id(0) % 64));
    TYPE b = a + gain, c = b + gain, d = c + gain, e = d + gain;
    TYPE f = e + gain, g = f + gain, h = g + gain, i = a;
    for (int step = 0; step < STEPS; ++step) {
        b = b * gain + offset; c = c * gain + offset; d = d * gain + offset; e = e * gain + offset;
        f = f * gain + offset; g = g * gain + offset; h = h * gain + offset; i = i * gain + offset;
    }
    out[get_global_id(0)] = (b + c + d + e + f + g + h + i) / (SCALAR)8;
}
"""
# x' = gain x + offset converges to its fixed point from any start, so the result proves the computation.
_GAIN, _OFFSET, _FIXED_POINT = 0.5, 1.0, 2.0
_ANY_SOURCE = "__kernel void any(__global float *x) { x[0] += 1.0f; }"


def open_queue(profile: DeviceProfile) -> cl.CommandQueue:
    """Open a queue on a profile's device, and check that its driver compiles for it.

    Raises:
        NoDeviceError: If the device is no longer at its index or cannot be opened, or if its driver cannot
            compile for it, as with an old PoCL on a newer processor.
    """
    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
        device = dict(enumerate(devices)).get(profile.index or 0)
        if device is None or plain(device.name.strip(), 120) != profile.name:
            raise NoDeviceError(f"opencl:{profile.index} is no longer {profile.name}; see gpubench probe")
        queue = cl.CommandQueue(cl.Context([device]))
        cl.Program(queue.context, _ANY_SOURCE).build()
    except cl.Error as error:
        lines = str(error).splitlines()
        line = next((line for line in lines if "error" in line), lines[0])
        raise NoDeviceError(
            f"the OpenCL driver of {profile.name} cannot open it, or cannot compile for it "
            f"({plain(line, 200)}); install a newer driver (for a CPU: a PoCL with an LLVM that supports it)"
        ) from error
    return queue


def run_micro(
    queue: cl.CommandQueue,
    profile: DeviceProfile,
    budget: Budget,
    *,
    time_s: Seconds | None = None,
) -> Iterator[MicroResult | Finding]:
    """Run the micro-benchmarks: arithmetic, copies and transfers.

    A device that reports more memory than it has may refuse a buffer: see ``measure_all``.

    Args:
        queue: A queue of the device.
        profile: The device's profile, with the memory that it reports.
        budget: How long and how precisely to measure.
        time_s: Stop before a probe that would begin after this; None for no limit.
    """

    def measure(probe: Probe) -> MicroResult:
        return repeat(probe, probe.make(queue), by_clock(probe, Clock(synchronize=queue.finish)), budget)

    def is_refusal(error: Exception) -> bool:
        return isinstance(error, cl.Error) and error.code in _TOO_LARGE

    yield from measure_all(probes(queue), measure, is_refusal, profile, deadline_in(time_s))


def probes(queue: cl.CommandQueue) -> Iterator[Probe]:
    """Yield multiply-adds in fp32 and the formats that the device's extensions add, copies and transfers."""
    yield multiply_add(queue, "fp32")
    extensions = queue.device.extensions.split()
    yield from (multiply_add(queue, name) for name, (*_, needed) in _FORMATS.items() if needed in extensions)
    yield from copies(own_memory=not _is_cpu(queue), inside=copy_inside, across=_copy_across)


def _is_cpu(queue: cl.CommandQueue) -> bool:
    return bool(queue.device.type & cl.device_type.CPU)


def multiply_add(queue: cl.CommandQueue, precision: str) -> Probe:
    """Return the probe of chains of dependent multiply-adds in registers, 2 FLOP each; not a matrix product.

    On a CPU, each work-item fills a vector register; without that, PoCL reaches only a tenth of the rate.
    """
    scalar, number, _ = _FORMATS[precision]
    lanes = max(1, getattr(queue.device, f"native_vector_width_{scalar}")) if _is_cpu(queue) else 1
    items = ITEMS_PER_UNIT * queue.device.max_compute_units // lanes
    options = [f"-DTYPE={scalar}{lanes if lanes > 1 else ''}", f"-DSCALAR={scalar}", f"-DSTEPS={CHAIN_STEPS}"]

    def make(queue: cl.CommandQueue) -> Action:
        kernel = cl.Kernel(cl.Program(queue.context, _SOURCE).build(options), "chains")
        out = empty(queue, items * lanes, number)
        kernel.set_args(out.data, number(_GAIN), number(_OFFSET))

        def run(_: Array = out) -> object:  # the kernel object does not keep its arguments alive
            return cl.enqueue_nd_range_kernel(queue, kernel, (items,), None)

        run()
        if not np.allclose(out.get().astype(np.float64), _FIXED_POINT, rtol=1e-2):
            raise ArithmeticError(f"{precision} multiply-adds of {queue.device.name} give wrong results")
        return run

    return Probe(
        name="multiply-add",
        precision=precision,
        size=f"{items * lanes * CHAINS} chains of {CHAIN_STEPS}",
        unit="FLOP/s",
        work=2.0 * CHAINS * CHAIN_STEPS * items * lanes,
        memory_bytes=items * lanes * np.dtype(number).itemsize,
        make=make,
    )


def copy_inside(size: Bytes, queue: cl.CommandQueue) -> Action:
    """Return a copy between two device buffers, both written first: drivers may allocate at first use."""
    source, target = (zeros(queue, size, np.uint8) for _ in range(2))
    return lambda: cl.enqueue_copy(queue, target.data, source.data)


def _copy_across(to_device: bool, pinned: bool, size: Bytes, queue: cl.CommandQueue) -> Action:
    there: Any = zeros(queue, size, np.uint8)
    here = np.ones(size, np.uint8)
    if pinned:
        flags, access = cl.mem_flags, cl.map_flags.READ | cl.map_flags.WRITE
        staged = cl.Buffer(queue.context, flags.READ_WRITE | flags.ALLOC_HOST_PTR, size)
        here, _ = cl.enqueue_map_buffer(queue, staged, access, 0, (size,), np.uint8)
        here[:] = 1
    target, source = (there.data, here) if to_device else (here, there.data)
    return lambda: cl.enqueue_copy(queue, target, source, is_blocking=False)
