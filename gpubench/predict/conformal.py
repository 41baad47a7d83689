"""Conformal half-widths: how large were the errors on harnesses and GPUs that the fit had not seen?

The score of a pair is |log error| over a scale: what is usual for two GPUs that balance arithmetic and
bandwidth so differently, and of which one or both have tensor cores. Each harness has one vote for each
target GPU; an interval is never set by the votes of its own harness, nor of its own architecture.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.predict.fit import LEVEL, Fit, batch_spread, times_of
from gpubench.predict.pairs import HOST_SHARE_LIMIT, Pairs, gpu_bound, held_out, log_errors, sides, voters_of
from gpubench.predict.published import Table
from gpubench.predict.roofline import Chips, Times

COVERAGE = 0.90
"""Of the intervals."""
_RANGE_90 = 1.645  # half of what holds 90 % of a normal distribution, in standard deviations
LEAST_SCALE = 0.02
"""No pair is taken to be surer than this (log)."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The usual |log error| of a ratio between two GPUs: a sum of three terms, none of them negative.

    Attributes:
        base: Of every pair.
        gap: For each e-fold by which the ratio of the bandwidths leaves the ratio of the peaks.
        crossing: Where one of the two has tensor cores for the step's arithmetic and the other has none.
    """

    base: float
    gap: float
    crossing: float


def pair_scale(scale: Scale, own: Chips, target: Chips, mode: Indices) -> Floats:
    """Usual |log error| of each pair, (n,).

    Args:
        scale: From the calibration.
        own: (n,) GPUs that were measured, or one.
        target: (n,) GPUs that are predicted.
        mode: (n,) arithmetic that most of the step runs in.
    """
    features = _features(own, target, mode)
    usual = features @ np.array([scale.base, scale.gap, scale.crossing])
    return np.asarray(np.maximum(usual, LEAST_SCALE), dtype=float)


def usual_errors(table: Table, pairs: Pairs, scale: Scale) -> Floats:
    """Usual |log error| of each pair of published rows, (pairs,): more where a batch is not stated."""
    own, target, mode = sides(table, pairs)
    return np.hypot(pair_scale(scale, own.chips, target.chips, mode), pairs.spread)


def fit_scale(table: Table, pairs: Pairs, log_error: Floats, chosen: Flags) -> Scale:
    """The scale that fits the errors of the chosen pairs best, by non-negative least squares."""
    from scipy.optimize import nnls

    own, target, mode = sides(table, pairs.some(chosen))
    root = np.sqrt(pairs.weight[chosen])
    features = _features(own.chips, target.chips, mode)
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
    result: Flags = table.level_known & (times.host_s / times.step_s <= HOST_SHARE_LIMIT)
    return result


def level_weights(table: Table, error: Floats) -> Floats:
    """One vote for each harness, GPU and task, as a ratio has it, shared by the rows that are scored.

    Less of a row whose batch is not stated, by the variance that the plausible ones add.
    """
    voter = voters_of(table)
    weight = np.zeros(len(table))
    for each in set(voter[np.isfinite(error)]):
        rows = (voter == each) & np.isfinite(error)
        weight[rows] = 1.0 / rows.sum()
    return np.asarray(weight / (1 + (batch_spread(table) / LEVEL.noise) ** 2), dtype=float)


def widened(half_width: Floats | float, spread: Floats) -> Floats:
    """Log half-widths with the 90 % range of an independent error of these standard deviations added."""
    return np.hypot(half_width, _RANGE_90 * spread)


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


def _features(own: Chips, target: Chips, mode: Indices) -> Floats:
    """(n, 3): one, the gap in balance, and whether one side alone has tensor cores."""
    each = np.arange(len(mode))
    owned = each if len(own.bandwidth) == len(each) else np.zeros_like(each)
    peaks = np.log(own.peaks[owned, mode] / target.peaks[each, mode])
    gap = np.abs(np.log(own.bandwidth[owned] / target.bandwidth) - peaks)
    crossing = own.tensor[owned, mode] != target.tensor[each, mode]
    return np.stack([np.ones(len(each)), gap, crossing.astype(float)], axis=1)
