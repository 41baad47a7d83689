"""NVIDIA devices. This module alone imports pynvml; ``nvml_session`` is the gate that every call passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe import nvml_driver, nvml_profile, nvml_readings
from gpubench.probe.backend import BackendReport, DeviceState, Problem
from gpubench.probe.guard import CALL_LIMIT_S, Guard, HungCallError
from gpubench.probe.nvml_session import Refused, Session


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
        return nvml_driver.hung(limit_s)
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
            return session.guarded(lambda: _survey(session))
        except HungCallError:
            return BackendReport(problems=(nvml_driver.hung(self.limit_s),), library=session.library)
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
        report = session.guarded(lambda: _survey(session))
        for profile in report.devices:
            nvml_readings.read_all(session, profile)
    except HungCallError:
        raise NoDeviceError(nvml_driver.hung(session.guard.limit_s).line()) from None
    finally:
        calls = list(session.calls or ())
        session.close()
    return nvml_driver.mask(calls)


def open_readings(device: DeviceProfile) -> nvml_readings.NvmlReadings:
    """Open a line to one GPU for telemetry; see ``NvidiaBackend.open_readings``."""
    return BACKEND.open_readings(device)


def _survey(session: Session) -> BackendReport:
    versions = nvml_profile.versions(session)
    count = session.ask("nvmlDeviceGetCount")
    if isinstance(count, Refused):
        return BackendReport(
            problems=(nvml_driver.not_listed(count.code, count.reason),), library=session.library
        )
    found: list[tuple[DeviceProfile, DeviceState]] = []
    problems: list[Problem] = []
    for index in range(count):
        device = session.device(index)
        if isinstance(device, Refused):
            problems.append(nvml_driver.device_unusable(index, device.code, device.reason))
            continue
        read = nvml_profile.read(session, device, index, versions)
        if device.label in session.fatal:
            code = session.fatal[device.label]
            problems.append(nvml_driver.device_unusable(index, code, None))
            continue
        found.extend(read)
        if not read:
            problems.append(nvml_driver.no_mig_slice(index))
    if count == 0:
        problems.append(nvml_driver.no_gpu(versions.driver))
    return BackendReport(
        devices=tuple(profile for profile, _ in found),
        states=tuple(state for _, state in found),
        problems=tuple(problems),
        library=session.library,
        library_version=versions.nvml,
    )
