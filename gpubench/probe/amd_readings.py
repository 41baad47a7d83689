"""Readings of one AMD GPU: as the kernel shows them, or through AMD's library with the kernel's for the rest.

The Linux driver amdgpu shows them below /sys, without library and torch: written after the kernel's
documentation (gpu/amdgpu: hwmon, busy percentages, memory totals), and tested on what three machines recorded
(tests/data/amd) and on made-up folders. The library is read after the interface of the ``amdsmi`` package,
and tested with that package on a stand-in of its C library. No AMD GPU was at hand.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubench.models import Reading
from gpubench.probe import plausible
from gpubench.probe.backend import GpuProcess, NoReadings, PowerLimits
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

    def get(self, field: str, names: str | Iterable[str], convert: Callable[[str], Any] = str) -> Any | None:
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

    def number(self, field: str, names: str | Iterable[str], gate: Gate) -> Any | None:
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
        return self._folder.number("memory_used_bytes", "mem_info_vram_used", plausible.MEMORY_USED)


_ENERGY = plausible.ENERGY.of("µJ", divisor=10**6)
_LIMIT = plausible.POWER_LIMIT.of("µW", divisor=10**6)
_LEAST = plausible.POWER.of("µW", divisor=10**6)
_CLOCK = plausible.SM_CLOCK.of("MHz", factor=10**6)
_MEMORY_CLOCK = plausible.MEMORY_CLOCK.of("MHz", factor=10**6)


def open_library() -> Any:
    """Return the ``amdsmi`` module, its library open; None where either is missing or finds no driver.

    Where the C library is missing the package prints to the standard output as it is imported, and fails.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import amdsmi

        amdsmi.amdsmi_init()
    except Exception:  # noqa: BLE001 - a missing library is a KeyError or an OSError, a missing driver its own
        return None
    return amdsmi


def open_readings(bus_id: str, folder: Path) -> AmdReadings:
    """Return the readings of a GPU through the library, else those of the kernel."""
    smi = open_library()
    if smi is None:
        return AmdReadings(folder)
    try:
        return AmdSmiReadings(smi, bus_id, folder)
    except smi.AmdSmiException:
        return AmdReadings(folder)


