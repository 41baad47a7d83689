"""OpenCL devices of any vendor; some AMD and Intel devices can be reached only through OpenCL.

A child process runs this file to list them, because a broken driver crashes the process that calls it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpubench import children, installing, specs
from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe import backend, plausible
from gpubench.units import plain

NAME = "opencl"
_PROGRAM: tuple[str, ...] = ("-m", __name__)
# After this time a driver counts as hung.
_LIMIT_S = 20.0
# Device files of GPUs on Linux: generic, AMD, NVIDIA, Windows (WSL), Arm, Qualcomm.
_GPU_FILES = ("dri/*", "kfd", "nvidia[0-9]*", "dxg", "mali*", "kgsl-*")


def ask_listing() -> backend.BackendReport:
    """List every device, including CPUs, in a child process; if that fails, report a problem."""
    # numpy, a dependency of pyopencl, would start a thread for every core of the machine
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    asked = children.run_child(
        _PROGRAM, (), backend.BackendReport, time_limit_s=_LIMIT_S, environment=environment
    )
    return asked.answer or report([], [f"the process that lists OpenCL devices {asked.how}"])


def report(devices: Sequence[DeviceProfile], failures: Sequence[str]) -> backend.BackendReport:
    """Return the devices, and a problem for each message of a platform that cannot be used."""
    problems = tuple(
        backend.Problem(
            what="an OpenCL platform cannot be used",
            value=plain(each, 200),
            fix="install or remove its vendor's driver; the other devices are not affected",
            exit_code=0,
            backend=NAME,
        )
        for each in failures
    )
    return backend.BackendReport(devices=tuple(devices), states=(None,) * len(devices), problems=problems)


def listing() -> backend.BackendReport:
    """Query each platform for its devices; a platform that fails or has none becomes a problem."""
    import pyopencl

    found: list[DeviceProfile] = []
    problems = []
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.Error as error:  # the loader's code for "no driver"
        return report([], [str(error)])
    for platform in platforms:
        try:
            devices = platform.get_devices()
            found += [profile_of(each, platform.name, n) for n, each in enumerate(devices, len(found))]
        except pyopencl.Error as error:
            problems.append(f"{platform.name.strip()}: {error}")
    return report(found, problems)


def profile_of(device: Any, platform: str, index: int) -> DeviceProfile:
    """Return the profile of a pyopencl device in SI units; an impossible value becomes None, with the reason.

    Only a CPU has a core count: its number of compute units.
    """
    unavailable: dict[str, str] = {}

    name = plain(device.name.strip(), 120)
    is_cpu = bool(device.type & 2)  # CL_DEVICE_TYPE_CPU
    spec = None if is_cpu else specs.find_spec(name)
    units = plausible.checked(plausible.SMS, device.max_compute_units, "sm_count", unavailable)
    return DeviceProfile(
        backend=NAME,
        vendor=plain(device.vendor.strip(), 60) or None,
        name=name,
        gpu_key=None if spec is None else spec.key,
        index=index,
        architecture=plain(device.version.strip(), 120),
        sm_count=None if is_cpu else units,
        core_count=units if is_cpu else None,
        memory_bytes=plausible.checked(plausible.MEMORY, device.global_mem_size, "memory_bytes", unavailable),
        unified_memory=bool(device.host_unified_memory),
        sm_clock_max_hz=plausible.checked(
            plausible.HIGHEST_SM_CLOCK, device.max_clock_frequency, "sm_clock_max_hz", unavailable
        ),
        driver_version=f"{plain(platform.strip(), 60)} {plain(device.driver_version.strip(), 60)}",
        unavailable=unavailable,
    )


def may_have_gpus(dev: Path = Path("/dev")) -> bool:
    """Return whether this process can reach a GPU; on Linux, drivers open a device file for each GPU."""
    return sys.platform != "linux" or any(True for name in _GPU_FILES for _ in dev.glob(name))


class OpenClBackend(backend.Backend):
    """OpenCL devices, both GPUs and CPUs; they run micro-benchmarks but no training steps."""

    name = NAME

    def devices(self) -> backend.BackendReport:
        """List the devices that are not CPUs; nothing if pyopencl is not installed.

        The child starts only if a GPU can be reached, since it takes as long as the rest of a probe.
        """
        if not (installed() and may_have_gpus()):
            return backend.BackendReport()
        found = ask_listing()
        gpus = tuple(device for device in found.devices if device.core_count is None)
        return replace(found, devices=gpus, states=(None,) * len(gpus))

    def device(self, place: int) -> DeviceProfile:
        """Return the device with this index in the order of the OpenCL loader, CPUs included.

        Raises:
            NoDeviceError: If pyopencl is missing, or there is no such device.
        """
        if not installed():
            line = installing.pip_install("pyopencl")
            raise NoDeviceError(f"OpenCL is reached through pyopencl, which is not installed: {line}")
        found = ask_listing()
        if place < len(found.devices):
            return found.devices[place]
        here = [f"opencl:{i} {plain(d.name or '', 60)}" for i, d in enumerate(found.devices)]
        why = "; ".join(problem.value or "" for problem in found.problems)
        raise NoDeviceError(
            f"--device opencl:{place}: found {', '.join(here) or 'none'}{f' ({why})' if why else ''}; a "
            "device needs its vendor's OpenCL driver (a CPU: PoCL, "
            f"{installing.pip_install('pocl-binary-distribution')})"
        )


BACKEND = OpenClBackend()


def installed() -> bool:
    """Return whether pyopencl can be imported."""
    return importlib.util.find_spec("pyopencl") is not None


if __name__ == "__main__":
    children.ParentChannel().send(listing())
