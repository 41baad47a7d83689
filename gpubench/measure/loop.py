"""The one clock, and rounds on it: the warm-up and the timed part of one case.

No torch here: the step is a callable, and what the clock waits for is another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

import msgspec

from gpubench.measure import checks
from gpubench.measure.budget import Budget
from gpubench.measure.stopping import DRIFT, Heap, StopRule, Verdict, WarmUp, stop_rule
from gpubench.models import Finding, FindingKind, Round, TelemetrySample
from gpubench.units import Seconds


def _nothing_to_wait_for() -> None:
    """A CPU has finished a step when the call returns."""


def _now_ns() -> int:
    return time.perf_counter_ns()  # looked up at each call: a test may script it


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A synchronizing clock; both parts are injected, so that a test can script time.

    Without the synchronize, issuing work is timed instead of the work: a step of 47.5 ms on an H200
    then "takes" 7.2 ms.
    """

    synchronize: Callable[[], None] = _nothing_to_wait_for
    now_ns: Callable[[], int] = _now_ns

    def time(self, work: Callable[[], None]) -> Seconds:
        """Return the wall time of ``work`` and of all the device work that it issued [s]."""
        self.synchronize()
        start = self.now_ns()
        work()
        self.synchronize()
        return (self.now_ns() - start) * 1e-9

    def now_s(self) -> Seconds:
        """Return the monotonic time [s]; only differences mean anything."""
        return self.now_ns() * 1e-9


MOST_STEPS = 100_000
"""A round of the shortest steps stays countable."""
WARMUP_SHARE = 0.5
"""Of the time left under a time limit, the warm-up takes at most this much."""


Report: TypeAlias = Callable[[bool, Round, float | None, TelemetrySample | None], None]


class OutOfTimeError(Exception):
    """The time given to this case is over; raised before a step, caught where the case ends."""


class StoppedError(Exception):
    """The parent asked to stop; raised after a round, caught where the case ends."""


@dataclass
class Loop:
    """Steps of one case in timed rounds.

    Attributes:
        advance: Issues the step with the given index and returns its result.
        edge_loss: Copies the loss of a result to the host, at the edge of a round.
        clock: The synchronizing clock.
        batches: Prebuilt batches; a round of several steps takes whole rotations of them.
        deadline_s: Moment on the clock after which no further step is issued.
        stopped: Whether the parent has asked to stop.
        report: Told each round as it ends (timed or not, the round, the half-width so far, what the device
            last said).
        samples: Gives the telemetry since it was last asked.
        heap: Gives the state of allocator and gradient scaler.
        announce: Tells the other processes of the job of a block, by first index and count; None where there
            are none. A block once announced is never broken off: the others would wait for its end.
    """

    advance: Callable[[int], Any]
    edge_loss: Callable[[Any, int], float]
    clock: Clock
    batches: int = 1
    deadline_s: Seconds = math.inf
    stopped: Callable[[], bool] = lambda: False
    report: Report = lambda *_: None
    samples: Callable[[], list[TelemetrySample]] = list
    heap: Callable[[], Heap] = Heap
    announce: Callable[[int, int], None] | None = None
    index: int = 0
    step_s: Seconds = 0.0

    def round(self, steps: int) -> Round:
        """Time one block of steps with a synchronize at each edge, then read its last loss.

        Raises:
            OutOfTimeError: Before a step that would begin after the deadline; of several processes, before a
                block that would end after it.
            StoppedError: Before the block, if the parent asked to stop.
        """
        if self.stopped():
            raise StoppedError
        if self.announce is not None:
            if self.left_s() <= steps * self.step_s:
                raise OutOfTimeError
            self.announce(self.index, steps)
        result: Any = None

        def block() -> None:
            nonlocal result
            result = self.issue(steps)

        wall_s = self.clock.time(block)
        self.step_s = wall_s / steps
        return Round(steps=steps, wall_s=wall_s, loss=self.edge_loss(result, self.index - 1))

    def issue(self, steps: int) -> Any:
        """Issue so many steps; return the result of the last.

        Raises:
            OutOfTimeError: Before a step that would begin after the deadline; not of several processes.
        """
        result: Any = None
        for _ in range(steps):
            if self.announce is None and self.clock.now_s() >= self.deadline_s:
                raise OutOfTimeError
            result = self.advance(self.index)
            self.index += 1
        return result

    def steps_for(self, round_s: Seconds, step_s: Seconds) -> int:
        """How many steps fill a round."""
        return steps_for(round_s, step_s, self.batches)

    def left_s(self) -> Seconds:
        """Time until the deadline [s]."""
        return self.deadline_s - self.clock.now_s()


