"""One case in one launch, for any framework: warm up, time, read the device, and end with a status.

A framework provides a ``Job``: how a step is issued, how its loss is read, and how its precision is checked.
No framework is imported here, so a process loads only the one that it measures.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, NamedTuple, Self

import msgspec
import psutil

from gpubench.children import ParentChannel
from gpubench.errors import GpuBenchError
from gpubench.folders import traceback_of
from gpubench.foreign_code import lacks_memory, one_line
from gpubench.measure import messages
from gpubench.measure.budget import CURVE_SHARE, Budget
from gpubench.measure.capability import NotHereError, describe_fault
from gpubench.measure.loop import (
    Loop,
    OutOfTimeError,
    Report,
    Series,
    StoppedError,
    time_rounds,
    warm_up,
)
from gpubench.measure.messages import CaseDone, MeasureCase
from gpubench.models import DeviceProfile, Finding, FindingKind, Launch, Status, TelemetrySample
from gpubench.models.measurement import POWER_TOLERANCE
from gpubench.probe.backend import Readings
from gpubench.units import Joules, Seconds, Watts, count, format_bytes

# --- CPU time that others took while rounds were timed ----------------------------------------------------


class Others(NamedTuple):
    """Shares of the host's total CPU time that others used, 0 to 1; None if unknown.

    Attributes:
        load: Used by other processes on this host.
        steal: Used by other guests on the same physical machine.
    """

    load: float | None = None
    steal: float | None = None


class HostTimes(NamedTuple):
    """CPU times of the host and of this process [s].

    Attributes:
        host: Times of the host since boot, by kind; None if they cannot be read, or do not count
            other guests' time (macOS, Windows).
        own: Time of this process and its ended children.
        processes: Number of processes of the same job on this host, which do not count as others; each is
            assumed to use as much time as this one.
    """

    host: Any | None
    own: Seconds
    processes: int = 1

    @classmethod
    def now(cls, processes: int = 1) -> Self:
        """Read the current times."""
        try:
            host = psutil.cpu_times()
        except (OSError, ValueError, TypeError):  # TypeError if /proc/stat has too few fields
            host = None
        return cls(host if hasattr(host, "steal") else None, sum(os.times()[:4]), processes)

    def others_since(self) -> Others:
        """Return the shares of CPU time that others have used since this reading."""
        after = HostTimes.now()
        if self.host is None or after.host is None:
            return Others()
        # user, nice, system, idle, iowait, irq, softirq, steal; later fields are included in these
        spent = [new - old for old, new in zip(self.host[:8], after.host[:8], strict=True)]
        total = sum(spent)
        if total <= 0:
            return Others()
        *_, idle, iowait, _, _, steal = spent
        own = self.processes * (after.own - self.own)
        busy = total - idle - iowait - steal
        return Others(min(1.0, max(0.0, (busy - own) / total)), max(0.0, steal / total))


# --- telemetry during a measurement, and energy of a region -----------------------------------------------


# Time between two telemetry samples [s].
INTERVAL_S = 0.1
# One warm-up sample is kept per interval of this length, which is enough to show how the device heated up. At
# ten samples per second, two minutes of warm-up would take more space in the file than the rounds.
WARMUP_INTERVAL_S = 1.0
# Longest wait for the end of a sampling thread [s]: slightly longer than ``probe`` waits for a driver call.
GIVE_UP_AFTER_S = 6.0


@contextmanager
def sampling(
    telemetry: Readings, now_s: Callable[[], Seconds]
) -> Iterator[Callable[[], list[TelemetrySample]]]:
    """Sample a device in a thread, unless it has no telemetry.

    Yields:
        A function that returns every sample since its last call; times are on the clock ``now_s``.
    """
    samples: SimpleQueue[TelemetrySample] = SimpleQueue()
    over = threading.Event()

    def read() -> None:
        next_at = time.monotonic()
        while not over.is_set() and telemetry.source != "hung":
            reading = msgspec.structs.asdict(telemetry.sample())
            samples.put(TelemetrySample(t_s=now_s(), **reading))
            next_at += INTERVAL_S
            over.wait(max(0.0, next_at - time.monotonic()))

    thread = threading.Thread(target=read, name="telemetry", daemon=True)
    if telemetry.source != "none":
        thread.start()
    try:
        yield lambda: [samples.get() for _ in range(samples.qsize())]
    finally:
        over.set()
        if thread.is_alive():
            thread.join(GIVE_UP_AFTER_S)  # a thread that is stuck in the driver is abandoned


def shifted(samples: list[TelemetrySample], origin_s: Seconds) -> tuple[TelemetrySample, ...]:
    """Make sample times relative to ``origin_s``, and keep only one sample per second before it."""
    kept: list[TelemetrySample] = []
    for sample in samples:
        t_s = round(sample.t_s - origin_s, 4)
        if t_s >= 0 or not kept or t_s - kept[-1].t_s >= WARMUP_INTERVAL_S - INTERVAL_S / 2:
            kept.append(msgspec.structs.replace(sample, t_s=t_s))
    return tuple(kept)


# The energy of a shorter timed region is unknown. The counter updates every 0.1 s, so each end of a region
# adds an error of up to 5 % if the region lasts two seconds, and 0.3 % if it lasts thirty.
LEAST_REGION_S = 2.0
# If two consecutive power samples are further apart than this, their integral is unknown.
LARGEST_GAP_S = 1.0


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """The energy of a region and its source (None if unknown); a finding if the counter is implausible."""

    joules: Joules | None = None
    source: str | None = None
    finding: Finding | None = None


def energy_of(
    region_s: Seconds,
    counter_edges: tuple[Joules | None, Joules | None],
    samples: Sequence[TelemetrySample],
    power_limit_w: Watts | None,
) -> Energy:
    """Return the energy of a timed region: counted or, without a counter, integrated from power samples.

    Args:
        region_s: Time from the start of the first timed round to the end of the last [s].
        counter_edges: The device's energy counter at both ends [J]; None if it has none.
        samples: Telemetry of the region, times counted from its start.
        power_limit_w: The device's power limit [W].
    """
    if region_s < LEAST_REGION_S:
        return Energy()
    most_j = math.inf if power_limit_w is None else POWER_TOLERANCE * power_limit_w * region_s
    before, after = counter_edges
    if before is not None and after is not None:
        joules = after - before
        if 0 < joules <= most_j:
            return Energy(joules=joules, source="counter")
        limit = most_j if math.isfinite(most_j) else None
        return Energy(finding=Finding(kind=FindingKind.ENERGY_IMPLAUSIBLE, value=joules, limit=limit))
    joules_of_samples = power_integral(samples, region_s)
    if joules_of_samples is None or joules_of_samples > most_j:
        return Energy()
    return Energy(joules=joules_of_samples, source="power_integral")


def power_integral(samples: Sequence[TelemetrySample], region_s: Seconds) -> Joules | None:
    """Integrate power over the region by the trapezoidal rule; None if the samples do not cover it."""
    known = [(s.t_s, s.power_w) for s in samples if s.power_w is not None and 0 <= s.t_s <= region_s]
    if len(known) < 2:
        return None
    (first_s, first_w), (last_s, last_w) = known[0], known[-1]
    gaps = [first_s, region_s - last_s, *(after - before for (before, _), (after, _) in pairwise(known))]
    if max(gaps) > LARGEST_GAP_S:
        return None
    inside = sum((t2 - t1) * (p1 + p2) / 2 for (t1, p1), (t2, p2) in pairwise(known))
    joules = inside + first_s * first_w + (region_s - last_s) * last_w
    return joules if joules > 0 else None


class LostError(GpuBenchError, RuntimeError):
    """Another process of the job is gone, so the case must be measured again."""


# Maximum number of gaps between tokens to keep: eight times as many as a 99th percentile needs.
MOST_GAPS = 8192


@dataclass(kw_only=True)
class Bench:
    """What a measuring process needs for every case, in any framework, and its connection to the parent.

    Attributes:
        tell_phase: Reports a new phase to the parent, which sets a deadline for each phase.
        report: Sends one round to the parent; see ``Loop.report``.
        stopped: Whether the parent has requested a stop.
        cause_of: Returns the root cause of an error, such as the loss of another process of the job.
        local_processes: Number of processes of this job on this host, this one included.
        current_phase: The name of the current phase.
    """

    budget: Budget
    seed: int
    telemetry: Readings
    profile: DeviceProfile
    tell_phase: Callable[[str], None] = lambda _: None
    report: Report = lambda *_: None
    stopped: Callable[[], bool] = lambda: False
    cause_of: Callable[[BaseException], BaseException] = lambda error: error
    local_processes: int = 1
    current_phase: str = "build"

    @classmethod
    def serving(
        cls,
        setup: messages.Setup,
        line: ParentChannel,
        telemetry: Readings,
        **own: Any,
    ) -> Self:
        """Return the bench of a process that serves a parent.

        Args:
            setup: The parent's first message.
            line: The channel to the parent.
            telemetry: Readings of the device, which stay open as long as this process lives.
            own: Additional fields of a framework's own bench.
        """
        return cls(
            budget=setup.budget,
            seed=setup.seed,
            telemetry=telemetry.__enter__(),
            profile=setup.device,
            tell_phase=lambda name: line.send(messages.Phase(name=name)),
            report=lambda done, outside_s, rule, sample: line.send(
                messages.RoundDone(
                    timed=rule is not None,
                    round=done,
                    outside_s=outside_s,
                    half_width=None if rule is None else rule.half_width(),
                    power_w=None if sample is None else sample.power_w,
                    temperature_c=None if sample is None else sample.temperature_c,
                )
            ),
            stopped=line.stop.is_set,
            **own,
        )

    def phase(self, name: str) -> None:
        """Begin a phase."""
        self.current_phase = name
        self.tell_phase(name)

    def power_limit_w(self) -> Watts | None:
        """Return the power limit of the measured device [W]; None if unknown."""
        return self.profile.power_limit_w

    def is_spent(self, status: Status) -> bool:
        """Return whether a case with this status makes the process unfit to measure another."""
        return status not in {Status.OK, Status.TIMEOUT}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A case on its device, built and prepared by a framework.

    Attributes:
        loop: Makes the loop that runs the rounds, from the case's deadline and the bench's ``stopped`` and
            ``report``.
        prove_again: Checks the precision again, after the rounds.
        has_moved: Returns whether a trained parameter has changed; None if none is trained.
        look_again: Takes the readings that would have disturbed the rounds.
        reserve_s: Given step length and time left, returns the time to reserve for ``look_again`` [s].
        tokens_at_s: When each token of each generation arrived [s].
    """

    loop: Callable[..., Loop]
    prove_again: Callable[[], None]
    has_moved: Callable[[], bool | None]
    look_again: Callable[[Loop], None] | None = None
    reserve_s: Callable[[Seconds, Seconds], Seconds] = lambda *_: 0.0
    tokens_at_s: list[tuple[float, ...]] = field(default_factory=list)


