"""A torch device as the measuring child has it: every clock waits for its device, or there is none."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest
import torch

from gpubench.errors import NoDeviceError
from gpubench.measure.hardware import Hardware, open_hardware


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


def test_a_profile_of_such_a_device_opens_nothing(cpu):
    with pytest.raises(NoDeviceError, match="synchronize"):
        open_hardware(msgspec.structs.replace(cpu, backend="hpu"))


def test_a_back_end_of_another_package_is_found_where_torch_registers_it(monkeypatch):
    calls = []
    module = ModuleType("torch.hpu")
    module.synchronize = lambda: calls.append("waited")
    module.reset_peak_memory_stats = lambda: calls.append("reset")
    module.max_memory_allocated = lambda: 7
    monkeypatch.setattr(torch, "hpu", module, raising=False)
    hpu = hardware("hpu")
    assert hpu.clock().time(lambda: calls.append("worked")) >= 0
    hpu.reset_peak_memory()
    assert calls == ["waited", "worked", "waited", "reset"]
    assert hpu.peak_memory_bytes() == 7
    assert hpu.peak_reserved_bytes() is None
    assert hpu.heap().segments is None


def test_a_cpu_has_finished_when_the_call_returns_and_counts_no_memory():
    cpu = hardware("cpu")
    assert cpu.clock().time(lambda: None) >= 0
    cpu.reset_peak_memory()
    cpu.limit_memory(0.5)
    cpu.release()
    assert cpu.peak_memory_bytes() is None
    assert cpu.peak_reserved_bytes() is None
    assert cpu.memory_bytes() is None
