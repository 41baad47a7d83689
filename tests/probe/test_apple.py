"""The GPU of an Apple chip, with mocks of the macOS command."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from gpubench.probe.backend import BackendReport
from gpubench.probe.host import AppleBackend

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
