"""Chooses the device that ``--device`` names.

CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES on AMD) is applied first, because it selects and orders devices.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe import amd, nvidia, opencl
from gpubench.probe.backend import OR_CPU, BackendReport, unusable
from gpubench.probe.host import CPU, nvidia_nodes, usable_threads
from gpubench.probe.probe import load_backends
from gpubench.probe.torch_view import seen_by_torch, torch_build, torch_problem
from gpubench.specs import find_spec
from gpubench.units import plain

CUDA_VARIABLE, HIP_VARIABLE = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
_INDEX = re.compile(r"[0-9]{1,9}")
# The value that batch systems set for a job that requested no GPU.
_NO_GPU_GIVEN = "nodevfiles"


def select_device(name: str = "auto") -> tuple[DeviceProfile, str | None]:
    """Return the device named by ``--device``, and a message about the choice, if any.

    Args:
        name: ``auto`` (the first usable GPU, else the CPU), ``cpu``, ``cuda``, ``cuda:N`` (visible
            GPU N, counted from 0; without CUDA_VISIBLE_DEVICES the order is that of ``gpubench probe``),
            ``rocm``, ``mps``, ``opencl:N`` (only micro-benchmarks), a UUID or the start of one, or a key or
            name from the specification table.

    Raises:
        NoDeviceError: If a requested GPU is missing or cannot be used, or if ``auto`` finds an NVIDIA GPU
            that cannot be used; for GPUs of other vendors it falls back to the CPU.
        MisuseError: If the name is invalid or matches no device or several, if CUDA_VISIBLE_DEVICES or
            HIP_VISIBLE_DEVICES is invalid, or if an AMD GPU other than the first visible one is named.
    """
    wanted = name.strip()
    if wanted.lower() == CPU.name:
        return CPU.profile(), None
    check_form(wanted)
    place = _place(wanted)
    if place is not None and place["backend"] == opencl.NAME:
        return opencl.BACKEND.device(int(place["index"] or 0)), None
    report = nvidia.BACKEND.devices()
    if (only_in_torch := _by_torch(report, wanted.lower())) is not None:
        return only_in_torch
    # CUDA_VISIBLE_DEVICES, often set for an entire cluster, is ignored on a machine without NVIDIA GPUs.
    broken = unusable(report.problems)
    nvidias = visible_devices(report.devices, os.environ, unusable=broken) if report.devices else ()
    if wanted.lower() == "auto":
        return _automatic(report, nvidias)
    gpus = (*nvidias, *_others())
    hidden = report.devices and not nvidias and place and place["backend"] == nvidia.BACKEND.name
    if not gpus or hidden:
        raise NoDeviceError(_no_gpu(report))
    _check_place(place, broken)
    device = _named(wanted, gpus)
    first = next(d for d in gpus if d.backend == device.backend)
    if device.backend == amd.BACKEND.name and device != first:
        raise MisuseError(
            f"--device {wanted}: set {HIP_VARIABLE}={device.index} and give --device {device.backend}"
        )
    check_torch(device)
    return device, _problem_lines(report) if device.backend == nvidia.BACKEND.name else None


def select_peers(device: DeviceProfile, count: int) -> tuple[DeviceProfile, ...]:
    """Return the other devices of a job on ``count`` devices.

    GPUs of the same model come first; otherwise the order is that of ``visible_devices``. If this machine has
    too few of that model, other NVIDIA GPUs are added, and a finding in each row says that the slowest GPU
    limits the speed. On a CPU, every process gets the same device.

    Args:
        device: The first device, from ``select_device``.
        count: Total number of GPUs; 1 needs no others.

    Raises:
        MisuseError: If several devices of this kind cannot work together here.
        NoDeviceError: If this machine has too few devices.
    """
    if count == 1:
        return ()
    name = plain(device.name or device.backend)
    if device.is_cpu:
        threads = usable_threads() or 1
        if count > threads:
            raise NoDeviceError(
                f"--gpus {count} on a CPU starts {count} processes, but the number of usable processor "
                f"threads is {threads}: give at most --gpus {threads}"
            )
        return (device,) * (count - 1)
    if device.backend != nvidia.BACKEND.name or device.mig_enabled:
        what = "a MIG slice" if device.mig_enabled and device.is_nvidia else name
        raise MisuseError(f"--gpus {count} needs whole NVIDIA GPUs; this device is {what}")
    report = nvidia.BACKEND.devices()
    visible = visible_devices(report.devices, os.environ, unusable=unusable(report.problems))
    whole = [d for d in visible if d.index != device.index and not d.mig_enabled]
    others = sorted(whole, key=lambda other: not _is_same_model(other, device))
    if len(others) < count - 1:
        kinds = "" if all(_is_same_model(d, device) for d in others) else " and others"
        raise NoDeviceError(
            f"--gpus {count}: usable here: {len(others) + 1} ({name}{kinds}); see gpubench probe"
        )
    return tuple(others[: count - 1])


def _is_same_model(one: DeviceProfile, other: DeviceProfile) -> bool:
    return (one.name, one.memory_bytes) == (other.name, other.memory_bytes)


def check_torch(device: DeviceProfile) -> None:
    """Check, without importing it, that the installed torch can reach this GPU.

    Raises:
        NoDeviceError: If torch is missing, not built for this kind of GPU, or built for a newer CUDA than
            the driver supports.
    """
    problem = torch_problem(device)
    if problem is not None:
        raise NoDeviceError(problem.line())


def check_form(name: str) -> None:
    """Reject a name that is invalid on every machine, without querying a driver.

    Raises:
        MisuseError: For an empty name, a bare number, or a name of no known form.
    """
    if not name:
        raise MisuseError("--device is empty; give auto, cpu, cuda, cuda:N, a UUID or a GPU's key")
    if re.fullmatch(r"-?\d+", name):
        raise MisuseError(f"--device {name}: write cuda:{name.lstrip('-')}")
    known = re.fullmatch(r"auto|cpu|(gpu|mig)-[0-9a-f-]+", name.lower()) or _place(name)
    if not known and find_spec(name) is None:
        raise MisuseError(
            f"--device {plain(name)!r} is not a device; give auto, cpu, cuda, cuda:N, a UUID or a GPU's key"
        )


def _place(name: str) -> re.Match[str] | None:
    # Match a backend's name, and an index if there is one, counted from 0: cuda, cuda:1.
    kinds = "|".join(re.escape(kind) for kind in load_backends().found if kind != CPU.name)
    return re.fullmatch(rf"(?P<backend>{kinds})(?::(?P<index>[0-9]{{1,9}}))?", name.lower())


def _by_torch(report: BackendReport, wanted: str) -> tuple[DeviceProfile, str] | None:
    """Return the first GPU that torch can use although its driver library cannot be queried, and say why.

    Starting torch takes seconds, so ``auto`` does it only if the machine shows signs of a GPU.
    """
    build = None if report.devices else torch_build()
    if build is None or not (build.cuda or build.hip):
        return None
    own = nvidia.BACKEND.name if build.cuda else amd.BACKEND.name
    asked = wanted in {nvidia.BACKEND.name, f"{nvidia.BACKEND.name}:0", own, f"{own}:0"}
    if not asked and (wanted != "auto" or (build.cuda and not any(nvidia_nodes()))):
        return None
    problems = report.problems if build.cuda else amd.BACKEND.devices().problems
    why = next((problem.what for problem in problems if problem.torch_may_know), None)
    if why is None or (seen := seen_by_torch()) is None:
        return None
    return seen, f"{why}: {plain(seen.name or 'the GPU')} is timed without telemetry"


def _others() -> tuple[DeviceProfile, ...]:
    """Return other vendors' GPUs that can train; for AMD, those that HIP_VISIBLE_DEVICES makes visible."""
    found = load_backends().found
    separate = {nvidia.BACKEND.name, CPU.name, opencl.NAME}
    listed = {name: b.devices().devices for name, b in found.items() if name not in separate}
    if of_amd := listed[amd.BACKEND.name]:
        listed[amd.BACKEND.name] = visible_devices(of_amd, os.environ, HIP_VARIABLE)
    return tuple(device for devices in listed.values() for device in devices)


