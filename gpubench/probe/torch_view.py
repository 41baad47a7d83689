"""Why the installed torch cannot use a GPU, how to fix that, and what torch reports about a GPU.

The reason comes from torch's files, because importing torch takes seconds and opens the GPU; from the kernels
in a build; and from the error messages of torch and CUDA. A child process running this module tries the GPU.
It reports the device before it computes, because a build without kernels for the GPU fails only then.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gpubench.children import ChildEndedError, ChildLateError, ChildProcess, ParentChannel
from gpubench.errors import ExitCode, NoDeviceError
from gpubench.installing import pip_install
from gpubench.models import DeviceProfile
from gpubench.probe.amd import matrix_formats
from gpubench.probe.backend import (
    ONLY_IN_TORCH,
    Problem,
    check_same_device,
    child_environment,
    in_torch,
)
from gpubench.probe.host import read_text
from gpubench.probe.nvml import tensor_core_precisions
from gpubench.specs import find_spec
from gpubench.torch_builds import Capability, how_it_runs, newest_release, other_build_for
from gpubench.units import plain


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Version of torch, and the CUDA and HIP releases that it was built for; None if there is none."""

    version: str | None
    cuda: str | None
    hip: str | None


def torch_build() -> TorchBuild | None:
    """Return the installed torch, or None."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = read_text(Path(spec.origin).with_name("version.py")) or ""

    def entry(name: str) -> str | None:
        found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        return found.group(1) if found else None

    return TorchBuild(version=entry("__version__"), cuda=entry("cuda"), hip=entry("hip"))


def torch_problem(device: DeviceProfile, platform: str = sys.platform) -> Problem | None:
    """Return why the installed torch cannot reach this GPU; None if no problem was found."""
    build = torch_build()
    gpu = plain(device.name or "the GPU")
    if build is None:
        return _problem("torch is not installed", f"{gpu} cannot be measured", pip_install("torch"))
    if device.backend == "rocm":
        if build.hip:
            return None
        return _problem(
            f"{gpu} is present, but torch {build.version} has no ROCm support",
            None,
            "install the ROCm build of torch, or measure on the CPU with --device cpu",
        )
    if not device.is_nvidia:
        return None  # every build for Apple chips supports them; other vendors' packages check themselves
    if build.cuda is None:
        kind = "a ROCm build" if build.hip else "a CPU-only build"
        why = (
            "; pip install torch on Windows offers only this" if platform == "win32" and not build.hip else ""
        )
        return _problem(
            f"the installed torch is {kind} and cannot reach {gpu}",
            f"torch {build.version}{why}",
            f"{_install(_cuda_build(device.cuda_driver_version))}; or measure on the CPU with --device cpu",
        )
    cuda = device.cuda_driver_version
    if cuda is not None and _major(build.cuda) > _major(cuda):
        return _driver_too_old(device)
    return None


def _driver_too_old(device: DeviceProfile, found: str | None = None) -> Problem:
    """Return the problem that torch is built for a newer CUDA than the driver's.

    ``found`` is the driver's CUDA release in torch's own message, if torch reports the problem.
    """
    build = torch_build()
    cuda, driver = found or device.cuda_driver_version, device.driver_version
    needs = None if build is None else f"torch {build.version} needs CUDA {build.cuda}"
    has = None if cuda is None else f"{f'driver {driver}' if driver else 'the driver'} has CUDA {cuda}"
    return _problem(
        "the installed torch is built for a newer CUDA than the driver supports",
        ", ".join(part for part in (needs, has) if part) or None,
        f"update the driver, or replace torch: {_install(_cuda_build(cuda))}",
    )


def _install(build: str) -> str:
    # Say how to replace torch with another build: uninstall it first, because pip keeps an installed version.
    return (
        f"pip uninstall torch, then install its {build} build with the command from the selector at "
        "pytorch.org"
    )


def _cuda_build(cuda: str | None) -> str:
    return "CUDA" if cuda is None else f"CUDA {_major(cuda)}"


def _problem(what: str, value: str | None, fix: str) -> Problem:
    return Problem(what=what, value=value, fix=fix, exit_code=ExitCode.NO_DEVICE, backend="torch")


def _major(release: str) -> int:
    return int(release.partition(".")[0])


# Cards from this compute capability on need CUDA 12.8.
_FIRST_OF_BLACKWELL: Capability = (10, 0)

# --- error messages ---------------------------------------------------------------------------------------

_LONGEST = 1000
# torch adds advice to every CUDA error; it helps only kernel authors.
_ADVICE = re.compile(
    r"\s*(Search for `cuda|CUDA kernel errors might be|For debugging consider|For more detailed error"
    r"|Compile with `TORCH_USE_CUDA_DSA`)"
)


def explain(words: str, device: DeviceProfile | None = None) -> Problem | None:
    """Return the problem behind a torch error; None for an unknown message.

    Args:
        words: The error message, on one or more lines.
        device: The GPU, if known.
    """
    gpu = device or DeviceProfile(backend="cuda")
    if not gpu.is_nvidia:
        return None
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, words, re.IGNORECASE):
            return meaning(found, gpu)
    return None


def first_words(words: str) -> str:
    """Return torch's message without the advice that torch adds."""
    advice = _ADVICE.search(words)
    return plain(" ".join(words[: advice.start() if advice else None].split()), limit=_LONGEST)


