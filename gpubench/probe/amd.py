"""AMD GPUs, read through AMD's library ``amdsmi``; without it, only torch sees them.

This module follows the interface of the ``amdsmi`` package and was tested with that package on a mock of its
C library. No AMD GPU was available.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from gpubench.installing import pip_install
from gpubench.models import DeviceProfile, Reading
from gpubench.probe import plausible
from gpubench.probe.backend import (
    NO_SPEC,
    ONLY_IN_TORCH,
    Backend,
    BackendReport,
    DeviceGoneError,
    DeviceState,
    Problem,
    Readings,
)
from gpubench.specs import find_spec

_T = TypeVar("_T")
# Reduced-precision formats of the matrix units by architecture, from AMD's CDNA and RDNA (WMMA) ISA guides.
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "gfx908": ("fp16", "bf16", "int8"),
    "gfx90a": ("fp16", "bf16", "int8"),
    "gfx94": ("fp16", "bf16", "int8", "fp8"),
    "gfx95": ("fp16", "bf16", "int8", "fp8", "fp6", "fp4"),
    "gfx11": ("fp16", "bf16", "int8"),
    "gfx12": ("fp16", "bf16", "int8", "fp8"),
}
_POWER_CAP = plausible.POWER_LIMIT.in_unit("µW", divisor=10**6)
_ENERGY = plausible.ENERGY.in_unit("µJ", divisor=10**6)


def open_library() -> Any:
    """Return the ``amdsmi`` module with its library open; None if either is missing or finds no driver.

    If the C library is missing, importing the package prints to stdout and then fails.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import amdsmi

        amdsmi.amdsmi_init()
    except Exception:  # noqa: BLE001 - a missing library raises KeyError or OSError, a missing driver its own
        return None
    return amdsmi


class AmdReadings(Readings):
    """Readings of one AMD GPU through the library, which stays open for other readers.

    Attributes:
        place: PCI address without the function number; all partitions of a card have the same.
        refused: Why a value is None, by field.
    """

    def __init__(self, smi: Any, handle: Any, place: str) -> None:
        self.smi, self._handle, self.place = smi, handle, place
        self.refused: dict[str, str] = {}

    @property
    def source(self) -> str:
        """The source of the values: "amdsmi"."""
        return "amdsmi"

    def sample(self) -> Reading:
        """Read clocks, power, temperature, utilization and memory."""
        kinds, now = self.smi.AmdSmiClkType, self.smi.AmdSmiTemperatureMetric.CURRENT

        def temperature_c(place: Any) -> float | None:
            return self.get("temperature_c", plausible.TEMPERATURE, "temp_metric", None, place, now)

        places = self.smi.AmdSmiTemperatureType
        edge_c = temperature_c(places.EDGE)
        return Reading(
            sm_clock_hz=self.get("sm_clock_hz", plausible.SM_CLOCK, "clock_info", "clk", kinds.GFX),
            memory_clock_hz=self.get(
                "memory_clock_hz", plausible.MEMORY_CLOCK, "clock_info", "clk", kinds.MEM
            ),
            power_w=self.get("power_w", plausible.POWER, "power_info", _power),
            # Instinct cards report only the hot spot.
            temperature_c=temperature_c(places.HOTSPOT) if edge_c is None else edge_c,
            utilization=self.get("utilization", plausible.UTILIZATION, "gpu_activity", "gfx_activity"),
            memory_used_bytes=self.memory_in_use_bytes(),
        )

    def energy_j(self) -> float | None:
        """Read the energy counter [J]."""
        return self.get("energy_j", _ENERGY, "energy_count", _energy)

    def compute_pids(self) -> tuple[int, ...] | None:
        """List the processes on the GPU, including graphics, which the library does not distinguish."""
        return self.get("compute_pids", _pids, "gpu_process_list")

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
        """Return a value from the library in SI units; None, with the reason noted, if there is none.

        Args:
            field: The field that the value is for.
            convert: Converts the value to SI units, or raises ``ImplausibleError``.
            read: Function of the library, without its prefix ``amdsmi_get_``.
            pick: Key of the value in the answer, or a function that extracts it; None for the whole answer.
            arguments: Arguments besides the GPU.
        """
        function = f"amdsmi_get_{read}"
        try:
            answer = getattr(self.smi, function)(self._handle, *arguments)
        except self.smi.AmdSmiException as error:
            self.refused[field] = f"{function}: {' '.join(str(error).split())}"
            return None
        if pick is not None:
            answer = answer.get(pick) if isinstance(pick, str) else pick(answer)
        if answer is None or answer == "N/A":
            self.refused[field] = f"{function}: N/A"
            return None
        self.refused.pop(field, None)
        return plausible.checked(convert, answer, field, self.refused, function)


def _power(answer: Mapping[str, Any]) -> Any:
    # Current socket power is what Instinct cards report; older cards report only a mean.
    kinds = ("current_socket_power", "average_socket_power", "socket_power")
    return next((answer[kind] for kind in kinds if answer.get(kind) not in {0, "N/A", None}), None)


def _energy(answer: Mapping[str, Any]) -> float | None:
    count, resolution = answer.get("energy_accumulator"), answer.get("counter_resolution")
    return None if count is None or resolution is None else float(count) * float(resolution)


def _pids(answer: Any) -> tuple[int, ...]:
    return tuple(int(process["pid"]) for process in answer)


def listed() -> list[AmdReadings] | None:
    """List the GPUs in the library's order, which is ROCm's; None if the library cannot be queried."""
    smi = open_library()
    if smi is None:
        return None
    with contextlib.suppress(smi.AmdSmiException):
        return [
            AmdReadings(smi, handle, smi.amdsmi_get_gpu_device_bdf(handle).rpartition(".")[0])
            for handle in smi.amdsmi_get_processor_handles()
        ]
    return None


