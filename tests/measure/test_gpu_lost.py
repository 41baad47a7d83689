"""A GPU falls off the bus during a measurement: real pynvml on the fake driver, a real child, the real file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from builders import context_of
from nvml.script import Fault

from gpubench.cli.verbs import run as run_verb
from gpubench.errors import NoDeviceError
from gpubench.measure import messages
from gpubench.measure.budget import DEFAULT
from gpubench.measure.launcher import PHASE_LIMITS_S, Launcher
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.measure.request import RunRequest
from gpubench.models import DeviceProfile, Precision, Settings, Status
from gpubench.probe import nvidia
from gpubench.record import store
from gpubench.session import session

LOST = (Fault("*", code=15), Fault("nvmlDeviceGetHandleByIndex", code=15))


@pytest.fixture(autouse=True)
def _scripted_children(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def gpu(inside_nvml):
    inside_nvml("h200")
    return nvidia.BACKEND.devices().devices[0]


@pytest.fixture
def plan(make_case):
    def make(batches=(1, 2, 3), *, launches=1) -> Plan:
        cases = tuple(
            PlannedCase(reference="cnn", case=make_case(batch_size=b, precision=Precision.AMP_BF16))
            for b in batches
        )
        budget = msgspec.structs.replace(DEFAULT, launches=launches)
        return Plan(budget=budget, seed=0, cases=cases, micro="none")

    return make


@pytest.mark.parametrize("ending", ["DIES", "HANGS"])
def test_the_current_case_keeps_its_rounds_and_no_other_is_tried(gpu, plan, inside_nvml, monkeypatch, ending):
    monkeypatch.setenv(ending, "1")
    seen = []

    def watch(event):
        seen.append(event)
        if isinstance(event, messages.CaseEnded) and event.measurement.status is Status.OK:
            inside_nvml("h200", faults=LOST)

    limits = PHASE_LIMITS_S | {"timed": 1.0}
    first, second, third = Launcher(plan(), gpu, watch, module="falls_off", phase_limits_s=limits).run()
    assert (first.status, len(first.launches[0].rounds)) == (Status.OK, 24)
    assert [m.status for m in (second, third)] == [Status.FAILED] * 2
    line = "gpu_lost: the GPU fell off the bus; reboot, and check its power supply and seating"
    assert [m.reason for m in (second, third)] == [line] * 2
    assert len(second.launches[0].rounds) == 2
    assert [e.name for e in seen if isinstance(e, messages.Phase)].count("import") == 1


@pytest.fixture
def command(gpu, plan, inside_nvml, monkeypatch, tmp_path, capsys):  # noqa: PLR0917 - fixtures
    """``gpubench run`` with this plan and the scripted child; the GPU is lost once the first case is done.

    Returns the exit code, the messages, and the stored run.
    """

    def run(**options):
        prepared = session.Prepared(
            device=gpu, plan=plan(**options), root=tmp_path, findings=(), remark=None, settings=Settings()
        )
        stored = session.with_measurement

        def lose(state, measurement):
            inside_nvml("h200", faults=LOST)
            return stored(state, measurement)

        monkeypatch.setattr(session, "prepare", lambda *_: prepared)
        monkeypatch.setattr(session, "MODULE", "falls_off")
        monkeypatch.setattr(session, "with_measurement", lose)
        code, words = 0, ""
        try:
            code = run_verb.tell(run_verb._measure(prepared), prepared, RunRequest(), None, as_json=False)
        except NoDeviceError as error:
            code, words = error.exit_code, str(error)
        (run,) = store.read_runs(tmp_path).runs
        return code, words + capsys.readouterr().err, run

    return run


def test_a_run_that_loses_its_gpu_ends_cleanly_and_keeps_finished_cases(command):
    code, said, run = command()
    assert code == 0, said
    assert sorted(m.status for m in run.measurements) == sorted([Status.OK, Status.FAILED, Status.FAILED])
    assert all(m.reason.startswith("gpu_lost: ") for m in run.measurements if m.status is Status.FAILED)
    assert run.finished_at is not None


def test_when_the_only_case_is_lost_every_case_has_failed(command, inside_nvml, monkeypatch):
    monkeypatch.setenv("DIES_AT_ONCE", "1")
    inside_nvml("h200", faults=LOST)
    code, said, run = command(batches=(1,))
    assert code == 4
    assert "every case failed" in said
    assert [len(m.launches[0].rounds) for m in run.measurements] == [2]


def test_a_process_that_cannot_open_the_lost_gpu_ends_the_run_and_keeps_finished_cases(
    command, monkeypatch, tmp_path
):
    """A launch has its own process: the next one finds that the GPU is gone."""
    monkeypatch.setenv("REFUSES_AGAIN", str(tmp_path / "opened"))
    code, said, run = command(batches=(1,), launches=2)
    assert code == 3
    assert said.startswith("gpu_lost: the GPU")
    assert "finished cases kept: 1" in said
    assert "gpubench run --resume" in said
    assert [m.status for m in run.measurements] == [Status.OK]
    assert run.finished_at is None


def test_a_case_that_fails_before_the_first_sample_asks_the_driver_whether_the_gpu_is_lost(
    inside_nvml, own_model, make_case, tiny_budget, cpu
):
    """CUDA has many messages for a lost GPU; NVML has one."""
    from gpubench.measure.case import measure_case
    from gpubench.measure.messages import MeasureCase
    from gpubench.probe.probe import open_telemetry

    # Opening telemetry checks the GPU once, and finds it healthy.
    inside_nvml("h200", faults=[Fault("*", after=1, code=15)])
    case = make_case(workload="own_model", batch_size=4, memory_format=None)
    act = "raise RuntimeError('CUDA error: unspecified launch failure')"
    with open_telemetry(DeviceProfile(backend="cuda", name="NVIDIA H200", index=0)) as line:
        desk = context_of(cpu, budget=tiny_budget, telemetry=line)
        done = measure_case(MeasureCase(reference=own_model(act), case=case, launch=0), desk)
    assert (done.status, done.lost) == (Status.FAILED, True)
    assert done.reason.startswith("gpu_lost: ")