def no_kernels(device: DeviceProfile, architectures: Sequence[str] = ()) -> Problem:
    """Return the problem that the installed torch has no kernels for this GPU."""
    build = torch_build()
    capability = device.compute_capability
    target = None if capability is None else f"{capability[0]}.{capability[1]}"
    seen = [
        *([] if target is None else [f"compute capability {target}"]),
        *([f"torch is built for {' '.join(architectures)}"] if architectures else []),
    ]
    older = other_build_for(target)
    if older is not None and older.cuda is not None:
        of_release = "" if older.release == newest_release() else f", of torch {older.release} or older"
        fix = f"{_install(f'CUDA {older.cuda}')}{of_release}"
    elif capability is not None and capability >= _FIRST_OF_BLACKWELL:
        fix = _install("CUDA 12.8 or newer")
    else:
        fix = _install(_cuda_build(device.cuda_driver_version))
    version = "the installed torch" if build is None else f"torch {plain(build.version or '')}"
    return _problem(
        f"{version} has no kernels for {plain(device.name or 'this GPU')}", ", ".join(seen) or None, fix
    )


def _too_old(found: re.Match[str], device: DeviceProfile) -> Problem:
    number = re.search(r"found version (\d{4,6})\b", found.string)
    release = None if number is None else int(number[1])
    return _driver_too_old(device, None if release is None else f"{release // 1000}.{release % 1000 // 10}")


def _says(what: str, fix: str) -> Callable[[re.Match[str], DeviceProfile], Problem]:
    # A problem that quotes torch's message
    return lambda found, _: _problem(what, first_words(found.string), fix)


_REBOOT = "reboot; if it persists, reinstall the driver"
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
            "the GPU is in use: its compute mode allows one process at a time, or none",
            "end the program that nvidia-smi lists, or set the mode back with nvidia-smi -c DEFAULT",
        ),
    ),
    (
        r"found no NVIDIA driver|libcuda\.so",
        _says(
            "the driver answers, but torch finds no CUDA library (libcuda)",
            "in a container, add the driver's compute part (NVIDIA_DRIVER_CAPABILITIES=compute,utility); "
            "else reinstall the driver",
        ),
    ),
    (
        r"no CUDA GPUs are available|no CUDA-capable device|invalid device ordinal",
        _says(
            "the driver lists the GPU, but no program can use it through CUDA",
            "look for Xid lines in the kernel log, then reboot; in a container, recreate it",
        ),
    ),
    (
        r"system not yet initialized",
        _says(
            "the links between the GPUs of this machine are not set up",
            "start the fabric manager that matches the driver: systemctl start nvidia-fabricmanager",
        ),
    ),
    (
        r"forward compatibility was attempted|unsupported display driver",
        _says(
            "the versions of the CUDA library and the kernel module do not match",
            "reboot after a driver update; else remove CUDA's compat folder from LD_LIBRARY_PATH",
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
            "the installed torch has no CUDA", None, _install(_cuda_build(device.cuda_driver_version))
        ),
    ),
    (
        r"uncorrectable ECC",
        _says(
            "the GPU's memory is damaged",
            "reset it (nvidia-smi -r); if the damage recurs, have the card replaced",
        ),
    ),
    (
        r"out of memory",
        _says(
            "the GPU's memory is full",
            "end processes listed by nvidia-smi, or choose another GPU with --device",
        ),
    ),
)


