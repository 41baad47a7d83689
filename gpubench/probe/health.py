"""Checks whether a device is ready to measure: use by others, limits, and the checks of ``gpubench doctor``.

Most containers hide other processes, and utilization lags behind a load that has just ended. Use by others is
therefore judged from the process list, utilization and memory together, and must be seen twice before a run
is refused. The checks of ``doctor`` start with the software; each reports what it saw and how to fix it.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from gpubench.errors import MisuseError, NoDeviceError, seen_and_fix
from gpubench.installing import pip_install
from gpubench.models import DeviceProfile, Finding, FindingKind
from gpubench.precisions import TF32_OVERRIDE, forcing_tf32
from gpubench.probe.backend import DeviceState, ProbeReport, Readings, unusable
from gpubench.probe.host import (
    container,
    cpu_governor,
    cpu_name,
    cpu_quota,
    free_memory_bytes,
    memory_bytes,
    nvidia_nodes,
    usable_threads,
)
from gpubench.probe.select import CUDA_VARIABLE, given_none, visible_devices, why_hidden
from gpubench.probe.torch_view import torch_problem, torch_view
from gpubench.units import GIB, UNKNOWN, Seconds, count, format_bytes, format_number, format_percent, plain
from gpubench.workload import OR_CPU_BUILD

BUSY_LIMIT = 0.05
"""Highest utilization of an unused GPU: an idle one shows 0 to 1 %, and desktop graphics stay below this."""
MEMORY_LIMIT = 0.02
"""Highest memory use of an unused GPU, without the driver's reserve, as a share of total memory."""
POWER_CAP_LIMIT = 0.98
"""Ratio of enforced to default power limit below which a card is slower than its model should be."""
SECOND_LOOK_AFTER_S = 1.0
# Lanes of a PCIe link below which copies are slow.
_NARROW_LINK = 4


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a device by others; ``refuse`` is False if they only hold memory."""

    finding: Finding  # without process ids, which mean nothing in a stored run
    refuse: bool
    pids: tuple[int, ...] = ()


def preflight(
    device: DeviceProfile,
    readings: Readings,
    *,
    allow_shared: bool = False,
    wait: Callable[[Seconds], None] = time.sleep,
) -> tuple[Finding, ...]:
    """Check, in about a second, whether a device is in use or power-capped.

    Args:
        device: The probed device.
        readings: Open readings of this device.
        allow_shared: Whether to report use by others as a finding instead of refusing the run.
        wait: Sleeps between two observations; tests pass a fake clock.

    Returns:
        ``SHARED_GPU`` and ``POWER_CAPPED`` if they apply.

    Raises:
        NoDeviceError: If the compute mode excludes this run, or if others use the device and ``allow_shared``
            is False.
    """
    mode = readings.compute_mode()
    if mode not in {None, "default"}:
        foreign = ", ".join(map(str, _foreign(readings)))
        refusal = why_excluded(device, mode, f"PIDs {foreign}" if foreign else None)
        if refusal is not None:
            raise NoDeviceError(refusal)
    sharing = look_twice(device, readings, wait=wait)
    if sharing is not None and sharing.refuse and not allow_shared:
        who = f" (PIDs {', '.join(map(str, sharing.pids))})" if sharing.pids else ""
        raise NoDeviceError(
            f"{_label(device)} is in use by others: {sharing.finding.value}{who}; end them or choose another "
            "GPU with --device; `gpubench run` also takes --allow shared, which marks every figure"
        )
    return tuple(filter(None, (sharing.finding if sharing else None, power_capped(device))))


def look_twice(
    device: DeviceProfile, readings: Readings, *, wait: Callable[[Seconds], None] = time.sleep
) -> Sharing | None:
    """Return the use by others if two observations one second apart both see it.

    Use of memory alone is no reason to refuse a run, so one observation of it is enough.
    """
    first = _look(device, readings)
    if first is None or not first.refuse:
        return first
    wait(SECOND_LOOK_AFTER_S)
    second = _look(device, readings)
    return second if second is not None and second.refuse else None


def power_capped(device: DeviceProfile) -> Finding | None:
    """Return ``POWER_CAPPED`` if the enforced power limit is too small a share of the default one."""
    enforced_w, default_w = device.power_limit_w, device.power_limit_default_w
    if enforced_w is None or not default_w or enforced_w >= POWER_CAP_LIMIT * default_w:
        return None
    return Finding(
        kind=FindingKind.POWER_CAPPED, value=round(enforced_w / default_w, 3), limit=POWER_CAP_LIMIT
    )


def _foreign(readings: Readings) -> list[int]:
    # The ids of other compute processes on a device, as the driver lists them.
    return [pid for pid in readings.compute_pids() or () if pid != os.getpid()]


def _look(device: DeviceProfile, readings: Readings) -> Sharing | None:
    foreign = tuple(_foreign(readings))
    now, used = readings.sample(), readings.memory_in_use_bytes()
    sharing = _use(device, len(foreign), now.utilization, used)
    return None if sharing is None else msgspec.structs.replace(sharing, pids=foreign)


def _use(
    device: DeviceProfile, others: int, utilization: float | None, used_bytes: int | None
) -> Sharing | None:
    """Judge use by others from the process list, else from utilization, else from memory."""
    share = 0.0 if device.unified_memory else (used_bytes or 0) / (device.memory_bytes or math.inf)
    if others:
        seen, limit, refuse = count(others, "other process"), None, True
    elif utilization is not None and utilization > BUSY_LIMIT:
        seen, limit, refuse = f"{format_percent(utilization)} busy, no process listed", BUSY_LIMIT, True
    elif share > MEMORY_LIMIT:
        seen, limit, refuse = f"{format_percent(share)} of memory in use", MEMORY_LIMIT, False
    else:
        return None
    finding = Finding(kind=FindingKind.SHARED_GPU, value=seen, limit=limit)
    return Sharing(finding=finding, refuse=refuse)


def why_excluded(device: DeviceProfile, mode: str | None, taken_by: str | None) -> str | None:
    """Return why the compute mode excludes a run from a device; None if it does not.

    Args:
        device: The probed device.
        mode: The compute mode of the device; None if unknown.
        taken_by: The other processes that compute on the device, in words.
    """
    back = f"set the mode back with nvidia-smi -i {device.index} -c DEFAULT"
    if mode == "prohibited":
        return f"{_label(device)} is in compute mode {mode}: no program may use it; {back}"
    if mode in {"exclusive_process", "exclusive_thread"} and taken_by is not None:
        return (
            f"{_label(device)} is in compute mode {mode} and in use ({taken_by}); end that process or {back}"
        )
    return None


def _label(device: DeviceProfile) -> str:
    return f"GPU {device.index} ({plain(device.name or 'unknown')})"


def limits(device: DeviceProfile, state: DeviceState | None) -> list[str]:
    """Return what currently limits a device: one line per limit, with a fix if there is one."""
    found = []
    limit, default = device.power_limit_w, device.power_limit_default_w
    if limit and default and power_capped(device) is not None:
        restore = "restore the default with the driver's own tool"
        if device.is_nvidia:
            restore = f"restore it: nvidia-smi -i {device.index} -pl {default:.0f}"
        found.append(
            f"power limit {format_number(limit)} W of {format_number(default)} W "
            f"({format_percent(limit / default)}); {restore}"
        )
    if device.mig_enabled:
        found.append("MIG mode: this is a slice of the card, not the card")
    if device.virtualization in {"vgpu", "host_vgpu", "host_vsga"}:
        found.append(f"virtual GPU ({device.virtualization}): the card is shared with other machines")
    if state is None:
        return found
    found += _link(device, state)
    found += (f"clock held down by {plain(reason)}" for reason in state.clock_event_reasons or ())
    use = _use(device, state.process_count or 0, state.utilization, state.memory_in_use_bytes)
    if use is not None:
        found.append(f"{use.finding.value}; end processes that are not needed, or choose another GPU")
    if state.compute_mode not in {None, "default"}:
        found.append(
            f"compute mode {state.compute_mode}; set it back with nvidia-smi -i {device.index} -c DEFAULT"
        )
    return found


def _link(device: DeviceProfile, state: DeviceState) -> Iterator[str]:
    width, most = state.pcie_width_now, device.pcie_width
    if width is not None and most is not None and width < most:
        yield f"PCIe link x{width} of x{most}; check seating and slot (some laptops are wired this way)"
    elif most is not None and most <= _NARROW_LINK:
        yield f"PCIe link of x{most}: copies to and from the host are slow; use a wider slot"
    generation, best = state.pcie_generation_now, device.pcie_generation
    if generation is not None and best is not None and generation < best and state.idle is False:
        yield f"PCIe generation {generation} of {best} while busy; check the slot and the BIOS"
    if best is not None and state.pcie_generation_card is not None and best < state.pcie_generation_card:
        yield f"the slot supports PCIe generation {best}, the card generation {state.pcie_generation_card}"


class Check(msgspec.Struct, frozen=True):
    """The result of one check.

    ``fail`` prevents a run, ``warn`` makes its figures less reliable, and ``none`` means that the part is
    absent and not needed.
    """

    status: Literal["ok", "none", "warn", "fail"]
    name: str
    seen: str
    fix: str | None = None


_NEWEST_PYTHON = (3, 13)
_OLDEST_TORCH = (2, 4)
# Variables that slow down every step, and what each does.
_SLOWING_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "makes every kernel wait for the previous one",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "asks the driver for every allocation",
    "TORCH_USE_CUDA_DSA": "checks every access on the device",
}


def slowing(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that slow down every step on a GPU, with what each does."""
    return {
        name: plain(f"{name}={variables[name]} {effect}")
        for name, effect in _SLOWING_VARIABLES.items()
        if variables.get(name, "0") not in {"", "0"}
    }


