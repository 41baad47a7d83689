"""GPUs as the fit and its predictions see them: datasheet figures as arrays, and relations between GPUs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from math import exp, inf, log
from statistics import median
from typing import NamedTuple

import numpy as np

from gpubench.arrays import Flags, Floats
from gpubench.folders import data_rows
from gpubench.groups import grouped
from gpubench.models import GpuSpec, Precision
from gpubench.predict.question import FITTED_VENDOR, capability_of
from gpubench.specs import load_specs

REFERENCE_L2_BYTES = 6 * 2**20  # L2 of a V100 or an RTX 3090; the fitted bandwidth shares refer to it
DUAL_ISSUE = frozenset({"CDNA3", "CDNA4", "RDNA3", "RDNA4"})
"""Other vendors' architectures with an FP32 rate that counts two operations per lane."""


class Mode(IntEnum):
    """The arithmetic in which an operator runs; without tensor cores, all modes run at the FP32 rate."""

    FP32 = 0
    TF32 = 1
    HALF = 2


REFERENCE_WIDTH = {Mode.TF32: 512.0, Mode.HALF: 1024.0}
"""FLOP per clock of one multiprocessor's tensor cores for which the efficiencies are fitted: Turing's in half
precision, and half of that in TF32."""


@dataclass(frozen=True, kw_only=True)
class Chips:
    """Datasheet figures of n GPUs.

    Attributes:
        peaks: (n, 3) FLOP/s by ``Mode``, NaN if unknown; FP32 where there are no tensor cores.
        tensor: (n, 3) whether tensor cores run that mode.
        bandwidth: (n,) bytes per second of the memory.
        dual_issue: (n,) whether each lane has two FP32 pipes; training seldom fills the second.
        width: (n, 3) log ratio of one multiprocessor's tensor FLOP per clock to ``REFERENCE_WIDTH``; 0 if
            unknown.
        l2: (n,) log ratio of the L2 cache's size to ``REFERENCE_L2_BYTES``; 0 if unknown.
        power, clock: (n,) logs relative to the median for the compute capability: watts per multiprocessor
            (inf if unknown), and the clock at which the peaks are stated.
        product: (n,) share of the peak that large matrix products on tensor cores reach at the full clock, as
            measured on the GPU or its nearest relative.
        product_best: (n,) the best share measured in the GPU's family.
        product_measured: (n,) whether the family has a measured share; if not, both shares are assumed.
        nvidia: (n,) whether the GPU is from NVIDIA.
    """

    peaks: Floats
    tensor: Flags
    bandwidth: Floats
    dual_issue: Flags
    width: Floats
    l2: Floats
    power: Floats
    clock: Floats
    product: Floats
    product_best: Floats
    product_measured: Flags
    nvidia: Flags


def chips_of(specs: Sequence[GpuSpec]) -> Chips:
    """Return the datasheet figures of GPUs as arrays.

    A GPU without tensor cores runs half precision and TF32 at its FP32 rate. A tensor-core rate that is not
    stated is NaN, so nothing is predicted from it.
    """
    powers, products = list(map(power_and_clock, specs)), list(map(product_rate, specs))
    by_mode = [_by_mode(spec) for spec in specs]
    peaks, tensor, width = np.moveaxis(np.array(by_mode, dtype=float).reshape(-1, 3, len(Mode)), 1, 0)
    return Chips(
        peaks=peaks,
        tensor=tensor.astype(bool),
        bandwidth=np.array([spec.memory_bandwidth_bytes_per_s or np.nan for spec in specs]),
        dual_issue=np.array(
            [(capability_of(s) or (0, 0)) >= (8, 6) or s.architecture in DUAL_ISSUE for s in specs],
            dtype=bool,
        ),
        width=width,
        l2=np.log([(spec.l2_bytes or REFERENCE_L2_BYTES) / REFERENCE_L2_BYTES for spec in specs]),
        power=np.array([each.power for each in powers], dtype=float),
        clock=np.array([each.clock for each in powers], dtype=float),
        product=np.array([each.share for each in products], dtype=float),
        product_best=np.array([each.best for each in products], dtype=float),
        product_measured=np.array([each.is_measured for each in products], dtype=bool),
        nvidia=np.array([capability_of(spec) is not None for spec in specs], dtype=bool),
    )


