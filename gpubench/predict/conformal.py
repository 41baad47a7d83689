"""Conformal half-widths: how large were the errors on GPUs that the fit had not seen?

The score of a pair is |log error| over a scale that grows with how differently two GPUs balance
arithmetic and bandwidth. One vote per target GPU; a target's own scores never set its own interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from gpubench.predict.arrays import Array, Flags, Indices
from gpubench.predict.fit import Fit, times_of
from gpubench.predict.pairs import Pairs, balance_gap, gpu_bound, group_labels, log_errors
from gpubench.predict.published import Table
from gpubench.predict.roofline import take

LEVEL = 0.90
SPLITS = ("gpu", "family", "architecture")
"""What is held out together; a target whose chip has rows takes the first, and so on (``kin_level``)."""

GRID = tuple((i + 0.5) / 20 for i in range(20))  # quantiles that stand for the scores of one target
SCALE_BASE, SCALE_SLOPE = 0.08, 0.06  # fitted by least squares to |log error| of held-out families

Scores: TypeAlias = Mapping[str, Sequence[float]]


def pair_scale(gap: Array) -> Array:
    """Expected |log error| of a ratio, up to the conformal factor; ``gap`` is ``balance_gap``."""
    return SCALE_BASE + SCALE_SLOPE * gap


def scales_of(table: Table, pairs: Pairs) -> Array:
    """The scale of every pair of a table."""
    mode = _leading_mode(table, pairs.y)
    return pair_scale(balance_gap(take(table.chips, pairs.x), take(table.chips, pairs.y), mode))


def _leading_mode(table: Table, rows: Indices) -> Indices:
    """Arithmetic that most of a step's FLOPs run in."""
    conv = table.work.flops[rows, 0] + table.work.flops[rows, 1]
    return np.where(conv > table.work.flops[rows, 2], table.arithmetic.conv[rows], table.arithmetic.matmul[rows])


def held_out_scores(fit: Fit, pairs: Pairs, split: str, usable: Flags) -> dict[str, list[float]]:
    """Scores of every target that the fit used, each found without the rows of its group.

    Args:
        fit: A fit; groups are taken out of it one by one, by one Gauss-Newton step each.
        pairs: Pairs of the fit's table.
        split: ``gpu``, ``family`` or ``architecture``.
        usable: Which rows of the table may be looked at at all.
    """
    scale = scales_of(fit.table, pairs)
    inside = usable[pairs.x] & usable[pairs.y]
    scores: dict[str, list[float]] = {}
    for members, z in without_each(fit, split, usable):
        times = times_of(fit, z)
        errors = np.abs(log_errors(fit.table, pairs, times)) / scale
        bound = gpu_bound(pairs, times)
        for gpu in members:
            chosen = inside & bound & (fit.table.gpu_key[pairs.y] == gpu)
            if chosen.any():
                scores[gpu] = grid_of(errors[chosen], pairs.weight[chosen])
    return scores


def absolute_scores(fit: Fit, split: str, usable: Flags) -> dict[str, list[float]]:
    """|log error| of predictions without any measurement to start from, by target GPU."""
    scores: dict[str, list[float]] = {}
    for members, z in without_each(fit, split, usable):
        times = times_of(fit, z)
        error = np.abs(np.log(times.step_s) - fit.table.log_seconds)
        known = absolute_rows(fit.table) & (times.host_s / times.step_s <= 0.7) & usable
        for gpu in members:
            chosen = known & (fit.table.gpu_key == gpu)
            if chosen.any():
                scores[gpu] = grid_of(error[chosen], np.ones(int(chosen.sum())))
    return scores


def absolute_rows(table: Table) -> Flags:
    """Rows whose level means seconds, and not a score or an approximate profile."""
    return table.training & table.level_known


def without_each(fit: Fit, split: str, usable: Flags) -> Iterator[tuple[list[str], Array]]:
    """Each group of the split with the unknowns found without it."""
    labels = group_labels(fit.table, split)
    for label in sorted(set(labels[usable])):
        group = labels == label
        yield sorted(set(fit.table.gpu_key[group])), fit.without(group)


def grid_of(values: Array, weights: Array) -> list[float]:
    """A weighted sample as its quantiles at ``GRID``."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    at = np.searchsorted(cumulative, np.array(GRID) * cumulative[-1])
    return [round(float(v), 4) for v in values[order][np.minimum(at, len(values) - 1)]]


def quantile(scores: Scores, *, leave_out: Sequence[str] = (), level: float = LEVEL) -> float:
    """Conformal factor: the quantile at level (n + 1) / n over n targets, one vote each."""
    targets = [key for key in sorted(scores) if key not in leave_out]
    if not targets:
        return float("nan")
    values = np.sort(np.concatenate([np.asarray(scores[key]) for key in targets]))
    share = min(1.0, level * (len(targets) + 1) / len(targets))
    return float(values[min(len(values) - 1, int(np.ceil(share * len(values))) - 1)])
