"""Sampler, energy, preflight, environment and privacy, on a scripted device."""

from __future__ import annotations

import getpass
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvml.script import Fault, change, load_dump
from patience import Stopwatch

from gpubench.errors import NoDeviceError
from gpubench.measure import capability
from gpubench.measure.environment import environment
from gpubench.measure.launch import HostTimes, Others, energy_of, sampling, shifted
from gpubench.measure.privacy import scrub
from gpubench.models import FindingKind, Reading, TelemetrySample
from gpubench.probe import nvidia


class FakeReadings:
    """A device with scripted answers."""

    source = "nvml"

    def __init__(self, pids=(), utilization=(0.0,), used=0):
        self._pids, self._utilization, self._used = pids, list(utilization), used

    def sample(self):
        value = self._utilization.pop(0) if len(self._utilization) > 1 else self._utilization[0]
        return Reading(utilization=value, memory_used_bytes=self._used, power_w=600.0)

    def energy_j(self):
        return 123.0

    def held_clocks_s(self):
        return {}

    def compute_pids(self):
        return self._pids

    def memory_in_use_bytes(self):
        return self._used

    def compute_mode(self):
        return "default"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_the_sampler_reads_ten_times_a_second_and_hands_over_each_sample_once():
    samples = []
    began_s, watch = time.monotonic(), Stopwatch()
    with sampling(FakeReadings(), time.monotonic) as drain:
        while len(samples) < 6:
            time.sleep(0.05)
            samples += drain()
        assert watch.free_s() < 0.8  # the sixth is due after half a second
    times_s = [sample.t_s for sample in samples]
    assert times_s == sorted(set(times_s))
    assert all(t_s - began_s >= 0.1 * n for n, t_s in enumerate(times_s))
    assert samples[0].power_w == 600.0


def test_a_device_without_telemetry_is_not_sampled():
    class Silent(FakeReadings):
        source = "none"

        def sample(self):
            raise AssertionError("asked")

    with sampling(Silent(), time.monotonic) as drain:
        time.sleep(0.15)
    assert drain() == []


def test_samples_count_from_the_first_timed_round_and_the_warm_up_is_kept_once_a_second():
    samples = [TelemetrySample(t_s=100 + i / 10, power_w=float(i)) for i in range(60)]
    found = shifted(samples, 103.0)
    assert [s.t_s for s in found if s.t_s < 0] == pytest.approx([-3.0, -2.0, -1.0])
    timed = [s for s in found if s.t_s >= 0]
    assert len(timed) == 30
    assert (timed[0].t_s, timed[0].power_w) == (0.0, 30.0)


@pytest.fixture
def gpu(inside_nvml):
    inside_nvml("h200")
    return nvidia.BACKEND.devices().devices[0]


def test_the_state_before_the_run_is_that_of_the_driver(gpu):
    state = capability.start_state(gpu)
    assert state.idle_power_w == pytest.approx(127.6, abs=0.1)
    assert (state.temperature_c, state.pcie_generation, state.pcie_width) == (40.0, 5, 16)
    assert state.persistence_mode is not None


def test_power_is_recorded_as_idle_only_if_the_device_is_unused(inside_nvml, cpu):
    busy = {"gpu": 41, "memory": 3}
    inside_nvml(change(load_dump("h200"), "nvmlDeviceGetUtilizationRates", busy))
    state = capability.start_state(nvidia.BACKEND.devices().devices[0])
    assert state.idle_power_w is None
    assert state.temperature_c == 40.0
    assert capability.start_state(cpu) is None


@pytest.mark.parametrize(("code", "fault"), [(15, "gpu_lost"), (16, "reset_required"), (3, None)])
def test_after_a_crash_the_driver_reports_whether_the_device_is_lost(gpu, inside_nvml, cpu, code, fault):
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetPowerUsage", code=code)])
    assert capability.fault_of(gpu) == fault
    assert capability.fault_of(cpu) is None


def test_a_device_that_is_no_longer_listed_is_lost(gpu, inside_nvml):
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetHandleByIndex_v2", code=15)])
    assert capability.fault_of(gpu) == "gpu_lost"


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (Fault("nvmlInit", code=9), "driver_closed"),
        (Fault("nvmlDeviceGetUUID", sleep_s=2), "driver_hung"),
    ],
)
def test_a_missing_driver_is_not_a_gpu_that_fell_off_the_bus(gpu, inside_nvml, monkeypatch, fault, named):
    monkeypatch.setattr(nvidia, "BACKEND", nvidia.NvidiaBackend(limit_s=0.2))
    inside_nvml("h200", faults=[fault])
    assert capability.fault_of(gpu) == named
    assert capability.describe_fault(named).startswith(f"{named}: the driver ")


def test_a_reading_that_hangs_ends_telemetry_and_not_the_run(gpu, inside_nvml, monkeypatch):
    monkeypatch.setattr(nvidia, "BACKEND", nvidia.NvidiaBackend(limit_s=0.2))
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetClockInfo", sleep_s=2)])
    assert capability.fault_of(gpu) is None


