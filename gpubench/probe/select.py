"""Choose the device to measure: what ``--device`` means on this machine, with this torch."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe import amd, apple, cpu, nvidia
from gpubench.probe.backend import BackendReport
from gpubench.probe.torch_build import torch_problem
from gpubench.probe.visible import HIP_VARIABLE, by_uuid, visible_devices
from gpubench.specs import find_spec
from gpubench.units import plain

_OR_CPU = "or measure on the CPU with --device cpu"
_PLACE = re.compile(r"(cuda|rocm|mps)(?::(\d+))?")


def select_device(name: str = "auto") -> tuple[DeviceProfile, str | None]:
    """Return the device that ``--device`` names, and what the user should hear about the choice.

    Args:
        name: ``auto`` (the first usable GPU, else the CPU), ``cpu``, ``cuda``, ``cuda:N`` (the N-th
            visible GPU; without CUDA_VISIBLE_DEVICES that is the order of ``gpubench probe``), ``rocm``,
            ``mps``, a UUID or the start of one, or a key or name of the specification table.

    Raises:
        NoDeviceError: If a GPU is asked for and none is usable, or one is here but cannot be used.
        MisuseError: If the name, or CUDA_VISIBLE_DEVICES, names no device of this machine.
    """
    wanted = name.strip()
    if wanted.lower() == "cpu":
        return cpu.BACKEND.profile(), None
    _check_form(wanted)
    report = nvidia.BACKEND.devices()
    nvidias = visible_devices(report.devices, os.environ)
    if wanted.lower() == "auto":
        return _automatic(report, nvidias)
    others = () if nvidias else _others()
    kind = _PLACE.fullmatch(wanted.lower())
    if not (nvidias or others) or (kind and kind[1] == "cuda" and report.devices and not nvidias):
        raise NoDeviceError(_no_gpu(report))
    device = _named(wanted, nvidias or others)
    check_torch(device)
    return device, None


def check_torch(device: DeviceProfile) -> None:
    """Check, without importing it, that the installed torch can reach this GPU.

    Raises:
        NoDeviceError: If torch is missing, not built for this kind of GPU, or for a newer CUDA than the
            driver knows.
    """
    problem = torch_problem(device)
    if problem is not None:
        raise NoDeviceError(problem.line())


def _check_form(wanted: str) -> None:
    if not wanted:
        raise MisuseError("--device is empty; give auto, cpu, cuda, cuda:N, a UUID or a GPU's key")
    if re.fullmatch(r"-?\d+", wanted):
        raise MisuseError(f"--device {wanted}: write cuda:{wanted.lstrip('-')}")
    if re.match(r"(cuda|rocm|mps)\b", wanted.lower()) and not _PLACE.fullmatch(wanted.lower()):
        raise MisuseError(f"--device {wanted!r}: write cuda or cuda:N, N counted from 0")
    known_form = re.fullmatch(r"auto|(gpu|mig)-[0-9a-f-]+", wanted.lower()) or _PLACE.fullmatch(
        wanted.lower()
    )
    if not known_form and find_spec(wanted) is None:
        raise MisuseError(
            f"--device {plain(wanted)!r} is no device; give auto, cpu, cuda, cuda:N, a UUID or a GPU's key"
        )


def _others() -> tuple[DeviceProfile, ...]:
    """GPUs of other makers, as far as their own variable leaves them."""
    radeons = visible_devices(amd.BACKEND.devices().devices, os.environ, HIP_VARIABLE)
    return (*radeons, *apple.BACKEND.devices().devices)


def _automatic(report: BackendReport, nvidias: Sequence[DeviceProfile]) -> tuple[DeviceProfile, str | None]:
    if nvidias:
        check_torch(nvidias[0])
        hurt = [p.line() for p in report.problems]
        return nvidias[0], "; ".join(hurt) or None
    stopping = [p for p in report.problems if p.exit_code]
    if stopping and not report.devices:
        raise NoDeviceError(stopping[0].line())
    processor = cpu.BACKEND.profile()
    if report.devices:
        return processor, "CUDA_VISIBLE_DEVICES hides every GPU: measuring on the CPU"
    for device in (others := _others()):
        if torch_problem(device) is None:
            return device, None
    if others:  # often a small graphics unit beside the CPU: no reason to refuse, and none to be silent
        problem = torch_problem(others[0])
        return processor, f"{problem.what if problem else 'no usable GPU'}: measuring on the CPU"
    why = report.problems[0].what if report.problems else "no GPU found"
    return processor, f"{why}: measuring on the CPU"


def _no_gpu(report: BackendReport) -> str:
    if report.devices:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU; unset it, {_OR_CPU}"
    if report.problems:
        return report.problems[0].line()
    return f"no GPU found; check the driver, {_OR_CPU}"


def _named(wanted: str, visible: Sequence[DeviceProfile]) -> DeviceProfile:
    device = _match(wanted, visible)
    if device.backend == "rocm" and device != visible[0]:
        raise MisuseError(f"--device {wanted}: set HIP_VISIBLE_DEVICES={device.index} and give --device rocm")
    return device


def _match(wanted: str, visible: Sequence[DeviceProfile]) -> DeviceProfile:
    kind = visible[0].backend
    if found := _PLACE.fullmatch(wanted.lower()):
        place = int(found[2] or 0)
        fits = found[1] == kind or (found[1] == "cuda" and kind == "rocm")  # torch calls both cuda
        if not fits or place >= len(visible):
            raise NoDeviceError(
                f"--device {wanted}: there is no such GPU, {_places(kind, len(visible))}; see gpubench probe"
            )
        return visible[place]
    matches = by_uuid(wanted, visible) or _by_key(wanted, visible)
    if len(matches) == 1:
        return matches[0]
    here = ", ".join(f"{kind}:{n} {plain(d.name or '')}" for n, d in enumerate(visible))
    if matches:
        raise MisuseError(f"--device {wanted!r} fits {len(matches)} GPUs here; name one of: {here}")
    raise MisuseError(f"--device {wanted!r} names no device here; give cpu or one of: {here}")


def _places(kind: str, count: int) -> str:
    return f"visible is {kind}:0 alone" if count == 1 else f"visible are {kind}:0 to {kind}:{count - 1}"


def _by_key(wanted: str, devices: Sequence[DeviceProfile]) -> list[DeviceProfile]:
    spec = find_spec(wanted)
    key = None if spec is None else spec.key
    return [d for d in devices if key is not None and d.gpu_key == key]
