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

At the end, the shares of ``scaling``, fitted to published jobs on several GPUs. A row of data/scaling.csv is
one job at two numbers of GPUs, the batch of each GPU the same: what is learned is the throughput of each of
many over that of each of few. Each harness has one vote for each GPU and model. An interval is set by other
harnesses' votes alone. Jobs on GPUs of another vendor are never fitted: theirs is the width of their own
errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pandas as pd
from scipy.optimize import least_squares, nnls
from scipy.sparse import csr_array

from gpubench.arrays import Flags, Floats, Indices
from gpubench.folders import data_rows
from gpubench.predict.calibration import JOBS, Scale, ScalingShares, pair_features, pair_scale
from gpubench.predict.chips import chip_of, predecessor
from gpubench.predict.model import own_part
from gpubench.predict.question import FITTED_VENDOR
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
from gpubench.predict.scaling import (
    GRADIENT_BYTES,
    SHARES,
    Exchange,
    link_of,
    log_efficiency,
    slopes,
    usual_error,
)
from gpubench.specs import load_specs
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
class Fit:
    """A fit: unknowns ``z``, and the linearized problem around them.

    Attributes:
        unknowns: (size,) kind and name of each: the coefficients, then those of ``places``.
        places: (n, 6) which unknowns each row of the table has: host, three deviations, source, model.
        z: (size,) their values.
        rows: Row numbers of the table that were used.
        jacobian, residual, weight: Of those rows.
        precision, prior: Of the unknowns before any row was seen.
    """

    table: Table
    aim: Aim
    unknowns: Sequence[tuple[str, str]]
    places: Indices
    z: Floats
    rows: Indices
    jacobian: Floats
    residual: Floats
    weight: Floats
    cell_sd: Floats
    precision: Floats
    prior: Floats

    @property
    def host_s_per_operator(self) -> dict[str, float]:
        """Host seconds per operator of each source."""
        found = zip(self.unknowns, np.exp(self.z).tolist(), strict=True)
        return {name: seconds for (kind, name), seconds in found if kind == "host"}

    def deviations(self, z: Floats | None = None) -> dict[str, list[float]]:
        """Deviations of each architecture, from these or other unknowns."""
        found: dict[str, list[float]] = {}
        for (kind, name), value in zip(self.unknowns, (self.z if z is None else z).tolist(), strict=True):
            if kind in DEVIATIONS:
                found.setdefault(name, []).append(value)
        return found

    def without(self, dropped: Flags) -> Floats:
        """The unknowns that one Gauss-Newton step finds without some rows of the table.

        Only the cells that lose a row are summed again.
        """
        cell, lost = self.table.cell[self.rows], dropped[self.rows]
        touched = np.isin(cell, cell[lost])
        before, after = (self._sums(touched), self._sums(touched & ~lost))
        left, right = (a - b + c for a, b, c in zip(self._everything, before, after, strict=True))
        z = self.z + _step(left, right, self)
        seen = set(self.table.architecture[self.rows][~lost])
        for at, (kind, name) in enumerate(self.unknowns):
            # an architecture that lost all of its rows has what its predecessor has
            older = predecessor(name, seen) if kind in DEVIATIONS and name not in seen else None
            if older is not None:
                z[at] = z[self.unknowns.index((kind, older))]
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
    return _times(fit.table, fit.places, fit.z if z is None else z)