def test_a_lost_gpu_has_no_other_users(gpu, inside_nvml):
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetHandleByIndex", code=15)])
    assert capability.newcomers(gpu) == ()


# --- energy -------------------------------------------------------------------------------------------------


def powers(watts: float, seconds: float = 20.0) -> list[TelemetrySample]:
    return [TelemetrySample(t_s=i / 10, power_w=watts) for i in range(round(seconds * 10) + 1)]


def test_the_counter_is_preferred_and_its_source_named():
    found = energy_of(20.0, (100.0, 13100.0), powers(600), 700)
    assert (found.joules, found.source) == (13000.0, "counter")


def test_without_a_counter_the_integral_of_power_is_used():
    found = energy_of(20.0, (None, None), powers(600), 700)
    assert (found.joules, found.source) == (pytest.approx(12000), "power_integral")


def test_a_region_under_two_seconds_has_no_energy():
    assert energy_of(1.9, (0.0, 1200.0), powers(600), 700).joules is None
    assert energy_of(2.0, (0.0, 1200.0), powers(600), 700).joules == 1200.0


@pytest.mark.parametrize("edges", [(100.0, 100.0), (100.0, 50.0), (0.0, 20.0 * 700 * 1.21)])
def test_a_counter_that_stops_goes_back_or_runs_away_is_unknown_with_a_finding(edges):
    found = energy_of(20.0, edges, powers(600), 700)
    assert found.joules is None
    assert found.finding.kind is FindingKind.ENERGY_IMPLAUSIBLE


def test_power_with_gaps_is_not_integrated():
    holed = [s for s in powers(600) if not 5 < s.t_s < 8]
    assert energy_of(20.0, (None, None), holed, 700).joules is None


@given(st.lists(st.floats(0, 1000), max_size=30), st.floats(10, 100))
def test_unknown_energy_is_never_zero(watts, region_s):
    samples = [TelemetrySample(t_s=i / 10, power_w=w) for i, w in enumerate(watts)]
    joules = energy_of(region_s, (None, None), samples, None).joules
    assert joules is None or joules > 0


# --- preflight ----------------------------------------------------------------------------------------------


@pytest.fixture
def card(h100):
    return msgspec.structs.replace(h100, memory_bytes=80 * 1024**3)


def test_foreign_memory_use_without_a_process_is_a_finding_only(card, monkeypatch):
    monkeypatch.setattr("gpubench.probe.probe.open_telemetry", lambda _: FakeReadings(used=4 * 1024**3))
    found = capability.preflight(card, allow_shared=False, sleep=lambda _: None)
    assert [f.kind for f in found] == [FindingKind.SHARED_GPU]


def test_a_gpu_in_use_is_refused_unless_allowed(card, monkeypatch):
    busy = FakeReadings(utilization=(0.4,))
    monkeypatch.setattr("gpubench.probe.probe.open_telemetry", lambda _: busy)
    with pytest.raises(NoDeviceError, match="--allow shared"):
        capability.preflight(card, allow_shared=False, sleep=lambda _: None)
    found = capability.preflight(card, allow_shared=True, sleep=lambda _: None)
    assert [f.kind for f in found] == [FindingKind.SHARED_GPU]


def test_a_process_that_started_during_the_run_is_found(card, monkeypatch):
    busy = FakeReadings(pids=(7,))
    monkeypatch.setattr("gpubench.probe.probe.open_telemetry", lambda _: busy)
    assert [f.kind for f in capability.newcomers(card, sleep=lambda _: None)] == [FindingKind.SHARED_GPU]


