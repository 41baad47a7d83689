"""The same workload on a CPU and on a GPU, side by side: how much faster, and is a GPU needed at all?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpubench.compare import Ratio, ratio
from gpubench.models import Measurement, Run, Status, TaskKind
from gpubench.units import Seconds

SMALL_JOB_SAMPLES = 60_000
"""One pass over a small data set; MNIST has so many images."""
SMALL_JOB_LIMIT_S: Seconds = 60.0
"""A pass that a CPU ends within this time is no reason to rent a GPU."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on one CPU and, where it was measured there too, on one GPU: the best case of each.

    Attributes:
        cpu: The fastest measurement on a CPU; its threads are in ``cpu_threads``.
        gpu: The fastest measurement on a GPU; None where there is none.
        speed_up: Throughput of the GPU over that of the CPU; batches and precisions may differ.
        small_job_s: Time of ``SMALL_JOB_SAMPLES`` samples on the CPU [s].
        gpu_needed: Whether that takes longer than ``SMALL_JOB_LIMIT_S``.
    """

    workload: str
    task: TaskKind
    cpu_name: str
    cpu: Measurement
    gpu_name: str | None
    gpu: Measurement | None
    speed_up: Ratio | None
    small_job_s: Seconds
    gpu_needed: bool

    @property
    def equal_batch(self) -> bool | None:
        """Whether both ran the same batch; None without a GPU."""
        return None if self.gpu is None else self.gpu.case.batch_size == self.cpu.case.batch_size


def beside_cpu(runs: Iterable[Run], *, limit_s: Seconds = SMALL_JOB_LIMIT_S) -> tuple[Beside, ...]:
    """Put every workload that was measured on a CPU beside its best measurement on a GPU.

    Args:
        runs: Runs on any device; only usable rows count.
        limit_s: Longest time on a CPU of a small job for which no GPU is needed [s].
    """
    best: dict[tuple[str, int, TaskKind, bool], tuple[Run, Measurement]] = {}
    for run, found in _usable(runs):
        key = (found.case.workload, found.case.workload_version, found.case.task, _is_cpu(run))
        if key not in best or _speed(found) > _speed(best[key][1]):
            best[key] = (run, found)
    pairs = [
        _beside(here, best.get((name, version, task, False)), limit_s)
        for (name, version, task, on_cpu), here in best.items()
        if on_cpu
    ]
    return tuple(sorted(pairs, key=lambda b: (b.workload, b.task)))


def _beside(here: tuple[Run, Measurement], there: tuple[Run, Measurement] | None, limit_s: Seconds) -> Beside:
    run, cpu = here
    small_job_s = SMALL_JOB_SAMPLES / _speed(cpu)
    return Beside(
        workload=cpu.case.workload,
        task=cpu.case.task,
        cpu_name=run.device.name or "CPU",
        cpu=cpu,
        gpu_name=None if there is None else there[0].device.name or there[0].device.backend,
        gpu=None if there is None else there[1],
        speed_up=None if there is None else ratio(there[1], cpu),
        small_job_s=small_job_s,
        gpu_needed=small_job_s > limit_s,
    )


def _usable(runs: Iterable[Run]) -> Sequence[tuple[Run, Measurement]]:
    """Rows with a figure; of one GPU, because a CPU is compared with one."""
    return [
        (run, m)
        for run in runs
        for m in run.measurements
        if m.status is Status.OK and m.samples_per_s and m.case.gpu_count == 1
    ]


def _is_cpu(run: Run) -> bool:
    return run.device.backend == "cpu"


def _speed(measurement: Measurement) -> float:
    return measurement.samples_per_s or 0.0
