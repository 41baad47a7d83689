"""This machine: facts from its operating system, its CPU as a device, and the GPU of an Apple chip.

``root`` is "/" except in tests. On a machine without a GPU, gpubench runs the same workloads on the CPU
and says so. Torch reaches the GPU of an Apple chip as ``mps``; gpubench reads no telemetry from it. The code
for that GPU follows the manual page of system_profiler and was tested with mocks. No Mac was available.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from gpubench.children import text_of
from gpubench.models import DeviceProfile
from gpubench.probe.backend import NO_SPEC, Backend, BackendReport
from gpubench.probe.plausible import SMS
from gpubench.specs import find_spec

_CONTAINER_MARKS = {
    "docker": r"docker",
    "kubernetes": r"kubepods",
    "containerd": r"containerd",
    "podman": r"libpod",
    "lxc": r"/lxc",
}


def read_text(file: Path) -> str | None:
    """Return the text of a system file, stripped; None if it is missing or cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def container(root: Path = Path("/")) -> str | None:
    """Return the kind of container that this process runs in; None if it runs in none."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    text = read_text(root / "proc/1/cgroup") or ""
    found = next((name for name, mark in _CONTAINER_MARKS.items() if re.search(mark, text)), None)
    # With cgroups v2 a container sees its own group as "/", so only the cluster's variable shows it.
    return found or ("kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else None)


def nvidia_nodes(root: Path = Path("/")) -> tuple[list[str], list[str]]:
    """Return NVIDIA's device nodes, and which of them this user may not open."""
    nodes = sorted(n for n in (root / "dev").glob("nvidia*") if not n.is_dir())
    closed = [n for n in nodes if not os.access(n, os.R_OK | os.W_OK)]
    return [f"/dev/{n.name}" for n in nodes], [f"/dev/{n.name}" for n in closed]


def on_battery() -> bool:
    """Return whether the system reports a laptop on battery power."""
    battery = None
    with contextlib.suppress(AttributeError, OSError, ValueError, psutil.Error):  # not on every system
        battery = psutil.sensors_battery()
    return battery is not None and battery.power_plugged is False


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory limit of the control group [B]; None if there is none."""
    for place in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _whole(read_text(root / place))
        if limit is not None:
            return limit if 0 < limit < 2**60 else None  # cgroups v1 writes "none" as a huge number
    return None


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU quota of the control group, as a number of processors; None if there is none."""
    groups = root / "sys/fs/cgroup"
    words = (read_text(groups / "cpu.max") or "").split()
    if len(words) != 2:  # cgroups v1 has a file for each number
        words = [read_text(groups / f"cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    allowed, period = _whole(words[0]), _whole(words[1])
    return allowed / period if allowed and period else None


def cpu_governor(root: Path = Path("/")) -> str | None:
    """Return the clock policy of the first processor; None if the kernel does not report it."""
    return read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None


def cpu_facts(root: Path = Path("/")) -> dict[str, str]:
    """Return the entries of the first processor in /proc/cpuinfo by lowercase key; empty on other systems."""
    first = re.split(r"\n\s*\n", read_text(root / "proc/cpuinfo") or "")[0]
    entries = (line.partition(":") for line in first.splitlines())
    return {key.strip().lower(): value.strip() for key, _, value in entries}


def os_name() -> str:
    """Return the operating system, kernel release and machine type, without the host's name."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def usable_threads() -> int | None:
    """Return the number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _whole(text: str | None) -> int | None:
    # An integer of ordinary length; None for "max", "-1", an empty text or nonsense.
    return int(text) if text and re.fullmatch(r"[0-9]{1,20}", text) else None


# Instructions that multiply in a reduced-precision format, by name in /proc/cpuinfo (x86, then Arm).
_INSTRUCTIONS = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "fp16": ("avx512_fp16", "amx_fp16", "asimdhp"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "i8mm"),
}
_OTHER_EXTENSIONS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "asimd", "sve", "sve2")
_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "0x41": "Arm", "0x61": "Apple"}


