"""AMD GPUs: the compute driver of Linux lists them, and AMD's library says the rest, through ``amdsmi``.

The library is read after the interface of that package, and tested with the package on a stand-in of its C
library; the list is written after the kernel's documentation of amdkfd. No AMD GPU was at hand.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gpubench.installing import pip_install
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
    Problem,
)
from gpubench.specs import find_spec

_T = TypeVar("_T")
_VENDOR_AMD = 4098
_OF_THE_CARD = "the library tells it of the whole card, and this is a partition"
_TOPOLOGY = "topology"
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "gfx908": ("fp16", "bf16", "int8"),
    "gfx90a": ("fp16", "bf16", "int8"),
    "gfx94": ("fp16", "bf16", "int8", "fp8"),
    "gfx95": ("fp16", "bf16", "int8", "fp8", "fp6", "fp4"),
    "gfx11": ("fp16", "bf16", "int8"),
    "gfx12": ("fp16", "bf16", "int8", "fp8"),
}
"""Reduced formats of the matrix units by architecture: AMD's instruction set guides, CDNA and RDNA (WMMA)."""
_POWER_CAP = plausible.POWER_LIMIT.of("µW", divisor=10**6)
_ENERGY = plausible.ENERGY.of("µJ", divisor=10**6)
_CLOCK = plausible.SM_CLOCK.of("MHz", factor=10**6)
_MEMORY_CLOCK = plausible.MEMORY_CLOCK.of("MHz", factor=10**6)
_HIGHEST_CLOCK = plausible.HIGHEST_SM_CLOCK.of("MHz", factor=10**6)


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


def how_to_read() -> str:
    """Say what gives an AMD GPU its telemetry."""
    return f"{pip_install('amdsmi')}, beside the ROCm of that release"


class AmdReadings(NoReadings):
    """Readings of one AMD GPU through the library, which stays open: another line may still ask it."""

    source = "amdsmi"

    def __init__(self, smi: Any, bus_id: str) -> None:
        """Find the GPU by its PCI bus id.

        Raises:
            Exception: As the library raises it where it shows no such GPU.
        """
        self.smi = smi
        self._handle = smi.amdsmi_get_processor_handle_from_bdf(bus_id)
        self._refused: dict[str, str] = {}

    @property
    def refused(self) -> dict[str, str]:
        """Why a field is None, by field."""
        return self._refused

    def sample(self) -> Reading:
        """Read clocks, power, temperature, utilization and memory."""
        kinds, now = self.smi.AmdSmiClkType, self.smi.AmdSmiTemperatureMetric.CURRENT

        def temperature_c(place: Any) -> float | None:
            return self.get("temperature_c", plausible.TEMPERATURE, "temp_metric", None, place, now)

        places = self.smi.AmdSmiTemperatureType
        edge_c = temperature_c(places.EDGE)
        return Reading(
            sm_clock_hz=self.get("sm_clock_hz", _CLOCK, "clock_info", "clk", kinds.GFX),
            memory_clock_hz=self.get("memory_clock_hz", _MEMORY_CLOCK, "clock_info", "clk", kinds.MEM),
            power_w=self.get("power_w", plausible.POWER, "power_info", _power),
            # Instinct cards have the hot spot alone
            temperature_c=temperature_c(places.HOTSPOT) if edge_c is None else edge_c,
            utilization=self.get(
                "utilization", plausible.UTILIZATION_PERCENT, "gpu_activity", "gfx_activity"
            ),
            memory_used_bytes=self.memory_in_use_bytes(),
        )

    def energy_j(self) -> float | None:
        """Read the energy counter [J]."""
        return self.get("energy_j", _ENERGY, "energy_count", _energy_uj)

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """List the processes on the GPU; the library does not say which of them only draw."""
        return self.get("processes", _processes, "gpu_process_list")

    def power_limits(self) -> PowerLimits:
        """Read the power limits [W]."""
        read, least = "power_cap_info", plausible.POWER.of("µW", divisor=10**6)
        return PowerLimits(
            enforced_w=self.get("power_limit_w", _POWER_CAP, read, "power_cap"),
            default_w=self.get("power_limit_default_w", _POWER_CAP, read, "default_power_cap"),
            minimum_w=self.get("power_limit_range", least, read, "min_power_cap"),
            maximum_w=self.get("power_limit_range", _POWER_CAP, read, "max_power_cap"),
        )

    def memory_in_use_bytes(self) -> int | None:
        """Read memory in use [B]."""
        vram = self.smi.AmdSmiMemoryType.VRAM
        return self.get("memory_used_bytes", plausible.MEMORY_USED, "gpu_memory_usage", None, vram)

    def get(
        self,
        field: str,
        convert: Callable[[Any], _T],
        read: str,
        pick: str | Callable[[Any], Any] | None = None,
        *arguments: Any,
    ) -> _T | None:
        """Return what the library tells, in SI units; None with the reason where it refuses or cannot be.

        Args:
            field: Whose value it is.
            convert: Reads it.
            read: Function of the library, without its ``amdsmi_get_``.
            pick: Takes the value out of the answer, or is its key; None where the answer is the value.
            arguments: Beside the GPU.
        """
        function = f"amdsmi_get_{read}"
        try:
            told = getattr(self.smi, function)(self._handle, *arguments)
        except self.smi.AmdSmiException as error:
            self._refused[field] = f"{function}: {' '.join(str(error).split())}"
            return None
        if pick is not None:
            told = (itemgetter(pick) if isinstance(pick, str) else pick)(told)
        if told is None or told == "N/A":
            self._refused[field] = f"{function}: N/A"
            return None
        self._refused.pop(field, None)
        return plausible.taken(convert, told, field, self._refused, function)


