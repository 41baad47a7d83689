"""Readings of one NVIDIA device while it works: for telemetry, energy, sharing and power checks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial, wraps
from operator import attrgetter
from typing import Any, TypeVar

from gpubench.models import DeviceProfile, Reading
from gpubench.probe import nvml_driver, plausible
from gpubench.probe.backend import Closing, DeviceGoneError, GpuProcess, PowerLimits
from gpubench.probe.nvml_profile import (
    CLOCK_MEMORY,
    CLOCK_POLICIES,
    CLOCK_SM,
    COMPUTE_MODE,
    MEMORY_CLOCK,
    POWER_LIMIT,
    SENSOR_GPU,
    SM_CLOCK,
    Fields,
    at_work,
    memory_used,
    mig_slices,
)
from gpubench.probe.nvml_session import GPU_IS_LOST, RESET_REQUIRED, Device, HungCallError, Refused, Session

T = TypeVar("T")

READING_LIMIT_S = 5.0
"""A reading takes what a slow driver answers in this time; the rest of it is unknown."""
_ENERGY = plausible.ENERGY.of("mJ", divisor=1000)
_HELD = plausible.part(attrgetter("violationTime"), plausible.HELD.of("ns", divisor=10**9))
_UNCORRECTED, _VOLATILE = 1, 0
_FAULTS = {GPU_IS_LOST: "gpu_lost", RESET_REQUIRED: "reset_required"}


def _or(otherwise: Any) -> Callable[[Callable[[NvmlReadings], T]], Callable[[NvmlReadings], T]]:
    """Do the calls of a reading on the driver's thread; where one hangs its value is ``otherwise``."""

    def decorate(read: Callable[[NvmlReadings], T]) -> Callable[[NvmlReadings], T]:
        @wraps(read)
        def within(self: NvmlReadings) -> T:
            answer: T = copy(otherwise)
            with suppress(HungCallError):
                answer = self._session.guard.call(partial(read, self), READING_LIMIT_S)
            return answer

        return within

    return decorate


