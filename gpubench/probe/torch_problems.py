"""What keeps the installed torch from a GPU, and what to do about it.

Read from the files of torch, because importing it takes seconds and opens the GPU; from the kernels that a
build has; and from what torch says when it fails, where the words are torch's and CUDA's.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from gpubench.errors import ExitCode
from gpubench.models import DeviceProfile
from gpubench.probe.backend import Problem
from gpubench.probe.system import read_text
from gpubench.units import plain
from gpubench.workload import INSTALL_TORCH


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
        return _problem("torch is not installed", f"{gpu} cannot be measured", INSTALL_TORCH)
    if device.backend == "rocm":
        if build.hip:
            return None
        return _problem(
            f"{gpu} is here, but torch {build.version} has no ROCm",
            None,
            "install the ROCm build of torch, or measure on the CPU with --device cpu",
        )
    if not device.is_nvidia:
        return None  # every build for Apple chips reaches them; other makers' packages know their own
    if build.cuda is None:
        kind = "a ROCm build" if build.hip else "a CPU-only build"
        why = "; pip install torch on Windows gives no other" if platform == "win32" and not build.hip else ""
        return _problem(
            f"the installed torch is {kind} and cannot reach {gpu}",
            f"torch {build.version}{why}",
            f"{_install(_fitting(device.cuda_driver_version))}; or measure on the CPU with --device cpu",
        )
    cuda = device.cuda_driver_version
    if cuda is not None and _major(build.cuda) > _major(cuda):
        return _driver_too_old(device)
    return None


def _driver_too_old(device: DeviceProfile, found: str | None = None) -> Problem:
    """The installed torch is built for a newer CUDA than the driver has, which torch may say itself."""
    build = torch_build()
    cuda, driver = found or device.cuda_driver_version, device.driver_version
    needs = None if build is None else f"torch {build.version} needs CUDA {build.cuda}"
    has = None if cuda is None else f"{f'driver {driver}' if driver else 'the driver'} has CUDA {cuda}"
    return _problem(
        "the installed torch is built for a newer CUDA than the driver knows",
        ", ".join(part for part in (needs, has) if part) or None,
        f"update the driver, or replace torch: {_install(_fitting(cuda))}",
    )


def _install(build: str) -> str:
    """How to replace torch by another build: pip keeps the one that is there, so it goes first."""
    return (
        f"pip uninstall torch, then install its {build} build with the command of the selector at pytorch.org"
    )


def _fitting(cuda: str | None) -> str:
    """Name of the build that fits a driver with this CUDA release."""
    return "CUDA" if cuda is None else f"CUDA {_major(cuda)}"


def _problem(what: str, value: str | None, fix: str) -> Problem:
    """What keeps torch from a GPU that is here."""
    return Problem(what=what, value=value, fix=fix, exit_code=ExitCode.NO_DEVICE, backend="torch")


def _major(release: str) -> int:
    return int(release.partition(".")[0])


# --- kernels of a build -----------------------------------------------------------------------------------
#
# By NVIDIA's rules of compatibility (CUDA C++ programming guide): machine code ``sm_XY`` runs on compute
# capability X.Z from Z = Y on, but not between cards and systems on a chip; PTX ``compute_XY`` is compiled at
# first use for any capability from X.Y on. A letter narrows both: ``a`` to X.Y itself, ``f`` to the same X.
# From CUDA 13.2 on, Orin runs the code of cards too (torch/cuda/__init__.py).

Capability = tuple[int, int]

# Systems on a chip whose machine code is their own: TX1, TX2, Xavier, Orin, Thor (10.1, renamed 11.0).
_ALONE = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})
_RENAMED = {(10, 1): (11, 0)}
_JOINED_CARDS = frozenset({(7, 2), (8, 7)})
_JOINED_CARDS_IN_CUDA = (13, 2)
OLDEST_OF_CUDA_13: Capability = (7, 5)
"""CUDA 13 has no kernels for cards before this."""
FIRST_OF_BLACKWELL: Capability = (10, 0)
"""Cards from this on need CUDA 12.8."""


def how_it_runs(
    capability: Capability, architectures: Iterable[str], cuda: str | None = None
) -> Literal["code", "ptx"] | None:
    """How a GPU runs a build: by its machine code, by PTX compiled at first use, or not at all.

    Args:
        capability: Of the GPU.
        architectures: That the build has kernels for, as torch names them.
        cuda: Release of CUDA that it is built for; None where that is not known.

    >>> how_it_runs((8, 6), ["sm_75", "sm_80", "sm_90"])
    'code'
    >>> how_it_runs((12, 0), ["sm_90", "compute_90"])
    'ptx'
    """
    release = tuple(int(part) for part in re.findall(r"\d+", cuda or "")[:2])
    alone = _ALONE - _JOINED_CARDS if release >= _JOINED_CARDS_IN_CUDA else _ALONE
    ways = {_runs(capability, architecture, alone) for architecture in architectures}
    return "code" if "code" in ways else "ptx" if "ptx" in ways else None


def _runs(
    device: Capability, architecture: str, alone: frozenset[Capability]
) -> Literal["code", "ptx"] | None:
    found = re.fullmatch(r"(sm|compute)_(\d{1,3})(\d)([af]?)", architecture)
    if found is None:
        return None
    kind, major, minor, narrowed = found.groups()
    built = (int(major), int(minor))
    alike = built[0] == device[0] and built[1] <= device[1]
    if narrowed == "a":
        fits = built == device
    elif kind == "compute":
        fits = alike if narrowed else built <= device
    elif built in _ALONE or device in alone:
        fits = _RENAMED.get(built, built) == _RENAMED.get(device, device)
    else:
        fits = alike
    if not fits:
        return None
    return "code" if kind == "sm" else "ptx"


# --- words of torch ---------------------------------------------------------------------------------------

_LONGEST = 1000
# torch adds lines of advice to every error of CUDA; they help nobody who did not write the kernel.
_ADVICE = re.compile(
    r"\s*(Search for `cuda|CUDA kernel errors might be|For debugging consider|For more detailed error"
    r"|Compile with `TORCH_USE_CUDA_DSA`)"
)


def explain(words: str, device: DeviceProfile | None = None) -> Problem | None:
    """What an error of torch means for a user; None for words that are not known here.

    Args:
        words: Of the error, on one line or several.
        device: The GPU that it is about, where that is known.
    """
    gpu = device or DeviceProfile(backend="cuda")
    if not gpu.is_nvidia:
        return None
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, words, re.IGNORECASE):
            return meaning(found, gpu)
    return None


def first_words(words: str) -> str:
    """What torch says, without its advice."""
    advice = _ADVICE.search(words)
    return plain(" ".join(words[: advice.start() if advice else None].split()), limit=_LONGEST)


def no_kernels(device: DeviceProfile, architectures: Sequence[str] = ()) -> Problem:
    """The installed torch has no kernels for this GPU."""
    build = torch_build()
    capability = device.compute_capability
    seen = [
        *([] if capability is None else [f"compute capability {capability[0]}.{capability[1]}"]),
        *([f"torch is built for {' '.join(architectures)}"] if architectures else []),
    ]
    if capability is not None and capability < OLDEST_OF_CUDA_13:
        fix = _install("CUDA 12.6")
    elif capability is not None and capability >= FIRST_OF_BLACKWELL:
        fix = _install("CUDA 12.8 or a newer")
    else:
        fix = _install(_fitting(device.cuda_driver_version))
    version = "the installed torch" if build is None else f"torch {plain(build.version or '')}"
    return _problem(
        f"{version} has no kernels for {plain(device.name or 'this GPU')}", ", ".join(seen) or None, fix
    )


def _too_old(found: re.Match[str], device: DeviceProfile) -> Problem:
    number = re.search(r"found version (\d{4,6})\b", found.string)
    release = None if number is None else int(number[1])
    return _driver_too_old(device, None if release is None else f"{release // 1000}.{release % 1000 // 10}")


def _says(what: str, fix: str) -> Callable[[re.Match[str], DeviceProfile], Problem]:
    def meaning(found: re.Match[str], device: DeviceProfile) -> Problem:
        del device
        return _problem(what, first_words(found.string), fix)

    return meaning


_REBOOT = "reboot; if it stays, reinstall the driver"
_MEANINGS: tuple[tuple[str, Callable[[re.Match[str], DeviceProfile], Problem]], ...] = (
    (r"driver on your system is too old|driver version is insufficient", _too_old),
    (r"no kernel image is available", lambda _, device: no_kernels(device)),
    (
        r"unsupported toolchain",
        _says("the driver is too old to compile this torch's PTX for the GPU", "update the driver"),
    ),
    (
        r"busy or unavailable",
        _says(
            "the GPU is taken: its compute mode lets one program in at a time, or none",
            "end the program that nvidia-smi lists, or set the mode back with nvidia-smi -c DEFAULT",
        ),
    ),
    (
        r"found no NVIDIA driver|libcuda\.so",
        _says(
            "the driver answers, but torch finds no CUDA library of it (libcuda)",
            "in a container give it the compute part too (NVIDIA_DRIVER_CAPABILITIES=compute,utility); else "
            "reinstall the driver",
        ),
    ),
    (
        r"no CUDA GPUs are available|no CUDA-capable device|invalid device ordinal",
        _says(
            "the driver lists the GPU, but CUDA shows it to no program",
            "look for Xid lines in the kernel log, reboot; in a container recreate it",
        ),
    ),
    (
        r"system not yet initialized",
        _says(
            "the links between the GPUs of this machine are not set up",
            "start the fabric manager of the driver's own version: systemctl start nvidia-fabricmanager",
        ),
    ),
    (
        r"forward compatibility was attempted|unsupported display driver",
        _says(
            "the CUDA library and the kernel module are of versions that do not fit",
            "reboot after an update of the driver; else take CUDA's compat folder off LD_LIBRARY_PATH",
        ),
    ),
    (
        r"CUDA unknown error|CUDA driver initialization failed",
        _says(
            "CUDA does not start on this machine",
            f"load its memory module (modprobe nvidia_uvm); else {_REBOOT}",
        ),
    ),
    (
        r"not compiled with CUDA|libcudart functions unavailable",
        lambda _, device: _problem(
            "the installed torch has no CUDA", None, _install(_fitting(device.cuda_driver_version))
        ),
    ),
    (
        r"uncorrectable ECC",
        _says(
            "the GPU's memory is damaged",
            "reset it (nvidia-smi -r); if it comes back, have the card replaced",
        ),
    ),
    (
        r"out of memory",
        _says("the GPU's memory is full", "end what nvidia-smi lists, or choose another GPU with --device"),
    ),
)
