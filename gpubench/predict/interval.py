"""How sure is a prediction: scaled conformal half-widths, and joint draws for a ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpubench.models import Estimate
from gpubench.predict.calibration import IntervalWidths

Z90, Z95 = 1.6449, 1.96
SCALE_FLOOR = 0.05


def pair_scale(
    distance: NDArray[np.float64] | float, reach: NDArray[np.float64] | float, *, known: bool
) -> NDArray[np.float64]:
    """Relative width of the error of a ratio, before the quantile.

    Args:
        distance: |log bandwidth ratio - log peak ratio| of the two GPUs.
        reach: |log of the predicted ratio|.
        known: Whether the target's architecture is in the published data.
    """
    if known:
        return np.maximum(SCALE_FLOOR, 0.10 + 0.025 * np.asarray(distance) + 0.045 * np.asarray(reach))
    return np.maximum(SCALE_FLOOR, 0.12 + 0.004 * np.asarray(distance) + 0.065 * np.asarray(reach))


def anchored_half_width(
    scale: NDArray[np.float64] | float, widths: IntervalWidths, noise: float
) -> NDArray[np.float64]:
    """Half-width (log) of a prediction that starts from a measurement of this noise (log half-width)."""
    return np.sqrt((widths.quantile * np.asarray(scale)) ** 2 + noise**2)


def draw(
    estimates: Sequence[Estimate], n: int, seed: int, common_share: float | None = None
) -> NDArray[np.float64]:
    """Draw n joint throughputs of each estimate [samples/s].

    Predictions that start from the same place (one anchor, or none) share part of their error: it moves
    all of them together and so leaves their order alone. Measurements err on their own.

    Args:
        estimates: What to draw; one without an interval is drawn as a constant.
        n: Number of draws.
        seed: Equal seeds give equal draws.
        common_share: Share of the variance in common; None takes the calibration's.

    Returns:
        (len(estimates), n) samples per second.
    """
    from gpubench.predict.calibration import load_calibration

    share = load_calibration().widths.common_share if common_share is None else common_share
    random = np.random.default_rng(seed)
    own = random.standard_normal((len(estimates), n))
    groups: dict[tuple[str, ...], NDArray[np.float64]] = {}
    result = np.empty((len(estimates), n))
    for row, estimate in enumerate(estimates):
        error = own[row]
        if estimate.basis == "predicted":
            start = ("anchored", *estimate.evidence) if estimate.anchored else ("absolute",)
            common = groups.setdefault((estimate.case.workload, *start), random.standard_normal(n))
            error = math.sqrt(share) * common + math.sqrt(1 - share) * error
        result[row] = estimate.samples_per_s * np.exp(log_deviation(estimate) * error)
    return result


def log_deviation(estimate: Estimate) -> float:
    """Standard deviation of log throughput that the interval stands for; 0 where there is none."""
    if estimate.low is None or estimate.high is None or estimate.low <= 0:
        return 0.0
    z = Z90 if estimate.basis == "predicted" else Z95
    return math.log(estimate.high / estimate.low) / 2 / z
