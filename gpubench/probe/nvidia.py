"""NVIDIA devices. Only this module imports pynvml, and every call passes through ``nvml``.

The first part explains why the driver cannot be used: each broken state is one Problem with the value seen
and the fix. The second part reads a working device, and the third part lists the devices.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial, wraps
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from gpubench.errors import ExitCode, NoDeviceError
from gpubench.installing import pip_install
from gpubench.models import DeviceProfile, Reading
from gpubench.probe import plausible
from gpubench.probe.backend import (
    ONLY_IN_TORCH,
    OR_CPU,
    Backend,
    BackendReport,
    DeviceGoneError,
    DeviceState,
    Problem,
    Readings,
)
from gpubench.probe.host import container, nvidia_nodes, read_text
from gpubench.probe.nvml import (
    CALL_LIMIT_S,
    CLOCK_MEMORY,
    CLOCK_POLICIES,
    CLOCK_SM,
    COMPUTE_MODE,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    IN_USE,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    RESET_REQUIRED,
    SENSOR_GPU,
    UNKNOWN,
    VERSION_MISMATCH,
    Device,
    Fields,
    Guard,
    HungCallError,
    Refused,
    Session,
    memory_used,
    mig_slices,
    read,
    read_driver,
    read_state,
    shared_readings,
)

SONAME = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
# Exit codes of a problem: without any GPU, and with a GPU that cannot be used
_ABSENT, _UNUSABLE = ExitCode.DONE, ExitCode.NO_DEVICE
_USUAL_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
)


def _hung(error: HungCallError, index: int | None = None) -> Problem:
    who = "the NVIDIA driver" if index is None else f"GPU {index}"
    return Problem(
        what=f"{who} does not answer",
        value=str(error),
        fix=f"look for a stuck process and for Xid lines in the kernel log, reboot if necessary, {OR_CPU}",
        exit_code=_UNUSABLE,
        device_index=index,
    )


def _device_unusable(index: int, code: int, reason: str | None) -> Problem:
    texts = {
        GPU_IS_LOST: (
            f"GPU {index} is lost",
            "it fell off the bus: reboot; if that happens again, check its power supply and seating",
        ),
        RESET_REQUIRED: (
            f"GPU {index} needs a reset",
            f"end its processes and reset it: nvidia-smi -r -i {index}; else reboot",
        ),
    }
    what, fix = texts.get(code, (f"GPU {index} cannot be opened", _fix(code)))
    return Problem(
        what=what,
        value=reason or f"NVML code {code}",
        fix=fix,
        exit_code=_UNUSABLE,
        device_index=index,
    )


def not_opened(code: int, reason: str, library_version: str | None, root: Path = Path("/")) -> Problem:
    """Explain why the library could not be found, loaded or initialized.

    Args:
        code: NVML's return code.
        reason: NVML's text for the code, with the function's name.
        library_version: NVML's version, if it could be read without initializing NVML.
        root: Root of the system's files: "/", or a test's folder.
    """
    if code == LIBRARY_NOT_FOUND:
        return _not_loaded(root)
    path = loaded_library()
    if code == FUNCTION_NOT_FOUND:
        return Problem(
            what="the first NVIDIA library that the loader finds is a stub without functions",
            value=path,
            fix=f"remove its folder from the loader path (LD_LIBRARY_PATH), {OR_CPU}",
            exit_code=_UNUSABLE,
            torch_may_know=True,
        )
    what, value = {
        DRIVER_NOT_LOADED: ("the NVIDIA kernel module is not loaded", path),
        VERSION_MISMATCH: (
            "the NVIDIA library and the kernel module have different versions",
            _two_versions(library_version, path, root),
        ),
        NO_PERMISSION: ("this user may not open the NVIDIA driver", _device_nodes(root)),
    }.get(code, ("the NVIDIA driver does not start", reason))
    return Problem(what=what, value=value, fix=_fix(code, root), exit_code=_UNUSABLE)


def loaded_library() -> str | None:
    """Return the path of the driver library loaded by this process; None if unknown."""
    maps = read_text(Path("/proc/self/maps")) or ""
    found = re.search(r"/(?:.*/)?libnvidia-ml\.so[^/\n]*$", maps, re.MULTILINE)
    return found.group() if found else None


def module_version(root: Path = Path("/")) -> str | None:
    """Return the version of the loaded kernel module."""
    if version := read_text(root / "sys/module/nvidia/version"):
        return version
    sentence = read_text(root / "proc/driver/nvidia/version") or ""
    found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", sentence)
    return found.group() if found else None


def _not_loaded(root: Path) -> Problem:
    try:
        ctypes.CDLL(SONAME)
    except OSError as error:
        text = " ".join(str(error).split())
    else:  # it loads now: something changed between the two attempts
        text = "it loaded on the second attempt"
    missing = is_absent(text)
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    folders += [str(root / f.lstrip("/")) for f in _USUAL_FOLDERS]
    files = (Path(f) / SONAME for f in folders)
    found_at = next((str(file) for file in files if missing and file.exists()), "")
    if missing and not found_at:
        return Problem(
            what="NVIDIA driver not found",
            value=text,
            fix="if there is an NVIDIA GPU, install its driver (in a container: docker run --gpus all)",
            exit_code=_ABSENT,
            torch_may_know=True,
        )
    return Problem(
        what="the NVIDIA library cannot be loaded",
        value=f"{text}; there is a file at {found_at}" if found_at else text,
        fix=f"reinstall the driver, or fix the loader path (LD_LIBRARY_PATH), {OR_CPU}",
        exit_code=_UNUSABLE,
        torch_may_know=True,
    )


def is_absent(text: str, platform: str = sys.platform) -> bool:
    """Return whether the loader's message means a missing driver rather than a broken one.

    A library with a missing dependency is broken. Outside Linux the messages vary too much to distinguish the
    two, and a missing driver is far more likely.
    """
    if platform != "linux":
        return True
    words = rf"(?:^|library ){re.escape(SONAME)}: (?:cannot open shared object file: )?No such file"
    return re.search(words, text) is not None  # glibc, then musl


def _two_versions(library_version: str | None, path: str | None, root: Path) -> str:
    if library_version is None and path is not None:
        found = re.search(r"\.so\.(\d{3}\..*)$", str(Path(path).resolve()))
        library_version = found.group(1) if found else None
    return f"library {library_version or 'unknown'}, module {module_version(root) or 'unknown'}"


def _device_nodes(root: Path) -> str:
    nodes, closed = nvidia_nodes(root)
    if closed:
        return "no access to " + ", ".join(closed)
    return "no /dev/nvidia* device node here" if not nodes else "nvmlInit: Insufficient Permissions"


def _fix(code: int, root: Path = Path("/")) -> str:
    inside = container(root)
    if code == UNKNOWN and inside:
        return (
            f"in this {inside} container a reload of the host's service manager removed the device cgroup: "
            "recreate the container"
        )
    return {
        DRIVER_NOT_LOADED: f"load it (modprobe nvidia) or reboot, {OR_CPU}",
        VERSION_MISMATCH: "reboot, or reload the module; in a container, restart it",
        NO_PERMISSION: "join the group that owns /dev/nvidia* (often video or render)",
        IN_USE: "another program holds the driver exclusively: end it",
        GPU_IS_LOST: "a GPU fell off the bus: reboot; check power and seating",
        RESET_REQUIRED: "reset the GPU (nvidia-smi -r) or reboot",
    }.get(code, f"see the kernel log (dmesg), reboot, {OR_CPU}")


T = TypeVar("T")

_ENERGY = plausible.ENERGY.in_unit("mJ", divisor=1000)
_HELD_S = plausible.part(attrgetter("violationTime"), plausible.HELD_TIME.in_unit("ns", divisor=10**9))
_UNCORRECTED, _VOLATILE = 1, 0  # kind of error, and counter since the driver was loaded; from nvml.h
_FAULTS = {GPU_IS_LOST: "gpu_lost", RESET_REQUIRED: "reset_required"}


def _guarded(otherwise: Any) -> Callable[[Callable[[NvmlReadings], T]], Callable[[NvmlReadings], T]]:
    # Run a reading on the driver's thread; return ``otherwise`` if a call hangs.

    def decorate(read: Callable[[NvmlReadings], T]) -> Callable[[NvmlReadings], T]:
        @wraps(read)
        def guarded(self: NvmlReadings) -> T:
            answer: T = copy(otherwise)
            with suppress(HungCallError):
                answer = self._session.guard.call(partial(read, self))
            return answer

        return guarded

    return decorate


class NvmlReadings(Readings):
    """Readings of one GPU. After a hung call, every value is unknown."""

    def __init__(self, session: Session, device: Device) -> None:
        """Take ownership of the session; ``close`` shuts it down."""
        self._session = session
        self._fields = Fields(session, device)
        self._device = device
        self._has_values = self.sample() != Reading()

    @property
    def source(self) -> str:
        """``nvml``; ``none`` if this device refuses every value; ``hung`` if the driver stopped answering."""
        if self._session.guard.hung:
            return "hung"
        return "nvml" if self._has_values else "none"

    @property
    def fault(self) -> str | None:
        """``gpu_lost`` or ``reset_required`` if the driver reports that fault, else None.

        A device does not recover from either. The driver is queried again, because a device can be lost
        between two samples.
        """
        if self._device.label not in self._session.fatal:
            self._query_again()
        return _FAULTS.get(self._session.fatal.get(self._device.label, 0))

    @_guarded(Reading())
    def sample(self) -> Reading:
        """Read clocks, power, temperature, utilization and memory in one turn of the driver's thread."""
        fields, clock = self._fields, "nvmlDeviceGetClockInfo"
        return Reading(
            sm_clock_hz=fields.get("sm_clock_hz", plausible.SM_CLOCK, clock, CLOCK_SM),
            memory_clock_hz=fields.get("memory_clock_hz", plausible.MEMORY_CLOCK, clock, CLOCK_MEMORY),
            **shared_readings(fields),
            memory_used_bytes=fields.memory("memory_used_bytes", memory_used),
        )

    @_guarded(None)
    def energy_j(self) -> float | None:
        """Read the energy counter [J]; it updates about every 100 ms, and 0 means unknown."""
        return self._fields.get("energy_j", _ENERGY, "nvmlDeviceGetTotalEnergyConsumption")

    @_guarded({})
    def held_clocks_s(self) -> dict[str, float]:
        """Read how long each policy has held the clocks down [s]; unreported policies are omitted."""
        answers = {
            name: self._fields.get(f"held_clocks_s.{name}", _HELD_S, "nvmlDeviceGetViolationStatus", policy)
            for policy, name in CLOCK_POLICIES.items()
        }
        return {name: seconds for name, seconds in answers.items() if seconds is not None}

    @_guarded(None)
    def compute_pids(self) -> tuple[int, ...] | None:
        """List the processes that compute on the GPU; None if the driver does not list them."""
        found = self._fields.get("compute_pids", list, "nvmlDeviceGetComputeRunningProcesses")
        return None if found is None else tuple(int(process.pid) for process in found)

    @_guarded(None)
    def memory_in_use_bytes(self) -> int | None:
        """Read memory in use without the driver's reserve [B]; None if an old driver cannot separate them."""
        answer = self._session.memory(self._device)
        if not hasattr(answer, "reserved"):
            return None
        return self._fields.take("memory_used_bytes", memory_used, "nvmlDeviceGetMemoryInfo", answer)

    @_guarded(None)
    def ecc_uncorrected(self) -> int | None:
        """Read uncorrected memory errors since the driver was loaded; only a change is meaningful."""
        return self._fields.get(
            "ecc_uncorrected", plausible.ERRORS, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE
        )

    @_guarded(None)
    def compute_mode(self) -> str | None:
        """Read the compute mode, which says who may use the GPU."""
        return self._fields.get("compute_mode", COMPUTE_MODE, "nvmlDeviceGetComputeMode")

    def close(self) -> None:
        """Shut NVML down."""
        self._session.close()

    @_guarded(None)
    def _query_again(self) -> None:
        self._session.ask("nvmlDeviceGetTemperature", self._device, SENSOR_GPU)


