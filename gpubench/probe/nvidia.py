"""NVIDIA devices. This module alone imports pynvml; ``nvml_session`` is the gate that every call passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe import nvml_driver, nvml_profile, nvml_readings
from gpubench.probe.backend import BackendReport, DeviceState, Problem
from gpubench.probe.guard import CALL_LIMIT_S, Guard, HungCallError
from gpubench.probe.nvml_session import Device, Refused, Session


def connect(limit_s: float = CALL_LIMIT_S, *, record: bool = False) -> Session | Problem:
    """Open the driver library, or say in one Problem why that cannot be."""
    try:
        import pynvml
    except ImportError as error:
        return nvml_driver.binding_missing(str(error))
    if not hasattr(pynvml, "nvmlMemory_v2"):
        return nvml_driver.binding_shadowed(str(pynvml.__file__))
    session = Session(nvml=pynvml, guard=Guard(limit_s), calls=[] if record else None)
    try:
        opened = session.guarded(lambda: session.ask("nvmlInit"))
    except HungCallError:
        return nvml_driver.hung(limit_s, listed=False)
    session.library = nvml_driver.loaded_library()
    if isinstance(opened, Refused):
        version = (
            session.ask("nvmlSystemGetNVMLVersion") if opened.code != nvml_driver.LIBRARY_NOT_FOUND else None
        )
        session.guard.close()
        return nvml_driver.not_opened(
            opened.code, opened.reason, version if isinstance(version, str) else None
        )
    return session


@dataclass(frozen=True)
class NvidiaBackend:
    """NVIDIA devices, by NVML."""

    name: str = "cuda"
    limit_s: float = CALL_LIMIT_S

    def devices(self) -> BackendReport:
        """List every GPU that the driver shows, and what keeps the others away."""
        session = connect(self.limit_s)
        if isinstance(session, Problem):
            return BackendReport(problems=(session,))
        try:
            return _Survey(session).run()
        finally:
            session.close()

    def open_readings(self, device: DeviceProfile) -> nvml_readings.NvmlReadings:
        """Open a line to one GPU for telemetry.

        Raises:
            NoDeviceError: If the driver cannot be opened, or no longer shows this device.
        """
        session = connect(self.limit_s)
        if isinstance(session, Problem):
            raise NoDeviceError(session.line())
        return nvml_readings.open_on(session, device)


BACKEND = NvidiaBackend()


def dump() -> list[dict[str, Any]]:
    """Every driver call that gpubench makes, with its answer; identifiers are masked.

    Raises:
        NoDeviceError: If the driver cannot be opened.
    """
    session = connect(record=True)
    if isinstance(session, Problem):
        raise NoDeviceError(session.line())
    try:
        report = _Survey(session).run()
        for profile in report.devices:
            nvml_readings.read_all(session, profile)
        if session.guard.hung:
            raise NoDeviceError(nvml_driver.hung(session.guard.limit_s, listed=False).line())
    finally:
        calls = list(session.calls or ())
        session.close()
    return nvml_driver.mask(calls)


def open_readings(device: DeviceProfile) -> nvml_readings.NvmlReadings:
    """Open a line to one GPU for telemetry; see ``NvidiaBackend.open_readings``."""
    return BACKEND.open_readings(device)


@dataclass
class _Survey:
    """What is known of the GPUs so far: a call that hangs takes the rest away, not what was read before."""

    session: Session
    found: list[tuple[DeviceProfile, Device]] = field(default_factory=list)
    states: dict[int, DeviceState] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nvml_version: str | None = None

    def run(self) -> BackendReport:
        """List the GPUs, then look at what each is doing."""
        try:
            self.session.guarded(self._list)
            for place, (_, device) in enumerate(self.found):
                look = partial(nvml_profile.read_state, self.session, device)
                self.states[place] = self.session.guarded(look)
        except HungCallError:
            self.problems.append(nvml_driver.hung(self.session.guard.limit_s, listed=bool(self.found)))
        alive = [place for place, (profile, device) in enumerate(self.found) if self._alive(profile, device)]
        return BackendReport(
            devices=tuple(self.found[place][0] for place in alive),
            states=tuple(self.states.get(place) for place in alive),
            problems=tuple(self.problems),
            library=self.session.library,
            library_version=self.nvml_version,
        )

    def _alive(self, profile: DeviceProfile, device: Device) -> bool:
        """Whether no call has said that the device is lost or needs a reset; else note the problem."""
        card = device.label.partition("/")[0]  # a slice is lost with its card
        code = self.session.fatal.get(device.label, self.session.fatal.get(card))
        if code is not None:
            self.problems.append(nvml_driver.device_unusable(profile.index or 0, code, None))
        return code is None

    def _list(self) -> None:
        versions = nvml_profile.read_versions(self.session)
        self.nvml_version = versions.nvml
        count = self.session.ask("nvmlDeviceGetCount")
        if isinstance(count, Refused):
            self.problems.append(nvml_driver.not_listed(count.code, count.reason))
            return
        if count == 0:
            self.problems.append(nvml_driver.no_gpu(versions.driver))
        for index in range(count):
            self._list_one(index, versions)

    def _list_one(self, index: int, versions: nvml_profile.Versions) -> None:
        device = self.session.device(index)
        if isinstance(device, Refused):
            self.problems.append(nvml_driver.device_unusable(index, device.code, device.reason))
            return
        found = nvml_profile.read(self.session, device, index, versions)
        if not found:
            self.problems.append(nvml_driver.no_mig_slice(index))
        self.found.extend(found)
