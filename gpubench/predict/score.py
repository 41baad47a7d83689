"""Score the shipped calibration on anybody's measurements; nothing is learned from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpubench.predict.arrays import Array
from gpubench.predict.calibration import Learned, load_calibration
from gpubench.predict.conformal import level_rows, scales_of
from gpubench.predict.evaluate import Outcome, report
from gpubench.predict.fit import HOST_S_PER_OPERATOR, LEVEL, RATIO, fit_table, predict_rows
from gpubench.predict.interval import level_half_widths, ratio_factors
from gpubench.predict.kinship import extend
from gpubench.predict.pairs import gpu_bound, log_errors, pairs_of
from gpubench.predict.published import Table, read_csv, shipped
from gpubench.predict.roofline import Times


def score(path: Path) -> dict[str, Any]:
    """Score a CSV in the columns of the shipped measurements.

    Pairs are formed inside each (source, model, precision) of the file. For each target GPU its own
    deviation is forgotten: it is found again from the shipped rows of all other GPUs, with the
    coefficients as they are.

    Raises:
        MisuseError: If the file cannot be read or holds nothing that can be scored.
    """
    reading = read_csv(path)
    outcome = outcome_of(reading.table)
    skipped = sum(reading.skipped.values())
    return {
        **report(outcome),
        "rows": {"read": reading.rows, "used": len(reading.table), "skipped": skipped},
        "skipped": dict(reading.skipped),
    }


def outcome_of(table: Table) -> Outcome:
    """Predict every pair and every level of a table, each target without its own published rows."""
    pairs = pairs_of(table)
    scale = scales_of(table, pairs)
    n = len(pairs)
    error, width, bound = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, dtype=bool)
    absolute, absolute_width = np.full(len(table), np.nan), np.full(len(table), np.nan)
    for gpu in sorted(set(table.gpu_key)):
        learned = _without("ratio", gpu)
        times, chosen = _times(table, learned), table.gpu_key[pairs.y] == gpu
        error[chosen] = log_errors(table, pairs, times)[chosen]
        bound[chosen] = gpu_bound(pairs, times)[chosen]
        width[chosen] = ratio_factors(learned, [gpu])[0] * scale[chosen]
        learned = _without("level", gpu)
        times = _times(table, learned)
        rows = level_rows(table, times) & (table.gpu_key == gpu)
        absolute[rows] = (np.log(times.step_s) - table.log_seconds)[rows]
        for model in set(table.base_model[rows]):
            cell = rows & (table.base_model == model)
            absolute_width[cell] = level_half_widths(learned, [gpu], model)[0]
    return Outcome(
        table=table,
        pairs=pairs,
        log_error=error,
        half_width=width,
        bound=bound,
        absolute_error=absolute,
        absolute_half_width=absolute_width,
    )


@cache
def _without(kind: Literal["ratio", "level"], gpu: str) -> Learned:
    """What is learned, with every published row of one GPU forgotten but the coefficients kept."""
    learned = load_calibration().ratio if kind == "ratio" else load_calibration().level
    aim = RATIO if kind == "ratio" else LEVEL
    if gpu not in learned.deviations:
        return learned
    table = shipped().table
    usable = table.training & (table.gpu_key != gpu)
    fit = fit_table(table, usable, aim=aim, frozen=learned.coefficients)
    return Learned(
        coefficients=learned.coefficients,
        host_s_per_operator=fit.host_s_per_operator,
        deviations={key: values for key, values in fit.deviations().items() if key != gpu},
        scores=learned.scores,
    )


def _times(table: Table, learned: Learned) -> Times:
    keys = sorted(set(table.gpu_key))
    deviations = dict(zip(keys, extend(learned.deviations, keys), strict=True))
    host: Array = np.array(
        [learned.host_s_per_operator.get(source, HOST_S_PER_OPERATOR) for source in table.source]
    )
    own = np.array([deviations[key] for key in table.gpu_key])
    return predict_rows(table, learned.coefficients, host, own)
