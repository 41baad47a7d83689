"""The shares of ``scaling``, fitted to published jobs on several GPUs, and how far they are off.

A row of data/scaling.csv is one job at two numbers of GPUs, the batch of each GPU the same: what is learned
is the throughput of each of many over that of each of few. Each harness has one vote for each GPU and model.
An interval is set by other harnesses' votes alone. Jobs on GPUs of another vendor are never fitted: theirs is
the width of their own errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import least_squares

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
from tools.fit import factor_of

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
    """One job at two numbers of GPUs.

    Attributes:
        fitted: Whether its GPU is of the vendor that is fitted.
        log_ratio: Of the throughput of each of many over that of each of few.
    """

    harness: str
    gpu_key: str
    model: str
    few: int
    many: int
    exchange: Exchange
    fitted: bool
    log_ratio: float


@cache
def jobs() -> tuple[Job, ...]:
    """The shipped rows; a GPU that the table of specifications lacks is left out."""
    return tuple(_job(row) for row in data_rows(JOBS) if row["gpu_key"] in load_specs())


def _job(row: Mapping[str, str]) -> Job:
    spec = load_specs()[row["gpu_key"]]
    link, rate = link_of(spec)
    few, many = float(row["few_samples_per_s"]), float(row["many_samples_per_s"])
    exchange = Exchange(
        gradient_bytes=float(row["parameters_m"]) * 1e6 * GRADIENT_BYTES,
        link=link,
        rate=rate,
        step_s=float(row["samples_per_step"]) / few,
        hidden_wholly=row["exchange"] != "gradients",
    )
    return Job(
        harness=row["harness"],
        gpu_key=row["gpu_key"],
        model=row["model"],
        few=int(row["few_gpus"]),
        many=int(row["many_gpus"]),
        exchange=exchange,
        fitted=spec.vendor == FITTED_VENDOR,
        log_ratio=math.log(many / few),
    )


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
    rows = [job for job in rows if job.fitted]
    mean = np.array([math.log(PRIORS[name][0]) for name in SHARES])
    deviation = np.array([PRIORS[name][1] for name in SHARES])
    root = np.sqrt(_weights(rows)) / _NOISE

    def residuals(logs: Floats) -> Floats:
        each = np.array([_log_error(logs, job) for job in rows]) * -root
        tamed = np.sqrt(2 * (np.sqrt(1 + (each / _ROBUST_SCALE) ** 2) - 1)) * _ROBUST_SCALE
        return np.concatenate([np.copysign(tamed, each), (logs - mean) / deviation])

    logs = least_squares(residuals, mean).x
    slope = [slopes(logs, job.exchange, job.few, job.many) for job in rows]
    jacobian = np.reshape(slope, (-1, len(SHARES))) * root[:, None]
    covariance = np.linalg.inv(np.diag(deviation**-2.0) + jacobian.T @ jacobian)
    return ScalingShares(
        logs=tuple(logs.tolist()),
        covariance=tuple(map(tuple, covariance.tolist())),
        noise=LEAST_ERROR,
        factor=math.nan,
        other_vendors=None,
    )


def _weights(rows: Sequence[Job]) -> Floats:
    """One vote for each harness, GPU and model."""
    voters = [(job.harness, job.gpu_key, job.model) for job in rows]
    return np.array([1 / voters.count(voter) for voter in voters])


def _log_error(logs: Floats | tuple[float, ...], job: Job) -> float:
    return log_efficiency(logs, job.exchange, job.few, job.many) - job.log_ratio


def _errors(rows: Sequence[Job]) -> tuple[Floats, Floats]:
    """Log error of each row and its usual size, by shares that its harness had no part in."""
    without = {job.harness: [other for other in rows if other.harness != job.harness] for job in rows}
    fitted = {harness: _shares(others) for harness, others in without.items()}
    usual = [usual_error(fitted[job.harness], job.exchange, job.few, job.many) for job in rows]
    return np.array([_log_error(fitted[job.harness].logs, job) for job in rows]), np.array(usual)


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
        off, votes, wide = error[chosen], weight[chosen], width[chosen]
        means = {"mape": np.abs(np.expm1(off)), "bias": off, "coverage_90": np.abs(off) <= wide}
        said: dict[str, Any] = {"jobs": int(chosen.sum()), "targets": round(float(votes.sum()))}
        said |= {name: round(float(np.average(each, weights=votes)), 4) for name, each in means.items()}
        said["half_width_factor"] = round(float(np.exp(np.median(wide))), 4)
        return said | ({} if np.isfinite(wide).all() else {"coverage_90": None, "half_width_factor": None})

    links = np.array([job.exchange.link for job in rows])
    slices = {
        "from one GPU": known & np.array([job.few == 1 for job in rows]),
        **{f"harness: {name}": known & (harness == name) for name in sorted(set(harness))},
        **{f"link: {name}": known & (links == name) for name in sorted(set(links[known]))},
        "vendor: AMD, not fitted": ~known,
    }
    return figures(known) | {"by_slice": {name: figures(flags) for name, flags in slices.items()}}
