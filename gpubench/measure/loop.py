"""The measuring clock, and the rounds timed with it: the warm-up and the timed part of one case.

This module does not import torch: the step is a callable, and so is the clock's wait for the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from statistics import fmean, linear_regression, median
from typing import Any, TypeAlias

import msgspec

from gpubench import stats
from gpubench.heat import STEADY_C_PER_S
from gpubench.measure.budget import LEAST_ROUNDS, SLOW_STEPS_S, SPARE_ROUNDS, Budget
from gpubench.models import Finding, FindingKind, Round, TelemetrySample
from gpubench.units import Seconds, count, format_percent

# --- rules for the end of warm-up and of the timed part; no clock, no device ------------------------------


# The warm-up compares the medians of this many windows of rounds.
WINDOWS = 4
# A round longer than this many times the median is marked.
GAP = 2.0
# Length of the period at the end over which the slope of the temperature is fitted.
TEMPERATURE_SPAN_S = 30.0
# Largest spread of the SM clock in a steady warm-up, relative to its highest value.
CLOCK_SPREAD = 0.02
HOST_BOUND = 0.01
"""Rounds are host-bound if the median relative difference between consecutive rounds exceeds this: GPU-bound
rounds differ by 0.04 to 0.3 %, host-bound ones by 3 % or more (H200). In GPU-bound rounds, the windows must
agree, which costs a minute; ending earlier would miss slow heating (simulated: a bias of 5 % at a spread of
1 %)."""
# The drift guard: a series drifts if the means of its halves differ by more than this share and by more than
# ``DRIFT_ERRORS`` standard errors; its first half is then excluded.
DRIFT = 0.005
# The drift guard needs this many rounds in each half: checking shorter halves after every round would mistake
# noise for drift (simulated at correlation 0.9: in 12 % of series instead of 7 %).
LEAST_HALF = 20
# Minimum for the last check, when the series would otherwise end.
LEAST_HALF_AT_END = 10
# Minimum after the series has ended. A drift found then is only reported, and no round is excluded; of series
# with only correlated noise, 1 to 3 % are reported.
LEAST_HALF_TO_REPORT = 5
# Threshold of the drift guard, in standard errors; a threshold of 2 would reduce the coverage of the interval
# (simulated).
DRIFT_ERRORS = 3.0
# A series that cannot reach its target gets this many times the shortest timed part: by default, time for 40
# rounds. They show how many more are needed; at the spread that a host causes (5 %, correlation 0.6), their
# interval is about 5 %.
GIVE_UP_AFTER = 2.0
# A series that would need this many times its longest timed part is abandoned: after 40 rounds at a
# correlation of 0.6, the needed time is known to within a factor of about 1.5 (one standard error).
OUT_OF_REACH = 2.0


class Verdict(Enum):
    """What a rule decides after each round."""

    GO_ON = "go on"
    DONE = "done"
    OUT_OF_TIME = "out of time"
    OUT_OF_REACH = "out of reach"


# --- warm-up -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepState:
    """State that must settle along with the step times: allocator segments, retries, and gradient scale."""

    segments: int | None = None
    retries: int | None = None
    scale: float | None = None


@dataclass(kw_only=True)
class _Window:
    first: StepState
    last: StepState
    rounds: list[Round] = field(default_factory=list)
    clocks_hz: list[float] = field(default_factory=list)


@dataclass
class WarmUp:
    """Decides when the warm-up is over: once it is steady, within the budget's minimum and maximum.

    Steady means that the medians of four windows agree, the clock spread is small, allocator and gradient
    scale have settled over the last window, and, if the budget requires it, the temperature no longer rises.
    In host-bound rounds, medians agree only by chance, so they need only show no trend: rises and falls both
    occur. If the minimum number of steps does not fit into the budget's maximum, slow steps get the time that
    they need, up to ``SLOW_STEPS_S`` and ``limit_s``.
    """

    budget: Budget
    limit_s: Seconds = math.inf
    steps: int = 0
    elapsed_s: Seconds = 0.0
    windows: list[_Window] = field(default_factory=list)
    _current: _Window | None = None
    _temperatures: list[tuple[float, float]] = field(default_factory=list)

    def feed(
        self, done: Round, samples: Sequence[TelemetrySample] = (), state: StepState | None = None
    ) -> Verdict:
        """Add one round, the telemetry since the previous round, and the state of allocator and scaler."""
        self.steps += done.steps
        self.elapsed_s += done.wall_s
        state = state or StepState()
        window = self._current or _Window(first=state, last=state)
        window.last = state
        window.rounds.append(done)
        window.clocks_hz += [s.sm_clock_hz for s in samples if s.sm_clock_hz is not None]
        self._temperatures += [(s.t_s, s.temperature_c) for s in samples if s.temperature_c is not None]
        self._current = window
        if sum(r.wall_s for r in window.rounds) >= self.budget.window_s:
            self.windows.append(window)
            self._current = _Window(first=state, last=state)
        if self.unsettled() is None:
            return Verdict.DONE
        return Verdict.OUT_OF_TIME if self.elapsed_s >= self.most_s(done.step_s) else Verdict.GO_ON

    def most_s(self, step_s: Seconds) -> Seconds:
        """Return the longest warm-up for steps of this length [s]."""
        slow_s = min((self.budget.warmup_steps + WINDOWS) * step_s, SLOW_STEPS_S)
        return min(self.limit_s, max(self.budget.warmup_most_s, slow_s))

    def unsettled(self) -> str | None:
        """Return what is not steady yet; None when warm-up is over."""
        if self.steps < self.budget.warmup_steps or self.elapsed_s < self.budget.warmup_least_s:
            return "least time"
        if len(self.windows) < WINDOWS:
            return "too few windows"
        latest = self.windows[-WINDOWS:]
        if not _agree(latest, self.budget.agreement):
            return "step time"
        clocks = [c for w in latest for c in w.clocks_hz]
        if clocks and max(clocks) - min(clocks) > CLOCK_SPREAD * max(clocks):
            return "clock"
        if self.budget.judge_temperature and self.temperature_slope() > STEADY_C_PER_S:
            return "temperature"
        before, after = latest[-1].first, latest[-1].last
        if before.segments != after.segments or before.retries != after.retries:
            return "allocator"
        if before.scale is not None and after.scale is not None and after.scale < before.scale:
            return "gradient scale"
        return None

    def temperature_slope(self) -> float:
        """Return how fast the temperature rose over the last half minute [degrees C per s]; 0 if unknown."""
        if not self._temperatures:
            return 0.0
        since_s = self._temperatures[-1][0] - TEMPERATURE_SPAN_S
        times_s, temperatures = zip(*((t, c) for t, c in self._temperatures if t >= since_s), strict=True)
        return linear_regression(times_s, temperatures).slope if len({*times_s}) > 1 else 0.0


def _agree(windows: Sequence[_Window], agreement: float) -> bool:
    # Whether the medians agree, or show no trend in host-bound rounds.
    medians = [median(r.step_s for r in w.rounds) for w in windows]
    if max(medians) <= min(medians) * (1 + agreement):
        return True
    jumps = [abs(b - a) for w in windows for a, b in pairwise([r.step_s for r in w.rounds])]
    is_host_bound = bool(jumps) and median(jumps) > HOST_BOUND * min(medians)
    rising = [b > a for a, b in pairwise(medians)]
    return is_host_bound and any(rising) and not all(rising)


# --- timed rounds ------------------------------------------------------------------------------------


@dataclass
class StopRule:
    """Decides when a series of rounds ends: when its interval is narrow enough and it does not drift.

    The interval allows for autocorrelation. A series also ends when it cannot reach the target in the
    available time: a short series has as valid an interval as a long one, and the remaining time is better
    spent on another process.

    Attributes:
        target: Relative half-width of the 95 % interval to reach.
        deadline_s: Longest timed part [s].
        least_s: Shortest timed part, however narrow the interval [s].
        give_up_after_s: Time after which an unreachable target ends the series [s].
        rounds: Seconds per step of every round so far.
        walls: Length of each round [s]; fewer entries than ``rounds`` if some lengths are unknown.
        left_out: Number of rounds at the start that the drift guard has excluded from the estimate.
    """

    target: float
    deadline_s: Seconds = math.inf
    least_s: Seconds = 0.0
    give_up_after_s: Seconds = math.inf
    rounds: list[float] = field(default_factory=list)
    walls: list[Seconds] = field(default_factory=list)
    elapsed_s: Seconds = 0.0
    left_out: int = 0

    def feed(self, step_s: float, wall_s: Seconds) -> Verdict:
        """Add one round, with its seconds per step and its length, and judge the series."""
        self.add(step_s, wall_s)
        return self.verdict()

    def add(self, step_s: float, wall_s: Seconds) -> None:
        """Add one round without judging."""
        self.rounds.append(step_s)
        self.walls.append(wall_s)
        self.elapsed_s += wall_s

    def verdict(self) -> Verdict:
        """Judge the series so far; if it drifts, its first half is excluded."""
        is_out_of_time = self.elapsed_s >= self.deadline_s
        enough = self._enough()
        if self._drifts(LEAST_HALF_AT_END if is_out_of_time or enough else LEAST_HALF):
            self.left_out += len(self.accepted) // 2
            enough = self._enough()
        if enough:
            return Verdict.DONE
        if is_out_of_time:
            return Verdict.OUT_OF_TIME
        if self.elapsed_s < self.give_up_after_s or len(self.accepted) < LEAST_ROUNDS:
            return Verdict.GO_ON
        needed_s = self.needed_s()
        out_of_reach = needed_s is not None and needed_s > OUT_OF_REACH * self.deadline_s
        return Verdict.OUT_OF_REACH if out_of_reach else Verdict.GO_ON

    @property
    def accepted(self) -> list[float]:
        """The rounds that are not excluded."""
        return self.rounds[self.left_out :]

    def converged(self) -> bool:
        """Return whether there are enough rounds and the half-width is small enough."""
        width = self.half_width() if len(self.accepted) >= LEAST_ROUNDS else None
        return width is not None and width <= self.target

    def unmet(self) -> Finding | None:
        """Return a finding if there are too few rounds or the half-width is too large; None otherwise.

        If the lengths of the rounds are known, the finding says how long the series would have to be.
        """
        if self.converged():
            return None
        value: float | str | None = self.half_width()
        limit: float | str = self.target
        if (accepted := len(self.accepted)) < LEAST_ROUNDS:
            value, limit = count(accepted, "round"), count(LEAST_ROUNDS, "round")
        elif (needed_s := self.needed_s() or 0.0) > self._accepted_s():
            limit = f"{format_percent(self.target)}, which takes about {_roughly(needed_s)} of rounds"
        return Finding(kind=FindingKind.NOT_CONVERGED, value=value, limit=limit)

    def half_width(self) -> float | None:
        """Return the relative half-width of the 95 % interval so far; None below two rounds."""
        return stats.relative_half_width(self.accepted)

    def needed_s(self) -> Seconds | None:
        """Return how long the series would take to reach the target [s]; None if unknown.

        The half-width falls with the square root of the time. The estimate uses the expected correlation
        without the interval's safety margin, which would make every short series look hopeless.
        """
        values, accepted_s = self.accepted, self._accepted_s()
        if len(values) < 2 or not accepted_s or self.target <= 0:
            return None
        return accepted_s * (stats.long_half_width(values) / self.target) ** 2

    def drift(self) -> float | None:
        """Return early step time / late step time - 1 for a finished series; None if it does not drift.

        The early rounds are the excluded ones, or the first half of a series too short to exclude any.
        """
        early, late = self.rounds[: self.left_out], self.accepted
        if not early:
            if not self._drifts(LEAST_HALF_TO_REPORT):
                return None
            half = len(late) // 2
            early, late = late[:half], late[half:]
        return fmean(early) / fmean(late) - 1

    def _enough(self) -> bool:
        return self.elapsed_s >= self.least_s and self.converged()

    def _accepted_s(self) -> Seconds:
        return sum(self.walls[self.left_out :])

    def _drifts(self, least_half: int) -> bool:
        values = self.accepted
        half = len(values) // 2
        if half < least_half:
            return False
        early, late = values[:half], values[half:]
        difference = abs(fmean(early) - fmean(late))
        return difference > DRIFT * fmean(values) and difference > DRIFT_ERRORS * math.hypot(
            stats.standard_error(early), stats.standard_error(late)
        )


def stop_rule(budget: Budget, round_s: Seconds = 0.0) -> StopRule:
    """Return the stop rule of a case's timed part; ``round_s`` is the length of a round [s]."""
    return StopRule(
        target=budget.target,
        deadline_s=max(budget.timed_s, min((LEAST_ROUNDS + SPARE_ROUNDS) * round_s, SLOW_STEPS_S)),
        least_s=budget.timed_least_s,
        give_up_after_s=GIVE_UP_AFTER * budget.timed_least_s,
    )


