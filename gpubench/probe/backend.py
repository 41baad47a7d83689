"""The types of the probe: problems, readings, the interface of a backend, and a device's identity.

A backend is a module ``probe/<vendor>.py`` with an object ``BACKEND``. It converts the units of its driver to
SI. A device's identity is never disclosed, and one device is never mistaken for another.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Self

import msgspec

from gpubench import names
from gpubench.errors import MisuseError, NoDeviceError, StorageError
from gpubench.files import read_bytes, write_file
from gpubench.folders import user_data
from gpubench.models import DeviceProfile, Finding, FindingKind, Identity, Reading
from gpubench.models.record import bounded, html_table, shown
from gpubench.units import KIB, UNKNOWN, count, format_bytes

_DEVICES_IN_REPR = 8
OR_CPU = "or measure on the CPU with --device cpu"
NO_SPEC = "no single row of the specification table has this name"
"""Why a device has no key."""
ONLY_IN_TORCH = "the driver library is not available; only torch reports this GPU"
"""Why a working device has no telemetry."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that makes a device or one of its readings unavailable.

    Attributes:
        what: What happened.
        value: The value seen, such as the loader's message, a version or a path.
        fix: What to do about it.
        exit_code: 3 if a GPU is present but cannot be used; 0 if there is none or a run can continue.
        backend: The backend that has the problem, or ``torch``.
        device_index: The affected device; None if the entire backend is affected.
        torch_may_know: Whether only the driver library is affected, so that torch may still use the GPU.
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
    """A listed device can no longer be read.

    Attributes:
        fault: ``gpu_lost``, ``reset_required``, ``driver_hung`` or ``driver_closed``.
    """

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """A device's current state and its limits on this machine. A value is None if unknown.

    Attributes:
        memory_used_bytes: As the driver reports it; some drivers include their own reserve.
        memory_in_use_bytes: Without the driver's reserve; None if the driver cannot separate the two.
        pcie_generation_card: The highest generation that the card supports, in any slot.
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
    """The parts of the machine and its software that affect a measurement, without host or user names."""

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
    """Every device of this machine; ``states[i]`` is the state of ``devices[i]``, or None if unknown."""

    devices: tuple[DeviceProfile, ...]
    host: Host
    problems: tuple[Problem, ...]
    states: tuple[DeviceState | None, ...] = ()

    def __repr__(self) -> str:
        """Return the names of the first devices, and the problems."""
        names = [shown(device.name or device.backend, 60) for device in self.devices[:_DEVICES_IN_REPR]]
        more = ["..."] if len(self.devices) > len(names) else []
        problems = "".join(f"\n  {shown(problem.what, 100)}" for problem in self.problems[:_DEVICES_IN_REPR])
        listed = ", ".join([*names, *more])
        return bounded(f"<ProbeReport: {count(len(self.devices), 'device')}: {listed}{problems}>")

    def _repr_html_(self) -> str:
        problems = "".join(f"; {problem.what}" for problem in self.problems[:_DEVICES_IN_REPR])
        rows = [
            (device.name or device.backend, device.architecture or UNKNOWN, format_bytes(device.memory_bytes))
            for device in self.devices
        ]
        title = f"{count(len(self.devices), 'device')}{problems}"
        return html_table(title, ("device", "architecture", "memory"), rows)


class BackendReport(msgspec.Struct, frozen=True, kw_only=True):
    """The devices and problems that one backend found."""

    devices: tuple[DeviceProfile, ...] = ()
    states: tuple[DeviceState | None, ...] = ()
    problems: tuple[Problem, ...] = ()
    library: str | None = None
    library_version: str | None = None


def unusable(problems: Iterable[Problem]) -> dict[int, str]:
    """Return the reason for each device of this machine that cannot be used, by index."""
    return {p.device_index: p.line() for p in problems if p.device_index is not None and p.exit_code}


class Backend:
    """A kind of device; a backend of another package must have these members.

    Attributes:
        name: The value of ``DeviceProfile.backend``.
    """

    name: str

    def devices(self) -> BackendReport:
        """List the devices that this backend's driver reports; without a driver, there are none."""
        raise NotImplementedError

    def open_readings(self, device: DeviceProfile) -> Readings:
        """Open the telemetry of one device; this default reports nothing.

        Raises:
            DeviceGoneError: If the driver no longer lists the device.
        """
        del device
        return Readings()


