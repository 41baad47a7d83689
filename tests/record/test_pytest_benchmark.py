"""The pytest-benchmark suite, run for real on one small workload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forked_child
import pytest

ROOT = Path(__file__).parents[2]


def alone() -> dict[str, str]:
    """Return an environment without the variables of pytest-xdist, which turn benchmarks off."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}


def suite(*arguments: str, run=forked_child.run) -> subprocess.CompletedProcess[str]:
    """Run ``pytest workloads`` on the CPU, in a fork of this process unless ``run`` starts one of its own."""
    plugins = ("tiny_budget", "no:cacheprovider", "no:hypothesispytest", "no:anyio")
    return run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--gpubench-device", "cpu"),
            *(f"-p{name}" for name in plugins),
            "--benchmark-max-time=0.3",
            *arguments,
        ],
        cwd=ROOT,
        env=alone() | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )


ONE = ("-k", "lstm and fp32 and not large and not stacked and not cell")


@pytest.fixture(scope="module")
def one_suite(tmp_path_factory) -> tuple[Path, str]:
    """Measure one case for real, and return its JSON file and the printed steps and waits."""
    out = tmp_path_factory.mktemp("suite") / "out.json"
    done = suite("workloads", *ONE, "--benchmark-json", str(out), "-pwaiting", "-s")
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


@pytest.fixture
def measured(one_suite) -> Path:
    return one_suite[0]


def test_pytest_workloads_measures_and_writes_json_with_case_and_device(measured):
    document = json.loads(measured.read_text())
    (bench,) = document["benchmarks"]
    assert bench["name"] == "test_workload[lstm-fp32-eager-batch64]"
    assert bench["params"] == {"gpubench_case": "lstm-fp32-eager-batch64"}
    info = bench["extra_info"]
    assert info["case"]["workload"] == "lstm"
    assert info["case"]["batch_size"] == 64
    assert info["samples_per_step"] == 64
    assert info["run_findings"] == []
    assert bench["group"] == "lstm"
    assert bench["stats"]["rounds"] >= 5, "those of pytest-benchmark"
    assert "node" not in document["machine_info"]  # the name of the host
    assert document["machine_info"]["gpubench"]["device"]["backend"] == "cpu"
    assert document["machine_info"]["gpubench"]["environment"]["torch"]


@pytest.mark.parametrize(("factor", "code"), [(0.01, 1), pytest.param(100, 0, marks=pytest.mark.slow)])
def test_a_stored_result_is_compared_and_a_slowdown_fails(measured, tmp_path, factor, code):
    """The stored times are scaled, so this run is slower or faster by more than any noise."""
    document = json.loads(measured.read_text())
    stats = document["benchmarks"][0]["stats"]
    for name in ("min", "max", "mean", "median", "stddev", "iqr", "q1", "q3"):
        stats[name] *= factor
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(document))
    done = suite("workloads", *ONE, f"--benchmark-compare={earlier}", "--benchmark-compare-fail=median:40%")
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert ("Performance has regressed" in said) == (code == 1)
    assert "machine_info is different" not in said
    assert "INTERNALERROR" not in said


def test_a_result_from_another_machine_is_compared_with_a_warning(measured, tmp_path):
    document = json.loads(measured.read_text())
    document["machine_info"]["gpubench"]["device"]["name"] = "another processor"
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(document))
    compared = f"--benchmark-compare={earlier}"
    # A fork would not print the warning.
    done = suite("workloads", *ONE, compared, "--collect-only", run=subprocess.run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "machine_info is different" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (
            ("workloads", "-k", "vgg16 and fp32"),
            ["vgg16-fp32-eager-batch1", "vgg16_transfer-fp32-eager-batch1"],
        ),
        (("workloads", "-k", "rnn_cell and fp32"), ["rnn_cell-fp32-eager-batch64"]),
        (
            ("workloads/bench_workloads.py::test_workload[rnn_cell-fp32-eager-batch64]",),
            ["rnn_cell-fp32-eager-batch64"],
        ),
        (
            ("workloads",),
            [
                f"{w}-{p}-eager-batch{n}"
                for w, n in (("cnn", 64), ("lstm", 64), ("vgg16", 1))
                for p in ("fp32", "amp-bf16")
            ],
        ),
    ],
)
def test_cases_are_selected_with_pytest_options(arguments, found):
    done = suite(*arguments, "--collect-only")
    assert done.returncode == 0, done.stdout + done.stderr
    ids = [line.partition("[")[2].rstrip("]") for line in done.stdout.splitlines() if "::" in line]
    assert sorted(ids) == sorted(found)


def test_each_step_waits_for_the_device_before_its_round_ends(one_suite):
    """A fake clock of the device records each wait: once per step, after the step was issued."""
    assert "seen: step wait" in one_suite[1]