def _roughly(time_s: Seconds) -> str:
    # Format a time that is only known roughly: 95 s, 28 min, 5 h.
    if time_s < 120:
        return f"{time_s:.0f} s"
    return f"{time_s / 60:.0f} min" if time_s < 7200 else f"{time_s / 3600:.0f} h"


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A synchronizing clock; its wait and its time source are injected, so a test can script time.

    A CPU has finished a step when the call returns, so it needs no wait. On a GPU without synchronization,
    only issuing the work would be timed: a step of 47.5 ms on an H200 would seem to take 7.2 ms.
    """

    synchronize: Callable[[], None] = lambda: None
    now_ns: Callable[[], int] = field(default_factory=lambda: time.perf_counter_ns)

    def time(self, work: Callable[[], object], calls: int = 1) -> Seconds:
        """Return the wall time of one or more calls of ``work``, including the device work they issue [s]."""
        self.synchronize()
        start = self.now_ns()
        for _ in range(calls):
            work()
        self.synchronize()
        return (self.now_ns() - start) * 1e-9

    def now_s(self) -> Seconds:
        """Return the monotonic time [s]; only differences are meaningful."""
        return self.now_ns() * 1e-9


# Maximum number of steps in a round, however short they are.
MOST_STEPS = 100_000
# The warm-up takes at most this share of the time left under a time limit.
WARMUP_SHARE = 0.5


Report: TypeAlias = "Callable[[Round, Seconds, StopRule | None, TelemetrySample | None], None]"


class OutOfTimeError(Exception):
    """The time for this case is over."""


class StoppedError(Exception):
    """The parent requested a stop."""


@dataclass
class Loop:
    """Runs the steps of one case in rounds, and times each round.

    Attributes:
        advance: Issues the step with the given index and returns its result.
        edge_loss: Copies the loss of a result to the host, at the end of a round.
        clock: The synchronizing clock.
        batches: Number of prebuilt batches; a round with at least as many steps uses each equally often.
        deadline_s: Time on the clock after which no further step is issued.
        stopped: Whether the parent has requested a stop.
        report: Called at the end of each round with the round, the time outside rounds, the stop rule (None
            in the warm-up), and the latest device sample.
        samples: Returns the telemetry since its last call.
        step_state: Returns the state of allocator and gradient scaler.
        announce: Announces a block of steps to the other processes of the job, by first index and step count;
            None without other processes. The others run a whole block, so a block is never cut short.
        index: Index of the next step.
        is_async: Whether the device may still be working when a call returns.
        step_s: Time per step in the latest round; 0 before the first [s].
        inside_s: Time of all rounds so far, including the reading of losses if ``is_async`` [s].
    """

    advance: Callable[[int], Any]
    edge_loss: Callable[[Any, int], float]
    clock: Clock
    batches: int = 1
    deadline_s: Seconds = math.inf
    stopped: Callable[[], bool] = lambda: False
    report: Report = lambda *_: None
    samples: Callable[[], list[TelemetrySample]] = list
    step_state: Callable[[], StepState] = StepState
    announce: Callable[[int, int], None] | None = None
    index: int = 0
    is_async: bool = False
    step_s: Seconds = 0.0
    inside_s: Seconds = 0.0

    def round(self, steps: int) -> Round:
        """Time one block of steps, synchronizing at both ends, then read its last loss.

        Raises:
            OutOfTimeError: Before a step that would begin after the deadline; with several processes, before
                a block that would end after it.
            StoppedError: Before the block, if the parent requested a stop.
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
            for _ in range(steps):
                if self.announce is None and self.clock.now_s() >= self.deadline_s:
                    raise OutOfTimeError
                result = self.advance(self.index)
                self.index += 1

        wall_s = self.clock.time(block)
        self.step_s = wall_s / steps
        self.inside_s += wall_s
        ended_s = self.clock.now_s()
        loss = self.edge_loss(result, self.index - 1)
        if self.is_async:  # reading the loss waits for work that the clock did not wait for
            self.inside_s += self.clock.now_s() - ended_s
        return Round(steps=steps, wall_s=wall_s, loss=loss)

    def outside_s(self) -> Seconds:
        """Return the time so far spent outside rounds; only differences are meaningful [s]."""
        return self.clock.now_s() - self.inside_s

    def steps_for(self, round_s: Seconds, step_s: Seconds) -> int:
        """Return the number of steps in a round: fewer than the batches, or a multiple of their number."""
        steps = min(MOST_STEPS, max(1, math.ceil(round_s / step_s)))
        return math.ceil(steps / self.batches) * self.batches if steps >= self.batches else steps

    def left_s(self) -> Seconds:
        """Return the time until the deadline [s]."""
        return self.deadline_s - self.clock.now_s()


