"""Joint draws of throughput, from the intervals of a ranking's rows."""

from __future__ import annotations

import hashlib
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
    all of them together and so leaves their order alone. Measurements err on their own. The draws of a GPU do
    not depend on which others are drawn beside it.

    Args:
        estimates: What to draw; one without an interval is drawn as a constant, a measurement too short
            to have one with 5 %.
        n: Number of draws.
        seed: Equal seeds give equal draws: of one GPU the same error whatever the workload.
        common_share: Share of the variance in common; None takes the calibration's.

    Returns:
        (len(estimates), n) samples per second.
    """
    share = load_calibration().common_share if common_share is None else common_share
    groups: dict[tuple[str, ...], Floats] = {}
    result = np.empty((len(estimates), n))
    for row, estimate in enumerate(estimates):
        error = random_of(seed, "gpu", estimate.gpu_key).standard_normal(n)
        if estimate.basis == "predicted" and share:
            start = ("anchored", *estimate.evidence) if estimate.anchored else ("absolute",)
            if start not in groups:
                groups[start] = random_of(seed, *start).standard_normal(n)
            error = math.sqrt(share) * groups[start] + math.sqrt(1 - share) * error
        result[row] = estimate.samples_per_s * np.exp(log_deviation(estimate) * error)
    return result


def random_of(seed: int, *names: str) -> np.random.Generator:
    """Return the random numbers of whatever has these names, wherever it stands among others."""
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=16).digest()
    return np.random.default_rng((seed, int.from_bytes(digest)))


def log_deviation(estimate: Estimate) -> float:
    """Standard deviation of log throughput that the interval stands for; 0 for a host-bound guess."""
    if estimate.low is None or estimate.high is None or estimate.low <= 0:
        return 0.0 if estimate.basis == "predicted" else UNKNOWN_NOISE / Z95
    z = Z90 if estimate.basis == "predicted" else Z95
    return math.log(estimate.high / estimate.low) / 2 / z
