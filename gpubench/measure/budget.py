"""The three measurement budgets: how long a measurement may take, and how precise it must be."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.units import Seconds

BudgetName = Literal["quick", "default", "publish"]

LEAST_ROUNDS = 10
"""An estimate needs at least this many rounds."""
SPARE_ROUNDS = 2
"""Rounds to plan in addition to ``LEAST_ROUNDS``: rounds vary in length, so the time for ten may fit only
nine."""
SLOW_STEPS_S = 30.0
"""A case with slow steps may exceed the budget: its warm-up and timed part may each take this long [s]."""
MICRO_MOST_S = 15.0
"""No micro-benchmark starts once a run's micro-benchmarks have taken this long [s]."""
MICRO_WARM_S = 0.2
"""A micro-benchmark is repeated for this long before it is timed [s]."""
LEAST_REPETITIONS = 5
"""A micro-benchmark is repeated at least this many times, however long it takes."""
MOST_REPETITION_S = 0.5
"""A micro-benchmark that would take longer than this at the rate of its previous, smaller size is skipped
[s]: the smaller size has already shown what the device can do."""
CURVE_SHARE = 0.4
"""Steps with individually recorded losses take at most this share of the longest warm-up."""
REFERENCE_SAMPLES = 4
"""Samples computed on the CPU as a reference: enough to expose a wrong result, few enough to be quick with
VGG16."""
# Minimum and maximum number of profiled steps. The profiler records every kernel, so three long steps measure
# the GPU's busy time just as accurately as ten.
PROFILED_STEPS = (3, 10)
PROFILED_S = 0.1
"""The profiled steps take about this long, if their number allows it [s]."""
LATENCY_PASSES = 300
"""Number of single passes that are timed: three of them lie beyond the 99th percentile."""
# No further pass starts after this time [s].
LATENCY_MOST_S = 10.0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit of one measurement.

    Attributes:
        launches: Number of fresh processes that each measure every case.
        target: Relative half-width of the 95 % interval at which the timed part stops.
        timed_s: Longest timed part of a case [s].
        timed_least_s: Shortest timed part of a case [s], even if the interval is narrow enough earlier.
        warmup_steps, warmup_least_s, warmup_most_s: Minimum steps, minimum and maximum time of the warm-up.
        round_s: Shortest timed round [s].
        window_s: Shortest warm-up window [s].
        agreement: Relative difference within which the medians of four windows must agree.
        judge_temperature: Whether a rising temperature prolongs the warm-up.
        curve_steps: Number of first steps with individually recorded losses, to compare precisions.
        micro_s: Longest timed part of a micro-benchmark [s], in wall time.
        in_haste: Whether to skip measurements that only explain a figure: matrix products at unusual
            precisions, and the device, issue and kernel times of non-eager cases.
    """

    name: BudgetName
    launches: int
    target: float
    timed_s: Seconds
    timed_least_s: Seconds
    warmup_steps: int
    warmup_least_s: Seconds
    warmup_most_s: Seconds
    round_s: Seconds
    window_s: Seconds
    agreement: float
    judge_temperature: bool
    curve_steps: int
    micro_s: Seconds
    in_haste: bool = False


QUICK = Budget(
    name="quick",
    launches=1,
    target=0.02,
    timed_s=5.0,
    timed_least_s=1.0,
    warmup_steps=10,
    warmup_least_s=1.2,
    warmup_most_s=8.0,
    round_s=0.1,
    window_s=0.3,
    agreement=0.02,
    judge_temperature=False,
    curve_steps=8,
    micro_s=0.2,
    in_haste=True,
)
DEFAULT = msgspec.structs.replace(
    QUICK,
    name="default",
    launches=3,
    target=0.015,
    timed_s=4.0,
    timed_least_s=2.0,
    in_haste=False,
)
"""Takes four minutes on a data-center card. Any further time would be better spent on more launches than on
longer timed parts."""
PUBLISH = Budget(
    name="publish",
    launches=8,
    target=0.005,
    timed_s=30.0,
    timed_least_s=30.0,
    warmup_steps=50,
    warmup_least_s=10.0,
    warmup_most_s=180.0,
    round_s=0.5,
    window_s=2.0,
    agreement=0.005,
    judge_temperature=True,
    curve_steps=32,
    micro_s=0.5,
)
"""Levels and repetitions follow Kalibera and Jones 2013 (Rigorous Benchmarking in Reasonable Time).

Suppose a process takes 20 s to start, 0.5 s rounds vary by 1 %, and processes vary by 0.3 %. Then the best
number of rounds per process is sqrt(20 / 0.5) x 1 / 0.3 = 21, which take about 10 s. Half a minute also shows
slow clock changes. Any further time is better spent on more processes: eight of them give a half-width of
0.3 % by Student's t.
"""
BUDGETS: dict[str, Budget] = {budget.name: budget for budget in (QUICK, DEFAULT, PUBLISH)}

# A full VGG16 step takes half a second on two cores, so a CPU gets fewer untimed steps. Step times on a CPU
# settle late, so the warm-up and its windows are longer.
CPU_QUICK = msgspec.structs.replace(
    QUICK,
    warmup_steps=5,
    warmup_least_s=2.0,
    window_s=0.4,
    curve_steps=4,
    in_haste=False,
)


def budget_of(name: str | None, *, on_cpu: bool) -> Budget:
    """Return the budget with this name, or the device's default; a CPU's ``quick`` skips nothing."""
    name = name or ("quick" if on_cpu else "default")
    return CPU_QUICK if on_cpu and name == "quick" else BUDGETS[name]
