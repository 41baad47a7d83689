"""Thread scaling on a CPU: each thread count has its own process, and a separate section compares them.

No other section shows a row that was measured on fewer than all threads.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from report import samples

from gpubench import effects
from gpubench.errors import MisuseError
from gpubench.measure.environment import THREAD_VARIABLES, child_variables
from gpubench.measure.launcher import Launcher
from gpubench.measure.plan import check_request, plan
from gpubench.measure.request import RunRequest
from gpubench.models import DeviceProfile, Execution, Precision, Run
from gpubench.profile import load_profiles
from gpubench.sections.data import of_run
from gpubench.sections.measured import threads as scaled
from gpubench.sections.measured import throughput

ASKED = RunRequest(
    workloads=("cnn",), precisions=("fp32",), thread_scaling=True, micro="none", budget="quick"
)


def cpu(cores: int) -> DeviceProfile:
    return DeviceProfile(backend="cpu", name="Some CPU", core_count=cores)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("cores", "told", "threads"),
    [(2, None, [1, 0]), (6, None, [1, 2, 4, 0]), (8, None, [1, 2, 4, 0]), (64, "4", [1, 2, 0])],
)
def test_thread_counts_are_powers_of_two_and_all_threads(monkeypatch, cores, told, threads):
    if told:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    made = plan(check_request(ASKED, ["cnn"]), cpu(cores), load_profiles())
    assert [planned.case.threads for planned in made.cases] == threads
    assert len({unit.group for unit in made.units()}) == len(threads), "a process each"


def test_a_process_gets_its_thread_count_before_it_loads_anything():
    told = child_variables(cpu(8), {"OMP_NUM_THREADS": "8"}, threads=2)
    assert {told[name] for name in THREAD_VARIABLES} == {"2"}
    assert child_variables(cpu(8), {"OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"


def measured(monkeypatch, script: dict) -> tuple[Run, Launcher]:
    monkeypatch.setenv("GPUBENCH_SCRIPT", json.dumps(script))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    launcher = Launcher(plan(ASKED, cpu(4), load_profiles()), cpu(4), module="scripted_child")
    rows = {m.case: m for m in launcher.run()}
    return samples.h200_run(device=cpu(4), measurements=tuple(rows.values()), micro=()), launcher


def test_each_row_states_its_threads_and_the_run_states_all_threads_of_the_cpu(monkeypatch):
    label = "cnn fp32 eager batch 64"
    steps = {f"{label}, CPU threads: 1": 0.04, f"{label}, CPU threads: 2": 0.025}
    run, launcher = measured(monkeypatch, {"step_s": steps})
    assert {m.case.threads: m.cpu_threads for m in run.measurements} == {1: 1, 2: 2, 0: 4}
    assert launcher.ready.cpu_threads == 4

    said = {each["threads"]: each for each in effects.document(run)["threads"]}
    assert said[2]["speedup"].value == pytest.approx(1.6, rel=0.01)
    assert said[4]["efficiency"].value == pytest.approx(0.5, rel=0.01)
    assert said.keys() == {2, 4}

    _, table = scaled(of_run(run))
    assert [row[1] for row in table.rows] == ["1", "2", "4, all"]
    assert len(throughput(of_run(run))[1].twin.rows) == 1, (
        "a row on fewer threads belongs only to the section on threads"
    )


def test_a_process_that_uses_a_different_number_of_threads_is_refused(monkeypatch):
    with pytest.raises(MisuseError, match=r"3 CPU threads instead of the requested [12]"):
        measured(monkeypatch, {"threads": 3})


def test_the_pages_thread_table_lists_each_thread_count_and_leaves_out_gpu_runs():
    rows = tuple(
        samples.measurement(
            msgspec.structs.replace(
                samples.case("cnn", 64, Precision.FP32, Execution.EAGER), threads=threads
            ),
            step_s,
            telemetry=False,
            cpu_threads=threads or 4,
        )
        for threads, step_s in ((1, 0.04), (2, 0.025), (0, 0.02))
    )
    on_cpu = samples.h200_run(
        run_id="20261120T103000Z-c0ffee", device=cpu(4), measurements=rows, micro=(), findings=()
    )
    data = samples.report_data(samples.h200_run(), on_cpu)
    _, table = scaled(data)
    assert [row[1] for row in table.rows] == ["1", "2", "4, all"]


@pytest.mark.parametrize(
    ("changes", "device", "says"),
    [
        ({}, DeviceProfile(backend="cuda", name="H100", compute_capability=(9, 0)), "add --device cpu"),
        ({}, cpu(1), "needs two threads or more"),
        ({"batch_size": "max"}, cpu(4), "leave out --batch-size max"),
        ({"gpus": 2}, cpu(4), "leave out --gpus"),
        ({"frameworks": ("keras-jax",)}, cpu(4), "leave out --framework keras-jax"),
        (
            {"micro": "only", "precisions": (), "workloads": ()},
            cpu(4),
            "leave out --thread",
        ),
        ({"to_quality": True}, cpu(4), "leave out --thread-scaling"),
    ],
)
def test_options_and_devices_that_cannot_scale_threads_are_refused(changes, device, says):
    with pytest.raises(MisuseError, match=says):
        plan(check_request(msgspec.structs.replace(ASKED, **changes), ["cnn"]), device, load_profiles())
