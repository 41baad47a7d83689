"""How much of n GPUs one data-parallel job gets, for one workload or several together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gpubench.models import Estimate, GpuSpec
from gpubench.predict.scaling import ScalingEstimate
from gpubench.recommend.speeds import mean_of

Scaler = Callable[[str, GpuSpec, int, float], ScalingEstimate]
"""(workload, GPU, number of GPUs, samples/s of one) to how well they train together."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Throughput of n GPUs over n times that of one; ``half_width`` is of its log, at 90 %."""

    efficiency: float
    basis: str
    half_width: float = 0.0


SINGLE = Scaling(1.0, "single GPU")
INDEPENDENT = Scaling(1.0, "independent jobs")


def scaling_of(
    spec: GpuSpec | None,
    gpu_count: int,
    parts: Mapping[str, Estimate],
    *,
    scaler: Scaler | None,
    shares: Mapping[str, float],
) -> Scaling:
    """Return how an instance scales and where the figure comes from.

    Args:
        spec: Its GPU.
        gpu_count: How many.
        parts: The estimate of one GPU, by workload.
        scaler: The model of one job over all GPUs; None for independent jobs.
        shares: Of the samples by workload; empty where the workloads count by geometric mean.
    """
    if gpu_count == 1:
        return SINGLE
    if scaler is None or spec is None:
        return INDEPENDENT
    single = {name: part.samples_per_s for name, part in parts.items()}
    models = {name: scaler(name, spec, gpu_count, rate) for name, rate in single.items()}
    alone = _mean(single, shares)
    efficiency, low, high = (
        _mean({name: single[name] * getattr(model, end) for name, model in models.items()}, shares) / alone
        for end in ("efficiency", "low", "high")
    )
    basis = next(iter(models.values())).basis
    return Scaling(efficiency, basis, math.log(high / low) / 2)


def _mean(rates: Mapping[str, float], shares: Mapping[str, float]) -> float:
    return float(mean_of(np.array(list(rates.values())), list(rates), shares))
