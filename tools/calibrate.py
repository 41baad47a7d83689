"""Rebuild the calibration from the published rows, and from the user's own runs if they are given.

``python -m tools.calibrate -o gpubench/data/calibration.json`` rebuilds the shipped one.

The fit maximizes the posterior by Gauss-Newton, so every unknown is shrunk toward its prior. The unknowns are
coefficients (tight priors around round figures), host time per operator of each source, deviations of each
architecture, and offsets of source, model and cell (the rows of one source, model, precision and task). The
offsets absorb levels, so the fit learns how GPUs compare. Cell offsets are eliminated exactly because they
form a diagonal block. This also makes it cheap to find the fit without some rows: one solve, no refit.

The next part computes the errors on harnesses (benchmark programs) and GPUs that the fit has not seen, and
the half-widths that follow. A pair is "own X, predict Y" inside one cell. Its error comes from a fit without
the data held out with Y. The score of a pair is |log error| over a scale: the usual error of two GPUs with
this difference in balance of arithmetic and bandwidth, and with tensor cores on one or both. Each harness has
one vote for each target GPU. The votes of a harness or an architecture never set its own interval.

The last part fits the shares of ``scaling`` to published jobs on several GPUs. A row of
gpubench/data/scaling.csv is one job at two numbers of GPUs with the same batch per GPU. The fit learns the
ratio of the throughputs per GPU. Each harness has one vote for each GPU and model. Only the votes of other
harnesses set an interval. Jobs on GPUs of another vendor are never fitted; their interval has the width of
their own errors.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pandas as pd
from scipy.optimize import least_squares, nnls
from scipy.sparse import csr_array

from gpubench import errors, files, findings, folders, today
from gpubench.arrays import Flags, Floats, Indices
from gpubench.cli.output import print_json
from gpubench.models import Case, Execution, GpuSpec, Precision, Run, Status, TaskKind, WorkloadProfile
from gpubench.predict import chips, model, question, roofline
from gpubench.predict.calibration import (
    CALIBRATION_VERSION,
    JOBS,
    PROFILE,
    Calibration,
    Fitted,
    Learned,
    Scale,
    ScalingShares,
    group_names,
    halved,
    hash_of,
    installed_inputs,
    pair_features,
    pair_scale,
)
from gpubench.profile import load_profiles
from gpubench.readings import load_mlperf
from gpubench.record.store import own_runs
from gpubench.specs import load_specs
from tools.published import (
    PROFILES,
    PUBLISHED,
    Table,
    fitted_on,
    published_bytes,
    published_rows,
    shipped,
    table_with,
)

# The workload that stands for MLPerf's LoRA benchmark, and its batch per GPU [sequences of 2,048 tokens].
_LORA, _LORA_BATCH = "llama_8b_lora", 4
# Prior of each coefficient: value, and standard deviation of its logarithm (of the value if in _LINEAR).
PRIORS: dict[str, tuple[float, float]] = {
    "conv_fp32": (0.50, 0.20),
    "conv_fp32_dual": (0.50, 0.20),
    "conv_tf32": (0.40, 0.20),
    "conv_half": (0.50, 0.20),
    "matmul_fp32": (0.54, 0.20),
    "matmul_fp32_dual": (0.50, 0.20),
    "matmul_tf32": (0.48, 0.20),
    "matmul_half": (0.55, 0.20),
    "winograd_fp32": (1.90, 0.20),
    "winograd_fp32_dual": (1.80, 0.20),
    "winograd_tf32": (1.05, 0.20),
    "winograd_half": (1.02, 0.20),
    "depthwise": (0.10, 0.40),
    "bandwidth_fp32": (0.65, 0.20),
    "bandwidth_half": (0.60, 0.20),
    "width": (0.40, 0.15),
    "width_matmul": (0.40, 0.15),
    "cache": (0.03, 0.03),
    "operator_floor_s": (3.5e-6, 0.15),
    "power_exponent": (0.40, 0.10),
    "channels_last": (0.30, 0.20),
    "no_optimizer": (0.00, 0.10),
    "fused": (0.70, 0.30),
}
_LINEAR = frozenset(
    {"width", "width_matmul", "cache", "power_exponent", "channels_last", "no_optimizer", "fused"}
)
NAMES = tuple(PRIORS)
_PRIOR_MEAN = np.array([value if name in _LINEAR else np.log(value) for name, (value, _) in PRIORS.items()])
# ``HOST_POWER`` of a published harness. The host also loads, copies and logs, so less host time is hidden.
HARNESS_POWER = 1.25
# Prior log standard deviations: of an architecture's deviations, and of a source's host time.
_DEVIATION_SD, _HOST_LOG_SD = 0.02, 1.0
_REPEAT_EXPONENT = 0.4  # k rows of one (source, GPU, model, precision) count as k^0.6
_FREE_LEVEL_SD = 10.0  # of a cell whose level has no meaning, such as a score's
_ROBUST_SCALE = 3.0  # residuals beyond this many noise deviations lose weight
# Gauss-Newton: maximum number of steps, and the size of the last step and of the longest (of any unknown).
_MOST_STEPS, _CLOSE_ENOUGH, _LONGEST_STEP = 14, 2e-3, 1.0
_DIFFERENCE = 1e-4  # change of a coefficient in a numerical derivative
_UNIFORM = 12**0.5  # width of a uniform distribution over its standard deviation


@dataclass(frozen=True, kw_only=True)
class Aim:
    """The aim of a fit: log standard deviations of a row and of the offsets that absorb levels."""

    noise: float
    source: float
    model: float
    cell: float


# Ratios between GPUs: software and model may shift the level of a cell freely.
RATIO = Aim(noise=0.08, source=0.20, model=0.25, cell=0.25)
# Seconds, for users without a GPU: hardly any shift is allowed, so the coefficients must explain the level.
LEVEL = Aim(noise=0.20, source=0.05, model=0.02, cell=0.05)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fit: unknowns ``z``, and the linearized problem around them.

    Attributes:
        unknowns: (size,) kind and name of each: the coefficients, then the unknowns of ``places``.
        places: (n, 6) the unknowns of each table row: host, three deviations, source, model.
        z: (size,) their values.
        rows: Row numbers of the table that were used.
        columns: (rows, size + 1) derivatives of those rows, and their residuals in the last column.
        weight: Their weights.
        cell_sd: (cells,) prior standard deviation of each cell's offset.
        precision, prior: Precision matrix and mean of the prior of the unknowns.
    """

    table: Table
    aim: Aim
    unknowns: Sequence[tuple[str, str]]
    places: Indices
    z: Floats
    rows: Indices
    columns: Floats
    weight: Floats
    cell_sd: Floats
    precision: Floats
    prior: Floats

    @cached_property
    def sums(self) -> tuple[Indices, Floats, Floats, Floats]:
        """Cells of all rows, their weights and column sums, and products less what their offsets absorb."""
        cells, weight, sums, products = _sums(self, np.ones(len(self.rows), dtype=bool))
        return cells, weight, sums, products - _offsets(self, cells, weight, sums)

    def deviations(self, z: Floats | None = None) -> dict[str, list[float]]:
        """Return the deviations of each architecture, from ``z`` or the fit's own unknowns."""
        values = (self.z if z is None else z).tolist()
        known = [
            (name, value)
            for (kind, name), value in zip(self.unknowns, values, strict=True)
            if kind in roofline.DEVIATIONS
        ]
        return {name: [value for other, value in known if other == name] for name, _ in known}

    def without(self, dropped: Flags) -> Floats:
        """Return the unknowns after one Gauss-Newton step without some rows of the table.

        The sums of the cells are recomputed without these rows.
        """
        lost = dropped[self.rows]
        z = self.z + _step(self, lost)
        seen = set(self.table.architecture[self.rows][~lost])
        for at, (kind, name) in enumerate(self.unknowns):
            # An architecture without rows takes the deviation of its predecessor.
            if kind in roofline.DEVIATIONS and name not in seen and (older := chips.predecessor(name, seen)):
                z[at] = z[self.unknowns.index((kind, older))]
        return z


