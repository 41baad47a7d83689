"""A scripted card and its noise: only times, on a clock that moves when told; nothing is computed."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

DATA = Path(__file__).parents[1] / "data"
GPU_BOUND = (0.0007, 0.7)
"""Coefficient of variation and lag-1 autocorrelation of rounds of vgg16 on an H100, equal at 0.1 s and 0.5 s."""
HOST_BOUND = (0.05, 0.6)
"""The same two figures for cnn and lstm at a small batch, run eagerly."""
EAGER_OVER_GRAPH = 1.1
"""Above this ratio the host limits an eager step."""


def correlated(phi: float, spread: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """An AR(1) series around 1 with a standard deviation of ``spread``."""
    noise = rng.standard_normal(count) * spread * math.sqrt(1 - phi**2)
    series, _ = lfilter([1.0], [1.0, -phi], noise, zi=[phi * rng.standard_normal() * spread])
    return 1 + series


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Wall time of one training step [s]."""

    eager_s: float
    graph_s: float

    @property
    def host_bound(self) -> bool:
        """Whether the host limits an eager step."""
        return self.eager_s > EAGER_OVER_GRAPH * self.graph_s

    def slower(self, times: float) -> StepTimes:
        """Return the step times on a card that is slower by this factor, with the same host."""
        graph_s = times * self.graph_s
        return StepTimes(eager_s=max(self.eager_s, graph_s), graph_s=graph_s)


def h200_step_times() -> dict[tuple[str, str], StepTimes]:
    """Return the measurements on an H200, by workload and precision, at the main batch of each workload."""
    with (DATA / "h200_step_times.csv").open(encoding="utf-8") as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        return {
            (row["workload"], row["precision"]): StepTimes(
                eager_s=float(row["eager_ms"]) * 1e-3, graph_s=float(row["graph_ms"]) * 1e-3
            )
            for row in rows
        }


@dataclass
class Wall:
    """A wall clock that moves only when told."""

    now: float = 1000.0

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def now_s(self) -> float:
        return self.now

    def now_ns(self) -> int:
        return round(self.now * 1e9)


@dataclass
class Factors:
    """Correlated factors around 1, a new one every ``round_s``: the wandering pace of rounds."""

    spread: float
    phi: float
    round_s: float
    rng: np.random.Generator
    _factors: np.ndarray = field(default_factory=lambda: np.empty(0))

    def at(self, elapsed_s: float) -> float:
        index = int(elapsed_s / self.round_s)
        while index >= len(self._factors):
            self._factors = correlated(self.phi, self.spread, 2 * index + 1000, self.rng)
        return float(self._factors[index])
