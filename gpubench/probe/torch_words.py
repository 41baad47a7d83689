"""What torch says when it cannot use a GPU, and what to do about it. The words are torch's and CUDA's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gpubench.models import DeviceProfile
from gpubench.probe.backend import Problem
from gpubench.probe.torch_build import driver_too_old, fitting, install, problem, torch_build
from gpubench.probe.torch_kernels import FIRST_OF_BLACKWELL, OLDEST_OF_CUDA_13
from gpubench.units import plain

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
    if device is not None and device.backend != "cuda":
        return None
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, words, re.IGNORECASE):
            return meaning(found, device)
    return None


def first_words(words: str) -> str:
    """What torch says, without its advice."""
    advice = _ADVICE.search(words)
    return plain(" ".join(words[: advice.start() if advice else None].split()), limit=_LONGEST)


def no_kernels(device: DeviceProfile | None, architectures: Sequence[str] = ()) -> Problem:
    """The installed torch has no kernels for this GPU."""
    build = torch_build()
    capability = None if device is None else device.compute_capability
    gpu = "this GPU" if device is None else plain(device.name or "this GPU")
    seen = [
        *([] if capability is None else [f"compute capability {capability[0]}.{capability[1]}"]),
        *([f"torch is built for {' '.join(architectures)}"] if architectures else []),
    ]
    if capability is not None and capability < OLDEST_OF_CUDA_13:
        fix = install("CUDA 12.6")
    elif capability is not None and capability >= FIRST_OF_BLACKWELL:
        fix = install("CUDA 12.8 or a newer")
    else:
        fix = install(fitting(None if device is None else device.cuda_driver_version))
    version = "the installed torch" if build is None else f"torch {plain(build.version or '')}"
    return problem(f"{version} has no kernels for {gpu}", ", ".join(seen) or None, fix)


def _too_old(found: re.Match[str], device: DeviceProfile | None) -> Problem:
    number = re.search(r"found version (\d{4,6})\b", found.string)
    release = None if number is None else int(number[1])
    return driver_too_old(device, None if release is None else f"{release // 1000}.{release % 1000 // 10}")


def _says(what: str, fix: str) -> Callable[[re.Match[str], DeviceProfile | None], Problem]:
    def meaning(found: re.Match[str], device: DeviceProfile | None) -> Problem:
        del device
        return problem(what, first_words(found.string), fix)

    return meaning


_REBOOT = "reboot; if it stays, reinstall the driver"
_MEANINGS: tuple[tuple[str, Callable[[re.Match[str], DeviceProfile | None], Problem]], ...] = (
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
        lambda _, device: problem(
            "the installed torch has no CUDA",
            None,
            install(fitting(None if device is None else device.cuda_driver_version)),
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
