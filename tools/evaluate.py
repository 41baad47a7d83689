"""How good are the predictions? Each target is predicted by a fit that never saw what is held out with it.

"Out" means out of the fit, of the deviations and of the votes that set its interval. docs/prediction.md has
the protocol; what the outcomes are worth ``scores`` says. Anybody's measurements are scored too, and teach
nothing. ``python -m tools.evaluate --hold-out harness`` prints one hold-out.
"""

from __future__ import annotations

from argparse import ArgumentParser
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.arrays import Flags, Floats
from gpubench.cli.output import answer
from gpubench.models import TaskKind
from gpubench.predict.calibration import load_calibration
from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS
from gpubench.predict.roofline import Times, deviations_of, take
from gpubench.sections.prediction import scored
from gpubench.specs import load_specs
from tools.conformal import (
    HOLD_OUTS,
    Pairs,
    errors_without,
    factor_of,
    fit_scale,
    gpu_bound,
    level_errors_without,
    level_rows,
    level_weights,
    log_errors,
    of_task,
    pairs_of,
    usual_errors,
    widened,
)
from tools.fit import (
    LEVEL,
    RATIO,
    Aim,
    Fit,
    batch_spread,
    coefficients_of,
    fit_table,
    host_prior_s,
    predict_rows,
)
from tools.published import fitted_on, read_csv
from tools.scaling_fit import scaling_figures
from tools.scores import Outcome, report
from tools.table import Table


def evaluate(table: Table, hold_out: str, task: TaskKind = TaskKind.TRAIN) -> Outcome:
    """Predict every pair and every level of a task without what is held out with its target.

    Args:
        table: Published rows, see ``scored_table``.
        hold_out: One of ``HOLD_OUTS``.
        task: What is scored; the fit and the intervals learn from all of the table.
    """
    seen = table.vendor == FITTED_VENDOR
    pairs = pairs_of(table)
    log_error, bound = errors_without(fit_table(table, seen), pairs, hold_out)
    level_error = level_errors_without(fit_table(table, seen, aim=LEVEL), hold_out)
    scored = np.isfinite(log_error)
    pairs, log_error, bound = take(pairs, scored), log_error[scored], bound[scored]
    half_width = _half_widths(table, pairs, log_error, bound)
    level_half_width = _level_half_widths(table, level_error)
    rows = of_task(table, task)
    mine = rows[pairs.y]
    return Outcome(
        table=table,
        pairs=take(pairs, mine),
        log_error=log_error[mine],
        half_width=half_width[mine],
        bound=bound[mine],
        level_error=np.where(rows, level_error, np.nan),
        level_half_width=level_half_width,
    )


def scored_table(hold_out: str, task: TaskKind = TaskKind.TRAIN) -> Table:
    """The shipped rows that a hold-out is scored on: other vendors' too where they are what is held out."""
    return fitted_on(task, (FITTED_VENDOR, *(OTHER_VENDORS if hold_out == "vendor" else ())))


def _half_widths(table: Table, pairs: Pairs, log_error: Floats, bound: Flags) -> Floats:
    """Half-widths whose scale and factor come from pairs of other harnesses and other architectures alone."""
    harness, architecture = table.harness[pairs.y], table.architecture[pairs.y]
    result = np.full(len(pairs), np.nan)
    for h, a in sorted(set(zip(harness, architecture, strict=True))):
        mine = (harness == h) & (architecture == a)
        others = bound & (harness != h) & (architecture != a)
        if not others.any():
            continue
        scale = fit_scale(table, pairs, log_error, others)
        usual = usual_errors(table, pairs, scale)
        scores = np.abs(log_error[others]) / usual[others]
        result[mine] = factor_of(scores, pairs.weight[others]) * usual[mine]
    return result


def _level_half_widths(table: Table, error: Floats) -> Floats:
    """The same of levels: from other harnesses and other models."""
    scored = np.isfinite(error)
    weight = level_weights(table, error)
    result = np.full(len(table), np.nan)
    for h, m in sorted(set(zip(table.harness[scored], table.base_model[scored], strict=True))):
        mine = (table.harness == h) & (table.base_model == m)
        others = scored & (table.harness != h) & (table.base_model != m)
        result[mine] = factor_of(np.abs(error[others]), weight[others])
    return widened(result, batch_spread(table))


def score(path: Path) -> dict[str, Any]:
    """Score a CSV in the columns of the shipped measurements.

    Pairs are formed inside each (source, model, precision) of the file, of training and of inference apart.
    Each target GPU is predicted by the fit of the shipped rows without that GPU's, and without the harness of
    the file where the shipped rows have it.

    Raises:
        MisuseError: If the file cannot be read or holds nothing that can be scored.
    """
    reading = read_csv(path)
    inference = reading.table.inference
    return {
        **report(outcome_of(take(reading.table, ~inference), TaskKind.TRAIN)),
        "inference": report(outcome_of(take(reading.table, inference), TaskKind.INFER))
        if inference.any()
        else None,
        "rows": {"read": reading.rows, "used": len(reading.table), "skipped": sum(reading.skipped.values())},
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


if __name__ == "__main__":
    parser = ArgumentParser(description="Score predictions on the published rows, each target held out.")
    parser.add_argument("--hold-out", choices=tuple(HOLD_OUTS), default="harness")
    parser.add_argument("--task", choices=tuple(TaskKind), type=TaskKind, default=TaskKind.TRAIN)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    outcome = evaluate(scored_table(asked.hold_out, asked.task), asked.hold_out, asked.task)
    figures = {"hold_out": asked.hold_out, "task": asked.task, **report(outcome)}
    figures["several_gpus"] = scaling_figures()
    answer(asked.json, lambda: figures, lambda: scored(figures))