def coefficients_of(z: Floats) -> roofline.Coefficients:
    """Read the first unknowns as coefficients."""
    return roofline.Coefficients(
        **{n: float(v if n in _LINEAR else np.exp(v)) for n, v in zip(NAMES, z, strict=False)}
    )


def predict_rows(
    table: Table, coefficients: roofline.Coefficients, host_s_per_operator: Floats, deviations: Floats
) -> roofline.Times:
    """Return the roofline of every row of a table; deviations are (n, 3)."""
    return roofline.step_times(
        table.work,
        table.chips,
        table.arithmetic,
        coefficients,
        host_s_per_operator=host_s_per_operator,
        host_power=HARNESS_POWER,
        deviations=deviations,
    )


def times_of(fit: Fit, z: Floats | None = None) -> roofline.Times:
    """Return the roofline of every row of the fit's own table, with ``z`` or the fit's own unknowns."""
    return _times(fit.table, fit.places, fit.z if z is None else z)


def fit_table(table: Table, chosen: Flags, *, aim: Aim = RATIO) -> Fit:
    """Fit the chosen rows.

    Args:
        table: All rows; the fit ignores rows that are not chosen.
        chosen: The rows to learn from.
        aim: Ratios between GPUs, or levels.
    """
    deviations = dict.fromkeys(roofline.DEVIATIONS, table.architecture)
    labels = {"host": table.source, **deviations, "source": table.source, "model": table.base_model}
    named = [(kind, name) for kind, names in labels.items() for name in sorted(set(names))]
    unknowns = [*(("coefficient", name) for name in NAMES), *named]
    number = {unknown: at for at, unknown in enumerate(unknowns)}
    host = dict(zip(table.source, np.log(host_prior_s(table)), strict=True))  # a source has one execution
    prior = np.array([*_PRIOR_MEAN, *(host[name] if kind == "host" else 0.0 for kind, name in named)])
    sds = {"host": _HOST_LOG_SD, "source": aim.source, "model": aim.model}
    prior_sd = [*(sd for _, sd in PRIORS.values()), *(sds.get(kind, _DEVIATION_SD) for kind, _ in named)]
    rows = np.flatnonzero(chosen)
    noise = np.hypot(aim.noise, batch_spread(table)[rows])
    repeats = pd.DataFrame({"weight": 1.0}, index=rows).groupby(
        [column[rows] for column in (table.source, table.gpu_key, table.base_model, table.precision)]
    )
    full = repeats.weight.transform("sum").to_numpy() ** -_REPEAT_EXPONENT / noise**2
    # A score is no time, and some rows are of another network than the profile; for gnmt, the level is close.
    level_free = ~table.level_known & (table.model != "gnmt")
    cell_sd = np.full(int(table.cell.max()) + 1, aim.cell)
    cell_sd[table.cell[level_free]] = _FREE_LEVEL_SD
    fit = Fit(
        table=table,
        aim=aim,
        unknowns=unknowns,
        places=np.array([[number[kind, name] for name in names] for kind, names in labels.items()]).T,
        z=prior,
        rows=rows,
        columns=np.empty((0, len(prior) + 1)),
        weight=full,
        cell_sd=cell_sd,
        precision=np.diag(np.array(prior_sd) ** -2.0),
        prior=prior,
    )
    fit = _linearize(fit, full)
    for _ in range(_MOST_STEPS):
        step = _step(fit, np.zeros(len(rows), dtype=bool))
        longest = float(np.abs(step).max())
        if longest < _CLOSE_ENOUGH:
            break
        fit = _linearize(replace(fit, z=fit.z + step * min(1.0, _LONGEST_STEP / longest)), full)
    return fit


