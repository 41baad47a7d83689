"""Which devices CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES on AMD) leaves, in which order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpubench.errors import MisuseError
from gpubench.models import DeviceProfile

CUDA_VARIABLE, HIP_VARIABLE = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


def visible_devices(
    devices: Sequence[DeviceProfile], environment: Mapping[str, str], variable: str = CUDA_VARIABLE
) -> tuple[DeviceProfile, ...]:
    """The devices that the variable leaves, in its order.

    CUDA itself stops silently at the first entry it does not know; here that is an error, because a
    measurement of fewer or other devices than were asked for is no answer.

    Raises:
        MisuseError: If an entry is unknown, ambiguous, or names a device twice.
    """
    text = environment.get(variable)
    if text is None:
        return tuple(devices)
    if not text.strip():
        return ()
    chosen: list[DeviceProfile] = []
    for word in (entry.strip() for entry in text.split(",")):
        if re.fullmatch(r"-\d+", word):  # CUDA ends the list here
            break
        device = _entry(word, devices, environment, variable)
        if device in chosen:
            raise MisuseError(f"{variable}={text!r} names one GPU twice; name each GPU once")
        chosen.append(device)
    return tuple(chosen)


def by_uuid(wanted: str, devices: Sequence[DeviceProfile]) -> list[DeviceProfile]:
    """The devices whose UUID is this, or else begins with it."""
    word = wanted.lower()
    if not re.fullmatch(r"(gpu|mig)-[0-9a-f-]*[0-9a-f][0-9a-f-]*", word):
        return []
    exact = [d for d in devices if (d.uuid or "").lower() == word]
    return exact or [d for d in devices if (d.uuid or "").lower().startswith(word)]


def _entry(
    word: str, devices: Sequence[DeviceProfile], environment: Mapping[str, str], variable: str
) -> DeviceProfile:
    if re.fullmatch(r"\d+", word):
        if variable == CUDA_VARIABLE:
            _order_is_known(word, devices, environment)
        matches = [d for d in devices if d.index == int(word)][:1]  # of a cut card CUDA takes the first slice
    else:
        matches = by_uuid(word, devices)
    if len(matches) == 1:
        return matches[0]
    problem = "fits several GPUs" if matches else "names no GPU of this machine"
    raise MisuseError(f"{variable}: {word!r} {problem}; give indices or UUIDs as gpubench probe lists them")


def _order_is_known(word: str, devices: Sequence[DeviceProfile], environment: Mapping[str, str]) -> None:
    """CUDA counts the fastest GPU first unless told otherwise; the driver counts by PCI bus."""
    kinds = {d.index: d.name for d in devices}  # of a cut card one slice stands for all
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(set(kinds.values())) < 2:
        return
    raise MisuseError(
        f"CUDA_VISIBLE_DEVICES={word} counts the fastest GPU first, and the GPUs here differ; set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID"
    )
