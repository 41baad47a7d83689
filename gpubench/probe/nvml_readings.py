"""Readings of one NVIDIA device while it works: for telemetry, energy, sharing and power checks."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile, Reading
from gpubench.probe.backend import GpuProcess, PowerLimits
from gpubench.probe.guard import HungCallError
from gpubench.probe.nvml_profile import (
    CLOCK_MEMORY,
    CLOCK_POLICIES,
    CLOCK_SM,
    COMPUTE_MODES,
    GPU_IDLE,
    SENSOR_GPU,
    Fields,
    event_names,
    mega,
    milli,
)
from gpubench.probe.nvml_session import GPU_IS_LOST, RESET_REQUIRED, Device, Refused, Session

T = TypeVar("T")

READING_LIMIT_S = 5.0
"""Of a driver that answers slowly a reading takes what comes in this time; the rest of it is unknown."""
_UNCORRECTED, _VOLATILE = 1, 0
_FAULTS = {GPU_IS_LOST: "gpu_lost", RESET_REQUIRED: "reset_required"}


class NvmlReadings:
    """An open line to one GPU. A call that hangs ends the line: every later value is None.

    Of a driver that is slow and no more, each reading takes what it gets in ``READING_LIMIT_S``.
    """

    def __init__(self, session: Session, device: Device) -> None:
        """Take over the session; ``close`` shuts it down."""
        self._session = session
        self._fields = Fields(session, device)
        self._device = device
        self._tells = self._guarded(self._sample, Reading()) != Reading()

    @property
    def source(self) -> str:
        """``nvml``; ``none`` where this device refuses every value; ``hung`` once the driver is silent."""
        if self._session.guard.hung:
            return "hung"
        return "nvml" if self._tells else "none"

    @property
    def fault(self) -> str | None:
        """``gpu_lost`` or ``reset_required`` once the driver has said so; the device does not come back."""
        return _FAULTS.get(self._session.fatal.get(self._device.label, 0))

    @property
    def refused(self) -> dict[str, str]:
        """Why a field is None, by field."""
        return self._fields.unavailable

    def sample(self) -> Reading:
        """Read what a TelemetrySample holds; one hand-over to the driver's thread."""
        return self._guarded(self._sample, Reading())

    def energy_j(self) -> float | None:
        """Read the energy counter [J]; it steps about every 100 ms, and at 0 it tells nothing."""
        return self._guarded(
            lambda: self._fields.get(
                "energy_j", "nvmlDeviceGetTotalEnergyConsumption", convert=lambda mj: milli(mj) or None
            ),
            None,
        )

    def held_clocks_s(self) -> dict[str, float]:
        """Read for how long each policy has held the clocks down [s]; policies not told are left out."""
        return self._guarded(self._held_clocks_s, {})

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """List processes on the GPU; None where the driver does not tell."""
        return self._guarded(self._processes, None)

    def power_limits(self) -> PowerLimits:
        """Read the power limits [W]."""
        return self._guarded(self._power_limits, PowerLimits())

    def memory_in_use_bytes(self) -> int | None:
        """Read memory in use without the driver's reserve [B]; an old driver cannot part the two."""
        answer: Any = self._guarded(lambda: self._session.memory(self._device), None)
        return int(answer.used) if hasattr(answer, "reserved") else None

    def ecc_uncorrected(self) -> int | None:
        """Read uncorrected memory errors since the driver was loaded; only a change means anything."""
        return self._guarded(
            lambda: self._fields.get(
                "ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE
            ),
            None,
        )

    def compute_mode(self) -> str | None:
        """Read who may use the GPU."""
        return self._guarded(
            lambda: self._fields.get("compute_mode", "nvmlDeviceGetComputeMode", convert=COMPUTE_MODES.get),
            None,
        )

    def close(self) -> None:
        """Shut NVML down."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _guarded(self, work: Any, otherwise: T) -> T:
        try:
            return self._session.guarded(work, READING_LIMIT_S)  # type: ignore[no-any-return]
        except HungCallError:
            return otherwise

    def _sample(self) -> Reading:
        of = self._fields
        reasons = of.get("clock_event_reasons", "nvmlDeviceGetCurrentClocksEventReasons")
        return Reading(
            sm_clock_hz=of.get("sm_clock_hz", "nvmlDeviceGetClockInfo", CLOCK_SM, convert=mega),
            memory_clock_hz=of.get("memory_clock_hz", "nvmlDeviceGetClockInfo", CLOCK_MEMORY, convert=mega),
            power_w=of.get("power_w", "nvmlDeviceGetPowerUsage", convert=milli),
            temperature_c=of.get("temperature_c", "nvmlDeviceGetTemperature", SENSOR_GPU, convert=float),
            utilization=of.get(
                "utilization", "nvmlDeviceGetUtilizationRates", convert=lambda v: int(v.gpu) / 100
            ),
            memory_used_bytes=of.take(
                "memory_used_bytes", self._session.memory(self._device), lambda v: int(v.used)
            ),
            clock_event_reasons=None if reasons is None else event_names(reasons),
            idle=None if reasons is None else bool(reasons & GPU_IDLE),
        )

    def _held_clocks_s(self) -> dict[str, float]:
        answers = {
            name: self._fields.get(
                f"held_clocks_s.{name}",
                "nvmlDeviceGetViolationStatus",
                policy,
                convert=lambda v: int(v.violationTime) / 1e9,
            )
            for policy, name in CLOCK_POLICIES.items()
        }
        return {name: seconds for name, seconds in answers.items() if seconds is not None}

    def _processes(self) -> tuple[GpuProcess, ...] | None:
        found: dict[int, GpuProcess] = {}
        answered = False
        for function, compute in (
            ("nvmlDeviceGetGraphicsRunningProcesses", False),
            ("nvmlDeviceGetComputeRunningProcesses", True),
        ):
            answer = self._fields.get("processes", function)
            answered = answered or answer is not None
            for process in answer or ():
                memory = process.usedGpuMemory
                found[int(process.pid)] = GpuProcess(
                    pid=int(process.pid),
                    memory_bytes=None if memory is None else int(memory),
                    compute=compute,
                )
        return tuple(found.values()) if answered else None

    def _power_limits(self) -> PowerLimits:
        of = self._fields
        bounds = of.get("power_limit_range", "nvmlDeviceGetPowerManagementLimitConstraints") or (None, None)
        return PowerLimits(
            enforced_w=of.get("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", convert=milli),
            default_w=of.get(
                "power_limit_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", convert=milli
            ),
            minimum_w=None if bounds[0] is None else milli(bounds[0]),
            maximum_w=None if bounds[1] is None else milli(bounds[1]),
        )


def open_on(session: Session, profile: DeviceProfile) -> NvmlReadings:
    """The readings of the device of this profile, on an open session.

    Raises:
        NoDeviceError: If the driver no longer shows it.
    """
    try:
        device = session.guarded(lambda: _find(session, profile))
    except HungCallError:
        raise NoDeviceError(
            "the NVIDIA driver does not answer; look for a stuck process, reboot if need be"
        ) from None
    if device is None:
        session.close()
        raise NoDeviceError(f"GPU {profile.index} ({profile.name}) is no longer listed by the driver; reboot")
    return NvmlReadings(session, device)


def read_all(session: Session, profile: DeviceProfile) -> None:
    """Make every call of a measurement once, for a dump."""
    readings = open_on(session, profile)
    readings.sample()
    readings.energy_j()
    readings.held_clocks_s()
    readings.processes()
    readings.power_limits()
    readings.ecc_uncorrected()
    readings.compute_mode()


def _find(session: Session, profile: DeviceProfile) -> Device | None:
    """The device with this place and UUID; a MIG slice by its UUID among the slices of its card."""
    if profile.index is None:
        return None
    device = session.device(profile.index)
    if isinstance(device, Refused):
        return None
    if profile.mig_enabled and (profile.uuid or "").startswith("MIG-"):
        most = session.ask("nvmlDeviceGetMaxMigDeviceCount", device)
        for place in range(0 if isinstance(most, Refused) else most):
            piece = session.mig_slice(device, place)
            if not isinstance(piece, Refused) and session.ask("nvmlDeviceGetUUID", piece) == profile.uuid:
                return piece
        return None
    uuid = session.ask("nvmlDeviceGetUUID", device)
    return None if profile.uuid is not None and uuid != profile.uuid else device
