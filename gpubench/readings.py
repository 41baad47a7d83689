"""Reads two tables of independent measurements, which are shown next to those of gpubench.

``data/h200_readings.json`` has readings of one card by loops that share no code with gpubench; they also
anchor predictions, but do not judge other cards. ``data/mlperf.csv`` has the times of published MLPerf
Training runs, with other software that the submitter tuned for its machine. No time in that table is used in
the fit; docs/workloads.md says which MLPerf data is.
"""

from __future__ import annotations

from functools import cache

import msgspec

from gpubench.folders import data_bytes, data_rows
from gpubench.models import Execution, Precision, TaskKind
from gpubench.units import GIB

# --- loops by hand on one H200 ----------------------------------------------------------------------------


class StepReading(msgspec.Struct, frozen=True, kw_only=True):
    """One workload at one batch and precision; None for a value that was not measured.

    Attributes:
        ours: Whether the model is that of the standard workload, or only has the same name.
        step_s: Wall time of a training step by execution [s].
        infer_s: Wall time of a forward pass at this batch [s].
        infer_one_s: The same at batch 1 [s].
        joules_per_step: Energy of a training step replayed as a graph, from the energy counter [J].
        most_peak_bytes: Upper bound on peak memory, since it is that of the process [B].
    """

    workload: str
    ours: bool
    batch_size: int
    precision: Precision
    step_s: dict[Execution, float]
    infer_s: float | None
    infer_one_s: float | None
    joules_per_step: float
    most_peak_bytes: float


class _Card(msgspec.Struct, frozen=True, kw_only=True):
    card: str
    gpu_key: str
    torch: str
    cuda: str
    driver: str
    date: str
    source: str
    settings: str


class CardReadings(_Card, frozen=True, kw_only=True):
    """The readings of one card, and their software.

    Attributes:
        micro: Micro-benchmarks by name, precision and size, in FLOP/s, B/s or s.
    """

    steps: tuple[StepReading, ...]
    micro: dict[tuple[str, str | None, str], float]

    def step_time_s(
        self, workload: str, batch_size: int, precision: Precision, execution: Execution, task: TaskKind
    ) -> float | None:
        """Return the time of a step of a standard workload [s]; None if that step was not measured."""
        if task is not TaskKind.TRAIN:
            return None
        for step in self.steps:
            if (step.workload, step.batch_size, step.precision) == (workload, batch_size, precision):
                return step.step_s.get(execution) if step.ours else None
        return None


class _Case(msgspec.Struct, forbid_unknown_fields=True):
    workload: str
    batch: int
    precision: Precision
    eager_ms: float
    graph_ms: float
    peak_gib: float
    j_per_step: float
    infer_ms: float | None = None
    infer1_ms: float | None = None


class _File(_Card, frozen=True, kw_only=True, forbid_unknown_fields=True):
    notes: list[str]
    not_gpubench_models: dict[str, str]
    micro: dict[str, float]
    cases: list[_Case]


@cache
def h200_readings() -> CardReadings:
    """Return the shipped readings in SI units."""
    stored = msgspec.json.decode(data_bytes("h200_readings.json"), type=_File)
    return CardReadings(
        **{name: getattr(stored, name) for name in _Card.__struct_fields__},
        steps=tuple(
            StepReading(
                workload=case.workload,
                ours=case.workload not in stored.not_gpubench_models,
                batch_size=case.batch,
                precision=case.precision,
                step_s={Execution.EAGER: case.eager_ms * 1e-3, Execution.GRAPH: case.graph_ms * 1e-3},
                infer_s=None if case.infer_ms is None else case.infer_ms * 1e-3,
                infer_one_s=None if case.infer1_ms is None else case.infer1_ms * 1e-3,
                joules_per_step=case.j_per_step,
                most_peak_bytes=case.peak_gib * GIB,
            )
            for case in stored.cases
        ),
        micro=dict(_micro(name, value) for name, value in stored.micro.items()),
    )


# Name and size of a micro-benchmark, and its unit in SI units; names of matrix products have their own.
_MICRO = {
    "d2d_GBps_rw": ("device copy", "2048 MiB", 1e9),
    "h2d_pinTrue": ("host to device pinned", "256 MiB", 1e9),
    "h2d_pinFalse": ("host to device pageable", "256 MiB", 1e9),
    "d2h_pinTrue": ("device to host pinned", "256 MiB", 1e9),
    "d2h_pinFalse": ("device to host pageable", "256 MiB", 1e9),
    "launch_us": ("launch device", "1 launch", 1e-6),
    "launch_wall_us": ("launch wall", "1000 launches", 1e-6),
}


def _micro(name: str, value: float) -> tuple[tuple[str, str | None, str], float]:
    if name.startswith("gemm_"):
        _, precision, size = name.split("_")
        return ("gemm", precision, size), value * 1e12
    probe, size, unit = _MICRO[name]
    return (probe, None, size), value * unit


# --- published runs of MLPerf Training --------------------------------------------------------------------

MLPERF_LICENSE = "MLCommons, Apache-2.0"


class PublishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One submission: a benchmark trained to its stated quality on one system of at most 16 accelerators.

    Attributes:
        round: Round of MLPerf Training, such as ``v5.0``.
        date: Month of publication of the round.
        minutes: Median time to train of the runs that reached the quality; the official score is a different
            average of them [min].
        runs: Number of those runs.
        source: Repository of the results and its commit.
    """

    benchmark: str
    round: str
    date: str
    gpu_key: str
    gpus: int
    minutes: float
    runs: int
    submitter: str
    system: str
    source: str


@cache
def load_mlperf() -> tuple[PublishedRun, ...]:
    """Return every published run, sorted by benchmark, round, GPU and time.

    Raises:
        MisuseError: If $GPUBENCH_DATA names a folder without the table.
    """
    return tuple(msgspec.convert(row, PublishedRun, strict=False) for row in data_rows("mlperf.csv"))


def rounds(runs: tuple[PublishedRun, ...]) -> tuple[tuple[str, str], ...]:
    """Return the rounds of runs, each with its month of publication, oldest first."""
    return tuple(sorted({(run.round, run.date) for run in runs}, key=lambda pair: pair[::-1]))


def newest_and_fastest(runs: tuple[PublishedRun, ...]) -> tuple[PublishedRun, ...]:
    """Return the fastest run of the newest round for each benchmark, GPU model and number of GPUs."""
    best: dict[tuple[str, str, int], PublishedRun] = {}
    for run in sorted(runs, key=lambda run: (run.date, run.round, -run.minutes)):
        best[run.benchmark, run.gpu_key, run.gpus] = run
    return tuple(sorted(best.values(), key=lambda run: (run.benchmark, run.minutes)))