@dataclass(kw_only=True)
class LaunchRecorder:
    """The results of a case so far, which become a Launch however the case ends.

    Attributes:
        launch: The fields that are known already; ``done`` adds those that are collected below.
        cold_s: One-time costs by name [s].
        spilled_bytes: Device memory that was moved into the host's memory [B].
        draws: Whether the model draws random numbers.
        carries: Whether the model carries tensors from step to step.
    """

    launch: Launch
    series: Series = field(default_factory=Series)
    cold_s: dict[str, float] = field(default_factory=dict)
    loss_curve: list[float] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    spilled_bytes: float = 0
    draws: bool = False
    carries: bool = False

    def note(self, **fields: object) -> None:
        """Set fields of the launch."""
        self.launch = msgspec.structs.replace(self.launch, **fields)

    def add_finding(self, kind: FindingKind, value: str | None) -> None:
        """Add a finding if there is a value for it."""
        if value is not None:
            self.findings.append(Finding(kind=kind, value=value))

    @contextmanager
    def timing(self, name: str | None) -> Iterator[None]:
        """Record a one-time cost, separate from the steps; without a name, record nothing."""
        start = time.perf_counter()
        yield
        if name is not None:
            self.cold_s[name] = time.perf_counter() - start

    def done(self) -> Launch:
        """Return the record of this launch."""
        series = self.series
        if self.spilled_bytes:
            self.add_finding(FindingKind.MEMORY_SPILLED, format_bytes(self.spilled_bytes))
        # an infinite difference would be null in the file
        if math.inf in {self.launch.reference_error, self.launch.graph_error}:
            self.add_finding(FindingKind.LOSS_DIFFERS, "not finite, unlike the reference")
        return msgspec.structs.replace(
            self.launch,
            warmup=tuple(series.warmup),
            rounds=tuple(series.timed),
            telemetry=shifted(series.telemetry, series.began_s) if series.began_s is not None else (),
            skipped_steps=skipped_steps(series.scales) if series.scales else None,
            timed_steps=sum(r.steps for r in series.timed) or None,
            loss_curve=tuple(self.loss_curve),
            cold_s={name: round(value, 4) for name, value in self.cold_s.items()},
            findings=(*series.findings, *self.findings),
        )


