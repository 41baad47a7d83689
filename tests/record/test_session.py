"""A whole run through the command line: real children, a user's model, signals, a full disk."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import forked_child
import msgspec
import pytest
from own_net import own_net
from patience import Stopwatch, is_gone, wait_until

from gpubench.models import (
    RUN_VERSION,
    MicroResult,
    Status,
)
from gpubench.record import store

MODEL = own_net('raise ValueError("mine")')
SHORT = ("--device", "cpu", "--micro", "none", "--precision", "fp32", "--batch-size", "8")
INFER = (*SHORT, "--task", "infer")
"""Inference, for tests in which the task does not matter: an optimizer would import torch's compiler, which is slow."""
PROGRAM = """
import os, pathlib, sys, msgspec
from gpubench.measure import launcher, messages, plan
from gpubench.measure.budget import QUICK

receive = launcher.Child.receive

def noted(self, until_s):
    report = receive(self, until_s)
    if isinstance(report, messages.RoundDone) and report.timed:
        pathlib.Path(os.environ["GPUBENCH_TIMED"]).touch()
    return report

launcher.Child.receive = noted
timed_s, target = float(sys.argv.pop(1)), float(sys.argv.pop(1))
plan.budget_of = lambda name, *, on_cpu: msgspec.structs.replace(
    QUICK, timed_s=timed_s, target=target, warmup_steps=2, warmup_least_s=0, warmup_most_s=0.3, round_s=0.01,
    window_s=0.02, curve_steps=2)
from gpubench.cli.app import main
main()
"""
"""The command line; it also creates a file once a round has been timed, so that a test can wait for it."""


@pytest.fixture
def timed(tmp_path, monkeypatch) -> Path:
    """The file that ``PROGRAM`` creates once a round has been timed."""
    monkeypatch.setenv("GPUBENCH_TIMED", str(tmp_path / "timed"))
    return tmp_path / "timed"


