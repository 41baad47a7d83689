"""Resuming a run: under its original conditions, with its results, and only for the remaining cases."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from gpubench.cli.app import app
from gpubench.cli.verbs.run import _question
from gpubench.errors import MisuseError
from gpubench.measure import capability, messages
from gpubench.measure.launcher import Launcher, Record
from gpubench.measure.messages import Ready
from gpubench.measure.plan import PlannedCase, Unit
from gpubench.measure.progress import Progress
from gpubench.measure.request import RunRequest
from gpubench.models import (
    DeviceProfile,
    Finding,
    FindingKind,
    Launch,
    MicroResult,
    Precision,
    Settings,
    StartState,
    Status,
    TaskKind,
)
from gpubench.profile import load_profiles
from gpubench.record import store
from gpubench.session import resume, session

CPU = DeviceProfile(backend="cpu", name="a CPU")
SHARED = Finding(kind=FindingKind.SHARED_GPU, value="1 process")


@pytest.fixture
def cut_off(make_run):
    """A run of three cases in one launch; the first is measured."""
    run = make_run(device=CPU, settings=Settings(micro="none"), findings=(SHARED,))
    (row,) = run.measurements
    version = load_profiles()["cnn"].version
    cases = tuple(
        msgspec.structs.replace(row.case, precision=precision, workload_version=version)
        for precision in (Precision.FP32, Precision.TF32, Precision.AMP_BF16)
    )
    rows = (msgspec.structs.replace(row, case=cases[0]),)
    return msgspec.structs.replace(run, planned=cases, launch_count=1, measurements=rows)


def planned(run, **options):
    """Return the request and the plan of a run that is resumed."""
    request = resume.request_again(run, RunRequest(**options), ("cnn",))
    return request, resume.plan_again(run, CPU, {"cnn": load_profiles()["cnn"]}, request)


def prepared(run, root, **options):
    """Prepare to resume a run as ``prepare`` does, without checking a device."""
    path = store.write_run(root, run)
    request, made = planned(run, **options)
    return session.Prepared(
        device=CPU,
        plan=made,
        root=root,
        findings=(),
        remark=None,
        settings=session._settings(request, made),
        resumed=run,
        resumed_from=path,
    )


@pytest.fixture
def scripted(monkeypatch):
    """A fake launcher: every remaining unit repeats the row of another case."""

    def use(row):
        class Scripted(Launcher):
            def run(self, record=None):
                self.ready = Ready(torch="2.11", cpu_threads=2)
                for unit in self.plan.units():
                    yield msgspec.structs.replace(row, case=unit.planned.case)

        monkeypatch.setattr(session, "Launcher", Scripted)

    return use


# --- conditions ---------------------------------------------------------------------------------------------


def changed(run, **environment):
    return msgspec.structs.replace(run, environment=msgspec.structs.replace(run.environment, **environment))


def test_resume_with_another_version_or_environment_variable_is_refused(cut_off, tmp_path, monkeypatch):
    with pytest.raises(MisuseError, match=r"gpubench is .* 0\.0\.1"):
        prepared(changed(cut_off, gpubench="0.0.1"), tmp_path)
    variables = cut_off.environment.variables | {"OMP_PROC_BIND": "close"}
    with pytest.raises(MisuseError, match=r"OMP_PROC_BIND .* close .*: set OMP_PROC_BIND=close"):
        prepared(changed(cut_off, variables=variables), tmp_path)
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    with pytest.raises(MisuseError, match=r"OMP_PROC_BIND is now true.*: unset OMP_PROC_BIND"):
        prepared(cut_off, tmp_path)
    assert prepared(changed(cut_off, variables=variables | {"OMP_PROC_BIND": "true"}), tmp_path)


@pytest.mark.usefixtures("forked_children")
def test_resume_with_another_thread_count_is_refused_and_keeps_the_file(cut_off, tmp_path):
    """Only torch in the measuring child knows the number; the run is refused before anything is measured."""
    ready = prepared(changed(cut_off, cpu_threads=1023), tmp_path)
    before = ready.resumed_from.read_bytes()
    with pytest.raises(MisuseError, match=r"CPU threads.* 1023"):
        session.execute(ready)
    assert ready.resumed_from.read_bytes() == before


def test_earlier_results_are_still_found_and_new_settings_are_recorded(cut_off, tmp_path, scripted):
    scripted(cut_off.measurements[0])
    run = session.execute(prepared(cut_off, tmp_path, time_limit_s=60.0, allow=("shared",))).run
    assert SHARED in run.findings
    assert (run.settings.time_limit_s, run.settings.allow_shared) == (60.0, True)
    assert len(run.measurements) == 3
    old = msgspec.structs.replace(cut_off, settings=None)
    assert session.execute(prepared(old, tmp_path)).run.settings is None


def test_a_run_of_another_device_or_software_is_not_resumed(make_run):
    device = DeviceProfile(backend="cuda", name="NVIDIA H200", uuid="GPU-1", driver_version="580.1")
    run = make_run()
    elsewhere = msgspec.structs.replace(run, device=msgspec.structs.replace(run.device, device_id="0" * 16))
    for other, here in (
        (elsewhere, device),
        (run, msgspec.structs.replace(device, name="NVIDIA L4")),  # a shared run has no device id
        (run, DeviceProfile(backend="cpu", name="AMD EPYC")),
    ):
        with pytest.raises(MisuseError, match="another device"):
            resume.plan_again(other, here, {}, RunRequest())
    other_torch = msgspec.structs.replace(
        run, environment=msgspec.structs.replace(run.environment, torch="1.0")
    )
    with pytest.raises(MisuseError, match="torch is"):
        resume.plan_again(other_torch, device, {}, RunRequest())
    with pytest.raises(MisuseError, match="no planned cases"):
        resume.plan_again(run, device, {}, RunRequest())


def test_a_run_is_not_resumed_while_a_variable_lowers_fp32(make_run, monkeypatch):
    """The run was started without the variable, so its other half would have another precision."""
    device = DeviceProfile(backend="cuda", name="NVIDIA H200")
    run = make_run()
    profile = load_profiles()["cnn"]
    case = msgspec.structs.replace(run.measurements[0].case, workload_version=profile.version)
    run = msgspec.structs.replace(run, planned=(case,))
    assert resume.plan_again(run, device, {"cnn": profile}, RunRequest()).cases
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(MisuseError, match="unset NVIDIA_TF32_OVERRIDE"):
        resume.plan_again(run, device, {"cnn": profile}, RunRequest())
    forged = run.environment.variables | {"NVIDIA_TF32_OVERRIDE": "1"}
    run = msgspec.structs.replace(run, environment=msgspec.structs.replace(run.environment, variables=forged))
    with pytest.raises(MisuseError, match="unset NVIDIA_TF32_OVERRIDE"):
        resume.plan_again(run, device, {"cnn": profile}, RunRequest())


def test_a_run_continues_with_its_settings(cut_off):
    def again(settings, **options):
        return planned(msgspec.structs.replace(cut_off, settings=settings), **options)[1]

    assert (again(None).micro, again(None).allow_throttled) == ("none", False)
    asked = again(Settings(allow_throttled=True, micro="also"))
    assert (asked.micro, asked.allow_throttled) == ("also", True)
    assert again(Settings(), allow=("throttled",)).allow_throttled
    limited = Settings(time_limit_s=90.0, allow_shared=True)
    assert again(limited).time_limit_s == 90.0
    assert again(limited, time_limit_s=30.0).time_limit_s == 30.0
    run = msgspec.structs.replace(cut_off, settings=limited)
    assert resume.request_again(run, RunRequest(), ()).allow == ("shared",)
    assert resume.request_again(cut_off, RunRequest(), ()).allow == ()
    for falls_back in (True, False):  # after the interruption too, unless an execution was requested
        assert again(Settings(falls_back=falls_back)).falls_back is falls_back
    assert again(Settings(micro="none")).micro == "none"


def test_launch_numbers_continue_after_the_interruption(cut_off):
    run = with_row(cut_off, msgspec.structs.replace(cut_off.measurements[0].launches[0], sequence=4))
    assert resume.record_of(run, planned(run)[1], CPU).begun == 5


def test_new_run_stores_its_settings_and_the_initial_device_state(cut_off, tmp_path):
    settings, start = Settings(allow_shared=True, gpus=2), StartState(idle_power_w=76.0)
    ready = prepared(cut_off, tmp_path)
    made = session.new_run(
        msgspec.structs.replace(ready, settings=settings, start=start, resumed=None, resumed_from=None)
    )
    assert (made.settings, made.start) == (settings, start)


# --- remaining cases ----------------------------------------------------------------------------------------


def test_finished_units_are_those_with_a_launch_and_timeouts_are_measured_again(make_run):
    run = make_run()
    row = run.measurements[0]
    late = msgspec.structs.replace(row, status=Status.TIMEOUT)
    assert resume.finished_units(run, 3) == {(row.case, 0)}
    assert resume.finished_units(msgspec.structs.replace(run, measurements=(late,)), 3) == frozenset()
    failed = msgspec.structs.replace(row, status=Status.FAILED)
    run_with_it = msgspec.structs.replace(run, measurements=(failed,))
    assert resume.finished_units(run_with_it, 3) == {(row.case, 0), (row.case, 1), (row.case, 2)}
    assert resume.without_cut_off(msgspec.structs.replace(run, measurements=(late,))).measurements == ()
    assert resume.without_cut_off(run) == run


def test_a_stopped_launch_is_measured_again_and_the_others_stay(cut_off):
    (row,) = cut_off.measurements
    first = row.launches[0]
    stopped = msgspec.structs.replace(first, index=1, stopped=True)
    both = msgspec.structs.replace(row, status=Status.INVALID, reason="x", launches=(first, stopped))
    run = msgspec.structs.replace(cut_off, measurements=(both,))
    (kept,) = resume.without_cut_off(run).measurements
    assert (kept.status, kept.reason, kept.launches) == (Status.OK, None, (first,))
    assert resume.finished_units(run, 3) == {(row.case, 0)}
    alone = msgspec.structs.replace(row, launches=(stopped,))
    assert resume.without_cut_off(msgspec.structs.replace(run, measurements=(alone,))).measurements == ()


def test_only_the_remaining_cases_count_toward_the_announced_time(cut_off, tmp_path, scripted):
    scripted(cut_off.measurements[0])
    ready, seen = prepared(cut_off, tmp_path), []
    whole = msgspec.structs.replace(ready.plan, done=frozenset())
    assert {unit.planned.case for unit in ready.plan.units()} == set(cut_off.planned[1:])
    assert [u for u in whole.units() if u.planned.case != cut_off.planned[0]] == list(ready.plan.units())
    assert ready.plan.most_s() < whole.most_s()
    session.execute(ready, seen.append)
    planned = next(e for e in seen if isinstance(e, messages.RunPlanned))
    assert (planned.left, planned.cases) == (2, 3)


def test_resuming_a_finished_run_changes_nothing(cut_off, tmp_path, scripted):
    (row,) = cut_off.measurements
    scripted(row)
    rows = tuple(msgspec.structs.replace(row, case=case) for case in cut_off.planned)
    run = msgspec.structs.replace(cut_off, measurements=rows, finished_at="2026-11-20T00:10:00Z")
    ready, seen = prepared(run, tmp_path, time_limit_s=5.0), []
    before = ready.resumed_from.read_bytes()
    done = session.execute(ready, seen.append)
    assert (done.run, done.path, done.run.interrupted) == (run, ready.resumed_from, False)
    assert ready.resumed_from.read_bytes() == before
    assert ["left to measure" in e.text and run.run_id in e.text for e in seen] == [True]
    killed = msgspec.structs.replace(
        run, finished_at=None
    )  # after its last case, before its end was recorded
    assert session.execute(prepared(killed, tmp_path)).run.finished_at


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [
        ("--micro", "only"),
        ("--micro", "none"),
        ("--task", "train"),
        ("--gpus", "1"),
        ("--quick",),
        ("--batch-size", "max"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_by_name(option, tmp_path):
    done = CliRunner().invoke(app, ["run", "--resume", "latest", *option, "--results", str(tmp_path)])
    assert isinstance(done.exception, MisuseError)
    assert f"leave out {option[0]}" in str(done.exception)


def test_options_compatible_with_a_resume_are_accepted(tmp_path):
    options = ("--device", "cpu", "--time-limit", "9", "--allow", "shared", "--workload", "a.py", "--json")
    done = CliRunner().invoke(app, ["run", "--resume", "latest", *options, "--results", str(tmp_path)])
    assert "no run 'latest'" in str(done.exception)


def test_the_ranking_after_a_run_covers_its_planned_workloads(cut_off, tmp_path):
    def ranked(plan):
        asked = _question(plan, None)
        return asked.workloads, asked.task

    made = prepared(cut_off, tmp_path).plan
    assert ranked(made) == (("cnn",), TaskKind.TRAIN)
    inferred = (
        msgspec.structs.replace(p, case=msgspec.structs.replace(p.case, task=TaskKind.INFER))
        for p in made.cases
    )
    assert ranked(msgspec.structs.replace(made, cases=tuple(inferred))) == (("cnn",), TaskKind.INFER)
    pipeline = msgspec.structs.replace(
        made.cases[0],
        reference="augment",
        case=msgspec.structs.replace(made.cases[0].case, workload="augment", task=TaskKind.INFER),
    )
    assert ranked(msgspec.structs.replace(made, cases=(*made.cases, pipeline))) == (("cnn",), TaskKind.TRAIN)


# --- the order before a run ---------------------------------------------------------------------------------


def test_the_device_is_read_before_a_trial_of_a_batch_warms_it(tmp_path, monkeypatch):
    device = DeviceProfile(backend="cuda", name="NVIDIA H100", compute_capability=(9, 0), uuid="GPU-1")
    order = []
    monkeypatch.setattr(session, "select_device", lambda name: (device, None))
    monkeypatch.setattr(session, "select_peers", lambda device, gpus: ())
    monkeypatch.setattr(capability, "preflight", lambda device, *, allow_shared: order.append("free?") or ())
    monkeypatch.setattr(capability, "start_state", lambda device: order.append("start"))
    monkeypatch.setattr(session, "with_largest_batches", lambda made, *_: order.append("trials") or made)
    session.prepare(RunRequest(workloads=("cnn",), batch_size="max", results=tmp_path))
    assert order == ["free?", "start", "trials"]


def test_run_interrupted_after_micro_benchmarks_still_measures_its_cases(cut_off):
    product = MicroResult(
        name="gemm", precision="fp32", size="4096", value=5e13, low=None, high=None, unit="FLOP/s", n=20
    )

    def again(**changes):
        run = msgspec.structs.replace(cut_off, **changes)
        return resume.plan_again(run, CPU, load_profiles(), RunRequest(workloads=("cnn",))).micro

    assert again(settings=Settings(micro="only")) == "also"
    assert again(settings=None) == "none"
    assert again(settings=None, micro=(product,)) == "also"


def test_a_run_that_was_stopped_in_its_micro_benchmarks_continues_with_them(cut_off):
    """The run has all its cases; had nobody stopped it, it would be complete, with or without micro-benchmarks."""
    (row,) = cut_off.measurements
    rows = tuple(msgspec.structs.replace(row, case=case) for case in cut_off.planned)
    whole = msgspec.structs.replace(
        cut_off, measurements=rows, settings=Settings(micro="also"), finished_at="2026-11-20T00:01:00Z"
    )

    def again(**changes):
        run = msgspec.structs.replace(whole, **changes)
        return resume.plan_again(run, CPU, load_profiles(), RunRequest(workloads=("cnn",)))

    made = again()
    ended = session.finished(whole, made, stopped=True, micro_stopped=True)
    assert ended.interrupted
    assert again(interrupted=True).micro_left
    assert not session.finished(whole, made, stopped=True).interrupted
    assert not made.units()
    assert not made.micro_left
    assert again(finished_at=None).micro_left  # killed after its last case


# --- deaths -------------------------------------------------------------------------------------------------

DEATH = "the measuring process was killed by signal 9"


@pytest.fixture
def of_three(make_run):
    """A run of one case in three launches, and the unit of its first launch."""
    run = make_run(launch_count=3)
    case = run.measurements[0].case
    unit = Unit(launch=0, planned=PlannedCase(reference="cnn", case=case))
    return msgspec.structs.replace(run, planned=(case,)), unit


def with_row(run, *launches, **changes):
    (row,) = run.measurements
    return msgspec.structs.replace(
        run, measurements=(msgspec.structs.replace(row, launches=launches, **changes),)
    )


def test_a_death_keeps_the_sound_launches_of_its_case_and_is_measured_again(of_three):
    run, unit = of_three
    (sound,) = run.measurements[0].launches
    record = Record(plan=None, device=run.device)
    record.take(unit, messages.CaseDone(status=Status.OK, launch=sound))
    second = msgspec.structs.replace(unit, launch=1)
    record.take(second, Progress(launch=second.launch).done(Status.FAILED, DEATH))
    assert record.ended == {}
    assert record.launches[unit.planned.case] == [sound]
    assert resume.finished_units(with_row(run, sound), 3) == {(unit.planned.case, 0)}


def test_a_death_in_the_first_launch_is_measured_again_and_an_exception_is_not(of_three):
    run, unit = of_three
    record = Record(plan=None, device=run.device)
    record.take(unit, Progress(launch=unit.launch).done(Status.FAILED, DEATH))
    assert record.ended == {unit.planned.case: (Status.FAILED, DEATH, None)}
    died = with_row(run, *record.launches[unit.planned.case], status=Status.FAILED, reason=DEATH)
    assert resume.finished_units(died, 3) == frozenset()
    assert resume.without_cut_off(died).measurements == ()
    raised = with_row(run, Launch(index=0), status=Status.FAILED, reason="ValueError")
    assert resume.finished_units(raised, 3) == {(unit.planned.case, n) for n in range(3)}