def _linearize(fit: Fit, full: Floats) -> Fit:
    """Linearize the problem around the unknowns of a fit.

    A row far from its cell's mean has less than its weight in ``full``.
    """
    table, places, z, cell_sd = roofline.take(fit.table, fit.rows), fit.places[fit.rows], fit.z, fit.cell_sd
    offset = z[places[:, 4]] + z[places[:, 5]]
    residual = table.log_seconds - np.log(_times(table, places, z).step_s) - offset
    total = np.bincount(table.cell, weights=full, minlength=len(cell_sd)) + cell_sd**-2
    mean = np.bincount(table.cell, weights=full * residual, minlength=len(cell_sd)) / total
    spread = residual - mean[table.cell]
    weight = full / (1 + (spread / (_ROBUST_SCALE * fit.aim.noise)) ** 2)
    return replace(fit, columns=np.column_stack([_jacobian(table, places, z), residual]), weight=weight)


def host_prior_s(table: Table) -> Floats:
    """Return the (n,) host times per operator for rows of a harness that is not in the fit [s]."""
    return np.array([roofline.HOST_S_PER_OPERATOR[execution] for execution in table.execution], dtype=float)


def batch_spread(table: Table) -> Floats:
    """Return the (n,) log standard deviation of seconds per sample due to an unknown batch; 0 if stated.

    All batches from the smallest to the largest plausible one are assumed equally likely on a log scale. The
    roofline with prior coefficients gives the difference between the two.
    """
    result = np.zeros(len(table))
    unstated = np.flatnonzero(table.batch_high > table.batch_low)
    if len(unstated):
        rows = roofline.take(table, unstated)
        before = coefficients_of(_PRIOR_MEAN)
        small, large = (
            predict_rows(
                replace(rows, work=work),
                before,
                host_prior_s(rows),
                np.zeros((len(rows), len(roofline.DEVIATIONS))),
            ).step_s
            / batch
            for work, batch in ((rows.work_low, rows.batch_low), (rows.work_high, rows.batch_high))
        )
        result[unstated] = np.abs(np.log(small / large)) / _UNIFORM
    return result


def _times(table: Table, places: Indices, z: Floats) -> roofline.Times:
    return predict_rows(table, coefficients_of(z), np.exp(z[places[:, 0]]), z[places[:, 1:4]])


def _jacobian(table: Table, places: Indices, z: Floats) -> Floats:
    """Return the derivative of log seconds: coefficients by differences, everything else in closed form."""
    times = _times(table, places, z)
    jacobian = np.zeros((len(table), len(z)))
    for k, moved in enumerate(z + _DIFFERENCE * np.eye(len(NAMES), len(z))):
        jacobian[:, k] = np.log(_times(table, places, moved).step_s / times.step_s) / _DIFFERENCE
    of_gpu = (times.gpu_s / times.step_s) ** HARNESS_POWER
    modes = np.stack([table.arithmetic.conv, table.arithmetic.matmul], axis=1)
    on_tensor = np.take_along_axis(table.chips.tensor, modes, axis=1).any(axis=1)
    compute, memory = (-each / times.gpu_s * of_gpu for each in (times.compute_s, times.memory_s))
    ones = np.ones(len(table))
    shares = np.stack([1 - of_gpu, compute, compute * on_tensor, memory, ones, ones], axis=1)
    np.put_along_axis(jacobian, places, shares, axis=1)
    return jacobian


def _step(fit: Fit, dropped: Flags) -> Floats:
    """Return one Gauss-Newton step without some of the rows of a fit.

    It solves the normal equations with the prior, from which the offsets of the cells are eliminated. The
    dropped rows are subtracted from sums over all rows, because they are few.
    """
    cells, weight, sums, products = fit.sums
    lost_cells, lost_weight, lost_sums, lost_products = _sums(fit, dropped)
    at = np.searchsorted(cells, lost_cells)
    kept = (
        products
        - lost_products
        + _offsets(fit, lost_cells, weight[at], sums[at])
        - _offsets(fit, lost_cells, weight[at] - lost_weight, sums[at] - lost_sums)
    )
    return np.asarray(
        np.linalg.solve(kept[:-1, :-1] + fit.precision, kept[:-1, -1] - fit.precision @ (fit.z - fit.prior)),
        dtype=float,
    )


def _sums(fit: Fit, rows: Flags) -> tuple[Indices, Floats, Floats, Floats]:
    # Return the cells of some rows, their weights and weighted column sums, and the products of the columns.
    columns, weight = fit.columns[rows], fit.weight[rows]
    cells, at = np.unique(fit.table.cell[fit.rows][rows], return_inverse=True)
    of_cell = csr_array((weight, (at, np.arange(len(at)))), shape=(len(cells), len(at)))
    return cells, of_cell.sum(axis=1), np.asarray(of_cell @ columns), columns.T @ (columns * weight[:, None])


def _offsets(fit: Fit, cells: Indices, weight: Floats, sums: Floats) -> Floats:
    # Return the part of the products that the offsets of these cells absorb.
    return sums.T @ (sums / (weight + fit.cell_sd[cells] ** -2)[:, None])


# --- errors on data that the fit has not seen ---------------------------------------------------------------

