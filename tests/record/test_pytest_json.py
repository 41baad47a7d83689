"""The pytest-benchmark suite, run for real on one small workload, and the seam it stands on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.record.pytest_json import VirtualClock, samples_of

ROOT = Path(__file__).parents[2]


def test_a_replayed_sample_is_read_back_to_the_last_digit():
    clock = VirtualClock()
    samples = (0.1, 0.30000000000000004, 1e-7, 123.456)
    setup, target = clock.replay(samples)
    read = []
    for _ in samples:
        setup()
        start = clock()
        target()
        read.append(clock() - start)
    assert tuple(read) == samples


def test_samples_are_seconds_per_step_of_the_rounds_that_count(make_run):
    assert samples_of(make_run().measurements[0]) == pytest.approx((0.1, 0.1025, 0.0975))


@pytest.mark.timeout(120)
def alone() -> dict[str, str]:
    """An environment that tells nothing of tests running side by side: benchmarks are off among them."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}


def test_pytest_workloads_measures_and_writes_json_with_case_and_device(tmp_path):
    out = tmp_path / "out.json"
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "workloads",
                "-q",
                "-k",
                "lstm and amp and not large and not stacked",
            ),
            *("--gpubench-device", "cpu", "-p", "no:cacheprovider", "--benchmark-json", str(out)),
        ],
        cwd=ROOT,
        env=alone() | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text())
    (bench,) = document["benchmarks"]
    assert bench["name"] == "test_workload[lstm-amp-bf16-eager]"
    info = bench["extra_info"]
    assert info["case"]["workload"] == "lstm"
    assert info["case"]["batch_size"] == 64
    assert info["device"]["backend"] == "cpu"
    assert info["device"]["name"] == document["machine_info"]["gpubench"]["device"]["name"]
    assert "node" not in document["machine_info"]  # the name of the host
    assert info["samples_per_s"] * info["step_time_s"] == pytest.approx(64)
    assert info["samples_per_s_low"] < info["samples_per_s"] < info["samples_per_s_high"]
    assert len(info["steps_per_round"]) == 1
    assert bench["stats"]["rounds"] >= 5
    assert bench["stats"]["median"] == pytest.approx(info["step_time_s"], rel=0.5)
    assert document["machine_info"]["gpubench"]["device"]["backend"] == "cpu"
    assert document["machine_info"]["gpubench"]["environment"]["torch"]
