"""The recorded answers of an H200, read through the real binding, become a DeviceProfile."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from nvml.library import SONAME, source
from nvml.script import Fault, change, load_dump
from nvml.signatures import SIGNATURES, symbol_of

from gpubench.errors import NoDeviceError
from gpubench.probe import nvidia
from gpubench.probe.nvml import Guard, HungCallError, tensor_core_precisions
from gpubench.probe.probe import probe
from gpubench.specs import find_spec

# Every field that the H200's driver reports, compared with manual readings on the same card.
H200 = {
    "vendor": "NVIDIA",
    "name": "NVIDIA H200",
    "gpu_key": "nvidia-h200-sxm-141gb",
    "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "index": 0,
    "pci_bus_id": "00000000:00:06.0",
    "architecture": "Hopper",
    "compute_capability": (9, 0),
    "sm_count": 132,
    "cuda_core_count": 16896,
    "memory_bytes": 150754820096,
    "unified_memory": False,
    "memory_bandwidth_bytes_per_s": pytest.approx(2 * 3.201e9 * 6016 / 8),
    "sm_clock_max_hz": 1.98e9,
    "memory_clock_max_hz": 3.201e9,
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "pcie_generation": 5,
    "pcie_width": 16,
    "driver_version": "580.159.04",
    "cuda_driver_version": "13.0",
    "ecc_enabled": True,
    "mig_enabled": False,
    "virtualization": "passthrough",
    "tensor_core_precisions": ("fp16", "bf16", "tf32", "int8", "fp8"),
}


def test_every_field_of_an_h200_is_read(inside_nvml) -> None:
    inside_nvml("h200")
    report = probe()
    gpu = report.devices[0]
    assert {name: getattr(gpu, name) for name in H200} == H200
    assert gpu.nvlink_count is None
    assert gpu.unavailable == {"nvlink_count": "nvmlDeviceGetNvLinkState: Not Supported"}
    state = report.states[0]
    assert state is not None
    assert (state.temperature_c, state.power_w, state.utilization) == (40.0, pytest.approx(127.598), 0.0)
    assert state.clock_event_reasons == ()
    assert state.idle is True


@pytest.mark.parametrize("code", [2, 3, 4, 13, 27, 999])
@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetMemoryInfo", "memory_bytes"),
        ("nvmlDeviceGetNumGpuCores", "cuda_core_count"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
        ("nvmlDeviceGetMemoryBusWidth", "memory_bandwidth_bytes_per_s"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetEccMode", "ecc_enabled"),
        ("nvmlDeviceGetArchitecture", "architecture"),
        ("nvmlSystemGetDriverVersion", "driver_version"),
    ],
)
def test_a_refused_field_is_none_with_its_reason(inside_nvml, function: str, field: str, code: int) -> None:
    inside_nvml("h200", faults=[Fault(function, code=code)])
    gpu = probe().devices[0]
    assert gpu.backend == "cuda"
    assert getattr(gpu, field) is None
    assert gpu.unavailable[field].startswith(function)


def test_when_everything_is_refused_the_device_is_still_listed(inside_nvml) -> None:
    inside_nvml("h200", faults=[Fault("*", code=3)])
    gpu = probe().devices[0]
    known = {"backend", "vendor", "index", "driver_version", "cuda_driver_version", "unavailable"}
    told = {name for name in gpu.__struct_fields__ if getattr(gpu, name) is not None}
    assert told == known
    assert set(gpu.unavailable) >= set(H200) - known - {"unified_memory"}


def test_an_old_driver_is_asked_through_the_older_function_name(inside_nvml) -> None:
    calls = change(load_dump("h200"), "nvmlDeviceGetCurrentClocksThrottleReasons", 0x4)
    inside_nvml(calls, missing=["nvmlDeviceGetCurrentClocksEventReasons"])
    state = probe().states[0]
    assert state is not None
    assert state.clock_event_reasons == ("sw_power_cap",)


def test_a_missing_function_affects_only_its_field(inside_nvml) -> None:
    inside_nvml("h200", missing=["nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMemoryInfo_v2"])
    gpu = probe().devices[0]
    assert gpu.cuda_core_count is None
    assert gpu.unavailable["cuda_core_count"].split(": ") == [
        "nvmlDeviceGetNumGpuCores",
        "Function Not Found",
    ]
    assert gpu.memory_bytes == 150754820096


def test_sm_count_comes_from_the_attributes_call_if_available(inside_nvml) -> None:
    attributes = {"multiprocessorCount": 98, "memorySizeMB": 1}
    inside_nvml(change(load_dump("h200"), "nvmlDeviceGetAttributes", attributes))
    assert probe().devices[0].sm_count == 98


def test_a_name_that_is_not_utf8_is_read_with_replacement(inside_nvml) -> None:
    inside_nvml(
        change(load_dump("h200"), "nvmlDeviceGetName", b"NVIDIA \xff200".decode("utf-8", "surrogateescape"))
    )
    assert probe().devices[0].name == "NVIDIA \ufffd200"


@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetPowerUsage"])
def test_one_lost_gpu_leaves_the_others(inside_nvml, function: str) -> None:
    inside_nvml(["h200", "h200"], faults=[Fault(function, code=15, device="1")])
    report = probe()
    assert [d.index for d in report.devices if d.backend == "cuda"] == [0]
    assert report.problems[0].line().startswith("GPU 1 is lost (NVML")
    assert report.problems[0].device_index == 1


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName", "nvmlDeviceGetPowerUsage"]
)
def test_gpus_before_a_hanging_one_are_listed_and_later_ones_are_skipped(inside_nvml, function: str) -> None:
    which = {"selector": (1,)} if "Handle" in function else {"device": "1"}
    inside_nvml(["t4", "h200", "h200", "h200"], faults=[Fault(function, sleep_s=5, **which)])
    report = nvidia.NvidiaBackend(limit_s=0.5).devices()
    assert [(d.index, d.name) for d in report.devices] == [(0, "Tesla T4")]
    assert None not in report.states
    assert [(p.device_index, p.exit_code) for p in report.problems] == [(1, 3), (None, 3)]
    assert f"({function} took over" in report.problems[0].line()
    assert report.problems[1].what == "GPUs 2 to 3 were not queried"


def test_eight_gpus_that_answer_slowly_are_all_listed(inside_nvml) -> None:
    """Together they take longer than one call may, but each call is within its limit."""
    inside_nvml(["h200"] * 8, faults=[Fault("nvmlDeviceGetName", sleep_s=0.1)])
    report = nvidia.NvidiaBackend(limit_s=0.75).devices()
    assert [d.index for d in report.devices] == list(range(8))
    assert None not in report.states
    assert report.problems == ()


def test_a_driver_that_is_slow_at_every_call_loses_no_gpu(inside_nvml) -> None:
    inside_nvml("h200", faults=[Fault("*", sleep_s=0.02)])
    report = nvidia.NvidiaBackend(limit_s=0.8).devices()
    assert [d.name for d in report.devices] == ["NVIDIA H200"]
    assert report.problems == ()


def test_an_init_that_hangs_is_exit_3(inside_nvml) -> None:
    inside_nvml("h200", faults=[Fault("nvmlInit", sleep_s=3)])
    (problem,) = nvidia.NvidiaBackend(limit_s=0.5).devices().problems
    assert problem.exit_code == 3
    assert problem.value.startswith("nvmlInit took over")
    assert "not answer" in problem.what


def test_a_dump_of_a_driver_that_hangs_is_refused(inside_nvml, monkeypatch) -> None:
    monkeypatch.setattr(nvidia, "CALL_LIMIT_S", 0.5)
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetName", sleep_s=3)])
    with pytest.raises(NoDeviceError, match="GPU 0 does not"):
        nvidia.dump()


def test_a_process_with_a_stuck_call_still_ends(fake_nvml) -> None:
    code = "from gpubench.probe.nvidia import NvidiaBackend; print(NvidiaBackend(limit_s=0.5).devices().problems[0].what)"
    environment = fake_nvml("h200", faults=[Fault("nvmlDeviceGetName", sleep_s=600)])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("GPU 0 does not")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "capability", "formats"),
    [
        ("Tesla P100-PCIE-16GB", (6, 0), ()),
        ("Tesla V100-SXM2-16GB", (7, 0), ("fp16",)),
        ("Tesla T4", (7, 5), ("fp16", "int8")),
        ("NVIDIA GeForce GTX 1660", (7, 5), ()),
        ("NVIDIA A100-SXM4-40GB", (8, 0), ("fp16", "bf16", "tf32", "int8")),
        ("NVIDIA GeForce RTX 4090", (8, 9), ("fp16", "bf16", "tf32", "int8", "fp8")),
        ("NVIDIA B200", (10, 0), ("fp16", "bf16", "tf32", "int8", "fp8", "fp6", "fp4")),
    ],
)
def test_tensor_core_formats_follow_from_the_compute_capability(
    name: str, capability: tuple[int, int], formats: tuple[str, ...]
) -> None:
    assert tensor_core_precisions(capability, find_spec(name), name) == formats


def test_a_dump_replays_to_the_same_profile(inside_nvml, tmp_path: Path) -> None:
    inside_nvml("h200")
    before = probe().devices[0]
    file = tmp_path / "dump.json"
    file.write_text(nvidia.dump_text(nvidia.dump()), encoding="utf-8")
    inside_nvml(file)
    assert probe().devices[0] == before


def test_a_dump_contains_no_identifier(inside_nvml) -> None:
    calls = change(load_dump("h200"), "nvmlDeviceGetUUID", "GPU-8a1b2c3d-0000-1111-2222-333344445555")
    calls = change(calls, "nvmlDeviceGetComputeRunningProcesses", [{"pid": 4242, "usedGpuMemory": 1 << 30}])
    inside_nvml(calls)
    text = json.dumps(nvidia.dump())
    assert "8a1b2c3d" not in text
    assert "4242" not in text
    assert "GPU-00000000-0000-0000-0000-000000000001" in text


def test_every_call_that_gpubench_makes_is_in_the_table_of_signatures(inside_nvml) -> None:
    inside_nvml("h200")
    made = {symbol_of(c["function"], tuple(c["arguments"])) for c in nvidia.dump()}
    assert made <= set(SIGNATURES)
    assert all(f"int {name}(" in source() for name in made)
    assert SONAME == "libnvidia-ml.so.1"


# --- driver calls on their own thread -----------------------------------------------------------------------


def test_a_call_may_have_a_separate_limit() -> None:
    guard = Guard(limit_s=1.0)

    def work() -> str:
        guard.begin("start", 30.0)
        time.sleep(1.2)
        return "started"

    assert guard.call(work) == "started"
    guard.close()


def test_an_abandoned_thread_makes_no_more_calls_and_ends_when_its_call_returns() -> None:
    guard, over, asked = Guard(limit_s=0.1), threading.Event(), []

    def work() -> None:
        guard.begin("stuck")
        over.wait(30)
        guard.begin("next")
        asked.append("next")

    with pytest.raises(HungCallError):
        guard.call(work)
    over.set()
    assert guard._thread is not None
    guard._thread.join(10)
    assert not guard._thread.is_alive()
    assert asked == []


def test_an_error_of_the_work_reaches_the_caller() -> None:
    guard = Guard()
    with pytest.raises(ZeroDivisionError):
        guard.call(lambda: 1 // 0)
    guard.close()