@dataclass(frozen=True)
class CpuBackend(Backend):
    """The CPU of this machine, limited to the cores that this process may use."""

    name: str = "cpu"
    root: Path = Path("/")

    def devices(self) -> BackendReport:
        """Return the CPU as the only device; every machine has one."""
        return BackendReport(devices=(self.profile(),), states=(None,))

    def profile(self) -> DeviceProfile:
        """Describe the CPU: name, cores, memory, and the reduced-precision formats that it supports."""
        facts = cpu_facts(self.root)
        flags = instructions(self.root)
        vendor = facts.get("vendor_id", facts.get("cpu implementer", ""))
        return DeviceProfile(
            backend="cpu",
            vendor=_VENDORS.get(vendor, vendor or None),
            name=cpu_name(self.root),
            architecture=platform.machine() or None,
            core_count=core_count(),
            memory_bytes=memory_bytes(self.root),
            unified_memory=True,
            tensor_core_precisions=tuple(
                kind for kind, names in _INSTRUCTIONS.items() if flags.intersection(names)
            ),
        )


CPU = CpuBackend()


def cpu_name(root: Path = Path("/")) -> str | None:
    """Return the marketing name of the processor."""
    facts = cpu_facts(root)
    if name := facts.get("model name") or facts.get("hardware"):
        return " ".join(name.split())
    if sys.platform == "darwin":
        return text_of(["sysctl", "-n", "machdep.cpu.brand_string"])
    return platform.processor() or platform.machine() or None


def core_count() -> int | None:
    """Return the number of physical cores or of usable processor threads, whichever is lower."""
    return min(filter(None, (psutil.cpu_count(logical=False), usable_threads())), default=None)


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory of the machine, or the limit of this container if that is lower [B]."""
    total = int(psutil.virtual_memory().total)
    limit = memory_limit_bytes(root)
    return total if limit is None else min(total, limit)


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that is free in the machine, or in this container if that is less [B].

    In the container, that is its limit minus the memory charged to it, without file pages that the kernel can
    drop.
    """
    free, limit = int(psutil.virtual_memory().available), memory_limit_bytes(root)
    v2, v1 = root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"
    charged = _whole(read_text(v2 / "memory.current") or read_text(v1 / "memory.usage_in_bytes")) or 0
    pages = read_text(v2 / "memory.stat") or read_text(v1 / "memory.stat") or ""
    droppable = re.findall(r"^(?:total_)?inactive_file ([0-9]{1,20})$", pages, re.MULTILINE)
    held = charged - max(map(int, droppable), default=0)
    return free if limit is None else max(0, min(free, limit - held))


def instructions(root: Path = Path("/")) -> frozenset[str]:
    """Return the instruction set extensions of the CPU, by their names in the kernel."""
    facts = cpu_facts(root)
    words = frozenset(facts.get("flags", facts.get("features", "")).split())
    if sys.platform == "darwin" and text_of(["sysctl", "-n", "hw.optional.arm.FEAT_BF16"]) == "1":
        words |= {"bf16"}
    return words


def named_instructions(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the extensions that affect how fast this CPU trains."""
    known = {name for names in _INSTRUCTIONS.values() for name in names} | set(_OTHER_EXTENSIONS)
    return tuple(sorted(known & instructions(root)))


_PROFILER_LIMIT_S = 10.0


class AppleBackend(Backend):
    """The GPU of an Apple chip, which has exactly one."""

    name = "mps"

    def devices(self) -> BackendReport:
        """List the GPU of this chip; nothing on any other machine."""
        if platform.system() != "Darwin" or platform.machine() != "arm64":
            return BackendReport()
        answer = text_of(["system_profiler", "SPDisplaysDataType", "-json"], time_limit_s=_PROFILER_LIMIT_S)
        try:
            listed = msgspec.json.decode(answer or "", type=dict[str, list[dict[str, Any]]])
            display = listed["SPDisplaysDataType"][0]
        except (msgspec.MsgspecError, LookupError):
            display = {}
        unavailable = {}
        if (name := display.get("sppci_model")) is None:
            unavailable["name"] = "system_profiler SPDisplaysDataType: no model"
        try:
            cores = SMS(int(display.get("sppci_cores", "")))
        except ValueError:  # not a number, or not a plausible one
            cores = None
            unavailable["sm_count"] = "system_profiler SPDisplaysDataType: no core count"
        spec = None if name is None else find_spec(name)
        if spec is None:
            unavailable["gpu_key"] = NO_SPEC
        profile = DeviceProfile(
            backend="mps",
            vendor="Apple",
            name=name,
            gpu_key=None if spec is None else spec.key,
            index=0,
            architecture="Apple",
            sm_count=cores,
            memory_bytes=int(psutil.virtual_memory().total),
            unified_memory=True,
            unavailable=unavailable,
        )
        return BackendReport(devices=(profile,), states=(None,))


APPLE = AppleBackend()