def check_up(report: ProbeReport, environment: Mapping[str, str] | None = None) -> tuple[Check, ...]:
    """Check everything between Python and the GPU, and the machine around it.

    Args:
        report: From ``probe()``.
        environment: Environment variables; None for those of this process.
    """
    variables = os.environ if environment is None else environment
    seen = [(d, s) for d, s in zip(report.devices, report.states, strict=True) if not d.is_cpu]
    gpus = [device for device, _ in seen if device.is_nvidia]
    all_taken = all(state is not None and state.process_count for _, state in seen)
    return (
        _python(report),
        _torch(report),
        _binding(),
        *_driver(report, gpus),
        *_visibility(gpus, variables, unusable(report.problems)),
        *_torch_reaches(gpus, variables),
        *(check for device, state in seen for check in _gpu(device, state, all_taken=all_taken)),
        *_variables(variables),
        *host_checks(),
    )


def failed(checks: Iterable[Check]) -> bool:
    """Return whether any check prevents a measurement."""
    return any(check.status == "fail" for check in checks)


def _warned(name: str, seen: str, fix: str, *, when: bool) -> Check:
    return Check("warn", name, seen, fix) if when else Check("ok", name, seen)


def _python(report: ProbeReport) -> Check:
    fix = f"gpubench is tested up to {'.'.join(map(str, _NEWEST_PYTHON))}; use that if in doubt"
    return _warned("Python", report.host.python, fix, when=sys.version_info[:2] > _NEWEST_PYTHON)


