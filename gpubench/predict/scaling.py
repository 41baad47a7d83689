"""Several GPUs in one data-parallel job: the cost of exchanging gradients, and how much of it is hidden.

A ring all-reduce moves 2 (n - 1) / n times the gradient bytes over the slowest link. Buckets of gradients are
sent during the backward pass as they become ready, which hides part of the exchange. The GPUs wait for each
other, which costs a share of the step for each doubling of the GPU count. The shares are fitted to published
rows; see docs/prediction.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from gpubench.arrays import Floats
from gpubench.errors import MisuseError
from gpubench.models import GpuSpec, TaskKind
from gpubench.predict.calibration import ScalingShares, load_calibration
from gpubench.predict.question import FITTED_VENDOR, Question

Link: TypeAlias = Literal["nvlink", "fabric", "pcie", "host"]

GRADIENT_BYTES = 4  # data parallel training exchanges fp32 gradients, under AMP too
BACKWARD_SHARE = 2 / 3  # of the step: two of the three products of each layer
BUCKET_BYTES = 25 * 1024**2  # of torch's DistributedDataParallel; nothing overlaps the last bucket
PCIE_LANES = 16
_PCIE_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
SHARES = ("waiting", "hidden", "nvlink", "fabric", "pcie", "host")
"""The fitted shares, in the order of ``ScalingShares``: the share of the step lost with each doubling of the
GPU count, the share of the backward pass that hides the exchange, and the share of each link's one-way rate
that is reached."""
_SMALL = 1e-3  # step of numerical derivatives, in log shares


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU exchanges in a step, and over which link.

    Attributes:
        rate: Rate of the link in one direction [B/s].
        step_s: Time of the step without the exchange.
        unhidden_bytes: The part of the exchange that overlaps with nothing.
        cover_share: Share of the step that can overlap the exchange.
    """

    gradient_bytes: float
    link: Link
    rate: float
    step_s: float
    unhidden_bytes: float = BUCKET_BYTES
    cover_share: float = BACKWARD_SHARE


def scaling(
    question: Question, spec: GpuSpec, n: int, samples_per_s: float, *, sharded: bool = False
) -> tuple[float, float, float]:
    """Model how well n of these GPUs train together.

    Args:
        question: Workload, batch per GPU and task; inference needs no exchange.
        spec: The GPU.
        n: Number of GPUs in one host, at least 1.
        samples_per_s: Throughput of one GPU, above 0.
        sharded: Whether weights, gradients and optimizer states are sharded (FSDP); the weights are then
            gathered twice in each step.

    Returns:
        Ratio of the throughput of n GPUs to n times that of one, at the same batch per GPU, with the ends of
        its 90 % interval; 1 is perfect.

    Raises:
        MisuseError: If n is below 1 or the throughput is not positive.
    """
    if n < 1 or not samples_per_s > 0:
        raise MisuseError(f"{n} GPUs at {samples_per_s} samples/s: both must be positive")
    if n == 1 or question.task is TaskKind.INFER:
        return 1.0, 1.0, 1.0
    exchange = exchange_of(question, spec, question.batch / samples_per_s, sharded=sharded)
    fitted = load_calibration().scaling
    likely = log_efficiency(fitted.logs, exchange, 1, n)
    width = fitted.factor * usual_error(fitted, exchange, 1, n)
    # The fit has no jobs with FSDP, nor any on other vendors' GPUs
    if fitted.other_vendors is not None and (sharded or spec.vendor != FITTED_VENDOR):
        width = max(width, fitted.other_vendors) if sharded else fitted.other_vendors
    return math.exp(likely), math.exp(likely - width), min(1.0, math.exp(likely + width))


