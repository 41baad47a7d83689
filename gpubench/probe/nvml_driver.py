"""Why the NVIDIA driver cannot be used: each broken state as one Problem with the value and the fix."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

from gpubench.errors import ExitCode
from gpubench.installing import pip_install
from gpubench.probe.backend import OR_CPU, Problem
from gpubench.probe.nvml_session import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    IN_USE,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    RESET_REQUIRED,
    UNKNOWN,
    VERSION_MISMATCH,
    HungCallError,
)
from gpubench.probe.system import container, nvidia_nodes, read_text
from gpubench.units import Seconds

SONAME = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_ABSENT, _UNUSABLE = ExitCode.DONE, ExitCode.NO_DEVICE
_USUAL_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
)


def binding_missing(reason: str) -> Problem:
    """The Python binding is not installed."""
    return Problem(
        what="the Python module pynvml cannot be imported",
        value=reason,
        fix=f"install it: {pip_install('nvidia-ml-py')}",
        exit_code=_UNUSABLE,
        torch_may_know=True,
    )


def binding_shadowed(path: str) -> Problem:
    """Another module has the binding's name."""
    return Problem(
        what="the module pynvml that Python found is not NVIDIA's binding",
        value=path,
        fix="remove that file, or: pip uninstall pynvml && "
        + pip_install("--force-reinstall", "nvidia-ml-py"),
        exit_code=_UNUSABLE,
        torch_may_know=True,
    )


def hung(error: HungCallError, index: int | None = None, *, described: bool = False) -> Problem:
    """A call did not come back: of the driver, or of a GPU that was ``described`` all but its state."""
    who = "the NVIDIA driver" if index is None else f"GPU {index}"
    return Problem(
        what=f"{who} has stopped answering" if described else f"{who} does not answer",
        value=str(error),
        fix=f"look for a stuck process and for Xid lines in the kernel log, reboot if need be, {OR_CPU}",
        exit_code=_ABSENT if described else _UNUSABLE,
        device_index=index,
    )


def not_asked(first: int, count: int) -> Problem:
    """The GPUs from ``first`` on were passed over, because those before them did not answer."""
    left = f"GPU {first} was" if first == count - 1 else f"GPUs {first} to {count - 1} were"
    return Problem(
        what=f"{left} not asked",
        value="the GPUs before did not answer",
        fix="the NVIDIA driver hangs: look for Xid lines in the kernel log, reboot if need be",
        exit_code=_UNUSABLE,
    )


def slow(index: int, limit_s: Seconds) -> Problem:
    """A GPU answers, but too slowly to be asked everything."""
    return Problem(
        what=f"GPU {index} answers slowly",
        value=f"its description took over {limit_s:g} s, the rest of it is unknown",
        fix="see what else asks the driver (nvidia-smi, monitoring), and the kernel log",
        exit_code=_ABSENT,
        device_index=index,
    )


def no_gpu(driver: str | None) -> Problem:
    """The driver works and shows no GPU."""
    return Problem(
        what="the NVIDIA driver works but lists no GPU",
        value=None if driver is None else f"driver {driver}",
        fix="in a container pass the GPU through (docker run --gpus all); else check its seating and power",
        exit_code=_ABSENT,
    )


def no_mig_slice(index: int) -> Problem:
    """MIG is on, and nothing is cut."""
    return Problem(
        what=f"GPU {index} is in MIG mode and has no slice",
        fix="create one with nvidia-smi mig -cgi, or switch MIG off with nvidia-smi -mig 0",
        exit_code=_UNUSABLE,
        device_index=index,
    )


def not_listed(code: int, reason: str) -> Problem:
    """The driver opened and would not say how many GPUs there are."""
    return Problem(
        what="the NVIDIA driver does not list its GPUs", value=reason, fix=_fix(code), exit_code=_UNUSABLE
    )


def device_unusable(index: int, code: int, reason: str | None) -> Problem:
    """One GPU of the machine cannot be used; the others may."""
    texts = {
        GPU_IS_LOST: (
            f"GPU {index} is lost",
            "it fell off the bus: reboot; if it comes back, check its power supply and seating",
        ),
        RESET_REQUIRED: (
            f"GPU {index} needs a reset",
            f"end its processes and reset it: nvidia-smi -r -i {index}; else reboot",
        ),
    }
    what, fix = texts.get(code, (f"GPU {index} cannot be opened", _fix(code)))
    return Problem(
        what=what,
        value=reason or f"NVML code {code}",
        fix=fix,
        exit_code=_UNUSABLE,
        device_index=index,
    )


