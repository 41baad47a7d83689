"""Rebuild the calibration from the published rows, and from the user's own runs where they are given.

``python -m tools.calibrate -o gpubench/data/calibration.json`` makes the shipped one again.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from gpubench.arrays import Flags, Floats, Indices
from gpubench.cli.output import print_json, say
from gpubench.errors import GpuBenchError, MisuseError
from gpubench.files import table_json, write_file
from gpubench.folders import data_bytes
from gpubench.models import Case, Execution, GpuSpec, Run, Status, TaskKind, WorkloadProfile
from gpubench.predict.anchors import gpu_of, is_disturbed
from gpubench.predict.calibration import (
    CALIBRATION_VERSION,
    INPUTS,
    Calibration,
    Fitted,
    Learned,
    Scale,
    group_names,
    halved,
    hash_of,
    own_calibration_path,
)
from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS
from gpubench.predict.roofline import arithmetic_of, cast_bytes_of, stack, work_of
from gpubench.profile import load_profiles
from gpubench.record.store import read_runs
from gpubench.specs import load_specs
from gpubench.today import day_of
from tools.fit import (
    COMMON_SHARE,
    LEVEL,
    Fit,
    coefficients_of,
    factor_of,
    fit_scale,
    fit_scaling,
    fit_table,
    jobs,
    level_errors,
    level_weights,
    pairs_of,
    ratio_errors,
    stays,
    usual_errors,
    without_each,
)
from tools.published import PUBLISHED, Table, fitted_on, published_bytes, shipped, table_with

KINDS = {"known": "harness", "stranger": "stranger"}
"""What is held out to learn how wide the interval of a GPU must be, by whether its architecture has rows."""
FEWEST_CARDS = 3
"""Of another vendor's architecture that has an interval of its own."""
_DIGITS = 6  # enough for every prediction, few enough to be the same on every machine


def calibrate(own: Sequence[Run] = (), *, fitted: str) -> Calibration:
    """Fit everything that a prediction needs. The same inputs give the same calibration.

    Args:
        own: Runs that join the published rows as further cells; GPU runs alone count.
        fitted: Date to write into it.
    """
    mine = own_table(own) if own else None
    inputs = {name: hash_of(published_bytes(name)) for name in PUBLISHED}
    inputs |= {name: hash_of(data_bytes(name)) for name in INPUTS}
    if own:
        ordered = sorted(own, key=lambda run: run.run_id)
        inputs["own runs"] = hash_of(b"".join(msgspec.json.encode(run, order="sorted") for run in ordered))
    calibration = Calibration(
        schema_version=CALIBRATION_VERSION,
        fitted=fitted,
        inputs=inputs,
        train=_fitted(TaskKind.TRAIN, mine),
        infer=_fitted(TaskKind.INFER, mine),
        scaling=fit_scaling(jobs()),
        common_share=COMMON_SHARE,
    )
    return msgspec.convert(json.loads(msgspec.json.encode(calibration), parse_float=_rounded), Calibration)


def encode(calibration: Calibration) -> bytes:
    """Write a calibration: equal calibrations give equal bytes."""
    return table_json(calibration, order="sorted")


def write_calibration(results: Path | None, path: Path, day: date | None = None) -> dict[str, Any]:
    """Calibrate, with the runs of a results folder where one is named, and write it.

    Returns:
        What was learned from how much, and why published rows were not used.

    Raises:
        MisuseError: If there is no such folder, or the day is yet to come.
        StorageError: If it cannot be written.
    """
    calibration = calibrate(_own_runs(results), fitted=day_of(day, "--date").isoformat())
    write_file(path, encode(calibration), hint="choose another file with -o")
    return {
        "path": str(path),
        "fitted": calibration.fitted,
        "rows": calibration.train.rows,
        "inference_rows": calibration.infer.rows,
        "gpus": len(calibration.train.rows_by_gpu),
        "sources": calibration.train.sources,
        "skipped": dict(shipped((FITTED_VENDOR, *OTHER_VENDORS)).skipped_by_kind),
        "inputs": calibration.inputs,
    }


def _own_runs(results: Path | None) -> tuple[Run, ...]:
    if results is None:
        return ()
    if not results.is_dir():
        raise MisuseError(f"{results} is not a results folder: give the one that holds runs/")
    stored = read_runs(results)
    for problem in stored.problems:
        say(problem)
    return stored.runs


