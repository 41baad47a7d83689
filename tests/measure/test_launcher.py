"""Real child processes: the cost of a crash, a hang, a kill and a reached time limit."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import psutil
import pytest
from builders import context_of, endless, run_all, run_of
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import Stopwatch, is_gone, wait_until

from gpubench import children
from gpubench.children import ChildLateError
from gpubench.measure import capability, launcher, messages
from gpubench.measure.guards import LATENCY_PASSES
from gpubench.measure.launcher import PHASE_LIMITS_S, PROBE_S, Control, Launcher, Record
from gpubench.measure.loop import LEAST_ROUNDS
from gpubench.measure.plan import Group, Plan, PlannedCase, plan
from gpubench.measure.progress import Progress
from gpubench.measure.request import RunRequest
from gpubench.models import (
    Cause,
    Finding,
    FindingKind,
    Launch,
    Measurement,
    MicroResult,
    Precision,
    Round,
    Status,
    TaskKind,
)
from gpubench.probe.backend import Readings
from gpubench.profile import load_profiles
from gpubench.session import session


@pytest.fixture
def make_plan(make_case, tiny_budget, own_model, forked_children):
    """Make a plan for one model. By default it infers, because then no child waits for torch's compiler, which
    every optimizer imports.
    """

    def make(act="pass", precisions=(Precision.FP32,), batches=(4,), task=TaskKind.INFER, **changes) -> Plan:
        reference = own_model(act)
        cases = tuple(
            PlannedCase(
                reference=reference,
                case=make_case(
                    workload="own_model", task=task, precision=p, batch_size=b, memory_format=None
                ),
                flops_per_sample=64.0,
            )
            for p in precisions
            for b in batches
        )
        return Plan(budget=tiny_budget, seed=0, cases=cases, on_cpu=True, **changes)

    return make


def is_whole(launch, budget) -> bool:
    """Whether a series has enough rounds, or has used all of its time."""
    return len(launch.rounds) >= LEAST_ROUNDS or sum(r.wall_s for r in launch.rounds) >= budget.timed_s


def test_a_case_is_measured_in_a_child_and_the_parent_imports_no_torch(make_plan, cpu, monkeypatch, tmp_path):
    """A user's ``random.py`` in the working folder does not replace the standard library's."""
    monkeypatch.setattr(children, "subprocess", subprocess)  # a new process, not a fork
    (tmp_path / "random.py").write_text("raise SystemExit('a random.py of mine ran')")
    monkeypatch.chdir(tmp_path)
    seen = []
    plan = make_plan("print('chatter'); sys.stdout.flush()", task=TaskKind.TRAIN)
    (measurement,) = run_all(plan, cpu, on_event=seen.append)
    assert measurement.status is Status.OK, measurement.reason
    launch = measurement.launches[0]
    assert is_whole(launch, plan.budget)
    assert launch.switches.cudnn_allow_tf32 is False
    assert launch.precision_errors["matmul"] < 1e-5
    assert launch.parameters_moved is True
    assert launch.stopped is False
    assert launch.batch_count == 1  # this build fixes its own seed
    assert FindingKind.ONE_BATCH in kinds(measurement)
    assert launch.loss_curve[0] > launch.rounds[-1].loss
    assert measurement.samples_per_s * measurement.step_time_s == pytest.approx(4)
    assert launch.cold_s.keys() == {"import", "context", "build", "first_step"}
    assert all(0 < seconds < 60 for seconds in launch.cold_s.values())
    rounds = [event for event in seen if isinstance(event, messages.RoundDone)]
    assert len(rounds) == len(launch.rounds) + len(launch.warmup)
    # A half-width exists from the second timed round on; a warm-up has no figure yet.
    assert [r.half_width is not None for r in rounds if r.timed] == [n > 0 for n in range(len(launch.rounds))]
    assert {r.half_width for r in rounds if not r.timed} == {None}
    program = "import sys, gpubench.session.session, gpubench.cli.verbs.run; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


DEATHS = {
    1: ("os.abort()", Status.FAILED, "signal 6 (SIGABRT)"),
    2: ("os.kill(os.getpid(), signal.SIGKILL)", Status.FAILED, "signal 9 (SIGKILL): probably host memory"),
    3: (
        "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 9 GiB')",
        Status.OUT_OF_MEMORY,
        "batch 3",
    ),
    4: (
        "raise ValueError('a bug of mine in /home/ann/x.py')",
        Status.FAILED,
        "ValueError: a bug of mine in x.py",
    ),
    5: ("sys.exit(3)", Status.FAILED, "calls sys.exit(3) (own_model.py line 17)"),
    6: (
        "os.write(int(sys.argv[2]), bytes([34, 255, 34, 10])); time.sleep(600)",  # not UTF-8 on its own pipe
        Status.FAILED,
        "sent something that is not a report",
    ),
    7: ("pass", Status.OK, ""),
}


@pytest.mark.parametrize("fatal", [(2, 4, 6), pytest.param((1, 3, 5), marks=pytest.mark.slow)])
def test_a_crash_loses_only_the_current_case(make_plan, cpu, fatal):
    """Every case is fp32, so all would share a process; each except the last dies at its third forward pass."""
    deaths = {batch: DEATHS[batch] for batch in (*fatal, 7)}
    fates = "; ".join(f"fate = {fate[0]!r} if n == {n} else fate" for n, fate in deaths.items())
    act = f"n = BATCH[0]; fate = 'pass'; {fates}; calls == 3 and exec(fate)"
    measurements = {m.case.batch_size: m for m in run_all(make_plan(act, batches=tuple(deaths)), cpu)}
    for batch, (_, status, words) in deaths.items():
        assert measurements[batch].status is status, measurements[batch].reason
        assert words in (measurements[batch].reason or "")


def test_a_model_that_floods_its_output_while_it_is_measured_is_ended(make_plan, cpu):
    plan = make_plan(
        "BATCH[0] == 4 and calls > 2 and [print('x' * 1_000_000) for _ in range(100)]", batches=(4, 5)
    )
    flood, calm = (m for _, m in sorted((m.case.batch_size, m) for m in run_all(plan, cpu)))
    assert flood.status is Status.FAILED
    assert "printed more than 64" in flood.reason
    assert calm.status is Status.OK, calm.reason


def test_a_hang_is_ended_and_named_by_its_phase(make_plan, cpu):
    limits = PHASE_LIMITS_S | {"first steps": 1.0}
    plan = make_plan("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")
    watch = Stopwatch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpubench.children.TERMINATE_AFTER_S", 0.5)
        (measurement,) = run_all(plan, cpu, phase_limits_s=limits)
    assert watch.free_s() < 30
    assert measurement.status is Status.TIMEOUT
    assert "first steps" in measurement.reason
    assert measurement.cause is Cause.SILENCE
    assert not psutil.Process().children(recursive=True)


def test_a_quick_run_waits_two_minutes_for_a_silent_step_and_not_ten(make_plan, cpu):

    def patience_s(budget: str, phase: str) -> float:
        plan = make_plan()
        plan = msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, name=budget))
        launcher = Launcher(plan, cpu)
        now = time.monotonic()
        return launcher._until_s(phase) - now

    assert patience_s("quick", "first steps") == pytest.approx(120, abs=5)
    assert patience_s("default", "first steps") == pytest.approx(600, abs=5)
    assert patience_s("quick", "import") == pytest.approx(180, abs=5)


def test_rounds_before_a_crash_are_kept(make_plan, cpu):
    (measurement,) = run_all(make_plan("if calls == 60: os.abort()"), cpu)
    assert measurement.status is Status.FAILED
    launch = measurement.launches[0]
    assert launch.warmup or launch.rounds


def test_a_time_limit_applies_to_the_whole_run_and_names_what_it_cut(make_plan, cpu):
    """No case would end on its own, and for one of the last three less than a second is left."""
    plan = endless(make_plan("time.sleep(0.05)", batches=(4, 5, 6, 7), time_limit_s=5.0))

    def on_event(event):
        if isinstance(event, messages.Phase) and event.name == "context":
            launcher.began_s = time.monotonic() - 1.5  # as if importing torch had taken this long

    launcher = Launcher(plan, cpu, on_event)
    measurements = list(launcher.run())
    assert sorted(m.case.batch_size for m in measurements) == [4, 5, 6, 7]
    cut = [m for m in measurements if m.status is Status.TIMEOUT]
    assert cut
    assert all("time" in m.reason for m in cut)
    for measurement in measurements:
        assert measurement.status is Status.TIMEOUT or NOT_CONVERGED in kinds(measurement)
    assert sum(seconds(m) for m in measurements) < plan.time_limit_s


def test_a_limit_too_short_for_all_gives_the_first_case_its_time_and_names_those_left_out(
    make_plan, cpu, monkeypatch
):
    """With equal shares, none of the four would have had the two seconds that a figure needs."""
    monkeypatch.setattr("gpubench.measure.launcher.LEAST_CASE_S", 2.0)
    launcher = Launcher(endless(make_plan("pass", batches=(4, 5, 6, 7), time_limit_s=5.0)), cpu)
    assert launcher._share_s(2) == pytest.approx(2.5, abs=0.1)
    assert launcher._share_s(4) == 2.0
    launcher.began_s -= 3.5
    (unit, *_) = launcher.plan.units()
    done = launcher._attempt(unit, 4)
    assert done.status is Status.TIMEOUT
    assert done.reason.startswith("skipped:")
    assert done.cause is None


NOT_CONVERGED = FindingKind.NOT_CONVERGED


def kinds(measurement: Measurement) -> set[FindingKind]:
    return {finding.kind for finding in measurement.findings}


def seconds(measurement: Measurement) -> float:
    return sum(r.wall_s for launch in measurement.launches for r in (*launch.warmup, *launch.rounds))


INFERENCE = (
    "assert torch.is_inference_mode_enabled() and not torch.is_grad_enabled(), 'a trace of autograd'; "
)


def test_a_forward_pass_leaves_no_trace_of_autograd_and_gives_its_latency(make_plan, cpu):
    one, several = run_all(make_plan(f"{INFERENCE}time.sleep(0.001)", batches=(1, 4)), cpu)
    if one.case.batch_size != 1:
        one, several = several, one
    assert one.status is several.status is Status.OK, (one.reason, several.reason)
    assert len(one.launches[0].latency_s) == LATENCY_PASSES
    assert 0.001 <= one.latency_p50_s <= one.latency_p95_s <= one.latency_p99_s
    assert several.latency_p50_s is None


def test_a_stop_with_a_deadline_kills_a_hung_child_immediately(make_plan, cpu):
    """SIGTERM sets such a deadline. The child hangs in a call that blocks its listening thread."""
    control, stopped = Control(), []

    def on_event(event):
        if isinstance(event, messages.Phase) and event.name == "first steps":
            stopped.append(Stopwatch())
            control.stop(within_s=0.5)

    plan = make_plan(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); import ctypes; ctypes.PyDLL(None).sleep(600)"
    )
    (measurement,) = run_all(plan, cpu, on_event=on_event, control=control)
    assert stopped[0].free_s() < 3
    assert measurement.status is Status.INTERRUPTED
    assert not psutil.Process().children(recursive=True)


def test_stop_during_process_start_applies_to_the_started_child(make_plan, cpu, monkeypatch):
    """The signal came while the process was being started; it is killed at its own deadline."""
    control, started = Control(), []

    class Watched(launcher.Child):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(launcher, "Child", Watched)

    def on_event(event):
        if isinstance(event, messages.CaseBegan):
            control.stop(within_s=0.0)

    (measurement,) = Launcher(make_plan("pass"), cpu, on_event, control).run()
    assert measurement.status is Status.INTERRUPTED
    assert "killed by signal 9" in started[0].how_it_ended()


def test_stop_finishes_the_current_round_and_returns_the_results(make_plan, cpu):
    control = Control()
    rounds = []

    def on_event(event):
        if isinstance(event, messages.RoundDone) and event.timed:
            rounds.append(event)
            if len(rounds) == 5:
                control.stop()

    plan = endless(make_plan("time.sleep(0.01)", batches=(4, 5)))
    (measurement,) = run_all(plan, cpu, on_event=on_event, control=control)
    assert measurement.status is Status.OK
    (launch,) = measurement.launches
    assert len(launch.rounds) >= 5
    assert launch.stopped
    assert NOT_CONVERGED in kinds(measurement)


def test_launches_are_numbered_in_the_order_in_which_they_began(make_plan, cpu):
    plan = make_plan(batches=(4, 5))
    plan = msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, launches=2))
    record = Record(plan=plan, device=cpu, begun=7)
    rows = {m.case.batch_size: m for m in Launcher(plan, cpu).run(record=record)}
    placed = {(x.index, size): x for size, m in rows.items() for x in m.launches}
    order = [(unit.launch, unit.planned.case.batch_size) for unit in plan.units()]
    assert [placed[key].sequence for key in order] == list(range(7, 11))
    stamps = [placed[key].began_at for key in order]
    assert stamps == sorted(stamps)
    assert "import" in placed[order[0]].cold_s
    assert "import" not in placed[order[1]].cold_s  # the same process


def test_on_a_lost_device_nothing_more_is_tried(make_plan, cpu, monkeypatch):
    """A process dies and the driver reports that the GPU is gone: the other cases fail at once, with that reason."""
    monkeypatch.setattr(capability, "fault_of", lambda device: "gpu_lost" if device is cpu else None)
    seen = []
    plan = make_plan("if calls == 3: os.abort()", batches=(4, 5, 6))
    measurements = run_all(plan, cpu, on_event=seen.append)
    assert [m.status for m in measurements] == [Status.FAILED] * 3
    assert all(m.reason.startswith("gpu_lost: ") for m in measurements)
    phases = [e.name for e in seen if isinstance(e, messages.Phase)]
    assert phases.count("build") == 1


@pytest.fixture
def make_desk(tiny_budget, cpu):
    """Make the context of a worker on the CPU, in this process, with the test's own telemetry."""
    return lambda readings, **changes: context_of(cpu, budget=tiny_budget, telemetry=readings, **changes)


