"""What errs how far on harnesses and GPUs that the fit had not seen, and the half-widths that follow.

A pair is "own X, predict Y" inside one cell. Its error is found by a fit without what is held out with Y.
The score of a pair is |log error| over a scale: what is usual for two GPUs that balance arithmetic and
bandwidth so differently, and of which one or both have tensor cores. Each harness has one vote for each
target GPU; an interval is never set by the votes of its own harness, nor of its own architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import TaskKind
from gpubench.predict.calibration import Scale, pair_features, pair_scale
from gpubench.predict.roofline import HOST_SHARE_LIMIT, Times, leading_mode, take
from gpubench.stats import Z90
from tools.fit import LEVEL, RATIO, Fit, batch_spread, times_of
from tools.table import Table

COVERAGE = 0.90
"""Of the intervals."""
COMMON_SHARE = 0.8
"""Of the variance of an error: common to all candidates of one anchor."""
HOLD_OUTS: Mapping[str, tuple[str, ...]] = {
    "harness": ("harness", "gpu_key"),
    "stranger": ("harness", "architecture"),
    "gpu": ("gpu_key",),
    "family": ("family",),
    "architecture": ("architecture",),
    "model": ("base_model",),
    "vendor": ("vendor",),
}
"""What the fit never sees of a target: of each column named, every row that shares it with the target.

``harness`` is what a user asks: neither their harness nor the GPU is in the fit. ``stranger`` leaves out the
GPU's whole architecture besides. The others leave out one thing and keep the rest of the target's harness; a
``vendor`` is left out of a table that has several.
"""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Row numbers of what is owned (x) and what is predicted (y), and the weight of each pair.

    Each harness has one vote for each target GPU and task, however many models, batches and partners it has:
    shared evenly by its rows of y, and by the x of each. A pair of rows whose batch is not stated counts for
    less, by the variance that the plausible batches add.

    Attributes:
        spread: (pairs,) log standard deviation for want of a batch, of x and y together.
    """

    x: Indices
    y: Indices
    weight: Floats
    spread: Floats

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.x)


def pairs_of(table: Table, chosen: Flags | None = None) -> Pairs:
    """All pairs of rows, or of chosen ones, on two GPUs of one cell; x is the row of the nearest batch."""
    xs, ys = [], []
    usable = np.arange(len(table)) if chosen is None else np.flatnonzero(chosen)
    for cell in np.unique(table.cell[usable]):
        rows = usable[table.cell[usable] == cell]
        for gpu in np.unique(table.gpu_key[rows].astype(str)):
            own = rows[table.gpu_key[rows] == gpu]
            others = rows[table.gpu_key[rows] != gpu]
            gap = np.abs(np.log(table.batch[others][:, None] / table.batch[own][None]))
            if len(others):
                xs.append(own[np.argmin(gap, axis=1)])
                ys.append(others)
    x = np.concatenate(xs) if xs else np.empty(0, np.int64)
    y = np.concatenate(ys) if ys else np.empty(0, np.int64)
    order = np.lexsort((x, y))
    x, y = x[order], y[order]
    unsure = batch_spread(table)
    spread = np.hypot(unsure[x], unsure[y])
    partners = np.bincount(y, minlength=len(table))
    _, voter = np.unique(voters_of(table), return_inverse=True)
    rows = np.bincount(voter[np.unique(y)], minlength=len(table))
    votes = 1.0 / (partners[y] * rows[voter[y]])
    return Pairs(x=x, y=y, weight=votes / (1 + (spread / RATIO.noise) ** 2), spread=spread)


def of_task(table: Table, task: TaskKind) -> Flags:
    """(n,) which rows are of a task."""
    return table.inference if task is TaskKind.INFER else ~table.inference


def voters_of(table: Table) -> NDArray[np.str_]:
    """(n,) who votes by each row: its harness for its GPU and task."""
    each = zip(table.harness, table.gpu_key, table.inference, strict=True)
    return np.array([f"{harness}|{gpu}|{task}" for harness, gpu, task in each])


def log_errors(table: Table, pairs: Pairs, times: Times) -> Floats:
    """Log of predicted over measured time of y, per sample, from the measurement of x."""
    level = np.log(times.step_s) - table.log_seconds
    return np.asarray(level[pairs.y] - level[pairs.x])


def geometric_mean_errors(table: Table, pairs: Pairs) -> Floats:
    """The same of the plain rule to beat: throughput goes with the root of peak times bandwidth."""
    mode = leading_mode(table.work, table.arithmetic)
    peak = table.chips.peaks[np.arange(len(table)), mode]
    level = np.log(table.batch / np.sqrt(peak * table.chips.bandwidth)) - table.log_seconds
    return np.asarray(level[pairs.y] - level[pairs.x])


def gpu_bound(pairs: Pairs, times: Times) -> Flags:
    """Whether the GPU sets the pace on both sides."""
    free = times.host_s / times.step_s <= HOST_SHARE_LIMIT
    return np.asarray(free[pairs.x] & free[pairs.y])


