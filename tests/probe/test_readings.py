"""Readings for telemetry, through the real binding on the fake driver library."""

from __future__ import annotations

import pytest
from nvml.script import Fault, change, load_dump, several

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile, Reading
from gpubench.probe import nvidia
from gpubench.probe.backend import DeviceGoneError
from gpubench.probe.probe import GpuGroup, open_telemetry


def first_gpu() -> DeviceProfile:
    return nvidia.BACKEND.devices().devices[0]


def test_a_sample_of_an_h200_has_every_reading(inside_nvml) -> None:
    inside_nvml("h200")
    with open_telemetry(first_gpu()) as line:
        assert line.source == "nvml"
        assert line.sample() == Reading(
            sm_clock_hz=1.98e9,
            memory_clock_hz=3.201e9,
            power_w=pytest.approx(127.598),
            temperature_c=40.0,
            utilization=0.0,
            memory_used_bytes=644939776,
            clock_event_reasons=(),
            idle=True,
        )
        assert line.energy_j() == pytest.approx(2180.012)
        assert line.compute_pids() == ()
        assert line.compute_mode() == "default"
        assert line.ecc_uncorrected() is None
        assert line._fields.unavailable["ecc_uncorrected"].startswith("nvmlDeviceGetTotalEccErrors")


def test_memory_in_use_excludes_the_reserve_of_the_driver_if_reported(inside_nvml) -> None:
    answer = {"version": 0, "total": 150754820096, "reserved": 644939776, "free": 150109880320, "used": 0}
    inside_nvml(change(load_dump("h200"), "nvmlDeviceGetMemoryInfo", answer, arguments=[0x02000028]))
    with open_telemetry(first_gpu()) as line:
        assert line.sample().memory_used_bytes == 0


def test_energy_counter_values_are_read_in_sequence(inside_nvml) -> None:
    inside_nvml(
        "h200",
        faults=[
            Fault("nvmlDeviceGetTotalEnergyConsumption", values=[5000, 7000, 1000]),
            Fault("nvmlDeviceGetCurrentClocksEventReasons", after=2, values=[0x4, 0x41, 0x800]),
        ],
    )
    gpu = first_gpu()  # its calls do not count below, because each init resets the fake's counters
    with open_telemetry(gpu) as line:
        assert [line.energy_j() for _ in range(4)] == [5.0, 7.0, 1.0, 1.0]
        seen = [(s.clock_event_reasons, s.idle) for s in (line.sample() for _ in range(4))]
    assert seen == [
        ((), True),
        (("sw_power_cap",), False),
        (("hw_thermal_slowdown",), True),
        (("0x800",), False),
    ]


def test_the_time_with_clocks_reduced_by_a_policy_is_in_seconds(inside_nvml) -> None:
    calls = load_dump("h200")
    for policy, ns in ((0, 1_500_000_000), (1, 0)):
        answer = {"referenceTime": 9_000_000, "violationTime": ns}
        calls = change(calls, "nvmlDeviceGetViolationStatus", answer, arguments=[policy])
    later = Fault(
        "nvmlDeviceGetViolationStatus",
        after=1,
        values=[{"referenceTime": 9_500_000, "violationTime": 1_750_000_000}],
        selector=(0,),
    )
    inside_nvml(calls, faults=[later])
    with open_telemetry(nvidia_profile()) as line:
        assert line.held_clocks_s() == {"power": 1.5, "thermal": 0.0}
        assert line.held_clocks_s() == {"power": 1.75, "thermal": 0.0}
        assert "held_clocks_s.reliability" in line._fields.unavailable


@pytest.mark.parametrize("code", [2, 3, 4, 15, 27, 999])
def test_a_refused_reading_is_none_with_its_reason(inside_nvml, code: int) -> None:
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetPowerUsage", code=code)])
    with open_telemetry(first_gpu() if code != 15 else nvidia_profile()) as line:
        reading = line.sample()
        assert reading.power_w is None
        assert reading.sm_clock_hz == 1.98e9
        assert line._fields.unavailable["power_w"].startswith("nvmlDeviceGetPowerUsage")


def nvidia_profile(index: int = 0) -> DeviceProfile:
    return DeviceProfile(backend="cuda", name="NVIDIA H200", index=index)


def test_a_call_that_hangs_drops_the_source_and_the_run_continues(inside_nvml) -> None:
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetPowerUsage", after=2, sleep_s=30)])
    with open_telemetry(nvidia_profile()) as line:
        line._session.guard.limit_s = 1.0
        assert line.sample().power_w is not None
        assert line.sample() == Reading()
        assert line.source == "hung"
        assert line.energy_j() is None
        assert line.compute_pids() is None


def test_a_driver_that_refuses_everything_gives_no_telemetry(inside_nvml) -> None:
    inside_nvml("h200", faults=[Fault("*", code=3)])
    with open_telemetry(nvidia_profile()) as line:
        assert line.source == "none"
        assert line.sample() == Reading()
        assert line.energy_j() is None


def test_a_gpu_lost_during_a_run_stays_lost_and_says_so(inside_nvml) -> None:
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetPowerUsage", after=2, code=15)])
    with open_telemetry(nvidia_profile()) as line:  # opening reads the power once
        assert (line.sample().power_w is not None, line.fault) == (True, None)
        assert (line.sample().power_w, line.fault) == (None, "gpu_lost")
        assert (line.sample().power_w, line.fault) == (None, "gpu_lost")


