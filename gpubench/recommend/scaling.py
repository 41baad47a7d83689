"""How much of n GPUs one data-parallel job gets."""

from __future__ import annotations

from dataclasses import dataclass

from gpubench.models import GpuSpec

ASSUMED_NVLINK = 0.95
ASSUMED_PCIE = 0.85
ASSUMED_HALF_WIDTH = 0.05


@dataclass(frozen=True, slots=True)
class Scaling:
    """Throughput of n GPUs over n times that of one; ``half_width`` is of its log, at 90 %."""

    efficiency: float
    basis: str
    half_width: float = 0.0


SINGLE = Scaling(1.0, "single GPU")
INDEPENDENT = Scaling(1.0, "independent jobs")


def scaling_of(spec: GpuSpec | None, gpu_count: int, *, one_job: bool) -> Scaling:
    """Return how an instance scales and where the figure comes from."""
    if gpu_count == 1:
        return SINGLE
    if not one_job:
        return INDEPENDENT
    linked = spec is not None and bool(spec.nvlink_bytes_per_s) and spec.form_factor != "PCIe"
    return Scaling(ASSUMED_NVLINK if linked else ASSUMED_PCIE, "assumed", ASSUMED_HALF_WIDTH)
