"""How good are the predictions? Each target is predicted by a fit that never saw what is held out with it.

"Out" means out of the fit, of the deviations and of the votes that set its interval. docs/prediction.md has
the protocol. Anybody's measurements are scored too, and teach
nothing. ``python -m tools.evaluate --hold-out harness`` prints one hold-out.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr

from gpubench.arrays import Flags, Floats
from gpubench.cli.output import answer
from gpubench.models import TaskKind
from gpubench.predict.calibration import load_calibration
from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS
from gpubench.predict.roofline import deviations_of, take
from gpubench.sections.prediction import scored
from gpubench.specs import load_specs
from gpubench.stats import Z90
from tools.fit import (
    COMMON_SHARE,
    HOLD_OUTS,
    LEVEL,
    RATIO,
    Aim,
    Fit,
    Judged,
    Pairs,
    batch_spread,
    coefficients_of,
    factor_of,
    fit_scale,
    fit_table,
    geometric_mean_errors,
    held_out,
    host_prior_s,
    level_errors,
    level_weights,
    pairs_of,
    predict_rows,
    ratio_errors,
    scaling_figures,
    stays,
    usual_errors,
    weighted_quantile,
    without_each,
)
from tools.published import Table, fitted_on, mend_of, read_csv


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Held-out predictions of every pair, and of every row without an anchor.

    Attributes:
        log_error: (pairs,) log of predicted over measured time.
        half_width: (pairs,) log of the factor of the 90 % interval.
        bound: (pairs,) the GPU sets the pace on both sides; the others are refused.
        level_error, level_half_width: (rows,) the same without a GPU owned; NaN where not scored. The width
            has the 90 % range of a batch that is not stated in it.
    """

    table: Table
    pairs: Pairs
    log_error: Floats
    half_width: Floats
    bound: Flags
    level_error: Floats
    level_half_width: Floats


def evaluate(table: Table, hold_out: str, task: TaskKind = TaskKind.TRAIN) -> Outcome:
    """Predict every pair and every level of a task without what is held out with its target.

    Args:
        table: Published rows, see ``scored_table``.
        hold_out: One of ``HOLD_OUTS``.
        task: What is scored; the fit and the intervals learn from all of the table.
    """
    seen = table.vendor == FITTED_VENDOR
    pairs = pairs_of(table)
    log_error, bound = ratio_errors(table, pairs, without_each(fit_table(table, seen), hold_out))
    level_error = level_errors(table, without_each(fit_table(table, seen, aim=LEVEL), hold_out))
    log_error = log_error - stays(table, pairs, level_error)
    scored = np.isfinite(log_error)
    pairs, log_error, bound = take(pairs, scored), log_error[scored], bound[scored]

    def usual_of(others: Flags) -> Floats:
        return usual_errors(table, pairs, fit_scale(table, pairs, log_error, others))

    kinds = np.stack([table.harness[pairs.y], table.architecture[pairs.y]])
    half_width = _half_widths(kinds, log_error, pairs.weight, bound, usual_of)
    kinds = np.stack([table.harness, table.base_model])
    level = _half_widths(
        kinds,
        level_error,
        level_weights(table, level_error),
        np.isfinite(level_error),
        lambda _: np.ones(len(table)),
    )
    rows = table.inference == (task is TaskKind.INFER)
    mine = rows[pairs.y]
    return Outcome(
        table=table,
        pairs=take(pairs, mine),
        log_error=log_error[mine],
        half_width=half_width[mine],
        bound=bound[mine],
        level_error=np.where(rows, level_error, np.nan),
        level_half_width=np.hypot(level, Z90 * batch_spread(table)),
    )


def scored_table(hold_out: str, task: TaskKind = TaskKind.TRAIN) -> Table:
    """The shipped rows that a hold-out is scored on: other vendors' too where they are what is held out."""
    return fitted_on(task, (FITTED_VENDOR, *(OTHER_VENDORS if hold_out == "vendor" else ())))


def _half_widths(
    kinds: NDArray[Any], error: Floats, weight: Floats, scored: Flags, usual_of: Callable[[Flags], Floats]
) -> Floats:
    """Half-widths from the errors of others alone: of another kind in both respects.

    Args:
        kinds: (2, n) harness and architecture of each pair, or harness and model of each row.
        error: (n,) log errors.
        weight: (n,) votes.
        scored: (n,) whose errors count.
        usual_of: The usual errors (n,) that the errors of the others teach, which a factor multiplies.
    """
    result = np.full(len(error), np.nan)
    for first, second in sorted(set(zip(*kinds, strict=True))):
        alike = kinds == np.array([[first], [second]], dtype=object)
        mine, others = alike.all(axis=0), scored & ~alike.any(axis=0)
        if others.any():
            usual = usual_of(others)
            factor = factor_of(np.abs(error[others]) / usual[others], weight[others])
            result[mine] = factor * usual[mine]
    return result


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
        "mends": {reason: mend_of(reason) for reason in reading.skipped},
        "assumed": list(reading.assumed),
        "columns_not_read": list(reading.unread),
    }


