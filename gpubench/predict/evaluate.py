"""How good are the predictions? Each target is predicted by a fit that never saw a row of it.

"Out" means out of the fit, of the deviations and of the conformal scores. See docs/prediction.md for the
protocol; the figures there come from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpubench.predict import ranking
from gpubench.predict.arrays import Array, Flags
from gpubench.predict.conformal import SPLITS, level_rows, level_scores, quantile, ratio_scores, scales_of
from gpubench.predict.fit import LEVEL, fit_table, times_of
from gpubench.predict.pairs import (
    Pairs,
    gpu_bound,
    group_labels,
    kin_level,
    log_errors,
    pairs_of,
)
from gpubench.predict.published import Table
from gpubench.specs import load_specs

HOLD_OUTS = (*SPLITS, "model")
_HABITAT_CELLS = frozenset({"resnet50", "inception3", "gnmt", "bert_base_squad", "bert_large_squad"})
_HABITAT_ARCHITECTURES = frozenset({"Pascal", "Volta", "Turing"})


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Held-out predictions of every pair, and of every row without an anchor.

    Attributes:
        log_error: (pairs,) log of predicted over measured time.
        half_width: (pairs,) log of the factor of the 90 % interval.
        bound: (pairs,) the GPU sets the pace on both sides.
        absolute_error, absolute_half_width: (rows,) the same without a GPU owned; NaN where not scored.
    """

    table: Table
    pairs: Pairs
    log_error: Array
    half_width: Array
    bound: Flags
    absolute_error: Array
    absolute_half_width: Array


def evaluate(table: Table, hold_out: str) -> Outcome:
    """Predict every pair by a fit without the target's group.

    Args:
        table: Published rows.
        hold_out: ``gpu``, ``family`` (one chip), ``architecture``, or ``model``: an unseen model, as the
            user's own is.
    """
    pairs = pairs_of(table)
    labels, models = group_labels(table, hold_out), table.base_model
    scale = scales_of(table, pairs)
    n = len(pairs)
    error, width, bound = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, dtype=bool)
    absolute, absolute_width = np.full(len(table), np.nan), np.full(len(table), np.nan)
    for label in sorted(set(labels[pairs.y])):
        usable = table.training & (labels != label)
        ratio, level = fit_table(table, usable), fit_table(table, usable, aim=LEVEL)
        times, chosen = times_of(ratio), labels[pairs.y] == label
        error[chosen] = log_errors(table, pairs, times)[chosen]
        bound[chosen] = gpu_bound(pairs, times)[chosen]
        times = times_of(level)
        rows = level_rows(table, times) & (labels == label)
        absolute[rows] = (np.log(times.step_s) - table.log_seconds)[rows]
        learned = frozenset(table.gpu_key[usable])
        kin = {gpu: kin_level(gpu, learned) for gpu in set(table.gpu_key[pairs.y[chosen]])}
        ratios = {k: ratio_scores(ratio, pairs, SPLITS[k], usable) for k in set(kin.values())}
        levels = {k: level_scores(level, SPLITS[k], usable) for k in set(kin.values())}
        for gpu, k in kin.items():
            mine = chosen & (table.gpu_key[pairs.y] == gpu)
            width[mine] = quantile(ratios[k], leave_out=(gpu,)) * scale[mine]
            for model in set(models[rows & (table.gpu_key == gpu)]):
                cell = rows & (table.gpu_key == gpu) & (models == model)
                absolute_width[cell] = quantile(levels[k], leave_out=(model,))
    return Outcome(
        table=table,
        pairs=pairs,
        log_error=error,
        half_width=width,
        bound=bound,
        absolute_error=absolute,
        absolute_half_width=absolute_width,
    )