# Coverage of the intervals.
COVERAGE = 0.90
# Share of an error's variance that is common to all candidates of one anchor.
COMMON_SHARE = 0.8
# The rows held out of the fit for a target: for each listed column, every row with the target's value.
#
# ``harness`` is a user's situation: neither the user's harness nor the GPU is in the fit. ``publisher``
# leaves out only the harness. ``stranger`` also leaves out the GPU's whole architecture. The others leave out
# one thing and keep the rest of the target's harness; a ``vendor`` is left out of a table that has several.
HOLD_OUTS: Mapping[str, tuple[str, ...]] = {
    "harness": ("harness", "gpu_key"),
    "publisher": ("harness",),
    "stranger": ("harness", "architecture"),
    "gpu": ("gpu_key",),
    "family": ("family",),
    "architecture": ("architecture",),
    "model": ("base_model",),
    "vendor": ("vendor",),
}


# Groups of targets, (n,) flags of table rows, and for each the roofline by which it is judged.
Judged: TypeAlias = Iterable[tuple[Flags, roofline.Times]]


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Row numbers of the owned GPU (x) and the predicted GPU (y), and the weight of each pair.

    Each harness has one vote for each target GPU and task, however many models, batches and partners it has.
    Its rows of y share that vote evenly, and each y splits its share evenly over its x. A pair with
    an unknown batch counts less, by the variance that the plausible batches add.

    Attributes:
        spread: (pairs,) log standard deviation due to unknown batches, of x and y together.
    """

    x: Indices
    y: Indices
    weight: Floats
    spread: Floats


def pairs_of(table: Table, chosen: Flags | None = None) -> Pairs:
    """Return the pairs of (chosen) rows on two GPUs of one cell; x is the row with the nearest batch."""
    usable = np.arange(len(table)) if chosen is None else np.flatnonzero(chosen)
    columns = {"cell": table.cell, "gpu": table.gpu_key, "batch": table.batch, "harness": table.harness}
    rows = pd.DataFrame(columns | {"inference": table.inference}).iloc[usable].assign(at=usable)
    both = rows.merge(rows, on="cell", suffixes=("_x", "_y")).query("gpu_x != gpu_y")
    both = both.assign(gap=np.abs(np.log(both.batch_y / both.batch_x))).sort_values(["gap", "at_x"])
    nearest = both.drop_duplicates(["gpu_x", "at_y"]).sort_values(["at_y", "at_x"])
    partners = nearest.groupby("at_y").at_x.transform("size")
    targets = nearest.groupby(["harness_y", "gpu_y", "inference_y"]).at_y.transform("nunique")
    x, y = nearest.at_x.to_numpy(), nearest.at_y.to_numpy()
    unsure = batch_spread(table)
    spread = np.hypot(unsure[x], unsure[y])
    votes = (1.0 / (partners * targets)).to_numpy()
    return Pairs(x=x, y=y, weight=votes / (1 + (spread / RATIO.noise) ** 2), spread=spread)


def log_errors(table: Table, pairs: Pairs, times: roofline.Times) -> Floats:
    """Return the log of predicted over measured time of y, per sample, from the measurement of x."""
    level = np.log(times.step_s) - table.log_seconds
    return np.asarray(level[pairs.y] - level[pairs.x])


def geometric_mean_errors(table: Table, pairs: Pairs) -> Floats:
    """Return the log errors of the baseline: throughput follows the root of peak times bandwidth."""
    mode = roofline.leading_mode(table.work, table.arithmetic)
    peak = table.chips.peaks[np.arange(len(table)), mode]
    level = np.log(table.batch / np.sqrt(peak * table.chips.bandwidth)) - table.log_seconds
    return np.asarray(level[pairs.y] - level[pairs.x])


def held_out(table: Table, hold_out: str, fitted: Table | None = None) -> Iterator[tuple[Flags, Flags]]:
    """Yield each group of targets: its rows, and the rows of this table that its fit must not see."""
    kinds = HOLD_OUTS[hold_out]
    for group in sorted(set(zip(*(getattr(table, kind) for kind in kinds), strict=True))):
        mine, dropped = (
            [getattr(each, kind) == value for kind, value in zip(kinds, group, strict=True)]
            for each in (table, table if fitted is None else fitted)
        )
        yield np.logical_and.reduce(mine), np.logical_or.reduce(dropped)


def sides(table: Table, pairs: Pairs) -> tuple[Table, Table, Indices]:
    """Return the rows of x and y of every pair, and the kind of arithmetic that dominates each step of y."""
    own, target = roofline.take(table, pairs.x), roofline.take(table, pairs.y)
    return own, target, roofline.leading_mode(target.work, target.arithmetic)


def usual_errors(table: Table, pairs: Pairs, scale: Scale, level_error: Floats | None = None) -> Floats:
    """Return the usual |log error| of each pair of published rows, (pairs,); an unknown batch adds to it.

    Without the errors of the levels, no owned GPU counts as slow.
    """
    own, target, mode = sides(table, pairs)
    slowdown = 0.0 if level_error is None else -level_error[pairs.x]
    return np.hypot(pair_scale(scale, own.chips, target.chips, mode, slowdown), pairs.spread)


def fit_scale(table: Table, pairs: Pairs, log_error: Floats, level_error: Floats, chosen: Flags) -> Scale:
    """Return the scale that best fits the errors of the chosen pairs, by non-negative least squares.

    The term of a slow GPU is fitted to the residuals of the other terms, so it only widens intervals.
    """
    chosen_pairs = roofline.take(pairs, chosen)
    own, target, mode = sides(table, chosen_pairs)
    root = np.sqrt(chosen_pairs.weight)
    features = pair_features(own.chips, target.chips, mode, -level_error[chosen_pairs.x])
    weighted, size = (
        features * root[:, None],
        np.abs(log_error[chosen]) * root,
    )  # last: a slow GPU
    terms = nnls(weighted[:, :3], size)[0]
    more = nnls(weighted[:, 3:], size - weighted[:, :3] @ terms)[0]
    return Scale(**dict(zip(Scale.__struct_fields__, [*terms.tolist(), *more.tolist()], strict=True)))


def without_each(fit: Fit, hold_out: str) -> Judged:
    """Remove each group from the fit by one Gauss-Newton step; a removed host takes the prior."""
    for targets, dropped in held_out(fit.table, hold_out):
        if not dropped[fit.rows].all():
            yield targets, times_of(fit, fit.without(dropped))


def ratio_errors(table: Table, pairs: Pairs, judged: Judged) -> tuple[Floats, Flags]:
    """Return the log error of every pair by its target's roofline, and whether the GPU limits both speeds."""
    error, bound = np.full(len(pairs.y), np.nan), np.zeros(len(pairs.y), dtype=bool)
    for targets, times in judged:
        mine, free = targets[pairs.y], times.host_s / times.step_s <= roofline.HOST_SHARE_LIMIT
        error[mine] = log_errors(table, pairs, times)[mine]
        bound[mine] = (free[pairs.x] & free[pairs.y])[mine]
    return error, bound


