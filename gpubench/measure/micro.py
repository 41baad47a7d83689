"""Microbenchmarks: matrix products, copies, transfers and the cost of a launch, under the same stop rule.

A repetition on a GPU is timed by a pair of device events, with the L2 cache cleared before it and outside
the pair; transfers and launches are timed on the synchronizing clock. The estimate is the median.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean, median
from typing import Any

import msgspec
import torch
from torch import distributed

from gpubench import stats
from gpubench.foreign_code import lacks_memory
from gpubench.measure import quantize
from gpubench.measure.budget import (
    LEAST_REPETITIONS,
    LEAST_ROUNDS,
    MICRO_WARM_S,
    MOST_REPETITION_S,
    Budget,
)
from gpubench.measure.capability import why_no_precision
from gpubench.measure.checks import IEEE_ERROR
from gpubench.measure.hardware import Hardware
from gpubench.measure.loop import Clock
from gpubench.measure.peaks import CPU_GEMM_SIZES, GEMM_PRECISIONS, GEMM_SIZES, gemm_precisions
from gpubench.measure.precision import probe_errors, switches_for
from gpubench.measure.stopping import StopRule, Verdict
from gpubench.measure.team import Team
from gpubench.measure.telemetry import Sampler, Telemetry
from gpubench.models import DeviceProfile, Finding, FindingKind, MicroResult, Precision, TelemetrySample
from gpubench.precisions import FORMATS, FP8, INT8
from gpubench.units import GIB, KIB, MIB, Bytes, Seconds, format_bytes

_TYPES: dict[str, torch.dtype] = {
    form.name: getattr(torch, form.torch_type) for form in FORMATS if form.torch_type
}
_RESULTS = {FP8.name: torch.bfloat16, INT8.name: torch.int32}
"""Of products whose result is of another type than their operands."""
_UNITS = {form.name: form.unit for form in FORMATS}
_IN_8_BITS = {FP8.name: quantize.why_no_fp8, INT8.name: quantize.why_no_int8}
"""What a torch or a device may lack although the device's model has it."""
COPY_BYTES = 2 * GIB
CPU_COPY_BYTES = 256 * MIB
TRANSFER_BYTES = 256 * MIB
LAUNCHES = 1000
LOOK_AGAIN = 1.25
"""The stop rule is asked again when this many times as many repetitions are in: to ask it after each of
thousands would take longer than they do."""
ALL_REDUCE_BYTES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB)
"""From the size at which the start of an exchange counts alone to that of many layers' gradients."""
ALL_REDUCE_BLOCK_BYTES = 64 * MIB
MOST_ALL_REDUCES = 100
"""Exchanges between two waits for all processes, which take as long as a small one."""
CACHE_BYTES = 256 * MIB
"""Written before each repetition: more than the L2 of any card, so that no operand is found in it."""
MEMORY_SHARE = 0.4
"""A probe that would take more of the device's memory than this is halved until it fits."""
LEAST_GEMM = 1024
LEAST_COPY_BYTES = 64 * MIB
"""Below these sizes the start of the work is timed, not the work: such a probe is left out."""
MOST_TIMES = 1000
"""Repetitions whose times are kept one by one; a kernel of microseconds is repeated far more often."""

Timer = Callable[[Callable[[], object]], Seconds]
Make = Callable[[Any], Callable[[], object]]
"""Builds the operands on a device (of torch, or an OpenCL queue) and returns the repetition."""
Across = Callable[[bool, bool, Bytes], Make]
"""The same of a transfer: whether to the device, whether from page-locked memory, and its size."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One thing to time.

    Attributes:
        work: FLOP or bytes of one repetition; None where the time itself is the result.
        memory_bytes: What its operands take [B].
        make: Gives the repetition.
        on_device: Timed by device events with a cold cache; else on the synchronizing clock.
        repeats: Calls in one repetition.
        halved: Makes the same probe at half the size; None where that would mean nothing.
    """

    name: str
    size: str
    unit: str
    precision: str | None = None
    work: float | None = None
    memory_bytes: Bytes = 0
    make: Make = field(repr=False)
    on_device: bool = True
    repeats: int = 1
    halved: Callable[[], Probe | None] = lambda: None