def _automatic(report: BackendReport, nvidias: Sequence[DeviceProfile]) -> tuple[DeviceProfile, str | None]:
    if nvidias:
        check_torch(nvidias[0])
        return nvidias[0], _problem_lines(report)
    stopping = [p for p in report.problems if p.exit_code]
    if stopping and not report.devices:
        raise NoDeviceError(stopping[0].line())
    processor = CPU.profile()
    if report.devices:
        return processor, f"{why_hidden(os.environ)}: measuring on the CPU"
    for device in (others := _others()):
        if torch_problem(device) is None:
            return device, None
    if others:  # often a small integrated GPU: measure the CPU, and say why
        problem = torch_problem(others[0])
        return processor, f"{problem.what if problem else 'no usable GPU'}: measuring on the CPU"
    problems = [*amd.BACKEND.devices().problems, *report.problems]
    why = problems[0].what if problems else "no GPU found"
    return processor, f"{why}: measuring on the CPU"


def _problem_lines(report: BackendReport) -> str | None:
    return "; ".join(problem.line() for problem in report.problems) or None


def _check_place(place: re.Match[str] | None, broken: Mapping[int, str]) -> None:
    """Reject an index if a GPU at or before it cannot be used, because the indices after that GPU shift.

    With CUDA_VISIBLE_DEVICES there is no shift, because indices count the GPUs that it names.
    """
    if place is None or place["backend"] != nvidia.BACKEND.name or place["index"] is None:
        return
    before = (line for index, line in sorted(broken.items()) if index <= int(place["index"]))
    if CUDA_VARIABLE not in os.environ and (why := next(before, None)) is not None:
        raise NoDeviceError(f"{why}; name another GPU by its UUID, see gpubench probe")