def report(outcome: Outcome) -> dict[str, Any]:
    """The document of `predict evaluate --json`: GPU-bound pairs first, everything else by slice."""
    everything = np.ones(len(outcome.pairs), dtype=bool)
    slices = {"all pairs": everything, "host-bound": ~outcome.bound}
    slices |= {name: flags & outcome.bound for name, flags in _slices(outcome).items()}
    return {
        **figures(outcome, outcome.bound),
        **ranking.figures(outcome.table, outcome.pairs, outcome.log_error, outcome.half_width, outcome.bound),
        "refused_share": _round(np.average(~outcome.bound, weights=outcome.pairs.weight))
        if len(everything)
        else None,
        "no_gpu_owned": _absolute_figures(outcome),
        "by_slice": {name: figures(outcome, flags) for name, flags in slices.items() if flags.any()},
    }


def figures(outcome: Outcome, chosen: Flags) -> dict[str, Any]:
    """Error and interval of some pairs; every row of a target weighs the same."""
    pairs, keep = outcome.pairs, chosen & np.isfinite(outcome.log_error)
    if not keep.any():
        return dict.fromkeys(("mape", "median_ape", "coverage_90", "half_width_factor")) | {
            "pairs": 0,
            "targets": 0,
        }
    weight, error, width = pairs.weight[keep], outcome.log_error[keep], outcome.half_width[keep]
    ape = np.abs(np.expm1(error))
    return {
        "pairs": int(keep.sum()),
        "targets": len(set(outcome.table.gpu_key[pairs.y[keep]])),
        "mape": _round(np.average(ape, weights=weight)),
        "median_ape": _round(weighted_median(ape, weight)),
        "bias": _round(np.average(error, weights=weight)),
        "coverage_90": _round(np.average(np.abs(error) <= width, weights=weight)),
        "half_width_factor": _round(np.exp(weighted_median(width, weight))),
    }


def _absolute_figures(outcome: Outcome) -> dict[str, Any]:
    keep = np.isfinite(outcome.absolute_error)
    if not keep.any():
        return {"rows": 0, "targets": 0, "mape": None, "median_ape": None}
    error, width = outcome.absolute_error[keep], outcome.absolute_half_width[keep]
    ape = np.abs(np.expm1(error))
    return {
        "rows": int(keep.sum()),
        "targets": len(set(outcome.table.gpu_key[keep])),
        "mape": _round(ape.mean()),
        "median_ape": _round(np.median(ape)),
        "coverage_90": _round(np.mean(np.abs(error) <= width)),
        "half_width_factor": _round(np.exp(np.median(width))),
    }


def _slices(outcome: Outcome) -> Mapping[str, Flags]:
    table, pairs = outcome.table, outcome.pairs
    architecture = group_labels(table, "architecture")
    chip = group_labels(table, "family")
    models, precision = table.base_model, table.precision
    same = architecture[pairs.x] == architecture[pairs.y]
    old = np.isin(architecture, sorted(_HABITAT_ARCHITECTURES)) & (precision == "fp32")
    slices: dict[str, Flags] = {
        "same architecture": same,
        "other architecture": ~same,
        "same chip": chip[pairs.x] == chip[pairs.y],
        "habitat-like": old[pairs.x] & old[pairs.y] & np.isin(models[pairs.y], sorted(_HABITAT_CELLS)),
    }
    labels: Mapping[str, NDArray[Any]] = {
        "precision": precision,
        "class": np.array([model_class(name) for name in models], dtype=object),
        "model": models,
        "source": table.source,
        "architecture": architecture,
        "target": table.gpu_key,
    }
    for kind, values in labels.items():
        slices |= {f"{kind}: {value}": values[pairs.y] == value for value in sorted(set(values[pairs.y]))}
    return slices


def model_class(name: str) -> str:
    """CNN, VGG, LSTM or transformer, by a model's name."""
    if name.startswith("vgg"):
        return "VGG"
    if name.startswith(("gnmt", "lstm")):
        return "LSTM"
    if name.startswith(("bert", "gpt", "opt", "vit", "swin")):
        return "transformer"
    return "CNN"


def weighted_median(values: Array, weights: Array) -> float:
    """The value below which half of the weight lies."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulative, 0.5 * cumulative[-1])])


def gpus_without_rows(table: Table) -> list[str]:
    """GPUs of the specification table that no published row is about."""
    return [key for key in load_specs() if key not in set(table.gpu_key)]


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)