@dataclass
class Series:
    """The rounds of one case so far; ``scales`` are the gradient scales before and after its timed rounds."""

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
        """The latest telemetry sample; None without telemetry."""
        return self.telemetry[-1] if self.telemetry else None


def warm_up(loop: Loop, budget: Budget, series: Series) -> None:
    """Run rounds until they are steady or time is up; store the rounds and any finding in ``series``."""
    rule = WarmUp(budget=budget, limit_s=max(loop.left_s(), 0.0) * WARMUP_SHARE)
    steps = 1
    while True:
        done = loop.round(steps)
        series.warmup.append(done)
        samples = loop.samples()
        series.telemetry += samples
        loop.report(done, loop.outside_s(), None, series.last_sample)
        verdict = rule.feed(done, samples, loop.step_state())
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
    """Time rounds until the stop rule or the deadline ends the series, and mark rounds excluded for drift.

    Raises:
        OutOfTimeError: If time ran out before two rounds were done.
        StoppedError: If the parent requested a stop; the rounds so far stay in ``series`` and are judged as
            usual.
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
            loop.report(done, loop.outside_s(), rule, series.last_sample)
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
    scale = loop.step_state().scale
    if scale is not None:
        series.scales.append(scale)


def _mark(series: Series, rule: StopRule) -> None:
    # Mark rounds that are excluded for drift, and rounds far longer than the others, which still count.
    gap_s = GAP * median(r.step_s for r in series.timed) if series.timed else math.inf
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