def _no_gpu(report: BackendReport) -> str:
    hidden = os.environ.get(CUDA_VARIABLE, "")
    if report.devices and given_none(os.environ):
        return (
            f"{CUDA_VARIABLE}={hidden.strip()}: the scheduler gave this job no GPU; ask it for one, {OR_CPU}"
        )
    if report.devices:
        return f"{CUDA_VARIABLE}={hidden!r} hides every GPU; unset it, {OR_CPU}"
    if report.problems:
        return report.problems[0].line()
    return f"no GPU found; check the driver, {OR_CPU}"


def _named(wanted: str, visible: Sequence[DeviceProfile]) -> DeviceProfile:
    """Return the device that an index, a UUID, a key or a name refers to."""
    if place := _place(wanted):
        by_torch = [d for d in visible if d.torch_type == place["backend"]]
        fitting = [d for d in visible if d.backend == place["backend"]] or by_torch
        index = int(place["index"] or 0)
        if index >= len(fitting):
            here = ", ".join(_places(fitting or visible))
            raise NoDeviceError(f"--device {wanted}: no such GPU, found {here}; see gpubench probe")
        return fitting[index]
    matches = _by_uuid(wanted, visible)
    if not matches and (spec := find_spec(wanted)) is not None:
        matches = [d for d in visible if d.gpu_key == spec.key]
    if len(matches) == 1:
        return matches[0]
    here = ", ".join(f"{place} {plain(d.name or '')}" for place, d in _places(visible).items())
    if matches:
        raise MisuseError(f"--device {wanted!r} matches {len(matches)} GPUs here; name one of: {here}")
    raise MisuseError(f"--device {wanted!r} names no device here; give cpu or one of: {here}")


def _places(visible: Sequence[DeviceProfile]) -> dict[str, DeviceProfile]:
    # Name each device by its index within its backend: cuda:0, cuda:1.
    backends = dict.fromkeys(device.backend for device in visible)
    of_backend = [[device for device in visible if device.backend == name] for name in backends]
    return {f"{device.backend}:{n}": device for found in of_backend for n, device in enumerate(found)}


# --- visible devices ------------------------------------------------------------------------------------


