"""The CPU as a device, on made-up machines."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from gpubench.probe.backend import BackendReport
from gpubench.probe.host import AppleBackend, CpuBackend, free_memory_bytes, memory_bytes, named_instructions

XEON = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R)  Xeon(R)\nflags\t\t: fpu avx2 avx512f {}\n\nprocessor\t: 1\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd sve {}\nCPU implementer\t: 0x41\n"


def machine(root: Path, text: str) -> CpuBackend:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(text)
    return CpuBackend(root=root)


@pytest.mark.parametrize(
    ("text", "vendor", "formats"),
    [
        (XEON.format("avx512_bf16 amx_int8"), "Intel", ("bf16", "int8")),
        (XEON.format("amx_bf16"), "Intel", ("bf16",)),
        (XEON.format(""), "Intel", ()),
        (ARM.format("bf16 i8mm"), "Arm", ("bf16", "int8")),
        (ARM.format(""), "Arm", ()),
    ],
)
def test_reduced_formats_come_from_the_instructions(
    tmp_path: Path, text: str, vendor: str, formats: tuple
) -> None:
    profile = machine(tmp_path, text).profile()
    assert (profile.backend, profile.vendor, profile.tensor_core_precisions) == ("cpu", vendor, formats)
    assert profile.gpu_key is None
    assert profile.core_count is not None


def test_name_and_instructions_are_read_from_cpuinfo(tmp_path: Path) -> None:
    backend = machine(tmp_path, XEON.format("avx512_bf16"))
    assert backend.profile().name == "Intel(R) Xeon(R)"
    assert named_instructions(tmp_path) == ("avx2", "avx512_bf16", "avx512f")


def test_memory_is_limited_to_that_of_the_container(tmp_path: Path) -> None:
    whole = memory_bytes(tmp_path)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.write_text("1073741824\n")
    assert memory_bytes(tmp_path) == 1 << 30
    limit.write_text("max\n")
    assert memory_bytes(tmp_path) == whole


GROUPS = {
    "v2": ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    "v1": (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "inactive_file 7\ntotal_inactive_file",
    ),
}


@pytest.mark.parametrize("version", GROUPS)
def test_free_memory_is_what_the_container_leaves_and_cached_files_count_as_free(
    tmp_path: Path, version: str
) -> None:
    machine_free = free_memory_bytes(tmp_path)
    limit, used, stat, cached = GROUPS[version]
    groups = tmp_path / "sys/fs/cgroup"
    (groups / "memory").mkdir(parents=True)
    (groups / limit).write_text(f"{1 << 30}\n")
    assert free_memory_bytes(tmp_path) == min(machine_free, 1 << 30)
    (groups / used).write_text(f"{900 << 20}\n")
    (groups / stat).write_text(f"anon 5\n{cached} {300 << 20}\nactive_file 9\n")
    assert free_memory_bytes(tmp_path) == 424 << 20
    (groups / used).write_text(f"{2 << 30}\n")
    assert free_memory_bytes(tmp_path) == 0


# --- the GPU of an Apple chip -------------------------------------------------------------------------------


M2 = '{"SPDisplaysDataType": [{"_name": "Apple M2 Max", "sppci_model": "Apple M2 Max", "sppci_cores": "38"}]}'


@pytest.fixture
def mac(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def put(answer: str, status: int = 0) -> None:
        command = tmp_path / "system_profiler"
        command.write_text(f"#!/bin/sh\necho '{answer}'\nexit {status}\n")
        command.chmod(0o755)

    return put


def test_an_apple_chip_is_described_by_the_system(mac) -> None:
    mac(M2)
    (gpu,) = AppleBackend().devices().devices
    assert (gpu.backend, gpu.name, gpu.sm_count, gpu.unified_memory) == ("mps", "Apple M2 Max", 38, True)
    assert set(gpu.unavailable) <= {"gpu_key"}


@pytest.mark.parametrize(
    ("answer", "status"), [("", 0), ("{}", 0), ("[1]", 0), (M2, 1), ('{"SPDisplaysDataType": [{}]}', 0)]
)
def test_gpu_is_listed_even_if_the_system_reports_nothing_about_it(mac, answer: str, status: int) -> None:
    mac(answer, status)
    (gpu,) = AppleBackend().devices().devices
    assert gpu.name is None
    assert {"name", "sm_count"} <= set(gpu.unavailable)


def test_apple_backend_finds_nothing_on_other_machines(mac, monkeypatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert AppleBackend().devices() == BackendReport()
