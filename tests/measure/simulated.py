"""Measures how often an interval contains the truth, in whole runs on a scripted card.

Every launch is warmed up and timed by the rules of a real run. The results form a run as in a file, and its
intervals are read. Only the card is scripted. ``python tests/measure/simulated.py`` rewrites the table in
docs/method-evidence.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec
import numpy as np
from builders import case_of, run_of
from scripted import GPU_BOUND, HOST_BOUND, Factors, Wall

from gpubench.measure.budget import BUDGETS, Budget
from gpubench.measure.checks import judge_measurement
from gpubench.measure.loop import Clock, Loop, Series, time_rounds, warm_up
from gpubench.models import (
    DeviceProfile,
    Execution,
    Launch,
    Measurement,
    Precision,
    Run,
    Status,
    TaskKind,
    TelemetrySample,
)

STEP_S = 0.1
START_S, BETWEEN_S = 8.0, 4.0
"""Startup time of a process, and time of a case apart from its warm-up and its rounds [s]."""
COLD_C, CLOCK_HZ, CLOCK_STEP_HZ = 40.0, 1.98e9, 15e6
ASKED = {
    "task": TaskKind.INFER,
    "precision": Precision.AMP_BF16,
    "execution": Execution.GRAPH,
    "batch_size": 1,
}


@dataclass
class Card:
    """A card on which processes differ; each subclass varies in one more way.

    Attributes:
        noise: Coefficient of variation and lag-1 autocorrelation of rounds.
        process_sd: Standard deviation between processes.
        truth: Mean factor of a step over a long time.
    """

    rng: np.random.Generator
    noise: tuple[float, float] = GPU_BOUND
    process_sd: float = 0.0
    truth: float = 1.0
    process: float = 1.0

    def start(self) -> None:
        """Start another process."""
        self.process = 1 + self.process_sd * self.rng.standard_normal()

    def pace(self, at_s: float) -> float:
        """Return the factor by which steps are longer at this wall time."""
        return self.process

    def pause(self, since_s: float, until_s: float) -> float:
        """Return the duration of a stall [s]."""
        return 0.0

    def spend(self, seconds: float, *, busy: bool) -> None:
        """Work or rest for a while."""

    def reading(self, at_s: float) -> TelemetrySample:
        """Return the driver's readings."""
        return TelemetrySample(t_s=at_s, temperature_c=65.0, sm_clock_hz=CLOCK_HZ)


@dataclass
class TwoClocks(Card):
    """A clock with two states 3 % apart, each kept for an exponential time with mean ``dwell_s``."""

    dwell_s: float = 8.0
    truth: float = 1.015
    _until_s: float = Wall().now

    def __post_init__(self) -> None:
        self._slow = bool(self.rng.integers(2))

    def pace(self, at_s: float) -> float:
        while at_s >= self._until_s:
            self._slow = not self._slow
            self._until_s += float(self.rng.exponential(self.dwell_s))
        return self.process * (1.03 if self._slow else 1.0)


@dataclass
class Stalls(Card):
    """A card that stalls for ``stall_s``: periodically by the clock, or randomly while it works."""

    stall_s: float = 0.3
    every_s: float = 7.0
    by_chance: bool = False

    def __post_init__(self) -> None:
        self.truth = 1 + self.stall_s / (self.every_s - (0.0 if self.by_chance else self.stall_s))
        self._next_s = Wall().now + self._gap() * (1.0 if self.by_chance else self.rng.random())

    def pause(self, since_s: float, until_s: float) -> float:
        while self._next_s < since_s:
            self._next_s += self._gap()
        stood_s = 0.0
        while self._next_s < until_s + stood_s:
            stood_s += self.stall_s
            self._next_s += self._gap() + (self.stall_s if self.by_chance else 0.0)
        return stood_s

    def _gap(self) -> float:
        return float(self.rng.exponential(self.every_s)) if self.by_chance else self.every_s


@dataclass
class Heating(Card):
    """A card that slows down as it heats and recovers as it rests, with one time constant.

    The truth is its pace at the temperature that long work reaches.
    """

    slower: float = 0.015
    constant_s: float = 60.0
    hotter_c: float = 25.0
    heat: float = 0.0

    def __post_init__(self) -> None:
        self.truth = 1 + self.slower

    def pace(self, at_s: float) -> float:
        return self.process * (1 + self.slower * self.heat)

    def spend(self, seconds: float, *, busy: bool) -> None:
        self.heat = busy + (self.heat - busy) * math.exp(-seconds / self.constant_s)

    def reading(self, at_s: float) -> TelemetrySample:
        clock_hz = CLOCK_STEP_HZ * round(CLOCK_HZ / (1 + self.slower * self.heat) / CLOCK_STEP_HZ)
        celsius = float(round(COLD_C + self.hotter_c * self.heat))
        return TelemetrySample(t_s=at_s, temperature_c=celsius, sm_clock_hz=clock_hz)


class Kind(NamedTuple):
    """One kind of card, and why a short run may miss its behavior."""

    words: str
    make: Callable[[np.random.Generator], Card]
    reason: str


