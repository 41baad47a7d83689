"""OpenCL devices: on made-up platforms of all kinds, and on a real one, PoCL on the CPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe import opencl, probe, select
from gpubench.probe.backend import BackendReport
from gpubench.probe.opencl import OpenClBackend, ask_listing, may_have_gpus, profile_of

_CPU, _GPU = 2, 4
_ARC = {
    "name": "Intel(R) Arc(TM) A770 Graphics ",
    "vendor": "Intel(R) Corporation",
    "type": _GPU,
    "max_compute_units": 512,
    "max_clock_frequency": 2400,
    "global_mem_size": 16_225_243_136,
    "host_unified_memory": 0,
    "version": "OpenCL 3.0 NEO",
    "driver_version": "25.31.34666",
}


def listed(index: int = 0, **answers: object) -> DeviceProfile:
    """A device as pyopencl shows it: an Arc except for the given answers."""
    return profile_of(SimpleNamespace(**(_ARC | answers)), "Intel(R) OpenCL Graphics", index)


ARC = listed()
NVIDIA = listed(name="NVIDIA H200", vendor="NVIDIA Corporation")
RADEON = listed(name="gfx1100", vendor="Advanced Micro Devices, Inc.")
CPU = listed(name="pthread-EPYC", vendor="AuthenticAMD", type=_CPU, max_compute_units=16)


@pytest.fixture
def here(monkeypatch):
    """``here(...)``: a machine with these devices on its OpenCL platforms, whatever is installed."""

    def be(*devices: DeviceProfile, problems: tuple[str, ...] = ()) -> OpenClBackend:
        monkeypatch.setattr(opencl, "installed", lambda: True)
        monkeypatch.setattr(opencl, "may_have_gpus", lambda: True)
        monkeypatch.setattr(opencl, "ask_listing", lambda: opencl.report(devices, problems))
        return opencl.BACKEND

    return be


def test_an_opencl_device_is_described_in_si_units(here) -> None:
    (gpu,) = here(ARC).devices().devices
    assert (gpu.backend, gpu.vendor, gpu.sm_count, gpu.memory_bytes) == (
        "opencl",
        "Intel(R) Corporation",
        512,
        16_225_243_136,
    )
    assert gpu.sm_clock_max_hz == 2.4e9
    assert gpu.driver_version == "Intel(R) OpenCL Graphics 25.31.34666"
    assert not gpu.runs_steps


@pytest.mark.parametrize("memory_bytes", [0, 1, 2**64 - 1, 2**60])
def test_an_impossible_memory_size_is_unknown_with_its_reason(memory_bytes: int) -> None:
    gpu = listed(global_mem_size=memory_bytes)
    assert gpu.memory_bytes is None
    assert str(memory_bytes) in gpu.unavailable["memory_bytes"]


def test_opencl_cpu_is_not_listed_with_gpus_but_can_be_selected_by_index(here) -> None:
    backend = here(CPU, ARC)
    assert [d.name for d in backend.devices().devices] == [ARC.name]
    assert select.select_device("opencl:0")[0].core_count == 16
    assert select.select_device("opencl:1")[0].name == ARC.name


def test_devices_are_added_only_if_no_other_driver_lists_a_gpu(here, inside_nvml) -> None:
    here(NVIDIA, ARC)
    inside_nvml("h200")
    assert [d.backend for d in probe.probe().devices] == ["cuda", "cpu"]


def test_without_another_drivers_gpu_they_come_before_the_cpu(here) -> None:
    here(ARC, CPU)
    assert [d.name for d in probe.probe().devices][:-1] == [ARC.name]


def test_unknown_device_index_lists_the_existing_devices(here) -> None:
    here(ARC)
    with pytest.raises(NoDeviceError, match=r"opencl:7: found opencl:0 Intel"):
        select.select_device("opencl:7")


def test_without_an_opencl_driver_the_fix_is_reported(here) -> None:
    here(problems=("PLATFORM_NOT_FOUND_KHR",))
    with pytest.raises(NoDeviceError, match="PLATFORM_NOT_FOUND_KHR"):
        select.select_device("opencl")


def test_without_pyopencl_the_install_command_is_named_and_nothing_is_listed(monkeypatch) -> None:
    monkeypatch.setattr(opencl, "installed", lambda: False)
    assert OpenClBackend().devices() == BackendReport()
    with pytest.raises(NoDeviceError, match=r"pip install 'pyopencl>="):
        select.select_device("opencl")


def test_drivers_are_loaded_only_if_linux_has_the_device_file_of_a_gpu(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(opencl, "installed", lambda: True)
    asked = []
    monkeypatch.setattr(opencl, "ask_listing", lambda: asked.append(1) or opencl.report([ARC], []))
    monkeypatch.setattr(opencl, "may_have_gpus", lambda: may_have_gpus(tmp_path))
    backend = opencl.BACKEND
    monkeypatch.setattr(opencl.sys, "platform", "linux")
    (tmp_path / "null").touch()
    assert (backend.devices(), asked) == (BackendReport(), [])
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    assert [gpu.name for gpu in backend.devices().devices] == [ARC.name]
    monkeypatch.setattr(opencl.sys, "platform", "darwin")
    assert may_have_gpus(tmp_path / "nothing")


def test_failing_platform_does_not_shift_other_device_indices(monkeypatch) -> None:
    class RefusedError(Exception):
        pass

    def refuse() -> None:
        raise RefusedError("DEVICE_NOT_FOUND")

    gpu, processor = SimpleNamespace(**_ARC), SimpleNamespace(**(_ARC | {"type": _CPU}))
    platforms = [
        SimpleNamespace(name="one", get_devices=lambda: [gpu, gpu]),
        SimpleNamespace(name="broken", get_devices=refuse),
        SimpleNamespace(name="two", get_devices=lambda: [processor]),
    ]
    fake = SimpleNamespace(get_platforms=lambda: platforms, Error=RefusedError)
    monkeypatch.setitem(sys.modules, "pyopencl", fake)
    found = opencl.listing()
    assert [(d.index, d.core_count) for d in found.devices] == [(0, None), (1, None), (2, 512)]
    assert [p.value for p in found.problems] == ["broken: DEVICE_NOT_FOUND"]


def test_a_driver_that_kills_its_process_is_reported_and_crashes_nothing_else(monkeypatch) -> None:
    monkeypatch.setattr(opencl, "_PROGRAM", ("-c", "import os; os.abort()"))
    listing = ask_listing()
    assert listing.devices == ()
    assert "SIGABRT" in (listing.problems[0].value or "")


def test_pocl_lists_this_processor() -> None:
    pytest.importorskip("pyopencl")
    listing = ask_listing()
    if not any(device.core_count for device in listing.devices):
        pytest.skip(f"no OpenCL on this CPU: {listing.problems}")
    place = next(i for i, device in enumerate(listing.devices) if device.core_count)
    device, remark = select.select_device(f"opencl:{place}")
    assert device.core_count
    assert device.memory_bytes
    assert remark is None