def level_errors(table: Table, judged: Judged) -> Floats:
    """Return the log of predicted over measured time of every row with a level in seconds.

    Other rows are NaN. Only GPU-bound rows count, without scores and approximate profiles.
    """
    error = np.full(len(table), np.nan)
    for targets, times in judged:
        rows = targets & table.level_known & (times.host_s / times.step_s <= roofline.HOST_SHARE_LIMIT)
        error[rows] = (np.log(times.step_s) - table.log_seconds)[rows]
    return error


def stays(table: Table, pairs: Pairs, level_error: Floats) -> Floats:
    """Return the (pairs,) part of x's level error, in log seconds, that a prediction does not move to y.

    It is 0 if x and y are the same chip.
    """
    chip = np.array([chips.chip_of(key) for key in table.gpu_key])
    return np.where(chip[pairs.x] == chip[pairs.y], 0.0, model.own_part(-level_error[pairs.x]))


def level_weights(table: Table, error: Floats) -> Floats:
    """Return the votes of the scored rows: one for each harness, GPU and task, as for ratios.

    A row with an unknown batch counts less, by the variance that the plausible batches add.
    """
    scored = pd.Series(np.isfinite(error), dtype=float)
    votes = scored.groupby([table.harness, table.gpu_key, table.inference]).transform("sum")
    weight = scored / votes.clip(lower=1.0)
    return np.asarray(weight / (1 + (batch_spread(table) / LEVEL.noise) ** 2), dtype=float)


def factor_of(scores: Floats, weight: Floats) -> float:
    """Return the conformal factor: the weighted quantile at 0.9 (n + 1) / n of n votes; NaN for none."""
    votes = float(weight.sum())
    if votes <= 0:
        return float("nan")
    share = min(1.0, COVERAGE * (votes + 1) / votes)
    return weighted_quantile(scores, weight, share * (1 - 1e-12))  # rounding must not reach the next vote


