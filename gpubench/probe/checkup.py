"""The checks of `gpubench doctor`, from the software up: each says what was seen and how to fix it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from gpubench.errors import MisuseError, NoDeviceError, seen_and_fix
from gpubench.installing import pip_install
from gpubench.models import DeviceProfile
from gpubench.precisions import TF32_OVERRIDE, forcing_tf32
from gpubench.probe.backend import DeviceState, ProbeReport, unusable
from gpubench.probe.host import (
    container,
    cpu_governor,
    cpu_name,
    cpu_quota,
    memory_bytes,
    nvidia_nodes,
    usable_threads,
)
from gpubench.probe.preflight import kept_out, limits
from gpubench.probe.select import CUDA_VARIABLE, given_none, visible_devices, why_hidden
from gpubench.probe.torch_view import torch_problem, torch_view
from gpubench.units import GIB, count, format_bytes, format_number, plain
from gpubench.workload import OR_CPU_BUILD


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at and seen: ``fail`` keeps a run from it, ``warn`` makes its figures worth less.

    ``none`` is neither: what was looked for is not here, and nothing needs it.
    """

    name: str
    status: Literal["ok", "none", "warn", "fail"]
    seen: str
    fix: str | None = None


def ok(name: str, seen: str) -> Check:
    """Nothing to fix."""
    return Check(name=name, status="ok", seen=seen)


def none(name: str, seen: str) -> Check:
    """What was looked for is not here, and nothing needs it."""
    return Check(name=name, status="none", seen=seen)


def warn(name: str, seen: str, fix: str) -> Check:
    """A run works, and its figures are worth less."""
    return Check(name=name, status="warn", seen=seen, fix=fix)


def fail(name: str, seen: str, fix: str) -> Check:
    """A run does not work."""
    return Check(name=name, status="fail", seen=seen, fix=fix)


_NEWEST_PYTHON = (3, 13)
_OLDEST_TORCH = (2, 4)
# Variables that slow every step down, and how.
_SLOWING_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "makes every kernel wait for the one before",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "asks the driver for every allocation",
    "TORCH_USE_CUDA_DSA": "checks every access on the device",
}


def check_up(report: ProbeReport, environment: Mapping[str, str] | None = None) -> tuple[Check, ...]:
    """Check everything between Python and the GPU, and the machine around it.

    Args:
        report: From ``probe()``.
        environment: Variables; None means this process's own.
    """
    variables = os.environ if environment is None else environment
    seen = [(d, s) for d, s in zip(report.devices, report.states, strict=True) if not d.is_cpu]
    gpus = [device for device, _ in seen if device.is_nvidia]
    return (
        _python(report),
        _torch(report),
        _binding(),
        *_driver(report, gpus),
        *_visibility(gpus, variables, unusable(report.problems)),
        *_torch_reaches(gpus, variables),
        *(check for device, state in seen for check in _gpu(device, state)),
        *_variables(variables),
        *host_checks(),
    )


def failed(checks: Iterable[Check]) -> bool:
    """Whether something keeps a measurement from running."""
    return any(check.status == "fail" for check in checks)


def _python(report: ProbeReport) -> Check:
    if sys.version_info[:2] > _NEWEST_PYTHON:
        newest = ".".join(map(str, _NEWEST_PYTHON))
        return warn("Python", report.host.python, f"gpubench is tested up to {newest}; use that if in doubt")
    return ok("Python", report.host.python)


def _torch(report: ProbeReport) -> Check:
    host = report.host
    if host.torch is None:
        return fail("torch", "not installed", f"{pip_install('torch')}; {OR_CPU_BUILD}")
    build = f"CUDA {host.torch_cuda}" if host.torch_cuda else "ROCm" if host.torch_hip else "CPU only"
    seen = f"{plain(host.torch)} ({build})"
    numbers = host.torch.split("+")[0].split(".")[:2]
    if all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) < _OLDEST_TORCH:
        return fail("torch", seen, "install torch 2.4 or later")
    return ok("torch", seen)


