"""AMD GPUs as the Linux kernel driver amdgpu shows them below /sys; readings through AMD's library first.

The kernel's part needs no library and no torch: written after the kernel's documentation (gpu/amdgpu: hwmon,
busy percentages, memory totals; the compute topology of amdkfd), and tested on what three machines recorded
(tests/data/amd) and on made-up folders. The library is read after the interface of the ``amdsmi`` package,
and tested with that package on a stand-in of its C library. No AMD GPU was at hand.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from gpubench.models import DeviceProfile, Reading
from gpubench.probe import plausible, system
from gpubench.probe.backend import (
    NO_SPEC,
    BackendReport,
    DeviceGoneError,
    DeviceState,
    GpuProcess,
    NoReadings,
    PowerLimits,
)
from gpubench.probe.plausible import Gate, ImplausibleError
from gpubench.specs import find_spec

_VENDOR_AMD = 4098
_TOPOLOGY = "topology"
# Reduced formats of the matrix units by architecture: AMD's instruction set guides, CDNA and RDNA (WMMA).
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "gfx908": ("fp16", "bf16", "int8"),
    "gfx90a": ("fp16", "bf16", "int8"),
    "gfx94": ("fp16", "bf16", "int8", "fp8"),
    "gfx95": ("fp16", "bf16", "int8", "fp8", "fp6", "fp4"),
    "gfx11": ("fp16", "bf16", "int8"),
    "gfx12": ("fp16", "bf16", "int8", "fp8"),
}
# Transfer rate of one PCIe lane by generation, as the kernel prints it [GT/s].
_PCIE_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
# The native units of the kernel's files and of the library.
_POWER = plausible.POWER.of("µW", divisor=10**6)
_POWER_LIMIT = plausible.POWER_LIMIT.of("µW", divisor=10**6)
_TEMPERATURE = plausible.TEMPERATURE.of("m°C", divisor=1000)
_ENERGY = plausible.ENERGY.of("µJ", divisor=10**6)
_CLOCK = plausible.SM_CLOCK.of("MHz", factor=10**6)
_MEMORY_CLOCK = plausible.MEMORY_CLOCK.of("MHz", factor=10**6)
_HIGHEST_CLOCK = plausible.HIGHEST_SM_CLOCK.of("MHz", factor=10**6)


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
        kinds, clock = self._smi.AmdSmiClkType, itemgetter("clk")
        told: dict[str, Any] = {
            "sm_clock_hz": self._get("sm_clock_hz", _CLOCK, "amdsmi_get_clock_info", kinds.GFX, pick=clock),
            "memory_clock_hz": self._get(
                "memory_clock_hz", _MEMORY_CLOCK, "amdsmi_get_clock_info", kinds.MEM, pick=clock
            ),
            "power_w": self._get("power_w", plausible.POWER, "amdsmi_get_power_info", pick=_power),
            "temperature_c": self._temperature_c(),
            "utilization": self._get(
                "utilization",
                plausible.UTILIZATION_PERCENT,
                "amdsmi_get_gpu_activity",
                pick=itemgetter("gfx_activity"),
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
        """Read the energy counter [J]."""
        return self._get("energy_j", _ENERGY, "amdsmi_get_energy_count", pick=_energy_uj)

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

        def limit(field: str, name: str, gate: Gate = _POWER_LIMIT) -> Any:
            return self._take(field, gate, "amdsmi_get_power_cap_info", told[name])

        return PowerLimits(
            enforced_w=limit("power_limit_w", "power_cap"),
            default_w=limit("power_limit_default_w", "default_power_cap"),
            minimum_w=limit("power_limit_range", "min_power_cap", _POWER),
            maximum_w=limit("power_limit_range", "max_power_cap"),
        )

    def memory_in_use_bytes(self) -> int | None:
        """Read memory in use [B]."""
        kind = self._smi.AmdSmiMemoryType.VRAM
        used: int | None = self._get(
            "memory_used_bytes", plausible.MEMORY_USED, "amdsmi_get_gpu_memory_usage", kind
        )
        return super().memory_in_use_bytes() if used is None else used

    def ecc_uncorrected(self) -> int | None:
        """Read the count of uncorrected memory errors; only a change means anything."""
        count = itemgetter("uncorrectable_count")
        return self._get("ecc_uncorrected", plausible.ERRORS, "amdsmi_get_gpu_total_ecc_count", pick=count)

    def _temperature_c(self) -> float | None:
        """Of the edge; Instinct cards have the hot spot alone."""
        kinds, now = self._smi.AmdSmiTemperatureType, self._smi.AmdSmiTemperatureMetric.CURRENT
        for place in (kinds.EDGE, kinds.HOTSPOT):
            found: float | None = self._get(
                "temperature_c", plausible.TEMPERATURE, "amdsmi_get_temp_metric", place, now
            )
            if found is not None:
                break
        return found

    def _get(
        self,
        field: str,
        gate: Gate,
        function: str,
        *arguments: Any,
        pick: Callable[[Any], Any] | None = None,
    ) -> Any | None:
        """Return what the library tells, in SI units; None with the reason where it refuses or cannot be.

        Args:
            field: Whose value it is.
            gate: Reads it.
            function: Of the library.
            arguments: Beside the GPU.
            pick: Takes the value out of the answer; None where the answer is the value.
        """
        try:
            told = getattr(self._smi, function)(self._handle, *arguments)
        except self._smi.AmdSmiException as error:
            self.refused[field] = f"{function}: {_words(error)}"
            return None
        return self._take(field, gate, function, told if pick is None else pick(told))

    def _take(self, field: str, gate: Gate, function: str, told: Any) -> Any | None:
        """The same of an answer that is already there."""
        if told in {None, "N/A"}:
            self.refused[field] = f"{function}: N/A"
            return None
        self.refused.pop(field, None)
        return plausible.taken(gate, told, field, self.refused, function)


def _power(told: Mapping[str, Any]) -> Any:
    """Of the socket now, on Instinct cards; older ones tell a mean over a short while alone."""
    kinds = ("current_socket_power", "average_socket_power", "socket_power")
    return next((told[kind] for kind in kinds if told.get(kind) not in {0, "N/A", None}), None)


def _energy_uj(told: Mapping[str, Any]) -> float:
    """A count of steps, each of so many µJ."""
    return float(told["energy_accumulator"]) * float(told["counter_resolution"])


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True)
class AmdBackend:
    """AMD GPUs that the compute driver lists; ``root`` is "/" but in tests."""

    name: str = "rocm"
    root: Path = Path("/")

    def devices(self) -> BackendReport:
        """List the GPUs in the order of the compute driver, which is that of ROCm."""
        nodes = []
        files = (self.root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
        for file in sorted(files, key=lambda f: int(f.parent.name) if f.parent.name.isdigit() else 0):
            text = system.read_text(file) or ""  # a container may not have been given this one
            node = {k: int(v) for k, v in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
            if node.get("simd_count") and node.get("vendor_id") == _VENDOR_AMD:
                nodes.append(node)
        found = [_device(self.root, n, node) for n, node in enumerate(nodes)]
        return BackendReport(devices=tuple(d for d, _ in found), states=tuple(s for _, s in found))

    def open_readings(self, device: DeviceProfile) -> AmdReadings:
        """Open the readings of one GPU: through AMD's library where it is installed, else of the kernel.

        Raises:
            DeviceGoneError: If the kernel no longer shows it.
        """
        folder = self.root / "sys/bus/pci/devices" / (device.pci_bus_id or "unknown")
        if not folder.is_dir():
            gone = f"GPU {device.index} ({device.name}) is no longer listed by the kernel; see dmesg, reboot"
            raise DeviceGoneError(gone, "gpu_lost")
        return open_readings(device.pci_bus_id or "", folder)


BACKEND = AmdBackend()


def _device(root: Path, index: int, node: Mapping[str, int]) -> tuple[DeviceProfile, DeviceState]:
    """Describe one GPU of the compute topology by its properties there, and what it is doing."""
    place = node.get("location_id", 0)
    bus_id = f"{node.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
    refused: dict[str, str] = {}
    of = Folder(root / "sys/bus/pci/devices" / bus_id, refused)
    readings = AmdReadings(of.path)
    limits = readings.power_limits()
    name = _name(root, of)
    memory = of.number("memory_bytes", "mem_info_vram_total", plausible.MEMORY)
    spec = None if name is None else find_spec(name, memory)
    architecture = _architecture(node.get("gfx_target_version", 0))
    unique, clock_mhz = node.get("unique_id"), node.get("max_engine_clk_fcompute")
    units = node["simd_count"] // (node.get("simd_per_cu") or 4)
    refused["memory_bandwidth_bytes_per_s"] = "the kernel does not tell the memory's transfer rate"
    if spec is None:
        refused["gpu_key"] = f"{NO_SPEC} and memory"
    profile = DeviceProfile(
        backend="rocm",
        vendor="AMD",
        name=name,
        gpu_key=None if spec is None else spec.key,
        uuid=f"GPU-{unique:016x}" if unique else None,
        index=index,
        pci_bus_id=bus_id,
        architecture=architecture,
        sm_count=plausible.taken(plausible.SMS, units, "sm_count", refused, _TOPOLOGY),
        memory_bytes=memory,
        l2_bytes=None if spec is None else spec.l2_bytes,
        sm_clock_max_hz=plausible.taken(
            _HIGHEST_CLOCK, clock_mhz or 0, "sm_clock_max_hz", refused, _TOPOLOGY
        ),
        power_limit_w=limits.enforced_w,
        power_limit_default_w=limits.default_w,
        pcie_generation=of.get("pcie_generation", "max_link_speed", _pcie_generation),
        pcie_width=of.get("pcie_width", "max_link_width", _pcie_width),
        driver_version=system.read_text(root / "sys/module/amdgpu/version"),
        tensor_core_precisions=next((f for a, f in _FORMATS.items() if architecture.startswith(a)), ()),
        unavailable=refused
        | {k: v for k, v in readings.refused.items() if k in DeviceProfile.__struct_fields__},
    )
    state = _state(of, readings.sample())
    profile.unavailable.pop("pcie_now", None)
    return profile, state


def _state(of: Folder, now: Reading) -> DeviceState:
    return DeviceState(
        temperature_c=now.temperature_c,
        power_w=now.power_w,
        utilization=now.utilization,
        memory_used_bytes=now.memory_used_bytes,
        memory_in_use_bytes=now.memory_used_bytes,
        idle=None if now.utilization is None else now.utilization == 0,
        pcie_generation_now=of.get("pcie_now", "current_link_speed", _pcie_generation),
        pcie_width_now=of.get("pcie_now", "current_link_width", _pcie_width),
    )


def _architecture(version: int) -> str:
    """Name of a graphics target: 90010 is gfx90a, 110000 is gfx1100."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _name(root: Path, of: Folder) -> str | None:
    """Product name from the board, else from the table that libdrm installs."""
    if name := of.get("name", "product_name"):
        of.refused.pop("name", None)
        return str(name)
    device, revision = of.get("name", "device"), of.get("name", "revision")
    table = root / "usr/share/libdrm/amdgpu.ids"
    if device and revision:
        wanted = (device.removeprefix("0x").upper(), revision.removeprefix("0x").upper())
        for line in (system.read_text(table) or "").splitlines():
            cells = [cell.strip() for cell in line.split(",", 2)]
            if len(cells) == 3 and (cells[0].upper(), cells[1].upper()) == wanted:
                of.refused.pop("name", None)
                return cells[2]
    of.refused["name"] = "product_name: empty, and not in libdrm's table"
    return None


def _pcie_generation(text: str) -> int:
    return _PCIE_GENERATIONS[text.split(maxsplit=1)[0]]


def _pcie_width(text: str) -> int:
    return int(plausible.PCIE_WIDTH(int(text)))
