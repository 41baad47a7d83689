"""The peak of a precision on a device, by datasheet and clock: what a measured rate is held against."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.models import DeviceProfile, FindingKind, MicroResult, Precision
from gpubench.specs import load_specs

GEMM_PRECISIONS = {p.facts.format.name: p for p in Precision} | {
    p.facts.format.name: p for p in Precision if p.is_usual
}
"""By a matrix product's precision: that of a training step whose products run at it."""

GEMM_SIZES = {precision.facts.format.name: precision.facts.format.sizes for precision in Precision}
CPU_GEMM_SIZES = (1024, 2048)
"""Edges of the square products that are timed, by their precision."""


def gemm_precisions(*, in_haste: bool) -> dict[str, Precision]:
    """Return ``GEMM_PRECISIONS``; in haste without those that no case is measured at unless asked for."""
    return {name: p for name, p in GEMM_PRECISIONS.items() if p.is_usual or not in_haste}


def peak_flops_per_s(device: DeviceProfile, precision: Precision) -> float | None:
    """Return the dense peak at the highest clock of this card [FLOP/s]; None without a datasheet."""
    sheet = _datasheet_flops_per_s(device, precision)
    return None if sheet is None else sheet * clock_ratio(device)


def clock_ratio(device: DeviceProfile) -> float:
    """Return the highest SM clock of this card over that of its datasheet, at least 1; 1 where unknown.

    Consumer cards boost beyond the clock that the datasheet gives its figures for: an RTX 4090 to 3105 MHz
    where its datasheet says 2520. That clock is told by the figure for fp32: two operations a core and clock.
    """
    spec = load_specs().get(device.gpu_key or "")
    if spec is None or not (spec.fp32_flops_per_s and spec.cuda_core_count and device.sm_clock_max_hz):
        return 1.0
    return max(1.0, device.sm_clock_max_hz * 2 * spec.cuda_core_count / spec.fp32_flops_per_s)


def _datasheet_flops_per_s(device: DeviceProfile, precision: Precision) -> float | None:
    spec = load_specs().get(device.gpu_key or "")
    if spec is None:
        return None
    peak: float | None = getattr(spec, precision.facts.format.peak)
    return peak


def best_gemm(results: Sequence[MicroResult]) -> dict[Precision, float]:
    """Return the best rate of this device's own matrix products for each training precision [FLOP/s].

    A product that was not computed at the precision of its name is no measure of it.
    """
    best: dict[Precision, float] = {}
    for result in results:
        sound = all(finding.kind is not FindingKind.TF32_IN_FORCE for finding in result.findings)
        if sound and result.name == "gemm":
            for precision in Precision:
                if precision.facts.format.name == result.precision:
                    best[precision] = max(best.get(precision, 0.0), result.value)
    return best


def best_products(results: Sequence[MicroResult]) -> frozenset[tuple[str | None, str]]:
    """Return precision and size of the fastest matrix product, where a precision has several sizes."""
    products: dict[str | None, list[MicroResult]] = {}
    for result in results:
        if result.name == "gemm":
            products.setdefault(result.precision, []).append(result)
    several = (found for found in products.values() if len(found) > 1)
    best = (max(found, key=lambda result: result.value) for found in several)
    return frozenset((result.precision, result.size) for result in best)


def datasheet_peak(device: DeviceProfile, result: MicroResult) -> float | None:
    """Return the datasheet's figure for what was probed: peak rate or memory bandwidth; None if unknown."""
    if result.name == "gemm" and result.precision in GEMM_PRECISIONS:
        return _datasheet_flops_per_s(device, GEMM_PRECISIONS[result.precision])
    spec = load_specs().get(device.gpu_key or "")
    if spec is not None and result.name == "device copy":
        return spec.memory_bandwidth_bytes_per_s
    if spec is not None and (result.name, result.precision) == ("multiply-add", "fp32"):
        return spec.fp32_flops_per_s
    return None


def datasheet_share(device: DeviceProfile, result: MicroResult) -> float | None:
    """Return a micro-benchmark over the datasheet's peak or memory bandwidth; None if unknown."""
    peak = datasheet_peak(device, result)
    return result.value / peak if peak else None
