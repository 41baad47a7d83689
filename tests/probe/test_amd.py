"""AMD GPUs, reported by a fake of AMD's library, or only by torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from report import samples

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.findings import FindingKind, describe
from gpubench.measure import checks
from gpubench.models import DeviceProfile, Reading, Run
from gpubench.probe import amd, nvidia, select, torch_view
from gpubench.probe.amd import AmdBackend
from gpubench.probe.backend import Backend, BackendReport
from gpubench.probe.select import select_device
from gpubench.probe.torch_view import TorchBuild, View

MI300X = ("0002:0c:00.0", "AMD Instinct MI300X", 192 << 30, 304, "gfx942", "0x0000000000001234")
XTX = ("0000:03:00.0", "AMD Radeon RX 7900 XTX", 24 << 30, 96, "gfx1100", "N/A")
"""Bus address, name, memory, compute units, architecture and serial number of a card, as the library reports them."""


class RefusedError(Exception):
    pass


class Library:
    """A fake of the module ``amdsmi`` with these cards; any call without an answer is refused."""

    AmdSmiException = RefusedError
    AmdSmiClkType = SimpleNamespace(GFX=0, MEM=4)
    AmdSmiTemperatureType = SimpleNamespace(EDGE=0, HOTSPOT=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    AmdSmiMemoryType = SimpleNamespace(VRAM=0)

    def __init__(self, *cards: tuple[Any, ...]) -> None:
        self.cards = cards

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.cards)))

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        return self.cards[handle][0]

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict:
        _, name, _, units, architecture, serial = self.cards[handle]
        return {
            "market_name": name,
            "num_compute_units": units,
            "target_graphics_version": architecture,
            "asic_serial": serial,
        }

    def amdsmi_get_gpu_memory_total(self, handle: int, _kind: int) -> int:
        return self.cards[handle][2]

    def amdsmi_get_gpu_activity(self, _handle: int) -> dict:
        return {"gfx_activity": 0}

    def amdsmi_get_clock_info(self, _handle: int, _kind: int) -> dict:
        return {"clk": 132, "max_clk": 2100}

    def amdsmi_get_power_cap_info(self, _handle: int) -> dict:
        cap = {"power_cap": 600_000_000, "default_power_cap": 750_000_000}
        return cap | {"min_power_cap": 0, "max_power_cap": 2**64 - 1}

    def __getattr__(self, name: str) -> Callable[..., None]:
        def refuse(*_: object) -> None:
            raise RefusedError(f"{name} is not supported")

        return refuse


class NoDriver(Backend):
    """NVIDIA's backend without its driver."""

    name = "cuda"

    def devices(self) -> BackendReport:
        return BackendReport()


@pytest.fixture
def machine(monkeypatch) -> Callable[..., AmdBackend]:
    """``machine(...)``: a machine with a library that reports these cards."""

    def be(*cards: tuple[Any, ...]) -> AmdBackend:
        monkeypatch.setattr(amd, "open_library", lambda: Library(*cards))
        return AmdBackend()

    return be


def test_an_mi300x_is_described_by_its_library(machine) -> None:
    report = machine(MI300X).devices()
    (gpu,) = report.devices
    assert (gpu.backend, gpu.gpu_key, gpu.architecture) == ("rocm", "amd-mi300x-192gb", "gfx942")
    assert (gpu.sm_count, gpu.memory_bytes, gpu.sm_clock_max_hz) == (304, 192 << 30, 2.1e9)
    assert (gpu.power_limit_w, gpu.power_limit_default_w) == (600.0, 750.0)
    assert gpu.pci_bus_id == "0002:0c:00.0"
    assert (gpu.index, gpu.uuid) == (0, "GPU-0000000000001234")
    assert gpu.tensor_core_precisions == ("fp16", "bf16", "int8", "fp8")
    assert "transfer rate" in gpu.unavailable["memory_bandwidth_bytes_per_s"]
    assert "driver_version" in gpu.unavailable, "a refused value has its reason"
    (state,) = report.states
    assert (state.idle, state.power_w) == (True, None)
    assert report.problems == ()


def without_the_library(monkeypatch, root: Path) -> AmdBackend:
    """Make a machine with the compute driver but without AMD's library."""
    (root / "dev").mkdir()
    (root / "dev/kfd").touch()
    monkeypatch.setattr(amd, "open_library", lambda: None)
    return AmdBackend(root=root)


def test_without_the_library_nothing_is_listed_and_the_package_is_named(tmp_path: Path, monkeypatch) -> None:
    report = without_the_library(monkeypatch, tmp_path).devices()
    assert report.devices == ()
    (problem,) = report.problems
    assert problem.exit_code == 0
    assert re.search(r"pip install '?amdsmi>=[\d.]+", problem.fix)


@pytest.mark.parametrize("wanted", ["auto", "cuda", "rocm", "rocm:0"])
def test_without_the_library_only_torch_reports_the_card_and_it_is_timed(
    tmp_path: Path, monkeypatch, wanted: str
) -> None:
    monkeypatch.setattr(amd, "BACKEND", without_the_library(monkeypatch, tmp_path))
    monkeypatch.setattr(nvidia, "BACKEND", NoDriver())
    monkeypatch.setattr(select, "torch_build", lambda: TorchBuild(version="2.6.0", cuda=None, hip="6.2"))
    seen = DeviceProfile(
        backend="cuda",
        name="AMD Instinct MI300X",
        memory_bytes=192 << 30,
        compute_capability=(9, 4),
        sm_count=304,
        pci_bus_id="0002:0c:00.0",
        architecture="gfx942",
    )
    monkeypatch.setattr(torch_view, "_look", lambda _: View(device=seen, computed=True))
    gpu, said = select_device(wanted)
    assert (gpu.backend, gpu.gpu_key, gpu.compute_capability) == ("rocm", "amd-mi300x-192gb", None)
    assert gpu.tensor_core_precisions == ("fp16", "bf16", "int8", "fp8")
    assert said.endswith("AMD Instinct MI300X is timed without telemetry")
    with amd.BACKEND.open_readings(gpu) as line:
        assert (line.source, line.sample()) == ("none", Reading())


