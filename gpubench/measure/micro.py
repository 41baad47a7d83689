"""Micro-benchmarks: matrix products, copies, transfers and kernel launches, with the stop rule of the cases.

A repetition on a GPU is timed by a pair of device events, and the L2 cache is cleared before the first event.
Transfers and series of launches are timed on the synchronizing clock. The estimate is the median.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal

import msgspec
import torch
from torch import distributed

from gpubench.foreign_code import lacks_memory
from gpubench.measure import quantize
from gpubench.measure.budget import Budget
from gpubench.measure.capability import (
    CPU_GEMM_SIZES,
    GEMM_PRECISIONS,
    GEMM_SIZES,
    why_no_precision,
)
from gpubench.measure.checks import IEEE_ERROR
from gpubench.measure.launch import sampling
from gpubench.measure.probes import (
    Action,
    Probe,
    Timer,
    by_clock,
    deadline_in,
    halving,
    measure_all,
    memory_refused,
    one_by_one,
    repeat,
)
from gpubench.measure.step import Hardware, probe_errors, switches_for
from gpubench.measure.team import AllReduce, Team
from gpubench.models import DeviceProfile, Finding, FindingKind, MicroResult, Precision, TelemetrySample
from gpubench.precisions import FORMATS, FP8, INT8
from gpubench.probe.backend import Readings
from gpubench.units import GIB, KIB, MIB, Bytes, Seconds

_TYPES: dict[str, torch.dtype] = {
    form.name: getattr(torch, form.torch_type) for form in FORMATS if form.torch_type
}
# Result types of products, where they differ from the operands' type.
_RESULTS = {FP8.name: torch.bfloat16, INT8.name: torch.int32}
# Products that this torch build or device may lack even if the GPU's model supports them.
_IN_8_BITS: dict[str, Literal["FP8", "int8"]] = {FP8.name: "FP8", INT8.name: "int8"}
COPY_BYTES = 2 * GIB
CPU_COPY_BYTES = 256 * MIB
TRANSFER_BYTES = 256 * MIB
LAUNCHES = 1000
# Sizes of the summed tensor: the smallest shows only latency, the largest is that of many layers' gradients.
ALL_REDUCE_BYTES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB)
# A repetition sums about this many bytes, if ``MOST_ALL_REDUCES`` allows it.
ALL_REDUCE_BLOCK_BYTES = 64 * MIB
# Maximum number of sums before the processes are synchronized, which takes as long as a small sum.
MOST_ALL_REDUCES = 100
# Bytes written before each repetition: more than the L2 cache of any card, so no operand stays cached.
CACHE_BYTES = 256 * MIB
# Smallest n of an n x n product.
LEAST_GEMM = 1024
# Below this size, a copy mostly shows its startup time, so the probe is skipped.
LEAST_COPY_BYTES = 64 * MIB
# Builds the call that copies this many bytes inside a device, in torch or OpenCL.
Inside = Callable[[Bytes, Any], Action]
# Builds the call that transfers bytes, given whether they go to the device, whether host memory is
# page-locked, and their number.
Across = Callable[[bool, bool, Bytes, Any], Action]


def run_micro(
    hardware: Hardware,
    profile: DeviceProfile,
    budget: Budget,
    telemetry: Readings,
    *,
    time_s: Seconds | None = None,
) -> Iterator[MicroResult | Finding]:
    """Run the probes: products of each precision, copies, transfers and launches.

    Strict fp32 is first proven against float64, because a switch alone proves nothing; if the proof fails,
    fp32 products get the finding ``TF32_IN_FORCE``. If even the proof does not fit in memory, no fp32 product
    is measured. ``measure_all`` makes a probe smaller if it does not fit.

    Args:
        hardware: The device.
        profile: Its profile, with its precisions and memory.
        budget: How long to measure, and how precisely.
        telemetry: Readings of the device, taken while each probe is repeated.
        time_s: Stop before a probe that would begin after this; None for no limit.
    """
    deadline_s = deadline_in(time_s)
    absent = {name for name, kind in _IN_8_BITS.items() if quantize.why_no_products(kind, hardware.device)}
    products = gemm_probes(profile, in_haste=budget.in_haste)
    present = (probe for probe in products if probe.precision not in absent)
    chosen = [*present, *other_probes(own_memory=hardware.is_cuda)]
    fp32_findings = _not_ieee(hardware)
    if fp32_findings is None:
        hardware.release()
        yield memory_refused("the proof of strict fp32", profile)
        chosen = [probe for probe in chosen if probe.precision != "fp32"]

    def measure(probe: Probe) -> MicroResult:
        with (
            switches_for(GEMM_PRECISIONS.get(probe.precision or "fp32", Precision.FP32)),
            sampling(telemetry, time.perf_counter) as drain,
        ):
            result = measure_probe(probe, hardware, budget, samples=drain)
        if probe.precision != "fp32":
            return result
        return msgspec.structs.replace(result, findings=(*result.findings, *(fp32_findings or ())))

    for each in measure_all(chosen, measure, lacks_memory, profile, deadline_s):
        yield each
        hardware.release()
    hardware.release()  # again, because the last probe may have given no result


def run_all_reduce(
    team: Team, hardware: Hardware, budget: Budget, telemetry: Readings, time_s: Seconds | None = None
) -> Iterator[MicroResult]:
    """Measure how fast the processes of a job sum a tensor over all of them, at several sizes.

    The rate is the bus bandwidth as defined by NCCL's own tests: each process sends and receives
    2 (n - 1) / n of the bytes, so the rate can be compared with a link's for any number of processes.

    Args:
        team: The processes.
        hardware: The first process's device.
        budget: How long to measure, and how precisely.
        telemetry: Readings of all devices.
        time_s: Stop before a probe that would begin after this; None for no limit.
    """
    probes = (all_reduce_probe(size, team.size) for size in ALL_REDUCE_BYTES)
    clock = team.clock()

    def measure(probe: Probe) -> MicroResult:
        def timer(action: Action) -> Seconds:
            team.announce(AllReduce(size=probe.memory_bytes, count=probe.repeats))
            return by_clock(probe, clock)(action)

        with sampling(telemetry, time.perf_counter) as drain:
            return measure_probe(probe, hardware, budget, timer=timer, samples=drain)

    yield from one_by_one(probes, measure, deadline_in(time_s))


def all_reduce_probe(size: Bytes, processes: int) -> Probe:
    """Return the probe of a float32 sum of this size over all processes, repeated if too short to time."""
    words = f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
    return Probe(
        name="all-reduce",
        size=f"{words}, {processes} processes",
        unit="B/s",
        work=2 * (processes - 1) / processes * size,
        memory_bytes=size,
        make=partial(_all_reduce, size),
        on_device=False,
        repeats=max(1, min(MOST_ALL_REDUCES, ALL_REDUCE_BLOCK_BYTES // size)),
    )


def _all_reduce(size: Bytes, device: torch.device) -> Action:
    tensor = torch.zeros(size // 4, device=device)  # sums of ones would overflow
    return lambda: distributed.all_reduce(tensor)


def _not_ieee(hardware: Hardware) -> tuple[Finding, ...] | None:
    # Return findings if fp32 is not strict on this device; None if the proof does not fit in memory.
    try:
        with switches_for(Precision.FP32):
            errors = probe_errors(hardware.device).values()
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        return None
    beyond = [error for error in errors if not error <= IEEE_ERROR]  # NaN exceeds the limit too
    return tuple(Finding(kind=FindingKind.TF32_IN_FORCE, value=e, limit=IEEE_ERROR) for e in beyond[:1])


def gemm_probes(profile: DeviceProfile, *, in_haste: bool = False) -> Iterator[Probe]:
    """Yield square products at each supported precision; if ``in_haste``, only at the usual precisions."""
    on_cpu = profile.is_cpu
    for name, precision in GEMM_PRECISIONS.items():
        if (in_haste and not precision.is_usual) or why_no_precision(precision, profile):
            continue
        for size in CPU_GEMM_SIZES if on_cpu else GEMM_SIZES[name]:
            yield gemm(name, size)


def _multiply(precision: str, size: int, device: torch.device) -> Action:
    # Return the call of a product of random numbers: uniformly distributed for int8, else normally.
    given = _TYPES[precision]
    out = torch.empty(size, size, device=device, dtype=_RESULTS.get(precision, given))
    if precision == INT8.name:
        a, b = (torch.randint(-127, 128, (size, size), dtype=given, device=device) for _ in range(2))
        return lambda: quantize.multiply_int8(a, b, out)
    if precision == FP8.name:
        a, b = (torch.randn(size, size, device=device).to(given) for _ in range(2))
        return lambda: quantize.scaled_product(a, b.t(), out=out)
    a, b = (torch.randn(size, size, device=device, dtype=given) for _ in range(2))
    return lambda: torch.mm(a, b, out=out)


def gemm(precision: str, size: int) -> Probe:
    """Return the probe of a square matrix product: 2 n^3 operations."""
    given = _TYPES[precision]
    return Probe(
        name="gemm",
        precision=precision,
        size=str(size),
        unit=GEMM_PRECISIONS[precision].facts.format.unit,
        work=2.0 * size**3,
        memory_bytes=size * size * (2 * given.itemsize + _RESULTS.get(precision, given).itemsize),
        make=partial(_multiply, precision, size),
        halved=halving(partial(gemm, precision), size, LEAST_GEMM),
    )


def _copy_inside(size: Bytes, device: torch.device) -> Action:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def device_copy(size: Bytes, make: Inside = _copy_inside) -> Probe:
    """Return the probe of a copy inside the device's memory; bytes read and bytes written both count."""
    return Probe(
        name="device copy",
        size=f"{size // MIB} MiB",
        unit="B/s",
        work=2.0 * size,
        memory_bytes=2 * size,
        make=partial(make, size),
        halved=halving(partial(device_copy, make=make), size, LEAST_COPY_BYTES),
    )