def _rounded(figure: str) -> float:
    # A float of a calibration at so many digits that all machines agree
    return float(f"{float(figure):.{_DIGITS - 1}e}")


def _fitted(task: TaskKind, own: Table | None) -> Fitted:
    """Both fits of one task, and what stands behind them.

    GPUs of other vendors are in the table and never in the fit.
    """
    table = fitted_on(task, (FITTED_VENDOR, *OTHER_VENDORS))
    if own is not None:  # its cells stay apart
        table = stack([table, replace(own, cell=own.cell + int(table.cell.max()) + 1)])
    seen = table.vendor == FITTED_VENDOR
    mine = table.inference == (task is TaskKind.INFER)
    scored, apart = mine & seen, mine & ~seen
    level = fit_table(table, seen, aim=LEVEL)
    return Fitted(
        rows=int(scored.sum()),
        sources=len(set(table.source[scored])),
        rows_by_gpu=dict(sorted(Counter(table.gpu_key[scored]).items())),
        apart_by_gpu=dict(sorted(Counter(table.gpu_key[apart]).items())),
        ratio=_by_ratio(fit_table(table, seen), level, seen),
        level=_by_level(level, seen),
    )


def _by_ratio(fit: Fit, level: Fit, seen: Flags) -> Learned:
    """What ratios teach, less what is the owned card's own; the scale is of the first kind.

    Other vendors' start at a GPU of the fitted one.
    """
    scale, factor = None, {}
    pairs = pairs_of(fit.table, seen)
    for name, hold_out in KINDS.items():
        error, bound = ratio_errors(fit.table, pairs, without_each(fit, hold_out))
        error -= stays(fit.table, pairs, level_errors(fit.table, without_each(level, hold_out)))
        scale = scale or fit_scale(fit.table, pairs, error, bound)
        scores = np.abs(error) / usual_errors(fit.table, pairs, scale)
        factor[name] = factor_of(scores[bound], pairs.weight[bound])
    pairs = pairs_of(fit.table)
    error, _ = ratio_errors(fit.table, pairs, without_each(fit, "vendor"))
    vendor = fit.table.vendor
    error[(vendor[pairs.x] != FITTED_VENDOR) | (vendor[pairs.y] == FITTED_VENDOR)] = np.nan
    return _learned(fit, scale, factor, *_others(fit, error, pairs.y, pairs.weight))


def _by_level(fit: Fit, seen: Flags) -> Learned:
    factor = {}
    for name, hold_out in KINDS.items():
        error = np.where(seen, level_errors(fit.table, without_each(fit, hold_out)), np.nan)
        scored = np.isfinite(error)
        factor[name] = factor_of(np.abs(error[scored]), level_weights(fit.table, error)[scored])
    error = np.where(seen, np.nan, level_errors(fit.table, without_each(fit, "vendor")))
    others = _others(fit, error, np.arange(len(error)), level_weights(fit.table, error))
    return _learned(fit, None, factor, *others)