def test_a_torch_without_rocm_measures_on_the_cpu_and_says_what_is_missing(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(amd, "BACKEND", without_the_library(monkeypatch, tmp_path))
    monkeypatch.setattr(nvidia, "BACKEND", NoDriver())
    device, said = select_device("auto")
    assert device.is_cpu
    assert said.startswith("an AMD GPU is present")


def test_a_run_without_telemetry_names_the_package() -> None:
    run = samples.h200_run()
    of_amd = msgspec.structs.replace(run, device=DeviceProfile(backend="rocm"))
    (said,) = (f for f in checks.of_run(silent(of_amd)) if f.kind is FindingKind.NO_TELEMETRY)
    assert re.search(r"pip install '?amdsmi>=[\d.]+", describe(said))
    (other,) = (f for f in checks.of_run(silent(run)) if f.kind is FindingKind.NO_TELEMETRY)
    assert "amdsmi" not in describe(other)


def silent(run: Run) -> Run:
    """Return the run as if none of its launches had telemetry."""
    mute = [
        msgspec.structs.replace(
            m, launches=tuple(msgspec.structs.replace(x, telemetry_source="none") for x in m.launches)
        )
        for m in run.measurements
    ]
    return msgspec.structs.replace(run, measurements=tuple(mute))


def test_the_partitions_of_a_card_are_listed_instead_of_the_whole_card(machine) -> None:
    """In CPX mode each compute die of an MI300X is a device; the dies differ in their PCI function."""
    dies = [(f"0002:0c:00.{n}", *MI300X[1:3], 38, *MI300X[4:]) for n in range(3)]
    backend = machine(*dies, XTX)
    report = backend.devices()
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
    assert (whole.name, whole.uuid) == ("AMD Radeon RX 7900 XTX", None)


def test_a_library_without_these_keys_leaves_the_readings_unknown() -> None:
    """In amdsmi 6.0, for example, the clock is ``cur_clk`` and the energy counter ``power``."""
    library: Any = Library(MI300X)
    library.amdsmi_get_clock_info = lambda *_: {"cur_clk": 132, "max_clk": 2100}
    library.amdsmi_get_energy_count = lambda _: {"power": 1, "counter_resolution": 15.3, "timestamp": 1}
    readings = amd.AmdReadings(library, 0, "0002:0c:00")
    assert readings.sample().sm_clock_hz is None
    assert readings.energy_j() is None
    assert readings.refused["sm_clock_hz"] == "amdsmi_get_clock_info: N/A"
    assert readings.refused["energy_j"] == "amdsmi_get_energy_count: N/A"


def test_a_lost_card_is_named(machine) -> None:
    (gpu,) = machine(MI300X).devices().devices
    with pytest.raises(NoDeviceError, match="no longer listed"):
        machine(XTX).open_readings(gpu)


def test_a_machine_without_amd_has_no_devices(machine, monkeypatch, tmp_path: Path) -> None:
    assert machine().devices() == BackendReport()
    monkeypatch.setattr(amd, "open_library", lambda: None)
    assert AmdBackend(root=tmp_path).devices() == BackendReport()


class TestSelection:
    @pytest.fixture(autouse=True)
    def two(self, machine, tmp_path: Path, monkeypatch) -> None:
        backend = machine(MI300X, XTX)
        monkeypatch.setattr(amd, "BACKEND", backend)
        monkeypatch.setattr(nvidia, "BACKEND", NoDriver())
        monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.build(monkeypatch, hip="6.2")

    def build(self, monkeypatch, hip: str | None) -> None:
        build = TorchBuild(version="2.6.0", cuda=None, hip=hip)
        monkeypatch.setattr("gpubench.probe.torch_view.torch_build", lambda: build)

    @pytest.mark.parametrize("name", ["auto", "cuda", "rocm", "cuda:0", "amd-mi300x-192gb"])
    def test_a_rocm_torch_uses_the_first_gpu(self, name: str) -> None:
        assert select_device(name)[0].gpu_key == "amd-mi300x-192gb"

    def test_hip_visible_devices_determines_the_first_gpu(self, monkeypatch) -> None:
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

    def test_an_amd_and_an_nvidia_gpu_are_selected_by_their_own_names(self, monkeypatch, inside_nvml) -> None:
        inside_nvml("h200")
        monkeypatch.setattr(nvidia, "BACKEND", nvidia.NvidiaBackend())
        monkeypatch.setattr(select, "check_torch", lambda device: None)
        assert select_device("auto")[0].name == "NVIDIA H200"
        assert select_device("cuda")[0].name == "NVIDIA H200"
        assert select_device("rocm")[0].name == "AMD Instinct MI300X"
        with pytest.raises(NoDeviceError, match="no such GPU, found cuda:0"):
            select_device("cuda:1")

    def test_second_rocm_gpu_must_be_selected_with_hip_visible_devices(self) -> None:
        with pytest.raises(MisuseError, match="HIP_VISIBLE_DEVICES=1"):
            select_device("rocm:1")