def _binding() -> Check:
    name = "driver binding"
    installed = {(d.metadata["Name"] or "").lower() for d in metadata.distributions()}
    if "nvidia-ml-py" not in installed:
        return fail(name, "nvidia-ml-py is not installed", pip_install("nvidia-ml-py"))
    seen = f"nvidia-ml-py {metadata.version('nvidia-ml-py')}"
    if "pynvml" in installed:
        fix = f"pip uninstall pynvml, then {pip_install('--force-reinstall', 'nvidia-ml-py')}"
        return warn(name, f"{seen}, and the retired package pynvml beside it", fix)
    return ok(name, seen)


def _driver(report: ProbeReport, gpus: Sequence[DeviceProfile]) -> Iterator[Check]:
    if gpus:
        seen = f"{gpus[0].driver_version}, CUDA {gpus[0].cuda_driver_version}"
        yield ok("NVIDIA driver", f"{seen}, {report.host.nvml_library or 'path not told'}")
    for problem in report.problems:
        name = "torch and driver" if problem.backend == "torch" else "NVIDIA driver"
        if problem.device_index is not None:
            name = f"GPU {problem.device_index}"
        if problem.exit_code:
            yield fail(name, problem.seen(), problem.fix)
        else:
            yield warn(name, problem.seen(), problem.fix) if gpus else none(name, problem.seen())


def _visibility(
    gpus: Sequence[DeviceProfile], variables: Mapping[str, str], broken: Mapping[int, str]
) -> Iterator[Check]:
    name = CUDA_VARIABLE
    text = variables.get(name)
    if text is None:
        return
    if not gpus:
        yield ok(name, f"{text!r}, and no GPU here to show or hide")
        return
    try:
        visible = visible_devices(gpus, variables, unusable=broken)
    except (MisuseError, NoDeviceError) as error:
        yield fail(name, error.seen, error.fix)
        return
    if visible:
        yield ok(name, f"{text!r} leaves " + ", ".join(f"GPU {d.index}" for d in visible))
    else:
        fix = "ask the scheduler for a GPU" if given_none(variables) else f"unset {name}"
        yield warn(name, f"{why_hidden(variables)}: runs measure the CPU", fix)


def _torch_reaches(gpus: Sequence[DeviceProfile], variables: Mapping[str, str]) -> Iterator[Check]:
    """Open each GPU with torch in a child process, and compare what it sees with what the driver says."""
    for device in gpus:
        if torch_problem(device) is not None:
            return  # said already
        seen, fix = torch_view(device, variables)
        name = f"GPU {device.index} in torch"
        yield ok(name, seen) if fix is None else fail(name, seen, fix)


def _gpu(device: DeviceProfile, state: DeviceState | None) -> Iterator[Check]:
    name = f"GPU {device.index}"
    if state is not None:
        others = count(state.process_count, "process") if state.process_count else None
        refusal = kept_out(device, state.compute_mode, others)
        if refusal is not None:
            yield fail(name, *seen_and_fix(refusal))
            state = msgspec.structs.replace(state, compute_mode=None)  # said already
    reasons = limits(device, state)
    if not reasons:
        yield ok(name, f"{plain(device.name or 'unnamed')}, limited by nothing that the driver reports")
    for reason in reasons:
        seen, fix = seen_and_fix(reason)
        yield warn(name, seen, fix or "runs are marked with it; compare them with like only")
    if state is not None and state.persistence_mode is False and not device.mig_enabled:
        seen = "persistence mode is off: the driver unloads between runs and starts slowly"
        yield warn(name, seen, f"nvidia-smi -i {device.index} -pm 1")