def test_a_gpu_lost_between_two_samples_is_noticed_at_the_next_call(inside_nvml) -> None:
    inside_nvml("h200", faults=[Fault("*", after=1, code=15)])
    with open_telemetry(nvidia_profile()) as line:  # opening checks once, and finds it healthy
        assert line.fault == "gpu_lost"


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (Fault("nvmlDeviceGetHandleByIndex", code=15), "gpu_lost", "GPU 0 is lost"),
        (Fault("nvmlDeviceGetHandleByIndex", code=16), "reset_required", "GPU 0 needs a reset"),
        (Fault("nvmlDeviceGetHandleByIndex", code=999), "gpu_lost", "GPU 0 cannot be opened"),
        (Fault("nvmlDeviceGetUUID", code=15), "gpu_lost", "GPU 0 is lost"),
        (Fault("nvmlDeviceGetUUID", sleep_s=3), "driver_hung", "nvmlDeviceGetUUID took over 1 s"),
        (Fault("nvmlInit", code=9), "driver_closed", "the NVIDIA kernel module is not loaded"),
    ],
)
def test_a_device_that_can_no_longer_be_read_gives_its_reason(
    inside_nvml, fault: Fault, code: str, words: str
) -> None:
    inside_nvml("h200")
    gpu = first_gpu()
    inside_nvml("h200", faults=[fault])
    with pytest.raises(DeviceGoneError, match=words) as gone:
        nvidia.NvidiaBackend(limit_s=1.0).open_readings(gpu)
    assert gone.value.fault == code


def test_a_gpu_that_needs_a_reset_says_so(inside_nvml) -> None:
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetTotalEnergyConsumption", code=16)])
    with open_telemetry(nvidia_profile()) as line:
        assert line.energy_j() is None
        assert line.fault == "reset_required"


def test_an_energy_counter_at_zero_gives_no_information(inside_nvml) -> None:
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetTotalEnergyConsumption", values=[0])])
    with open_telemetry(nvidia_profile()) as line:
        assert line.energy_j() is None
        assert "energy_j" in line._fields.unavailable


def test_the_ecc_counter_is_read_again_each_time(inside_nvml) -> None:
    calls = change(load_dump("h200"), "nvmlDeviceGetTotalEccErrors", 1, arguments=[1, 0])
    inside_nvml(calls, faults=[Fault("nvmlDeviceGetTotalEccErrors", after=1, values=[3])])
    with open_telemetry(nvidia_profile()) as line:
        assert [line.ecc_uncorrected() for _ in range(3)] == [1, 3, 3]


@pytest.mark.timing
def test_a_reading_takes_less_time_than_the_sampler_allows(inside_nvml) -> None:
    """At 10 Hz and 0.2 %, a reading may take 200 µs of the measuring process."""
    import time

    inside_nvml("h200")
    with open_telemetry(nvidia_profile()) as line:
        start, count = time.process_time(), 300
        for _ in range(count):
            line.sample()
        assert (time.process_time() - start) / count < 400e-6  # the fake's own search takes time too


def test_only_compute_processes_are_listed(inside_nvml) -> None:
    calls = change(
        load_dump("h200"), "nvmlDeviceGetComputeRunningProcesses", [{"pid": 7, "usedGpuMemory": 1 << 30}]
    )
    calls = change(calls, "nvmlDeviceGetGraphicsRunningProcesses", [{"pid": 8, "usedGpuMemory": None}])
    inside_nvml(calls)
    with open_telemetry(first_gpu()) as line:
        assert line.compute_pids() == (7,)


def test_a_device_that_is_gone_is_an_error(inside_nvml) -> None:
    inside_nvml("h200")
    with pytest.raises(NoDeviceError, match="GPU 3"):
        open_telemetry(nvidia_profile(3))


def test_a_cpu_has_no_telemetry() -> None:
    with open_telemetry(DeviceProfile(backend="cpu")) as line:
        assert line.source == "none"
        assert line.sample() == Reading()
        assert (line.energy_j(), line.compute_pids(), line.ecc_uncorrected()) == (None,) * 3
        assert line.compute_mode() is None


# --- several GPUs as one ------------------------------------------------------------------------------------


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
    with GpuGroup((nvidia_profile(0), nvidia_profile(1))) as both:
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
    with GpuGroup((nvidia_profile(0), nvidia_profile(1))) as both:
        seen = both.sample()
        assert (seen.power_w, both.energy_j()) == (None, None)
        assert seen.sm_clock_hz == 1.2e9


def test_one_lost_gpu_fails_the_job(pair) -> None:
    pair()
    with GpuGroup((nvidia_profile(0), nvidia_profile(1))) as both:
        assert both.fault is None
    pair(faults=[Fault("nvmlDeviceGetPowerUsage", code=15, device="1")])
    with GpuGroup((nvidia_profile(0), nvidia_profile(1))) as both:
        both.sample()
        assert both.fault == "gpu_lost"


def test_group_telemetry_is_off_if_one_gpu_reports_nothing(pair) -> None:
    pair(faults=[Fault("*", code=3, device="1")])
    with GpuGroup((nvidia_profile(0), nvidia_profile(1))) as both:
        assert both.source == "none"