def run_micro(
    hardware: Hardware,
    profile: DeviceProfile,
    budget: Budget,
    telemetry: Telemetry,
    *,
    strict: bool,
    others: bool,
    time_s: Seconds | None = None,
) -> Iterator[MicroResult | Finding]:
    """Run probes: the products of strict fp32 or of the other precisions, and copies and launches.

    Setting is not effect: strict fp32 is first proven against float64, and its products are
    ``TF32_IN_FORCE`` where they are not IEEE. What there is no memory for is made smaller, and said: see
    ``as_large_as_fits``; where not even the proof has any, nothing is measured.

    Args:
        hardware: The device.
        profile: Which precisions it has, how much memory.
        budget: How long and how sure.
        telemetry: Of the device, read while each probe is repeated.
        strict: Whether the products are those of strict fp32.
        others: Whether copies, transfers and launches are probed too.
        time_s: Stop before a probe that would begin after this; None for no limit.
    """
    deadline_s = deadline_in(time_s)
    absent = {name for name, why_not in _IN_8_BITS.items() if why_not(hardware.device) is not None}
    products = gemm_probes(profile, strict=strict, in_haste=budget.in_haste)
    here = (probe for probe in products if probe.precision not in absent)
    chosen = [*here, *(other_probes(alone=not hardware.is_cuda) if others else ())]
    in_time = before(deadline_s, fitting(chosen, room_of(profile)))
    alone: list[Finding] = []
    doubts: tuple[Finding, ...] | None = None
    try:
        doubts = _not_ieee(hardware) if strict else ()
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
    if doubts is None:
        hardware.release()
        yield memory_refused("the proof of strict fp32", profile)
        return

    def measure(probe: Probe) -> MicroResult:
        with (
            switches_for(GEMM_PRECISIONS.get(probe.precision or "fp32", Precision.FP32)),
            Sampler(telemetry, time.perf_counter) as sampler,
        ):
            result = measure_probe(probe, hardware, budget, samples=sampler.drain)
        if probe.precision != "fp32":
            return result
        return msgspec.structs.replace(result, findings=(*result.findings, *doubts))

    tried = as_large_as_fits(measure, lacks_memory, profile, alone, deadline_s)
    for result in one_by_one(in_time, tried):
        yield result
        hardware.release()
    hardware.release()  # what a probe without a figure took
    yield from alone


def run_all_reduce(
    team: Team, hardware: Hardware, budget: Budget, telemetry: Telemetry, time_s: Seconds | None = None
) -> Iterator[MicroResult]:
    """Measure how fast the processes of a job sum what each of them holds, by size.

    The rate is that of the bus, as NCCL's own tests state it: each process sends and receives
    2 (n - 1) / n of the bytes, so that it can be held against a link whatever the number of processes.

    Args:
        team: The processes.
        hardware: The first one's device.
        budget: How long and how sure.
        telemetry: Of all devices.
        time_s: Stop before a probe that would begin after this; None for no limit.
    """
    probes = (all_reduce_probe(size, team.size) for size in ALL_REDUCE_BYTES)
    clock = team.clock()

    def measure(probe: Probe) -> MicroResult:
        def timer(action: Callable[[], object]) -> Seconds:
            team.announce_all_reduce(probe.memory_bytes, probe.repeats)
            return by_clock(probe, clock)(action)

        with Sampler(telemetry, time.perf_counter) as sampler:
            return measure_probe(probe, hardware, budget, timer=timer, samples=sampler.drain)

    yield from one_by_one(before(deadline_in(time_s), probes), measure)


