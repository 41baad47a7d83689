"""Time to quality: a small network trained to a stated accuracy or loss, once for each of several seeds."""

from __future__ import annotations

import math
from typing import Literal

from gpubench import stats
from gpubench.interval import Interval
from gpubench.models.case import Case
from gpubench.models.record import Record
from gpubench.units import Joules, Seconds

Metric = Literal["accuracy", "loss"]


class SeedRun(Record, frozen=True, kw_only=True):
    """One training from one seed.

    Attributes:
        reached: Whether the stated quality was seen on the held-out samples.
        steps: Taken until it was first seen; of one that did not reach it, all that it was given.
        train_s: Of the steps alone, without the looks at the held-out samples [s].
        quality: What was last seen; None for what is no number.
        energy_j: Of the device from the first step to the last look; None where it cannot be told [J].
    """

    seed: int
    reached: bool
    steps: int
    train_s: Seconds
    quality: float | None
    energy_j: Joules | None = None


class TimeToQuality(Record, frozen=True, kw_only=True):
    """What a precision takes to a stated quality.

    Attributes:
        case: Workload, precision and batch; an eager training.
        metric, target: The quality on held-out samples: at least this accuracy, or at most this loss.
        most_steps: After which a seed has not reached it.
        data_sha256: Of the samples, held-out ones included.
        runs: One for each seed.
        reason: Why there are fewer than were asked for; None where all came to their end.
    """

    case: Case
    metric: Metric
    target: float
    most_steps: int
    data_sha256: str
    runs: tuple[SeedRun, ...] = ()
    reason: str | None = None

    @property
    def is_reached(self) -> bool:
        """Whether every seed reached the quality; else no figure is given for any."""
        return self.reason is None and bool(self.runs) and all(run.reached for run in self.runs)

    @property
    def steps(self) -> Interval:
        """Mean steps with their interval over seeds; unknown where one did not reach the quality."""
        return self._over_seeds([run.steps for run in self.runs])

    @property
    def train_s(self) -> Interval:
        """The same of the time of the steps [s]."""
        return self._over_seeds([run.train_s for run in self.runs])

    @property
    def energy_j(self) -> Interval:
        """The same of the energy; unknown where one of them is [J]."""
        known = [run.energy_j for run in self.runs if run.energy_j is not None]
        return self._over_seeds(known) if len(known) == len(self.runs) else Interval(None)

    def steps_over(self, other: TimeToQuality) -> Interval:
        """Return the ratio of the steps to those of another precision, paired by seed."""
        theirs = {run.seed: run.steps for run in other.runs}
        if not (self.is_reached and other.is_reached) or theirs.keys() != {run.seed for run in self.runs}:
            return Interval(None)
        logs = [math.log(run.steps / theirs[run.seed]) for run in self.runs]
        return stats.mean_interval(logs).each(math.exp)

    def _over_seeds(self, values: list[float]) -> Interval:
        return stats.mean_interval(values) if self.is_reached else Interval(None)