@pytest.fixture
def make_order(make_case, own_model):
    def make(act="pass", **changes) -> messages.MeasureCase:
        case = make_case(workload="own_model", memory_format=None, **({"batch_size": 4} | changes))
        return messages.MeasureCase(reference=own_model(act), case=case, launch=0)

    return make


def test_a_short_time_limit_reserves_time_for_the_latency(make_desk, make_order, tiny_budget):
    """The timed rounds would take the whole limit, and slow forward passes let it cut the latency passes short.

    The first measurement does the imports, which would take time from the second one.
    """
    from gpubench.measure.case import measure_case

    desk = make_desk(Readings())
    order = make_order(f"{INFERENCE}time.sleep(0.004)", task=TaskKind.INFER, batch_size=1)
    measured_before = measure_case(msgspec.structs.replace(order, time_s=1.0), desk)
    assert measured_before.status is Status.OK
    desk.budget = msgspec.structs.replace(tiny_budget, timed_s=60.0, target=1e-6)
    done = measure_case(msgspec.structs.replace(order, time_s=2.0), desk)
    assert done.status is Status.OK, done.reason
    assert len(done.launch.rounds) >= 2
    assert len(done.launch.latency_s) >= 20


def test_a_case_that_ends_on_a_lost_device_says_so_and_keeps_its_rounds(make_desk, make_order, tiny_budget):
    from gpubench.measure.case import measure_case

    class Losing(Readings):
        fault = None

    readings = Losing()

    def report(timed, *_):
        readings.fault = "gpu_lost" if timed else None

    done = measure_case(make_order(), make_desk(readings, report=report))
    assert (done.status, done.lost) == (Status.FAILED, True)
    assert done.reason.startswith("gpu_lost: ")
    assert is_whole(done.launch, tiny_budget)


