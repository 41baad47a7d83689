"""The part of torch.profiler that gpubench uses: the run time of each kernel, and annotations that span them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, Self

from strict_cuda.machine import Machine


def profiler(machine: Machine) -> type:
    """Make the replacement for torch.profiler.profile."""

    class profile:  # noqa: N801 - as torch names it
        """Collects the kernels that run on the device while it is open. Source: torch/profiler/profiler.py,
        class profile.
        """

        def __init__(self, activities: Any = None) -> None:
            self._rows: list[Any] = []

        def __enter__(self) -> Self:
            machine.spend(1.0)  # the real profiler is slow to start
            machine.profile = []
            return self

        def __exit__(self, *_: object) -> None:
            """Add up kernels by name, under an annotation that spans them all.

            Source: torch/profiler/profiler.py, which records a ProfilerStep around each step.
            """
            total: Counter[str] = Counter()
            for name, run_ns in machine.profile or ():
                total[name] += run_ns
            machine.profile = None
            rows = [_row(name, run_ns * 1e-3) for name, run_ns in total.items()]
            self._rows = [*rows, _row("ProfilerStep*", sum(total.values()) * 1e-3, annotation=True)]

        def key_averages(self) -> list[Any]:
            """Source: torch/profiler/profiler.py, key_averages."""
            return self._rows

    return profile


def _row(name: str, microseconds: float, *, annotation: bool = False) -> Any:
    """Source: torch/autograd/profiler_util.py, FunctionEventAvg.self_device_time_total [µs], the name since 2.4."""
    return SimpleNamespace(key=name, self_device_time_total=microseconds, is_user_annotation=annotation)