@cache
def _by_mode(spec: GpuSpec) -> tuple[list[float], list[bool], list[float]]:
    """Return ``peaks``, ``tensor`` and ``width`` of one GPU, as in ``Chips``."""
    fp32 = spec.fp32_flops_per_s or np.nan
    capability, half = capability_of(spec), spec.fp16_tensor_flops_per_s
    # ROCm leaves TF32 off: an MI325X trains equally fast with and without it, within 1 %
    tf32 = None if capability is None else spec.tf32_tensor_flops_per_s
    # If another vendor's datasheet states no matrix rate, there are no matrix cores: FP32 pipes do the work.
    without_tensor = capability is None or spec.tensor_core_count == 0
    peaks = [
        fp32,
        tf32 or (np.nan if Precision.TF32.within(capability) else fp32),
        half or (fp32 if without_tensor else np.nan),
    ]
    width = [0.0] * len(Mode)
    if spec.sm_count and spec.cuda_core_count and spec.fp32_flops_per_s:
        sm_clocks_per_s = spec.fp32_flops_per_s / (2 * spec.cuda_core_count) * spec.sm_count
        for mode, rate in ((Mode.TF32, tf32), (Mode.HALF, half)):
            width[mode] = log(rate / sm_clocks_per_s / REFERENCE_WIDTH[mode]) if rate else 0.0
    return peaks, [False, tf32 is not None, half is not None], width


class PowerAndClock(NamedTuple):
    """Log watts per multiprocessor and log clock at which the peaks are stated, absolute or relative."""

    power: float
    clock: float


UNLIMITED = PowerAndClock(power=inf, clock=0.0)
"""Used for a GPU of unknown power, such as one that shares its limit with a CPU."""


@cache
def power_and_clock(spec: GpuSpec) -> PowerAndClock:
    """Return power and clock of a GPU relative to others of its compute capability, or ``UNLIMITED``.

    Peaks are stated at a clock that not every card can sustain. A chip's power draw grows roughly as its
    clock to the power of 2.5, so the clock that a card sustains grows roughly as its watts per multiprocessor
    to the power of 0.4 (fitted). ``roofline.log_throttle`` compares that clock with the stated one: it lowers
    only a peak that is stated at a higher clock, and raises none. A row for several cards has the figures of
    the variant with the least power.
    """
    if spec.variants:
        return min(power_and_clock(load_specs()[key]) for key in spec.variants)
    own = _logs(spec)
    if own is None or spec.compute_capability is None:
        return UNLIMITED
    usual = _usual()[spec.compute_capability]
    return PowerAndClock(power=own.power - usual.power, clock=own.clock - usual.clock)


@cache
def _usual() -> Mapping[str, PowerAndClock]:
    # Medians by compute capability over the specification table, without its rows for several cards
    by_capability = grouped(
        (spec.compute_capability, own)
        for spec in load_specs().values()
        if spec.compute_capability and not spec.variants and (own := _logs(spec)) is not None
    )
    return {
        capability: PowerAndClock(power=median(o.power for o in each), clock=median(o.clock for o in each))
        for capability, each in by_capability.items()
    }


def _logs(spec: GpuSpec) -> PowerAndClock | None:
    if not (spec.tdp_w and spec.sm_count and spec.fp32_flops_per_s and spec.cuda_core_count):
        return None
    stated_hz = spec.fp32_flops_per_s / (2 * spec.cuda_core_count)
    return PowerAndClock(power=log(spec.tdp_w / spec.sm_count), clock=log(stated_hz))


# --- large matrix products, as measured ---------------------------------------------------------------------

UNMEASURED_SHARE = 0.75
"""Assumed share of the peak that large products reach if no GPU of the family was measured."""
UNMEASURED_GEFORCE_SHARE = 0.85
"""The same for GeForce cards. Their rated peak is half of what the tensor cores could do, so it is easier to
reach."""
_POWER_EXPONENT = 0.48  # fitted: the clock of a measured card grows as its power to this exponent


class ProductRate(NamedTuple):
    """Share of the tensor-core peak that large products reach at the full clock, and the family's best."""

    share: float
    best: float
    is_measured: bool