def test_the_energy_counter_is_stored_at_both_edges_even_of_a_short_region(make_desk, make_order):
    from gpubench.measure.case import measure_case

    class Counter(Readings):
        values = iter((100.0, 250.0))

        def energy_j(self):
            return next(self.values)

    done = measure_case(make_order(), make_desk(Counter()))
    assert (done.status, done.lost) == (Status.OK, False)
    assert done.launch.energy_edges_j == (100.0, 250.0)
    assert done.launch.energy_j is None


def test_micro_benchmarks_run_in_a_child_and_are_stored_with_the_steps(make_plan, cpu, monkeypatch):
    """Their share of the time limit suffices for one or two matrix products at the CPU's sizes."""
    monkeypatch.setattr("gpubench.measure.launcher.MICRO_SHARE", 0.002)
    launcher = Launcher(make_plan(micro="also", time_limit_s=300.0), cpu)
    before, measurement = launcher.run()
    assert before.gemm_flops_per_s is None  # the first figure comes before the micro-benchmarks
    products = [result for result in launcher.micro if result.name == "gemm"]
    assert products
    assert all(len(r.times_s) == r.n + r.left_out for r in products)
    at_precision = [r.value for r in products if r.precision == measurement.case.precision]
    assert measurement.gemm_flops_per_s == max(at_precision)


