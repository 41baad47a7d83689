"""The shares of ``scaling``, fitted to published jobs on several GPUs, and how far they are off.

A row of data/scaling.csv is one job at two numbers of GPUs, the batch of each GPU the same: what is learned
is the throughput of each of many over that of each of few. Each harness has one vote for each GPU and model.
An interval is set by other harnesses' votes alone. Jobs on GPUs of another vendor are never fitted: theirs is
the width of their own errors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from gpubench.arrays import Flags, Floats
from gpubench.folders import data_rows
from gpubench.predict.calibration import JOBS, ScalingShares
from gpubench.predict.question import FITTED_VENDOR
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
from tools.conformal import factor_of

PRIORS: Mapping[str, tuple[float, float]] = {
    "waiting": (0.010, 0.7),
    "hidden": (0.75, 0.5),
    "nvlink": (0.75, 0.25),
    "fabric": (0.75, 0.5),
    "pcie": (0.60, 0.35),
    "host": (0.35, 0.35),
}
"""Share, and standard deviation of its log, before any row was seen. No row is of GeForce cards: there the
prior stands."""
_NOISE = 0.05  # log, of a row; one beyond three of it loses weight
_ROBUST_SCALE = 3.0
LEAST_ERROR = 0.02
"""Usual log error for each doubling where the shares leave nothing open."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job at two numbers of GPUs; ``log_ratio`` is that of the throughput of each."""

    harness: str
    gpu_key: str
    model: str
    few: int
    many: int
    exchange: Exchange
    log_ratio: float

    @property
    def fitted(self) -> bool:
        """Whether its GPU is of the vendor that is fitted."""
        return load_specs()[self.gpu_key].vendor == FITTED_VENDOR


@cache
def jobs() -> tuple[Job, ...]:
    """The shipped rows; a GPU that the table of specifications lacks is left out."""
    found = []
    for row in data_rows(JOBS):
        spec = load_specs().get(row["gpu_key"])
        if spec is None:
            continue
        link, rate = link_of(spec)
        few, many = float(row["few_samples_per_s"]), float(row["many_samples_per_s"])
        exchange = Exchange(
            gradient_bytes=float(row["parameters_m"]) * 1e6 * GRADIENT_BYTES,
            link=link,
            rate=rate,
            step_s=float(row["samples_per_step"]) / few,
            hidden_wholly=row["exchange"] != "gradients",
        )
        job = Job(
            harness=row["harness"],
            gpu_key=row["gpu_key"],
            model=row["model"],
            few=int(row["few_gpus"]),
            many=int(row["many_gpus"]),
            exchange=exchange,
            log_ratio=math.log(many / few),
        )
        found.append(job)
    return tuple(found)


def fit_scaling(rows: Sequence[Job]) -> ScalingShares:
    """Fit the shares to jobs, and the width of their interval to their own errors."""
    error, usual = _errors(rows)
    weight, known = _weights(rows), np.array([job.fitted for job in rows], dtype=bool)
    return msgspec.structs.replace(
        _shares(rows),
        factor=factor_of((np.abs(error) / usual)[known], weight[known]),
        other_vendors=None if known.all() else factor_of(np.abs(error)[~known], weight[~known]),
    )


def _shares(rows: Sequence[Job]) -> ScalingShares:
    """The shares by the jobs of the fitted vendor; the widths are still open."""
    from scipy.optimize import least_squares

    rows = [job for job in rows if job.fitted]
    mean = np.array([math.log(PRIORS[name][0]) for name in SHARES])
    deviation = np.array([PRIORS[name][1] for name in SHARES])
    root = np.sqrt(_weights(rows)) / _NOISE

    def residuals(logs: Floats) -> Floats:
        found = [job.log_ratio - log_efficiency(logs, job.exchange, job.few, job.many) for job in rows]
        each = np.array(found) * root if rows else np.empty(0)
        tamed = np.sqrt(2 * (np.sqrt(1 + (each / _ROBUST_SCALE) ** 2) - 1)) * _ROBUST_SCALE
        return np.concatenate([np.copysign(tamed, each), (logs - mean) / deviation])

    logs = least_squares(residuals, mean).x
    precision = np.diag(deviation**-2.0)
    for job, weight in zip(rows, root, strict=True):
        slope = slopes(logs, job.exchange, job.few, job.many)
        precision += np.outer(slope, slope) * weight**2
    return ScalingShares(
        logs=tuple(float(v) for v in logs),
        covariance=tuple(tuple(float(v) for v in row) for row in np.linalg.inv(precision)),
        noise=LEAST_ERROR,
        factor=math.nan,
        other_vendors=None,
    )


def _weights(rows: Sequence[Job]) -> Floats:
    """One vote for each harness, GPU and model."""
    voters = [(job.harness, job.gpu_key, job.model) for job in rows]
    counts = Counter(voters)
    return np.array([1 / counts[voter] for voter in voters])


def _errors(rows: Sequence[Job]) -> tuple[Floats, Floats]:
    """Log error of each row and its usual size, by shares that its harness had no part in."""
    found = np.zeros((2, len(rows)))
    for harness in sorted({job.harness for job in rows}):
        fitted = _shares([job for job in rows if job.harness != harness])
        for i, job in enumerate(rows):
            if job.harness == harness:
                predicted = log_efficiency(fitted.logs, job.exchange, job.few, job.many)
                found[:, i] = predicted - job.log_ratio, usual_error(fitted, job.exchange, job.few, job.many)
    return found[0], found[1]


def scaling_figures() -> dict[str, Any]:
    """How far the model is off with each harness left out, and what its intervals hold; ``by_slice`` too."""
    rows = jobs()
    error, usual = _errors(rows)
    weight, width = _weights(rows), np.full(len(rows), np.nan)
    known = np.array([job.fitted for job in rows])
    harness = np.array([job.harness for job in rows])
    scores = np.abs(error) / usual
    for name in sorted(set(harness)):
        mine, others = known & (harness == name), known & (harness != name)
        width[mine] = factor_of(scores[others], weight[others]) * usual[mine]

    def figures(chosen: Flags) -> dict[str, Any]:
        ape = np.abs(np.expm1(error[chosen]))
        votes = weight[chosen]
        inside = np.abs(error[chosen]) <= width[chosen]
        wide = bool(np.isfinite(width[chosen]).all())
        return {
            "jobs": int(chosen.sum()),
            "targets": round(float(votes.sum())),
            "mape": round(float(np.average(ape, weights=votes)), 4),
            "bias": round(float(np.average(error[chosen], weights=votes)), 4),
            "coverage_90": round(float(np.average(inside, weights=votes)), 4) if wide else None,
            "half_width_factor": round(float(np.exp(np.median(width[chosen]))), 4) if wide else None,
        }

    alone = np.array([job.few == 1 for job in rows])
    links = np.array([job.exchange.link for job in rows])
    slices = {
        "from one GPU": known & alone,
        **{f"harness: {name}": known & (harness == name) for name in sorted(set(harness))},
        **{f"link: {name}": known & (links == name) for name in sorted(set(links[known]))},
    }
    slices["vendor: AMD, not fitted"] = ~known
    return figures(known) | {"by_slice": {name: figures(flags) for name, flags in slices.items()}}
