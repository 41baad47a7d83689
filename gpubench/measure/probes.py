"""Times a probe in torch or OpenCL: makes it fit, repeats it under the stop rule, and reports the median."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean, median
from typing import Any

import msgspec

from gpubench import stats
from gpubench.measure.budget import (
    LEAST_REPETITIONS,
    LEAST_ROUNDS,
    MICRO_WARM_S,
    MOST_REPETITION_S,
    Budget,
)
from gpubench.measure.loop import Clock, StopRule, Verdict
from gpubench.models import DeviceProfile, Finding, FindingKind, MicroResult, TelemetrySample
from gpubench.units import Bytes, Seconds, format_bytes

# A probe that would take more of the device's memory than this is halved until it fits.
MEMORY_SHARE = 0.4
GROWTH = 1.25
"""Growth of the number of repetitions between two evaluations of the stop rule: evaluating it after each
of thousands of repetitions would take longer than the repetitions themselves."""
# Maximum number of repetition times to keep; a kernel that takes microseconds is repeated far more often.
MOST_TIMES = 1000


# One call of a probe's operation.
Action = Callable[[], object]
# Returns the time of one repetition, which may be several calls.
Timer = Callable[[Action], Seconds]
# Builds the operands on a device (a torch device or an OpenCL queue) and returns the call.
Make = Callable[[Any], Action]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An operation to time.

    Attributes:
        work: Operations or bytes of one call; None if the time itself is the result.
        memory_bytes: Memory of its operands [B].
        make: Returns the call.
        on_device: Whether device events time it on a GPU, with a cold cache; otherwise, the synchronizing
            clock does.
        repeats: Number of calls in one repetition.
        halved: Makes the same probe at half the size, or returns None if that would be meaningless.
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

    @property
    def key(self) -> tuple[str, str | None, str]:
        """Name, precision and size, which identify its figure."""
        return self.name, self.precision, self.size


def measure_all(
    probes: Iterable[Probe],
    measure: Callable[[Probe], MicroResult],
    is_refusal: Callable[[Exception], bool],
    profile: DeviceProfile,
    deadline_s: Seconds,
) -> Iterator[MicroResult | Finding]:
    """Measure each probe for which time and memory suffice; halve its size as long as its memory is refused.

    Memory is refused if other programs use it, or if a device reports more than it has. The result of the
    smaller probe then carries a finding. If no smaller size can be measured, the finding is yielded alone,
    after all results.

    Args:
        probes: The requested probes.
        measure: Measures a probe, or raises.
        is_refusal: Returns whether an error means a lack of memory; any other error is raised.
        profile: The device's profile, with the memory that it reports.
        deadline_s: No probe is started after this time on ``time.perf_counter``.
    """
    done: set[tuple[str, str | None, str]] = set()
    without_result: list[Finding] = []

    def measure_what_fits(probe: Probe) -> MicroResult | None:
        smaller: Probe | None = probe
        refused: tuple[Finding, ...] = ()
        while smaller is not None and smaller.key not in done:
            try:
                result = measure(smaller)
            except Exception as error:
                if not is_refusal(error):
                    raise
                named = " ".join(filter(None, (smaller.name, smaller.precision)))
                refused = refused or (memory_refused(f"{named} of {smaller.size}", profile),)
                smaller = smaller.halved() if time.perf_counter() < deadline_s else None
            else:
                done.add(smaller.key)
                return msgspec.structs.replace(result, findings=(*result.findings, *refused))
        without_result.extend(refused)
        return None

    room = math.inf if profile.memory_bytes is None else MEMORY_SHARE * profile.memory_bytes
    yield from one_by_one(fitting(probes, room), measure_what_fits, deadline_s)
    yield from without_result


def fitting(probes: Iterable[Probe], limit: float) -> Iterator[Probe]:
    """Halve each probe until it takes at most ``limit`` bytes; yield equal probes only once."""
    seen = set()
    for probe in probes:
        smaller: Probe | None = probe
        while smaller is not None and smaller.memory_bytes > limit:
            smaller = smaller.halved()
        if smaller is not None and smaller.key not in seen:
            seen.add(smaller.key)
            yield smaller


def memory_refused(what: str, profile: DeviceProfile) -> Finding:
    """Return the finding with what was refused, and how much memory the device reports."""
    reported = format_bytes(profile.memory_bytes)
    return Finding(kind=FindingKind.MEMORY_REFUSED, value=f"{what}; the device reports {reported}")


def one_by_one(
    probes: Iterable[Probe], measure: Callable[[Probe], MicroResult | None], deadline_s: Seconds = math.inf
) -> Iterator[MicroResult]:
    """Measure each probe that can start in time, unless the previous size shows that it is too slow.

    ``measure`` returns None for a probe that turns out to be impossible.
    """
    rates: dict[tuple[str, str | None], float] = {}
    for probe in takewhile(lambda _: time.perf_counter() < deadline_s, probes):
        kind = (probe.name, probe.precision)
        if kind in rates and probe.work is not None and probe.work > MOST_REPETITION_S * rates[kind]:
            continue
        result = measure(probe)
        if result is not None:
            rates[kind] = result.value
            yield result


def deadline_in(time_s: Seconds | None) -> Seconds:
    """Return the deadline on ``time.perf_counter`` after this time; None means no limit."""
    return math.inf if time_s is None else time.perf_counter() + time_s


def repeat(
    probe: Probe,
    action: Action,
    timed: Timer,
    budget: Budget,
    *,
    samples: Callable[[], Sequence[TelemetrySample]] = tuple,
    now_s: Callable[[], Seconds] = time.perf_counter,
) -> MicroResult:
    """Repeat one probe until its interval is narrow enough or its time is up.

    The time limit is in wall time: the kernel of a launch takes microseconds, but clearing the cache before
    it takes a hundred times as long, or a thousand times on a card with 200 GB/s.

    Args:
        probe: The probe to repeat.
        action: The call returned by ``probe.make``.
        timed: Returns the time of one repetition.
        budget: How long to measure, and how precisely.
        samples: Returns the telemetry since its last call.
        now_s: Returns the wall time [s].
    """
    began_s = now_s()
    timed(action)
    while now_s() - began_s < MICRO_WARM_S:
        timed(action)
    rule = StopRule(target=budget.target, deadline_s=budget.micro_s)
    samples()
    before_s, next_check = now_s(), LEAST_ROUNDS
    while True:
        seconds, after_s = timed(action), now_s()
        rule.add(seconds, after_s - before_s)
        before_s, count = after_s, len(rule.rounds)
        late = count >= LEAST_REPETITIONS and rule.elapsed_s >= rule.deadline_s
        if late or count >= next_check:
            next_check = math.ceil(GROWTH * count)
            if rule.verdict() is not Verdict.GO_ON:
                return result_of(probe, rule, samples())


def result_of(probe: Probe, rule: StopRule, samples: Sequence[TelemetrySample] = ()) -> MicroResult:
    """Return the median, as a rate or as a time, with the interval of the series."""
    times_s = rule.accepted
    call_s = median(times_s) / probe.repeats
    width = stats.relative_half_width(times_s)
    value = call_s if probe.work is None else probe.work / call_s
    interval = stats.rate_interval(value, width)
    converged = width is not None and width <= rule.target
    unmet = Finding(kind=FindingKind.NOT_CONVERGED, value=width, limit=rule.target)
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
        n=len(times_s),
        left_out=rule.left_out,
        work=probe.work,
        repeats=probe.repeats,
        times_s=tuple(rule.rounds[:MOST_TIMES]),
        mean_power_w=fmean(watts) if watts else None,
        sm_clock_min_hz=min((s.sm_clock_hz for s in samples if s.sm_clock_hz is not None), default=None),
        clock_event_reasons=tuple(sorted({name for sample in reasons for name in sample}))
        if reasons
        else None,
        findings=() if converged else (unmet,),
    )


def by_clock(probe: Probe, clock: Clock) -> Timer:
    """Return a timer of one repetition on a clock that waits for the device."""
    return lambda action: clock.time(action, probe.repeats)


def halving(made: Callable[[int], Probe], size: int, least: int) -> Callable[[], Probe | None]:
    """Return a function that makes a probe at half its size, or returns None if that is too small."""
    return lambda: made(size // 2) if size // 2 >= least else None
