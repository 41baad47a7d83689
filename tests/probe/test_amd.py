"""AMD GPUs: listed by the compute driver, told of by a stand-in of AMD's library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from report import samples

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.findings import FindingKind, describe
from gpubench.measure import checks
from gpubench.models import DeviceProfile, Reading, Run
from gpubench.probe import amd, nvidia, select
from gpubench.probe.amd import AmdBackend
from gpubench.probe.backend import BackendReport
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
TOLD = {
    "0002:0c:00.0": ("AMD Instinct MI300X", 192 << 30),
    "0000:03:00.0": ("AMD Radeon RX 7900 XTX", 24 << 30),
}
"""What the library says of each card: its name and its memory."""


class RefusedError(Exception):
    pass


class Library:
    """A stand-in of the module ``amdsmi``: two cards; all that is not answered here is refused."""

    AmdSmiException = RefusedError
    AmdSmiClkType = SimpleNamespace(GFX=0, MEM=4)
    AmdSmiTemperatureType = SimpleNamespace(EDGE=0, HOTSPOT=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    AmdSmiMemoryType = SimpleNamespace(VRAM=0)

    def amdsmi_get_processor_handle_from_bdf(self, bus_id: str) -> str:
        if bus_id not in TOLD:
            raise RefusedError("no such card")
        return bus_id

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict:
        return {"market_name": TOLD[handle][0]}

    def amdsmi_get_gpu_memory_total(self, handle: str, _kind: int) -> int:
        return TOLD[handle][1]

    def amdsmi_get_gpu_activity(self, _handle: str) -> dict:
        return {"gfx_activity": 0}

    def amdsmi_get_power_cap_info(self, _handle: str) -> dict:
        cap = {"power_cap": 600_000_000, "default_power_cap": 750_000_000}
        return cap | {"min_power_cap": 0, "max_power_cap": 2**64 - 1}

    def __getattr__(self, name: str) -> Callable[..., None]:
        def refuse(*_: object) -> None:
            raise RefusedError(f"{name} is not supported")

        return refuse


@pytest.fixture(autouse=True)
def library(monkeypatch) -> Library:
    made = Library()
    monkeypatch.setattr(amd, "open_library", lambda: made)
    return made


def machine(root: Path, *nodes: dict) -> AmdBackend:
    for number, node in enumerate((CPU, *nodes)):
        folder = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
        folder.mkdir(parents=True)
        (folder / "properties").write_text("".join(f"{k} {v}\n" for k, v in node.items()))
    return AmdBackend(root=root)


def test_an_mi300x(tmp_path: Path) -> None:
    report = machine(tmp_path, MI300X).devices()
    (gpu,) = report.devices
    assert (gpu.backend, gpu.gpu_key, gpu.architecture) == ("rocm", "amd-mi300x-192gb", "gfx942")
    assert (gpu.sm_count, gpu.memory_bytes, gpu.sm_clock_max_hz) == (304, 192 << 30, 2.1e9)
    assert (gpu.power_limit_w, gpu.power_limit_default_w) == (600.0, 750.0)
    assert gpu.pci_bus_id == "0002:0c:00.0"
    assert (gpu.index, gpu.uuid) == (0, "GPU-0000000000001234")
    assert gpu.tensor_core_precisions == ("fp16", "bf16", "int8", "fp8")
    assert "transfer rate" in gpu.unavailable["memory_bandwidth_bytes_per_s"]
    assert "driver_version" in gpu.unavailable, "what the library refuses has its reason"
    (state,) = report.states
    assert (state.idle, state.power_w) == (True, None)
    assert report.problems == ()


def test_without_the_library_a_card_is_listed_timed_without_telemetry_and_told_what_to_install(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(amd, "open_library", lambda: None)
    backend = machine(tmp_path, MI300X, XTX)
    report = backend.devices()
    assert [(gpu.name, gpu.gpu_key, gpu.sm_count) for gpu in report.devices] == [
        (None, None, 304),
        (None, None, 96),
    ]
    assert {"name", "gpu_key", "memory_bytes", "power_limit_w"} <= set(report.devices[0].unavailable)
    assert report.states == (None, None)
    (problem,) = report.problems
    assert problem.exit_code == 0
    assert re.search(r"pip install '?amdsmi>=[\d.]+", problem.fix)
    with backend.open_readings(report.devices[0]) as line:
        assert line.source == "none"
        assert line.sample() == Reading()


def test_a_run_without_telemetry_names_the_package() -> None:
    run = samples.h200_run()
    of_amd = msgspec.structs.replace(run, device=DeviceProfile(backend="rocm"))
    (said,) = (f for f in checks.of_run(silent(of_amd)) if f.kind is FindingKind.NO_TELEMETRY)
    assert re.search(r"pip install '?amdsmi>=[\d.]+", describe(said))
    (other,) = (f for f in checks.of_run(silent(run)) if f.kind is FindingKind.NO_TELEMETRY)
    assert "amdsmi" not in describe(other)


def silent(run: Run) -> Run:
    """The same run whose launches had no telemetry."""
    mute = [
        msgspec.structs.replace(
            m, launches=tuple(msgspec.structs.replace(x, telemetry_source="none") for x in m.launches)
        )
        for m in run.measurements
    ]
    return msgspec.structs.replace(run, measurements=tuple(mute))


def test_a_card_that_the_library_does_not_show_is_listed_without_telemetry(tmp_path: Path) -> None:
    backend = machine(tmp_path, MI300X | {"location_id": 0x4100})
    (gpu,) = backend.devices().devices
    assert (gpu.name, gpu.pci_bus_id) == (None, "0002:41:00.0")
    assert len(backend.devices().problems) == 1
    assert backend.open_readings(gpu).source == "none"


@pytest.mark.parametrize("shift", [0, 28], ids=["older kernels", "newer kernels"])
def test_the_partitions_of_a_card_are_devices_of_their_own_and_no_whole_one(tmp_path: Path, shift) -> None:
    """In CPX mode each compute die of an MI300X is a device; all lie at one place."""
    nodes = [MI300X | {"simd_count": 152, "location_id": 0x0C00 | n << shift} for n in range(3)]
    backend = machine(tmp_path, *nodes, XTX)
    report = backend.devices()
    assert report.problems == (), "the library tells of them"
    *parts, whole = report.devices
    assert [(gpu.index, gpu.name) for gpu in parts] == [
        (n, f"AMD Instinct MI300X, partition {n + 1} of 3") for n in range(3)
    ]
    assert {gpu.pci_bus_id for gpu in parts} == {"0002:0c:00.0"}
    assert len({gpu.uuid for gpu in parts}) == 3
    assert {(gpu.gpu_key, gpu.memory_bytes, gpu.power_limit_w, gpu.sm_count) for gpu in parts} == {
        (None, None, None, 38)
    }
    assert "partition" in parts[0].unavailable["gpu_key"]
    assert [backend.open_readings(gpu).source for gpu in (*parts, whole)] == ["none"] * 3 + ["amdsmi"]
    assert whole.name == "AMD Radeon RX 7900 XTX"


def test_a_card_that_has_gone_is_named(tmp_path: Path) -> None:
    (gpu,) = machine(tmp_path, MI300X).devices().devices
    with pytest.raises(NoDeviceError, match="no longer listed"):
        AmdBackend(root=tmp_path / "elsewhere").open_readings(gpu)


def test_a_machine_without_amd_is_empty(tmp_path: Path) -> None:
    assert machine(tmp_path).devices() == BackendReport()
    assert AmdBackend(root=tmp_path / "nothing").devices() == BackendReport()


@pytest.mark.parametrize(
    ("version", "name"), [(90010, "gfx90a"), (90402, "gfx942"), (100300, "gfx1030"), (120001, "gfx1201")]
)
def test_names_of_graphics_targets(version: int, name: str, tmp_path: Path) -> None:
    (gpu,) = machine(tmp_path, MI300X | {"gfx_target_version": version}).devices().devices
    assert gpu.architecture == name


def test_a_recorded_machine_with_an_integrated_gpu_is_listed(tmp_path: Path) -> None:
    """The compute topology of a real machine; the file names its source."""
    told = json.loads((Path(__file__).parents[1] / "data/amd/phoenix.json").read_text(encoding="utf-8"))
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "properties").write_text("\n".join(told["topology"]) + "\n")
    (gpu,) = AmdBackend(root=tmp_path).devices().devices
    assert (gpu.architecture, gpu.sm_count, gpu.pci_bus_id) == ("gfx1103", 12, "0000:64:00.0")
    assert gpu.sm_clock_max_hz == 2.7e9
    assert gpu.tensor_core_precisions == ("fp16", "bf16", "int8")
    assert (gpu.name, gpu.gpu_key, gpu.uuid, gpu.power_limit_w) == (None, None, None, None)


class TestSelection:
    @pytest.fixture(autouse=True)
    def two(self, tmp_path: Path, monkeypatch) -> None:
        backend = machine(tmp_path, MI300X, XTX)
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