def outcome_of(table: Table, task: TaskKind) -> Outcome:
    """Predict every pair and level of rows of a task, without the published rows of its GPU and harness."""
    pairs = pairs_of(table)
    learned = load_calibration().of(task)
    assert learned.ratio.scale is not None  # only levels are without one
    usual = usual_errors(table, pairs, learned.ratio.scale) if len(pairs) else np.empty(0)
    specs = [load_specs()[gpu] for gpu in table.gpu_key]
    ratio, level = (np.array([each.half_width(s) for s in specs]) for each in (learned.ratio, learned.level))
    log_error, bound = ratio_errors(table, pairs, _without_own(table, RATIO, task))
    level_error = level_errors(table, _without_own(table, LEVEL, task))
    return Outcome(
        table=table,
        pairs=pairs,
        log_error=log_error - stays(table, pairs, level_error),
        half_width=ratio[pairs.y] * usual,
        bound=bound,
        level_error=level_error,
        level_half_width=np.hypot(level, Z90 * batch_spread(table)),
    )


def _without_own(table: Table, aim: Aim, task: TaskKind) -> Judged:
    """Each harness and GPU of a table, and its roofline by the shipped rows without either."""
    fit = _fitted(aim, task)
    for rows, dropped in held_out(table, "harness", fit.table):
        z = fit.without(dropped)
        own = deviations_of(fit.deviations(z), list(table.gpu_key))
        yield rows, predict_rows(table, coefficients_of(z), host_prior_s(table), own)


@cache
def _fitted(aim: Aim, task: TaskKind) -> Fit:
    """The fit of the shipped rows for one aim and task."""
    table = fitted_on(task)
    return fit_table(table, np.ones(len(table), dtype=bool), aim=aim)


# --- what held-out predictions are worth -------------------------------------------------------------------

FEWEST_CANDIDATES = 4
_SEED, _DRAWS = 20261120, 400


def report(outcome: Outcome) -> dict[str, Any]:
    """The document of `predict evaluate --json`: all pairs first, refused ones too, then slice by slice."""
    pairs = outcome.pairs
    everything = np.ones(len(pairs), dtype=bool)
    plain = geometric_mean_errors(outcome.table, pairs)
    return {
        **figures(outcome, everything),
        "geometric_mean": _errors(plain, pairs.weight),
        "heaviest_source": _heaviest(outcome),
        **_order_figures(outcome),
        "refused_share": _mean(~outcome.bound, pairs.weight),
        "no_gpu_owned": _level_figures(outcome),
        "by_slice": {
            name: figures(outcome, flags) | {"geometric_mean": _errors(plain[flags], pairs.weight[flags])}
            for name, flags in _slices(outcome).items()
            if flags.any()
        },
    }


def figures(outcome: Outcome, chosen: Flags) -> dict[str, Any]:
    """Error and interval of some pairs; each harness has one vote for each target GPU."""
    pairs, keep = outcome.pairs, chosen & np.isfinite(outcome.log_error)
    weight, error, width = pairs.weight[keep], outcome.log_error[keep], outcome.half_width[keep]
    return {
        "pairs": int(keep.sum()),
        "targets": len(set(outcome.table.gpu_key[pairs.y[keep]])),
        **_errors(error, weight),
        "bias": _mean(error, weight),
        **_widths(error, width, weight),
    }


def _errors(error: Floats, weight: Floats) -> dict[str, float | None]:
    ape = np.abs(np.expm1(error))
    middle = _round(weighted_quantile(ape, weight)) if len(ape) else None
    return {"mape": _mean(ape, weight), "median_ape": middle}


def _widths(error: Floats, width: Floats, weight: Floats) -> dict[str, float | None]:
    """How much the intervals hold where there are any, and how wide they are."""
    known = np.isfinite(width)
    error, width, weight = error[known], width[known], weight[known]
    return {
        "coverage_90": _mean(np.abs(error) <= width, weight),
        "half_width_factor": _round(np.exp(weighted_quantile(width, weight))) if len(width) else None,
    }


def _heaviest(outcome: Outcome) -> dict[str, Any] | None:
    """The harness with the most votes, and its share of them."""
    sums = pd.Series(outcome.pairs.weight).groupby(outcome.table.harness[outcome.pairs.y]).sum()
    return {"harness": sums.idxmax(), "share": _round(sums.max() / sums.sum())} if len(sums) else None


def _level_figures(outcome: Outcome) -> dict[str, Any]:
    keep = np.isfinite(outcome.level_error)
    error, width = outcome.level_error[keep], outcome.level_half_width[keep]
    weight = level_weights(outcome.table, outcome.level_error)[keep]
    return {
        "rows": int(keep.sum()),
        "targets": len(set(outcome.table.gpu_key[keep])),
        **_errors(error, weight),
        **_widths(error, width, weight),
    }


