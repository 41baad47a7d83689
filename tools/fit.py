"""The fit: coefficients, host terms and each architecture's deviation at once, every one of them shrunk.

A maximum of the posterior by Gauss-Newton. Unknowns: coefficients (tight priors around round figures),
host time per operator of each source, deviations of each architecture, offsets of source, model and cell. The
offsets soak up levels, so that what is learned is how GPUs compare. Cell offsets are eliminated exactly (they
form a diagonal block), which also makes it cheap to ask what the fit would have been without some rows: one
solve, no refit.

Below it, what errs how far on harnesses and GPUs that the fit had not seen, and the half-widths that follow.
A pair is "own X, predict Y" inside one cell. Its error is found by a fit without what is held out with Y. The
score of a pair is |log error| over a scale: what is usual for two GPUs that balance arithmetic and bandwidth
so differently, and of which one or both have tensor cores. Each harness has one vote for each target GPU; an
interval is never set by the votes of its own harness, nor of its own architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import TaskKind
from gpubench.predict.calibration import Scale, pair_features, pair_scale
from gpubench.predict.chips import predecessor
from gpubench.predict.roofline import (
    DEVIATIONS,
    HOST_S_PER_OPERATOR,
    HOST_SHARE_LIMIT,
    Coefficients,
    Times,
    leading_mode,
    step_times,
    take,
)
from gpubench.stats import Z90
from tools.published import Table

# Prior of each coefficient: value, and standard deviation of its log (of itself for those in _LINEAR).
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
    "cache": (0.03, 0.03),
    "operator_floor_s": (3.5e-6, 0.15),
    "power_exponent": (0.40, 0.10),
    "channels_last": (0.30, 0.20),
    "no_optimizer": (0.00, 0.10),
    "fused": (0.70, 0.30),
}
_LINEAR = frozenset({"width", "cache", "power_exponent", "channels_last", "no_optimizer", "fused"})
NAMES = tuple(PRIORS)
_PRIOR_MEAN = np.array([value if name in _LINEAR else np.log(value) for name, (value, _) in PRIORS.items()])
HARNESS_POWER = 1.25
"""``HOST_POWER`` of a published harness, whose host also loads, copies and logs: less of that is hidden."""
_DEVIATION_SD = 0.02
_HOST_LOG_SD = 1.0
_REPEAT_EXPONENT = 0.4  # k rows of one (source, GPU, model, precision) count as k^0.6
_SCORE_SD = 10.0  # the level of a score says nothing
_ROBUST_SCALE = 3.0  # residuals beyond so many noise deviations lose weight
_MOST_STEPS, _CLOSE_ENOUGH, _LONGEST_STEP = 14, 2e-3, 1.0
_STEP = 1e-4
_UNIFORM = 12**0.5  # width of a uniform distribution over its standard deviation


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What a fit is for: log standard deviations of a row and of the offsets that soak up levels."""

    noise: float
    source: float
    model: float
    cell: float


RATIO = Aim(noise=0.08, source=0.20, model=0.25, cell=0.25)
"""How GPUs compare: software and model may shift the level of a cell freely."""
LEVEL = Aim(noise=0.20, source=0.05, model=0.02, cell=0.05)
"""Seconds, for whoever owns no GPU: hardly any shift is allowed, so the coefficients must explain it."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where each kind of unknown stands in the vector, after the coefficients.

    Attributes:
        host: First host term; there is one of each source.
        deviation: First deviation: the first kind of all architectures, then the second, then the third.
        source, model: First offset of a source, and of a model.
        size: Number of unknowns, cells apart.
    """

    sources: tuple[str, ...]
    architectures: tuple[str, ...]
    models: tuple[str, ...]
    host: int
    deviation: int
    source: int
    model: int
    size: int

    def deviations(self, z: Floats) -> Floats:
        """Those of the unknowns, (kinds, architectures): what is written there changes them."""
        return z[self.deviation : self.source].reshape(len(DEVIATIONS), len(self.architectures))


