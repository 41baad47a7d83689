"""What a probe hands back, what a backend must offer, and the readings of a device that has none.

A backend is a module ``probe/<vendor>.py`` with an object ``BACKEND``. Its native units are converted
there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile, Reading
from gpubench.models.record import bounded, html_table, shown
from gpubench.units import UNKNOWN, count, format_bytes

_DEVICES_IN_REPR = 8
OR_CPU = "or measure on the CPU with --device cpu"
NO_SPEC = "no single row of the specification table has this name"
"""Why a device has no key."""
TOLD_BY_TORCH = "the driver library cannot be asked; torch alone tells of this GPU"
"""Why nothing is read from a device while it works."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that keeps a device from being used, or a reading from being had.

    Attributes:
        what: What happened.
        value: The value seen: the loader's own text, a version, a path.
        fix: What to do about it.
        exit_code: 3 where a GPU is here but cannot be used; 0 where there is none, or a run goes on.
        backend: Whose problem it is: a backend's, or ``torch``'s.
        device_index: The device it concerns; None for the whole backend.
        torch_may_know: Whether it keeps the driver library away and may leave torch its GPU.
    """

    what: str
    value: str | None = None
    fix: str
    exit_code: int
    backend: str = "cuda"
    device_index: int | None = None
    torch_may_know: bool = False

    def seen(self) -> str:
        """What happened, with the value seen."""
        return self.what + ("" if self.value is None else f" ({self.value})")

    def line(self) -> str:
        """One line: what happened, the value seen, what to do."""
        return f"{self.seen()}; {self.fix}"


class DeviceGoneError(NoDeviceError):
    """A device that was listed can no longer be read.

    Attributes:
        fault: ``gpu_lost``, ``reset_required``, ``driver_hung`` or ``driver_closed``.
    """

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """What a device is doing now, and what its surroundings allow it. Unknown is None.

    Attributes:
        memory_used_bytes: As the driver counts it, its own reserve included where it cannot part the two.
        memory_in_use_bytes: Without the driver's reserve; None where that cannot be told.
        pcie_generation_card: The most that the card alone could do in another slot.
    """

    temperature_c: float | None = None
    power_w: float | None = None
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_in_use_bytes: int | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    idle: bool | None = None
    process_count: int | None = None
    pcie_generation_now: int | None = None
    pcie_width_now: int | None = None
    pcie_generation_card: int | None = None
    persistence_mode: bool | None = None
    compute_mode: str | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and its software, as far as they bear on a measurement. No host or user name."""

    os: str
    python: str
    cpu: str | None = None
    cpu_core_count: int | None = None
    cpu_thread_count: int | None = None
    cpu_instructions: tuple[str, ...] = ()
    ram_bytes: int | None = None
    container: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    torch_hip: str | None = None
    nvml_version: str | None = None
    nvml_library: str | None = None
    cuda_visible_devices: str | None = None
    cuda_device_order: str | None = None


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Every device of this machine; ``states[i]`` is what ``devices[i]`` was doing, None if not known."""

    devices: tuple[DeviceProfile, ...]
    host: Host
    problems: tuple[Problem, ...]
    states: tuple[DeviceState | None, ...] = ()

    def __repr__(self) -> str:
        """Return the names of the first devices, and the problems; the fields have the rest."""
        names = [shown(device.name or device.backend, 60) for device in self.devices[:_DEVICES_IN_REPR]]
        more = ["..."] if len(self.devices) > len(names) else []
        problems = "".join(f"\n  {shown(problem.what, 100)}" for problem in self.problems[:_DEVICES_IN_REPR])
        listed = ", ".join([*names, *more])
        return bounded(f"<ProbeReport: {count(len(self.devices), 'device')}: {listed}{problems}>")

    def _repr_html_(self) -> str:
        """Return the devices as a table for notebooks."""
        problems = "".join(f"; {problem.what}" for problem in self.problems[:_DEVICES_IN_REPR])
        rows = [
            (device.name or device.backend, device.architecture or UNKNOWN, format_bytes(device.memory_bytes))
            for device in self.devices
        ]
        title = f"{count(len(self.devices), 'device')}{problems}"
        return html_table(title, ("device", "architecture", "memory"), rows)


class BackendReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend found."""

    devices: tuple[DeviceProfile, ...] = ()
    states: tuple[DeviceState | None, ...] = ()
    problems: tuple[Problem, ...] = ()
    library: str | None = None
    library_version: str | None = None


def unusable(problems: Iterable[Problem]) -> dict[int, str]:
    """By index, why a device of this machine cannot be used."""
    return {p.device_index: p.line() for p in problems if p.device_index is not None and p.exit_code}


class Backend:
    """A kind of device that can be listed; one of another package has these, whatever it is made of.

    Attributes:
        name: What ``DeviceProfile.backend`` holds.
    """

    name: str

    def devices(self) -> BackendReport:
        """List the devices that this backend's driver shows; a missing driver gives an empty report."""
        raise NotImplementedError

    def open_readings(self, device: DeviceProfile) -> Readings:
        """Open a line to one of them, for telemetry; here one that tells nothing.

        Raises:
            DeviceGoneError: If the driver no longer shows it.
        """
        del device
        return Readings()


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on the device; ``compute`` is False for one that only draws."""

    pid: int
    memory_bytes: int | None
    compute: bool


class PowerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the board power [W]: in force, as shipped, and the range that can be set."""

    enforced_w: float | None = None
    default_w: float | None = None
    minimum_w: float | None = None
    maximum_w: float | None = None


class Readings:
    """An open line to one device, for a ``with`` block. Each value is None where the device does not tell.

    This one tells nothing, as of a CPU, or of a GPU whose driver cannot be asked.
    """

    @property
    def source(self) -> str:
        """Where the values come from: "nvml", "none", or "hung" once the driver stopped answering."""
        return "none"

    @property
    def fault(self) -> str | None:
        """``gpu_lost`` or ``reset_required`` where the driver says so when it is asked for it."""
        return None

    @property
    def refused(self) -> dict[str, str]:
        """Why a value is None, by field."""
        return {}

    def sample(self) -> Reading:
        """Read clocks, power, temperature, utilization, memory, clock event reasons and idleness."""
        return Reading()

    def held_clocks_s(self) -> dict[str, float]:
        """Read for how long each policy has held the clocks down [s]; only differences mean anything.

        Keys: power, thermal, sync_boost, board_limit, low_utilization, reliability, as far as told.
        """
        return {}

    def energy_j(self) -> float | None:
        """Read the device's energy counter [J]; only differences mean anything."""
        return None

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """List the processes on the device; blind in most containers, so empty proves nothing."""
        return None

    def power_limits(self) -> PowerLimits:
        """Read the power limits."""
        return PowerLimits()

    def memory_in_use_bytes(self) -> int | None:
        """Read memory in use without the driver's own reserve [B]; None where it cannot be told apart."""
        return None

    def ecc_uncorrected(self) -> int | None:
        """Read the count of uncorrected memory errors since the driver was loaded."""
        return None

    def compute_mode(self) -> str | None:
        """Read who may use the device: default, exclusive_process, prohibited."""
        return None

    def close(self) -> None:
        """Let go of the driver."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
