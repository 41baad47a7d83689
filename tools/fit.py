"""The fit: coefficients, host terms and each architecture's deviation at once, every one of them shrunk.

A maximum of the posterior by Gauss-Newton. Unknowns: coefficients (tight priors around round figures),
host time per operator of each source, deviations of each architecture, offsets of source, model and cell. The
offsets soak up levels, so that what is learned is how GPUs compare. Cell offsets are eliminated exactly (they
form a diagonal block), which also makes it cheap to ask what the fit would have been without some rows: one
solve, no refit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.predict.chips import predecessor
from gpubench.predict.roofline import (
    DEVIATIONS,
    HOST_S_PER_OPERATOR,
    Coefficients,
    Times,
    step_times,
    take,
)
from tools.table import Table

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
