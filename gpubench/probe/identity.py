"""Which device this is: without telling strangers, and without mistaking it for its neighbor."""

from __future__ import annotations

import hashlib
import re
import secrets
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpubench import names
from gpubench.errors import MisuseError, NoDeviceError, StorageError
from gpubench.files import read_bytes, write_file
from gpubench.folders import user_data
from gpubench.models import DeviceProfile, Finding, FindingKind, Identity
from gpubench.units import KIB

_SALT_BYTES = 32
_ID_DIGITS = 16


def device_id(profile: DeviceProfile) -> str:
    """A name for this device that only this user can link to it: a salted hash of its UUID.

    Where there is no UUID to go by, name and PCI bus id stand in. The salt is random and stays in the
    user's data folder; where that folder cannot be written, it holds for this process only.
    """
    known = None if uuid_is_blank(profile.uuid) else profile.uuid
    identity = known or "|".join((profile.backend, profile.name or "", profile.pci_bus_id or ""))
    salted = hashlib.sha256(_salt(user_data() / "device-salt") + identity.encode())
    return salted.hexdigest()[:_ID_DIGITS]


def storable(profile: DeviceProfile) -> DeviceProfile:
    """The profile as a stored run holds it: ``device_id`` in place of the UUID."""
    return msgspec.structs.replace(profile, uuid=None, device_id=device_id(profile))


def child_environment(*profiles: DeviceProfile) -> dict[str, str]:
    """Variables that leave a child process these devices alone to see: by UUID, else by place in PCI order.

    A device with neither leaves the choice of devices as it is.
    """
    if not profiles[0].is_nvidia:
        return {}
    visible = [p.index if uuid_is_blank(p.uuid) else p.uuid for p in profiles]
    chosen = {} if None in visible else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, visible))}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | chosen


def uuid_is_blank(uuid: str | None) -> bool:
    """Whether a UUID tells nothing: absent, or all zeros as some virtual machines show it."""
    return uuid is None or not _digits(uuid).strip("0")


def check_same_device(
    profile: DeviceProfile,
    *,
    name: str | None,
    uuid: str | None,
    sm_count: int | None,
    pci_bus_id: str | None,
) -> tuple[Finding, ...]:
    """Check that the device CUDA has opened is the one the driver described. Unknown values are passed over.

    Args:
        profile: From the driver library.
        name: CUDA's name of the device.
        uuid: CUDA's UUID, with or without the prefix ``GPU-``.
        sm_count: CUDA's count of multiprocessors.
        pci_bus_id: ``domain:bus:device.function`` in hexadecimal, any number of leading zeros.

    Returns:
        ``UUID_ALL_ZEROS`` with the PCI bus id where the UUID could not be used, else nothing.

    Raises:
        NoDeviceError: If they differ: telemetry would be of another GPU.
    """
    matched = matched_by(profile, uuid=uuid, pci_bus_id=pci_bus_id)
    if matched == "UUID":
        _must_agree("UUID", _digits(profile.uuid), _digits(uuid))
    _must_agree("PCI bus id", bus_id(profile.pci_bus_id), bus_id(pci_bus_id))
    _must_agree("name", _normal(profile.name), _normal(name))
    _must_agree("SM count", profile.sm_count, sm_count)
    if profile.uuid is None or not uuid_is_blank(profile.uuid):
        return ()
    value = bus_id(profile.pci_bus_id) if matched == "PCI bus id" else f"by {matched}"
    return (Finding(kind=FindingKind.UUID_ALL_ZEROS, value=value),)


def matched_by(profile: DeviceProfile, *, uuid: str | None, pci_bus_id: str | None) -> Identity:
    """Say by what a device that passes ``check_same_device`` is known to be the driver's one."""
    is_slice = (profile.uuid or "").startswith("MIG-")  # CUDA releases differ in whose UUID they show
    if not is_slice and not uuid_is_blank(profile.uuid) and not uuid_is_blank(uuid):
        return "UUID"
    if bus_id(profile.pci_bus_id) and bus_id(pci_bus_id):
        return "PCI bus id"
    return "name and SM count only"


def told_by_torch(properties: Any) -> tuple[str | None, str | None]:
    """UUID and PCI bus id of a device by torch's properties of it, as far as this torch tells them."""
    uuid, bus = (getattr(properties, name, None) for name in ("uuid", "pci_bus_id"))
    place = None
    if isinstance(bus, int):
        domain, device = (getattr(properties, f"pci_{name}_id", 0) for name in ("domain", "device"))
        place = f"{domain:04x}:{bus:02x}:{device:02x}.0"
    return None if uuid is None else str(uuid), place


def bus_id(text: str | None) -> str | None:
    """A PCI bus id in one spelling, ``0000:00:06.0``; None if unknown or not one.

    >>> bus_id("00000000:00:06.0"), bus_id("0000:0A:00"), bus_id(None)
    ('0000:00:06.0', '0000:0a:00.0', None)
    """
    found = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)(?:\.([0-7]))?", (text or "").lower())
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or 0}"


def _must_agree(what: str, ours: str | int | None, theirs: str | int | None) -> None:
    if ours is None or theirs is None or ours == theirs:
        return
    raise NoDeviceError(
        f"torch and the driver disagree on the {what} of the device (torch {theirs}, driver {ours}): "
        "telemetry would be of another GPU",
        fix="name the GPU by its UUID with --device, and unset CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES",
    )


def _digits(uuid: str | None) -> str:
    return re.sub(r"^(gpu|mig)-", "", (uuid or "").lower()).replace("-", "")


def _normal(name: str | None) -> str | None:
    return None if name is None else names.normalize(name).removeprefix("nvidia ")


@cache
def _salt(file: Path) -> bytes:
    try:
        if file.exists() and len(salt := read_bytes(file, KIB, follow_links=True)) == _SALT_BYTES:
            return salt
        salt = secrets.token_bytes(_SALT_BYTES)
        write_file(file, salt, mode=0o600)
    except (MisuseError, StorageError, OSError):
        return secrets.token_bytes(_SALT_BYTES)
    return salt
