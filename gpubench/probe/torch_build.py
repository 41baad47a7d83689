"""Which torch is installed, read from its files: importing it takes seconds and opens the GPU."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import msgspec

from gpubench.models import DeviceProfile
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


def torch_problem(device: DeviceProfile) -> Problem | None:
    """Why the installed torch cannot reach this GPU; None if nothing speaks against it."""
    build = torch_build()
    gpu = plain(device.name or "the GPU")
    if build is None:
        return _problem("torch is not installed", f"{gpu} cannot be measured", "install torch")
    if device.backend == "rocm":
        return None if build.hip else _no_rocm(gpu, build)
    if device.backend != "cuda":
        return None  # every build for Apple chips reaches them; other makers' packages know their own
    cuda = device.cuda_driver_version
    if build.cuda is None:
        kind = "a ROCm build" if build.hip else "a CPU-only build"
        return _problem(
            f"the installed torch is {kind} and cannot reach {gpu}",
            f"torch {build.version}",
            f"install the torch build for CUDA {cuda or '(see nvidia-smi)'} or older, "
            "or measure on the CPU with --device cpu",
        )
    if cuda is not None and _major(build.cuda) > _major(cuda):
        return _problem(
            "the installed torch is built for a newer CUDA than the driver knows",
            f"torch {build.version} needs CUDA {build.cuda}, driver {device.driver_version} has CUDA {cuda}",
            f"install the torch build for CUDA {_major(cuda)}, or update the driver",
        )
    return None


def _no_rocm(gpu: str, build: TorchBuild) -> Problem:
    return _problem(
        f"{gpu} is here, but torch {build.version} has no ROCm",
        None,
        "install the ROCm build of torch, or measure on the CPU with --device cpu",
    )


def _problem(what: str, value: str | None, mend: str) -> Problem:
    return Problem(what=what, value=value, mend=mend, exit_code=3, backend="torch")


def _major(release: str) -> int:
    return int(release.partition(".")[0])