def layout_of(table: Table) -> Layout:
    """The unknowns of a fit to any rows of a table."""
    names = [tuple(sorted(set(each))) for each in (table.source, table.architecture, table.base_model)]
    sources, architectures, models = names
    sizes = [len(NAMES), len(sources), len(DEVIATIONS) * len(architectures), len(sources), len(models)]
    host, deviation, source, model, size = map(int, np.cumsum(sizes))
    return Layout(
        sources=sources,
        architectures=architectures,
        models=models,
        host=host,
        deviation=deviation,
        source=source,
        model=model,
        size=size,
    )


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fit: unknowns ``z``, and the linearized problem around them.

    Attributes:
        z: (size,) see ``Layout``.
        rows: Row numbers of the table that were used.
        jacobian, residual, weight: Of those rows.
        precision, prior: Of the unknowns before any row was seen.
    """

    table: Table
    aim: Aim
    layout: Layout
    z: Floats
    rows: Indices
    jacobian: Floats
    residual: Floats
    weight: Floats
    cell_sd: Floats
    precision: Floats
    prior: Floats

    @cached_property
    def coefficients(self) -> Coefficients:
        """The coefficients of the roofline."""
        return coefficients_of(self.z)

    @cached_property
    def host_s_per_operator(self) -> dict[str, float]:
        """Host seconds per operator of each source."""
        first = self.layout.host
        return {s: float(np.exp(self.z[first + i])) for i, s in enumerate(self.layout.sources)}

    def deviations(self, z: Floats | None = None) -> dict[str, list[float]]:
        """Deviations of each architecture, from these or other unknowns."""
        block = self.layout.deviations(self.z if z is None else z)
        return dict(zip(self.layout.architectures, block.T.tolist(), strict=True))

    def without(self, dropped: Flags) -> Floats:
        """The unknowns that one Gauss-Newton step finds without some rows of the table.

        Only the cells that lose a row are summed again.
        """
        cell, lost = self.table.cell[self.rows], dropped[self.rows]
        touched = np.isin(cell, cell[lost])
        before, after = (self._sums(touched), self._sums(touched & ~lost))
        left, right = (a - b + c for a, b, c in zip(self._everything, before, after, strict=True))
        z = self.z + _step(left, right, self)
        seen, names = set(self.table.architecture[self.rows][~lost]), self.layout.architectures
        block = self.layout.deviations(z)
        for i, name in enumerate(names):  # one that lost all of its rows has what its predecessor has
            older = None if name in seen else predecessor(name, seen)
            if older is not None:
                block[:, i] = block[:, names.index(older)]
        return z

    @cached_property
    def _everything(self) -> tuple[Floats, Floats]:
        return self._sums(np.ones(len(self.rows), dtype=bool))

    def _sums(self, chosen: Flags) -> tuple[Floats, Floats]:
        cell = self.table.cell[self.rows][chosen]
        return _normal(self.jacobian[chosen], self.residual[chosen], self.weight[chosen], cell, self.cell_sd)


def coefficients_of(z: Floats) -> Coefficients:
    """Read the first unknowns as coefficients."""
    return Coefficients(
        **{n: float(v if n in _LINEAR else np.exp(v)) for n, v in zip(NAMES, z, strict=False)}
    )


def predict_rows(
    table: Table, coefficients: Coefficients, host_s_per_operator: Floats, deviations: Floats
) -> Times:
    """The roofline of every row of a table; deviations are (n, 3)."""
    return step_times(
        table.work,
        table.chips,
        table.arithmetic,
        coefficients,
        host_s_per_operator=host_s_per_operator,
        host_power=HARNESS_POWER,
        deviations=deviations,
    )


def times_of(fit: Fit, z: Floats | None = None) -> Times:
    """The roofline of every row of the fit's own table, with these or other unknowns."""
    return _times(fit.table, fit.layout, fit.z if z is None else z)