def _torch(report: ProbeReport) -> Check:
    host = report.host
    if host.torch is None:
        return Check("fail", "torch", "not installed", f"{pip_install('torch')}; {OR_CPU_BUILD}")
    build = f"CUDA {host.torch_cuda}" if host.torch_cuda else "ROCm" if host.torch_hip else "CPU only"
    seen = f"{plain(host.torch)} ({build})"
    numbers = host.torch.split("+")[0].split(".")[:2]
    if all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) < _OLDEST_TORCH:
        return Check("fail", "torch", seen, "install torch 2.4 or later")
    return Check("ok", "torch", seen)


def _binding() -> Check:
    name = "driver binding"
    installed = {(d.metadata["Name"] or "").lower() for d in metadata.distributions()}
    if "nvidia-ml-py" not in installed:
        return Check("fail", name, "nvidia-ml-py is not installed", pip_install("nvidia-ml-py"))
    retired = ", together with the retired package pynvml" if "pynvml" in installed else ""
    seen = f"nvidia-ml-py {metadata.version('nvidia-ml-py')}{retired}"
    fix = f"pip uninstall pynvml, then {pip_install('--force-reinstall', 'nvidia-ml-py')}"
    return _warned(name, seen, fix, when=bool(retired))


def _driver(report: ProbeReport, gpus: Sequence[DeviceProfile]) -> Iterator[Check]:
    if gpus:
        seen = f"{gpus[0].driver_version or UNKNOWN}, CUDA {gpus[0].cuda_driver_version or UNKNOWN}"
        yield Check("ok", "NVIDIA driver", f"{seen}, {report.host.nvml_library or 'path unknown'}")
    for problem in report.problems:
        known = {"torch": "torch and driver", "cuda": "NVIDIA driver", "rocm": "AMD driver"}
        name = known.get(problem.backend, f"backend {plain(problem.backend)}")
        if problem.device_index is not None:
            name = f"GPU {problem.device_index}"
        if problem.exit_code or gpus:
            yield Check("fail" if problem.exit_code else "warn", name, problem.seen(), problem.fix)
        else:
            yield Check("none", name, problem.seen())