class Readings:
    """The telemetry of one device, for a ``with`` block. A value that the device does not report is None.

    This base class reports nothing; it is used for a CPU, and for a GPU without a usable driver library.
    """

    @property
    def source(self) -> str:
        """Where values come from: "nvml", "amdsmi", "none", or "hung" after the driver stopped answering."""
        return "none"

    @property
    def fault(self) -> str | None:
        """``gpu_lost`` or ``reset_required`` if the driver reports that fault, else None."""
        return None

    def sample(self) -> Reading:
        """Read clocks, power, temperature, utilization, memory, clock event reasons and idleness."""
        return Reading()

    def held_clocks_s(self) -> dict[str, float]:
        """Read for how long each policy has held the clocks down [s]; only differences mean anything.

        The keys are power, thermal, sync_boost, board_limit, low_utilization and reliability, where reported.
        """
        return {}

    def energy_j(self) -> float | None:
        """Read the device's energy counter [J]; only differences mean anything."""
        return None

    def compute_pids(self) -> tuple[int, ...] | None:
        """List the ids of the processes that compute on the device.

        Most containers hide other processes, so an empty list proves nothing.
        """
        return None

    def memory_in_use_bytes(self) -> int | None:
        """Read memory in use without the driver's own reserve [B]; None if the two cannot be separated."""
        return None

    def ecc_uncorrected(self) -> int | None:
        """Read the number of uncorrected memory errors since the driver was loaded."""
        return None

    def compute_mode(self) -> str | None:
        """Read the compute mode, which says who may use the device: for example default or prohibited."""
        return None

    def close(self) -> None:
        """Release the driver."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


_SALT_BYTES = 32
_ID_DIGITS = 16


def device_id(profile: DeviceProfile) -> str | None:
    """Return an id that only this user can link to the device: a salted hash of its UUID.

    Without a UUID, name and PCI bus id are hashed. The salt is random and stored in the user's data folder.
    None if the salt cannot be stored, because a new one would give this device another id next time.
    """
    known = None if uuid_is_blank(profile.uuid) else profile.uuid
    identity = known or "|".join((profile.backend, profile.name or "", profile.pci_bus_id or ""))
    salt = _salt(user_data() / "device-salt")
    return None if salt is None else hashlib.sha256(salt + identity.encode()).hexdigest()[:_ID_DIGITS]


def storable(profile: DeviceProfile) -> DeviceProfile:
    """Return the profile for a stored run, with ``device_id`` instead of the UUID."""
    return msgspec.structs.replace(profile, uuid=None, device_id=device_id(profile))


def child_environment(*profiles: DeviceProfile) -> dict[str, str]:
    """Return variables that restrict a child process to these devices: by UUID, else by index in PCI order.

    Other vendors' devices are not restricted, nor is a group in which a device has neither UUID nor index.
    """
    if not profiles[0].is_nvidia:
        return {}
    visible = [p.index if uuid_is_blank(p.uuid) else p.uuid for p in profiles]
    chosen = {} if None in visible else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, visible))}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | chosen


def uuid_is_blank(uuid: str | None) -> bool:
    """Return whether a UUID is missing, or all zeros as on some virtual machines."""
    return uuid is None or not _digits(uuid).strip("0")


def check_same_device(profile: DeviceProfile, seen: DeviceProfile) -> tuple[Finding, ...]:
    """Check that CUDA opened the device that the driver described. Unknown values are ignored.

    Args:
        profile: From the driver library.
        seen: From torch; its UUID may lack the prefix ``GPU-``, and its PCI bus id may have any number of
            leading zeros.

    Returns:
        ``UUID_ALL_ZEROS``, with what was matched instead, if the driver's UUID is all zeros; else nothing.

    Raises:
        NoDeviceError: If they differ, because telemetry would come from another GPU.
    """
    matched = matched_by(profile, seen)
    if matched == "UUID":
        _must_agree("UUID", _digits(profile.uuid), _digits(seen.uuid))
    _must_agree("PCI bus id", bus_id(profile.pci_bus_id), bus_id(seen.pci_bus_id))
    _must_agree("name", _normal(profile.name), _normal(seen.name))
    _must_agree("SM count", profile.sm_count, seen.sm_count)
    if profile.uuid is None or not uuid_is_blank(profile.uuid):
        return ()
    value = bus_id(profile.pci_bus_id) if matched == "PCI bus id" else f"by {matched}"
    return (Finding(kind=FindingKind.UUID_ALL_ZEROS, value=value),)


def matched_by(profile: DeviceProfile, seen: DeviceProfile) -> Identity:
    """Return the identifier by which a device that passes ``check_same_device`` was matched."""
    is_slice = (profile.uuid or "").startswith("MIG-")  # some CUDA releases report the card's UUID instead
    if not is_slice and not uuid_is_blank(profile.uuid) and not uuid_is_blank(seen.uuid):
        return "UUID"
    if bus_id(profile.pci_bus_id) and bus_id(seen.pci_bus_id):
        return "PCI bus id"
    return "name and SM count only"


def in_torch(properties: Any) -> DeviceProfile:
    """Convert torch's device properties to a profile; a value that this torch does not report is None."""
    uuid, bus = (getattr(properties, name, None) for name in ("uuid", "pci_bus_id"))
    domain, device = (getattr(properties, f"pci_{name}_id", 0) for name in ("domain", "device"))
    return DeviceProfile(
        backend="cuda",
        name=properties.name,
        uuid=None if uuid is None else str(uuid),
        pci_bus_id=f"{domain:04x}:{bus:02x}:{device:02x}.0" if isinstance(bus, int) else None,
        architecture=getattr(properties, "gcnArchName", "").partition(":")[0] or None,
        compute_capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
    )