def not_opened(code: int, reason: str, library_version: str | None, root: Path = Path("/")) -> Problem:
    """The library could not be found, loaded or initialized.

    Args:
        code: NVML's return code.
        reason: Its text, with the function's name.
        library_version: NVML's own version, where it says so before it is open.
        root: Where the system's files lie (a test's folder, else "/").
    """
    if code == LIBRARY_NOT_FOUND:
        return _not_loaded(root)
    path = loaded_library()
    if code == FUNCTION_NOT_FOUND:
        return Problem(
            what="the NVIDIA library found first is a stub without functions",
            value=path,
            fix=f"take its folder off the loader path (LD_LIBRARY_PATH), {OR_CPU}",
            exit_code=_UNUSABLE,
            torch_may_know=True,
        )
    what, value = {
        DRIVER_NOT_LOADED: ("the NVIDIA kernel module is not loaded", path),
        VERSION_MISMATCH: (
            "the NVIDIA library and the kernel module are of different versions",
            _two_versions(library_version, path, root),
        ),
        NO_PERMISSION: ("this user may not open the NVIDIA driver", _device_nodes(root)),
    }.get(code, ("the NVIDIA driver does not start", reason))
    return Problem(what=what, value=value, fix=_fix(code, root), exit_code=_UNUSABLE)


def loaded_library() -> str | None:
    """Path of the driver library that this process has loaded; None where the system does not tell."""
    for line in (read_text(Path("/proc/self/maps")) or "").splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if Path(path).name.startswith("libnvidia-ml.so"):
            return path
    return None


def module_version(root: Path = Path("/")) -> str | None:
    """Version of the loaded kernel module."""
    if plain := read_text(root / "sys/module/nvidia/version"):
        return plain
    long = read_text(root / "proc/driver/nvidia/version") or ""
    found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", long)
    return found.group() if found else None


def _not_loaded(root: Path) -> Problem:
    try:
        ctypes.CDLL(SONAME)
    except OSError as error:
        text = " ".join(str(error).split())
    else:  # it loads now: the first try met a moment of change
        text = "it loaded at the second try"
    missing = is_absent(text)
    lying = ""
    if missing:
        folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
        folders += [str(root / f.lstrip("/")) for f in _USUAL_FOLDERS]
        files = (Path(f) / SONAME for f in folders)
        lying = next((str(file) for file in files if file.exists()), "")
    if missing and not lying:
        return Problem(
            what="NVIDIA driver not found",
            value=text,
            fix="if there is an NVIDIA GPU, install its driver (in a container: docker run --gpus all)",
            exit_code=_ABSENT,
            torch_may_know=True,
        )
    return Problem(
        what="the NVIDIA library cannot be loaded",
        value=f"{text}; a file lies at {lying}" if lying else text,
        fix=f"reinstall the driver, or fix the loader path (LD_LIBRARY_PATH), {OR_CPU}",
        exit_code=_UNUSABLE,
        torch_may_know=True,
    )


def is_absent(text: str, platform: str = sys.platform) -> bool:
    """Whether the loader's words mean that there is no driver, rather than a driver that is broken.

    A library that lacks one of its own parts is broken. Outside Linux the words vary too much to tell, and
    a machine without the driver is by far the likelier.
    """
    if platform != "linux":
        return True
    words = rf"(?:^|library ){re.escape(SONAME)}: (?:cannot open shared object file: )?No such file"
    return re.search(words, text) is not None  # glibc, then musl


def _two_versions(library_version: str | None, path: str | None, root: Path) -> str:
    if library_version is None and path is not None:
        found = re.search(r"\.so\.(\d{3}\..*)$", str(Path(path).resolve()))
        library_version = found.group(1) if found else None
    return f"library {library_version or 'unknown'}, module {module_version(root) or 'unknown'}"


def _device_nodes(root: Path) -> str:
    nodes, closed = nvidia_nodes(root)
    if closed:
        return "no access to " + ", ".join(closed)
    return "no /dev/nvidia* device node here" if not nodes else "nvmlInit: Insufficient Permissions"


def _fix(code: int, root: Path = Path("/")) -> str:
    inside = container(root)
    if code == UNKNOWN and inside:
        return (
            f"in this {inside} container a reload of the host's service manager took the device cgroup away: "
            "recreate the container"
        )
    return {
        DRIVER_NOT_LOADED: f"load it (modprobe nvidia) or reboot, {OR_CPU}",
        VERSION_MISMATCH: "reboot, or reload the module; in a container restart it",
        NO_PERMISSION: "join the group that owns /dev/nvidia* (often video or render)",
        IN_USE: "another program holds the driver exclusively: end it",
        GPU_IS_LOST: "a GPU fell off the bus: reboot; check power and seating",
        RESET_REQUIRED: "reset the GPU (nvidia-smi -r) or reboot",
    }.get(code, f"see the kernel log (dmesg), reboot, {OR_CPU}")
