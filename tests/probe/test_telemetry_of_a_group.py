"""Telemetry of several GPUs as one, through the real binding on the fake driver library."""

from __future__ import annotations

import pytest
from nvml.script import Fault, change, load_dump, several

from gpubench.models import DeviceProfile
from gpubench.probe.probe import GpuGroup


def gpu(index: int) -> DeviceProfile:
    return DeviceProfile(backend="cuda", name="NVIDIA H200", index=index)


@pytest.fixture
def pair(inside_nvml):
    """Two GPUs; the second is hotter and slower, and heat holds its clock down."""

    def put(faults=()) -> None:
        first = load_dump("h200")
        answers = (
            ("nvmlDeviceGetPowerUsage", 300_000, ()),
            ("nvmlDeviceGetTemperature", 81, (0,)),
            ("nvmlDeviceGetClockInfo", 1200, (1,)),
            ("nvmlDeviceGetCurrentClocksEventReasons", 0x20, ()),
            ("nvmlDeviceGetTotalEnergyConsumption", 1_000_000, ()),
        )
        second = load_dump("h200")
        for function, value, arguments in answers:
            second = change(second, function, value, arguments=arguments)
        inside_nvml(several([first, second]), faults=faults)

    return put


def test_power_draw_adds_up_and_the_slowest_clock_counts(pair) -> None:
    pair()
    with GpuGroup((gpu(0), gpu(1))) as both:
        assert both.source == "nvml"
        seen = both.sample()
        assert seen.power_w == pytest.approx(127.598 + 300)
        assert (seen.temperature_c, seen.sm_clock_hz, seen.memory_clock_hz) == (81, 1.2e9, 3.201e9)
        assert seen.clock_event_reasons == ("sw_thermal_slowdown",)
        assert seen.idle is True  # because the first GPU is
        assert both.energy_j() == pytest.approx(2180.012 + 1000)
        assert both.held_clocks_s() == {}


def test_a_value_missing_from_one_gpu_is_unknown_for_all(pair) -> None:
    refused = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption")
    pair(faults=[Fault(function, code=3, device="1") for function in refused])
    with GpuGroup((gpu(0), gpu(1))) as both:
        seen = both.sample()
        assert (seen.power_w, both.energy_j()) == (None, None)
        assert seen.sm_clock_hz == 1.2e9


def test_one_lost_gpu_fails_the_job(pair) -> None:
    pair()
    with GpuGroup((gpu(0), gpu(1))) as both:
        assert both.fault is None
    pair(faults=[Fault("nvmlDeviceGetPowerUsage", code=15, device="1")])
    with GpuGroup((gpu(0), gpu(1))) as both:
        both.sample()
        assert both.fault == "gpu_lost"


def test_group_telemetry_is_off_if_one_gpu_reports_nothing(pair) -> None:
    pair(faults=[Fault("*", code=3, device="1")])
    with GpuGroup((gpu(0), gpu(1))) as both:
        assert both.source == "none"