@dataclass
class Scripted:
    """A measuring process that answers from a script."""

    answer: Callable[[], messages.Report]
    note: Callable[[messages.Command], object] = lambda command: None

    def send(self, command):
        self.note(command)

    def receive(self, until_s):
        return self.answer()


@pytest.mark.parametrize(("limit_s", "given_s"), [(None, 15.0), (1000.0, 15.0), (40.0, 4.0)])
def test_the_micro_benchmarks_of_a_run_have_fifteen_seconds_at_most(h100, monkeypatch, limit_s, given_s):
    asked, told = [], []

    def quiet() -> Scripted:
        return Scripted(lambda: messages.MicroDone(last=True), lambda command: told.append(command.time_s))

    made = plan(RunRequest(micro="also", time_limit_s=limit_s), h100, load_profiles())
    launcher = Launcher(made, h100)
    monkeypatch.setattr(launcher, "_child_of", lambda group: asked.append(group) or quiet())
    launcher._measure_micro()
    assert asked == [Group(launch=0)]
    assert told == [pytest.approx(given_s, rel=0.01)]
    for whole_s in (None, 20.0):  # without cases they have the whole limit, except the time of the last probe
        alone = Launcher(plan(RunRequest(micro="only", time_limit_s=whole_s), h100, {}), h100)
        monkeypatch.setattr(alone, "_child_of", lambda group: quiet())
        alone._measure_micro()
    assert told[1:] == [None, pytest.approx(20.0 - PROBE_S, rel=0.01)]


