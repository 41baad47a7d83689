"""Choose the device to measure: what ``--device`` means, and what CUDA_VISIBLE_DEVICES leaves."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe import cpu, nvidia
from gpubench.probe.backend import BackendReport
from gpubench.probe.torch_build import torch_problem
from gpubench.specs import find_spec
from gpubench.units import plain

_OR_CPU = "or measure on the CPU with --device cpu"


def select_device(name: str = "auto") -> tuple[DeviceProfile, str | None]:
    """Return the device that ``--device`` names, and what the user should hear about the choice.

    Args:
        name: ``auto`` (the first usable GPU, else the CPU), ``cpu``, ``cuda``, ``cuda:N`` (the N-th
            visible GPU; without CUDA_VISIBLE_DEVICES that is the order of ``gpubench probe``), a UUID or
            the start of one, or a key or name of the specification table.

    Raises:
        NoDeviceError: If a GPU is asked for and none is usable, or one is here but cannot be used.
        MisuseError: If the name, or CUDA_VISIBLE_DEVICES, names no device of this machine.
    """
    wanted = name.strip()
    if wanted.lower() == "cpu":
        return cpu.BACKEND.profile(), None
    _check_form(wanted)
    report = nvidia.BACKEND.devices()
    visible = visible_devices(report.devices, os.environ)
    if wanted.lower() == "auto":
        return _automatic(report, visible)
    if not visible:
        raise NoDeviceError(_no_gpu(report))
    device = _named(wanted, visible)
    check_torch(device)
    return device, None


def visible_devices(
    devices: Sequence[DeviceProfile], environment: Mapping[str, str]
) -> tuple[DeviceProfile, ...]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in its order.

    CUDA itself stops silently at the first entry it does not know; here that is an error, because a
    measurement of fewer or other devices than were asked for is no answer.

    Raises:
        MisuseError: If an entry is unknown, ambiguous, or names a device twice.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return tuple(devices)
    chosen: list[DeviceProfile] = []
    for entry in text.split(","):
        word = entry.strip()
        if not word and len(text.split(",")) == 1:
            break
        if re.fullmatch(r"-\d+", word):  # CUDA ends the list here
            break
        device = _visible_entry(word, devices, environment)
        if device in chosen:
            raise MisuseError(f"CUDA_VISIBLE_DEVICES={text!r} names one GPU twice; name each GPU once")
        chosen.append(device)
    return tuple(chosen)


def check_torch(device: DeviceProfile) -> None:
    """Check, without importing it, that the installed torch can reach this GPU.

    Raises:
        NoDeviceError: If torch is missing, built without CUDA, or for a newer CUDA than the driver knows.
    """
    problem = torch_problem(device)
    if problem is not None:
        raise NoDeviceError(problem.line())


def _check_form(wanted: str) -> None:
    if not wanted:
        raise MisuseError("--device is empty; give auto, cpu, cuda, cuda:N, a UUID or a GPU's key")
    if re.fullmatch(r"-?\d+", wanted):
        raise MisuseError(f"--device {wanted}: write cuda:{wanted.lstrip('-')}")
    if wanted.lower().startswith("cuda") and not re.fullmatch(r"cuda(:\d+)?", wanted.lower()):
        raise MisuseError(f"--device {wanted!r}: write cuda or cuda:N, N counted from 0")
    known_form = re.fullmatch(r"auto|cuda(:\d+)?|(gpu|mig)-[0-9a-f-]+", wanted.lower())
    if not known_form and find_spec(wanted) is None:
        raise MisuseError(
            f"--device {plain(wanted)!r} is no device; give auto, cpu, cuda, cuda:N, a UUID or a GPU's key"
        )


def _automatic(report: BackendReport, visible: Sequence[DeviceProfile]) -> tuple[DeviceProfile, str | None]:
    if visible:
        check_torch(visible[0])
        hurt = [p.line() for p in report.problems]
        return visible[0], "; ".join(hurt) or None
    stopping = [p for p in report.problems if p.exit_code]
    if stopping and not report.devices:
        raise NoDeviceError(stopping[0].line())
    processor = cpu.BACKEND.profile()
    if report.devices:
        return processor, "CUDA_VISIBLE_DEVICES hides every GPU: measuring on the CPU"
    why = report.problems[0].what if report.problems else "no GPU found"
    return processor, f"{why}: measuring on the CPU"


def _no_gpu(report: BackendReport) -> str:
    if report.devices:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU; unset it, {_OR_CPU}"
    return (
        report.problems[0].line() if report.problems else f"no NVIDIA GPU found; check the driver, {_OR_CPU}"
    )


def _named(wanted: str, visible: Sequence[DeviceProfile]) -> DeviceProfile:
    if found := re.fullmatch(r"cuda(?::(\d+))?", wanted.lower()):
        place = int(found.group(1) or 0)
        if place >= len(visible):
            raise NoDeviceError(
                f"--device {wanted}: there is no such GPU, visible are cuda:0 to cuda:{len(visible) - 1}; "
                "see gpubench probe"
            )
        return visible[place]
    matches = _by_uuid(wanted, visible) or _by_key(wanted, visible)
    if len(matches) == 1:
        return matches[0]
    here = ", ".join(f"cuda:{n} {plain(d.name or '')}" for n, d in enumerate(visible))
    if matches:
        raise MisuseError(f"--device {wanted!r} fits {len(matches)} GPUs here; name one of: {here}")
    raise MisuseError(f"--device {wanted!r} names no device here; give cpu or one of: {here}")


def _by_uuid(wanted: str, devices: Sequence[DeviceProfile]) -> list[DeviceProfile]:
    word = wanted.lower()
    if not re.fullmatch(r"(gpu|mig)-[0-9a-f-]*[0-9a-f][0-9a-f-]*", word):
        return []
    exact = [d for d in devices if (d.uuid or "").lower() == word]
    return exact or [d for d in devices if (d.uuid or "").lower().startswith(word)]


def _by_key(wanted: str, devices: Sequence[DeviceProfile]) -> list[DeviceProfile]:
    spec = find_spec(wanted)
    key = None if spec is None else spec.key
    return [d for d in devices if key is not None and d.gpu_key == key]


def _visible_entry(
    word: str, devices: Sequence[DeviceProfile], environment: Mapping[str, str]
) -> DeviceProfile:
    if re.fullmatch(r"\d+", word):
        _order_is_known(word, devices, environment)
        matches = [d for d in devices if d.index == int(word)][:1]  # of a cut card CUDA takes the first slice
    else:
        matches = _by_uuid(word, devices)
    if len(matches) == 1:
        return matches[0]
    problem = "fits several GPUs" if matches else "names no GPU of this machine"
    raise MisuseError(
        f"CUDA_VISIBLE_DEVICES: {word!r} {problem}; give indices or UUIDs as gpubench probe lists them"
    )


def _order_is_known(word: str, devices: Sequence[DeviceProfile], environment: Mapping[str, str]) -> None:
    """CUDA counts the fastest GPU first unless told otherwise; the driver counts by PCI bus."""
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({d.name for d in devices}) < 2:
        return
    raise MisuseError(
        f"CUDA_VISIBLE_DEVICES={word} counts the fastest GPU first, and the GPUs here differ; set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID"
    )