def all_reduce_probe(size: Bytes, processes: int) -> Probe:
    """Sum so many bytes of float32 over all processes, several times where once would time the start."""

    def make(device: torch.device) -> Callable[[], object]:
        tensor = torch.zeros(size // 4, device=device)  # sums of ones would run over
        return lambda: distributed.all_reduce(tensor)

    words = f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
    return Probe(
        name="all-reduce",
        size=f"{words}, {processes} processes",
        unit="B/s",
        work=2 * (processes - 1) / processes * size,
        memory_bytes=size,
        make=make,
        on_device=False,
        repeats=max(1, min(MOST_ALL_REDUCES, ALL_REDUCE_BLOCK_BYTES // size)),
    )


def _not_ieee(hardware: Hardware) -> tuple[Finding, ...]:
    with switches_for(Precision.FP32):
        errors = probe_errors(hardware.device).values()
    beyond = [error for error in errors if not error <= IEEE_ERROR]  # NaN is beyond, too
    return tuple(Finding(kind=FindingKind.TF32_IN_FORCE, value=e, limit=IEEE_ERROR) for e in beyond[:1])


def deadline_in(time_s: Seconds | None) -> Seconds:
    """Return the moment on ``time.perf_counter`` that is so far away; None is no limit."""
    return math.inf if time_s is None else time.perf_counter() + time_s


def before(deadline_s: Seconds, probes: Iterable[Probe]) -> Iterator[Probe]:
    """Give probes as long as there is time to begin one."""
    return takewhile(lambda _: time.perf_counter() < deadline_s, probes)


def room_of(profile: DeviceProfile) -> float:
    """Return what a probe may take of a device's memory [B]."""
    return math.inf if profile.memory_bytes is None else MEMORY_SHARE * profile.memory_bytes


def fitting(probes: Iterable[Probe], limit: float) -> Iterator[Probe]:
    """Halve each probe until it takes at most ``limit`` bytes; none comes twice."""
    seen = set()
    for probe in probes:
        smaller: Probe | None = probe
        while smaller is not None and smaller.memory_bytes > limit:
            smaller = smaller.halved()
        if smaller is not None and (what := (smaller.name, smaller.precision, smaller.size)) not in seen:
            seen.add(what)
            yield smaller


def as_large_as_fits(
    measure: Callable[[Probe], MicroResult],
    is_refusal: Callable[[Exception], bool],
    profile: DeviceProfile,
    alone: list[Finding],
    deadline_s: Seconds = math.inf,
) -> Callable[[Probe], MicroResult | None]:
    """Return what measures a probe at half its size, and half of that, where the device refuses the memory.

    Other programs may hold it, or a device promise more than it has. The result carries the finding; where
    no size is given that was not measured before, the finding stands in ``alone``.

    Args:
        measure: Measures a probe, or raises.
        is_refusal: Whether an error is a lack of memory; any other is raised.
        profile: How much memory the device says that it has.
        alone: Takes the findings without a result.
        deadline_s: No smaller probe is begun after it, on ``time.perf_counter``.
    """
    done: set[tuple[str, str | None, str]] = set()

    def measure_what_fits(probe: Probe) -> MicroResult | None:
        smaller: Probe | None = probe
        refused: tuple[Finding, ...] = ()
        while smaller is not None and (what := (smaller.name, smaller.precision, smaller.size)) not in done:
            try:
                result = measure(smaller)
            except Exception as error:
                if not is_refusal(error):
                    raise
                named = " ".join(filter(None, (smaller.name, smaller.precision)))
                refused = refused or (memory_refused(f"{named} of {smaller.size}", profile),)
                smaller = smaller.halved() if time.perf_counter() < deadline_s else None
                continue
            done.add(what)
            return msgspec.structs.replace(result, findings=(*result.findings, *refused))
        alone.extend(refused)
        return None

    return measure_what_fits


def memory_refused(what: str, profile: DeviceProfile) -> Finding:
    """Name what was refused of what is promised."""
    seen = f"{what}, of {format_bytes(profile.memory_bytes)} promised"
    return Finding(kind=FindingKind.MEMORY_REFUSED, value=seen)


def one_by_one(
    probes: Iterable[Probe], measure: Callable[[Probe], MicroResult | None]
) -> Iterator[MicroResult]:
    """Measure each probe but those that the size before it has shown to be too slow.

    ``measure`` gives None for a probe that cannot be had after all.
    """
    rates: dict[tuple[str, str | None], float] = {}
    for probe in probes:
        kind = (probe.name, probe.precision)
        if kind in rates and probe.work is not None and probe.work > MOST_REPETITION_S * rates[kind]:
            continue
        result = measure(probe)
        if result is not None:
            rates[kind] = result.value
            yield result


def gemm_probes(profile: DeviceProfile, *, strict: bool, in_haste: bool = False) -> Iterator[Probe]:
    """Matrix products of the precisions that the device has, over several sizes; in haste the usual ones."""
    on_cpu = profile.is_cpu
    for name, precision in gemm_precisions(in_haste=in_haste).items():
        if (precision is Precision.FP32) != strict or why_no_precision(precision, profile):
            continue
        for size in CPU_GEMM_SIZES if on_cpu else GEMM_SIZES[name]:
            yield gemm(name, size)


def _multiply(precision: str, size: int) -> Make:
    """A product; in FP8 each operand is under a scale of its own, whole numbers are of all their range."""
    given = _TYPES[precision]

    def make(device: torch.device) -> Callable[[], object]:
        out = torch.empty(size, size, device=device, dtype=_RESULTS.get(precision, given))
        if precision == INT8.name:
            a, b = (torch.randint(-127, 128, (size, size), dtype=given, device=device) for _ in range(2))
            return lambda: quantize.multiply_int8(a, b, out)
        if precision == FP8.name:
            a, b = (torch.randn(size, size, device=device).to(given) for _ in range(2))
            return lambda: quantize.scaled_product(a, b.t(), out=out)
        a, b = (torch.randn(size, size, device=device, dtype=given) for _ in range(2))
        return lambda: torch.mm(a, b, out=out)

    return make


def gemm(
    precision: str, size: int, make: Callable[[str, int], Make] = _multiply, *, on_device: bool = True
) -> Probe:
    """A square matrix product: 2 n^3 operations."""
    given = _TYPES[precision]
    return Probe(
        name="gemm",
        precision=precision,
        size=str(size),
        unit=_UNITS[precision],
        work=2.0 * size**3,
        memory_bytes=size * size * (2 * given.itemsize + _RESULTS.get(precision, given).itemsize),
        make=make(precision, size),
        on_device=on_device,
        halved=lambda: (
            gemm(precision, size // 2, make, on_device=on_device) if size // 2 >= LEAST_GEMM else None
        ),
    )


def _copy_inside(size: Bytes) -> Make:
    def make(device: torch.device) -> Callable[[], object]:
        source = torch.ones(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return make


def device_copy(size: Bytes, make: Callable[[Bytes], Make] = _copy_inside) -> Probe:
    """A copy inside the device's memory; bytes read and bytes written both count."""
    return Probe(
        name="device copy",
        size=mebibytes(size),
        unit="B/s",
        work=2.0 * size,
        memory_bytes=2 * size,
        make=make(size),
        halved=lambda: device_copy(size // 2, make) if size // 2 >= LEAST_COPY_BYTES else None,
    )


def _copy_across(to_device: bool, pinned: bool, size: Bytes) -> Make:
    def make(device: torch.device) -> Callable[[], object]:
        host = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
        there = torch.ones(size, dtype=torch.uint8, device=device)
        source, target = (host, there) if to_device else (there, host)
        return lambda: target.copy_(source, non_blocking=pinned)

    return make


def transfer(
    *, to_device: bool, pinned: bool, size: Bytes = TRANSFER_BYTES, make: Across = _copy_across
) -> Probe:
    """A copy between host and device, from page-locked or ordinary memory."""

    def halved() -> Probe | None:
        if size // 2 < LEAST_COPY_BYTES:
            return None
        return transfer(to_device=to_device, pinned=pinned, size=size // 2, make=make)

    direction = "host to device" if to_device else "device to host"
    return Probe(
        name=f"{direction} {'pinned' if pinned else 'pageable'}",
        size=mebibytes(size),
        unit="B/s",
        work=float(size),
        memory_bytes=size,
        make=make(to_device, pinned, size),
        on_device=False,
        halved=halved,
    )


def _add(device: torch.device) -> Callable[[], object]:
    one = torch.ones(1, device=device)
    return lambda: one.add_(1)


def launch(make: Make = _add) -> Probe:
    """One-element additions issued back to back: wall time of each."""
    return Probe(
        name="launch wall",
        size=f"{LAUNCHES} launches",
        unit="s",
        make=make,
        on_device=False,
        repeats=LAUNCHES,
    )


def launch_on_device(make: Make = _add) -> Probe:
    """A one-element addition between two device events."""
    return Probe(name="launch device", size="1 launch", unit="s", make=make)


def other_probes(
    *,
    alone: bool,
    inside: Callable[[Bytes], Make] = _copy_inside,
    across: Across = _copy_across,
    add: Make = _add,
) -> Iterator[Probe]:
    """Copies, transfers and launches; a device that is ``alone``, such as a CPU, has no host beside it."""
    if alone:
        yield device_copy(CPU_COPY_BYTES, inside)
    else:
        yield device_copy(COPY_BYTES, inside)
        for to_device in (True, False):
            for pinned in (True, False):
                yield transfer(to_device=to_device, pinned=pinned, make=across)
        yield launch_on_device(add)
    yield launch(add)


def measure_probe(
    probe: Probe,
    hardware: Hardware,
    budget: Budget,
    *,
    timer: Timer | None = None,
    samples: Callable[[], Sequence[TelemetrySample]] = tuple,
    now_s: Callable[[], Seconds] = time.perf_counter,
) -> MicroResult:
    """Time one probe on a torch device: ``repeat`` with a timer as the probe asks for by default."""
    action = probe.make(hardware.device)
    return repeat(probe, action, timer or _timer(probe, hardware), budget, samples=samples, now_s=now_s)


def repeat(
    probe: Probe,
    action: Callable[[], object],
    timed: Timer,
    budget: Budget,
    *,
    samples: Callable[[], Sequence[TelemetrySample]] = tuple,
    now_s: Callable[[], Seconds] = time.perf_counter,
) -> MicroResult:
    """Repeat one probe until its interval is narrow enough or its time is up.

    Its time is that of the wall: the kernel of a launch takes microseconds, and clearing the cache before it
    takes a hundred times as long, on a card of 200 GB/s a thousand.

    Args:
        probe: What is repeated.
        action: The repetition, as the probe made it.
        timed: Gives the time of one repetition.
        budget: How long and how sure.
        samples: Gives the telemetry since it was last asked.
        now_s: The time on the wall [s].
    """
    began_s = now_s()
    timed(action)
    while now_s() - began_s < MICRO_WARM_S:
        timed(action)
    rule = StopRule(target=budget.target, deadline_s=budget.micro_s)
    samples()
    before_s, look = now_s(), LEAST_ROUNDS
    while True:
        seconds, after_s = timed(action), now_s()
        rule.add(seconds, after_s - before_s)
        before_s, count = after_s, len(rule.rounds)
        late = count >= LEAST_REPETITIONS and rule.elapsed_s >= rule.deadline_s
        if late or count >= look:
            look = math.ceil(LOOK_AGAIN * count)
            if rule.verdict() is not Verdict.GO_ON:
                return result_of(probe, rule, samples())


def result_of(probe: Probe, rule: StopRule, samples: Sequence[TelemetrySample] = ()) -> MicroResult:
    """Return the median, as a rate or as a time, with the interval of the series."""
    seconds = rule.accepted
    each = median(seconds) / probe.repeats
    width = stats.relative_half_width(seconds)
    value = each if probe.work is None else probe.work / each
    interval = stats.rate_interval(value, width)
    findings: tuple[Finding, ...] = ()
    if width is None or width > rule.target:
        findings = (Finding(kind=FindingKind.NOT_CONVERGED, value=width, limit=rule.target),)
    watts = [s.power_w for s in samples if s.power_w is not None]
    reasons = [s.clock_event_reasons for s in samples if s.clock_event_reasons is not None]
    return MicroResult(
        name=probe.name,
        precision=probe.precision,
        size=probe.size,
        value=value,
        low=interval.low,
        high=interval.high,
        unit=probe.unit,
        n=len(seconds),
        left_out=rule.left_out,
        work=probe.work,
        repeats=probe.repeats,
        times_s=tuple(rule.rounds[:MOST_TIMES]),
        mean_power_w=fmean(watts) if watts else None,
        sm_clock_min_hz=min((s.sm_clock_hz for s in samples if s.sm_clock_hz is not None), default=None),
        clock_event_reasons=tuple(sorted({name for told in reasons for name in told})) if reasons else None,
        findings=findings,
    )


def by_clock(probe: Probe, clock: Clock) -> Timer:
    """Return what times one repetition on a clock that waits for the device."""

    def timer(action: Callable[[], object]) -> Seconds:
        def repetition() -> None:
            for _ in range(probe.repeats):
                action()

        return clock.time(repetition)

    return timer


def _timer(probe: Probe, hardware: Hardware) -> Timer:
    if not (probe.on_device and hardware.is_cuda):
        return by_clock(probe, hardware.clock())
    cache = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=hardware.device)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def by_events(action: Callable[[], object]) -> Seconds:
        cache.zero_()
        before.record()
        action()
        after.record()
        torch.cuda.synchronize()
        return float(before.elapsed_time(after)) * 1e-3

    return by_events


def mebibytes(size: Bytes) -> str:
    """Return a size as the name of a probe."""
    return f"{size // MIB} MiB"
