"""Several GPUs in one data-parallel job: what the exchange of gradients costs, and how much of it hides.

Modelled, not measured: no published row of the calibration has more than one GPU. A ring all-reduce
moves 2 (n - 1) / n of the gradient bytes over the slowest link; buckets that are ready travel while the
backward pass goes on. See docs/prediction.md for where the shares come from.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import GpuSpec, TaskKind
from gpubench.predict.question import Question

Link: TypeAlias = Literal["none", "nvlink", "pcie", "host"]

GRADIENT_BYTES = 4  # data parallel training exchanges fp32 gradients, under AMP too
BACKWARD_SHARE = 2 / 3  # of the step: two of the three products of every layer
BUCKET_BYTES = 25 * 1024**2  # the last bucket of torch's DistributedDataParallel has nothing to hide behind
STEP_OVERHEAD = 0.015  # the slowest of n, and n launches of the collective
PCIE_LANES = 16
_PCIE_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

# Share of a link's one-way rate that an all-reduce of tens of MB reaches, and of the backward pass that
# hides it: likely value, then the ends of the 90 % interval.
_LINK_SHARE: dict[str, tuple[float, float, float]] = {
    "nvlink": (0.75, 0.55, 0.90),
    "pcie": (0.60, 0.35, 0.85),
    "host": (0.35, 0.18, 0.60),
}
_HIDDEN_SHARE = (0.75, 0.45, 0.95)


class ScalingEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of n GPUs over n times that of one, with a 90 % interval.

    Attributes:
        efficiency: 1 is perfect; the batch per GPU stays as it is.
        link: What the gradients travel over; ``host`` is PCIe through the memory of the host.
        gradient_bytes: Exchanged in each step, per GPU, before the ring's factor.
        exposed_s: Part of the exchange that does not hide behind the backward pass.
        log_deviation: Standard deviation of the log efficiency, for draws.
    """

    gpu_count: int
    efficiency: float
    low: float
    high: float
    link: Link
    gradient_bytes: float
    exchange_s: float
    exposed_s: float
    log_deviation: float
    basis: Literal["modelled"] = "modelled"
    method: str


def scaling(question: Question, spec: GpuSpec, n: int, samples_per_s: float) -> ScalingEstimate:
    """Model how well n of these GPUs train together.

    Args:
        question: Workload, batch per GPU and task; inference needs no exchange.
        spec: The GPU.
        n: GPUs in one host, at least 1.
        samples_per_s: Throughput of one of them.

    Raises:
        MisuseError: If n is below 1 or the throughput is not positive.
    """
    if n < 1 or not samples_per_s > 0:
        raise MisuseError(f"{n} GPUs at {samples_per_s} samples/s: both must be positive")
    step_s = question.batch / samples_per_s
    gradient = float(question.profile.trainable_parameters * GRADIENT_BYTES)
    if n == 1 or question.task is TaskKind.INFER:
        return ScalingEstimate(
            gpu_count=n,
            efficiency=1.0,
            low=1.0,
            high=1.0,
            link="none",
            gradient_bytes=0.0,
            exchange_s=0.0,
            exposed_s=0.0,
            log_deviation=0.0,
            method="nothing is exchanged",
        )
    link, one_way = link_of(spec)
    ring = 2 * (n - 1) / n
    likely, worst, best = (
        _exposed_s(gradient, ring, one_way * share, step_s, hidden)
        for share, hidden in zip(_LINK_SHARE[link], _HIDDEN_SHARE, strict=True)
    )
    efficiency = step_s / (step_s * (1 + STEP_OVERHEAD) + likely)
    low = step_s / (step_s * (1 + 2 * STEP_OVERHEAD) + worst)
    high = step_s / (step_s + best)
    return ScalingEstimate(
        gpu_count=n,
        efficiency=efficiency,
        low=low,
        high=high,
        link=link,
        gradient_bytes=gradient,
        exchange_s=ring * gradient / (one_way * _LINK_SHARE[link][0]),
        exposed_s=likely,
        log_deviation=math.log(high / low) / 2 / 1.645,
        method=f"modelled: ring all-reduce of {gradient / 1e6:.0f} MB over {_LINK_WORDS[link]}",
    )


def link_of(spec: GpuSpec) -> tuple[Link, float]:
    """What the gradients travel over, and its rate in one direction [B/s].

    NVLink counts on modules (SXM) alone: a bridge between PCIe cards is optional, joins pairs, and no
    offer says that it is there. GeForce cards do not talk to each other directly over PCIe.
    """
    if spec.nvlink_bytes_per_s and (spec.form_factor or "").startswith(("SXM", "superchip")):
        return "nvlink", spec.nvlink_bytes_per_s / 2
    lanes = PCIE_LANES * _PCIE_LANE_BYTES_PER_S.get(spec.pcie_generation or 3, _PCIE_LANE_BYTES_PER_S[3])
    return ("host" if spec.line in {"GeForce", "TITAN"} else "pcie"), lanes


def _exposed_s(
    gradient_bytes: float, ring: float, bytes_per_s: float, step_s: float, hidden_share: float
) -> float:
    """Exchange time that the step waits for: what the backward pass cannot hide, at least a last bucket."""
    exchange = ring * gradient_bytes / bytes_per_s
    last = ring * min(gradient_bytes, BUCKET_BYTES) / bytes_per_s
    return max(last, exchange - hidden_share * BACKWARD_SHARE * step_s)


_LINK_WORDS = {
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "host": "PCIe through the memory of the host",
}
