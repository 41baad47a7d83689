"""AMD GPUs as the Linux kernel driver amdgpu shows them below /sys: no library, no torch.

Written after the kernel's documentation (gpu/amdgpu: hwmon, busy percentages, memory totals; the compute
topology of amdkfd), and tested on what three machines recorded (tests/data/amd) and on made-up folders. No
AMD GPU was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpubench.models import DeviceProfile
from gpubench.probe import plausible, system
from gpubench.probe.amd_readings import AmdReadings, Folder, open_readings
from gpubench.probe.backend import BackendReport, DeviceGoneError, DeviceState
from gpubench.specs import find_spec

_VENDOR_AMD = 4098
_TOPOLOGY = "topology"
# Reduced formats of the matrix units by architecture: AMD's instruction set guides, CDNA and RDNA (WMMA).
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "gfx908": ("fp16", "bf16", "int8"),
    "gfx90a": ("fp16", "bf16", "int8"),
    "gfx94": ("fp16", "bf16", "int8", "fp8"),
    "gfx95": ("fp16", "bf16", "int8", "fp8", "fp6", "fp4"),
    "gfx11": ("fp16", "bf16", "int8"),
    "gfx12": ("fp16", "bf16", "int8", "fp8"),
}
# Transfer rate of one PCIe lane by generation, as the kernel prints it [GT/s].
_PCIE_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
# The native units of the kernel's files.
_HIGHEST_CLOCK = plausible.HIGHEST_SM_CLOCK.of("MHz", factor=10**6)


@dataclass(frozen=True)
class AmdBackend:
    """AMD GPUs that the compute driver lists; ``root`` is "/" but in tests."""

    name: str = "rocm"
    root: Path = Path("/")

    def devices(self) -> BackendReport:
        """List the GPUs in the order of the compute driver, which is that of ROCm."""
        nodes = []
        files = (self.root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
        for file in sorted(files, key=lambda f: int(f.parent.name) if f.parent.name.isdigit() else 0):
            text = system.read_text(file) or ""  # a container may not have been given this one
            node = {k: int(v) for k, v in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
            if node.get("simd_count") and node.get("vendor_id") == _VENDOR_AMD:
                nodes.append(node)
        found = [_device(self.root, n, node) for n, node in enumerate(nodes)]
        return BackendReport(devices=tuple(d for d, _ in found), states=tuple(s for _, s in found))

    def open_readings(self, device: DeviceProfile) -> AmdReadings:
        """Open the readings of one GPU: through AMD's library where it is installed, else of the kernel.

        Raises:
            DeviceGoneError: If the kernel no longer shows it.
        """
        folder = self.root / "sys/bus/pci/devices" / (device.pci_bus_id or "unknown")
        if not folder.is_dir():
            gone = f"GPU {device.index} ({device.name}) is no longer listed by the kernel; see dmesg, reboot"
            raise DeviceGoneError(gone, "gpu_lost")
        return open_readings(device.pci_bus_id or "", folder)


BACKEND = AmdBackend()


def _device(root: Path, index: int, node: Mapping[str, int]) -> tuple[DeviceProfile, DeviceState]:
    """Describe one GPU of the compute topology by its properties there, and what it is doing."""
    place = node.get("location_id", 0)
    bus_id = f"{node.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
    refused: dict[str, str] = {}
    of = Folder(root / "sys/bus/pci/devices" / bus_id, refused)
    readings = AmdReadings(of.path)
    limits, now = readings.power_limits(), readings.sample()
    name = _name(root, of)
    memory = of.number("memory_bytes", "mem_info_vram_total", plausible.MEMORY)
    spec = None if name is None else find_spec(name, memory)
    architecture = _architecture(node.get("gfx_target_version", 0))
    unique, clock_mhz = node.get("unique_id"), node.get("max_engine_clk_fcompute")
    units = node["simd_count"] // (node.get("simd_per_cu") or 4)
    refused["memory_bandwidth_bytes_per_s"] = "the kernel does not tell the memory's transfer rate"
    if spec is None:
        refused["gpu_key"] = "no single row of the specification table has this name and memory"
    profile = DeviceProfile(
        backend="rocm",
        vendor="AMD",
        name=name,
        gpu_key=None if spec is None else spec.key,
        uuid=f"GPU-{unique:016x}" if unique else None,
        index=index,
        pci_bus_id=bus_id,
        architecture=architecture,
        sm_count=plausible.taken(plausible.SMS, units, "sm_count", refused, _TOPOLOGY),
        memory_bytes=memory,
        l2_bytes=None if spec is None else spec.l2_bytes,
        sm_clock_max_hz=plausible.taken(
            _HIGHEST_CLOCK, clock_mhz or 0, "sm_clock_max_hz", refused, _TOPOLOGY
        ),
        power_limit_w=limits.enforced_w,
        power_limit_default_w=limits.default_w,
        pcie_generation=of.get("pcie_generation", "max_link_speed", _pcie_generation),
        pcie_width=of.get("pcie_width", "max_link_width", _pcie_width),
        driver_version=system.read_text(root / "sys/module/amdgpu/version"),
        tensor_core_precisions=next((f for a, f in _FORMATS.items() if architecture.startswith(a)), ()),
        unavailable=refused
        | {k: v for k, v in readings.refused.items() if k in DeviceProfile.__struct_fields__},
    )
    state = DeviceState(
        temperature_c=now.temperature_c,
        power_w=now.power_w,
        utilization=now.utilization,
        memory_used_bytes=now.memory_used_bytes,
        memory_in_use_bytes=now.memory_used_bytes,
        idle=None if now.utilization is None else now.utilization == 0,
        pcie_generation_now=of.get("pcie_now", "current_link_speed", _pcie_generation),
        pcie_width_now=of.get("pcie_now", "current_link_width", _pcie_width),
    )
    profile.unavailable.pop("pcie_now", None)
    return profile, state


def _architecture(version: int) -> str:
    """Name of a graphics target: 90010 is gfx90a, 110000 is gfx1100."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _name(root: Path, of: Folder) -> str | None:
    """Product name from the board, else from the table that libdrm installs."""
    if name := of.get("name", "product_name"):
        of.refused.pop("name", None)
        return str(name)
    device, revision = of.get("name", "device"), of.get("name", "revision")
    table = root / "usr/share/libdrm/amdgpu.ids"
    if device and revision:
        wanted = (device.removeprefix("0x").upper(), revision.removeprefix("0x").upper())
        for line in (system.read_text(table) or "").splitlines():
            cells = [cell.strip() for cell in line.split(",", 2)]
            if len(cells) == 3 and (cells[0].upper(), cells[1].upper()) == wanted:
                of.refused.pop("name", None)
                return cells[2]
    of.refused["name"] = "product_name: empty, and not in libdrm's table"
    return None


def _pcie_generation(text: str) -> int:
    return _PCIE_GENERATIONS[text.split(maxsplit=1)[0]]


def _pcie_width(text: str) -> int:
    return int(plausible.PCIE_WIDTH(int(text)))
