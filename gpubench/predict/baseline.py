"""The method to beat: the prototype's published one, refitted on the same rows by the same protocol.

A roofline whose arithmetic and traffic overlap by a power mean, 17 coefficients and a host term a source,
used as a ratio, plus one shrunk residual of the owned GPU. No row of the target anywhere. The prototype
summed operators; the published profiles hold totals alone, so it is applied to totals here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpubench.predict.arrays import Array, Flags, Indices
from gpubench.predict.evaluate import Outcome
from gpubench.predict.pairs import (
    Pairs,
    balance_gap,
    gpu_bound,
    group_labels,
    log_errors,
    pairs_of,
    reach,
)
from gpubench.predict.published import Table
from gpubench.predict.roofline import REFERENCE_RIDGE, Mode, Times, take
from gpubench.specs import load_specs

_START = np.log(
    [
        0.546,
        0.4,
        0.402,
        0.409,
        0.531,
        0.449,
        0.409,
        0.452,
        1.629,
        1.098,
        1.005,
        0.147,
        0.568,
        0.595,
        0.483,
        2.93,
        0.309,
    ]
)  # as published; see docs/prediction.md
_FP32_RIDGE_SHARE = 0.3
_FLOOR_S = 2.5e-6
_HOST_START = math.log(7e-6)
_HOST_POWER = 4.0
_COEFFICIENT_TIE, _HOST_TIE = 1.0, 0.3  # how hard the fit is held at its start, as the prototype's was not
_SCALE = 0.15  # of the robust loss
_QUANTILE, _ABSOLUTE = 2.33, 0.515  # the prototype's interval
_STEPS = 25


@dataclass(frozen=True, kw_only=True)
class _Fit:
    z: Array
    sources: tuple[str, ...]
    residuals: Mapping[tuple[str, bool], float]


def evaluate(table: Table, hold_out: str) -> Outcome:
    """Predict every pair by the prototype's method, fitted without the target's group."""
    pairs = pairs_of(table)
    labels = group_labels(table, hold_out)
    n = len(pairs)
    error, width, bound = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, dtype=bool)
    absolute, absolute_width = np.full(len(table), np.nan), np.full(len(table), np.nan)
    for label in sorted(set(labels[pairs.y])):
        usable = table.training & (labels != label)
        fit = _fit(table, usable)
        times = _times(table, fit.z, fit.sources)
        chosen = labels[pairs.y] == label
        own = [fit.residuals.get((table.gpu_key[x], bool(table.arithmetic.half[x])), 0.0) for x in pairs.x]
        error[chosen] = (log_errors(table, pairs, times) + np.array(own))[chosen]
        bound[chosen] = gpu_bound(pairs, times)[chosen]
        width[chosen] = _half_width(table, pairs, times, frozenset(table.gpu_key[usable]))[chosen]
        rows = table.training & table.level_known & (labels == label) & (times.host_s / times.step_s <= 0.7)
        absolute[rows] = (np.log(times.step_s) - table.log_seconds)[rows]
        absolute_width[rows] = _ABSOLUTE
    return Outcome(
        table=table,
        pairs=pairs,
        log_error=error,
        half_width=width,
        bound=bound,
        absolute_error=absolute,
        absolute_half_width=absolute_width,
    )


def _half_width(table: Table, pairs: Pairs, times: Times, learned: frozenset[str]) -> Array:
    gap = balance_gap(take(table.chips, pairs.x), take(table.chips, pairs.y), table.arithmetic.conv[pairs.y])
    far = reach(table, pairs, times)
    specs = load_specs()
    seen = {specs[key].architecture for key in learned}
    known = np.array([specs[key].architecture in seen for key in table.gpu_key])[pairs.y]
    scale = np.where(known, 0.10 + 0.025 * gap + 0.045 * far, 0.12 + 0.004 * gap + 0.065 * far)
    return _QUANTILE * np.maximum(0.05, scale)


def _times(table: Table, z: Array, sources: tuple[str, ...]) -> Times:
    e = np.exp(z)
    conv, matmul, gain = e[0:4], e[4:8], np.array([e[8], e[8], e[9], e[10]])
    chips, work, each = table.chips, table.work, np.arange(len(table))

    def rate(mode: Indices, efficiency: Array) -> tuple[Indices, Array]:
        plain = np.where(chips.dual_issue, 1, 0)
        index = np.where(chips.tensor[each, mode], np.where(mode == Mode.TF32, 2, 3), plain)
        peak = chips.peaks[each, mode]
        exponent = e[14] * np.where(index < 2, _FP32_RIDGE_SHARE, 1.0)
        return index, efficiency[index] * peak * (peak / chips.bandwidth / REFERENCE_RIDGE) ** -exponent

    index, conv_rate = rate(table.arithmetic.conv, conv)
    _, matmul_rate = rate(table.arithmetic.matmul, matmul)
    compute = (
        (work.flops[:, 0] / gain[index] + work.flops[:, 1]) / conv_rate
        + work.flops[:, 2] / matmul_rate
        + work.flops[:, 3] / (e[11] * chips.peaks[:, Mode.FP32])
    )
    moved = work.bytes_ * np.where(table.arithmetic.half, 0.5, 1.0) + work.optimizer_bytes
    l2 = np.array([float(load_specs()[key].l2_bytes or 0) for key in table.gpu_key])
    cached = 1 + e[16] * np.minimum(1.0, l2 * work.operators / np.maximum(moved, 1.0))
    memory = moved / (np.where(table.arithmetic.half, e[13], e[12]) * chips.bandwidth * cached)
    floor = work.operators * _FLOOR_S
    gpu = (compute ** e[15] + memory ** e[15] + floor ** e[15]) ** (1 / e[15])
    number = np.array([sources.index(s) for s in table.source])
    host = work.operators * np.exp(z[len(_START) + number])
    return Times(
        compute_s=compute,
        memory_s=memory,
        floor_s=floor,
        gpu_s=gpu,
        host_s=host,
        step_s=(gpu**_HOST_POWER + host**_HOST_POWER) ** (1 / _HOST_POWER),
    )


def _fit(table: Table, usable: Flags) -> _Fit:
    """Robust least squares on log ratios inside cells, held loosely at the published coefficients."""
    from scipy.optimize import least_squares

    sources = tuple(sorted(set(table.source)))
    rows = np.flatnonzero(usable)
    shared = _several_gpus(table, rows)
    rows = rows[shared]
    part, cell = take(table, rows), table.cell[rows]
    count = np.bincount(cell, minlength=int(table.cell.max()) + 1)
    start = np.concatenate([_START, np.full(len(sources), _HOST_START)])
    tie = np.concatenate([np.full(len(_START), _COEFFICIENT_TIE), np.full(len(sources), _HOST_TIE)])

    def residuals(z: Array) -> Array:
        miss = np.log(_times(part, z, sources).step_s) - part.log_seconds
        mean = np.bincount(cell, weights=miss, minlength=len(count)) / np.maximum(count, 1)
        scaled = (miss - mean[cell]) / _SCALE
        soft = np.sign(scaled) * _SCALE * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))
        return np.concatenate([soft, tie * _SCALE * (z - start)])

    first = start.copy()
    first[len(_START) :] = math.log(2e-5)  # away from where the host has no gradient
    z = least_squares(residuals, first, max_nfev=_STEPS).x
    return _Fit(z=z, sources=sources, residuals=_residuals(part, z, sources))


def _several_gpus(table: Table, rows: Indices) -> Flags:
    seen: dict[int, set[str]] = {}
    for cell, gpu in zip(table.cell[rows], table.gpu_key[rows], strict=True):
        seen.setdefault(int(cell), set()).add(gpu)
    return np.array([len(seen[int(cell)]) > 1 for cell in table.cell[rows]])


def _residuals(table: Table, z: Array, sources: tuple[str, ...]) -> dict[tuple[str, bool], float]:
    """U = log model - log measured by GPU and precision: centred in cells, shrunk by sources."""
    miss = np.log(_times(table, z, sources).step_s) - table.log_seconds
    found: dict[tuple[str, bool], dict[str, list[float]]] = {}
    for cell in np.unique(table.cell):
        rows = np.flatnonzero(table.cell == cell)
        means = {g: float(miss[rows[table.gpu_key[rows] == g]].mean()) for g in set(table.gpu_key[rows])}
        centre = sum(means.values()) / len(means)
        half, source = bool(table.arithmetic.half[rows[0]]), str(table.source[rows[0]])
        for gpu, mean in means.items():
            found.setdefault((gpu, half), {}).setdefault(source, []).append(mean - centre)
    return {
        key: sum(sum(v) / len(v) for v in by_source.values()) / (len(by_source) + 1)
        for key, by_source in found.items()
    }
