"""On a machine with an NVIDIA GPU, the driver, torch and the readings agree."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpubench.probe import nvidia
from gpubench.probe.health import check_up
from gpubench.probe.nvidia import dump_text
from gpubench.probe.probe import open_telemetry, probe
from gpubench.probe.torch_view import torch_view

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu():
    devices = nvidia.NvidiaBackend().devices().devices
    if not devices:
        pytest.skip("no NVIDIA GPU here")
    return devices[0]


def test_torch_sees_the_same_device(gpu) -> None:
    seen, fix = torch_view(gpu)
    assert fix is None, seen


def test_probe_provides_every_field_that_ranking_needs(gpu) -> None:
    for field in (
        "name",
        "compute_capability",
        "sm_count",
        "memory_bytes",
        "driver_version",
        "tensor_core_precisions",
    ):
        assert getattr(gpu, field) is not None, gpu.unavailable.get(field)


def test_readings_are_plausible(gpu) -> None:
    with open_telemetry(gpu) as line:
        now = line.sample()
        assert line.source == "nvml"
        assert now.sm_clock_hz is None or 1e8 < now.sm_clock_hz < 4e9
        assert now.temperature_c is None or 5 < now.temperature_c < 110
        before = line.energy_j()
        time.sleep(1.0)
        after = line.energy_j()
        assert (before is None) == (after is None)
        assert before is None or 0 < after - before < 2000


def test_a_reading_takes_little_time(gpu) -> None:
    with open_telemetry(gpu) as line:
        start, count = time.perf_counter(), 100
        for _ in range(count):
            line.sample()
        assert (time.perf_counter() - start) / count < 2e-3


def test_the_doctor_finds_torch_and_driver_working(gpu) -> None:
    checks = {c.name: c for c in check_up(probe())}
    assert checks["NVIDIA driver"].status == "ok"
    assert checks[f"GPU {gpu.index} in torch"].status == "ok"


def test_dump_of_the_real_gpu_replays_here(gpu, inside_nvml, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text(dump_text(nvidia.dump()), encoding="utf-8")
    inside_nvml(file)
    replayed = nvidia.NvidiaBackend().devices().devices[0]
    assert replace(replayed, uuid=None) == replace(gpu, uuid=None)