def test_a_launch_without_a_result_does_not_cost_the_micro_benchmarks(make_plan, cpu, monkeypatch):
    """If the only launch left in a resumed run dies, the first launch's figure stays and the benchmarks still run."""
    made = make_plan(micro="also")
    (planned,) = made.cases
    two = msgspec.structs.replace(made.budget, launches=2)
    made = msgspec.structs.replace(made, budget=two, done=frozenset({(planned.case, 0)}))
    sound = Launch(index=0, rounds=(Round(steps=1, wall_s=0.1, loss=1.0),) * 3)
    died = messages.CaseDone(status=Status.FAILED, reason="it died", launch=Launch(index=1, stopped=True))
    seen, probed = [], []
    launcher = Launcher(made, cpu, on_event=seen.append)
    monkeypatch.setattr(launcher, "_measure", lambda unit, left, record: died)
    monkeypatch.setattr(launcher, "_measure_micro", lambda *group: probed.append(group))
    record = Record(plan=made, device=cpu, launches={planned.case: [sound]})
    assert {(row.status, row.reason) for row in launcher.run(record)} == {(Status.OK, None)}
    assert "it died" in seen[-1].text
    assert probed


def test_findings_on_the_device_from_micro_benchmarks_belong_to_the_run(make_plan, cpu, monkeypatch):
    """The finding here is about memory that the device reports and then refuses."""
    refused = Finding(
        kind=FindingKind.MEMORY_REFUSED, value="device copy of 64 MiB; the device reports 64 GiB"
    )
    told = iter([messages.MicroDone(finding=refused), messages.MicroDone(last=True)])
    launcher = Launcher(make_plan(micro="also"), cpu)
    monkeypatch.setattr(launcher, "_child_of", lambda group: Scripted(lambda: next(told)))
    launcher._measure_micro()
    assert session._so_far(run_of(), None, launcher).findings == (refused,)


def test_the_reason_for_shortened_micro_benchmarks_is_reported_unchanged(make_plan, cpu, monkeypatch):
    """The child is silent because the run's time is over, or for no known reason."""

    def late():
        raise ChildLateError

    def said(**changes):
        seen = []
        launcher = Launcher(make_plan(micro="also", **changes), cpu, on_event=seen.append)
        monkeypatch.setattr(launcher, "_child_of", lambda group: Scripted(late))
        launcher.began_s -= 10
        launcher._measure_micro()
        (remark,) = seen
        return remark.text

    assert said(time_limit_s=5.0).startswith("micro-benchmarks cut short")
    silent = "micro-benchmarks cut short: no report during micro: the process was killed"
    assert said(time_limit_s=500.0) == said() == silent


