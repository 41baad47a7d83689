"""AMD GPUs from folders shaped like the kernel's, and from recorded ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.models import DeviceProfile, Reading
from gpubench.probe import amd, nvidia, select
from gpubench.probe.amd import AmdBackend
from gpubench.probe.backend import BackendReport, PowerLimits
from gpubench.probe.select import select_device
from gpubench.probe.torch_problems import TorchBuild

MI300X = {
    "simd_count": 1216, "simd_per_cu": 4, "max_engine_clk_fcompute": 2100, "gfx_target_version": 90402,
    "vendor_id": 4098, "device_id": 29857, "location_id": 0x0C00, "domain": 2, "unique_id": 0x1234,
}  # fmt: skip
XTX = {
    "simd_count": 192, "simd_per_cu": 2, "max_engine_clk_fcompute": 2482, "gfx_target_version": 110000,
    "vendor_id": 4098, "device_id": 29772, "location_id": 0x0300, "domain": 0,
}  # fmt: skip
CPU = {"cpu_cores_count": 16, "simd_count": 0, "vendor_id": 0}
FILES = {
    "product_name": "AMD Instinct MI300X",
    "device": "0x744c",
    "revision": "0xc8",
    "mem_info_vram_total": str(192 << 30),
    "mem_info_vram_used": str(300 << 20),
    "gpu_busy_percent": "7",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "hwmon/hwmon4/power1_cap": "600000000",
    "hwmon/hwmon4/power1_cap_default": "750000000",
    "hwmon/hwmon4/power1_average": "140000000",
    "hwmon/hwmon4/temp1_input": "41000",
    "hwmon/hwmon4/freq1_input": "132000000",
    "hwmon/hwmon4/freq2_input": "900000000",
}


def machine(root: Path, *nodes: dict, files: dict | None = None) -> AmdBackend:
    for number, node in enumerate((CPU, *nodes)):
        folder = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
        folder.mkdir(parents=True)
        (folder / "properties").write_text("".join(f"{k} {v}\n" for k, v in node.items()))
        for name, text in (FILES if files is None else files).items() if node is not CPU else ():
            place, domain = node["location_id"], node["domain"]
            file = root / f"sys/bus/pci/devices/{domain:04x}:{place >> 8:02x}:00.0" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
    return AmdBackend(root=root)


def test_an_mi300x(tmp_path: Path) -> None:
    report = machine(tmp_path, MI300X).devices()
    (gpu,) = report.devices
    assert (gpu.backend, gpu.gpu_key, gpu.architecture) == ("rocm", "amd-mi300x-192gb", "gfx942")
    assert (gpu.sm_count, gpu.memory_bytes, gpu.sm_clock_max_hz) == (304, 192 << 30, 2.1e9)
    assert (gpu.power_limit_w, gpu.power_limit_default_w) == (600.0, 750.0)
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.pci_bus_id) == (5, 16, "0002:0c:00.0")
    assert gpu.tensor_core_precisions == ("fp16", "bf16", "int8", "fp8")
    assert "transfer rate" in gpu.unavailable["memory_bandwidth_bytes_per_s"]
    assert report.states[0].pcie_generation_now == 4


def test_readings(tmp_path: Path) -> None:
    (gpu,) = machine(tmp_path, MI300X).devices().devices
    with AmdBackend(root=tmp_path).open_readings(gpu) as line:
        assert line.sample() == Reading(
            sm_clock_hz=132e6,
            memory_clock_hz=900e6,
            power_w=140.0,
            temperature_c=41.0,
            utilization=0.07,
            memory_used_bytes=300 << 20,
        )
        assert line.power_limits() == PowerLimits(enforced_w=600.0, default_w=750.0)
        assert line.energy_j() is None
        assert line.refused["power_limit_range"].startswith("hwmon/*/power1_cap_m")
    with pytest.raises(NoDeviceError):
        AmdBackend(root=tmp_path / "elsewhere").open_readings(gpu)


def test_a_name_from_the_table_that_libdrm_installs(tmp_path: Path) -> None:
    files = {**FILES, "product_name": "", "mem_info_vram_total": str(24 << 30)}
    (tmp_path / "usr/share/libdrm").mkdir(parents=True)
    (tmp_path / "usr/share/libdrm/amdgpu.ids").write_text(
        "# comment\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n"
    )
    (gpu,) = machine(tmp_path, XTX, files=files).devices().devices
    assert (gpu.name, gpu.gpu_key, gpu.sm_count) == (
        "AMD Radeon RX 7900 XTX",
        "amd-radeon-rx-7900-xtx-24gb",
        96,
    )
    assert gpu.architecture == "gfx1100"
    assert gpu.uuid is None
    assert "name" not in gpu.unavailable


def test_a_gpu_that_tells_nothing_is_listed_with_reasons(tmp_path: Path) -> None:
    (gpu,) = machine(tmp_path, XTX, files={"gpu_busy_percent": "nonsense"}).devices().devices
    assert gpu.name is None
    assert {"name", "memory_bytes", "gpu_key", "power_limit_w", "pcie_width"} <= set(gpu.unavailable)
    with AmdBackend(root=tmp_path).open_readings(gpu) as line:
        assert line.sample() == Reading()
        assert line.refused["utilization"] == "gpu_busy_percent: not understood"


def test_a_machine_without_amd_is_empty(tmp_path: Path) -> None:
    assert machine(tmp_path).devices() == BackendReport()
    assert AmdBackend(root=tmp_path / "nothing").devices() == BackendReport()


@pytest.mark.parametrize(
    ("version", "name"), [(90010, "gfx90a"), (90402, "gfx942"), (100300, "gfx1030"), (120001, "gfx1201")]
)
def test_names_of_graphics_targets(version: int, name: str) -> None:
    assert amd._architecture(version) == name


RECORDED = Path(__file__).parents[1] / "data" / "amd"


def recorded(name: str, root: Path) -> dict:
    """Lay out below ``root`` what a real machine told; each file names its source."""
    told = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    for file, text in told["files"].items():
        place = root / "sys/bus/pci/devices" / told["bus_id"] / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    if "topology" in told:
        node = root / "sys/class/kfd/kfd/topology/nodes/1"
        node.mkdir(parents=True)
        (node / "properties").write_text("\n".join(told["topology"]) + "\n")
    return told


@pytest.mark.parametrize(
    ("name", "reading", "enforced_w"),
    [
        ("vega_56", Reading(utilization=0.04, memory_used_bytes=1_490_378_752), None),
        (
            "phoenix",
            Reading(power_w=3.103, temperature_c=25.0, utilization=0.0, memory_used_bytes=1_272_893_440),
            None,
        ),
        (
            "mi250x",
            Reading(
                sm_clock_hz=1.7e9, memory_clock_hz=1.6e9, power_w=144.0, temperature_c=56.0, utilization=1.0
            ),
            560.0,
        ),
    ],
)
def test_readings_of_a_recorded_machine(
    name: str, reading: Reading, enforced_w: float | None, tmp_path: Path
) -> None:
    told = recorded(name, tmp_path)
    gpu = DeviceProfile(backend="rocm", pci_bus_id=told["bus_id"])
    with AmdBackend(root=tmp_path).open_readings(gpu) as line:
        assert line.sample() == reading
        assert line.power_limits().enforced_w == enforced_w
        silent = {field for field in Reading.__struct_fields__ if getattr(reading, field) is None}
        assert silent & {"sm_clock_hz", "power_w"} <= set(line.refused), (
            "a value that is not there has a reason"
        )


def test_a_recorded_machine_with_an_integrated_gpu_is_listed_with_what_it_told(tmp_path: Path) -> None:
    recorded("phoenix", tmp_path)
    (gpu,) = AmdBackend(root=tmp_path).devices().devices
    assert (gpu.architecture, gpu.sm_count, gpu.pci_bus_id) == ("gfx1103", 12, "0000:64:00.0")
    assert (gpu.memory_bytes, gpu.sm_clock_max_hz) == (4 << 30, 2.7e9)
    assert (gpu.pcie_generation, gpu.pcie_width) == (4, 16)
    assert gpu.tensor_core_precisions == ("fp16", "bf16", "int8")
    assert (gpu.name, gpu.gpu_key, gpu.uuid, gpu.power_limit_w) == (None, None, None, None)
    assert {"name", "gpu_key", "power_limit_w"} <= set(gpu.unavailable)


class TestSelection:
    @pytest.fixture(autouse=True)
    def two(self, tmp_path: Path, monkeypatch) -> None:
        backend = machine(tmp_path, MI300X, XTX)
        second = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
        (second / "product_name").write_text("AMD Radeon RX 7900 XTX\n")
        (second / "mem_info_vram_total").write_text(f"{24 << 30}\n")
        monkeypatch.setattr(amd, "BACKEND", backend)
        monkeypatch.setattr(nvidia, "BACKEND", AmdBackend(name="cuda", root=tmp_path / "no driver"))
        monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.build(monkeypatch, hip="6.2")

    def build(self, monkeypatch, hip: str | None) -> None:
        build = TorchBuild(version="2.6.0", cuda=None, hip=hip)
        monkeypatch.setattr("gpubench.probe.torch_problems.torch_build", lambda: build)

    @pytest.mark.parametrize("name", ["auto", "cuda", "rocm", "cuda:0", "amd-mi300x-192gb"])
    def test_a_rocm_torch_reaches_the_first(self, name: str) -> None:
        assert select_device(name)[0].gpu_key == "amd-mi300x-192gb"

    def test_the_visible_one_is_the_first(self, monkeypatch) -> None:
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
        assert select_device("auto")[0].index == 1
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "7")
        with pytest.raises(MisuseError, match="HIP_VISIBLE_DEVICES"):
            select_device("auto")

    def test_a_torch_without_rocm_measures_on_the_cpu_and_says_so(self, monkeypatch) -> None:
        self.build(monkeypatch, hip=None)
        device, said = select_device("auto")
        assert device.backend == "cpu"
        assert "torch 2.6.0 has" in said
        with pytest.raises(NoDeviceError, match="ROCm"):
            select_device("rocm")

    def test_beside_an_nvidia_gpu_each_has_its_own_name(self, monkeypatch, inside_nvml) -> None:
        inside_nvml("h200")
        monkeypatch.setattr(nvidia, "BACKEND", nvidia.NvidiaBackend())
        monkeypatch.setattr(select, "check_torch", lambda device: None)
        assert select_device("auto")[0].name == "NVIDIA H200"
        assert select_device("cuda")[0].name == "NVIDIA H200"
        assert select_device("rocm")[0].name == "AMD Instinct MI300X"
        with pytest.raises(NoDeviceError, match="here are cuda:0"):
            select_device("cuda:1")

    def test_another_than_the_first_is_named_by_the_variable(self) -> None:
        with pytest.raises(MisuseError, match="HIP_VISIBLE_DEVICES=1"):
            select_device("rocm:1")