@cache
def product_rate(spec: GpuSpec, without: str | None = None) -> ProductRate:
    """Return the rate of large products on a GPU: measured there or on its nearest relative, else assumed.

    Relatives belong to the same family. Those of the same compute capability come first, then those with the
    most similar power per multiprocessor. GeForce cards have no relatives, because their rated peak differs
    from that of other cards with the same chip.

    Args:
        spec: The GPU.
        without: Key of a GPU to leave out of the measurements.
    """
    is_geforce, own = spec.line == "GeForce", power_and_clock(spec)
    measured = [
        each
        for each in _measured_products()
        if each.key != without and not is_geforce and _family(each) == _family(spec)
    ]
    share = UNMEASURED_GEFORCE_SHARE if is_geforce else UNMEASURED_SHARE
    if not measured:
        return ProductRate(share=share, best=share, is_measured=False)

    def distance(each: GpuSpec) -> tuple[bool, bool, float]:
        other = power_and_clock(each)
        gap = 0.0 if own == other else abs(own.power - other.power)  # both can be infinite
        return each != spec, each.compute_capability != spec.compute_capability, gap

    nearest = min(measured, key=distance)
    power, clock = power_and_clock(nearest)
    # Share of the full clock at which it was measured
    throttle = exp(min(0.0, _POWER_EXPONENT * power - clock))
    return ProductRate(
        share=_measured_products()[nearest][0] / throttle,
        best=max(_measured_products()[each][1] for each in measured),
        is_measured=True,
    )


@cache
def _measured_products() -> Mapping[GpuSpec, tuple[float, float]]:
    # The typical and the best reading of each GPU in data/product_rates.csv, as shares of the peak.
    rows = [(load_specs()[row["gpu_key"]], row) for row in data_rows("product_rates.csv")]
    peak = {spec: spec.fp16_tensor_flops_per_s or np.nan for spec, _ in rows}
    return {s: (float(r["flops_per_s"]) / peak[s], float(r["best_flops_per_s"]) / peak[s]) for s, r in rows}


def _family(spec: GpuSpec) -> tuple[int, int] | None:
    # Compute capabilities that share a tensor-core design: 8.6 and 8.9; all of 10; all of 12.
    capability = capability_of(spec)
    shared = {(8, 9): (8, 6), (10, 3): (10, 0), (12, 1): (12, 0)}
    return capability and shared.get(capability, capability)


def architecture_of(gpu_key: str) -> str:
    """Return the architecture of a GPU, or the GPU's own key if none is stated."""
    return load_specs()[gpu_key].architecture or gpu_key


def predecessor(architecture: str, known: Collection[str]) -> str | None:
    """Return the newest known architecture of the family before this one; None if there is none."""
    families, ages = _lineages()
    related = {name for members in families.values() if architecture in members for name in members}
    older = [name for name in known if name in related and ages[name] < ages[architecture]]
    return max(older, key=lambda name: ages[name], default=None)


@cache
def _lineages() -> tuple[Mapping[str, set[str]], Mapping[str, tuple[int, int]]]:
    """Return the architectures of each family, and a pair of numbers that is larger for newer ones.

    NVIDIA is one family, ordered by lowest compute capability. Other vendors do not number their GPUs that
    way, so each of their product lines (AMD's Instinct and Radeon) is a family, ordered by the year of an
    architecture's first card. Architectures that cannot be ordered are left out.
    """
    families: dict[str, set[str]] = {}
    ages: dict[str, tuple[int, int]] = {}
    for key, spec in load_specs().items():
        name, family, age = architecture_of(key), spec.vendor, capability_of(spec)
        if age is None and spec.vendor != FITTED_VENDOR and spec.release_year is not None:
            family, age = f"{spec.vendor} {spec.line}", (spec.release_year, 0)
        if age is not None:
            families.setdefault(family, set()).add(name)
            ages[name] = min(age, ages.get(name, age))
    return families, ages


@cache
def chips() -> Mapping[str, str]:
    """Return the chip (die) of each NVIDIA GPU in the specification table, from data/chips.csv."""
    return {row["gpu_key"]: row["chip"] for row in data_rows("chips.csv") if row["chip"]}


def chip_of(gpu_key: str) -> str:
    """Return the chip of a GPU, or the GPU's own key if its chip is unknown."""
    return chips().get(gpu_key, gpu_key)