def test_micro_benchmarks_are_judged_as_they_arrive_and_replace_earlier_ones(make_plan, h100):
    launcher = Launcher(make_plan(), h100)
    result = MicroResult(
        name="gemm", precision="bf16", size="4096", value=9e15, low=None, high=None, unit="FLOP/s", n=20
    )
    launcher._take_micro(result)
    launcher._take_micro(msgspec.structs.replace(result, size="8192", value=6e14))
    assert [[f.kind for f in r.findings] for r in launcher.micro] == [[FindingKind.IMPLAUSIBLE], []]
    launcher._take_micro(msgspec.structs.replace(result, value=7e14))
    assert [(r.size, r.value, r.findings) for r in launcher.micro] == [
        ("4096", 7e14, ()),
        ("8192", 6e14, ()),
    ]


def test_an_abort_kills_the_child_at_once(make_plan, cpu):
    control = Control()
    seen = {}

    def on_event(event):
        if isinstance(event, messages.Phase) and event.name == "warm-up":
            seen.update(pid=control.child.pid, watch=Stopwatch())
            control.abort()

    (measurement,) = run_all(endless(make_plan("time.sleep(0.2)")), cpu, on_event=on_event, control=control)
    assert seen["watch"].free_s() < 5
    assert measurement.status is Status.INTERRUPTED
    assert not measurement.launches[0].rounds
    assert not psutil.pid_exists(seen["pid"])


