"""What the operating system says about this machine. ``root`` is "/" but in tests."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

_CONTAINER_MARKS = {
    "docker": r"docker",
    "kubernetes": r"kubepods",
    "containerd": r"containerd",
    "podman": r"libpod",
    "lxc": r"/lxc",
}


def container(root: Path = Path("/")) -> str | None:
    """Kind of container that this process runs in, or None."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    cgroup = root / "proc/1/cgroup"
    text = cgroup.read_text(encoding="utf-8", errors="replace") if _readable(cgroup) else ""
    found = next((name for name, mark in _CONTAINER_MARKS.items() if re.search(mark, text)), None)
    # With version 2 of control groups a container sees its own group as "/": the cluster's variable is left.
    return found or ("kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Memory that the control group allows this process [B]; None where there is no limit."""
    for place in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        file = root / place
        if _readable(file) and (text := file.read_text(encoding="ascii").strip()).isdigit():
            limit = int(text)
            return limit if limit < 2**60 else None  # version 1 writes "none" as a huge number
    return None


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that the control group allows; None where there is no limit."""
    second = root / "sys/fs/cgroup/cpu.max"
    if _readable(second):
        words = second.read_text(encoding="ascii").split()
        return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() else None
    first = root / "sys/fs/cgroup/cpu"
    quota, period = first / "cpu.cfs_quota_us", first / "cpu.cfs_period_us"
    if not (_readable(quota) and _readable(period)):
        return None
    allowed = int(quota.read_text(encoding="ascii"))
    return allowed / int(period.read_text(encoding="ascii")) if allowed > 0 else None


def cpu_governor(root: Path = Path("/")) -> str | None:
    """Clock policy of the first processor; None where the kernel does not show one."""
    file = root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    return file.read_text(encoding="ascii").strip() if _readable(file) else None


def cpu_facts(root: Path = Path("/")) -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo, keys in lower case; empty elsewhere."""
    file = root / "proc/cpuinfo"
    facts: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if _readable(file) else ():
        if not line.strip():
            break
        key, _, value = line.partition(":")
        facts[key.strip().lower()] = value.strip()
    return facts


def os_name() -> str:
    """System and kernel, without the host's name."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def python_version() -> str:
    """Version of this Python."""
    return ".".join(str(n) for n in sys.version_info[:3])


def usable_threads() -> int | None:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _readable(file: Path) -> bool:
    return file.is_file() and os.access(file, os.R_OK)