def fit_table(table: Table, chosen: Flags, *, aim: Aim = RATIO) -> Fit:
    """Fit the chosen rows.

    Args:
        table: All rows; those not chosen are never looked at.
        chosen: Which rows to learn from.
        aim: Ratios between GPUs, or levels.
    """
    deviations = dict.fromkeys(DEVIATIONS, table.architecture)
    labels = {"host": table.source, **deviations, "source": table.source, "model": table.base_model}
    named = [(kind, name) for kind, names in labels.items() for name in sorted(set(names))]
    unknowns = [*(("coefficient", name) for name in NAMES), *named]
    number = {unknown: at for at, unknown in enumerate(unknowns)}
    host = dict(zip(table.source, np.log(host_prior_s(table)), strict=True))  # a source has one execution
    prior = np.array([*_PRIOR_MEAN, *(host[name] if kind == "host" else 0.0 for kind, name in named)])
    sds = {"host": _HOST_LOG_SD, "source": aim.source, "model": aim.model}
    each = [*(sd for _, sd in PRIORS.values()), *(sds.get(kind, _DEVIATION_SD) for kind, _ in named)]
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
        unknowns=unknowns,
        places=np.array([[number[kind, name] for name in names] for kind, names in labels.items()]).T,
        z=prior,
        rows=rows,
        jacobian=np.empty((0, len(prior))),
        residual=np.empty(0),
        weight=full,
        cell_sd=cell_sd,
        precision=np.diag(np.array(each) ** -2.0),
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
    table, places, z, cell_sd = take(fit.table, fit.rows), fit.places[fit.rows], fit.z, fit.cell_sd
    offset = z[places[:, 4]] + z[places[:, 5]]
    residual = table.log_seconds - np.log(_times(table, places, z).step_s) - offset
    total = np.bincount(table.cell, weights=full, minlength=len(cell_sd)) + cell_sd**-2
    mean = np.bincount(table.cell, weights=full * residual, minlength=len(cell_sd)) / total
    spread = residual - mean[table.cell]
    weight = full / (1 + (spread / (_ROBUST_SCALE * fit.aim.noise)) ** 2)
    return replace(fit, jacobian=_jacobian(table, places, z), residual=residual, weight=weight)


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


def _times(table: Table, places: Indices, z: Floats) -> Times:
    return predict_rows(table, coefficients_of(z), np.exp(z[places[:, 0]]), z[places[:, 1:4]])


def _jacobian(table: Table, places: Indices, z: Floats) -> Floats:
    """Derivative of log seconds: coefficients by differences, everything else in closed form."""
    times = _times(table, places, z)
    jacobian = np.zeros((len(table), len(z)))
    for k in range(len(NAMES)):
        moved = z.copy()
        moved[k] += _STEP
        jacobian[:, k] = np.log(_times(table, places, moved).step_s / times.step_s) / _STEP
    of_gpu = (times.gpu_s / times.step_s) ** HARNESS_POWER
    modes = np.stack([table.arithmetic.conv, table.arithmetic.matmul], axis=1)
    on_tensor = np.take_along_axis(table.chips.tensor, modes, axis=1).any(axis=1)
    compute, memory = (-each / times.gpu_s * of_gpu for each in (times.compute_s, times.memory_s))
    ones = np.ones(len(table))
    shares = np.stack([1 - of_gpu, compute, compute * on_tensor, memory, ones, ones], axis=1)
    np.put_along_axis(jacobian, places, shares, axis=1)
    return jacobian


def _normal(
    jacobian: Floats, residual: Floats, weight: Floats, cell: Indices, cell_sd: Floats
) -> tuple[Floats, Floats]:
    """Both sides of the normal equations of some rows, with the offsets of their cells eliminated."""
    present, at = np.unique(cell, return_inverse=True)
    of_cell = csr_array((weight, (at, np.arange(len(at)))), shape=(len(present), len(at)))
    root = np.sqrt(of_cell.sum(axis=1) + cell_sd[present] ** -2)
    sums, level = of_cell @ jacobian / root[:, None], of_cell @ residual / root
    weighted = jacobian * weight[:, None]
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


