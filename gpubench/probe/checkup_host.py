"""The checks of the machine around the device: processors, clock policy, memory, other work, device nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from gpubench.probe import cpu, system
from gpubench.probe.check import Check, fail, ok, warn
from gpubench.units import GIB, count, format_bytes, format_number

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
    nodes = sorted((root / "dev").glob("nvidia*"))
    wanted = [n for n in nodes if not n.is_dir()]
    closed = [f"/dev/{n.name}" for n in wanted if not os.access(n, os.R_OK | os.W_OK)]
    if closed:
        fix = "join the group that owns them (often video or render), then log in again"
        yield fail("device nodes", "no access to " + ", ".join(closed), fix)
    elif wanted:
        yield ok("device nodes", f"{len(wanted)} below /dev/nvidia*, all open to this user")


def _container(root: Path) -> Iterator[Check]:
    kind = system.container(root)
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
    threads, quota = system.usable_threads(), system.cpu_quota(root)
    name = cpu.cpu_name(root) or "unknown"
    seen = f"{name}, {count(threads, 'thread') if threads else 'threads unknown'}"
    if quota is not None and threads is not None and quota < threads:
        seen += f", of which the control group allows the time of {format_number(quota)}"
        fix = f"set OMP_NUM_THREADS={max(1, int(quota))}, or raise the container's CPU limit"
        yield warn("processors", seen, fix)
    else:
        yield ok("processors", seen)


def _governor(root: Path) -> Iterator[Check]:
    policy = system.cpu_governor(root)
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
    load, threads = os.getloadavg()[0], system.usable_threads() or 1
    seen = f"load {format_number(load)} on {count(threads, 'thread')}"
    if load > max(1.0, _BUSY_SHARE * threads):
        yield warn("other work", seen, "close other programs: they disturb host-bound figures")
    else:
        yield ok("other work", seen)


def _memory(root: Path) -> Iterator[Check]:
    total, free = cpu.memory_bytes(root), int(psutil.virtual_memory().available)
    seen = f"{format_bytes(min(free, total))} free of {format_bytes(total)}"
    if min(free, total) < _LITTLE_MEMORY_BYTES:
        yield warn("memory", seen, "close programs: a large batch may be killed by the system")
    else:
        yield ok("memory", seen)