def open_on(session: Session, profile: DeviceProfile) -> NvmlReadings:
    """Return the readings of the device with this profile, on an open session.

    Raises:
        DeviceGoneError: If the driver no longer lists the device, or hangs.
    """
    index = profile.index or 0
    try:
        device = session.guard.call(lambda: _find(session, profile))
    except HungCallError as error:
        raise DeviceGoneError(_hung(error, index).line(), "driver_hung") from None
    if isinstance(device, Device):
        return NvmlReadings(session, device)
    session.close()
    if device is None:
        gone = f"GPU {profile.index} ({profile.name}) is no longer listed by the driver; reboot"
        raise DeviceGoneError(gone, "gpu_lost")
    problem = _device_unusable(index, device.code, device.reason)
    raise DeviceGoneError(problem.line(), _FAULTS.get(device.code, "gpu_lost"))


def _find(session: Session, profile: DeviceProfile) -> Device | Refused | None:
    """Return the device with this index and UUID; a MIG slice is found by UUID among the slices of its card.

    If the driver refuses, return its refusal. None if no device, or another one, has that index.
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


def connect(limit_s: float = CALL_LIMIT_S, *, record: bool = False) -> Session | Problem:
    """Open the driver library, or return a Problem that explains why it cannot be opened."""
    try:
        import pynvml
    except ImportError as error:
        return Problem(
            what="the Python module pynvml cannot be imported",
            value=str(error),
            fix=f"install it: {pip_install('nvidia-ml-py')}",
            exit_code=_UNUSABLE,
            torch_may_know=True,
        )
    if not hasattr(pynvml, "nvmlMemory_v2"):
        again = pip_install("--force-reinstall", "nvidia-ml-py")
        return Problem(
            what="the module pynvml that Python found is not NVIDIA's binding",
            value=str(pynvml.__file__),
            fix=f"remove that file, or: pip uninstall pynvml && {again}",
            exit_code=_UNUSABLE,
            torch_may_know=True,
        )
    session = Session(nvml=pynvml, guard=Guard(limit_s), calls=[] if record else None)
    try:
        opened = session.guard.call(lambda: session.ask("nvmlInit"))
    except HungCallError as error:
        return _hung(error)
    session.library = loaded_library()
    if isinstance(opened, Refused):
        version = session.ask("nvmlSystemGetNVMLVersion") if opened.code != LIBRARY_NOT_FOUND else None
        session.guard.close()
        return not_opened(opened.code, opened.reason, version if isinstance(version, str) else None)
    return session


@dataclass(frozen=True)
class NvidiaBackend(Backend):
    """NVIDIA devices, read through NVML."""

    name: str = "cuda"
    limit_s: float = CALL_LIMIT_S

    def devices(self) -> BackendReport:
        """List every GPU that the driver reports, and the problems that hide others."""
        session = connect(self.limit_s)
        if isinstance(session, Problem):
            return BackendReport(problems=(session,))
        try:
            return _survey(session)
        finally:
            session.close()

    def open_readings(self, device: DeviceProfile) -> Readings:
        """Open the telemetry of one GPU; every value is unknown for a GPU that only torch sees.

        Raises:
            DeviceGoneError: If the driver cannot be opened, or no longer lists this device.
        """
        if ONLY_IN_TORCH in device.unavailable.values():
            return Readings()
        session = connect(self.limit_s)
        if isinstance(session, Problem):
            raise DeviceGoneError(session.line(), "driver_closed")
        return open_on(session, device)


BACKEND = NvidiaBackend()


def _survey(session: Session) -> BackendReport:
    """Describe every GPU and its state; GPUs after a hanging one are skipped."""
    found: list[tuple[DeviceProfile, DeviceState]] = []
    problems: list[Problem] = []
    version, index, count = None, None, 0
    try:
        driver, version, count = session.guard.call(partial(_listed, session, problems))
        for index in range(count):
            found += session.guard.call(partial(_look_at, session, index, driver, problems))
    except HungCallError as error:
        problems.append(_hung(error, index))
        if index is not None and index + 1 < count:
            first, last = index + 1, count - 1
            skipped = f"GPU {last} was" if first == last else f"GPUs {first} to {last} were"
            problems.append(
                Problem(
                    what=f"{skipped} not queried",
                    value=f"GPU {index} did not answer",
                    fix="the NVIDIA driver hangs: look for Xid lines in the kernel log, reboot if necessary",
                    exit_code=_UNUSABLE,
                )
            )
    return BackendReport(
        devices=tuple(device for device, _ in found),
        states=tuple(state for _, state in found),
        problems=tuple(problems),
        library=session.library,
        library_version=version,
    )


def _listed(session: Session, problems: list[Problem]) -> tuple[DeviceProfile, str | None, int]:
    """Return the profile fields that all GPUs share, NVML's version, and the number of GPUs.

    If that number is 0 or unknown, a Problem is added.
    """
    driver, fields = read_driver(session), Fields(session, None)
    version = fields.get("version", plausible.text, "nvmlSystemGetNVMLVersion")
    answer = session.ask("nvmlDeviceGetCount")
    count = fields.take("count", plausible.DEVICES, "nvmlDeviceGetCount", answer)
    if count is None:
        problems.append(
            Problem(
                what="the NVIDIA driver does not list its GPUs",
                value=fields.unavailable["count"],
                fix=_fix(answer.code if isinstance(answer, Refused) else UNKNOWN),
                exit_code=_UNUSABLE,
            )
        )
    elif count == 0:
        problems.append(
            Problem(
                what="the NVIDIA driver works but lists no GPU",
                value=None if driver.driver_version is None else f"driver {driver.driver_version}",
                fix="in a container, pass the GPU through (docker run --gpus all); else check its seating "
                "and power",
                exit_code=_ABSENT,
            )
        )
    return driver, version, count or 0


def _look_at(
    session: Session, index: int, driver: DeviceProfile, problems: list[Problem]
) -> list[tuple[DeviceProfile, DeviceState]]:
    """Describe one GPU or its slices, each with its state; a GPU that cannot be used adds a Problem."""
    device = session.device(index)
    if isinstance(device, Refused):
        problems.append(_device_unusable(index, device.code, device.reason))
        return []
    pieces = read(session, device, index, driver)
    found = [(profile, read_state(session, piece)) for profile, piece in pieces]
    labels = (str(index), *(piece.label for _, piece in pieces))
    code = next((c for c in map(session.fatal.get, labels) if c is not None), None)
    if code is not None:
        problems.append(_device_unusable(index, code, None))
        return []
    if not found:
        problems.append(
            Problem(
                what=f"GPU {index} is in MIG mode and has no slice",
                fix="create one with nvidia-smi mig -cgi, or switch MIG off with nvidia-smi -mig 0",
                exit_code=_UNUSABLE,
                device_index=index,
            )
        )
    return found


def dump() -> list[dict[str, Any]]:
    """Return every driver call that gpubench makes, with its answer; identifiers are masked.

    Raises:
        NoDeviceError: If the driver cannot be opened.
    """
    session = connect(CALL_LIMIT_S, record=True)
    if isinstance(session, Problem):
        raise NoDeviceError(session.line())
    try:
        report = _survey(session)
        for profile in report.devices if session.guard.hung is None else ():
            readings = open_on(session, profile)
            for read_one in (
                readings.sample,
                readings.energy_j,
                readings.held_clocks_s,
                readings.compute_pids,
                readings.ecc_uncorrected,
                readings.compute_mode,
            ):
                read_one()
        if (hung := session.guard.hung) is not None:
            hanging = (problem for problem in report.problems if problem.value == str(hung))
            raise NoDeviceError(next(hanging, _hung(hung)).line())
    finally:
        calls = list(session.calls or ())
        session.close()
    return mask(calls)


def mask(calls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mask what identifies a card or a user in a dump: UUIDs and process ids.

    An all-zero UUID stays, because it is a finding. Others become sequential numbers in the same format.
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
    """Return a dump in its file format: one call per line, so two dumps can be compared."""
    body = ",\n".join(json.dumps(call) for call in calls)
    return f'{{"layout": 2, "origin": "recorded", "calls": [\n{body}\n]}}\n'