def _copy_across(to_device: bool, pinned: bool, size: Bytes, device: torch.device) -> Action:
    host = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
    there = torch.ones(size, dtype=torch.uint8, device=device)
    source, target = (host, there) if to_device else (there, host)
    return lambda: target.copy_(source, non_blocking=pinned)


def transfer(size: Bytes, *, to_device: bool, pinned: bool, make: Across = _copy_across) -> Probe:
    """Return the probe of a copy between host and device, from page-locked or ordinary memory."""
    direction = "host to device" if to_device else "device to host"
    return Probe(
        name=f"{direction} {'pinned' if pinned else 'pageable'}",
        size=f"{size // MIB} MiB",
        unit="B/s",
        work=float(size),
        memory_bytes=size,
        make=partial(make, to_device, pinned, size),
        on_device=False,
        halved=halving(
            partial(transfer, to_device=to_device, pinned=pinned, make=make), size, LEAST_COPY_BYTES
        ),
    )


def _add(device: torch.device) -> Action:
    one = torch.ones(1, device=device)
    return lambda: one.add_(1)


def other_probes(*, own_memory: bool) -> Iterator[Probe]:
    """Yield copies, transfers and launches.

    A launch is a one-element addition: a series of back-to-back launches is timed in wall time and, on a
    device with its own memory (unlike a CPU), one launch between two device events.
    """
    yield from copies(own_memory=own_memory)
    if own_memory:
        yield Probe(name="launch device", size="1 launch", unit="s", make=_add)
    yield Probe(
        name="launch wall",
        size=f"{LAUNCHES} launches",
        unit="s",
        make=_add,
        on_device=False,
        repeats=LAUNCHES,
    )