_LIMIT_S = 90.0  # for the child process: importing torch alone takes seconds
_UNKNOWN = "fix what torch reports; gpubench measures with this torch"
_PROGRAM = ("-m", "gpubench.probe.torch_view")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What the child has seen so far; its last message has ``computed`` or ``error``."""

    architectures: tuple[str, ...] = ()
    cuda: str | None = None
    device: DeviceProfile | None = None
    computed: bool = False
    error: str | None = None


_decoder = msgspec.json.Decoder(View)


def torch_view(device: DeviceProfile, variables: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """Open a GPU with torch in a child process.

    Returns:
        What was seen, and how to fix it; the fix is None if torch reaches the same device.
    """
    environment = {**(os.environ if variables is None else variables), **child_environment(device)}
    try:
        view = _look(environment)
    except ChildLateError:
        return (
            f"torch did not open the GPU within {_LIMIT_S:g} s",
            "end stuck processes (nvidia-smi), or reboot",
        )
    except ChildEndedError as error:
        return f"torch's process {error}", _UNKNOWN
    if view.error is not None:
        return _why_not(view.error, view, device)
    try:
        check_same_device(device, view.device or DeviceProfile(backend="cuda"))
    except NoDeviceError as error:
        return error.seen, error.fix
    is_compiled = _run_mode(view, device) == "ptx"
    compiled = ", with kernels that the driver compiles at first use" if is_compiled else ""
    return f"torch runs on {plain(device.name or 'it')}{compiled}", None


def _look(environment: Mapping[str, str]) -> View:
    """Return what a child process saw of torch's first GPU; errors are those of ``ChildProcess.receive``."""
    child = ChildProcess(_PROGRAM, _decoder, environment=environment)
    view, until_s = View(), time.monotonic() + _LIMIT_S
    try:
        while not (view.computed or view.error):
            view = child.receive(until_s)
    finally:
        child.end(at_once=True)
    return view


def seen_by_torch() -> DeviceProfile | None:
    """Describe the first GPU that torch can use although its driver library cannot be queried.

    A container may have CUDA without that library, and AMD's library is a separate package. None if torch can
    use no GPU.
    """
    try:
        view = _look(os.environ)
    except (ChildLateError, ChildEndedError):
        return None
    gpu = view.device
    if not view.computed or gpu is None or gpu.name is None:
        return None
    spec = find_spec(gpu.name, gpu.memory_bytes)
    mig = "MIG" in gpu.name
    seen = replace(
        gpu,
        vendor="NVIDIA",
        gpu_key=None if spec is None or mig else spec.key,
        uuid=f"GPU-{gpu.uuid}" if gpu.uuid and not mig else None,
        architecture=None if spec is None else spec.architecture,
        l2_bytes=None if spec is None else spec.l2_bytes,
        mig_enabled=mig,
        tensor_core_precisions=tensor_core_precisions(gpu.compute_capability or (0, 0), spec, gpu.name),
        unavailable={"driver_version": ONLY_IN_TORCH},
    )
    if view.cuda is not None:
        return seen
    return replace(
        seen,
        backend="rocm",
        vendor="AMD",
        uuid=None,  # torch and AMD's library use different formats
        architecture=gpu.architecture,
        compute_capability=None,
        mig_enabled=None,
        tensor_core_precisions=matrix_formats(gpu.architecture),
    )


def _why_not(error: str, view: View, device: DeviceProfile) -> tuple[str, str]:
    if view.device and view.architectures and device.compute_capability and _run_mode(view, device) is None:
        known: Problem | None = no_kernels(device, view.architectures)
    else:
        known = explain(error, device)
    return (first_words(error), _UNKNOWN) if known is None else (known.seen(), known.fix)


def _run_mode(view: View, device: DeviceProfile) -> str | None:
    capability = device.compute_capability
    return None if capability is None else how_it_runs(capability, view.architectures, view.cuda)


def main() -> None:
    """Run in the child process: open the first GPU that torch sees, report it, and compute on it."""
    parent, view = ParentChannel(), View()
    try:
        import torch

        parent.send(view := View(architectures=tuple(torch.cuda.get_arch_list()), cuda=torch.version.cuda))
        torch.cuda.init()
        parent.send(view := replace(view, device=in_torch(torch.cuda.get_device_properties(0))))
        torch.ones(64, device="cuda").sum().item()
        parent.send(replace(view, computed=True))
    except Exception as error:  # noqa: BLE001 - a broken torch raises anything; ``explain`` interprets it
        parent.send(replace(view, error=str(error) or type(error).__name__))
    parent.finish()


if __name__ == "__main__":
    main()