def fit_table(table: Table, chosen: Flags, *, aim: Aim = RATIO) -> Fit:
    """Fit the chosen rows.

    Args:
        table: All rows; those not chosen are never looked at.
        chosen: Which rows to learn from.
        aim: Ratios between GPUs, or levels.
    """
    layout = layout_of(table)
    precision, prior = _prior(layout, aim, table)
    rows = np.flatnonzero(chosen)
    noise = np.hypot(aim.noise, batch_spread(table)[rows])
    alike = pd.DataFrame({"weight": 1.0}, index=rows).groupby(
        [column[rows] for column in (table.source, table.gpu_key, table.base_model, table.precision)]
    )
    full = alike.weight.transform("sum").to_numpy() ** -_REPEAT_EXPONENT / noise**2
    score = ~table.level_known & ~np.isin(table.model, ["gnmt", "ssd"])
    cell_sd = np.full(int(table.cell.max()) + 1, aim.cell)
    cell_sd[table.cell[score]] = _SCORE_SD
    fit = Fit(
        table=table,
        aim=aim,
        layout=layout,
        z=prior.copy(),
        rows=rows,
        jacobian=np.empty((0, layout.size)),
        residual=np.empty(0),
        weight=full,
        cell_sd=cell_sd,
        precision=precision,
        prior=prior,
    )
    for _ in range(_MOST_STEPS):
        fit = _linearize(fit, full)
        step = _step(*_normal(fit.jacobian, fit.residual, fit.weight, table.cell[rows], cell_sd), fit)
        longest = float(np.abs(step).max())
        if longest < _CLOSE_ENOUGH:
            break
        fit = replace(fit, z=fit.z + step * min(1.0, _LONGEST_STEP / longest))
    return _linearize(fit, full)


def _linearize(fit: Fit, full: Floats) -> Fit:
    """The problem around the unknowns of a fit; a row far off its cell, as that alone has it, weighs less."""
    table, layout, z, cell_sd = take(fit.table, fit.rows), fit.layout, fit.z, fit.cell_sd
    offset = (
        z[layout.source + _numbers(table.source, layout.sources)]
        + z[layout.model + _numbers(table.base_model, layout.models)]
    )
    residual = table.log_seconds - np.log(_times(table, layout, z).step_s) - offset
    total = np.bincount(table.cell, weights=full, minlength=len(cell_sd)) + cell_sd**-2
    mean = np.bincount(table.cell, weights=full * residual, minlength=len(cell_sd)) / total
    spread = residual - mean[table.cell]
    weight = full / (1 + (spread / (_ROBUST_SCALE * fit.aim.noise)) ** 2)
    return replace(fit, jacobian=_jacobian(table, layout, z), residual=residual, weight=weight)


def _prior(layout: Layout, aim: Aim, table: Table) -> tuple[Floats, Floats]:
    mean = np.zeros(layout.size)
    mean[: len(NAMES)] = _PRIOR_MEAN
    precision = np.diag([*(sd**-2 for _, sd in PRIORS.values()), *[0.0] * (layout.size - len(NAMES))])
    hosts = slice(layout.host, layout.deviation)
    usual = dict(zip(table.source, host_prior_s(table), strict=True))  # a source has one execution
    mean[hosts] = np.log([usual[source] for source in layout.sources])
    for first, last, sd in (
        (layout.host, layout.deviation, _HOST_LOG_SD),
        (layout.deviation, layout.source, _DEVIATION_SD),
        (layout.source, layout.model, aim.source),
        (layout.model, layout.size, aim.model),
    ):
        precision[range(first, last), range(first, last)] = sd**-2
    return precision, mean


def host_prior_s(table: Table) -> Floats:
    """(n,) host time per operator of rows whose harness is not in the fit [s]."""
    return np.array([HOST_S_PER_OPERATOR[execution] for execution in table.execution], dtype=float)


