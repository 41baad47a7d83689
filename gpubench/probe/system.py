"""What the operating system says about this machine. ``root`` is "/" but in tests."""

from __future__ import annotations

import contextlib
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


def read_text(file: Path) -> str | None:
    """The text of a system file, stripped; None where it is missing, closed or gives an error when read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def container(root: Path = Path("/")) -> str | None:
    """Kind of container that this process runs in, or None."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    text = read_text(root / "proc/1/cgroup") or ""
    found = next((name for name, mark in _CONTAINER_MARKS.items() if re.search(mark, text)), None)
    # With version 2 of control groups a container sees its own group as "/": the cluster's variable is left.
    return found or ("kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else None)


def nvidia_nodes(root: Path = Path("/")) -> tuple[list[str], list[str]]:
    """NVIDIA's device nodes, and those of them that this user may not open."""
    nodes = sorted(n for n in (root / "dev").glob("nvidia*") if not n.is_dir())
    closed = [n for n in nodes if not os.access(n, os.R_OK | os.W_OK)]
    return [f"/dev/{n.name}" for n in nodes], [f"/dev/{n.name}" for n in closed]


def on_battery() -> bool:
    """Whether this is a laptop that is not plugged in, as far as the system tells."""
    import psutil

    battery = None
    with contextlib.suppress(AttributeError, OSError, ValueError, psutil.Error):  # not on every system
        battery = psutil.sensors_battery()
    return battery is not None and battery.power_plugged is False


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Memory that the control group allows this process [B]; None where there is no limit."""
    for place in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _whole(read_text(root / place))
        if limit is not None:
            return limit if 0 < limit < 2**60 else None  # version 1 writes "none" as a huge number
    return None


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that the control group allows; None where there is no limit."""
    groups = root / "sys/fs/cgroup"
    words = (read_text(groups / "cpu.max") or "").split()
    if len(words) != 2:  # version 1 has a file for each
        words = [read_text(groups / f"cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    allowed, period = _whole(words[0]), _whole(words[1])
    return allowed / period if allowed and period else None


def cpu_governor(root: Path = Path("/")) -> str | None:
    """Clock policy of the first processor; None where the kernel does not show one."""
    return read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None


def cpu_facts(root: Path = Path("/")) -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo, keys in lower case; empty elsewhere."""
    facts: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
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


def _whole(text: str | None) -> int | None:
    """A whole number of ordinary length, else None: "max", "-1", nothing, or nonsense."""
    return int(text) if text and re.fullmatch(r"[0-9]{1,20}", text) else None
