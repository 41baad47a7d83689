"""The product's own child processes on the strict fake: command line, launcher, pipes, driver library."""

from __future__ import annotations

import json
import os
import re
import time
from functools import partial

import forked_child
import msgspec
import pytest
from command import IN_SHORT, gpubench, here
from own_kinds import HEAD, KINDS

from gpubench.cli.progress import ProgressLine
from gpubench.measure import messages
from gpubench.measure.environment import child_variables
from gpubench.measure.launcher import Child, Launcher
from gpubench.measure.messages import RoundDone
from gpubench.measure.plan import plan
from gpubench.measure.request import RunRequest
from gpubench.models import Case, DeviceProfile, Execution, Precision, Status, TaskKind
from gpubench.probe.probe import probe
from gpubench.profile import load_profiles
from strict_cuda.conftest import BRIEF

RUN_IT = "from gpubench.cli.app import main; main()"
CASE = Case(
    workload="cnn",
    workload_version=1,
    task=TaskKind.TRAIN,
    precision=Precision.TF32,
    execution=Execution.GRAPH,
    memory_format=None,
    batch_size=4,
    sample_unit="image",
)


def test_a_command_finds_the_gpu_that_torch_uses(gpu_environment):
    done = gpubench(gpu_environment(), "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert {c["status"] for c in checks.values()} <= {"ok", "warn"}, done.stdout
    assert any("torch runs on" in c["seen"] for c in checks.values())


def test_a_torch_for_a_newer_cuda_than_the_driver_is_refused(gpu_environment):
    done = gpubench(gpu_environment(cuda="14.0"), "run", "--quick", "--device", "cuda", "cnn")
    assert done.returncode == 3
    assert "newer CUDA" in done.stderr


@pytest.mark.parametrize("asked", [False, True])
def test_a_model_that_cannot_be_captured_is_measured_eagerly_unless_a_graph_was_requested(
    inside_gpu, monkeypatch, tmp_path, asked
):
    inside_gpu()
    monkeypatch.setattr("gpubench.measure.plan.budget_of", lambda name, *, on_cpu: BRIEF)
    model = tmp_path / "mine.py"
    model.write_text(HEAD + KINDS["carried"], encoding="utf-8")
    options = ("--execution", "graph") if asked else ()
    command = ("run", str(model), "--quick", "--device", "cuda", "--precision", "fp32", "--micro", "none")
    done = here(*command, *options, "--json", "--results", tmp_path / "results")
    document = json.loads(done.stdout)
    rows = {row["case"]["execution"]: row for row in document["measurements"]}
    assert rows["graph"]["status"] == "unsupported"
    assert "carries tensors from step to step" in rows["graph"]["reason"]
    planned = [case["execution"] for case in document["planned"]]
    assert document["settings"]["falls_back"] is not asked
    if asked:
        assert (rows.keys(), planned, done.returncode) == ({"graph"}, ["graph"], 4)
    else:
        assert (rows["eager"]["status"], planned, done.returncode) == ("ok", ["graph", "eager"], 0)


def test_a_gpu_that_only_torch_can_reach_is_timed_without_telemetry(gpu_environment, tmp_path):
    """A container may have CUDA but no NVML. The remark gives the reason, and the run records the lack of telemetry."""
    environment = gpu_environment(memory_bytes=150_754_820_096 - 646 * 10**6)  # as torch reported on an H200
    del environment["LD_LIBRARY_PATH"]
    program = ("-c", IN_SHORT + RUN_IT)
    command = partial(gpubench, environment, "run", "--quick", program=program, run=forked_child.run)
    options = ("--task", "infer", "--precision", "fp32", "--micro", "none", "--json", "--results")
    done = command("--device", "cuda", "cnn", *options, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "NVIDIA H200 is timed without telemetry" in done.stderr
    document = json.loads(done.stdout)
    assert document["device"]["gpu_key"] == "nvidia-h200-sxm-141gb"
    assert document["device"]["unavailable"]["driver_version"].endswith("only torch reports this GPU")
    assert "NO_TELEMETRY" in {finding["kind"] for finding in document["findings"]}
    assert {row["status"] for row in document["measurements"]} == {"ok"}
    assert document["measurements"][0]["launches"][0]["control_errors"].keys() == {"matmul", "conv"}
    assert command("--device", "cuda:1", "cnn").returncode == 3


def test_a_launcher_measures_in_separate_processes(inside_gpu):
    device = inside_gpu()
    made = plan(
        RunRequest(
            workloads=("cnn",),
            precisions=("fp32", "amp"),
            executions=("eager", "graph"),
            batch_size=64,
            micro="none",
        ),
        device,
        load_profiles(),
    )
    made = msgspec.structs.replace(made, budget=msgspec.structs.replace(BRIEF, launches=1, timed_s=3.0))
    live, lines = ProgressLine(), set()

    def on_event(event):
        live.note(event)
        if isinstance(event, RoundDone) and event.timed:
            lines.add(live.line())

    found = {m.case: m for m in Launcher(made, device, on_event).run()}
    assert {(m.case.label, m.status, m.reason) for m in found.values() if m.status is not Status.OK} == set()
    assert len(found) == 4
    assert all(m.launches[0].telemetry_source == "nvml" for m in found.values())
    assert all(re.search(r" images/s.* [1-9]\d* W  [1-9]\d* °C  ", line) for line in lines), lines
    assert lines


@pytest.fixture
def start():
    """``start(device)``: a measuring process on the fake device that is ready for commands."""
    children = []

    def begin(device: DeviceProfile) -> Child:
        made = Child(child_variables(device, os.environ))
        children.append(made)
        made.send(messages.Setup(device=device, budget=BRIEF, seed=0))
        while not isinstance(report := made.receive(time.monotonic() + 60), messages.Ready):
            assert isinstance(report, messages.Phase), report
        return made

    yield begin
    for made in children:
        made.end()


def test_a_scene_reaches_the_child(inside_gpu, start):
    words = "CUDA error: out of memory"
    process = start(inside_gpu(cuda_faults=[{"operator": "convolution", "words": words, "after": 7}]))
    process.send(messages.TryBatch(reference="cnn", case=CASE))
    while not isinstance(report := process.receive(time.monotonic() + 60), messages.CaseDone):
        assert isinstance(report, messages.Phase)
    assert report.status is Status.OUT_OF_MEMORY
    assert words in report.reason
    assert report.spent


def test_a_job_out_of_memory_names_its_batch_and_phase_and_the_next_job_is_sound(inside_gpu):
    words = "CUDA out of memory. Tried to allocate 20.00 MiB."
    inside_gpu(["h200", "h200"], cuda_faults=[{"operator": "convolution", "words": words, "after": 9}])
    device, peer = (d for d in probe().devices if d.backend == "cuda")
    request = RunRequest(
        workloads=("cnn", "lstm"),
        precisions=("amp",),
        executions=("eager",),
        batch_size=8,
        gpus=2,
        micro="none",
    )
    made = plan(request, device, load_profiles(), (peer,))
    made = msgspec.structs.replace(
        made,
        budget=msgspec.structs.replace(BRIEF, launches=1),
        cases=tuple(p for p in made.cases if p.case.gpu_count == 2),
    )
    jobs = {m.case.workload: m for m in Launcher(made, device).run()}
    assert jobs["cnn"].status is Status.OUT_OF_MEMORY
    assert re.match(r"batch 8, [a-z ]+: .*CUDA out of memory", jobs["cnn"].reason), jobs["cnn"].reason
    assert (jobs["lstm"].status, jobs["lstm"].reason) == (Status.OK, None)