def _variables(variables: Mapping[str, str]) -> Iterator[Check]:
    name = "environment"
    forced = forcing_tf32(variables)
    for variable in forced:
        seen = plain(f"{variable}={variables[variable]} forces TF32: fp32 cannot be measured")
        yield fail(name, seen, f"unset {variable}")
    if variables.get(TF32_OVERRIDE) == "0":
        seen = f"{TF32_OVERRIDE}=0 forbids TF32: tf32 cannot be measured"
        yield warn(name, seen, f"unset {TF32_OVERRIDE}")
    for variable, effect in _SLOWING_VARIABLES.items():
        if variables.get(variable, "0") not in {"", "0"}:
            yield warn(name, plain(f"{variable}={variables[variable]} {effect}"), f"unset {variable}")
    if not forced:
        yield ok(name, "no variable forces TF32")


_BUSY_SHARE = 0.25
_LITTLE_MEMORY_BYTES = 4 * GIB
_LITTLE_SHARED_BYTES = GIB // 2


def host_checks(root: Path = Path("/")) -> list[Check]:
    """Every check of the host; ``root`` is "/" but in tests."""
    return [
        *_nodes(root),
        *_container(root),
        *_processors(root),
        *_governor(root),
        *_other_work(),
        *_memory(root),
    ]


def _nodes(root: Path) -> Iterator[Check]:
    nodes, closed = nvidia_nodes(root)
    if closed:
        fix = "join the group that owns them (often video or render), then log in again"
        yield fail("device nodes", "no access to " + ", ".join(closed), fix)
    elif nodes:
        yield ok("device nodes", f"{len(nodes)} below /dev/nvidia*, all open to this user")


def _container(root: Path) -> Iterator[Check]:
    kind = container(root)
    if kind is None:
        return
    shared = root / "dev/shm"
    size = psutil.disk_usage(str(shared)).total if shared.is_dir() else None
    if size is not None and size < _LITTLE_SHARED_BYTES:
        seen = f"{kind}, shared memory {format_bytes(size)}: data loaders with workers need more"
        yield warn("container", seen, "start it with --shm-size=8g or --ipc=host")
    else:
        yield ok("container", kind)


def _processors(root: Path) -> Iterator[Check]:
    threads, quota = usable_threads(), cpu_quota(root)
    name = cpu_name(root) or "unknown"
    seen = f"{name}, {count(threads, 'thread') if threads else 'threads unknown'}"
    if quota is not None and threads is not None and quota < threads:
        seen += f", of which the control group allows the time of {format_number(quota)}"
        fix = f"set OMP_NUM_THREADS={max(1, int(quota))}, or raise the container's CPU limit"
        yield warn("processors", seen, fix)
    else:
        yield ok("processors", seen)


def _governor(root: Path) -> Iterator[Check]:
    policy = cpu_governor(root)
    if policy is None:
        yield ok("clock policy", "not told (a virtual machine, most often)")
    elif policy in {"powersave", "conservative", "ondemand"}:
        seen = f"governor {policy}: host-bound figures vary with it"
        yield warn("clock policy", seen, "cpupower frequency-set -g performance")
    else:
        yield ok("clock policy", f"governor {policy}")


def _other_work() -> Iterator[Check]:
    if not hasattr(os, "getloadavg"):
        return
    load, threads = os.getloadavg()[0], usable_threads() or 1
    seen = f"load {format_number(load)} on {count(threads, 'thread')}"
    if load > max(1.0, _BUSY_SHARE * threads):
        yield warn("other work", seen, "close other programs: they disturb host-bound figures")
    else:
        yield ok("other work", seen)


def _memory(root: Path) -> Iterator[Check]:
    total, free = memory_bytes(root), int(psutil.virtual_memory().available)
    seen = f"{format_bytes(min(free, total))} free of {format_bytes(total)}"
    if min(free, total) < _LITTLE_MEMORY_BYTES:
        yield warn("memory", seen, "close programs: a large batch may be killed by the system")
    else:
        yield ok("memory", seen)