def conduct(
    order: MeasureCase,
    bench: Bench,
    recorder: LaunchRecorder,
    measure: Callable[[Seconds], None],
) -> CaseDone:
    """Measure one case; a failure of the work becomes a status, and the results so far are kept.

    An exception in the model's own code ends the case, after which this process measures no other.

    Args:
        order: The case to measure.
        bench: The process that measures it.
        recorder: Records the results.
        measure: Measures the case; its argument is the deadline [s].
    """
    deadline_s = time.perf_counter() + order.time_s if order.time_s is not None else float("inf")
    status, reason, cause, trace, is_peer_lost = Status.OK, None, None, None, False
    try:
        measure(deadline_s)
    except OutOfTimeError:
        rounds = len(recorder.series.timed)
        when = f"after {count(rounds, 'timed round')}" if rounds else "before its timed rounds"
        status, reason = Status.TIMEOUT, f"the time for this case ran out {when}"
    except StoppedError:
        if len(recorder.series.timed) < 2:
            status, reason = Status.INTERRUPTED, "stopped before two rounds were done"
    except NotHereError as error:
        status, reason = failure(error, order.case.batch_size, bench.current_phase)
        cause = error.cause
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the model's own code may raise anything
        origin = bench.cause_of(error)
        is_peer_lost = isinstance(origin, LostError)
        status, reason = failure(origin, order.case.batch_size, bench.current_phase)
        trace = traceback_of(error)
    recorder.note(stopped=is_peer_lost or bench.stopped())
    if fault := bench.telemetry.fault:
        status, reason, cause = Status.FAILED, describe_fault(fault), None
    return CaseDone(
        status=status,
        reason=reason,
        cause=cause,
        launch=recorder.done(),
        lost=fault is not None,
        spent=bench.is_spent(status),
        traceback=trace,
    )