@dataclass(frozen=True)
class AmdBackend(Backend):
    """AMD GPUs listed by AMD's library; ``root`` is "/" except in tests."""

    name: str = "rocm"
    root: Path = Path("/")

    def devices(self) -> BackendReport:
        """List the GPUs; if the compute driver is present without the library, report what to install."""
        gpus = listed()
        if gpus is None and (self.root / "dev/kfd").exists():
            problem = Problem(
                what="an AMD GPU is present, but AMD's library does not report it",
                fix=f"{pip_install('amdsmi')}, in the release that matches the installed ROCm; until then, "
                "the GPU is timed without telemetry",
                exit_code=0,
                backend=self.name,
                torch_may_know=True,
            )
            return BackendReport(problems=(problem,))
        places = [gpu.place for gpu in gpus or ()]
        found = [  # GPUs at one place are partitions of one card
            _described(gpu, n, places[:n].count(gpu.place), places.count(gpu.place))
            for n, gpu in enumerate(gpus or ())
        ]
        return BackendReport(
            devices=tuple(device for device, _ in found), states=tuple(state for _, state in found)
        )

    def open_readings(self, device: DeviceProfile) -> Readings:
        """Open the readings of one GPU; all are unknown for a GPU that only torch sees, and for a partition.

        For a partition, the library would report power and clocks of the whole card.

        Raises:
            DeviceGoneError: If the library no longer lists this GPU.
        """
        if device.mig_enabled or ONLY_IN_TORCH in device.unavailable.values():
            return Readings()
        for gpu in listed() or ():
            if f"{gpu.place}.0" == device.pci_bus_id:
                return gpu
        gone = f"GPU {device.index} ({device.name}) is no longer listed by the driver; see dmesg, reboot"
        raise DeviceGoneError(gone, "gpu_lost")


BACKEND = AmdBackend()


def matrix_formats(architecture: str | None) -> tuple[str, ...]:
    """Return the reduced-precision formats of the matrix units of an architecture, such as gfx942."""
    return next((found for start, found in _FORMATS.items() if (architecture or "").startswith(start)), ())


def _described(gpu: AmdReadings, index: int, part: int, parts: int) -> tuple[DeviceProfile, DeviceState]:
    """Describe one GPU and its current state, or a partition of a card (in CPX mode, for example).

    Args:
        gpu: Its readings.
        index: Its index among all GPUs.
        part: Its index among the partitions of its card, from 0.
        parts: Number of these partitions; 1 for a whole card.
    """
    asic, vram, clocks = "gpu_asic_info", gpu.smi.AmdSmiMemoryType.VRAM, gpu.smi.AmdSmiClkType
    name = gpu.get("name", plausible.text, asic, "market_name")
    serial = gpu.get("uuid", plausible.text, asic, "asic_serial")
    memory_bytes = gpu.get("memory_bytes", plausible.MEMORY, "gpu_memory_total", None, vram)
    architecture = gpu.get("architecture", plausible.text, asic, "target_graphics_version")
    now, cap = gpu.sample(), "power_cap_info"
    spec = None if name is None else find_spec(name, memory_bytes)
    profile = DeviceProfile(
        backend="rocm",
        vendor="AMD",
        power_limit_w=gpu.get("power_limit_w", _POWER_CAP, cap, "power_cap"),
        power_limit_default_w=gpu.get("power_limit_default_w", _POWER_CAP, cap, "default_power_cap"),
        name=name,
        gpu_key=None if spec is None else spec.key,
        uuid=None if serial is None else f"GPU-{serial.removeprefix('0x').lower()}",
        index=index,
        pci_bus_id=f"{gpu.place}.0",
        architecture=architecture,
        sm_count=gpu.get("sm_count", plausible.SMS, asic, "num_compute_units"),
        memory_bytes=memory_bytes,
        l2_bytes=None if spec is None else spec.l2_bytes,
        sm_clock_max_hz=gpu.get(
            "sm_clock_max_hz", plausible.HIGHEST_SM_CLOCK, "clock_info", "max_clk", clocks.GFX
        ),
        driver_version=gpu.get("driver_version", plausible.text, "gpu_driver_info", "driver_version"),
        tensor_core_precisions=matrix_formats(architecture),
    )
    unknown = {k: v for k, v in gpu.refused.items() if k in DeviceProfile.__struct_fields__}
    unknown["memory_bandwidth_bytes_per_s"] = "AMD's library does not report the memory's transfer rate"
    state = DeviceState(
        temperature_c=now.temperature_c,
        power_w=now.power_w,
        utilization=now.utilization,
        memory_used_bytes=now.memory_used_bytes,
        memory_in_use_bytes=now.memory_used_bytes,
        idle=None if now.utilization is None else now.utilization == 0,
    )
    if parts > 1:
        return _partition(replace(profile, unavailable=unknown), part, parts), DeviceState()
    if spec is None:
        unknown["gpu_key"] = f"{NO_SPEC} and memory"
    return replace(profile, unavailable=unknown), state


def _partition(card: DeviceProfile, part: int, parts: int) -> DeviceProfile:
    """Return the profile of one partition of a card, without values that are for the whole card."""
    whole = ("gpu_key", "memory_bytes", "l2_bytes", "power_limit_w", "power_limit_default_w")
    reason = "the library reports it only for the whole card; this is a partition"
    return replace(
        card,
        **dict.fromkeys(whole),
        name=f"{card.name or 'AMD GPU'}, partition {part + 1} of {parts}",
        uuid=None if card.uuid is None else f"{card.uuid}-{part}",
        mig_enabled=True,
        unavailable=card.unavailable | dict.fromkeys(whole, reason),
    )
