"""Joint draws of throughput, from the intervals of a ranking's rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpubench.arrays import Floats
from gpubench.models import Estimate
from gpubench.predict.calibration import load_calibration

Z90, Z95 = 1.6449, 1.96
UNKNOWN_NOISE = 0.05  # log half-width of a measurement too short to have an interval


def draw(estimates: Sequence[Estimate], n: int, seed: int, common_share: float | None = None) -> Floats:
    """Draw n joint throughputs of each estimate [samples/s].

    Predictions that start from the same place (one anchor, or none) share part of their error: it moves
    all of them together and so leaves their order alone. Measurements err on their own.

    Args:
        estimates: What to draw; one without an interval is drawn as a constant, a measurement too short
            to have one with 5 %.
        n: Number of draws.
        seed: Equal seeds give equal draws.
        common_share: Share of the variance in common; None takes the calibration's.

    Returns:
        (len(estimates), n) samples per second.
    """
    share = load_calibration().common_share if common_share is None else common_share
    random = np.random.default_rng(seed)
    own = random.standard_normal((len(estimates), n))
    groups: dict[tuple[str, ...], Floats] = {}
    result = np.empty((len(estimates), n))
    for row, estimate in enumerate(estimates):
        error = own[row]
        if estimate.basis == "predicted":
            start = ("anchored", *estimate.evidence) if estimate.anchored else ("absolute",)
            key = (estimate.case.workload, *start)
            if key not in groups:
                groups[key] = random.standard_normal(n)
            error = math.sqrt(share) * groups[key] + math.sqrt(1 - share) * error
        result[row] = estimate.samples_per_s * np.exp(log_deviation(estimate) * error)
    return result


def log_deviation(estimate: Estimate) -> float:
    """Standard deviation of log throughput that the interval stands for; 0 for a host-bound guess."""
    if estimate.low is None or estimate.high is None or estimate.low <= 0:
        return 0.0 if estimate.basis == "predicted" else UNKNOWN_NOISE / Z95
    z = Z90 if estimate.basis == "predicted" else Z95
    return math.log(estimate.high / estimate.low) / 2 / z