def weighted_quantile(values: Floats, weights: Floats, share: float = 0.5) -> float:
    """Return the value below which a share of the weight lies; by default the median."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    at = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return float(values[order][min(len(values) - 1, at)])


# --- several GPUs in one job --------------------------------------------------------------------------------

# Prior of each share, and the standard deviation of its logarithm. No row has GeForce cards, so the prior
# of ``host`` remains. NVLink's prior comes from bare collectives of 16 MiB and more on seven systems, and
# PCIe's from the only sound system (tests/tools/test_collectives.py).
SHARE_PRIORS: Mapping[str, tuple[float, float]] = {
    "waiting": (0.010, 0.7),
    "hidden": (0.75, 0.5),
    "nvlink": (0.65, 0.10),
    "fabric": (0.75, 0.5),
    "pcie": (0.43, 0.35),
    "host": (0.35, 0.35),
}
_JOB_NOISE = 0.05  # log standard deviation of a row; a row beyond ``_ROBUST_SCALE`` times this loses weight
# Usual log error for each doubling of the number of GPUs if the shares are known.
LEAST_ERROR = 0.02


@cache
def jobs() -> pd.DataFrame:
    """Return the shipped rows, without GPUs that are not in the specification table.

    Columns: ``harness``, ``gpu_key``, ``model``; ``few`` and ``many`` GPUs; their ``exchange``; ``asked``,
    the exchange with both numbers; whether the vendor is ``fitted``; ``log_ratio`` of the throughput per GPU
    with many GPUs over few; and their ``weight``: one vote for each harness, GPU and model.
    """
    text = pd.DataFrame(row for row in folders.data_rows(JOBS) if row["gpu_key"] in load_specs())
    rates = ["few_samples_per_s", "many_samples_per_s", "samples_per_step", "parameters_m"]
    rows = text.astype(dict.fromkeys(["few_gpus", "many_gpus", *rates], float))
    specs = [load_specs()[key] for key in rows.gpu_key]
    exchange = [
        model.Exchange(
            # A job that sends weights before their use never waits, as if nothing were exchanged
            gradient_bytes=0.0
            if row["exchange"] != "gradients"
            else row["parameters_m"] * 1e6 * model.GRADIENT_BYTES,
            link=link,
            rate=rate,
            step_s=row["samples_per_step"] / row["few_samples_per_s"],
        )
        for row, (link, rate) in zip(rows.to_dict("records"), map(model.link_of, specs), strict=True)
    ]
    few, many = rows.few_gpus.astype(int), rows.many_gpus.astype(int)
    return rows.assign(
        few=few,
        many=many,
        exchange=pd.Series(exchange, rows.index, dtype=object),
        asked=pd.Series([*zip(exchange, few, many, strict=True)], rows.index, dtype=object),
        fitted=[spec.vendor == question.FITTED_VENDOR for spec in specs],
        log_ratio=np.log(rows.many_samples_per_s / rows.few_samples_per_s),
        weight=1 / rows.groupby(["harness", "gpu_key", "model"]).few_gpus.transform("size"),
    )


def fit_scaling(rows: pd.DataFrame) -> ScalingShares:
    """Fit the shares to the rows of ``jobs``, and the interval widths to the errors on these rows."""
    error, usual = _errors(rows)
    weight, known = rows.weight.to_numpy(), rows.fitted.to_numpy()
    return msgspec.structs.replace(
        _shares(rows),
        factor=factor_of((np.abs(error) / usual)[known], weight[known]),
        other_vendors=None if known.all() else factor_of(np.abs(error)[~known], weight[~known]),
    )


def _shares(rows: pd.DataFrame) -> ScalingShares:
    """Fit the shares to the jobs of the fitted vendor; the widths follow later."""
    rows = rows[rows.fitted]
    mean, deviation = np.array(
        [(math.log(SHARE_PRIORS[name][0]), SHARE_PRIORS[name][1]) for name in model.SHARES]
    ).T
    root = np.sqrt(rows.weight.to_numpy()) / _JOB_NOISE

    def residuals(logs: Floats) -> Floats:
        each = (_log_efficiencies(logs, rows) - rows.log_ratio.to_numpy()) * -root
        tamed = np.sqrt(2 * (np.sqrt(1 + (each / _ROBUST_SCALE) ** 2) - 1)) * _ROBUST_SCALE
        return np.concatenate([np.copysign(tamed, each), (logs - mean) / deviation])

    logs = least_squares(residuals, mean).x
    jacobian = (
        np.array([model.slopes(logs, *job) for job in rows.asked]).reshape(-1, len(model.SHARES))
        * root[:, None]
    )
    covariance = np.linalg.inv(np.diag(deviation**-2.0) + jacobian.T @ jacobian)
    return ScalingShares(
        logs=tuple(logs.tolist()),
        covariance=tuple(map(tuple, covariance.tolist())),
        noise=LEAST_ERROR,
        factor=math.nan,
        other_vendors=None,
    )


def _log_efficiencies(logs: Floats | tuple[float, ...], rows: pd.DataFrame) -> Floats:
    return np.array([model.log_efficiency(logs, *job) for job in rows.asked])


def _errors(rows: pd.DataFrame) -> tuple[Floats, Floats]:
    # Return the log error of each row and its usual size, by shares fitted without its harness.
    error, usual = np.full((2, len(rows)), np.nan)
    for name in set(rows.harness):
        mine = (rows.harness == name).to_numpy()
        shares = _shares(rows[~mine])
        error[mine] = _log_efficiencies(shares.logs, rows[mine]) - rows.log_ratio[mine]
        usual[mine] = [model.usual_error(shares, *job) for job in rows.asked[mine]]
    return error, usual


def scaling_errors() -> tuple[pd.DataFrame, Floats, Floats]:
    """Return the jobs, the errors of the model with each harness held out, and its half-widths (logs)."""
    rows = jobs()
    error, usual = _errors(rows)
    weight, width, scores = rows.weight.to_numpy(), np.full(len(rows), np.nan), np.abs(error) / usual
    known, harness = rows.fitted.to_numpy(), rows.harness.to_numpy()
    for name in sorted(set(harness)):
        mine, others = known & (harness == name), known & (harness != name)
        width[mine] = factor_of(scores[others], weight[others]) * usual[mine]
    return rows, error, width


# --- the calibration ----------------------------------------------------------------------------------------


# The hold-out that sets the width of a GPU's interval, by whether its architecture has rows.
KINDS = {"known": "harness", "stranger": "stranger"}
# Fewest cards with which another vendor's architecture has its own interval.
FEWEST_CARDS = 3
_DIGITS = 6  # enough for every prediction, and few enough to be equal on every machine


def calibrate(own: Sequence[Run] = (), *, fitted: str) -> Calibration:
    """Fit everything that a prediction needs.

    The same inputs give the same calibration. Floats are rounded so that all machines agree.

    Args:
        own: Runs to add to the published rows as further cells; only GPU runs count.
        fitted: Date to write into the calibration.
    """
    mine = own_table(own) if own else None
    calibration = Calibration(
        schema_version=CALIBRATION_VERSION,
        fitted=fitted,
        inputs=inputs_of(own),
        train=_fitted(TaskKind.TRAIN, mine),
        infer=_fitted(TaskKind.INFER, mine),
        scaling=fit_scaling(jobs()),
        common_share=COMMON_SHARE,
    )
    return msgspec.convert(
        json.loads(
            msgspec.json.encode(calibration),
            parse_float=lambda figure: float(f"{float(figure):.{_DIGITS - 1}e}"),
        ),
        Calibration,
    )


def inputs_of(own: Sequence[Run] = ()) -> dict[str, str]:
    """Return the SHA-256 of everything that a fit reads: tables, profiles of workloads, the user's own runs.

    A published row reads the profile of a workload only if no profile of its model was published.
    """
    rows = fitted_on(TaskKind.INFER, (question.FITTED_VENDOR, *question.OTHER_VENDORS))
    published = {
        (task is TaskKind.INFER, row["model"])
        for task, table in PROFILES.items()
        for row in published_rows(table)
    }
    read = {*zip(rows.inference.tolist(), (name.partition("+")[0] for name in rows.model), strict=True)}
    workloads = {
        _LORA,
        *(name for _, name in read - published),
        *(profile.name for run in own for _, _, profile, _ in _measured(run)),
    }
    runs = sorted(msgspec.json.encode(run, order="sorted") for run in own)
    return {
        **{name: hash_of(published_bytes(name)) for name in PUBLISHED},
        **installed_inputs(f"{PROFILE}{name}" for name in workloads),
        **({"own runs": hash_of(b"".join(runs))} if own else {}),
    }


def write_calibration(results: Path | None, path: Path, day: date | None = None) -> dict[str, Any]:
    """Calibrate, with the runs of a results folder if one is named, and write the calibration.

    Returns:
        The size of each fit, and why published rows were not used.

    Raises:
        MisuseError: If the folder does not exist, or the day is in the future.
        StorageError: If it cannot be written.
    """
    if results is not None and not (results / "runs").is_dir():
        raise errors.MisuseError(f"{results} is not a results folder: give the one that contains runs/")
    own = () if results is None else own_runs(results)
    calibration = calibrate(own, fitted=today.day_of(day, "--date").isoformat())
    files.write_file(path, files.table_json(calibration, order="sorted"), hint="choose another file with -o")
    return {
        "path": str(path),
        "fitted": calibration.fitted,
        "rows": calibration.train.rows,
        "inference_rows": calibration.infer.rows,
        "gpus": len(calibration.train.rows_by_gpu),
        "sources": calibration.train.sources,
        "skipped": dict(shipped((question.FITTED_VENDOR, *question.OTHER_VENDORS)).skipped_by_kind),
        "inputs": calibration.inputs,
    }


def _fitted(task: TaskKind, own: Table | None) -> Fitted:
    """Make both fits of one task, and count their data.

    GPUs of other vendors are in the table, but never in the fit.
    """
    table = fitted_on(task, (question.FITTED_VENDOR, *question.OTHER_VENDORS))
    if own is not None:  # its cells stay separate
        table = roofline.stack([table, replace(own, cell=own.cell + int(table.cell.max()) + 1)])
    seen = table.vendor == question.FITTED_VENDOR
    mine = table.inference == (task is TaskKind.INFER)
    scored, of_others = mine & seen, mine & ~seen
    level = fit_table(table, seen, aim=LEVEL)
    return Fitted(
        rows=int(scored.sum()),
        sources=len(set(table.source[scored])),
        rows_by_gpu=dict(sorted(Counter(table.gpu_key[scored]).items())),
        apart_by_gpu=dict(sorted(Counter(table.gpu_key[of_others]).items())),
        ratio=_by_ratio(fit_table(table, seen), level, seen),
        level=_by_level(level, seen),
    )


def _by_ratio(fit: Fit, level: Fit, seen: Flags) -> Learned:
    """Learn from ratios, without the part of an error that stays with the owned card.

    All kinds use the scale of the first hold-out. Pairs of other vendors start at a GPU of the fitted vendor.
    """
    scale, factor = None, {}
    pairs = pairs_of(fit.table, seen)
    for name, hold_out in KINDS.items():
        error, bound = ratio_errors(fit.table, pairs, without_each(fit, hold_out))
        levels = level_errors(fit.table, without_each(level, hold_out))
        error -= stays(fit.table, pairs, levels)
        scale = scale or fit_scale(fit.table, pairs, error, levels, bound)
        scores = np.abs(error) / usual_errors(fit.table, pairs, scale)
        factor[name] = factor_of(scores[bound], pairs.weight[bound])
    pairs = pairs_of(fit.table)
    error, _ = ratio_errors(fit.table, pairs, without_each(fit, "vendor"))
    vendor = fit.table.vendor
    error[(vendor[pairs.x] != question.FITTED_VENDOR) | (vendor[pairs.y] == question.FITTED_VENDOR)] = np.nan
    return _learned(fit, scale, factor, *_others(fit, error, pairs.y, pairs.weight))


def _by_level(fit: Fit, seen: Flags) -> Learned:
    factor = {}
    for name, hold_out in KINDS.items():
        error = np.where(seen, level_errors(fit.table, without_each(fit, hold_out)), np.nan)
        scored = np.isfinite(error)
        factor[name] = factor_of(np.abs(error[scored]), level_weights(fit.table, error)[scored])
    error = np.where(seen, np.nan, level_errors(fit.table, without_each(fit, "vendor")))
    others = _others(fit, error, np.arange(len(error)), level_weights(fit.table, error))
    return _learned(fit, None, factor, *others)


def _others(
    fit: Fit, error: Floats, rows: Indices, weight: Floats
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Judge GPUs of other vendors by a fit without any of them: deviations and half-widths (logs).

    The deviation of an architecture's whole step from the fit is the mean of its errors, shrunk as if each
    vote had an error of 30 % and architectures differed by 50 %. The interval of a product line (Instinct,
    Radeon) has the width of its errors before that correction, separately for half precision. An architecture
    with ``FEWEST_CARDS`` or more has its own width, from the errors that remain after correction by its other
    cards.
    """
    table, each = fit.table, {"error": error, "weight": weight}
    cards = {"card": table.gpu_key, "kind": table.architecture, "half": table.arithmetic.half}
    judged = pd.DataFrame(each | {name: column[rows] for name, column in cards.items()}).dropna()
    lines = [group_names(load_specs()[card])[-1] for card in judged.card]
    deviations: dict[str, list[float]] = {}
    widths: dict[str, float] = {}
    for line, mine in judged.groupby(lines):
        widths |= _widths(str(line), mine)
    for name, mine in judged.groupby("kind"):
        deviations[str(name)] = [_shift(mine), 0.0, _shift(mine)]
        if mine.card.nunique() >= FEWEST_CARDS:
            shifts = {card: _shift(mine[mine.card != card]) for card in set(mine.card)}
            left = mine.assign(error=mine.error - mine.card.map(shifts))
            widths |= _widths(group_names(load_specs()[mine.card.iloc[0]])[0], left)
    return deviations | successors(coefficients_of(fit.z), deviations), widths


