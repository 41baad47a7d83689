"""Which torch is installed, read from its files: importing it takes seconds and opens the GPU."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import msgspec

from gpubench.errors import ExitCode
from gpubench.models import DeviceProfile
from gpubench.needs import INSTALL_TORCH
from gpubench.probe.backend import Problem
from gpubench.probe.system import read_text
from gpubench.units import plain


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Version of torch, and the CUDA or HIP release it was built for; None where it was not."""

    version: str | None
    cuda: str | None
    hip: str | None


def torch_build() -> TorchBuild | None:
    """The installed torch, or None."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = read_text(Path(spec.origin).with_name("version.py")) or ""

    def entry(name: str) -> str | None:
        found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        return found.group(1) if found else None

    return TorchBuild(version=entry("__version__"), cuda=entry("cuda"), hip=entry("hip"))


def torch_problem(device: DeviceProfile, platform: str = sys.platform) -> Problem | None:
    """Why the installed torch cannot reach this GPU; None if nothing speaks against it."""
    build = torch_build()
    gpu = plain(device.name or "the GPU")
    if build is None:
        return problem("torch is not installed", f"{gpu} cannot be measured", INSTALL_TORCH)
    if device.backend == "rocm":
        return None if build.hip else _no_rocm(gpu, build)
    if device.backend != "cuda":
        return None  # every build for Apple chips reaches them; other makers' packages know their own
    if build.cuda is None:
        return _no_cuda(gpu, build, device, platform)
    cuda = device.cuda_driver_version
    if cuda is not None and _major(build.cuda) > _major(cuda):
        return driver_too_old(device)
    return None


def driver_too_old(device: DeviceProfile | None, found: str | None = None) -> Problem:
    """The installed torch is built for a newer CUDA than the driver has.

    Args:
        device: As probed, where it was.
        found: The driver's CUDA release by torch's own words.
    """
    build = torch_build()
    cuda = found or (None if device is None else device.cuda_driver_version)
    driver = None if device is None else device.driver_version
    needs = None if build is None else f"torch {build.version} needs CUDA {build.cuda}"
    has = None if cuda is None else f"{f'driver {driver}' if driver else 'the driver'} has CUDA {cuda}"
    return problem(
        "the installed torch is built for a newer CUDA than the driver knows",
        ", ".join(part for part in (needs, has) if part) or None,
        f"update the driver, or replace torch: {install(fitting(cuda))}",
    )


def install(build: str) -> str:
    """How to replace torch by another build: pip keeps the one that is there, so it goes first."""
    return (
        f"pip uninstall torch, then install its {build} build with the command of the selector at pytorch.org"
    )


def fitting(cuda: str | None) -> str:
    """Name of the build that fits a driver with this CUDA release."""
    return "CUDA" if cuda is None else f"CUDA {_major(cuda)}"


def problem(what: str, value: str | None, fix: str) -> Problem:
    """What keeps torch from a GPU that is here."""
    return Problem(what=what, value=value, fix=fix, exit_code=ExitCode.NO_DEVICE, backend="torch")


def _no_cuda(gpu: str, build: TorchBuild, device: DeviceProfile, platform: str) -> Problem:
    kind = "a ROCm build" if build.hip else "a CPU-only build"
    why = "; pip install torch on Windows gives no other" if platform == "win32" and not build.hip else ""
    return problem(
        f"the installed torch is {kind} and cannot reach {gpu}",
        f"torch {build.version}{why}",
        f"{install(fitting(device.cuda_driver_version))}; or measure on the CPU with --device cpu",
    )


def _no_rocm(gpu: str, build: TorchBuild) -> Problem:
    return problem(
        f"{gpu} is here, but torch {build.version} has no ROCm",
        None,
        "install the ROCm build of torch, or measure on the CPU with --device cpu",
    )


def _major(release: str) -> int:
    return int(release.partition(".")[0])