def visible_devices(
    devices: Sequence[DeviceProfile],
    environment: Mapping[str, str],
    variable: str = CUDA_VARIABLE,
    unusable: Mapping[int, str] | None = None,
) -> tuple[DeviceProfile, ...]:
    """Return the devices that the variable makes visible, in its order.

    CUDA silently stops at the first unknown entry. Here that is an error, so a run never measures fewer
    devices than requested, or different ones.

    Args:
        devices: The usable devices.
        environment: Environment variables.
        variable: Name of the variable to read.
        unusable: Why a device of this machine cannot be used, by index.

    Raises:
        MisuseError: If an entry is unknown or ambiguous, or repeats a device.
        NoDeviceError: If an entry names a device that cannot be used.
    """
    text = environment.get(variable)
    if text is None:
        return tuple(devices)
    if not text.strip() or given_none(environment, variable):
        return ()
    chosen: list[DeviceProfile] = []
    entries = text.rstrip(", ").split(",")  # CUDA accepts "0,1," too
    for word in map(str.strip, entries):
        if re.fullmatch(r"-\d+", word):  # CUDA ends the list here
            break
        if unusable and _INDEX.fullmatch(word) and int(word) in unusable:
            raise NoDeviceError(unusable[int(word)])
        device = _entry(word, devices, environment, variable)
        if device in chosen:
            raise MisuseError(f"{variable}={text!r} names one GPU twice; name each GPU once")
        chosen.append(device)
    return tuple(chosen)


def given_none(environment: Mapping[str, str], variable: str = CUDA_VARIABLE) -> bool:
    """Return whether the variable says that a batch system gave this job no GPU."""
    return environment.get(variable, "").strip().lower() == _NO_GPU_GIVEN


def why_hidden(environment: Mapping[str, str]) -> str:
    """Return why no NVIDIA GPU is visible although one is present."""
    if given_none(environment):
        return f"{CUDA_VARIABLE}={environment[CUDA_VARIABLE].strip()} (the scheduler gave this job no GPU)"
    return f"{CUDA_VARIABLE} hides every GPU"


def _by_uuid(wanted: str, devices: Sequence[DeviceProfile]) -> list[DeviceProfile]:
    """Return the devices with this UUID, else those with a UUID that starts with it."""
    word = wanted.lower()
    if not re.fullmatch(r"(gpu|mig)-[0-9a-f-]*[0-9a-f][0-9a-f-]*", word):
        return []
    exact = [d for d in devices if (d.uuid or "").lower() == word]
    return exact or [d for d in devices if (d.uuid or "").lower().startswith(word)]


def _entry(
    word: str, devices: Sequence[DeviceProfile], environment: Mapping[str, str], variable: str
) -> DeviceProfile:
    if _INDEX.fullmatch(word):
        # By default CUDA numbers the fastest GPU first; the driver numbers by PCI bus.
        by_bus = variable != CUDA_VARIABLE or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        kinds = {d.index: d.name for d in devices}  # each card counts once: its slices share its index
        if not by_bus and len(set(kinds.values())) > 1:
            raise MisuseError(
                f"CUDA_VISIBLE_DEVICES={word}: CUDA numbers the fastest GPU first, and the GPUs here differ; "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID"
            )
        matches = [d for d in devices if d.index == int(word)][:1]  # CUDA uses the first slice of a card
    else:
        matches = _by_uuid(word, devices)
    if len(matches) == 1:
        return matches[0]
    problem = (
        "matches several GPUs" if matches else f"names no GPU of this machine, which has {_here(devices)}"
    )
    raise MisuseError(
        f"{variable}: {plain(word)!r} {problem}", fix="give indices or UUIDs as gpubench probe lists them"
    )


def _here(devices: Sequence[DeviceProfile]) -> str:
    """Return the GPUs in words: "GPU 0", "GPUs 0 to 3", "GPUs 0, 2, 3"."""
    places = sorted({d.index for d in devices if d.index is not None})
    if len(places) == 1:
        return f"GPU {places[0]}"
    if places == list(range(places[0], places[-1] + 1)):
        return f"GPUs {places[0]} to {places[-1]}"
    return "GPUs " + ", ".join(map(str, places))