def time_job(
    bench: Bench,
    recorder: LaunchRecorder,
    deadline_s: Seconds,
    job: Job,
) -> None:
    """Warm up a case, time its rounds, and take the readings that would have disturbed them.

    Raises:
        OutOfTimeError: If time ran out before two rounds were done.
        StoppedError: If the parent requested a stop.
    """
    loop = job.loop(deadline_s=deadline_s, stopped=bench.stopped, report=bench.report)
    try:
        _time(loop, job, bench, recorder)
    finally:
        recorder.note(
            first_token_s=tuple(times[0] for times in job.tokens_at_s),
            per_token_s=tuple((times[-1] - times[0]) / (len(times) - 1) for times in job.tokens_at_s),
            token_gap_s=tuple(b - a for times in job.tokens_at_s for a, b in pairwise(times))[:MOST_GAPS],
        )
        if recorder.series.began_s is not None:
            recorder.note(parameters_moved=job.has_moved())
    if job.look_again is not None:
        job.look_again(loop)


def failure(error: BaseException, batch_size: int, phase: str) -> tuple[Status, str]:
    """Return the status and the reason of a case that ended with this exception.

    The reason is the message, and also the type and line of an exception in foreign code. A ``NotHereError``
    means unsupported. If memory ran out, the reason names the batch and the phase, which show what to reduce.
    """
    if isinstance(error, NotHereError):
        return Status.UNSUPPORTED, str(error)
    if lacks_memory(error):
        return Status.OUT_OF_MEMORY, f"batch {batch_size}, {phase}: {one_line(error)}"
    return Status.FAILED, str(error) if isinstance(error, GpuBenchError) else one_line(error)


def skipped_steps(scales: list[float]) -> int:
    """Count the steps that the gradient scaler skipped; each skip halves the scale."""
    skipped = 0
    for before, after in pairwise(scales):
        while after < before * 0.75:
            skipped += 1
            before /= 2  # noqa: PLW2901 - until it reaches the later scale
    return skipped