def _visibility(
    gpus: Sequence[DeviceProfile], variables: Mapping[str, str], broken: Mapping[int, str]
) -> Iterator[Check]:
    name = CUDA_VARIABLE
    text = variables.get(name)
    if text is None:
        return
    if not gpus:
        yield Check("ok", name, f"{text!r}, and no GPU here to show or hide")
        return
    try:
        visible = visible_devices(gpus, variables, unusable=broken)
    except (MisuseError, NoDeviceError) as error:
        yield Check("fail", name, error.seen, error.fix)
        return
    if visible:
        yield Check("ok", name, f"{text!r} selects " + ", ".join(f"GPU {d.index}" for d in visible))
    else:
        fix = "ask the scheduler for a GPU" if given_none(variables) else f"unset {name}"
        yield Check("warn", name, f"{why_hidden(variables)}: runs measure the CPU", fix)


def _torch_reaches(gpus: Sequence[DeviceProfile], variables: Mapping[str, str]) -> Iterator[Check]:
    # Opens each GPU with torch in a child process, and compares what torch and the driver report.
    for device in gpus:
        if torch_problem(device) is not None:
            return  # already reported
        seen, fix = torch_view(device, variables)
        name = f"GPU {device.index} in torch"
        yield Check("ok", name, seen) if fix is None else Check("fail", name, seen, fix)


def _gpu(device: DeviceProfile, state: DeviceState | None, *, all_taken: bool) -> Iterator[Check]:
    # A run refuses a GPU that another process uses; while another GPU is free, that is only a warning.
    name, refusal = f"GPU {device.index}", None
    if state is not None:
        others = count(state.process_count, "process") if state.process_count else None
        refusal = why_excluded(device, state.compute_mode, others)
        if refusal is None and all_taken:
            refusal = f"in use by {others}; end what is not needed, or add --allow shared to gpubench run"
            # reported here, so ``limits`` need not report it again
            state = msgspec.structs.replace(
                state, process_count=None, utilization=None, memory_in_use_bytes=None
            )
        if refusal is not None:
            yield Check("fail", name, *seen_and_fix(refusal))
            state = msgspec.structs.replace(state, compute_mode=None)  # already reported
    reasons = limits(device, state)
    if not reasons and refusal is None:
        yield Check("ok", name, f"{plain(device.name or 'unnamed')}, no limit reported by the driver")
    for reason in reasons:
        seen, fix = seen_and_fix(reason)
        yield Check("warn", name, seen, fix or "compare only with runs that have the same mark")
    if state is not None and state.persistence_mode is False and not device.mig_enabled:
        seen = "persistence mode is off: the driver unloads between runs and starts slowly"
        yield Check("warn", name, seen, f"nvidia-smi -i {device.index} -pm 1")