class AmdSmiReadings(AmdReadings):
    """Readings through the library: with an energy counter, memory errors and processes, which /sys lacks.

    It stays open until this process ends: another line may still ask it.
    """

    source = "amdsmi"

    def __init__(self, smi: Any, bus_id: str, folder: Path) -> None:
        """Find the GPU by its PCI bus id.

        Raises:
            Exception: As the library raises it where it shows no such GPU.
        """
        super().__init__(folder)
        self._smi = smi
        self._handle = smi.amdsmi_get_processor_handle_from_bdf(bus_id)

    def sample(self) -> Reading:
        """Read clocks, power, temperature, utilization and memory; what is refused comes from the kernel."""
        smi = self._smi
        told: dict[str, Any] = {
            "sm_clock_hz": self._get(
                "sm_clock_hz", _CLOCK, lambda: self._clock(smi.AmdSmiClkType.GFX), "amdsmi_get_clock_info"
            ),
            "memory_clock_hz": self._get(
                "memory_clock_hz",
                _MEMORY_CLOCK,
                lambda: self._clock(smi.AmdSmiClkType.MEM),
                "amdsmi_get_clock_info",
            ),
            "power_w": self._get("power_w", plausible.POWER, self._power, "amdsmi_get_power_info"),
            "temperature_c": self._get(
                "temperature_c", plausible.TEMPERATURE, self._temperature, "amdsmi_get_temp_metric"
            ),
            "utilization": self._get(
                "utilization",
                plausible.UTILIZATION_PERCENT,
                lambda: smi.amdsmi_get_gpu_activity(self._handle)["gfx_activity"],
                "amdsmi_get_gpu_activity",
            ),
            "memory_used_bytes": self.memory_in_use_bytes(),
        }
        if None not in told.values():
            return Reading(**told)
        kernel = super().sample()
        return Reading(
            **{name: getattr(kernel, name) if value is None else value for name, value in told.items()}
        )

    def energy_j(self) -> float | None:
        """Read the energy counter [J]: a count of steps, each of so many µJ."""

        def ask() -> float:
            told = self._smi.amdsmi_get_energy_count(self._handle)
            return float(told["energy_accumulator"]) * float(told["counter_resolution"])

        return self._get("energy_j", _ENERGY, ask, "amdsmi_get_energy_count")

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """List the processes on the GPU; the library does not say which of them only draw."""
        try:
            listed = self._smi.amdsmi_get_gpu_process_list(self._handle)
        except self._smi.AmdSmiException as error:
            self.refused["processes"] = f"amdsmi_get_gpu_process_list: {_words(error)}"
            return None
        return tuple(
            GpuProcess(
                pid=int(one["pid"]),
                memory_bytes=int(one["memory_usage"]["vram_mem"]) or None,
                compute=True,
            )
            for one in listed
        )

    def power_limits(self) -> PowerLimits:
        """Read the power limits [W]; from the kernel where the library refuses."""
        try:
            told: Mapping[str, Any] = self._smi.amdsmi_get_power_cap_info(self._handle)
        except self._smi.AmdSmiException:
            return super().power_limits()

        def limit(field: str, name: str, gate: Gate = _LIMIT) -> Any:
            return self._get(field, gate, lambda: told[name], "amdsmi_get_power_cap_info")

        return PowerLimits(
            enforced_w=limit("power_limit_w", "power_cap"),
            default_w=limit("power_limit_default_w", "default_power_cap"),
            minimum_w=limit("power_limit_range", "min_power_cap", _LEAST),
            maximum_w=limit("power_limit_range", "max_power_cap"),
        )

    def memory_in_use_bytes(self) -> int | None:
        """Read memory in use [B]."""
        kind = self._smi.AmdSmiMemoryType.VRAM
        used: int | None = self._get(
            "memory_used_bytes",
            plausible.MEMORY_USED,
            lambda: self._smi.amdsmi_get_gpu_memory_usage(self._handle, kind),
            "amdsmi_get_gpu_memory_usage",
        )
        return super().memory_in_use_bytes() if used is None else used

    def ecc_uncorrected(self) -> int | None:
        """Read the count of uncorrected memory errors; only a change means anything."""
        return self._get(
            "ecc_uncorrected",
            plausible.ERRORS,
            lambda: self._smi.amdsmi_get_gpu_total_ecc_count(self._handle)["uncorrectable_count"],
            "amdsmi_get_gpu_total_ecc_count",
        )

    def _clock(self, kind: Any) -> Any:
        return self._smi.amdsmi_get_clock_info(self._handle, kind)["clk"]

    def _power(self) -> Any:
        """Of the socket now, on Instinct cards; older ones tell a mean over a short while alone."""
        told = self._smi.amdsmi_get_power_info(self._handle)
        kinds = ("current_socket_power", "average_socket_power", "socket_power")
        return next((told[kind] for kind in kinds if told.get(kind) not in {0, "N/A", None}), None)

    def _temperature(self) -> Any:
        """Of the edge; Instinct cards have the hot spot alone."""
        smi = self._smi
        now = smi.AmdSmiTemperatureMetric.CURRENT
        try:
            return smi.amdsmi_get_temp_metric(self._handle, smi.AmdSmiTemperatureType.EDGE, now)
        except smi.AmdSmiException:
            return smi.amdsmi_get_temp_metric(self._handle, smi.AmdSmiTemperatureType.HOTSPOT, now)

    def _get(self, field: str, gate: Gate, ask: Callable[[], Any], what: str) -> Any | None:
        """Return what the library tells, in SI units; None with the reason where it refuses or cannot be."""
        try:
            told = ask()
            value = None if told in {None, "N/A"} else gate(told)
            reason = "N/A"
        except self._smi.AmdSmiException as error:
            value, reason = None, _words(error)
        except ImplausibleError as error:
            value, reason = None, str(error)
        if value is None:
            self.refused[field] = f"{what}: {reason}"
        else:
            self.refused.pop(field, None)
        return value


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())