def _time(loop: Loop, job: Job, bench: Bench, recorder: LaunchRecorder) -> None:
    # Warm up and time the rounds, with telemetry during both, and counters at both ends of the timed rounds.
    telemetry, series = bench.telemetry, recorder.series
    errors_before = telemetry.ecc_uncorrected()
    with sampling(telemetry, loop.clock.now_s) as drain:
        loop.samples = drain
        bench.phase("warm-up")
        warm_up(loop, bench.budget, series)
        bench.phase("timed")
        job.tokens_at_s.clear()
        held_before_s, joules_before = telemetry.held_clocks_s(), telemetry.energy_j()
        host = HostTimes.now(bench.local_processes)
        reserved_s = job.reserve_s(loop.step_s, loop.left_s())
        try:
            loop.deadline_s -= reserved_s
            time_rounds(loop, bench.budget, series)
        finally:
            loop.deadline_s += reserved_s
            others = host.others_since()
            _note_energy(recorder, (joules_before, telemetry.energy_j()), bench.power_limit_w())
            held_after_s, errors = telemetry.held_clocks_s(), telemetry.ecc_uncorrected()
            held_s = {
                name: round(held_after_s[name] - before_s, 6)
                for name, before_s in held_before_s.items()
                if name in held_after_s
            }
            recorder.note(
                host_load=others.load,
                host_steal=others.steal,
                # a counter that went backward was reset
                held_clocks_s={name: time_s for name, time_s in held_s.items() if time_s >= 0},
                telemetry_source=telemetry.source,
                # only a change matters: a lifetime count above zero is not a fault
                memory_errors=None if errors is None or errors_before is None else errors - errors_before,
            )
            job.prove_again()


def _note_energy(
    recorder: LaunchRecorder, edges: tuple[Joules | None, Joules | None], power_limit_w: Watts | None
) -> None:
    began_s, ended_s = recorder.series.began_s, recorder.series.ended_s
    if began_s is None or ended_s is None:
        return
    energy = energy_of(ended_s - began_s, edges, shifted(recorder.series.telemetry, began_s), power_limit_w)
    if energy.finding is not None:
        recorder.findings.append(energy.finding)
    recorder.note(
        energy_j=energy.joules,
        energy_source=energy.source,
        energy_edges_j=tuple(edge for edge in edges if edge is not None),
        energy_region_s=None if energy.joules is None else ended_s - began_s,
    )


def relative_difference(found: float, expected: float) -> float | None:
    """Return |found - expected| divided by the larger of |expected| and 1e-3, because a loss can be near 0.

    The difference is infinite if only the found value is not finite, and None if the expected value is not
    finite.
    """
    if not math.isfinite(expected):
        return None
    if not math.isfinite(found):
        return math.inf
    return abs(found - expected) / max(abs(expected), 1e-3)


def largest_difference(found: Sequence[float], expected: Sequence[float]) -> float | None:
    """Return the largest relative difference between two lists of losses; None if one is unknown."""
    pairs = [relative_difference(a, b) for a, b in zip(found, expected, strict=True)]
    known = [p for p in pairs if p is not None]
    return max(known) if len(known) == len(pairs) else None


def worse(first: Mapping[str, float | None], second: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the larger error of each operator; a non-finite error is None and counts as the worst."""

    def larger(before: float | None, after: float | None) -> float | None:
        if before is None or after is None or not math.isfinite(before + after):
            return None
        return max(before, after)

    return {name: larger(first.get(name), value) for name, value in second.items()}


def note_losses(
    loss_of: Callable[[int], float],
    bench: Bench,
    recorder: LaunchRecorder,
    deadline_s: Seconds,
    *,
    first: int = 0,
    least: int = 1,
) -> None:
    """Record the losses of the first steps, until there are enough of them or their time is up.

    Args:
        loss_of: Runs the step with this index and returns its loss.
        bench: Its budget says how many losses are enough.
        recorder: Records the losses.
        deadline_s: Deadline of the case [s].
        first: Index of the first step.
        least: Steps before this index are always run.

    Raises:
        OutOfTimeError: If the deadline has passed.
    """
    began_s = time.perf_counter()
    for index in range(first, max(bench.budget.curve_steps, least)):
        check_deadline(deadline_s)
        if index >= least and time.perf_counter() - began_s > CURVE_SHARE * bench.budget.warmup_most_s:
            break
        recorder.loss_curve.append(loss_of(index))


def check_deadline(deadline_s: Seconds) -> None:
    """Check the deadline.

    Raises:
        OutOfTimeError: If it has passed.
    """
    if time.perf_counter() >= deadline_s:
        raise OutOfTimeError
