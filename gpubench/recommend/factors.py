"""The factors that buyers compare GPUs by: one flat record each, and the words that filters take."""

from __future__ import annotations

from typing import Any

from gpubench.models import GpuSpec
from gpubench.names import normalize

FAST_FP64 = 0.25
"""Share of the FP32 rate from which FP64 counts as fast: data-center parts have 1/2, GeForce 1/64."""

LINES = {
    "geforce": ("GeForce", "TITAN"),
    "rtx": ("RTX professional", "Quadro"),
    "quadro": ("RTX professional", "Quadro"),
    "professional": ("RTX professional", "Quadro"),
    "tesla": ("Tesla", "Data Center"),
    "data center": ("Tesla", "Data Center"),
    "data centre": ("Tesla", "Data Center"),
    "datacenter": ("Tesla", "Data Center"),
    "jetson": ("Jetson",),
    "radeon": ("Radeon",),
    "instinct": ("Instinct",),
}
"""What buyers call a product line, and the lines of the table that it means."""

_MODULES = ("SXM", "OAM", "superchip", "system on chip", "module")
_PASSIVE_LINES = frozenset({"Tesla", "Data Center", "Instinct"})


def factors_of(spec: GpuSpec | None) -> dict[str, Any]:
    """Return a GPU's factors as they stand beside its row; unknown is None."""
    if spec is None:
        return dict.fromkeys(_FACTORS)
    return {
        "memory_bytes": spec.memory_bytes,
        "memory_type": spec.memory_type,
        "memory_bandwidth_bytes_per_s": spec.memory_bandwidth_bytes_per_s,
        "core_count": spec.cuda_core_count,
        "tensor_core_count": spec.tensor_core_count,
        "architecture": spec.architecture,
        "line": spec.line,
        "ecc": ecc_of(spec),
        "fp64_share": fp64_share(spec),
        "link": link_of(spec),
        "cooling": cooling_of(spec),
        "board_power_w": spec.board_power_w,
    }


_FACTORS = (
    "memory_bytes",
    "memory_type",
    "memory_bandwidth_bytes_per_s",
    "core_count",
    "tensor_core_count",
    "architecture",
    "line",
    "ecc",
    "fp64_share",
    "link",
    "cooling",
    "board_power_w",
)


def lines_meant(word: str) -> tuple[str, ...]:
    """Return the lines of the table that a word means, itself where it is one of them."""
    return LINES.get(normalize(word), (word,))


def ecc_of(spec: GpuSpec) -> bool | None:
    """Return whether the memory corrects errors; stacked memory (HBM) always does."""
    if spec.ecc is not None:
        return spec.ecc
    return True if (spec.memory_type or "").startswith("HBM") else None


def fp64_share(spec: GpuSpec) -> float | None:
    """Return the FP64 rate as a share of the FP32 rate."""
    if spec.fp64_flops_per_s is None or not spec.fp32_flops_per_s:
        return None
    return spec.fp64_flops_per_s / spec.fp32_flops_per_s


def link_of(spec: GpuSpec) -> str | None:
    """Return the fastest link to other GPUs and the host: nvlink, pcie5, pcie4 ..."""
    if spec.nvlink_bytes_per_s:
        return "nvlink" if spec.vendor == "NVIDIA" else "fabric"
    return None if spec.pcie_generation is None else f"pcie{spec.pcie_generation}"


def has_nvlink(spec: GpuSpec) -> bool:
    """Return whether every such GPU is linked to others past PCIe; the bridge of a card is sold apart."""
    return link_of(spec) in {"nvlink", "fabric"} and not (spec.form_factor or "PCIe").startswith("PCIe")


def cooling_of(spec: GpuSpec) -> str | None:
    """Return active (a fan), passive (the server's air), liquid or module; else what the line usually has."""
    if spec.cooling is not None:
        return spec.cooling
    if spec.form_factor is None:
        return None
    if spec.form_factor.startswith(_MODULES):
        return "module"
    return "passive" if spec.line in _PASSIVE_LINES or "server" in spec.key else "active"