def successors(
    coefficients: roofline.Coefficients, known: Mapping[str, list[float]]
) -> dict[str, list[float]]:
    """Return the deviations of architectures without rows that MLPerf submitters ran next to the predecessor.

    In one round, a submitter runs the same software on both cards, so the ratio of their times shows the gain
    over the predecessor's deviation. It is shrunk like a deviation, with one vote for each new card. MLPerf
    trains adapters of a model with 70 billion parameters; the prediction is for a model with 8 billion.
    """
    runs = (
        pd.DataFrame(msgspec.to_builtins(load_mlperf()))
        .query("benchmark == 'llama2_70b_lora'")
        .assign(kind=lambda each: each.gpu_key.map(chips.architecture_of))
    )
    pairs = runs.merge(runs, on=["round", "submitter", "gpus"], suffixes=("", "_before"))
    pairs = pairs[
        ~pairs.kind.isin(known)
        & (pairs.kind_before == pairs.kind.map(lambda kind: chips.predecessor(kind, known)))
    ]
    work = roofline.work_of(load_profiles()[_LORA].train, _LORA_BATCH)

    def log_s(keys: Sequence[str]) -> Floats:
        return np.log(
            roofline.step_times(
                work,
                chips.chips_of([load_specs()[key] for key in keys]),
                roofline.arithmetic_of(Precision.BF16, None, len(keys)),
                coefficients,
                host_s_per_operator=0.0,
                deviations=roofline.deviations_of(known, keys),
            ).step_s
        )

    measured = np.log(pairs.minutes_before / pairs.minutes)
    gains = pairs.assign(
        error=measured - log_s([*pairs.gpu_key_before]) + log_s([*pairs.gpu_key]), weight=1.0
    )
    votes = gains.groupby(["kind", "kind_before", "gpu_key"], as_index=False)[["error", "weight"]].mean()
    return {
        str(kind): [known[str(before)][0] + _shift(mine), 0.0, known[str(before)][2] + _shift(mine)]
        for (kind, before), mine in votes.groupby(["kind", "kind_before"])
    }