def bus_id(text: str | None) -> str | None:
    """Return a PCI bus id in its normal form, such as ``0000:00:06.0``; None if unknown or invalid.

    >>> bus_id("00000000:00:06.0"), bus_id("0000:0A:00"), bus_id(None)
    ('0000:00:06.0', '0000:0a:00.0', None)
    """
    found = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)(?:\.([0-7]))?", (text or "").lower())
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or 0}"


def _must_agree(what: str, ours: str | int | None, theirs: str | int | None) -> None:
    if ours is not None and theirs is not None and ours != theirs:
        raise NoDeviceError(
            f"torch and the driver disagree on the {what} of the device (torch {theirs}, driver {ours}): "
            "telemetry would come from another GPU",
            fix="name the GPU by its UUID with --device, and unset CUDA_VISIBLE_DEVICES and "
            "HIP_VISIBLE_DEVICES",
        )


def _digits(uuid: str | None) -> str:
    return re.sub(r"^(gpu|mig)-", "", (uuid or "").lower()).replace("-", "")


def _normal(name: str | None) -> str | None:
    return None if name is None else names.normalize(name).removeprefix("nvidia ")


@cache
def _salt(file: Path) -> bytes | None:
    try:
        if file.exists() and len(salt := read_bytes(file, KIB, follow_links=True)) == _SALT_BYTES:
            return salt
        salt = secrets.token_bytes(_SALT_BYTES)
        write_file(file, salt, mode=0o600)
    except (MisuseError, StorageError, OSError):
        return None
    return salt
