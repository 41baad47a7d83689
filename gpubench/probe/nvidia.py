"""NVIDIA devices. This module alone imports pynvml; ``nvml_session`` is the gate that every call passes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe import nvml_driver, nvml_profile, nvml_readings, plausible
from gpubench.probe.backend import (
    TOLD_BY_TORCH,
    BackendReport,
    DeviceGoneError,
    DeviceState,
    NoReadings,
    Problem,
)
from gpubench.probe.nvml_session import (
    CALL_LIMIT_S,
    LIBRARY_NOT_FOUND,
    UNKNOWN,
    Device,
    Guard,
    HungCallError,
    Refused,
    Session,
)

DEVICE_LIMIT_S = 30.0
"""What the description of one GPU may take: some sixty calls, at half a second each."""
SILENT_IN_A_ROW = 2
"""After so many GPUs that do not answer it is the driver that hangs, and the others are not waited for."""


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
        opened = session.guard.call(lambda: session.ask("nvmlInit"))
    except HungCallError as error:
        return nvml_driver.hung(error)
    session.library = nvml_driver.loaded_library()
    if isinstance(opened, Refused):
        version = session.ask("nvmlSystemGetNVMLVersion") if opened.code != LIBRARY_NOT_FOUND else None
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

    def open_readings(self, device: DeviceProfile) -> NoReadings | nvml_readings.NvmlReadings:
        """Open a line to one GPU for telemetry; unknown throughout for one that torch alone tells of.

        Raises:
            DeviceGoneError: If the driver cannot be opened, or no longer shows this device.
        """
        if TOLD_BY_TORCH in device.unavailable.values():
            return NoReadings()
        session = connect(self.limit_s)
        if isinstance(session, Problem):
            raise DeviceGoneError(session.line(), "driver_closed")
        return nvml_readings.open_on(session, device)


BACKEND = NvidiaBackend()


@dataclass
class _Look:
    """What one GPU has told so far: of a call that hangs, all that was told before it is kept."""

    devices: list[tuple[DeviceProfile, Device]] = field(default_factory=list)
    states: list[DeviceState] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass
class _Survey:
    """What is known of the GPUs so far. Each is looked at on its own, so that none takes another away."""

    session: Session
    found: list[tuple[DeviceProfile, DeviceState | None]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    hung: bool = False
    nvml_version: str | None = None

    def run(self) -> BackendReport:
        """Describe every GPU, and what it is doing."""
        try:
            versions, count = self.session.guard.call(self._list)
        except HungCallError as error:
            self.hung = True
            self.problems.append(nvml_driver.hung(error))
        else:
            self._look_at_all(count, versions)
        return BackendReport(
            devices=tuple(device for device, _ in self.found),
            states=tuple(state for _, state in self.found),
            problems=tuple(self.problems),
            library=self.session.library,
            library_version=self.nvml_version,
        )

    def _list(self) -> tuple[nvml_profile.Versions, int]:
        """Return the driver's versions and the count of its GPUs; 0 with a Problem where it tells none."""
        versions = nvml_profile.read_versions(self.session)
        self.nvml_version = versions.nvml
        count = self.session.ask("nvmlDeviceGetCount")
        if isinstance(count, Refused):
            self.problems.append(nvml_driver.not_listed(count.code, count.reason))
            return versions, 0
        try:
            count = plausible.DEVICES(count)
        except plausible.ImplausibleError as error:
            self.problems.append(nvml_driver.not_listed(UNKNOWN, f"nvmlDeviceGetCount: {error}"))
            return versions, 0
        if count == 0:
            self.problems.append(nvml_driver.no_gpu(versions.driver))
        return versions, count

    def _look_at_all(self, count: int, versions: nvml_profile.Versions) -> None:
        session, silent = self.session, 0
        for index in range(count):
            if silent == SILENT_IN_A_ROW:
                self.problems.append(nvml_driver.not_asked(index, count))
                break
            look = _Look()
            try:
                session.guard.call(partial(_look_at, session, index, versions, look), DEVICE_LIMIT_S)
                silent = 0
            except HungCallError as error:
                self.hung, silent = True, silent + 1
                look = replace(look, devices=[*look.devices])  # its thread may yet come back and add to it
                self.problems.append(nvml_driver.hung(error, index, described=bool(look.devices)))
                session = session.renewed()
            self._take(index, look)
        if session is not self.session:
            session.close()

    def _take(self, index: int, look: _Look) -> None:
        """Keep the devices of a GPU that is neither lost nor in need of a reset; else note the problem."""
        self.problems += look.problems
        labels = [str(index), *(device.label for _, device in look.devices)]
        code = next((c for c in map(self.session.fatal.get, labels) if c is not None), None)
        if code is not None:
            self.problems.append(nvml_driver.device_unusable(index, code, None))
            return
        if self.session.unasked.intersection(labels):
            self.problems.append(nvml_driver.slow(index, DEVICE_LIMIT_S))
        states = (*look.states, *[None] * len(look.devices))
        self.found += [(device, state) for (device, _), state in zip(look.devices, states, strict=False)]


def _look_at(session: Session, index: int, versions: nvml_profile.Versions, look: _Look) -> None:
    """Describe one GPU, or its slices, and what it is doing."""
    device = session.device(index)
    if isinstance(device, Refused):
        look.problems.append(nvml_driver.device_unusable(index, device.code, device.reason))
        return
    look.devices += nvml_profile.read(session, device, index, versions)
    if not look.devices:
        look.problems.append(nvml_driver.no_mig_slice(index))
    for _, piece in look.devices:
        look.states.append(nvml_profile.read_state(session, piece))


def dump() -> list[dict[str, Any]]:
    """Every driver call that gpubench makes, with its answer; identifiers are masked.

    Raises:
        NoDeviceError: If the driver cannot be opened.
    """
    session = connect(CALL_LIMIT_S, record=True)
    if isinstance(session, Problem):
        raise NoDeviceError(session.line())
    try:
        survey = _Survey(session)
        report = survey.run()
        if survey.hung:
            raise NoDeviceError(report.problems[-1].line())
        for profile in report.devices:
            nvml_readings.read_all(session, profile)
        if session.guard.hung is not None:
            raise NoDeviceError(nvml_driver.hung(session.guard.hung).line())
    finally:
        calls = list(session.calls or ())
        session.close()
    return mask(calls)


def mask(calls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A dump without what tells one card or one user from another: UUIDs and process numbers.

    An all-zero UUID stays, because it is a finding. Others become a running number in the same shape.
    """
    known: dict[str, str] = {}

    def masked(uuid: str) -> str:
        if not re.search(r"[1-9a-f]", uuid.partition("-")[2]):
            return uuid
        return known.setdefault(uuid, f"{uuid[:3]}-00000000-0000-0000-0000-{len(known) + 1:012d}")

    kept = []
    for call in calls:
        value = call["value"]
        if call["function"] == "nvmlDeviceGetUUID" and isinstance(value, str):
            value = masked(value)
        if "RunningProcesses" in call["function"] and isinstance(value, list):
            value = [{**process, "pid": n + 1} for n, process in enumerate(value)]
        kept.append({**call, "value": value})
    return kept


def dump_text(calls: Iterable[dict[str, Any]]) -> str:
    """A dump as a file holds it: one call a line, so that two dumps can be compared."""
    body = ",\n".join(json.dumps(call) for call in calls)
    return f'{{"layout": 2, "origin": "recorded", "calls": [\n{body}\n]}}\n'
