"""Each check of `gpubench doctor`, in the state that it detects."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import gpubench
from nvml.script import Fault, change, load_dump

from gpubench.probe import health
from gpubench.probe.backend import Host, ProbeReport, Problem
from gpubench.probe.health import Check, check_up, failed, host_checks
from gpubench.probe.nvidia import NvidiaBackend
from gpubench.probe.probe import probe
from gpubench.probe.torch_view import TorchBuild, torch_view

# A fake CUDA build of torch with only what the check uses, because CI has no GPU.
TORCH = """
from . import version

class _Props:
    name = {name!r}
    uuid = {uuid!r}
    multi_processor_count = {sm_count}
    total_memory, major, minor = 150_108_820_096, 9, 0
    pci_domain_id, pci_bus_id, pci_device_id = 0, 0, 6

class cuda:
    @staticmethod
    def get_arch_list():
        return {architectures!r}
    @staticmethod
    def init():
        {init}
    @staticmethod
    def get_device_properties(index):
        return _Props

class ones:
    def __init__(self, n, device):
        {compute}
    def sum(self): return self
    def item(self): return 64
"""
VERSION = "__version__ = '2.11.0+cu130'\ncuda: str | None = '13.0'\nhip: str | None = None\n"
BUILD = TorchBuild(version="2.11.0+cu130", cuda="13.0", hip=None)


ADVICE = """
Search for `cudaErrorSome' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
"""The text that torch appends to a CUDA error."""


def fails(words: str) -> str:
    """Return code for the fake torch that raises this message."""
    return f"raise RuntimeError({words!r})"


def torch_in(
    folder: Path,
    *,
    init: str = "pass",
    compute: str = "pass",
    name: str = "NVIDIA H200",
    uuid: str = "0" * 32,
    sm_count: int = 132,
    architectures: tuple[str, ...] = ("sm_75", "sm_80", "sm_90"),
) -> str:
    package = folder / "torch"
    package.mkdir()
    text = TORCH.format(
        init=init, compute=compute, name=name, uuid=uuid, sm_count=sm_count, architectures=list(architectures)
    )
    (package / "__init__.py").write_text(text)
    (package / "version.py").write_text(VERSION)
    return str(folder)


@pytest.fixture
def seen_in_torch(inside_nvml, fake_nvml, tmp_path: Path, monkeypatch) -> Callable[..., Check]:
    """``seen_in_torch(**torch)``: the check of the H200 in this torch, which a child process imports."""

    def ask(**torch: Any) -> Check:
        inside_nvml("h200")
        for module in ("probe", "torch_view"):
            monkeypatch.setattr(f"gpubench.probe.{module}.torch_build", lambda: BUILD)
        monkeypatch.setattr(health, "torch_view", torch_view)
        variables = dict(fake_nvml("h200"), PYTHONPATH=torch_in(tmp_path, **torch))
        (check,) = by_name(check_up(probe(), variables))["GPU 0 in torch"]
        return check

    return ask


def by_name(checks: tuple[Check, ...]) -> dict[str, list[Check]]:
    found: dict[str, list[Check]] = {}
    for check in checks:
        found.setdefault(check.name, []).append(check)
    return found


@pytest.fixture(autouse=True)
def _torch_is_asked_in_child_processes_only(monkeypatch) -> None:
    """The torch of this environment cannot open a GPU that only the fake driver has."""
    monkeypatch.setattr(health, "torch_view", lambda device, variables: ("not asked here", None))


def test_a_machine_without_a_gpu_is_not_a_failure() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    checks = check_up(probe(), {})
    assert not failed(checks)
    assert {"Python", "torch", "driver binding", "NVIDIA driver", "processors", "memory"} <= set(
        by_name(checks)
    )


def test_a_healthy_gpu_computes_with_torch(fake_nvml, tmp_path: Path) -> None:
    """The whole command runs in a process of its own."""
    environment = dict(fake_nvml("h200"), PYTHONPATH=torch_in(tmp_path))
    done = gpubench(environment, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["GPU 0 in torch"]["status"] == "ok"
    assert "NVIDIA H200" in checks["GPU 0 in torch"]["seen"]
    assert checks["GPU 0"]["status"] == "ok"
    assert checks["NVIDIA driver"]["seen"].startswith("580.159.04, CUDA 13.0")


TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by "
    "downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)


@pytest.mark.parametrize(
    ("torch", "seen", "fix"),
    [
        (
            {"init": fails(TOO_OLD)},
            "(torch 2.11.0+cu130 needs CUDA 13.0, driver 580.159.04 has CUDA 12.4)",
            "update the driver, or replace torch: pip uninstall torch, then install its CUDA 12 build",
        ),
        (
            {"compute": fails("CUDA error: CUDA-capable device(s) is/are busy or unavailable" + ADVICE)},
            "allows one process at a time, or none (CUDA error: CUDA-capable device(s) is/are busy or unavailable)",
            "nvidia-smi -c DEFAULT",
        ),
        (
            {
                "compute": fails(
                    "CUDA error: no kernel image is available for execution on the device" + ADVICE
                ),
                "architectures": ("sm_100", "sm_120"),
            },
            "no kernels for NVIDIA H200 (compute capability 9.0, torch is built for sm_100 sm_120)",
            "install its CUDA 13 build with the command from the selector at pytorch.org",
        ),
        ({"compute": fails("something new" + ADVICE)}, "something new", "fix what torch reports"),
        ({"init": "__import__('os').abort()"}, "killed by signal 6 (SIGABRT)", "fix what torch reports"),
        ({"name": "Tesla T4"}, "disagree on the name", "by its UUID"),
        ({"sm_count": 108}, "disagree on the SM count", "by its UUID"),
    ],
)
def test_a_torch_that_cannot_use_the_gpu_fails_with_the_fix(
    seen_in_torch, torch: dict, seen: str, fix: str
) -> None:
    check = seen_in_torch(**torch)
    assert check.status == "fail"
    assert seen in check.seen
    assert fix in check.fix
    assert "stacktrace" not in check.seen


@pytest.mark.parametrize(("architecture", "words"), [("compute_80", "first use"), ("sm_100", "")])
def test_gpu_that_computes_is_ok_whatever_architectures_torch_lists(
    seen_in_torch, architecture: str, words: str
) -> None:
    check = seen_in_torch(architectures=(architecture,))
    assert check.status == "ok"
    assert words in check.seen


def test_a_cpu_only_torch_with_a_gpu_is_a_failure(inside_nvml) -> None:
    inside_nvml("h200")
    report = probe()
    if report.host.torch_cuda:
        pytest.skip("this torch has CUDA")
    (check,) = by_name(check_up(report, {}))["torch and driver"]
    assert check.status == "fail"
    assert "CPU-only build" in check.seen


@pytest.mark.parametrize(
    ("variables", "status", "words"),
    [
        ({"NVIDIA_TF32_OVERRIDE": "1"}, "fail", "forces TF32"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, "fail", "forces TF32"),
        ({"NVIDIA_TF32_OVERRIDE": "2"}, "fail", "forces TF32"),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, "warn", "forbids TF32"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warn", "every kernel"),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, "ok", "no variable"),
        ({}, "ok", "no variable"),
    ],
)
def test_variables_that_change_a_measurement_are_warnings(variables: dict, status: str, words: str) -> None:
    report = ProbeReport(devices=(), host=Host(os="x", python="3.12.1", torch="2.13.0"), problems=())
    check = by_name(check_up(report, variables))["environment"][0]
    assert check.status == status
    assert words in check.seen


@pytest.mark.parametrize(
    ("visible", "status"), [("0", "ok"), ("", "warn"), ("-1", "warn"), ("7", "fail"), ("0,0", "fail")]
)
def test_an_invalid_device_list_is_a_failure(inside_nvml, visible: str, status: str) -> None:
    inside_nvml("h200")
    checks = by_name(check_up(probe(), {"CUDA_VISIBLE_DEVICES": visible}))
    assert checks["CUDA_VISIBLE_DEVICES"][0].status == status


@pytest.mark.parametrize(
    ("torch", "status"), [(None, "fail"), ("2.3.1", "fail"), ("2.4.0+cpu", "ok"), ("3.0a0+git", "ok")]
)
def test_an_unsupported_or_missing_torch_is_a_failure(torch: str | None, status: str) -> None:
    report = ProbeReport(devices=(), host=Host(os="x", python="3.12.1", torch=torch), problems=())
    assert by_name(check_up(report, {}))["torch"][0].status == status


def test_each_limit_of_a_gpu_is_a_warning_with_its_fix(inside_nvml) -> None:
    inside_nvml("four", faults=[Fault("nvmlDeviceGetPersistenceMode", values=[1])])
    checks = by_name(check_up(probe(), {}))
    assert [c.status for c in checks["GPU 0"]] == ["ok"]
    assert checks["GPU 2"][0].status == "warn"
    assert checks["GPU 2"][0].fix.endswith("nvidia-smi -i 2 -pl 450")


def test_a_gpu_in_use_is_a_failure_unless_another_one_is_free(inside_nvml) -> None:
    """A run on it would be refused."""
    use = [{"pid": 4100, "usedGpuMemory": 9 << 30}]
    taken = change(load_dump("h200"), "nvmlDeviceGetComputeRunningProcesses", use)
    inside_nvml(change(taken, "nvmlDeviceGetUtilizationRates", {"gpu": 97, "memory": 40}))
    checks = by_name(check_up(probe(), {}))
    assert [(c.status, c.seen) for c in checks["GPU 0"]] == [("fail", "in use by 1 process")]
    assert "--allow shared" in str(checks["GPU 0"][0].fix)
    inside_nvml([taken, "h200"])
    checks = by_name(check_up(probe(), {}))
    assert [c.status for c in (*checks["GPU 0"], *checks["GPU 1"])] == ["warn", "ok"]


def test_versions_that_the_driver_does_not_report_are_shown_as_unknown(inside_nvml) -> None:
    refused = [Fault(f"nvmlSystemGet{what}", code=3) for what in ("DriverVersion", "CudaDriverVersion_v2")]
    inside_nvml("h200", faults=refused)
    (driver,) = by_name(check_up(probe(), {}))["NVIDIA driver"]
    assert driver.seen.startswith("—, CUDA —, ")


@pytest.mark.parametrize(
    ("backend", "name"), [("cuda", "NVIDIA driver"), ("rocm", "AMD driver"), ("npu", "backend npu")]
)
def test_a_problem_is_named_after_its_backend(backend: str, name: str) -> None:
    problem = Problem(what="it does not answer", fix="restart it", exit_code=3, backend=backend)
    host = Host(os="x", python="3.12.1", torch=None)
    checks = by_name(check_up(ProbeReport(devices=(), host=host, problems=(problem,)), {}))
    assert [(check.status, check.seen) for check in checks[name]] == [("fail", "it does not answer")]


def test_a_gpu_that_does_not_answer_is_a_failure(inside_nvml, monkeypatch) -> None:
    monkeypatch.setattr("gpubench.probe.nvidia.BACKEND", NvidiaBackend(limit_s=1.0))
    inside_nvml(["h200", "h200"], faults=[Fault("nvmlDeviceGetName", sleep_s=2, device="1")])
    checks = by_name(check_up(probe(), {}))
    assert checks["GPU 0"][0].status == "ok"
    assert [(c.status, "(nvmlDeviceGetName took" in c.seen) for c in checks["GPU 1"]] == [("fail", True)]


@pytest.mark.parametrize(
    ("mode", "processes", "seen"),
    [
        (0, 0, None),
        (3, 0, None),
        (3, 1, "GPU 0 (NVIDIA H200) is in compute mode exclusive_process and in use (1 process)"),
        (2, 0, "GPU 0 (NVIDIA H200) is in compute mode prohibited: no program may use it"),
    ],
)
def test_a_compute_mode_that_prevents_a_run_is_a_failure(
    inside_nvml, mode: int, processes: int, seen: str | None
) -> None:
    calls = change(load_dump("h200"), "nvmlDeviceGetComputeMode", mode)
    listed = [{"pid": 7, "usedGpuMemory": 1 << 30}] * processes
    inside_nvml(change(calls, "nvmlDeviceGetComputeRunningProcesses", listed))
    checks = by_name(check_up(probe(), {}))["GPU 0"]
    failures = [c for c in checks if c.status == "fail"]
    assert [c.seen for c in failures] == ([] if seen is None else [seen])
    assert sum("compute mode" in c.seen for c in checks) == (1 if mode else 0)
    assert all("-i 0 -c DEFAULT" in c.fix for c in failures)
    assert mode != 2 or checks == failures, "it is not called ok as well"


class TestHost:
    def checks(self, root: Path) -> dict[str, Check]:
        return {c.name: c for c in host_checks(root)}

    def test_a_processor_quota_below_the_thread_count_is_a_warning(self, tmp_path: Path) -> None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
        check = self.checks(tmp_path)["processors"]
        assert (check.status, "OMP_NUM_THREADS=1" in (check.fix or "")) == ("warn", True)
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
        assert self.checks(tmp_path)["processors"].status == "ok"

    @pytest.mark.parametrize(("governor", "status"), [("performance", "ok"), ("powersave", "warn")])
    def test_the_clock_policy_of_a_cpu_is_checked(self, tmp_path: Path, governor: str, status: str) -> None:
        folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
        assert self.checks(tmp_path)["clock policy"].status == status

    def test_inaccessible_device_nodes_are_a_failure(self, tmp_path: Path, monkeypatch) -> None:
        assert "device nodes" not in self.checks(tmp_path)
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/nvidiactl").touch()
        assert self.checks(tmp_path)["device nodes"].status == "ok"
        monkeypatch.setattr(os, "access", lambda file, mode: "nvidiactl" not in str(file))
        check = self.checks(tmp_path)["device nodes"]
        assert (check.status, check.seen) == ("fail", "no access to /dev/nvidiactl")

    def test_a_container_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run/.containerenv").touch()
        assert self.checks(tmp_path)["container"].seen == "podman"

    def test_high_load_and_low_memory_are_warnings(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(os, "getloadavg", lambda: (50.0, 1.0, 1.0))
        assert self.checks(tmp_path)["other work"].status == "warn"
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(str(2 << 30))
        assert self.checks(tmp_path)["memory"].status == "warn"


# --- the command --------------------------------------------------------------------------------------------


def doctor(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return gpubench(environment, "doctor", *arguments)


def without_driver() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in {"LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"}}
    return {k: v for k, v in kept.items() if "TF32" not in k}


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_a_machine_without_a_gpu_is_ready(tmp_path: Path) -> None:
    done = doctor(without_driver(), "--results", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().splitlines()[-1].startswith("Ready to measure")
    assert re.search(rf"results folder +{tmp_path}", done.stdout)


def test_every_failure_and_warning_has_a_fix(fake_nvml) -> None:
    environment = dict(fake_nvml("four"), NVIDIA_TF32_OVERRIDE="1", CUDA_VISIBLE_DEVICES="0,0")
    done = doctor(environment, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    assert document["failed"] is True
    assert all(c["fix"] for c in document["checks"] if c["status"] != "ok")
    failures = {c["name"] for c in document["checks"] if c["status"] == "fail"}
    assert {"CUDA_VISIBLE_DEVICES", "environment"} <= failures


def test_doctor_prints_each_fix_below_its_problem(fake_nvml) -> None:
    lines = doctor(fake_nvml("t4")).stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if "persistence mode is off" in line)
    assert lines[at].startswith("warn    GPU 0 ")
    assert "-> nvidia-smi -i 0 -pm 1" in lines[at]


def test_a_results_folder_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = doctor(without_driver(), "--results", str(tmp_path / "file" / "below"))
    assert done.returncode == 1
    assert "fail    results folder" in done.stdout
    assert "1 failure to fix" in done.stdout.splitlines()[-1]


def test_a_semicolon_in_a_name_does_not_split_a_fix(tmp_path: Path, fake_nvml) -> None:
    (tmp_path / "a; b").write_text("")
    environment = dict(fake_nvml("h200"), CUDA_VISIBLE_DEVICES="x; y")
    document = json.loads(doctor(environment, "--results", str(tmp_path / "a; b" / "c"), "--json").stdout)
    checks = {c["name"]: c for c in document["checks"]}
    assert "a; b" in checks["results folder"]["seen"]
    assert checks["results folder"]["fix"].endswith("--results DIR")
    assert "'x; y'" in checks["CUDA_VISIBLE_DEVICES"]["seen"]
    assert checks["CUDA_VISIBLE_DEVICES"]["fix"].startswith("give indices or UUIDs")