def test_the_child_ends_when_its_parent_is_killed():
    """A killed parent closes nothing properly; the end of the pipe is enough for the child."""
    program = (
        "import sys, time\n"
        "from gpubench.measure.launcher import Child\n"
        "import os\n"
        "child = Child(os.environ); print(child.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    watch = Stopwatch()
    wait_until(lambda: is_gone(pid))
    assert watch.free_s() < 5


def test_a_flood_of_output_is_bounded_and_does_not_stall_the_child(make_plan, cpu):
    (measurement,) = run_all(make_plan("calls <= 100 and sys.stderr.write('x' * 100_000)"), cpu)
    assert measurement.status is Status.OK, measurement.reason


def test_the_environment_of_a_child_names_the_gpu_and_leaves_tf32_alone(h100):
    from gpubench.measure.environment import child_variables

    inherited = {"PATH": "/bin", "NVIDIA_TF32_OVERRIDE": "1", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    made = child_variables(h100, inherited)
    assert not made.keys() & {"NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"}
    assert made["CUDA_VISIBLE_DEVICES"] == h100.uuid
    blank = msgspec.structs.replace(h100, uuid="GPU-00000000-0000-0000-0000-000000000000", index=2)
    assert child_variables(blank, inherited)["CUDA_VISIBLE_DEVICES"] == "2"


# --- a model that writes into the pipe of its process -------------------------------------------------------


def result(*walls: float) -> messages.CaseDone:
    rounds = tuple(Round(steps=1000, wall_s=wall_s) for wall_s in walls)
    return messages.CaseDone(status=Status.OK, launch=Launch(index=0, rounds=rounds))


def test_a_result_must_match_the_reported_rounds():
    forged = result(0.008, 0.008)
    seen = Progress()
    assert "the 0 it reported" in seen.contradiction(forged)
    seen.timed += forged.launch.rounds
    assert seen.contradiction(forged) is None
    longer = result(500.0, 500.0)
    seen.timed[:] = longer.launch.rounds
    assert " 1e+03 s within" in seen.contradiction(longer)


def test_the_parent_times_the_rounds_that_count_by_its_own_clock(monkeypatch):
    clock = iter([10.0, 13.25, 17.0])
    monkeypatch.setattr("gpubench.measure.progress.time.monotonic", lambda: next(clock))
    seen = Progress(began_s=0.0)
    seen.take(messages.RoundDone(timed=False, round=Round(steps=1, wall_s=1.0)))
    for outside_s in (6.0, 7.0, 8.5):
        assert seen.told_in_s() is None or outside_s > 7.0
        seen.take(messages.RoundDone(timed=True, round=Round(steps=1, wall_s=1.0), outside_s=outside_s))
    assert seen.told_in_s() == 4.5, "seven seconds, and two and a half of them between rounds"
    for _ in range(3):
        seen.take(messages.RoundDone(timed=True, round=Round(steps=1, wall_s=1.0)), was_awaited=False)
    assert seen.told_in_s() is None, "the arrival times of most reports are unknown"


@settings(max_examples=200)
@given(
    walls=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=60),
    late=st.lists(st.floats(0.0, 2.0), min_size=60, max_size=60),
    pace=st.sampled_from([1.0, 1.3, 2.0]),
    prompt=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_reports_that_are_read_late_do_not_change_the_pace(walls, late, pace, prompt):
    """It suffices that one report of the first third and one of the last are read promptly."""
    third = max(1, len(walls) // 3)
    late[int(prompt[0] * (third - 1))] = late[len(walls) - third + int(prompt[1] * (third - 1))] = 0.0
    seen = Progress(timed=[Round(steps=1, wall_s=wall_s) for wall_s in walls])
    ends_s = [*itertools.accumulate(walls)]
    seen.arrived = [(end_s, pace * end_s + late_s) for end_s, late_s in zip(ends_s, late, strict=False)]
    assert seen.told_in_s() == pytest.approx(pace * (ends_s[-1] - ends_s[0]))


@pytest.mark.parametrize("slower", [1, 1.3, 2])
def test_clock_slowed_down_by_a_model_yields_no_figure(make_plan, cpu, slower):
    """One second of 10 ms rounds, so the pauses are a large part, on a machine that may be busy."""
    act = (
        "calls == 1 and (real := time.perf_counter_ns) and "
        f"setattr(time, 'perf_counter_ns', lambda: int(real() / {slower}))"
    )
    plan = make_plan(act, batches=(4096,))
    second = msgspec.structs.replace(plan.budget, timed_s=1.0)
    (measurement,) = run_all(msgspec.structs.replace(plan, budget=second), cpu)
    told_in_s = measurement.launches[0].told_in_s
    assert (FindingKind.CLOCK_DISAGREES in kinds(measurement)) is (slower > 1), told_in_s
    assert measurement.status is (Status.OK if slower == 1 else Status.INVALID), measurement.reason


def test_result_forged_by_the_model_is_rejected(make_plan, cpu):
    """The model writes 500,000 samples a second into the pipe that it found."""
    line = msgspec.json.encode(result(*[0.008] * 20)).decode()
    act = f"calls == 3 and os.write(int(sys.argv[2]), {line!r}.encode() + bytes([10]))"
    (measurement,) = run_all(make_plan(act), cpu)
    assert measurement.status is Status.FAILED
    assert "20 rounds" in measurement.reason


def test_a_launch_is_dated_by_its_start(make_plan, cpu, monkeypatch):
    order = []
    stamp = "2026-01-01T00:00:00Z"
    monkeypatch.setattr("gpubench.measure.launcher.utc_stamp", lambda: order.append("dated") or stamp)

    def attempt(self, unit, left):
        order.append("measured")
        return Progress(launch=unit.launch).done(Status.FAILED, "not measured")

    monkeypatch.setattr(Launcher, "_attempt", attempt)
    made = make_plan()
    (row,) = run_all(made, cpu)
    assert order == ["dated", "measured"]
    assert row.launches[0].began_at == stamp


def test_a_flood_of_reports_is_bounded(make_plan, cpu, monkeypatch):
    monkeypatch.setattr("gpubench.measure.launcher.MOST_REPORTS", 50)
    line = msgspec.json.encode(messages.Phase(name="timed")).decode()
    act = f"[os.write(int(sys.argv[2]), {line!r}.encode() + bytes([10])) for _ in range(100)]"
    (measurement,) = run_all(make_plan(act), cpu)
    assert "more than 50 reports" in measurement.reason


def test_a_model_that_changes_its_folder_does_not_affect_other_cases(make_plan, cpu, tmp_path, monkeypatch):
    """The model's reference is a path relative to the folder in which the command was started."""
    plan = make_plan("os.chdir('/')", batches=(4, 5))
    monkeypatch.chdir(tmp_path)
    cases = tuple(msgspec.structs.replace(p, reference="./own_model.py") for p in plan.cases)
    for measurement in run_all(msgspec.structs.replace(plan, cases=cases), cpu):
        assert measurement.status is Status.OK, measurement.reason