def _others(
    fit: Fit, error: Floats, rows: Indices, weight: Floats
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Judge GPUs of other vendors by a fit that never saw one: deviations and half-widths (logs).

    An architecture's whole step is faster or slower than the fit says by the mean of its errors, shrunk as if
    each vote had an error of 30 % where architectures differ by 50 %. A line of cards (Instinct, Radeon) has
    the width of its errors before that, in half precision and else apart. An architecture of
    ``FEWEST_CARDS`` or more has its own: of the errors that are left where the other cards of the
    architecture say how much faster it is.
    """
    table, each = fit.table, {"error": error, "weight": weight}
    cards = {"card": table.gpu_key, "kind": table.architecture, "half": table.arithmetic.half}
    judged = pd.DataFrame(each | {name: column[rows] for name, column in cards.items()}).dropna()
    lines = [group_names(load_specs()[card])[-1] for card in judged.card]
    deviations: dict[str, list[float]] = {}
    widths: dict[str, float] = {}
    for line, mine in judged.groupby(lines):
        widths |= _widths(str(line), mine)
    for name, mine in judged.groupby("kind"):
        deviations[str(name)] = [_shift(mine), 0.0, _shift(mine)]
        if mine.card.nunique() >= FEWEST_CARDS:
            shifts = {card: _shift(mine[mine.card != card]) for card in set(mine.card)}
            left = mine.assign(error=mine.error - mine.card.map(shifts))
            widths |= _widths(group_names(load_specs()[mine.card.iloc[0]])[0], left)
    return deviations, widths


def _widths(name: str, judged: pd.DataFrame) -> dict[str, float]:
    # Half-width of a group by arithmetic: its matrix cores err otherwise than its vector units
    return {
        halved(name) if half else name: factor_of(mine.error.abs().to_numpy(), mine.weight.to_numpy())
        for half, mine in judged.groupby("half")
    }


def _shift(judged: pd.DataFrame) -> float:
    votes = float(judged.weight.sum())
    return float(np.average(judged.error, weights=judged.weight)) * votes / (votes + 0.3**2 / 0.5**2)


def _learned(
    fit: Fit,
    scale: Scale | None,
    factor: dict[str, float],
    others: dict[str, list[float]],
    other_vendors: dict[str, float],
) -> Learned:
    own, sources = set(fit.table.architecture[fit.rows]), set(fit.table.source[fit.rows])
    deviations = {name: [round(v, _DIGITS) for v in d] for name, d in fit.deviations().items() if name in own}
    return Learned(
        coefficients=coefficients_of(fit.z),
        host_s_per_operator={s: v for s, v in fit.host_s_per_operator.items() if s in sources},
        deviations=deviations | others,
        scale=scale,
        factor=factor,
        other_vendors=other_vendors,
    )


# --- the user's own runs, as further cells ---------------------------------------------------------------


def own_table(runs: Sequence[Run]) -> Table | None:
    """GPU training rows of standard workloads, run as a CUDA graph, as a table; None where there is none.

    A graph keeps the host out of the figure; an eager row would teach the fit about this host's Python.
    """
    found = [each for run in sorted(runs, key=lambda r: r.run_id) for each in _measured(run)]
    if not found:
        return None
    rows = pd.DataFrame(
        [(p.name, str(c.precision), spec.key, c.batch_size, 1 / rate) for spec, c, p, rate in found],
        columns=["model", "precision", "gpu_key", "batch", "seconds_per_sample"],
    ).assign(
        source="gpubench-graph",
        task=str(TaskKind.TRAIN),
        level_known=True,
        execution="graph",
        torch="",
        data_input="synthetic",
        doubt="",
        batch_low=lambda each: each.batch,
        batch_high=lambda each: each.batch,
    )
    work = stack([work_of(p.train, c.batch_size, cast_bytes_of(p, c.task)) for _, c, p, _ in found])
    arithmetic = stack([arithmetic_of(c.precision, c.memory_format, 1) for _, c, _, _ in found])
    return table_with(rows, work=work, work_low=work, work_high=work, arithmetic=arithmetic)


def _measured(run: Run) -> Iterator[tuple[GpuSpec, Case, WorkloadProfile, float]]:
    """The cases of a run that join, with what ran them and its samples per second."""
    spec = gpu_of(run.device)
    if spec is None:
        return
    for m in run.measurements:
        case, profile = m.case, load_profiles().get(m.case.workload)
        wanted = (
            m.status is Status.OK
            and case.task is TaskKind.TRAIN
            and case.execution is Execution.GRAPH
            and case.gpu_count == 1
            and not case.setup
            and not is_disturbed(m)
        )
        if wanted and profile is not None and profile.version == case.workload_version and m.samples_per_s:
            yield spec, case, profile, m.samples_per_s


if __name__ == "__main__":
    parser = ArgumentParser(description="Rebuild the calibration from the published measurements.")
    parser.add_argument("--with", dest="results", type=Path, help="results folder whose GPU runs are added")
    parser.add_argument("-o", "--output", type=Path, default=own_calibration_path(), help="where to write")
    parser.add_argument(
        "--date", type=date.fromisoformat, help="date to write into it, YYYY-MM-DD; today by default"
    )
    asked = parser.parse_args()
    try:
        print_json(write_calibration(asked.results, asked.output, asked.date))
    except GpuBenchError as error:
        parser.error(str(error))
