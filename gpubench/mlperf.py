"""The one reader of data/mlperf.csv: how long published MLPerf Training runs took.

Other software, tuned by its submitter for its own machine: shown beside an answer. No time of this table is
fitted; what of MLPerf is, ``sections.mlperf.part_in_predictions`` says.
"""

from __future__ import annotations

from functools import cache

import msgspec

from gpubench.shipped import data_rows

LICENSE = "MLCommons, Apache-2.0"


class PublishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One submission: a benchmark trained to its stated quality on one system of at most 16 accelerators.

    Attributes:
        round: Of MLPerf Training: ``v5.0``.
        date: Month in which the round was published.
        minutes: Median time to train of the runs that reached the quality; the official score is another
            mean of them [min].
        runs: How many runs that were.
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
    """Return every published run, by benchmark, round, GPU and time.

    Raises:
        MisuseError: If $GPUBENCH_DATA names a folder without the table.
    """
    return tuple(msgspec.convert(row, PublishedRun, strict=False) for row in data_rows("mlperf.csv"))


def rounds(runs: tuple[PublishedRun, ...]) -> tuple[tuple[str, str], ...]:
    """Return the rounds that runs are of, each with the month of its publication, the oldest first."""
    return tuple(sorted({(run.round, run.date) for run in runs}, key=lambda pair: pair[::-1]))


def newest_and_fastest(runs: tuple[PublishedRun, ...]) -> tuple[PublishedRun, ...]:
    """Return for each benchmark and number of GPUs of a kind the fastest run of the newest round."""
    best: dict[tuple[str, str, int], PublishedRun] = {}
    for run in sorted(runs, key=lambda run: (run.date, run.round, -run.minutes)):
        best[run.benchmark, run.gpu_key, run.gpus] = run
    return tuple(sorted(best.values(), key=lambda run: (run.benchmark, run.minutes)))
