"""Devices that OpenCL reaches, of any maker: for some of AMD's and Intel's there is no other way.

Asked in a child process, because a broken driver of one maker takes down whoever asks for the list.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubench.children import ask_child
from gpubench.errors import NoDeviceError
from gpubench.installing import pip_install
from gpubench.models import DeviceProfile
from gpubench.probe import plausible
from gpubench.probe.backend import BackendReport, Problem, WithoutReadings
from gpubench.probe.opencl_child import Listed, Listing
from gpubench.probe.plausible import Gate, taken
from gpubench.specs import find_spec
from gpubench.units import plain

NAME = "opencl"
_PROGRAM = ("-m", "gpubench.probe.opencl_child")
_LIMIT_S = 20.0
"""A driver that has not answered by then is taken for hung."""
_GPU_FILES = ("dri/*", "kfd", "nvidia[0-9]*", "dxg", "mali*", "kgsl-*")
"""Through which Linux gives a process its GPUs: all kinds, AMD, NVIDIA, Windows' below it, Arm, Qualcomm."""
_CLOCK = plausible.HIGHEST_SM_CLOCK.of("MHz", factor=10**6)
_VENDORS = {
    "nvidia": "NVIDIA",
    "advanced micro devices": "AMD",
    "amd": "AMD",
    "intel": "Intel",
    "genuineintel": "Intel",
    "authenticamd": "AMD",
    "apple": "Apple",
}
"""Makers by the beginning of how their drivers spell them."""


def ask_listing() -> Listing:
    """List the devices in a child process; one that fails or hangs becomes a problem, never an exception."""
    # numpy, which pyopencl brings, would start a thread for every core of the machine
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    asked = ask_child(_PROGRAM, (), Listing, time_limit_s=_LIMIT_S, environment=environment)
    return asked.answer or Listing(problems=(f"the process that lists OpenCL devices {asked.how}",))


def may_have_gpus(dev: Path = Path("/dev")) -> bool:
    """Whether a GPU can be reached from this process; on Linux each has a file, and a driver opens it."""
    return sys.platform != "linux" or any(True for name in _GPU_FILES for _ in dev.glob(name))


@dataclass(frozen=True)
class OpenClBackend(WithoutReadings):
    """Whatever OpenCL reaches, GPUs and CPUs alike; it runs micro-benchmarks and no training step."""

    name: str = NAME
    list_devices: Callable[[], Listing] = ask_listing
    may_have_gpus: Callable[[], bool] = may_have_gpus

    def devices(self) -> BackendReport:
        """List the devices that are no CPU; nothing where pyopencl is not installed.

        Where no GPU can be reached nobody is asked: the child would take as long as all else of a probe.
        """
        if not (installed() and self.may_have_gpus()):
            return BackendReport()
        listing = self.list_devices()
        profiles = tuple(
            profile_of(each, index) for index, each in enumerate(listing.devices) if not each.is_cpu
        )
        problems = tuple(
            Problem(
                what="an OpenCL platform cannot be used",
                value=plain(seen, 200),
                fix="install or remove the driver of its maker; the other devices are not affected",
                exit_code=0,
                backend=NAME,
            )
            for seen in listing.problems
        )
        return BackendReport(devices=profiles, states=(None,) * len(profiles), problems=problems)

    def device(self, place: int) -> DeviceProfile:
        """Return the device at a place, CPUs included, in the order of the OpenCL loader.

        Raises:
            NoDeviceError: If pyopencl is missing, or there is no such device.
        """
        if not installed():
            line = pip_install("pyopencl")
            raise NoDeviceError(f"OpenCL is reached through pyopencl, which is not installed: {line}")
        listing = self.list_devices()
        if place < len(listing.devices):
            return profile_of(listing.devices[place], place)
        here = ", ".join(f"opencl:{i} {plain(d.name, 60)}" for i, d in enumerate(listing.devices))
        why = "; ".join(plain(problem, 100) for problem in listing.problems)
        raise NoDeviceError(
            f"--device opencl:{place}: here are {here}"
            if here
            else f"no OpenCL device found{f' ({why})' if why else ''}; install the OpenCL driver of its "
            f"maker (for a CPU: PoCL, {pip_install('pocl-binary-distribution')})"
        )


BACKEND = OpenClBackend()


def installed() -> bool:
    """Whether pyopencl can be imported."""
    return importlib.util.find_spec("pyopencl") is not None


def profile_of(listed: Listed, index: int) -> DeviceProfile:
    """Return a device in SI units; what no device can have becomes None, with the reason."""
    unavailable: dict[str, str] = {}

    def gated(field: str, value: int, gate: Gate) -> Any:
        return taken(gate, value, field, unavailable)

    vendors = (name for start, name in _VENDORS.items() if listed.vendor.lower().startswith(start))
    spec = None if listed.is_cpu else find_spec(listed.name)
    units = gated("sm_count", listed.compute_units, plausible.SMS)
    return DeviceProfile(
        backend=NAME,
        vendor=next(vendors, plain(listed.vendor, 60)) or None,
        name=plain(listed.name, 120),
        gpu_key=None if spec is None else spec.key,
        index=index,
        architecture=plain(listed.version, 120),
        sm_count=None if listed.is_cpu else units,
        core_count=units if listed.is_cpu else None,
        memory_bytes=gated("memory_bytes", listed.memory_bytes, plausible.MEMORY),
        unified_memory=listed.unified_memory,
        sm_clock_max_hz=gated("sm_clock_max_hz", listed.clock_mhz, _CLOCK),
        driver_version=f"{plain(listed.platform, 60)} {plain(listed.driver, 60)}",
        unavailable=unavailable,
    )
