"""A torch device in the measuring child: every clock waits for its device, or there is no clock."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import msgspec
import pytest
import torch

from gpubench.errors import NoDeviceError
from gpubench.measure.step import Hardware, check_device, open_hardware
from gpubench.models import DeviceProfile


def hardware(kind: str) -> Hardware:
    return Hardware(device=torch.device(kind))


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu", "mtia"])
def test_a_clock_waits_for_its_device_as_torch_does(kind):
    assert hardware(kind).clock().synchronize is getattr(torch, kind).synchronize


@pytest.mark.parametrize("kind", ["hpu", "privateuseone", "vulkan", "meta"])
def test_a_device_that_torch_cannot_wait_for_is_refused_in_one_line(kind):
    with pytest.raises(NoDeviceError) as refused:
        hardware(kind).clock()
    assert f"torch.{kind}.synchronize" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_device_that_torch_cannot_wait_for_is_not_opened(cpu):
    with pytest.raises(NoDeviceError, match="synchronize"):
        open_hardware(msgspec.structs.replace(cpu, backend="hpu"))


def test_backend_from_another_package_is_found_in_the_torch_namespace(monkeypatch):
    calls = []
    module = ModuleType("torch.hpu")
    module.synchronize = lambda: calls.append("waited")
    module.reset_peak_memory_stats = lambda: calls.append("reset")
    module.max_memory_allocated = lambda: 7
    monkeypatch.setattr(torch, "hpu", module, raising=False)
    hpu = hardware("hpu")
    assert hpu.clock().time(lambda: calls.append("worked")) >= 0
    hpu.call("reset_peak_memory_stats")
    assert calls == ["waited", "worked", "waited", "reset"]
    assert hpu.call("max_memory_allocated") == 7
    assert hpu.call("max_memory_reserved") is None
    assert hpu.step_state().segments is None


def test_cpu_timer_needs_no_synchronization_and_reports_no_memory():
    cpu = hardware("cpu")
    assert cpu.clock().time(lambda: None) >= 0
    cpu.call("reset_peak_memory_stats")
    cpu.call("set_per_process_memory_fraction", 0.5)
    cpu.release()
    assert cpu.call("max_memory_allocated") is None
    assert cpu.call("max_memory_reserved") is None
    assert cpu.memory_bytes() is None


@pytest.mark.parametrize(("bus", "ok"), [(0x0C, True), (0x0D, False)])
def test_amd_gpu_is_matched_to_torch_by_bus_id_only(monkeypatch, bus, ok):
    """ROCm's torch has its own names and UUIDs."""
    seen = SimpleNamespace(
        name="AMD Instinct MI300X OAM",
        major=9,
        minor=4,
        total_memory=192 << 30,
        uuid="1234",
        pci_domain_id=2,
        pci_bus_id=bus,
        pci_device_id=0,
        multi_processor_count=300,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda rank: seen)
    profile = DeviceProfile(
        backend="rocm", name="AMD Instinct MI300X", pci_bus_id="0002:0c:00.0", sm_count=304
    )
    if ok:
        assert check_device(profile) == ()
    else:
        with pytest.raises(NoDeviceError, match="PCI bus id"):
            check_device(profile)