def _slices(outcome: Outcome) -> Mapping[str, Flags]:
    table, pairs, bound = outcome.table, outcome.pairs, outcome.bound
    same = table.architecture[pairs.x] == table.architecture[pairs.y]
    slices: dict[str, Flags] = {
        "all pairs": np.ones(len(pairs), dtype=bool),
        "GPU-bound": bound,
        "host-bound": ~bound,
        "anchored at Hopper": table.architecture[pairs.x] == "Hopper",
        "same architecture": same,
        "other architecture": ~same,
    }
    labels = {
        "execution": np.where(table.execution == "", "not stated", table.execution),
        "torch": np.where(table.torch == "", "not stated", table.torch),
        "input": np.where(table.data_input == "", "not stated", table.data_input),
        "optimizer in the step": np.where(
            table.inference, "none (forward pass)", np.where(table.arithmetic.no_optimizer, "no", "yes")
        ),
        "batch": np.where(table.batch_high > table.batch_low, "not stated", "stated"),
        "doubt": np.where(table.doubt == "", "none", "some"),
        "precision": table.precision,
        "class": np.array([model_class(name) for name in table.base_model], dtype=object),
        "model": table.base_model,
        "harness": table.harness,
        "architecture": table.architecture,
        "target": table.gpu_key,
    }
    for kind, values in labels.items():
        slices |= {f"{kind}: {value}": values[pairs.y] == value for value in sorted(set(values[pairs.y]))}
    return slices


_CLASSES = {
    "VGG": ("vgg",),
    "LSTM": ("gnmt", "lstm"),
    "transformer": ("bert", "gpt", "opt", "vit", "swin", "t5", "whisper", "dinov2"),
}
"""How the names of their models begin."""


def model_class(name: str) -> str:
    """CNN, VGG, LSTM or transformer, by a model's name."""
    return next((kind for kind, beginnings in _CLASSES.items() if name.startswith(beginnings)), "CNN")


def _mean(values: Floats | Flags | list[float], weights: Floats | None = None) -> float | None:
    return _round(np.average(values, weights=weights)) if len(values) else None


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)


# --- do they put GPUs in the right order? ------------------------------------------------------------------


def _order_figures(outcome: Outcome) -> dict[str, Any]:
    """Spearman, regret and P(best) over all settings of four or more candidates.

    A setting is an owned GPU in a cell; of several rows of a candidate, the one nearest to its batch counts.
    Regret is the share of throughput lost by taking the first of the predicted ranking; P(best) is what is
    predicted of that first, and how often it was the best.
    """
    table, width, random = outcome.table, outcome.half_width, np.random.default_rng(_SEED)
    keep = np.flatnonzero(outcome.bound & np.isfinite(outcome.log_error) & np.isfinite(width))
    x, y = outcome.pairs.x[keep], outcome.pairs.y[keep]
    gap = np.abs(np.log(table.batch[y] / table.batch[x]))
    order = pd.DataFrame({"pair": keep, "x": x, "y": y, "gpu": table.gpu_key[y], "gap": gap})
    by_gap = order.sort_values(["x", "gap", "y"], ascending=[True, True, False])
    nearest = by_gap.drop_duplicates(["x", "gpu"])
    rates = np.log(table.batch) - table.log_seconds
    found = []
    nearest = nearest[nearest.groupby("x").y.transform("size") >= FEWEST_CANDIDATES]
    for _, block in nearest.sort_values(["x", "y"]).groupby("x"):
        measured, own = rates[block.y], np.sqrt(1 - COMMON_SHARE) * width[block.pair] / Z90
        predicted = measured - outcome.log_error[block.pair]
        first = np.argmax(predicted)
        draws = predicted[:, None] + own[:, None] * random.standard_normal((len(own), _DRAWS))
        chance = np.mean(np.argmax(draws, axis=0) == first)
        lost = -np.expm1(measured[first] - measured.max())
        found.append((spearmanr(measured, predicted).statistic, lost, chance, np.argmax(measured) == first))
    spearman, regret, chance, best = map(_mean, np.array(found, dtype=float).reshape(-1, 4).T)
    return {
        "settings": len(found),
        "spearman": spearman,
        "regret": {"throughput": regret},
        "p_best": {"predicted": chance, "observed": best},
    }


if __name__ == "__main__":
    parser = ArgumentParser(description="Score predictions on the published rows, each target held out.")
    parser.add_argument("--hold-out", choices=tuple(HOLD_OUTS), default="harness")
    parser.add_argument("--task", choices=tuple(TaskKind), type=TaskKind, default=TaskKind.TRAIN)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    outcome = evaluate(scored_table(asked.hold_out, asked.task), asked.hold_out, asked.task)
    about = {"hold_out": asked.hold_out, "task": asked.task}
    document = {**about, **report(outcome), "several_gpus": scaling_figures()}
    answer(asked.json, lambda: document, lambda: scored(document))
