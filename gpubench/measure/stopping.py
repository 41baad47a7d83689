"""When warm-up is over and when enough rounds are in: strategies fed one round at a time.

They know no clock, no device and no torch, so that a simulated series can exercise them. The reasons
behind each rule are in docs/method.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean, median

from gpubench import stats
from gpubench.measure.budget import (
    LEAST_ESS,
    LEAST_ROUNDS,
    LEAST_ROUNDS_SLOW,
    SLOW_STEP_S,
    Budget,
)
from gpubench.models import Finding, FindingKind, Round, TelemetrySample
from gpubench.units import Seconds

WINDOWS = 4
TEMPERATURE_SLOPE_C_PER_S = 0.1
"""One degree in ten seconds."""
TEMPERATURE_SPAN_S = 10.0
CLOCK_SPREAD = 0.02
DRIFT = 0.005
LEAST_HALF = 20
LEAST_HALF_AT_END = 10
"""Rounds in each half before the guard judges: looking at short halves after every round finds drift in
noise (simulated at correlation 0.9: coverage 0.91), so shorter ones are judged only before stopping."""
LEAST_HALF_TO_SAY = 5
"""When the series is over, such short halves still tell of a drift (of correlated noise, 1 to 3 % are taken
for one): then nothing is left out, only said."""
DRIFT_ERRORS = 3.0
"""With 2 standard errors the guard itself spoils the coverage of the interval (simulated)."""


class Verdict(Enum):
    """What a rule says after a round."""

    GO_ON = "go on"
    DONE = "done"
    OUT_OF_TIME = "out of time"


# --- warm-up -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Heap:
    """What must have settled beside the times: allocator segments and retries, the gradient scale."""

    segments: int | None = None
    retries: int | None = None
    scale: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Window:
    step_s: float
    length_s: Seconds
    clocks_hz: tuple[float, ...]
    first: Heap
    last: Heap


@dataclass
class WarmUp:
    """Warm-up until steady, between the least and the most of the budget.

    Steady: four windows whose medians agree, temperature no longer rising, clock spread small, allocator
    and gradient scale settled over the last window.
    """

    budget: Budget
    steps: int = 0
    elapsed_s: Seconds = 0.0
    windows: list[_Window] = field(default_factory=list)
    _rounds: list[Round] = field(default_factory=list)
    _clocks_hz: list[float] = field(default_factory=list)
    _temperatures: list[tuple[float, float]] = field(default_factory=list)
    _heap: Heap = field(default_factory=Heap)
    _heap_at_start: Heap | None = None

    def feed(self, done: Round, samples: Sequence[TelemetrySample] = (), heap: Heap | None = None) -> Verdict:
        """Take one round, the telemetry since the last one, and the state of allocator and scaler."""
        self.steps += done.steps
        self.elapsed_s += done.wall_s
        self._rounds.append(done)
        self._clocks_hz += [s.sm_clock_hz for s in samples if s.sm_clock_hz is not None]
        self._temperatures += [(s.t_s, s.temperature_c) for s in samples if s.temperature_c is not None]
        self._heap = heap or Heap()
        if self._heap_at_start is None:
            self._heap_at_start = self._heap
        if sum(r.wall_s for r in self._rounds) >= self.budget.window_s:
            self._close_window()
        if self.unsettled() is None:
            return Verdict.DONE
        return Verdict.OUT_OF_TIME if self.elapsed_s >= self.budget.warmup_most_s else Verdict.GO_ON

    def unsettled(self) -> str | None:
        """Say what keeps the warm-up from being over; None when nothing does."""
        if self.steps < self.budget.warmup_steps or self.elapsed_s < self.budget.warmup_least_s:
            return "least time"
        if len(self.windows) < WINDOWS:
            return "too few windows"
        latest = self.windows[-WINDOWS:]
        medians = [w.step_s for w in latest]
        if max(medians) > min(medians) * (1 + self.budget.agreement):
            return "step time"
        clocks = [c for w in latest for c in w.clocks_hz]
        if clocks and max(clocks) - min(clocks) > CLOCK_SPREAD * max(clocks):
            return "clock"
        if self.budget.judge_temperature and self.temperature_slope() > TEMPERATURE_SLOPE_C_PER_S:
            return "temperature"
        return _unsettled_heap(latest[-1])

    def temperature_slope(self) -> float:
        """Least-squares slope of the last ten seconds of temperature [degrees C per s]; 0 if unknown."""
        if not self._temperatures:
            return 0.0
        end = self._temperatures[-1][0]
        recent = [(t, c) for t, c in self._temperatures if t >= end - TEMPERATURE_SPAN_S]
        middle = fmean(t for t, _ in recent)
        spread = sum((t - middle) ** 2 for t, _ in recent)
        return sum((t - middle) * c for t, c in recent) / spread if spread else 0.0

    def _close_window(self) -> None:
        self.windows.append(
            _Window(
                step_s=median(r.wall_s / r.steps for r in self._rounds),
                length_s=sum(r.wall_s for r in self._rounds),
                clocks_hz=tuple(self._clocks_hz),
                first=self._heap_at_start or self._heap,
                last=self._heap,
            )
        )
        self._rounds, self._clocks_hz, self._heap_at_start = [], [], self._heap


def _unsettled_heap(window: _Window) -> str | None:
    before, after = window.first, window.last
    if before.segments != after.segments or before.retries != after.retries:
        return "allocator"
    if before.scale is not None and after.scale is not None and after.scale < before.scale:
        return "gradient scale"
    return None


# --- timed rounds ------------------------------------------------------------------------------------


@dataclass
class StopRule:
    """Stop when the interval is narrow enough, right under autocorrelation, and nothing drifts.

    Attributes:
        target: Relative half-width of the 95 % interval to reach.
        deadline_s: Longest timed part [s].
        rounds: Seconds per step of every round so far.
        left_out: How many rounds at the start the drift guard has left out of the estimate.
    """

    target: float
    deadline_s: Seconds = math.inf
    rounds: list[float] = field(default_factory=list)
    elapsed_s: Seconds = 0.0
    left_out: int = 0

    def feed(self, step_s: float, wall_s: Seconds) -> Verdict:
        """Take one round: its seconds per step and its length."""
        self.rounds.append(step_s)
        self.elapsed_s += wall_s
        late = self.elapsed_s >= self.deadline_s
        converged = self.converged()
        if self._drifts(LEAST_HALF_AT_END if late or converged else LEAST_HALF):
            self.left_out += len(self.accepted) // 2
            converged = self.converged()
        if converged:
            return Verdict.DONE
        return Verdict.OUT_OF_TIME if late else Verdict.GO_ON

    @property
    def accepted(self) -> list[float]:
        """The rounds that count."""
        return self.rounds[self.left_out :]

    def converged(self) -> bool:
        """Whether rounds, effective sample size and half-width all suffice."""
        return self.unmet() is None

    def unmet(self) -> Finding | None:
        """Return the first of the three that does not suffice, with its value; None where all do."""
        values = self.accepted
        if len(values) < LEAST_ROUNDS:
            least = LEAST_ROUNDS_SLOW if values and median(values) > SLOW_STEP_S else LEAST_ROUNDS
            if len(values) < least:
                return _not_converged(f"{len(values)} rounds", f"{least} rounds")
        error, ess = estimate = stats.standard_error(values)
        if error == 0:
            return None
        if ess < LEAST_ESS:
            return _not_converged(f"effective sample size {ess:.1f}", f"{LEAST_ESS:g}")
        width = stats.half_width_of(estimate, values)
        return None if width <= self.target else _not_converged(width, self.target)

    def half_width(self) -> float | None:
        """Relative half-width of the 95 % interval so far."""
        return stats.relative_half_width(self.accepted)

    def drift(self) -> float | None:
        """Return early over late step time, less 1, of a series that is over; None where none is seen.

        Early are the rounds left out; in a series too short to leave any out, its first half.
        """
        early, late = self.rounds[: self.left_out], self.accepted
        if not early:
            if not self._drifts(LEAST_HALF_TO_SAY):
                return None
            half = len(late) // 2
            early, late = late[:half], late[half:]
        return fmean(early) / fmean(late) - 1

    def _drifts(self, least_half: int) -> bool:
        values = self.accepted
        half = len(values) // 2
        if half < least_half:
            return False
        early, late = values[:half], values[half:]
        difference = abs(fmean(early) - fmean(late))
        if difference <= DRIFT * fmean(values):
            return False
        error = math.hypot(stats.standard_error(early)[0], stats.standard_error(late)[0])
        return difference > DRIFT_ERRORS * error


def _not_converged(value: float | str | None, limit: float | str) -> Finding:
    return Finding(kind=FindingKind.NOT_CONVERGED, value=value, limit=limit)
