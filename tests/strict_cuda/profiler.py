"""torch.profiler as far as it is read: the run time of each kernel, and annotations that span them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, Self

from strict_cuda.machine import Machine


def profiler(machine: Machine) -> type:
    """Make the class that stands for torch.profiler.profile.

    Source: torch/autograd/profiler_util.py, FunctionEventAvg.self_device_time_total [µs]: from 2.4 on under
    this name.
    """

    class profile:  # noqa: N801 - as torch names it
        """Collects what runs on the device while it is open."""

        def __init__(self, activities: Any = None) -> None:
            self._rows: list[Any] = []

        def __enter__(self) -> Self:
            machine.spend(1.0)  # it is slow to start
            machine.profile = []
            return self

        def __exit__(self, *_: object) -> None:
            total: Counter[str] = Counter()
            for name, run_ns in machine.profile or ():
                total[name] += run_ns
            machine.profile = None
            rows = [_row(name, run_ns * 1e-3) for name, run_ns in total.items()]
            self._rows = [*rows, _row("ProfilerStep*", sum(total.values()) * 1e-3, annotation=True)]

        def key_averages(self) -> list[Any]:
            return self._rows

    return profile


def _row(name: str, microseconds: float, *, annotation: bool = False) -> Any:
    return SimpleNamespace(key=name, self_device_time_total=microseconds, is_user_annotation=annotation)
