"""What somebody asks to be measured: one field an option of ``gpubench run``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from gpubench.measure.budget import BudgetName
from gpubench.models import TaskKind
from gpubench.units import Seconds
from gpubench.workload import is_own

MicroWish = Literal["also", "only", "none"]
CLASSIC = ("cnn", "lstm", "vgg16")


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request in the words of its user; ``plan`` makes cases of it.

    Attributes:
        workloads: Names, ``all``, or models of the user's own.
        precisions: Empty means those the device has; ``amp`` means its best one.
        executions: Empty means eager and, on a GPU, graph; ``publish`` adds compile.
        batch_size: None means the workload's main batch (a small one on a CPU).
        gpus: GPUs of one data-parallel job, measured beside one of them alone.
        budget: None means ``default`` on a GPU and ``quick`` on a CPU.
        time_limit_s: For the whole run, shared out over the cases left.
        results: Results folder; None means the usual one.
        allow_throttled: Whether rows of a throttled device may be ranked.
        micro: Whether micro-benchmarks are run too, alone, or not at all.
        resume: A run to go on with; its cases, budget and seed are taken from it.
    """

    workloads: tuple[str, ...] = CLASSIC
    precisions: tuple[str, ...] = ()
    executions: tuple[str, ...] = ()
    task: TaskKind = TaskKind.TRAIN
    batch_size: int | Literal["max"] | None = None
    device: str = "auto"
    gpus: int = 1
    budget: BudgetName | None = None
    time_limit_s: Seconds | None = None
    seed: int = 0
    results: Path | None = None
    allow_shared: bool = False
    allow_throttled: bool = False
    resume: str | None = None
    micro: MicroWish = "also"

    @property
    def own(self) -> tuple[str, ...]:
        """The models of the user's own among the workloads."""
        return tuple(reference for reference in self.workloads if is_own(reference))
