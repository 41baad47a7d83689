"""How much time a measurement may take, and how sure it must be: the three budgets of the contract."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.units import Seconds

BudgetName = Literal["quick", "default", "publish"]

LEAST_ROUNDS = 20
LEAST_ROUNDS_SLOW = 10
SLOW_STEP_S = 1.0
"""Steps longer than this need only ``LEAST_ROUNDS_SLOW`` rounds."""
LEAST_ESS = 10.0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit of one measurement.

    Attributes:
        launches: Fresh processes that each measure every case.
        target: Half-width of the 95 % interval at which the timed part stops, relative.
        timed_s: Longest timed part of a case [s].
        warmup_steps, warmup_least_s, warmup_most_s: Least steps, least and most time of the warm-up.
        round_s: A timed round lasts at least this long [s].
        window_s: A warm-up window lasts at least this long [s].
        agreement: The medians of four windows agree within this, relative.
        judge_temperature: Whether a temperature slope keeps the warm-up going.
        curve_steps: First steps whose losses are kept one by one, to compare precisions.
        micro_s: Time of the repetitions of one micro-benchmark [s].
    """

    name: BudgetName
    launches: int
    target: float
    timed_s: Seconds
    warmup_steps: int
    warmup_least_s: Seconds
    warmup_most_s: Seconds
    round_s: Seconds
    window_s: Seconds
    agreement: float
    judge_temperature: bool
    curve_steps: int
    micro_s: Seconds


QUICK = Budget(
    name="quick",
    launches=1,
    target=0.02,
    timed_s=5.0,
    warmup_steps=10,
    warmup_least_s=2.0,
    warmup_most_s=8.0,
    round_s=0.1,
    window_s=0.4,
    agreement=0.02,
    judge_temperature=False,
    curve_steps=8,
    micro_s=0.2,
)
DEFAULT = Budget(
    name="default",
    launches=3,
    target=0.005,
    timed_s=90.0,
    warmup_steps=50,
    warmup_least_s=10.0,
    warmup_most_s=120.0,
    round_s=0.5,
    window_s=2.0,
    agreement=0.005,
    judge_temperature=True,
    curve_steps=32,
    micro_s=0.5,
)
PUBLISH = msgspec.structs.replace(DEFAULT, name="publish", launches=5)

CPU_WARMUP_STEPS = 5
CPU_CURVE_STEPS = 4
"""A full VGG16 step takes half a second on two cores: a CPU gets fewer steps that are not timed."""


def budget_of(name: BudgetName, *, on_cpu: bool) -> Budget:
    """Return a budget by name, with the fewer warm-up steps of a CPU under ``--quick``."""
    budget = {"quick": QUICK, "default": DEFAULT, "publish": PUBLISH}[name]
    if on_cpu and name == "quick":
        return msgspec.structs.replace(budget, warmup_steps=CPU_WARMUP_STEPS, curve_steps=CPU_CURVE_STEPS)
    return budget