Judged: TypeAlias = Iterable[tuple[Flags, Times]]
"""Groups of targets, (n,) which rows of a table, and the roofline of every row that they are judged by."""


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
    usable = np.arange(len(table)) if chosen is None else np.flatnonzero(chosen)
    columns = {"cell": table.cell, "gpu": table.gpu_key, "batch": table.batch, "harness": table.harness}
    rows = pd.DataFrame(columns | {"inference": table.inference}).iloc[usable].assign(at=usable)
    both = rows.merge(rows, on="cell", suffixes=("_x", "_y"))
    both = both[both.gpu_x != both.gpu_y]
    both = both.assign(gap=np.abs(np.log(both.batch_y / both.batch_x))).sort_values(["gap", "at_x"])
    nearest = both.drop_duplicates(["gpu_x", "at_y"]).sort_values(["at_y", "at_x"])
    partners = nearest.groupby("at_y").at_x.transform("size")
    targets = nearest.groupby(["harness_y", "gpu_y", "inference_y"]).at_y.transform("nunique")
    x, y = nearest.at_x.to_numpy(), nearest.at_y.to_numpy()
    unsure = batch_spread(table)
    spread = np.hypot(unsure[x], unsure[y])
    votes = (1.0 / (partners * targets)).to_numpy()
    return Pairs(x=x, y=y, weight=votes / (1 + (spread / RATIO.noise) ** 2), spread=spread)


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


def held_out(table: Table, hold_out: str, fitted: Table | None = None) -> Iterator[tuple[Flags, Flags]]:
    """For each group of targets, which rows it has, and which the fit, else of this table, must not see."""
    kinds = HOLD_OUTS[hold_out]
    for group in sorted(set(zip(*(getattr(table, kind) for kind in kinds), strict=True))):
        mine, dropped = (
            [getattr(each, kind) == value for kind, value in zip(kinds, group, strict=True)]
            for each in (table, table if fitted is None else fitted)
        )
        yield np.logical_and.reduce(mine), np.logical_or.reduce(dropped)


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
    own, target, mode = sides(table, take(pairs, chosen))
    root = np.sqrt(pairs.weight[chosen])
    features = pair_features(own.chips, target.chips, mode)
    base, gap, crossing = nnls(features * root[:, None], np.abs(log_error[chosen]) * root)[0]
    return Scale(base=float(base), gap=float(gap), crossing=float(crossing))


def without_each(fit: Fit, hold_out: str) -> Judged:
    """Take each group out of the fit by one Gauss-Newton step, no refit; a host left out is the prior's."""
    for targets, dropped in held_out(fit.table, hold_out):
        if not dropped[fit.rows].all():
            yield targets, times_of(fit, fit.without(dropped))


def ratio_errors(table: Table, pairs: Pairs, judged: Judged) -> tuple[Floats, Flags]:
    """Log error of every pair, by the roofline that judges its target; whether the GPU set both paces."""
    error, bound = np.full(len(pairs), np.nan), np.zeros(len(pairs), dtype=bool)
    for targets, times in judged:
        mine, free = targets[pairs.y], times.host_s / times.step_s <= HOST_SHARE_LIMIT
        error[mine] = log_errors(table, pairs, times)[mine]
        bound[mine] = (free[pairs.x] & free[pairs.y])[mine]
    return error, bound


def level_errors(table: Table, judged: Judged) -> Floats:
    """Log of predicted over measured time of every row whose level means seconds; NaN for others.

    Of those, rows that are GPU-bound, and no score or approximate profile.
    """
    error = np.full(len(table), np.nan)
    for targets, times in judged:
        rows = targets & table.level_known & (times.host_s / times.step_s <= HOST_SHARE_LIMIT)
        error[rows] = (np.log(times.step_s) - table.log_seconds)[rows]
    return error


def stays(table: Table, pairs: Pairs, level_error: Floats) -> Floats:
    """(pairs,) log seconds that stay with x, where y is another chip: a prediction carries the rest to y."""
    chip = np.array([chip_of(key) for key in table.gpu_key])
    return np.where(chip[pairs.x] == chip[pairs.y], 0.0, own_part(-level_error[pairs.x]))


