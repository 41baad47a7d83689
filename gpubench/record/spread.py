"""How the rounds of a measurement spread, and what was paid once: derived from the record, never stored."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from gpubench import stats
from gpubench.executions import Execution
from gpubench.models import Launch, Measurement

SPREAD = (
    "rounds",
    "outliers",
    "step_time_median_s",
    "step_time_mad_s",
    "step_time_p5_s",
    "step_time_p95_s",
    "launch_step_time_min_s",
    "launch_step_time_max_s",
)
FENCE = 1.5
"""A round further outside the quartiles than this many interquartile ranges is an outlier (Tukey 1977)."""
COLD_COSTS = (
    "import",
    "context",
    "build",
    "first_step",
    *(execution.facts.preparation for execution in Execution if execution.facts.preparation),
)
"""In the order in which they are paid."""


def spread(measurement: Measurement) -> dict[str, float | int | None]:
    """Return seconds per step over the accepted rounds and over the launches; None where there are none.

    Outliers are counted within each launch, since launches may differ as wholes; they are never removed.
    """
    launches = [seconds for launch in measurement.launches if (seconds := step_times_s(launch))]
    steps = [value for seconds in launches for value in seconds]
    means = [
        sum(r.wall_s for r in x.accepted) / sum(r.steps for r in x.accepted)
        for x in measurement.launches
        if x.accepted
    ]
    values: dict[str, float | int | None] = dict.fromkeys(SPREAD)
    values["rounds"] = len(steps)
    if not steps:
        return values
    return values | {
        "outliers": sum(outliers(seconds) for seconds in launches),
        "step_time_median_s": median(steps),
        "step_time_mad_s": stats.median_absolute_deviation(steps),
        "step_time_p5_s": stats.percentile(steps, 0.05),
        "step_time_p95_s": stats.percentile(steps, 0.95),
        "launch_step_time_min_s": min(means),
        "launch_step_time_max_s": max(means),
    }


def outliers(values: list[float]) -> int:
    """Count the values beyond Tukey's fences.

    >>> outliers([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 5.0])
    1
    """
    low, high = stats.percentile(values, 0.25), stats.percentile(values, 0.75)
    reach = FENCE * (high - low)
    return sum(not low - reach <= value <= high + reach for value in values)


def cold_costs(measurements: Iterable[Measurement]) -> dict[str, tuple[float, float]]:
    """Return the least and the most of each cost that is paid once, in the order of paying [s]."""
    seen: dict[str, list[float]] = {}
    for measurement in measurements:
        for launch in measurement.launches:
            for name, seconds in launch.cold_s.items():
                if seconds is not None:
                    seen.setdefault(name, []).append(seconds)
    return {name: (min(seen[name]), max(seen[name])) for name in COLD_COSTS if name in seen}


def step_times_s(launch: Launch) -> list[float]:
    """Return the mean seconds per step of every accepted round."""
    return [r.wall_s / r.steps for r in launch.accepted]
