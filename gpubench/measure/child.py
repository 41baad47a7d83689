"""The parent's handle on a child process that measures: its environment, what is heard from it, its stop.

What is out of step ends the child. Nothing here decides which child does what: ``launcher`` does.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gpubench.children import ChildEndedError, ChildLateError, ChildProcess
from gpubench.measure import messages
from gpubench.measure.capability import variables_of
from gpubench.measure.checks import CHILD_CLOCK_SLACK_S
from gpubench.measure.messages import OnEvent
from gpubench.measure.peaks import peak_flops_per_s
from gpubench.measure.place import MODULE
from gpubench.measure.plan import Plan, Unit
from gpubench.measure.privacy import scrub
from gpubench.models import (
    Case,
    Cause,
    DeviceProfile,
    Framework,
    Launch,
    Measurement,
    Precision,
    Round,
    Status,
)
from gpubench.models.measurement import UNFINISHED
from gpubench.precisions import TF32_VARIABLES
from gpubench.probe.backend import child_environment
from gpubench.probe.host import memory_limit_bytes
from gpubench.units import Seconds, format_bytes

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""By which torch and its libraries choose their number of threads when they load."""

_decoder: msgspec.json.Decoder[messages.Report] = msgspec.json.Decoder(messages.Report)


class Child(ChildProcess[messages.Report]):
    """A measuring process; what is said of it may be stored, so it names nothing of this machine."""

    def __init__(
        self,
        environment: Mapping[str, str],
        module: str = MODULE,
        *,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(("-m", module), _decoder, arguments=arguments, environment=environment)

    def last_words(self, limit: int = 300) -> str:
        """Return the last line that the child wrote, paths shortened."""
        return scrub(super().last_words(limit), limit)

    def memory_words(self) -> str:
        """The memory limit of this container."""
        limit = memory_limit_bytes()
        return "" if limit is None else f" (this container may use {format_bytes(limit)})"


def environment_of(
    device: DeviceProfile,
    inherited: Mapping[str, str],
    *,
    peers: Sequence[DeviceProfile] = (),
    framework: Framework = Framework.TORCH,
    threads: int = 0,
) -> dict[str, str]:
    """Return the environment of a child: it sees its GPUs alone, and no inherited variable decides on TF32.

    A GPU is named by UUID; where that is all zeros, by its place in PCI order. ``threads`` of a CPU compute;
    0 leaves their number to the framework.
    """
    variables = {name: value for name, value in inherited.items() if name not in TF32_VARIABLES}
    variables["PYTHONUNBUFFERED"] = "1"
    if threads:
        variables |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    return variables | child_environment(device, *peers) | variables_of(framework, device)


STOPPING_S = 2.0
"""After SIGTERM a round may end within this time; a third second is for storing and saying what there is."""


@contextmanager
def answering(answer: Callable[[int], None], *signals: signal.Signals) -> Iterator[None]:
    """Answer signals, told by their numbers, where this is the thread that may listen to them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda n, _: answer(n)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Control:
    """How a run is stopped from outside: once politely, twice at once. Safe to call from a signal handler."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.aborted = threading.Event()
        self.stop_by_s: Seconds = float("inf")
        self.child: Child | None = None

    def stop(self, within_s: Seconds = float("inf")) -> None:
        """Finish the round at hand, then end; with ``within_s``, end by then whatever happens."""
        if self.stopping.is_set():
            self.abort()
            return
        self.stop_by_s = time.monotonic() + within_s
        self.stopping.set()
        if self.child is not None:
            self.child.end_by_s = self.stop_by_s
            self.child.send(messages.Stop())

    def abort(self) -> None:
        """End now: kill the child and what it started."""
        self.aborted.set()
        self.stopping.set()
        if self.child is not None:
            self.child.kill()


# --- what the parent hears --------------------------------------------------------------------------------


MOST_REPORTS = 100_000
"""Of one case: a round takes a tenth of a second or more, and few cases take an hour."""
NO_SIGN = "no sign of life"
"""How the reason begins of a row whose process fell silent: to people, and in checks of before its cause."""

_Report = TypeVar("_Report")

STARTED: tuple[type[messages.Ready | messages.Refused], ...] = (messages.Ready, messages.Refused)
"""How the start of a process ends."""
Until = Callable[[str], Seconds]
"""By when the next word must come in a phase, on the clock of ``time.monotonic``."""


class JobOverError(Exception):
    """A job has ended by itself."""

    def __init__(self, over: messages.JobOver) -> None:
        super().__init__(over.reason)
        self.over = over


@dataclass
class Progress:
    """What a child has reported of the case at hand."""

    launch: int = 0
    phase: str = "start"
    warmup: list[Round] = field(default_factory=list)
    timed: list[Round] = field(default_factory=list)
    arrived_s: list[Seconds] = field(default_factory=list)
    began_s: Seconds = field(default_factory=time.monotonic)
    reports: int = 0

    def take(self, report: messages.RoundDone) -> None:
        """Keep one round; of a timed one also when it came, which no clock of the model's process decides."""
        (self.timed if report.timed else self.warmup).append(report.round)
        if report.timed:
            self.arrived_s.append(time.monotonic())

    def told_in_s(self) -> Seconds | None:
        """Return the time from the arrival of the first timed round to that of the last [s]."""
        return self.arrived_s[-1] - self.arrived_s[0] if len(self.arrived_s) > 1 else None

    def contradiction(self, report: messages.CaseDone) -> str | None:
        """Say how a result differs from what was reported on the way to it; None where it does not.

        The model runs in the process that reports, and could write into its pipe.
        """
        if report.status is not Status.OK:
            return None
        told, given = ([(r.steps, r.wall_s) for r in rounds] for rounds in (self.timed, report.launch.rounds))
        if told != given:
            return f"sent a result of {len(given)} rounds that are not the {len(told)} it reported"
        wall_s, elapsed_s = sum(s for _, s in given), time.monotonic() - self.began_s
        if wall_s > elapsed_s + CHILD_CLOCK_SLACK_S:
            return f"sent rounds of {wall_s:.3g} s within {elapsed_s:.3g} s"
        return None

    def done(self, status: Status, reason: str, cause: Cause | None = None) -> messages.CaseDone:
        """The end of a case that its child did not live to report; the rounds so far are kept."""
        launch = Launch(
            index=self.launch,
            warmup=tuple(self.warmup),
            rounds=tuple(self.timed),
            told_in_s=self.told_in_s(),
            stopped=True,
        )
        return messages.CaseDone(status=status, reason=reason, cause=cause, launch=launch)


def next_report(
    child: Child,
    kinds: tuple[type[_Report], ...],
    until_s: Until,
    on_phase: Callable[[messages.Phase], None],
    seen: Progress | None = None,
) -> _Report:
    """Return the next report, which is of one of these kinds; phases that begin before it are told.

    Args:
        child: Whose.
        kinds: What may come, beside phases.
        until_s: By when the next word must come in a phase.
        on_phase: Told each phase.
        seen: What the process has reported so far; None where this begins with its start.

    Raises:
        JobOverError: If the job ended by itself.
        ChildEndedError: If it is of another kind, or one of more than ``MOST_REPORTS``.
    """
    seen = seen or Progress()
    while seen.reports < MOST_REPORTS:
        seen.reports += 1
        report = child.receive(until_s(seen.phase))
        if isinstance(report, kinds):
            return report
        match report:
            case messages.Phase(name=name):
                seen.phase = name
                on_phase(report)
            case messages.JobOver():
                raise JobOverError(report)
            case _:
                raise ChildEndedError(f"sent {type(report).__name__} out of step")
    raise ChildEndedError(f"sent more than {MOST_REPORTS:,} reports at a time")


def follow_case(child: Child, seen: Progress, until_s: Until, on_event: OnEvent) -> messages.CaseDone:
    """Follow a case to its end; errors as ``next_report``, and where the end is not what was reported."""
    kinds: tuple[type[messages.RoundDone | messages.CaseDone], ...] = (messages.RoundDone, messages.CaseDone)
    while isinstance(report := next_report(child, kinds, until_s, on_event, seen), messages.RoundDone):
        seen.take(report)
        on_event(report)
    if contradiction := seen.contradiction(report):
        raise ChildEndedError(contradiction)
    launch = msgspec.structs.replace(report.launch, told_in_s=seen.told_in_s())
    return msgspec.structs.replace(report, launch=launch)


def how_it_ended(error: ChildLateError | ChildEndedError, phase: str) -> str:
    """Say of a row how the process ended that measured it, or that it fell silent, and in which phase."""
    if isinstance(error, ChildEndedError):
        return f"the measuring process {error} (phase: {phase})"
    return f"{NO_SIGN} during {phase}: the process was ended"


@dataclass
class Record:
    """What is known of each case so far; ``begun`` counts the launches that the run has begun."""

    plan: Plan
    device: DeviceProfile
    launches: dict[Case, list[Launch]] = field(default_factory=dict)
    ended: dict[Case, tuple[Status, str | None, Cause | None]] = field(default_factory=dict)
    gemm: dict[Precision, float] = field(default_factory=dict)
    threads: int | None = None
    begun: int = 0

    def measurement(self, unit: Unit) -> Measurement:
        """The measurement of a case with every launch so far, not yet judged beside others."""
        case = unit.planned.case
        status, reason, cause = self.ended.get(case, (Status.OK, None, None))
        return Measurement(
            case=case,
            status=status,
            reason=reason,
            cause=cause,
            batch_choice=unit.planned.batch_choice,
            launches=tuple(self.launches.get(case, ())),
            flops_per_sample=unit.planned.flops_per_sample,
            hardware_flops_per_sample=unit.planned.hardware_flops_per_sample,
            tokens_per_sample=unit.planned.tokens_per_sample,
            parameter_count=unit.planned.parameter_count,
            peak_flops_per_s=peak_flops_per_s(self.device, case.precision),
            gemm_flops_per_s=self.gemm.get(case.precision),
            cpu_threads=case.threads or self.threads,
            convolves=unit.planned.convolves,
            target=self.plan.budget.target,
        )

    def take(self, unit: Unit, done: messages.CaseDone) -> None:
        """Add one launch. A case that failed gets no further one.

        One out of time, or whose process died, keeps its earlier launches, and its figure rests on them.
        """
        case = unit.planned.case
        earlier = self.launches.setdefault(case, [])
        cut_short = bool(earlier) and (done.status in UNFINISHED or done.launch.stopped)
        if done.status is Status.OK or not earlier:
            earlier.append(done.launch)
        if done.status is not Status.OK and not cut_short:
            self.ended[case] = (done.status, done.reason, done.cause)