def steps_for(round_s: Seconds, step_s: Seconds, batches: int) -> int:
    """How many steps fill a round: at least 1, and whole rotations of the batches where it is more."""
    steps = min(MOST_STEPS, max(1, math.ceil(round_s / step_s)))
    return math.ceil(steps / batches) * batches if steps >= batches else steps


@dataclass
class Series:
    """The rounds of one case, as far as they came."""

    warmup: list[Round] = field(default_factory=list)
    timed: list[Round] = field(default_factory=list)
    telemetry: list[TelemetrySample] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    steps_per_round: int = 1
    began_s: Seconds | None = None
    ended_s: Seconds | None = None
    scales: list[float] = field(default_factory=list)

    @property
    def last_sample(self) -> TelemetrySample | None:
        """What the device last said of itself; None where it says nothing."""
        return self.telemetry[-1] if self.telemetry else None


def warm_up(loop: Loop, budget: Budget, series: Series) -> None:
    """Step until steady, or until the most of the budget; leave the rounds and a finding in ``series``."""
    rule = WarmUp(budget=budget, limit_s=max(loop.left_s(), 0.0) * WARMUP_SHARE)
    steps = 1
    while True:
        done = loop.round(steps)
        series.warmup.append(done)
        samples = loop.samples()
        series.telemetry += samples
        loop.report(False, done, None, series.last_sample)
        verdict = rule.feed(done, samples, loop.heap())
        steps = loop.steps_for(min(budget.round_s, budget.window_s), done.step_s)
        if verdict is not Verdict.GO_ON:
            break
    if verdict is Verdict.OUT_OF_TIME:
        limit = f"{rule.most_s(done.step_s):.3g} s"
        unsettled = rule.unsettled() or "time"
        series.findings.append(Finding(kind=FindingKind.NOT_STEADY, value=unsettled, limit=limit))
    recent = series.warmup[-4:]
    step_s = sum(r.wall_s for r in recent) / sum(r.steps for r in recent)
    series.steps_per_round = loop.steps_for(budget.round_s, step_s)


def time_rounds(loop: Loop, budget: Budget, series: Series) -> None:
    """Time rounds until the stop rule is satisfied, gives up or the time is up; mark what drift leaves out.

    Raises:
        OutOfTimeError: If not even two rounds came in.
        StoppedError: If the parent asked to stop; the rounds so far stay in ``series``, judged like any.
    """
    rule = stop_rule(budget, loop.step_s * series.steps_per_round)
    series.telemetry += loop.samples()
    _note_scale(loop, series)
    series.began_s = loop.clock.now_s()
    try:
        while True:
            done = loop.round(series.steps_per_round)
            series.timed.append(done)
            _note_scale(loop, series)
            verdict = rule.feed(done.step_s, done.wall_s)
            series.telemetry += loop.samples()
            loop.report(True, done, rule.half_width(), series.last_sample)
            if verdict is not Verdict.GO_ON:
                break
    except OutOfTimeError:
        if len(series.timed) < 2:
            raise
    finally:
        series.ended_s = loop.clock.now_s()
        series.telemetry += loop.samples()
        _mark(series, rule)


def _note_scale(loop: Loop, series: Series) -> None:
    scale = loop.heap().scale
    if scale is not None:
        series.scales.append(scale)


def _mark(series: Series, rule: StopRule) -> None:
    """Mark rounds that drift leaves out, and those far longer than the others, which count all the same."""
    gap_s = checks.GAP * median(r.step_s for r in series.timed) if series.timed else math.inf
    series.timed[:] = [
        msgspec.structs.replace(
            done,
            left_out="drift" if number < rule.left_out else done.left_out,
            mark="clock_gap" if done.step_s > gap_s else done.mark,
        )
        for number, done in enumerate(series.timed)
    ]
    drift, unmet = rule.drift(), rule.unmet()
    if drift is not None:
        series.findings.append(Finding(kind=FindingKind.DRIFTING, value=drift, limit=DRIFT))
    if unmet is not None:
        series.findings.append(unmet)
