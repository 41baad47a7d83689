"""Conformal half-widths: how large were the errors on GPUs that the fit had not seen?

The score of a pair is |log error| over a scale that grows with how differently two GPUs balance
arithmetic and bandwidth. One vote per target GPU (of levels: per model); a target's own scores never set
its own interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from gpubench.predict.arrays import Array, Flags, Indices
from gpubench.predict.fit import Fit, times_of
from gpubench.predict.pairs import HOST_SHARE_LIMIT, Pairs, balance_gap, gpu_bound, group_labels, log_errors
from gpubench.predict.published import Table
from gpubench.predict.roofline import Arithmetic, Chips, Times, Work, take

LEVEL = 0.90
SPLITS = ("gpu", "family", "architecture")
"""What is held out together; a target whose chip has rows takes the first, and so on (``kin_level``)."""

GRID = tuple((i + 0.5) / 20 for i in range(20))  # quantiles that stand for the scores of one target
SCALE_BASE, SCALE_SLOPE = 0.08, 0.06  # fitted by least squares to |log error| of held-out families
SCALE_TENSOR = 1.35  # tensor cores are harder to predict than the FP32 pipes

Scores: TypeAlias = Mapping[str, Sequence[float]]


def pair_scale(own: Chips, target: Chips, mode: Indices) -> Array:
    """Expected |log error| of a ratio, up to the conformal factor.

    Args:
        own: (n,) GPUs that were measured.
        target: (n,) GPUs that are predicted.
        mode: (n,) arithmetic that most of the step runs in.
    """
    each = np.arange(len(mode))
    tensor = np.where(target.tensor[each, mode], SCALE_TENSOR, 1.0)
    return tensor * (SCALE_BASE + SCALE_SLOPE * balance_gap(own, target, mode))


def scales_of(table: Table, pairs: Pairs) -> Array:
    """The scale of every pair of a table."""
    mode = leading_mode(take(table.work, pairs.y), take(table.arithmetic, pairs.y))
    return pair_scale(take(table.chips, pairs.x), take(table.chips, pairs.y), mode)


def leading_mode(work: Work, arithmetic: Arithmetic) -> Indices:
    """Arithmetic that most of the FLOPs of each step run in."""
    conv = work.flops[..., 0] + work.flops[..., 1] > work.flops[..., 2]
    return np.where(conv, arithmetic.conv, arithmetic.matmul)


def ratio_scores(fit: Fit, pairs: Pairs, split: str, usable: Flags) -> dict[str, list[float]]:
    """Scores of every target that the fit used, each found without the rows of its group.

    Args:
        fit: A fit; groups are taken out of it one by one, by one Gauss-Newton step each.
        pairs: Pairs of the fit's table.
        split: ``gpu``, ``family`` or ``architecture``.
        usable: Which rows of the table may be looked at at all.
    """
    table, scale = fit.table, scales_of(fit.table, pairs)
    inside = usable[pairs.x] & usable[pairs.y]
    scores: dict[str, list[float]] = {}
    labels = group_labels(table, split)
    for label, z in _without_each(fit, split, usable):
        times = times_of(fit, z)
        errors = np.abs(log_errors(table, pairs, times)) / scale
        bound = inside & gpu_bound(pairs, times)
        for gpu in sorted(set(table.gpu_key[labels == label])):
            chosen = bound & (table.gpu_key[pairs.y] == gpu)
            if chosen.any():
                scores[gpu] = grid_of(errors[chosen], pairs.weight[chosen])
    return scores


def level_scores(fit: Fit, split: str, usable: Flags) -> dict[str, list[float]]:
    """|log error| of predictions with no measurement to start from, by model, from a fit of levels.

    The vote goes to the model and not to the GPU: without a measurement of the workload, what the
    roofline does not know about the workload is the larger part of the error.
    """
    table = fit.table
    error, known = np.zeros(len(table)), np.zeros(len(table), dtype=bool)
    labels = group_labels(table, split)
    for label, z in _without_each(fit, split, usable):
        times, mine = times_of(fit, z), labels == label
        error[mine] = np.abs(np.log(times.step_s) - table.log_seconds)[mine]
        known |= mine & usable & level_rows(table, times)
    models = table.base_model
    return {
        model: grid_of(error[rows], np.ones(int(rows.sum())))
        for model in sorted(set(models[known]))
        for rows in (known & (models == model),)
    }


def level_rows(table: Table, times: Times) -> Flags:
    """GPU-bound rows whose level means seconds, and not a score or an approximate profile."""
    result: Flags = table.training & table.level_known & (times.host_s / times.step_s <= HOST_SHARE_LIMIT)
    return result


def _without_each(fit: Fit, split: str, usable: Flags) -> Iterator[tuple[str, Array]]:
    """The label of each group of the split with the unknowns found without it."""
    labels = group_labels(fit.table, split)
    for label in sorted(set(labels[usable])):
        yield label, fit.without(labels == label)


def grid_of(values: Array, weights: Array) -> list[float]:
    """A weighted sample as its quantiles at ``GRID``."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    at = np.searchsorted(cumulative, np.array(GRID) * cumulative[-1])
    return [round(float(v), 4) for v in values[order][np.minimum(at, len(values) - 1)]]


def quantile(scores: Scores, *, leave_out: Sequence[str] = (), level: float = LEVEL) -> float:
    """Conformal factor: the quantile at level (n + 1) / n over n voters, one vote each."""
    targets = [key for key in sorted(scores) if key not in leave_out]
    if not targets:
        return float("nan")
    values = np.sort(np.concatenate([np.asarray(scores[key]) for key in targets]))
    share = min(1.0, level * (len(targets) + 1) / len(targets))
    return float(values[min(len(values) - 1, int(np.ceil(share * len(values))) - 1)])