class NvmlReadings(Closing):
    """An open line to one GPU. A call that hangs ends the line: every later value is None.

    Of a driver that is slow and no more, each reading takes what it gets in ``READING_LIMIT_S``.
    """

    def __init__(self, session: Session, device: Device) -> None:
        """Take over the session; ``close`` shuts it down."""
        self._session = session
        self._fields = Fields(session, device)
        self._device = device
        self._tells = self.sample() != Reading()

    @property
    def source(self) -> str:
        """``nvml``; ``none`` where this device refuses every value; ``hung`` once the driver is silent."""
        if self._session.guard.hung:
            return "hung"
        return "nvml" if self._tells else "none"

    @property
    def fault(self) -> str | None:
        """``gpu_lost`` or ``reset_required`` where the driver says so; the device does not come back.

        The driver is asked once more, because a device can be lost between two samples.
        """
        if self._device.label not in self._session.fatal:
            self._ask_once_more()
        return _FAULTS.get(self._session.fatal.get(self._device.label, 0))

    @property
    def refused(self) -> dict[str, str]:
        """Why a field is None, by field."""
        return self._fields.unavailable

    @_or(Reading())
    def sample(self) -> Reading:
        """Read what a TelemetrySample holds; one hand-over to the driver's thread."""
        of = self._fields
        return Reading(
            sm_clock_hz=of.get("sm_clock_hz", SM_CLOCK, "nvmlDeviceGetClockInfo", CLOCK_SM),
            memory_clock_hz=of.get("memory_clock_hz", MEMORY_CLOCK, "nvmlDeviceGetClockInfo", CLOCK_MEMORY),
            **at_work(of),
            memory_used_bytes=of.memory("memory_used_bytes", memory_used),
        )

    @_or(None)
    def energy_j(self) -> float | None:
        """Read the energy counter [J]; it steps about every 100 ms, and at 0 it tells nothing."""
        return self._fields.get("energy_j", _ENERGY, "nvmlDeviceGetTotalEnergyConsumption")

    @_or({})
    def held_clocks_s(self) -> dict[str, float]:
        """Read for how long each policy has held the clocks down [s]; policies not told are left out."""
        answers = {
            name: self._fields.get(f"held_clocks_s.{name}", _HELD, "nvmlDeviceGetViolationStatus", policy)
            for policy, name in CLOCK_POLICIES.items()
        }
        return {name: seconds for name, seconds in answers.items() if seconds is not None}

    @_or(None)
    def processes(self) -> tuple[GpuProcess, ...] | None:
        """List processes on the GPU; None where the driver does not tell."""
        found: dict[int, GpuProcess] = {}
        answered = False
        for function, compute in (
            ("nvmlDeviceGetGraphicsRunningProcesses", False),
            ("nvmlDeviceGetComputeRunningProcesses", True),
        ):
            answer = self._fields.get("processes", list, function)
            answered = answered or answer is not None
            for process in answer or ():
                native = process.usedGpuMemory
                found[int(process.pid)] = GpuProcess(
                    pid=int(process.pid),
                    memory_bytes=None
                    if native is None
                    else self._fields.take("processes", plausible.MEMORY_USED, "usedGpuMemory", int(native)),
                    compute=compute,
                )
        return tuple(found.values()) if answered else None

    @_or(PowerLimits())
    def power_limits(self) -> PowerLimits:
        """Read the power limits [W]."""
        of = self._fields
        bounds = of.get(
            "power_limit_range",
            lambda pair: [POWER_LIMIT(bound) for bound in pair],
            "nvmlDeviceGetPowerManagementLimitConstraints",
        ) or (None, None)
        return PowerLimits(
            enforced_w=of.get("power_limit_w", POWER_LIMIT, "nvmlDeviceGetEnforcedPowerLimit"),
            default_w=of.get(
                "power_limit_default_w", POWER_LIMIT, "nvmlDeviceGetPowerManagementDefaultLimit"
            ),
            minimum_w=bounds[0],
            maximum_w=bounds[1],
        )

    @_or(None)
    def memory_in_use_bytes(self) -> int | None:
        """Read memory in use without the driver's reserve [B]; an old driver cannot part the two."""
        answer = self._session.memory(self._device)
        if not hasattr(answer, "reserved"):
            return None
        return self._fields.take("memory_used_bytes", memory_used, "nvmlDeviceGetMemoryInfo", answer)

    @_or(None)
    def ecc_uncorrected(self) -> int | None:
        """Read uncorrected memory errors since the driver was loaded; only a change means anything."""
        return self._fields.get(
            "ecc_uncorrected", plausible.ERRORS, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE
        )

    @_or(None)
    def compute_mode(self) -> str | None:
        """Read who may use the GPU."""
        return self._fields.get("compute_mode", COMPUTE_MODE, "nvmlDeviceGetComputeMode")

    def close(self) -> None:
        """Shut NVML down."""
        self._session.close()

    @_or(None)
    def _ask_once_more(self) -> None:
        self._session.ask("nvmlDeviceGetTemperature", self._device, SENSOR_GPU)


def open_on(session: Session, profile: DeviceProfile) -> NvmlReadings:
    """The readings of the device of this profile, on an open session.

    Raises:
        DeviceGoneError: If the driver no longer shows it.
    """
    index = profile.index or 0
    try:
        device = session.guard.call(lambda: _find(session, profile))
    except HungCallError as error:
        raise DeviceGoneError(nvml_driver.hung(error, index).line(), "driver_hung") from None
    if isinstance(device, Device):
        return NvmlReadings(session, device)
    session.close()
    if device is None:
        gone = f"GPU {profile.index} ({profile.name}) is no longer listed by the driver; reboot"
        raise DeviceGoneError(gone, "gpu_lost")
    problem = nvml_driver.device_unusable(index, device.code, device.reason)
    raise DeviceGoneError(problem.line(), _FAULTS.get(device.code, "gpu_lost"))


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


def _find(session: Session, profile: DeviceProfile) -> Device | Refused | None:
    """The device with this place and UUID; a MIG slice by its UUID among the slices of its card.

    None if another or no device is at this place; the refusal where the driver gives one.
    """
    if profile.index is None:
        return None
    device = session.device(profile.index)
    if isinstance(device, Refused):
        return device
    if profile.mig_enabled and (profile.uuid or "").startswith("MIG-"):
        pieces = mig_slices(session, device)
        return next((p for p in pieces if session.ask("nvmlDeviceGetUUID", p) == profile.uuid), None)
    uuid = session.ask("nvmlDeviceGetUUID", device)
    if isinstance(uuid, Refused) and uuid.code in _FAULTS:
        return uuid
    return None if profile.uuid is not None and uuid != profile.uuid else device
