"""The CPU as a device: it runs the same workloads where there is no GPU, and says so."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpubench.children import text_of
from gpubench.models import DeviceProfile
from gpubench.probe import system
from gpubench.probe.backend import BackendReport, WithoutReadings

# Instructions that multiply in a reduced format, as /proc/cpuinfo names them (x86, then Arm).
_INSTRUCTIONS = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "fp16": ("avx512_fp16", "amx_fp16", "asimdhp"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "i8mm"),
}
_WORTH_NAMING = ("sse4_2", "avx", "avx2", "fma", "avx512f", "asimd", "sve", "sve2")
_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "0x41": "Arm", "0x61": "Apple"}


@dataclass(frozen=True)
class CpuBackend(WithoutReadings):
    """The one CPU of this machine, as far as this process may use it."""

    name: str = "cpu"
    root: Path = Path("/")

    def devices(self) -> BackendReport:
        """The CPU, always."""
        return BackendReport(devices=(self.profile(),), states=(None,))

    def profile(self) -> DeviceProfile:
        """Name, cores, memory, and the reduced formats that it has instructions for."""
        facts = system.cpu_facts(self.root)
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


BACKEND = CpuBackend()


def cpu_name(root: Path = Path("/")) -> str | None:
    """Marketing name of the processor."""
    facts = system.cpu_facts(root)
    if name := facts.get("model name") or facts.get("hardware"):
        return " ".join(name.split())
    if sys.platform == "darwin":
        return text_of(["sysctl", "-n", "machdep.cpu.brand_string"])
    return platform.processor() or platform.machine() or None


def core_count() -> int | None:
    """Physical cores that this process may use."""
    physical, usable = psutil.cpu_count(logical=False), system.usable_threads()
    counts = [n for n in (physical, usable) if n]
    return min(counts) if counts else None


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory of the machine, or of this container where it is given less [B]."""
    total = int(psutil.virtual_memory().total)
    limit = system.memory_limit_bytes(root)
    return total if limit is None else min(total, limit)


def instructions(root: Path = Path("/")) -> frozenset[str]:
    """Instruction set extensions, by the kernel's names."""
    facts = system.cpu_facts(root)
    words = frozenset(facts.get("flags", facts.get("features", "")).split())
    if sys.platform == "darwin" and text_of(["sysctl", "-n", "hw.optional.arm.FEAT_BF16"]) == "1":
        words |= {"bf16"}
    return words


def named_instructions(root: Path = Path("/")) -> tuple[str, ...]:
    """Those extensions that decide how fast this CPU trains."""
    known = {name for names in _INSTRUCTIONS.values() for name in names} | set(_WORTH_NAMING)
    return tuple(sorted(known & instructions(root)))
