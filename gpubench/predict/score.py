"""Score the method on anybody's measurements; nothing is learned from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.models import TaskKind
from gpubench.predict.calibration import load_calibration
from gpubench.predict.conformal import level_rows, usual_errors, widened
from gpubench.predict.evaluate import Outcome, report
from gpubench.predict.fit import (
    LEVEL,
    RATIO,
    Aim,
    Fit,
    batch_spread,
    coefficients_of,
    deviations_of,
    fit_table,
    host_prior_s,
    predict_rows,
)
from gpubench.predict.pairs import gpu_bound, log_errors, pairs_of
from gpubench.predict.published import Table, fitted_on, read_csv
from gpubench.predict.roofline import Times, take
from gpubench.specs import load_specs


def score(path: Path) -> dict[str, Any]:
    """Score a CSV in the columns of the shipped measurements.

    Pairs are formed inside each (source, model, precision) of the file, of training and of inference apart.
    Each target GPU is predicted by the fit of the shipped rows without that GPU's, and without the harness of
    the file where the shipped rows have it.

    Raises:
        MisuseError: If the file cannot be read or holds nothing that can be scored.
    """
    reading = read_csv(path)
    skipped = sum(reading.skipped.values())
    inference = reading.table.inference
    return {
        **report(outcome_of(take(reading.table, ~inference), TaskKind.TRAIN)),
        "inference": report(outcome_of(take(reading.table, inference), TaskKind.INFER))
        if inference.any()
        else None,
        "rows": {"read": reading.rows, "used": len(reading.table), "skipped": skipped},
        "skipped": dict(reading.skipped),
        "assumed": list(reading.assumed),
        "columns_not_read": list(reading.unread),
    }


def outcome_of(table: Table, task: TaskKind) -> Outcome:
    """Predict every pair and level of rows of a task, without the published rows of its GPU and harness."""
    pairs = pairs_of(table)
    learned = load_calibration().of(task)
    n = len(pairs)
    error, width, bound = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, dtype=bool)
    level_error, level_width = np.full(len(table), np.nan), np.full(len(table), np.nan)
    assert learned.ratio.scale is not None  # only levels are without one
    scale = usual_errors(table, pairs, learned.ratio.scale) if n else np.empty(0)
    unsure = batch_spread(table)
    for harness, gpu in sorted(set(zip(table.harness, table.gpu_key, strict=True))):
        rows = (table.harness == harness) & (table.gpu_key == gpu)
        mine = rows[pairs.y]
        times = _times(table, _fitted(RATIO, task), harness, gpu)
        error[mine] = log_errors(table, pairs, times)[mine]
        bound[mine] = gpu_bound(pairs, times)[mine]
        spec = load_specs()[gpu]
        width[mine] = learned.ratio.half_width(spec) * scale[mine]
        times = _times(table, _fitted(LEVEL, task), harness, gpu)
        rows &= level_rows(table, times)
        level_error[rows] = (np.log(times.step_s) - table.log_seconds)[rows]
        level_width[rows] = widened(learned.level.half_width(spec), unsure[rows])
    return Outcome(
        table=table,
        pairs=pairs,
        log_error=error,
        half_width=width,
        bound=bound,
        level_error=level_error,
        level_half_width=level_width,
    )


@cache
def _fitted(aim: Aim, task: TaskKind) -> Fit:
    """The fit of the shipped rows for one aim and task."""
    table = fitted_on(task)
    return fit_table(table, np.ones(len(table), dtype=bool), aim=aim)


def _times(table: Table, fit: Fit, harness: str, gpu: str) -> Times:
    """The roofline of every row of the file, by the shipped rows without one harness and one GPU."""
    z = fit.without((fit.table.harness == harness) | (fit.table.gpu_key == gpu))
    own = deviations_of(fit.deviations(z), list(table.gpu_key))
    return predict_rows(table, coefficients_of(z), host_prior_s(table), own)