def exchange_of(question: Question, spec: GpuSpec, step_s: float, *, sharded: bool) -> Exchange:
    """Return the exchange of a step: all gradients; with FSDP, also all weights for each of the two passes.

    Each of FSDP's three transfers moves half the bytes of an all-reduce of the same size. Blocks are sent
    before they are used, so all but the first can overlap with the whole step.
    """
    profile, (link, rate) = question.profile, link_of(spec)
    if not sharded:
        gradient = float(profile.trainable_parameters * GRADIENT_BYTES)
        return Exchange(gradient_bytes=gradient, link=link, rate=rate, step_s=step_s)
    element = profile.recipe.weight_type.bytes_each
    weights, gradients = profile.parameters * element, profile.trainable_parameters * element
    first = profile.parameters if profile.blocks is None else profile.blocks.largest_parameters
    return Exchange(
        gradient_bytes=(2 * weights + gradients) / 2,
        link=link,
        rate=rate,
        step_s=step_s,
        unhidden_bytes=first * element / 2,
        cover_share=1.0,
    )


def log_efficiency(logs: Floats | tuple[float, ...], exchange: Exchange, few: int, many: int) -> float:
    """Return the log ratio of the throughput per GPU on ``many`` GPUs to that on ``few``."""
    shares = _shares_of(tuple(logs))

    def log_slowdown(n: int) -> float:
        waits_s = exposed_s(exchange, n, shares[exchange.link], shares["hidden"])
        return math.log(1 + shares["waiting"] * math.log2(n) + waits_s / exchange.step_s)

    return (log_slowdown(few) if few > 1 else 0.0) - log_slowdown(many)


@lru_cache(maxsize=64)
def _shares_of(logs: tuple[float, ...]) -> Mapping[str, float]:
    return dict(zip(SHARES, map(math.exp, logs), strict=True))


def usual_error(fitted: ScalingShares, exchange: Exchange, few: int, many: int) -> float:
    """Return the typical error of ``log_efficiency``, from the uncertainty of the shares and other effects.

    Other effects, such as the harness's data loading and logging, grow with each doubling of the GPU count.
    """
    slope = slopes(fitted.logs, exchange, few, many)
    variance = float(slope @ np.array(fitted.covariance) @ slope)
    return math.hypot(math.sqrt(max(0.0, variance)), fitted.noise * math.log2(many / few))


def slopes(logs: Floats | tuple[float, ...], exchange: Exchange, few: int, many: int) -> Floats:
    """Return the derivatives of ``log_efficiency`` with respect to the log of each share, (6,)."""
    base = log_efficiency(logs, exchange, few, many)
    moved = _moved(tuple(logs))
    return np.array([log_efficiency(row, exchange, few, many) - base for row in moved]) / _SMALL


@lru_cache(maxsize=8)
def _moved(logs: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    # Return the logs with one of them moved in each row.
    return tuple(map(tuple, (np.array(logs) + _SMALL * np.eye(len(SHARES))).tolist()))


def link_of(spec: GpuSpec) -> tuple[Link, float]:
    """Return the link that carries the gradients, and its rate in one direction [B/s].

    NVLink and Infinity Fabric count only if every card of this model has them (SXM, OAM), because offers do
    not say whether PCIe cards have a bridge. GeForce cards do not communicate directly over PCIe.
    """
    if spec.is_linked and spec.link is not None and spec.nvlink_bytes_per_s:
        return spec.link, spec.nvlink_bytes_per_s / 2
    lanes = PCIE_LANES * _PCIE_LANE_BYTES_PER_S.get(spec.pcie_generation or 3, _PCIE_LANE_BYTES_PER_S[3])
    return ("host" if spec.line in {"GeForce", "TITAN"} else "pcie"), lanes


def exposed_s(exchange: Exchange, n: int, share: float, hidden_share: float) -> float:
    """Return the exchange time that the step waits for [s], at least that of the last bucket.

    Args:
        exchange: What is exchanged, and over which link.
        n: Number of GPUs.
        share: Share of the link's rate that is reached.
        hidden_share: Share of the backward pass that hides the exchange. A fitted share above 1 counts as 1.
    """
    ring, rate = 2 * (n - 1) / n, exchange.rate * share
    whole = ring * exchange.gradient_bytes / rate
    last = ring * min(exchange.gradient_bytes, exchange.unhidden_bytes) / rate
    return max(last, whole - min(1.0, hidden_share) * exchange.cover_share * exchange.step_s)