@pytest.fixture
def start(timed):
    """``start(...)``: a process of ``gpubench run`` with a budget of a fraction of a second."""
    started = []

    def run(
        *arguments: str, timed_s: float = 0.3, target: float = 0.02, popen=forked_child.popen, **options
    ) -> subprocess.Popen[str]:
        process = popen(
            [sys.executable, "-P", "-c", PROGRAM, str(timed_s), str(target), "run", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def rows(root: Path) -> int:
    return max((len(run.measurements) for run in store.read_runs(root).runs), default=0)


def test_run_json_is_the_run_with_derived_fields_flat(start, tmp_path):
    code, out, err = finish(start("lstm", *SHORT, "--json", "--results", str(tmp_path)))
    assert code == 0, err
    document = json.loads(out)
    (row,) = document["measurements"]
    assert row["status"] == "ok"
    assert row["samples_per_s"] * row["step_time_s"] == pytest.approx(row["case"]["batch_size"])
    assert row["rounds"] == 1 or row["samples_per_s_low"] < row["samples_per_s"]
    for name in ("samples_per_s_high", "gpu_busy", "joules_per_sample", "mfu"):
        assert name in row
    assert row["joules_per_sample"] is None
    assert (row["rounds"], row["launch_step_time_min_s"]) == (
        sum(each.get("left_out") is None for each in row["launches"][0]["rounds"]),
        row["step_time_s"],
    )
    assert row["launches"][0]["sequence"] == 0
    settings = document["settings"]
    assert (settings["micro"], settings["gpus"], settings["allow_throttled"]) == ("none", 1, False)
    assert settings["budget"]["target"] == 0.02
    assert "import" in row["launches"][0]["cold_s"]
    assert document["start"] is None
    assert document["schema_version"] == RUN_VERSION
    assert document["protocol"] == "gpubench/1"
    (run,) = store.read_runs(tmp_path).runs
    assert run.run_id == document["run_id"]
    assert run.finished_at
    text = store.find_run(tmp_path, "latest").read_text()
    for secret in (platform.node(), str(tmp_path), str(Path.home()) + "/"):
        assert secret not in text
    assert json.loads(text)["device"]["uuid"] is None
    assert json.loads(text)["device"]["device_id"]


def test_every_case_failed_is_exit_4_and_the_rows_are_stored(start, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(MODEL)
    code, out, err = finish(start(str(path), *INFER, "--json", "--results", str(tmp_path)))
    assert code == 4, err
    (row,) = json.loads(out)["measurements"]
    assert (row["status"], row["reason"]) == ("failed", "ValueError: mine (broken.py line 11)")


@pytest.mark.usefixtures("heeded_signals")
def test_ctrl_c_once_finishes_the_round_saves_and_leaves_no_orphan(start, timed, tmp_path):
    process = start("lstm", *INFER, "--results", str(tmp_path), timed_s=600, target=0, start_new_session=True)
    wait_until(timed.exists, process)
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    children = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
    assert children
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130, err
    assert "stored in" in err
    assert "Ctrl-C again" in err
    assert "Traceback" not in err
    (run,) = store.read_runs(tmp_path).runs
    assert run.planned
    assert run.interrupted
    assert f"gpubench run --resume {run.run_id}" in err
    assert run.measurements[0].launches[0].stopped
    wait_until(lambda: all(is_gone(pid) for pid in children))


def test_sigterm_saves_within_three_seconds_and_resume_continues(start, tmp_path):
    process = start("lstm", "cnn", *INFER, "--results", str(tmp_path), timed_s=1.5, target=0)
    wait_until(lambda: rows(tmp_path) == 1, process)  # the other case takes as long
    watch = Stopwatch()
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert watch.free_s() < 3
    assert code == 130, err
    (cut,) = store.read_runs(tmp_path).runs
    assert cut.interrupted
    (kept,) = [m for m in cut.measurements if m.status is Status.OK]
    product = MicroResult(
        name="gemm", precision="fp32", size="4096", value=5e13, low=None, high=None, unit="FLOP/s", n=20
    )
    wanted = msgspec.structs.replace(cut.settings, micro="also")
    store.write_run(tmp_path, msgspec.structs.replace(cut, micro=(product,), settings=wanted))
    again = start("--resume", "latest", *SHORT[:2], "--results", str(tmp_path), "--json")
    code, out, err = finish(again)
    assert code == 0, err
    (run,) = store.read_runs(tmp_path).runs
    assert run.run_id == cut.run_id
    assert not run.interrupted
    assert {m.case.workload for m in run.measurements if m.status is Status.OK} == {"lstm", "cnn"}
    assert next(m for m in run.measurements if m.case == kept.case).launches == kept.launches
    assert json.loads(out)["finished_at"]
    assert run.micro == (product,)  # the micro-benchmarks were finished, so they do not run again
    assert {m.gemm_flops_per_s for m in run.measurements if m.case != kept.case} == {5e13}
    sequences = [launch.sequence for m in run.measurements for launch in m.launches]
    assert len(set(sequences)) == len(sequences)


def test_sigterm_is_obeyed_while_the_model_hangs(start, tmp_path):
    path, reached = tmp_path / "silent.py", tmp_path / "reached"
    hang = f"import time; open({str(reached)!r}, 'w').close(); time.sleep(600)"
    path.write_text(own_net(hang))
    process = start(str(path), *INFER, "--results", str(tmp_path))
    wait_until(reached.exists, process)
    watch = Stopwatch()
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert watch.free_s() < 3
    assert code == 130, err
    (run,) = store.read_runs(tmp_path).runs
    assert run.measurements[0].status is Status.INTERRUPTED
    assert run.interrupted


@pytest.mark.slow
def test_file_named_like_a_library_in_the_working_folder_does_not_replace_it(start, tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('a random.py of mine ran')")
    results = str(tmp_path / "results")
    code, _, err = finish(start("lstm", *INFER, "--results", results, cwd=tmp_path, popen=subprocess.Popen))
    assert code == 0, err


def test_storage_failure_prints_the_run_and_exits_with_5(start, tmp_path):
    """A file replaces the results folder during the run."""
    root = tmp_path / "results"
    process = start("lstm", *INFER, "--results", str(root))
    wait_until(lambda: list(root.glob("runs/*/*.json")), process)
    root.rename(tmp_path / "moved")
    root.write_text("a file where the folder was")
    code, _, err = finish(process)
    assert code == 5, err
    lines = err.strip().splitlines()
    assert "Not a directory" in lines[-1]
    printed = next(json.loads(line) for line in lines if line.startswith("{"))
    assert printed["measurements"][0]["status"] == "ok"
    (old,) = store.read_runs(tmp_path / "moved").runs
    assert old.run_id == printed["run_id"]