KINDS = (
    Kind(
        "processes differ by 0.3 % (standard deviation)",
        partial(Card, process_sd=0.003),
        "three launches see it; one assumes the usual spread",
    ),
    Kind(
        "processes differ by 7 %, rounds by 5 %",
        partial(Card, noise=HOST_BOUND, process_sd=0.07),
        "three launches see it; one cannot",
    ),
    Kind(
        "a clock of two states 3 % apart, each kept for 8 s",
        partial(TwoClocks, dwell_s=8.0),
        "a launch of 2 to 4 s sees one state; all three see the same one in a quarter of the runs",
    ),
    Kind("the same, each kept for 30 s", partial(TwoClocks, dwell_s=30.0), "the same"),
    Kind(
        "a stall of 0.3 s every 7 s",
        partial(Stalls, stall_s=0.3, every_s=7.0),
        "most launches end before one occurs",
    ),
    Kind(
        "stalls of 1 s, by chance one in 30 s",
        partial(Stalls, stall_s=1.0, every_s=30.0, by_chance=True),
        "most launches end before one occurs",
    ),
    Kind(
        "1.5 % slower as it heats, time constant 60 s",
        Heating,
        "one launch ends too early; three show that the card warms up, and the low end allows for the rest: the "
        "remaining slowdown shifts all launches equally, so an allowance covers it either always or never",
    ),
    Kind(
        "25 % slower as it heats, time constant 120 s (a laptop)",
        partial(Heating, slower=1 / 3, constant_s=120.0, hotter_c=55.0),
        "idle time between cases keeps it cooler than continuous work; 120 s is assumed (0.77 at 200 s)",
    ),
)


def measure(card: Card, wall: Wall, budget: Budget, index: int) -> Launch:
    """Warm up one case and time it."""
    noise = Factors(spread=card.noise[0], phi=card.noise[1], round_s=budget.round_s, rng=card.rng)
    began_s = wall.now

    def advance(step: int) -> int:
        took_s = STEP_S * noise.at(wall.now - began_s) * card.pace(wall.now)
        took_s += card.pause(wall.now, wall.now + took_s)
        wall.advance(took_s)
        card.spend(took_s, busy=True)
        return step

    loop = Loop(
        advance=advance,
        edge_loss=lambda *_: 1.0,
        clock=Clock(now_ns=wall.now_ns),
        samples=lambda: [card.reading(wall.now)],
    )
    series = Series()
    warm_up(loop, budget, series)
    time_rounds(loop, budget, series)
    telemetry = (msgspec.structs.replace(x, t_s=x.t_s - series.began_s) for x in series.telemetry)
    return Launch(
        index=index,
        rounds=tuple(series.timed),
        telemetry=tuple(telemetry),
        findings=tuple(series.findings),
    )


def run_on(card: Card, budget: Budget, cases: int) -> Run:
    """Measure this many equally fast cases in all launches of a budget."""
    wall = Wall()

    def rest(seconds: float) -> None:
        wall.advance(seconds)
        card.spend(seconds, busy=False)

    launches: list[list[Launch]] = [[] for _ in range(cases)]
    for index in range(budget.launches):
        rest(START_S)
        for number in card.rng.permutation(cases).tolist():
            card.start()
            rest(BETWEEN_S)
            launches[number].append(measure(card, wall, budget, index))
    rows = (
        Measurement(
            case=case_of(f"case{number}", **ASKED),
            status=Status.OK,
            launches=tuple(each),
            target=budget.target,
        )
        for number, each in enumerate(launches)
    )
    device = DeviceProfile(backend="cuda", name="NVIDIA H100 80GB HBM3", gpu_key="nvidia-h100-sxm-80gb")
    run = run_of(*rows, budget=budget.name, launch_count=budget.launches, device=device)
    judged = tuple(judge_measurement(row, budget.launches, run.measurements) for row in run.measurements)
    return msgspec.structs.replace(run, measurements=judged)


@dataclass
class Coverage:
    """How the intervals of some runs turned out.

    Attributes:
        held: For each interval, whether it contains the truth.
        below: For each interval, how far its low end is below the figure, relative to the figure.
        findings: Kinds of finding, with the share of rows that carry each.
    """

    held: list[bool] = field(default_factory=list)
    below: list[float] = field(default_factory=list)
    findings: dict[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return fmean(self.held)

    @property
    def words(self) -> str:
        return f"{self.share:.2f} ({100 * median(self.below):.1f} %)"


def coverage(kind: Kind, budget: Budget, *, runs: int, seed: int = 0) -> Coverage:
    """Measure this many runs, each on its own card."""
    found, cases = Coverage(), CASES[budget.name]
    for number in range(runs):
        for row in run_on(kind.make(np.random.default_rng((seed, number))), budget, cases).measurements:
            truth, interval = 1 / (STEP_S * kind.make(np.random.default_rng(0)).truth), row.interval
            found.held.append(interval.low <= truth <= (interval.high or math.inf))
            found.below.append(1 - interval.low / interval.value)
            for finding in row.findings:
                found.findings[finding.kind] = found.findings.get(finding.kind, 0) + 1 / (runs * cases)
    return found


# --- the table of the docs ----------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "method-evidence.md"
CASES = {"quick": 7, "default": 7, "publish": 3}
RUNS = {"quick": 100, "default": 100, "publish": 150}
HEAD = (
    "| the card | `--quick` | default | `--publish` | what a short run cannot see |\n|---|---|---|---|---|\n"
)
_TABLE = re.compile(rf"{re.escape(HEAD)}(?:\|.*\n)*")


def table() -> str:
    """Return the table as it is on the page."""
    lines = [
        [kind.words, *(coverage(kind, BUDGETS[name], runs=RUNS[name]).words for name in RUNS), kind.reason]
        for kind in KINDS
    ]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def stated() -> dict[tuple[str, str], float]:
    """Return the shares that the page states, by card and budget."""
    (found,) = _TABLE.findall(PAGE.read_text(encoding="utf-8"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found.splitlines()[2:]]
    assert [(row[0], row[4]) for row in rows] == [(kind.words, kind.reason) for kind in KINDS]
    return {
        (row[0], name): float(cell.split()[0])
        for row in rows
        for name, cell in zip(RUNS, row[1:4], strict=True)
    }


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_TABLE.sub(lambda _: table(), page), encoding="utf-8")
