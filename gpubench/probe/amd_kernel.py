"""Readings of one AMD GPU as the Linux kernel driver amdgpu shows them below /sys: no library, no torch.

Written after the kernel's documentation (gpu/amdgpu: hwmon, busy percentages, memory totals), and tested on
what three machines recorded (tests/data/amd) and on made-up folders. No AMD GPU was at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubench.models import Reading
from gpubench.probe import plausible
from gpubench.probe.backend import PowerLimits
from gpubench.probe.no_readings import NoReadings
from gpubench.probe.plausible import Gate, ImplausibleError

# The native units of the kernel's files.
_POWER = plausible.POWER.of("µW", divisor=10**6)
_POWER_LIMIT = plausible.POWER_LIMIT.of("µW", divisor=10**6)
_TEMPERATURE = plausible.TEMPERATURE.of("m°C", divisor=1000)


@dataclass
class Folder:
    """Values below one device's folder; each that is missing leaves its reason in ``refused``."""

    path: Path
    refused: dict[str, str]

    def get(self, field: str, names: str | Iterable[str], convert: Callable[[str], Any] = str) -> Any:
        """The converted text of the first of these files (shell patterns) that reads; else None."""
        patterns = [names] if isinstance(names, str) else list(names)
        reason = "no such file"
        for file in (f for p in patterns for f in sorted(self.path.glob(p))):
            try:
                return convert(file.read_text(encoding="utf-8", errors="replace").strip())
            except OSError as error:
                reason = error.strerror or "not readable"
            except ImplausibleError as error:
                reason = str(error)
            except (ValueError, KeyError):
                reason = "not understood"
        self.refused[field] = f"{patterns[0]}: {reason}"
        return None

    def number(self, field: str, names: str | Iterable[str], gate: Gate) -> Any:
        """The same for a whole number, in SI units."""
        return self.get(field, names, lambda text: gate(int(text)))


class AmdReadings(NoReadings):
    """Readings of one AMD GPU; its driver has no energy counter and no reasons for clock events."""

    source = "amdgpu"

    def __init__(self, folder: Path) -> None:
        """Read from the PCI folder of the device."""
        self._folder = Folder(folder, {})

    @property
    def refused(self) -> dict[str, str]:
        """Why a field is None, by field."""
        return self._folder.refused

    def sample(self) -> Reading:
        """Read clocks, power, temperature, utilization and memory."""
        of = self._folder
        return Reading(
            sm_clock_hz=of.number("sm_clock_hz", "hwmon/*/freq1_input", plausible.SM_CLOCK),
            memory_clock_hz=of.number("memory_clock_hz", "hwmon/*/freq2_input", plausible.MEMORY_CLOCK),
            power_w=of.number("power_w", ("hwmon/*/power1_average", "hwmon/*/power1_input"), _POWER),
            temperature_c=of.number("temperature_c", "hwmon/*/temp1_input", _TEMPERATURE),
            utilization=of.number("utilization", "gpu_busy_percent", plausible.UTILIZATION_PERCENT),
            memory_used_bytes=of.number("memory_used_bytes", "mem_info_vram_used", plausible.MEMORY_USED),
        )

    def power_limits(self) -> PowerLimits:
        """Read the power limits [W]."""
        of = self._folder
        return PowerLimits(
            enforced_w=of.number("power_limit_w", "hwmon/*/power1_cap", _POWER_LIMIT),
            default_w=of.number("power_limit_default_w", "hwmon/*/power1_cap_default", _POWER_LIMIT),
            minimum_w=of.number("power_limit_range", "hwmon/*/power1_cap_min", _POWER),
            maximum_w=of.number("power_limit_range", "hwmon/*/power1_cap_max", _POWER_LIMIT),
        )

    def memory_in_use_bytes(self) -> int | None:
        """Read memory in use [B]."""
        used: int | None = self._folder.number(
            "memory_used_bytes", "mem_info_vram_used", plausible.MEMORY_USED
        )
        return used