# --- stored facts of this machine ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "TORCH_COMPILE_DISABLE",
        "TORCHDYNAMO_DISABLE",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "PYTORCH_TUNABLEOP_ENABLED",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "OMP_PROC_BIND",
        "OMP_PLACES",
        "ATEN_CPU_CAPABILITY",
        "MKL_CBWR",
        "MIOPEN_FIND_MODE",
        "CUDA_CACHE_DISABLE",
    ],
)
def test_a_variable_that_affects_the_measurement_is_recorded(cpu, monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    assert name not in environment(cpu).variables
    monkeypatch.setenv(name, "1")
    assert environment(cpu).variables[name] == "1"


def test_the_clock_policy_of_the_cpu_is_recorded(cpu, monkeypatch):
    monkeypatch.setattr("gpubench.measure.environment.cpu_governor", lambda: "powersave")
    assert environment(cpu).cpu_governor == "powersave"


def test_the_environment_names_no_host_no_user_and_no_path(cpu, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", f"{Path.home()}/private/lib.so")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)  # set by a torch that is built for CUDA
    text = msgspec.json.encode(environment(cpu)).decode()
    assert platform.node() not in text
    assert str(Path.home()) + "/" not in text
    found = environment(cpu)
    assert found.variables == {"LD_PRELOAD": "lib.so", "OMP_NUM_THREADS": "2"}
    assert found.ram_bytes > 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("File /home/ann/my_model.py, line 3", "File my_model.py, line 3"),
        (r"C:\Users\ann\x.py failed", "x.py failed"),
        ("cannot open '/home/ann lee/my data/x.bin'", "cannot open 'x.bin'"),
        (r'File "C:\Users\Ann Lee\x y.py", line 3', 'File "x y.py", line 3'),
        ("libfoo.so:/opt/ann/lib.so", "libfoo.so:lib.so"),
        ("GPU-11111111-2222-3333-4444-555555555555 is gone", "<uuid> is gone"),
        ("a ratio of 3/4 and 1 img/s", "a ratio of 3/4 and 1 img/s"),
        ("color \x1b[31mred\x1b[0m", "color [31mred[0m"),
        (
            "in use by others: 2 other processes (PIDs 4711, 12)",
            "in use by others: 2 other processes (PIDs <pid>)",
        ),
        ("Process 4711 has 3.00 GiB memory in use.", "Process <pid> has 3.00 GiB memory in use."),
        ("process 4711 cannot be killed", "process <pid> cannot be killed"),
        ("link aa:bb:cc:dd:ee:ff is down", "link <address> is down"),
        ("adapter 02-42-AC-11-00-02.", "adapter <address>."),
        ("at 20:26:11 and 2026-11-30-10-10", "at 20:26:11 and 2026-11-30-10-10"),
    ],
)
def test_scrubbing_keeps_the_message_and_drops_private_parts(text, expected):
    assert scrub(text) == expected


def test_scrubbing_removes_host_and_user(monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "ann-laptop")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    assert scrub("ann: ann-laptop, an annex") == "<user>: <host>, an annex"


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (SimpleNamespace(power_plugged=False), [FindingKind.ON_BATTERY]),
        (SimpleNamespace(power_plugged=True), []),
        (SimpleNamespace(power_plugged=None), []),
        (None, []),
    ],
    ids=["unplugged", "plugged in", "not told", "no battery"],
)
def test_a_laptop_that_is_not_plugged_in_is_reported(monkeypatch, cpu, told, found):
    monkeypatch.setattr(psutil, "sensors_battery", lambda: told, raising=False)
    assert [finding.kind for finding in capability.preflight(cpu, allow_shared=False)] == found


def test_a_system_without_battery_information_counts_as_plugged_in(monkeypatch, cpu):
    monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    assert capability.preflight(cpu, allow_shared=False) == ()


# --- the CPU time of other programs -------------------------------------------------------------------------


TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def host(tmp_path, monkeypatch):
    """``host(user=..., own_s=...)`` sets the counters of the host, and the CPU time of this process."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))

    def set_to(*, user=0, system=0, idle=0, iowait=0, steal=0, own_s=0.0) -> None:
        line = f"cpu  {user} 0 {system} {idle} {iowait} 0 0 {steal} 0 0\n"
        (tmp_path / "stat").write_text(f"{line}cpu0 1 1 1 1 1 1 1 1 0 0\n")
        monkeypatch.setattr(os, "times", lambda: (own_s, 0.0, 0.0, 0.0, 0.0))

    return set_to


def test_others_time_is_everything_except_idle_time_and_our_own(host):
    host(user=1000, idle=5000)
    before = HostTimes.now()
    host(user=1000 + 700, idle=5000 + 200, iowait=100, own_s=100 / TICKS_PER_S)
    assert before.others_since() == Others(load=pytest.approx(0.6), steal=0.0)


def test_the_processes_of_one_job_are_not_other_programs(host):
    host()
    before = HostTimes.now(4)
    host(user=400, idle=600, own_s=100 / TICKS_PER_S)
    assert before.others_since().load == 0.0


def test_time_that_other_guests_took_is_distinguished(host):
    host()
    before = HostTimes.now()
    host(user=300, idle=600, steal=100, own_s=300 / TICKS_PER_S)
    assert before.others_since() == Others(load=0.0, steal=0.1)


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3", "cpu a b c d e f g h i j"])
def test_an_unreadable_value_is_unknown_and_not_idle(tmp_path, monkeypatch, text):
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert HostTimes.now().others_since() == Others(None, None)


def test_counters_that_did_not_move_or_went_back_are_unknown(host):
    host(user=100, idle=100)
    before = HostTimes.now()
    assert before.others_since() == Others(None, None)
    host(user=50, idle=50)
    assert before.others_since() == Others(None, None)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the counters of Linux")
def test_another_program_is_detected_on_the_real_host():
    busy = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    before = HostTimes.now()
    for other in others:
        other.communicate()
    seen = before.others_since()
    assert seen.load is not None
    assert seen.load > 0.5 / (os.cpu_count() or 1)
