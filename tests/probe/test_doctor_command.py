"""`gpubench doctor` as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from command import gpubench


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