def copies(
    *, own_memory: bool, inside: Inside = _copy_inside, across: Across = _copy_across
) -> Iterator[Probe]:
    """Yield copies inside a device and, if it has its own memory, transfers to and from its host."""
    if not own_memory:
        yield device_copy(CPU_COPY_BYTES, inside)
        return
    yield device_copy(COPY_BYTES, inside)
    for to_device, pinned in product((True, False), repeat=2):
        yield transfer(TRANSFER_BYTES, to_device=to_device, pinned=pinned, make=across)


def measure_probe(
    probe: Probe,
    hardware: Hardware,
    budget: Budget,
    *,
    timer: Timer | None = None,
    samples: Callable[[], Sequence[TelemetrySample]] = tuple,
    now_s: Callable[[], Seconds] = time.perf_counter,
) -> MicroResult:
    """Repeat one probe on a torch device, by default with the timer that suits it; see ``repeat``."""
    action = probe.make(hardware.device)
    return repeat(probe, action, timer or _timer(probe, hardware), budget, samples=samples, now_s=now_s)


def _timer(probe: Probe, hardware: Hardware) -> Timer:
    if not (probe.on_device and hardware.is_cuda):
        return by_clock(probe, hardware.clock())
    cache = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=hardware.device)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def by_events(action: Action) -> Seconds:
        cache.zero_()
        before.record()
        action()
        after.record()
        torch.cuda.synchronize()
        return float(before.elapsed_time(after)) * 1e-3

    return by_events
