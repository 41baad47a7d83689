"""Readings of a device that has none: a CPU, or a GPU whose driver tells nothing."""

from __future__ import annotations

from typing import Self

from gpubench.models import Reading
from gpubench.probe.backend import GpuProcess, PowerLimits


class NoReadings:
    """A device without telemetry: every value is unknown, and ``source`` is "none"."""

    source = "none"
    fault: str | None = None

    @property
    def refused(self) -> dict[str, str]:
        """Nothing was asked, so nothing was refused."""
        return {}

    def sample(self) -> Reading:
        """Unknown throughout."""
        return Reading()

    def energy_j(self) -> float | None:
        """Unknown."""
        return None

    def held_clocks_s(self) -> dict[str, float]:
        """Unknown throughout."""
        return {}

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Unknown."""
        return None

    def power_limits(self) -> PowerLimits:
        """Unknown."""
        return PowerLimits()

    def memory_in_use_bytes(self) -> int | None:
        """Unknown."""
        return None

    def ecc_uncorrected(self) -> int | None:
        """Unknown."""
        return None

    def compute_mode(self) -> str | None:
        """Unknown."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        return