def level_weights(table: Table, error: Floats) -> Floats:
    """One vote for each harness, GPU and task, as a ratio has it, shared by the rows that are scored.

    Less of a row whose batch is not stated, by the variance that the plausible ones add.
    """
    scored = pd.Series(np.isfinite(error), dtype=float)
    votes = scored.groupby([table.harness, table.gpu_key, table.inference]).transform("sum")
    weight = scored / votes.clip(lower=1.0)
    return np.asarray(weight / (1 + (batch_spread(table) / LEVEL.noise) ** 2), dtype=float)


def factor_of(scores: Floats, weight: Floats) -> float:
    """Conformal factor: the weighted quantile at 0.9 (n + 1) / n, where n votes were cast; NaN for none."""
    votes = float(weight.sum())
    if votes <= 0:
        return float("nan")
    share = min(1.0, COVERAGE * (votes + 1) / votes)
    return weighted_quantile(scores, weight, share * (1 - 1e-12))


def weighted_quantile(values: Floats, weights: Floats, share: float = 0.5) -> float:
    """The value below which a share of the weight lies; by default the median."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    at = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return float(values[order][min(len(values) - 1, at)])


# --- several GPUs in one job -------------------------------------------------------------------------------

SHARE_PRIORS: Mapping[str, tuple[float, float]] = {
    "waiting": (0.010, 0.7),
    "hidden": (0.75, 0.5),
    "nvlink": (0.65, 0.10),
    "fabric": (0.75, 0.5),
    "pcie": (0.43, 0.35),
    "host": (0.35, 0.35),
}
"""Share, and standard deviation of its log, before any row was seen. No row is of GeForce cards: there the
prior stands. NVLink's is that of bare collectives of 16 MiB and more on seven systems, PCIe's that of the one
sound system (tests/tools/test_collectives.py)."""
_JOB_NOISE = 0.05  # log, of a row; one beyond ``_ROBUST_SCALE`` of it loses weight
LEAST_ERROR = 0.02
"""Usual log error for each doubling where the shares leave nothing open."""


@cache
def jobs() -> pd.DataFrame:
    """The shipped rows; a GPU that the table of specifications lacks is left out.

    Columns: ``harness``, ``gpu_key``, ``model``; ``few`` and ``many`` GPUs; their ``exchange``; whether their
    vendor is ``fitted``; ``log_ratio`` of the throughput of each of many over that of each of few.
    """
    text = pd.DataFrame(row for row in data_rows(JOBS) if row["gpu_key"] in load_specs())
    rates = ["few_samples_per_s", "many_samples_per_s", "samples_per_step", "parameters_m"]
    rows = text.astype(dict.fromkeys(["few_gpus", "many_gpus", *rates], float))
    specs = [load_specs()[key] for key in rows.gpu_key]
    exchange = [
        Exchange(
            gradient_bytes=row["parameters_m"] * 1e6 * GRADIENT_BYTES,
            link=link,
            rate=rate,
            step_s=row["samples_per_step"] / row["few_samples_per_s"],
            hidden_wholly=row["exchange"] != "gradients",
        )
        for row, (link, rate) in zip(rows.to_dict("records"), map(link_of, specs), strict=True)
    ]
    return rows.assign(
        few=rows.few_gpus.astype(int),
        many=rows.many_gpus.astype(int),
        exchange=pd.Series(exchange, rows.index, dtype=object),
        fitted=[spec.vendor == FITTED_VENDOR for spec in specs],
        log_ratio=np.log(rows.many_samples_per_s / rows.few_samples_per_s),
    )


def fit_scaling(rows: pd.DataFrame) -> ScalingShares:
    """Fit the shares to ``jobs``, and the width of their interval to their own errors."""
    error, usual = _errors(rows)
    weight, known = _weights(rows), rows.fitted.to_numpy()
    return msgspec.structs.replace(
        _shares(rows),
        factor=factor_of((np.abs(error) / usual)[known], weight[known]),
        other_vendors=None if known.all() else factor_of(np.abs(error)[~known], weight[~known]),
    )


def _shares(rows: pd.DataFrame) -> ScalingShares:
    """The shares by the jobs of the fitted vendor; the widths are still open."""
    rows = rows[rows.fitted]
    mean, deviation = np.array(
        [(math.log(SHARE_PRIORS[name][0]), SHARE_PRIORS[name][1]) for name in SHARES]
    ).T
    root = np.sqrt(_weights(rows)) / _JOB_NOISE

    def residuals(logs: Floats) -> Floats:
        each = (_told(logs, rows) - rows.log_ratio.to_numpy()) * -root
        tamed = np.sqrt(2 * (np.sqrt(1 + (each / _ROBUST_SCALE) ** 2) - 1)) * _ROBUST_SCALE
        return np.concatenate([np.copysign(tamed, each), (logs - mean) / deviation])

    logs = least_squares(residuals, mean).x
    jacobian = np.array([slopes(logs, *job) for job in _asked(rows)]).reshape(-1, len(SHARES)) * root[:, None]
    covariance = np.linalg.inv(np.diag(deviation**-2.0) + jacobian.T @ jacobian)
    return ScalingShares(
        logs=tuple(logs.tolist()),
        covariance=tuple(map(tuple, covariance.tolist())),
        noise=LEAST_ERROR,
        factor=math.nan,
        other_vendors=None,
    )


def _weights(rows: pd.DataFrame) -> Floats:
    # One vote for each harness, GPU and model
    return (1 / rows.groupby(["harness", "gpu_key", "model"]).few.transform("size")).to_numpy()


def _asked(rows: pd.DataFrame) -> Iterator[tuple[Exchange, int, int]]:
    return zip(rows.exchange, rows.few, rows.many, strict=True)


def _told(logs: Floats | tuple[float, ...], rows: pd.DataFrame) -> Floats:
    return np.array([log_efficiency(logs, *job) for job in _asked(rows)])


def _errors(rows: pd.DataFrame) -> tuple[Floats, Floats]:
    """Log error of each row and its usual size, by shares that its harness had no part in."""
    error, usual = np.full((2, len(rows)), np.nan)
    for name in set(rows.harness):
        mine = (rows.harness == name).to_numpy()
        shares = _shares(rows[~mine])
        error[mine] = _told(shares.logs, rows[mine]) - rows.log_ratio[mine]
        usual[mine] = [usual_error(shares, *job) for job in _asked(rows[mine])]
    return error, usual


def scaling_figures() -> dict[str, Any]:
    """How far the model is off with each harness left out, and what its intervals hold; ``by_slice`` too."""
    rows = jobs()
    error, usual = _errors(rows)
    weight, width, scores = _weights(rows), np.full(len(rows), np.nan), np.abs(error) / usual
    known, harness = rows.fitted.to_numpy(), rows.harness.to_numpy()
    for name in sorted(set(harness)):
        mine, others = known & (harness == name), known & (harness != name)
        width[mine] = factor_of(scores[others], weight[others]) * usual[mine]

    def figures(chosen: Flags) -> dict[str, Any]:
        off, votes, wide = error[chosen], weight[chosen], width[chosen]
        means = {"mape": np.abs(np.expm1(off)), "bias": off, "coverage_90": np.abs(off) <= wide}
        said: dict[str, Any] = {"jobs": int(chosen.sum()), "targets": round(float(votes.sum()))}
        said |= {name: round(float(np.average(each, weights=votes)), 4) for name, each in means.items()}
        said["half_width_factor"] = round(float(np.exp(np.median(wide))), 4)
        return said | ({} if np.isfinite(wide).all() else {"coverage_90": None, "half_width_factor": None})

    links = np.array([exchange.link for exchange in rows.exchange])
    slices = {
        "from one GPU": known & (rows.few == 1).to_numpy(),
        **{f"harness: {name}": known & (harness == name) for name in sorted(set(harness))},
        **{f"link: {name}": known & (links == name) for name in sorted(set(links[known]))},
        "vendor: AMD, not fitted": ~known,
    }
    return figures(known) | {"by_slice": {name: figures(flags) for name, flags in slices.items()}}
