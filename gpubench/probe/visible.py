"""Which devices CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES on AMD) leaves, in which order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.units import plain

CUDA_VARIABLE, HIP_VARIABLE = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
_INDEX = re.compile(r"[0-9]{1,9}")
_NO_GPU_GIVEN = "nodevfiles"
"""What batch systems set for a job that asked for no GPU."""
_ALL_USABLE: Mapping[int, str] = {}


def visible_devices(
    devices: Sequence[DeviceProfile],
    environment: Mapping[str, str],
    variable: str = CUDA_VARIABLE,
    unusable: Mapping[int, str] = _ALL_USABLE,
) -> tuple[DeviceProfile, ...]:
    """The devices that the variable leaves, in its order.

    CUDA itself stops silently at the first entry it does not know; here that is an error, because a
    measurement of fewer or other devices than were asked for is no answer.

    Args:
        devices: Those that can be used.
        environment: Variables.
        variable: Whose entries are read.
        unusable: By index, why a device of this machine cannot be used.

    Raises:
        MisuseError: If an entry is unknown, ambiguous, or names a device twice.
        NoDeviceError: If it names one that cannot be used.
    """
    text = environment.get(variable)
    if text is None:
        return tuple(devices)
    if not text.strip() or given_none(environment, variable):
        return ()
    chosen: list[DeviceProfile] = []
    for word in (entry.strip() for entry in text.split(",")):
        if re.fullmatch(r"-\d+", word):  # CUDA ends the list here
            break
        if _INDEX.fullmatch(word) and int(word) in unusable:
            raise NoDeviceError(unusable[int(word)])
        device = _entry(word, devices, environment, variable)
        if device in chosen:
            raise MisuseError(f"{variable}={text!r} names one GPU twice; name each GPU once")
        chosen.append(device)
    return tuple(chosen)


def given_none(environment: Mapping[str, str], variable: str = CUDA_VARIABLE) -> bool:
    """Whether a batch system says in the variable that it gave this job no GPU."""
    return environment.get(variable, "").strip().lower() == _NO_GPU_GIVEN


def why_hidden(environment: Mapping[str, str]) -> str:
    """Why no NVIDIA GPU is visible, although one is here."""
    if given_none(environment):
        return f"{CUDA_VARIABLE}={environment[CUDA_VARIABLE].strip()} (the scheduler gave this job no GPU)"
    return f"{CUDA_VARIABLE} hides every GPU"


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
    if _INDEX.fullmatch(word):
        if variable == CUDA_VARIABLE:
            _order_is_known(word, devices, environment)
        matches = [d for d in devices if d.index == int(word)][:1]  # of a cut card CUDA takes the first slice
    else:
        matches = by_uuid(word, devices)
    if len(matches) == 1:
        return matches[0]
    problem = "fits several GPUs" if matches else f"names no GPU of this machine, which has {_here(devices)}"
    raise MisuseError(
        f"{variable}: {plain(word)!r} {problem}; give indices or UUIDs as gpubench probe lists them"
    )


def _here(devices: Sequence[DeviceProfile]) -> str:
    """GPU 0; GPUs 0 to 3; GPUs 0, 2, 3."""
    places = sorted({d.index for d in devices if d.index is not None})
    if len(places) == 1:
        return f"GPU {places[0]}"
    if places == list(range(places[0], places[-1] + 1)):
        return f"GPUs {places[0]} to {places[-1]}"
    return "GPUs " + ", ".join(map(str, places))


def _order_is_known(word: str, devices: Sequence[DeviceProfile], environment: Mapping[str, str]) -> None:
    """CUDA counts the fastest GPU first unless told otherwise; the driver counts by PCI bus."""
    kinds = {d.index: d.name for d in devices}  # of a cut card one slice stands for all
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(set(kinds.values())) < 2:
        return
    raise MisuseError(
        f"CUDA_VISIBLE_DEVICES={word} counts the fastest GPU first, and the GPUs here differ; set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID"
    )