def _variables(variables: Mapping[str, str]) -> Iterator[Check]:
    name = "environment"
    forced = forcing_tf32(variables)
    for variable in forced:
        seen = plain(f"{variable}={variables[variable]} forces TF32: fp32 cannot be measured")
        yield Check("fail", name, seen, f"unset {variable}")
    if variables.get(TF32_OVERRIDE) == "0":
        seen = f"{TF32_OVERRIDE}=0 forbids TF32: tf32 cannot be measured"
        yield Check("warn", name, seen, f"unset {TF32_OVERRIDE}")
    for variable, seen in slowing(variables).items():
        yield Check("warn", name, seen, f"unset {variable}")
    if not forced:
        yield Check("ok", name, "no variable forces TF32")


# Highest load of an idle host, per usable thread.
_BUSY_SHARE = 0.25
# Less free memory, or less shared memory in a container, gets a warning.
_LITTLE_MEMORY_BYTES = 4 * GIB
_LITTLE_SHARED_BYTES = GIB // 2


def host_checks(root: Path = Path("/")) -> list[Check]:
    """Run every check of the host; ``root`` is "/" except in tests."""
    return [
        *_nodes(root),
        *_container(root),
        _processors(root),
        _governor(root),
        *_other_work(),
        _memory(root),
    ]


def _nodes(root: Path) -> Iterator[Check]:
    nodes, closed = nvidia_nodes(root)
    if closed:
        fix = "join the group that owns them (often video or render), then log in again"
        yield Check("fail", "device nodes", "no access to " + ", ".join(closed), fix)
    elif nodes:
        yield Check("ok", "device nodes", f"{count(len(nodes), '/dev/nvidia* node')}, all open to this user")


def _container(root: Path) -> Iterator[Check]:
    kind = container(root)
    if kind is None:
        return
    shared = root / "dev/shm"
    size = psutil.disk_usage(str(shared)).total if shared.is_dir() else None
    is_small = size is not None and size < _LITTLE_SHARED_BYTES
    little = f", shared memory {format_bytes(size)}: data loaders with workers need more"
    fix = "start it with --shm-size=8g or --ipc=host"
    yield _warned("container", f"{kind}{little if is_small else ''}", fix, when=is_small)


def _processors(root: Path) -> Check:
    threads, quota = usable_threads(), cpu_quota(root) or math.inf
    seen = f"{cpu_name(root) or 'unknown'}, {count(threads, 'thread') if threads else 'threads unknown'}"
    is_limited = quota < (threads or 0)
    limited = f", limited by the control group to {format_number(quota)} of them"
    fix = f"set OMP_NUM_THREADS={max(1, int(min(quota, threads or 1)))}, or raise the container's CPU limit"
    return _warned("processors", f"{seen}{limited if is_limited else ''}", fix, when=is_limited)


def _governor(root: Path) -> Check:
    policy = cpu_governor(root)
    varies = policy in {"powersave", "conservative", "ondemand"}
    effect = ": host-bound figures vary with it" if varies else ""
    seen = f"governor {policy}{effect}" if policy else "not reported (usual in a virtual machine)"
    return _warned("clock policy", seen, "cpupower frequency-set -g performance", when=varies)


def _other_work() -> Iterator[Check]:
    if not hasattr(os, "getloadavg"):
        return
    load, threads = os.getloadavg()[0], usable_threads() or 1
    seen = f"load {format_number(load)} on {count(threads, 'thread')}"
    fix = "close other programs: they disturb host-bound figures"
    yield _warned("other work", seen, fix, when=load > max(1.0, _BUSY_SHARE * threads))


def _memory(root: Path) -> Check:
    free = free_memory_bytes(root)
    seen = f"{format_bytes(free)} free of {format_bytes(memory_bytes(root))}"
    fix = "close programs: the system may kill a run with a large batch"
    return _warned("memory", seen, fix, when=free < _LITTLE_MEMORY_BYTES)