def _widths(name: str, judged: pd.DataFrame) -> dict[str, float]:
    # Return the half-widths of a group by arithmetic: the errors of matrix cores and vector units differ.
    return {
        halved(name) if half else name: factor_of(mine.error.abs().to_numpy(), mine.weight.to_numpy())
        for half, mine in judged.groupby("half")
    }


def _shift(judged: pd.DataFrame) -> float:
    votes = float(judged.weight.sum())
    return float(np.average(judged.error, weights=judged.weight)) * votes / (votes + 0.3**2 / 0.5**2)


def _learned(
    fit: Fit,
    scale: Scale | None,
    factor: dict[str, float],
    others: dict[str, list[float]],
    other_vendors: dict[str, float],
) -> Learned:
    own, sources = set(fit.table.architecture[fit.rows]), set(fit.table.source[fit.rows])
    deviations = {name: [round(v, _DIGITS) for v in d] for name, d in fit.deviations().items() if name in own}
    return Learned(
        coefficients=coefficients_of(fit.z),
        host_s_per_operator={
            name: float(np.exp(value))
            for (kind, name), value in zip(fit.unknowns, fit.z, strict=True)
            if kind == "host" and name in sources
        },
        deviations=deviations | others,
        scale=scale,
        factor=factor,
        other_vendors=other_vendors,
    )


# --- the user's own runs, as further cells ------------------------------------------------------------------


def own_table(runs: Sequence[Run]) -> Table | None:
    """Return the GPU training rows of standard workloads run as CUDA graphs, as a table.

    None if there are none. A graph keeps the host out of the figure; an eager row would include the speed of
    this host's Python.
    """
    found = [each for run in sorted(runs, key=lambda r: r.run_id) for each in _measured(run)]
    if not found:
        return None
    rows = pd.DataFrame(
        [(p.name, str(c.precision), spec.key, c.batch_size, 1 / rate) for spec, c, p, rate in found],
        columns=["model", "precision", "gpu_key", "batch", "seconds_per_sample"],
    ).assign(
        source="gpubench-graph",
        task=str(TaskKind.TRAIN),
        level_known=True,
        execution="graph",
        torch="",
        data_input="synthetic",
        doubt="",
        batch_low=lambda each: each.batch,
        batch_high=lambda each: each.batch,
    )
    work = roofline.stack(
        [roofline.work_of(p.train, c.batch_size, roofline.cast_bytes_of(p, c.task)) for _, c, p, _ in found]
    )
    arithmetic = roofline.stack(
        [roofline.arithmetic_of(c.precision, c.memory_format, 1) for _, c, _, _ in found]
    )
    return table_with(rows, work=work, work_low=work, work_high=work, arithmetic=arithmetic)


def _measured(run: Run) -> Iterator[tuple[GpuSpec, Case, WorkloadProfile, float]]:
    # Yield the usable cases of a run, with the device and its samples per second.
    spec = question.gpu_of(run.device)
    if spec is None:
        return
    for m in run.measurements:
        case, profile = m.case, load_profiles().get(m.case.workload)
        wanted = (
            m.status is Status.OK
            and case.task is TaskKind.TRAIN
            and case.execution is Execution.GRAPH
            and case.gpu_count == 1
            and not case.setup
            and not findings.is_unfounded(m.findings)
            and not any(each.kind in question.DISTURBED for each in m.findings)
        )
        if wanted and profile is not None and profile.version == case.workload_version and m.samples_per_s:
            yield spec, case, profile, m.samples_per_s


if __name__ == "__main__":
    parser = ArgumentParser(description="Rebuild the calibration from the published measurements.")
    parser.add_argument("--with", dest="results", type=Path, help="results folder whose GPU runs are added")
    parser.add_argument("-o", "--output", type=Path, required=True, help="where to write")
    parser.add_argument(
        "--date", type=date.fromisoformat, help="date of the calibration, YYYY-MM-DD; today by default"
    )
    asked = parser.parse_args()
    try:
        print_json(write_calibration(asked.results, asked.output, asked.date))
    except errors.GpuBenchError as error:
        parser.error(str(error))