def _power(told: Mapping[str, Any]) -> Any:
    """Of the socket now, on Instinct cards; older ones tell a mean over a short while alone."""
    kinds = ("current_socket_power", "average_socket_power", "socket_power")
    return next((told[kind] for kind in kinds if told.get(kind) not in {0, "N/A", None}), None)


def _energy_uj(told: Mapping[str, Any]) -> float:
    """A count of steps, each of so many µJ."""
    return float(told["energy_accumulator"]) * float(told["counter_resolution"])


def _processes(told: Any) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(
            pid=int(one["pid"]), memory_bytes=int(one["memory_usage"]["vram_mem"]) or None, compute=True
        )
        for one in told
    )


class _Node(msgspec.Struct, frozen=True):
    """A GPU as the topology lists it, or one of the partitions of a card (CPX and the like).

    Those share a place; their numbers are in the bits of the function, in newer kernels in the highest four.
    """

    bus_id: str
    properties: dict[str, int]
    partition: int = 0
    partitions: int = 1


@dataclass(frozen=True)
class AmdBackend:
    """AMD GPUs that the compute driver lists; ``root`` is "/" but in tests."""

    name: str = "rocm"
    root: Path = Path("/")

    def devices(self) -> BackendReport:
        """List the GPUs in the order of the compute driver, which is that of ROCm."""
        found = [_described(index, node) for index, node in enumerate(self._nodes())]
        silent = any(state is None for _, state in found)
        problem = Problem(
            what="an AMD GPU is here, and AMD's library does not tell of it",
            fix=f"{how_to_read()}; without it the GPU is timed without telemetry and has no name",
            exit_code=0,
            backend=self.name,
        )
        return BackendReport(
            devices=tuple(device for device, _ in found),
            states=tuple(state for _, state in found),
            problems=(problem,) if silent else (),
        )

    def open_readings(self, device: DeviceProfile) -> NoReadings:
        """Open the readings of one GPU; unknown throughout where AMD's library does not tell of it.

        So are those of a partition: the library tells what the whole card draws and how it clocks.

        Raises:
            DeviceGoneError: If the compute driver no longer lists it.
        """
        if device.pci_bus_id not in {node.bus_id for node in self._nodes()}:
            gone = f"GPU {device.index} ({device.name}) is no longer listed by the kernel; see dmesg, reboot"
            raise DeviceGoneError(gone, "gpu_lost")
        return NoReadings() if device.mig_enabled else open_readings(device.pci_bus_id)

    def _nodes(self) -> list[_Node]:
        """The GPUs in the compute topology, in its order."""
        found = []
        files = (self.root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
        for file in sorted(files, key=lambda f: int(f.parent.name) if f.parent.name.isdigit() else 0):
            text = system.read_text(file) or ""  # a container may not have been given this one
            node = {k: int(v) for k, v in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
            if node.get("simd_count") and node.get("vendor_id") == _VENDOR_AMD:
                place = node.get("location_id", 0)
                bus = f"{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.0"
                found.append(_Node(f"{node.get('domain', 0):04x}:{bus}", node))
        places = [node.bus_id for node in found]
        return [
            replace(node, partition=places[:n].count(node.bus_id), partitions=places.count(node.bus_id))
            for n, node in enumerate(found)
        ]


BACKEND = AmdBackend()


def open_readings(bus_id: str) -> NoReadings:
    """Return the readings of a GPU; unknown throughout without the library, or where it shows no such GPU."""
    smi = open_library()
    if smi is not None:
        with contextlib.suppress(smi.AmdSmiException):
            return AmdReadings(smi, bus_id)
    return NoReadings()


def _described(index: int, found: _Node) -> tuple[DeviceProfile, DeviceState | None]:
    """Describe one GPU by its properties in the topology and by the library, and say what it is doing."""
    node, bus_id, in_parts = found.properties, found.bus_id, found.partitions > 1
    version = node.get("gfx_target_version", 0)  # 90010 is gfx90a, 110000 is gfx1100
    architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    units, unique = node["simd_count"] // (node.get("simd_per_cu") or 4), node.get("unique_id")
    unavailable = {"memory_bandwidth_bytes_per_s": "AMD's library does not tell the memory's transfer rate"}
    clock_mhz = node.get("max_engine_clk_fcompute", 0)
    profile = DeviceProfile(
        backend="rocm",
        vendor="AMD",
        uuid=f"GPU-{unique:016x}{f'-{found.partition}' if in_parts else ''}" if unique else None,
        index=index,
        pci_bus_id=bus_id,
        architecture=architecture,
        sm_count=plausible.taken(plausible.SMS, units, "sm_count", unavailable, _TOPOLOGY),
        sm_clock_max_hz=plausible.taken(_HIGHEST_CLOCK, clock_mhz, "sm_clock_max_hz", unavailable, _TOPOLOGY),
        mig_enabled=True if in_parts else None,
        tensor_core_precisions=next((f for a, f in _FORMATS.items() if architecture.startswith(a)), ()),
        unavailable=unavailable,
    )
    of = open_readings(bus_id)
    if not isinstance(of, AmdReadings):
        fields = ("name", "gpu_key", "memory_bytes", "power_limit_w")
        unavailable |= dict.fromkeys(fields, "amdsmi is missing")
        return profile, None
    name = of.get("name", plausible.text, "gpu_asic_info", "market_name")
    vram = of.smi.AmdSmiMemoryType.VRAM
    memory_bytes = of.get("memory_bytes", plausible.MEMORY, "gpu_memory_total", None, vram)
    limits, now = of.power_limits(), of.sample()
    spec = None if name is None else find_spec(name, memory_bytes)
    described = replace(
        profile,
        name=name,
        gpu_key=None if spec is None else spec.key,
        memory_bytes=memory_bytes,
        l2_bytes=None if spec is None else spec.l2_bytes,
        power_limit_w=limits.enforced_w,
        power_limit_default_w=limits.default_w,
        driver_version=of.get("driver_version", plausible.text, "gpu_driver_info", "driver_version"),
    )
    unavailable |= {k: v for k, v in of.refused.items() if k in DeviceProfile.__struct_fields__}
    if in_parts:
        unavailable |= dict.fromkeys(("gpu_key", "memory_bytes", "power_limit_w"), _OF_THE_CARD)
        part = f"{name or 'AMD GPU'}, partition {found.partition + 1} of {found.partitions}"
        of_the_card = {"gpu_key": None, "memory_bytes": None, "l2_bytes": None, "power_limit_w": None}
        return replace(described, name=part, **of_the_card), DeviceState()
    if spec is None:
        unavailable["gpu_key"] = f"{NO_SPEC} and memory"
    return described, DeviceState(
        temperature_c=now.temperature_c,
        power_w=now.power_w,
        utilization=now.utilization,
        memory_used_bytes=now.memory_used_bytes,
        memory_in_use_bytes=now.memory_used_bytes,
        idle=None if now.utilization is None else now.utilization == 0,
    )
