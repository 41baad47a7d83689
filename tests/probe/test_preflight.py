"""Whether others use the device, or its power limit was lowered; a second reading confirms that a GPU is busy."""

from __future__ import annotations

import os

import pytest
from nvml.script import Fault, change, load_dump

from gpubench.errors import NoDeviceError
from gpubench.models import FindingKind
from gpubench.probe import nvidia
from gpubench.probe.health import preflight
from gpubench.probe.probe import open_telemetry

TOTAL = 150754820096
V2 = 0x02000028
STRANGER = {"pid": 7, "usedGpuMemory": 1 << 30}


def memory(used: int) -> dict:
    return {"version": 0, "total": TOTAL, "reserved": 644939776, "free": TOTAL - used, "used": used}


@pytest.fixture
def check(inside_nvml):
    """``check(changes, faults, **options)`` -> the findings, and how long it waited each time [s]."""

    def run(changes: dict | None = None, faults: tuple = (), *, used: int = 0, **options):
        calls = change(load_dump("h200"), "nvmlDeviceGetMemoryInfo", memory(used), arguments=[V2])
        for function, value in (changes or {}).items():
            calls = change(calls, function, value)
        inside_nvml(calls, faults=list(faults))
        device = nvidia.BACKEND.devices().devices[0]
        waits: list[float] = []
        with open_telemetry(device) as readings:
            return preflight(device, readings, wait=waits.append, **options), waits

    return run


def test_an_idle_h200_passes_without_waiting(check) -> None:
    assert check() == ((), [])


def test_a_foreign_process_is_refused_with_its_pid(check) -> None:
    with pytest.raises(NoDeviceError, match=r"GPU 0 \(NVIDIA H200\) .* \(PIDs 7\)"):
        check({"nvmlDeviceGetComputeRunningProcesses": [STRANGER]})


def test_with_allow_shared_a_foreign_process_is_a_finding_without_pids(check) -> None:
    (finding,), waits = check({"nvmlDeviceGetComputeRunningProcesses": [STRANGER]}, allow_shared=True)
    assert (finding.kind, finding.value) == (FindingKind.SHARED_GPU, "1 other process")
    assert waits == [1.0]


def test_own_process_and_graphics_processes_are_not_reported_as_other_users(check) -> None:
    own = [{"pid": os.getpid(), "usedGpuMemory": 1}]
    drawing = {"nvmlDeviceGetGraphicsRunningProcesses": [STRANGER]}
    assert check({"nvmlDeviceGetComputeRunningProcesses": own, **drawing}) == ((), [])


def test_a_busy_gpu_without_a_process_list_is_refused(check) -> None:
    with pytest.raises(NoDeviceError, match="41 % busy"):
        check({"nvmlDeviceGetUtilizationRates": {"gpu": 41, "memory": 3}})


def test_gpu_load_that_just_ended_is_tolerated(check) -> None:
    after = Fault(
        "nvmlDeviceGetUtilizationRates", after=1, values=[{"gpu": 41, "memory": 3}, {"gpu": 0, "memory": 0}]
    )
    assert check(faults=(after,)) == ((), [1.0])


@pytest.mark.parametrize(("used", "found"), [(TOTAL // 51, False), (TOTAL // 49, True)])
def test_memory_use_above_the_threshold_is_a_finding_and_the_run_continues(
    check, used: int, found: bool
) -> None:
    findings, waits = check(used=used)
    assert [f.kind for f in findings] == ([FindingKind.SHARED_GPU] if found else [])
    assert waits == []


def test_the_reserve_of_the_driver_does_not_count_as_use_by_others(inside_nvml) -> None:
    inside_nvml(change(load_dump("h200"), "nvmlDeviceGetMemoryInfo", {"total": 100, "free": 50, "used": 50}))
    device = nvidia.BACKEND.devices().devices[0]
    with open_telemetry(device) as readings:  # only the old call: its "used" includes the reserve
        assert preflight(device, readings) == ()


@pytest.mark.parametrize(("watts", "ratio"), [(700, None), (686, None), (685, 0.979), (350, 0.5)])
def test_lowered_power_limit_is_a_finding(check, watts: int, ratio: float | None) -> None:
    findings, _ = check({"nvmlDeviceGetEnforcedPowerLimit": watts * 1000})
    assert [(f.kind, f.value) for f in findings] == (
        [] if ratio is None else [(FindingKind.POWER_CAPPED, ratio)]
    )


def test_compute_modes_that_prevent_a_run_are_refused(check) -> None:
    with pytest.raises(NoDeviceError, match="compute mode prohibited"):
        check({"nvmlDeviceGetComputeMode": 2})
    assert check({"nvmlDeviceGetComputeMode": 3}) == ((), [])
    with pytest.raises(NoDeviceError, match=r"exclusive_process .* \(PIDs 7\)"):
        check({"nvmlDeviceGetComputeMode": 3, "nvmlDeviceGetComputeRunningProcesses": [STRANGER]})


def test_driver_that_answers_nothing_does_not_block_a_run(check) -> None:
    assert check(faults=(Fault("*", code=3),)) == ((), [])
