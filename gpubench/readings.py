"""Reads two tables of independent measurements.

``data/h200_readings.json`` has one card's readings, taken by loops that share no code with gpubench; they
anchor predictions of other cards, but cannot check them. ``data/mlperf.csv`` has the times of published
MLPerf Training runs; each submitter tuned the software for its own machine. The calibration uses neither
table; docs/workloads.md lists the MLPerf data that it does use.
"""

from __future__ import annotations

from functools import cache

import msgspec

from gpubench.folders import data_json, data_table
from gpubench.models import Execution, Precision

# --- hand-written loops on one H200 -----------------------------------------------------------------------


class StepReading(msgspec.Struct, frozen=True, kw_only=True, rename={"batch_size": "batch"}):
    """A training step of one workload at one batch and precision: its wall time by execution, in ms."""

    workload: str
    batch_size: int
    precision: Precision
    eager_ms: float
    graph_ms: float

    @property
    def step_s(self) -> dict[Execution, float]:
        """Wall time of the step by execution [s]."""
        return {Execution.EAGER: self.eager_ms * 1e-3, Execution.GRAPH: self.graph_ms * 1e-3}


class CardReadings(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of one card; the file has more, such as its micro-benchmarks.

    Attributes:
        not_gpubench_models: Maps a workload's name to the different model that was measured under that name.
    """

    card: str
    gpu_key: str
    date: str
    not_gpubench_models: dict[str, str]
    cases: tuple[StepReading, ...]

    @property
    def steps(self) -> tuple[StepReading, ...]:
        """The steps of the standard workloads."""
        return tuple(each for each in self.cases if each.workload not in self.not_gpubench_models)


@cache
def h200_readings() -> CardReadings:
    """Return the shipped readings."""
    return data_json("h200_readings.json", CardReadings)


# --- published runs of MLPerf Training --------------------------------------------------------------------

MLPERF_LICENSE = "MLCommons, Apache-2.0"


class PublishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One submission: a benchmark trained to its quality target on one system of at most 16 accelerators.

    Attributes:
        round: Round of MLPerf Training, such as ``v5.0``.
        date: Month in which the round was published.
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
        MisuseError: If $GPUBENCH_DATA names a folder without the table, or with a broken one.
    """
    return tuple(data_table("mlperf.csv", PublishedRun))


def rounds(runs: tuple[PublishedRun, ...]) -> tuple[tuple[str, str], ...]:
    """Return the rounds of some runs, each with its month of publication, oldest first."""
    return tuple(sorted({(run.round, run.date) for run in runs}, key=lambda pair: (pair[1], pair[0])))


def newest_and_fastest(runs: tuple[PublishedRun, ...]) -> tuple[PublishedRun, ...]:
    """Return the fastest run of the newest round for each benchmark, GPU model and number of GPUs."""
    best: dict[tuple[str, str, int], PublishedRun] = {}
    for run in sorted(runs, key=lambda run: (run.date, run.round, -run.minutes)):
        best[run.benchmark, run.gpu_key, run.gpus] = run
    return tuple(sorted(best.values(), key=lambda run: (run.benchmark, run.minutes)))