def held_out(table: Table, hold_out: str) -> Iterator[tuple[Flags, Flags]]:
    """For each group of targets, which rows it has, and which rows the fit must not see."""
    labels = [getattr(table, kind) for kind in HOLD_OUTS[hold_out]]
    for group in sorted(set(zip(*labels, strict=True))):
        same = [label == value for label, value in zip(labels, group, strict=True)]
        yield np.logical_and.reduce(same), np.logical_or.reduce(same)


def sides(table: Table, pairs: Pairs) -> tuple[Table, Table, Indices]:
    """The rows of x and of y of every pair, and the arithmetic that most of each step of y runs in."""
    own, target = take(table, pairs.x), take(table, pairs.y)
    return own, target, leading_mode(target.work, target.arithmetic)


def usual_errors(table: Table, pairs: Pairs, scale: Scale) -> Floats:
    """Usual |log error| of each pair of published rows, (pairs,): more where a batch is not stated."""
    own, target, mode = sides(table, pairs)
    return np.hypot(pair_scale(scale, own.chips, target.chips, mode), pairs.spread)


def fit_scale(table: Table, pairs: Pairs, log_error: Floats, chosen: Flags) -> Scale:
    """The scale that fits the errors of the chosen pairs best, by non-negative least squares."""
    from scipy.optimize import nnls

    own, target, mode = sides(table, take(pairs, chosen))
    root = np.sqrt(pairs.weight[chosen])
    features = pair_features(own.chips, target.chips, mode)
    base, gap, crossing = nnls(features * root[:, None], np.abs(log_error[chosen]) * root)[0]
    return Scale(base=float(base), gap=float(gap), crossing=float(crossing))


def errors_without(fit: Fit, pairs: Pairs, hold_out: str) -> tuple[Floats, Flags]:
    """Log error of every pair, found without what is held out with its target; whether the GPU set the pace.

    Each group is taken out of the fit by one Gauss-Newton step, no refit; the host of a harness that is left
    out is the prior's.
    """
    table = fit.table
    error, bound = np.full(len(pairs), np.nan), np.zeros(len(pairs), dtype=bool)
    for targets, times in _without_each(fit, hold_out, np.bincount(pairs.y, minlength=len(table)) > 0):
        mine = targets[pairs.y]
        error[mine] = log_errors(table, pairs, times)[mine]
        bound[mine] = gpu_bound(pairs, times)[mine]
    return error, bound


def level_errors_without(fit: Fit, hold_out: str, wanted: Flags | None = None) -> Floats:
    """Log of predicted over measured time of every wanted row whose level means seconds; NaN for others."""
    table = fit.table
    error = np.full(len(table), np.nan)
    known = table.level_known if wanted is None else table.level_known & wanted
    for targets, times in _without_each(fit, hold_out, known):
        rows = targets & known & level_rows(table, times)
        error[rows] = (np.log(times.step_s) - table.log_seconds)[rows]
    return error


def _without_each(fit: Fit, hold_out: str, wanted: Flags) -> Iterator[tuple[Flags, Times]]:
    for targets, dropped in held_out(fit.table, hold_out):
        if (targets & wanted).any() and not dropped[fit.rows].all():
            yield targets, times_of(fit, fit.without(dropped))


def level_rows(table: Table, times: Times) -> Flags:
    """GPU-bound rows whose level means seconds, and not a score or an approximate profile."""
    return np.asarray(table.level_known & (times.host_s / times.step_s <= HOST_SHARE_LIMIT))


def level_weights(table: Table, error: Floats) -> Floats:
    """One vote for each harness, GPU and task, as a ratio has it, shared by the rows that are scored.

    Less of a row whose batch is not stated, by the variance that the plausible ones add.
    """
    scored = pd.Series(np.isfinite(error), dtype=float)
    weight = scored / scored.groupby(voters_of(table)).transform("sum").clip(lower=1.0)
    return np.asarray(weight / (1 + (batch_spread(table) / LEVEL.noise) ** 2), dtype=float)


def widened(half_width: Floats | float, spread: Floats) -> Floats:
    """Log half-widths with the 90 % range of an independent error of these standard deviations added."""
    return np.hypot(half_width, Z90 * spread)


def factor_of(scores: Floats, weight: Floats) -> float:
    """Conformal factor: the weighted quantile at 0.9 (n + 1) / n, where n votes were cast; NaN for none."""
    votes = float(weight.sum())
    if votes <= 0:
        return float("nan")
    order = np.argsort(scores, kind="stable")
    cumulative = np.cumsum(weight[order])
    share = min(1.0, COVERAGE * (votes + 1) / votes)
    at = np.searchsorted(cumulative, share * cumulative[-1] * (1 - 1e-12))
    return float(scores[order][min(len(scores) - 1, int(at))])