def batch_spread(table: Table) -> Floats:
    """(n,) log standard deviation of the seconds per sample for want of the batch; 0 where it is stated.

    Every batch between the smallest and the largest plausible one is taken to be as likely, on a log scale,
    and the roofline before any row was seen says how far apart the two are.
    """
    result = np.zeros(len(table))
    unstated = np.flatnonzero(table.batch_high > table.batch_low)
    if len(unstated):
        rows = take(table, unstated)
        before = coefficients_of(_PRIOR_MEAN)
        small, large = (
            predict_rows(
                replace(rows, work=work), before, host_prior_s(rows), np.zeros((len(rows), len(DEVIATIONS)))
            ).step_s
            / batch
            for work, batch in ((rows.work_low, rows.batch_low), (rows.work_high, rows.batch_high))
        )
        result[unstated] = np.abs(np.log(small / large)) / _UNIFORM
    return result


def _numbers(values: NDArray[Any], known: Sequence[str]) -> Indices:
    index = {value: i for i, value in enumerate(known)}
    return np.array([index[value] for value in values], dtype=np.int64)


def _times(table: Table, layout: Layout, z: Floats) -> Times:
    kind = _numbers(table.architecture, layout.architectures)
    host = np.exp(z[layout.host + _numbers(table.source, layout.sources)])
    return predict_rows(table, coefficients_of(z), host, layout.deviations(z)[:, kind].T)


def _jacobian(table: Table, layout: Layout, z: Floats) -> Floats:
    """Derivative of log seconds: coefficients by differences, everything else in closed form."""
    n, each = len(table), np.arange(len(table))
    times = _times(table, layout, z)
    jacobian = np.zeros((n, layout.size))
    for k in range(len(NAMES)):
        moved = z.copy()
        moved[k] += _STEP
        jacobian[:, k] = np.log(_times(table, layout, moved).step_s / times.step_s) / _STEP
    of_gpu = (times.gpu_s / times.step_s) ** HARNESS_POWER
    source = _numbers(table.source, layout.sources)
    kind = _numbers(table.architecture, layout.architectures)
    jacobian[each, layout.host + source] = 1 - of_gpu
    on_tensor = np.take_along_axis(
        table.chips.tensor, np.stack([table.arithmetic.conv, table.arithmetic.matmul], axis=1), axis=1
    ).any(axis=1)
    compute = -times.compute_s / times.gpu_s * of_gpu
    shares = (compute, compute * on_tensor, -times.memory_s / times.gpu_s * of_gpu)
    for k, share in enumerate(shares):
        jacobian[each, layout.deviation + k * len(layout.architectures) + kind] = share
    jacobian[each, layout.source + source] = 1.0
    jacobian[each, layout.model + _numbers(table.base_model, layout.models)] = 1.0
    return jacobian


def _normal(
    jacobian: Floats, residual: Floats, weight: Floats, cell: Indices, cell_sd: Floats
) -> tuple[Floats, Floats]:
    """Both sides of the normal equations of some rows, with the offsets of their cells eliminated."""
    if not len(cell):
        return np.zeros((jacobian.shape[1], jacobian.shape[1])), np.zeros(jacobian.shape[1])
    weighted = jacobian * weight[:, None]
    count = len(cell_sd)
    total = np.bincount(cell, weights=weight, minlength=count) + cell_sd**-2
    order = np.argsort(cell, kind="stable")
    starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
    present = cell[order][starts]
    sums = np.add.reduceat(weighted[order], starts, axis=0) / np.sqrt(total[present])[:, None]
    level = np.bincount(cell, weights=weight * residual, minlength=count)[present] / np.sqrt(total[present])
    return jacobian.T @ weighted - sums.T @ sums, weighted.T @ residual - sums.T @ level


def _step(left: Floats, right: Floats, fit: Fit) -> Floats:
    """One Gauss-Newton step: the normal equations with the prior."""
    step = np.linalg.solve(left + fit.precision, right - fit.precision @ (fit.z - fit.prior))
    return np.asarray(step, dtype=float)


# --- errors on what the fit had not seen -----------------------------------------------------------------

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
