"""One case from request to record on a scripted device: what is read, when, and how a failure ends."""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from types import SimpleNamespace

import forked_child
import msgspec
import psutil
import pytest
import torch
from builders import context_of
from torch import nn

from gpubench.discovery import load_workload
from gpubench.measure import case, checks, guards, launch, step, worker
from gpubench.measure.budget import DEFAULT
from gpubench.measure.capability import NotHereError
from gpubench.measure.case import measure_case
from gpubench.measure.guards import prepare
from gpubench.measure.launch import LaunchRecorder
from gpubench.measure.loop import Clock, StepState
from gpubench.measure.messages import MeasureCase, Ready, Setup
from gpubench.measure.step import (
    Hardware,
    SwitchesRefusedError,
    move,
    open_hardware,
    read_switches,
    switches_for,
)
from gpubench.models import (
    Execution,
    FindingKind,
    Launch,
    Measurement,
    Precision,
    Reading,
    Status,
    Switches,
    TaskKind,
)
from gpubench.workload import Task

pytestmark = pytest.mark.usefixtures("small_probes")
CPU = torch.device("cpu")
STEP_S = 0.26
BUDGET = msgspec.structs.replace(
    DEFAULT, warmup_least_s=0.0, warmup_most_s=30.0, window_s=0.5, curve_steps=3, timed_s=20.0
)


class Accelerator(Hardware):
    """An accelerator with tensors on the CPU; each forward pass takes 0.26 s of its own clock."""

    is_cuda = True
    is_cpu = False

    def __init__(self, fake_clock):
        super().__init__(device=CPU)
        object.__setattr__(self, "fake_clock", fake_clock)
        object.__setattr__(self, "log", [])

    def clock(self):
        return Clock(now_ns=self.fake_clock.now_ns)

    def call(self, name, *arguments):
        if name == "reset_peak_memory_stats":
            self.log.append("reset")
        elif name == "max_memory_allocated":
            self.log.append("peak")
            return 12_345
        return None

    def step_state(self, scale=None):
        return StepState(scale=scale)

    def release(self):
        self.log.append("release")


class Telemetry:
    """Counters that change between two readings: 2 kJ, 1.5 s with clocks reduced by power, two memory errors."""

    source = "nvml"
    fault: str | None = None

    def __init__(self):
        self.joules = iter([1000.0, 3000.0])
        self.held = iter([{"power": 1.0, "thermal": 5.0}, {"power": 2.5, "thermal": 0.0}])
        self.errors = iter([3, 5])

    def sample(self):
        return Reading(power_w=200.0)

    def energy_j(self):
        return next(self.joules)

    def held_clocks_s(self):
        return next(self.held)

    def ecc_uncorrected(self):
        return next(self.errors)


class Net(nn.Module):
    """A layer that advances the scripted clock and runs the test's own code on each forward pass."""

    def __init__(self, act):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.act = act

    def forward(self, x):
        self.act()
        return self.layer(x)


def make_task(act=lambda: None, model=None):
    torch.manual_seed(0)
    model = model or Net(act)
    batches = tuple((torch.randn(4, 8), torch.tensor([0, 1, 2, 3])) for _ in range(2))
    return Task(
        model=model,
        batches=batches,
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.01),
    )


@pytest.fixture
def measured(fake_clock, h100, make_case, monkeypatch):
    """Measure a case on the scripted device; the device's own calls answer from a script."""
    monkeypatch.setattr(guards, "event_times", lambda advance, steps: (0.019,) * steps)
    monkeypatch.setattr(guards, "host_issue_times", lambda advance, clock: (0.001, 0.02) * 3)
    monkeypatch.setattr(guards, "busy_share", lambda advance, clock: 0.97)

    def measure(act=lambda: None, budget=BUDGET, launch=0, **changes):
        def step():
            fake_clock.advance(STEP_S)
            act()

        hardware = Accelerator(fake_clock)
        phases = []
        desk = context_of(
            h100, hardware=hardware, budget=budget, telemetry=Telemetry(), tell_phase=phases.append
        )
        asked = make_case(workload="own", memory_format=None, **({"batch_size": 4} | changes))
        desk.tasks[("own", asked.batch_size, asked.recipe)] = make_task(step)
        done = measure_case(MeasureCase(reference="own", case=asked, launch=launch), desk)
        return done, SimpleNamespace(phases=phases, log=hardware.log, case=asked)

    return measure


def judged(done, asked) -> Measurement:
    """Return the row as a reader of the file sees it, after JSON and the checks."""
    launch = msgspec.json.decode(msgspec.json.encode(done.launch), type=Launch)
    return checks.judge_measurement(Measurement(case=asked, status=done.status, launches=(launch,)), 1)


def test_everything_read_during_the_rounds_is_in_the_record(measured):
    done, desk = measured()
    launch = done.launch
    assert measured(launch=2)[0].launch.index == 2
    assert (done.status, done.reason, launch.index) == (Status.OK, None, 0)
    assert len(launch.rounds) >= 10
    assert (launch.energy_j, launch.energy_source) == (2000.0, "counter")
    assert launch.energy_region_s == pytest.approx(sum(r.wall_s for r in launch.rounds))
    assert launch.held_clocks_s == {"power": 1.5}  # a counter that went back gives no information
    assert launch.memory_errors == 2
    assert launch.peak_memory_bytes == 12_345
    assert desk.log == ["reset", "peak", "release"]
    assert launch.reference_error < 1e-6
    assert launch.graph_error is None
    assert launch.parameters_moved is True
    assert launch.fused is True
    assert max(launch.precision_errors.values()) < 1e-5
    assert launch.switches.unexpected(Precision.FP32) is None
    assert (launch.event_s[0], launch.host_issue_s[:2], launch.gpu_busy) == (0.019, (0.001, 0.02), 0.97)
    assert len(launch.event_s) == launch.rounds[0].steps
    assert launch.telemetry_source == "nvml"
    assert {"build", "first_step"} <= set(launch.cold_s)
    assert desk.phases == ["build", "check", "first steps", "first steps", "warm-up", "timed", "second look"]


def test_in_a_short_run_only_eager_rows_are_profiled_again(measured, monkeypatch):
    """Only eager steps show whether the host limits the speed; profiling graphs took ten seconds of two minutes."""
    monkeypatch.setattr(case, "prepare", lambda work: work.step)
    hasty = msgspec.structs.replace(BUDGET, in_haste=True)
    assert "second look" in measured(budget=hasty)[1].phases
    done, desk = measured(budget=hasty, execution=Execution.GRAPH)
    assert done.status is Status.OK
    assert "second look" not in desk.phases
    assert "second look" in measured(execution=Execution.GRAPH)[1].phases


def test_only_the_first_launch_gets_the_extra_readings(measured):
    assert "second look" in measured()[1].phases
    assert "second look" not in measured(launch=1)[1].phases


def test_the_gradient_scale_is_read_from_the_warm_up_on(measured, monkeypatch):
    scales = []
    step_state = Accelerator.step_state
    monkeypatch.setattr(
        Accelerator, "step_state", lambda self, scale=None: scales.append(scale) or step_state(self, scale)
    )
    done, _ = measured(precision=Precision.AMP_FP16)
    assert done.status is Status.OK
    assert done.launch.skipped_steps == 0
    assert len(scales) >= len(done.launch.warmup) + len(done.launch.rounds)
    assert set(scales) == {65536.0}
    assert measured()[0].launch.skipped_steps is None


def test_the_first_steps_draw_the_random_numbers_of_the_seed(measured, monkeypatch):
    """Dropout is the same in every precision, however many random numbers were drawn before."""

    def forward(self, x):
        self.act()
        return self.layer(nn.functional.dropout(x, training=self.training))

    monkeypatch.setattr(Net, "forward", forward)
    curves = []
    for drawn in (1, 100):

        def draws(work, task, expected, n=drawn):
            return guards.Errors(float(torch.rand(n)[0] * 0))

        monkeypatch.setattr(guards, "reference_errors", draws)
        curves.append(measured()[0].launch.loss_curve)
    assert len(curves[0]) == BUDGET.curve_steps
    assert curves[0] == curves[1]


def test_cudnn_chooses_its_algorithms_by_trial_on_a_gpu(h100, cpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    open_hardware(cpu)
    assert torch.backends.cudnn.benchmark is False
    chosen = []
    for name, answer in (
        ("init", lambda: None),
        ("set_device", chosen.append),
        ("synchronize", lambda: None),
    ):
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    assert open_hardware(h100, rank=1).is_cuda
    assert chosen == [1]
    assert torch.backends.cudnn.benchmark is True


def test_on_the_cpu_fp32_is_its_own_reference_and_amp_is_not(measured, monkeypatch):
    monkeypatch.setattr(Accelerator, "is_cpu", True)
    assert measured()[0].launch.reference_error is None
    assert measured(precision=Precision.AMP_BF16)[0].launch.reference_error is not None


@pytest.mark.parametrize("way", [Execution.GRAPH, Execution.COMPILE])
def test_captured_and_compiled_steps_are_compared_with_eager_ones(measured, monkeypatch, way):
    monkeypatch.setattr(case, "prepare", lambda work: work.step)
    done, desk = measured(execution=way)
    assert done.launch.graph_error == 0.0
    assert {"capture", "compile"} & set(desk.phases)
    monkeypatch.setattr(case, "prepare", lambda work: lambda index: work.step(index) * 1.01)
    done, desk = measured(execution=way)
    assert done.launch.graph_error == pytest.approx(0.01, rel=1e-4)
    assert FindingKind.LOSS_DIFFERS in {f.kind for f in judged(done, desk.case).findings}


def test_a_step_that_cannot_be_captured_is_unsupported_with_the_reason(measured, monkeypatch):
    def refuse(work):
        raise NotHereError("the step cannot be captured in a CUDA graph: it waits")

    monkeypatch.setattr(case, "prepare", refuse)
    done, _ = measured(execution=Execution.GRAPH)
    assert (done.status, done.reason.rpartition(": ")[2]) == (Status.UNSUPPORTED, "it waits")
    assert done.launch.rounds == ()


def test_an_infinite_loss_on_the_device_only_is_still_visible_in_the_file(make_case):
    for field in ("reference_error", "graph_error"):
        launch = LaunchRecorder(launch=Launch(index=0, **{field: math.inf})).done()
        done = SimpleNamespace(launch=launch, status=Status.OK)
        row = judged(done, make_case())
        assert getattr(row.launches[0], field) is None
        assert [f.kind for f in row.findings] == [FindingKind.LOSS_DIFFERS]
        assert row.status is Status.INVALID
    assert LaunchRecorder(launch=Launch(index=0, reference_error=1e-7)).done().findings == ()


# --- precision ----------------------------------------------------------------------------------------------


def test_a_model_that_sets_a_switch_itself_is_not_strict_fp32(measured):
    def lower():
        torch.backends.cuda.matmul.allow_tf32 = True

    before = read_switches()
    done, desk = measured(lower)
    assert done.launch.switches.matmul_allow_tf32 is True
    row = judged(done, desk.case)
    assert FindingKind.SWITCHES_CHANGED in {f.kind for f in row.findings}
    assert row.status is Status.INVALID
    assert read_switches() == before


def test_the_proof_is_repeated_after_the_rounds_and_the_worse_one_is_kept(measured, monkeypatch):
    for errors in ([5e-7, 3e-4], [3e-4, 5e-7], [5e-7, math.nan]):
        script = iter(errors)
        monkeypatch.setattr(case, "errors_on", lambda *_, script=script, **__: {"matmul": next(script)})
        done, desk = measured()
        assert done.launch.precision_errors == {"matmul": None if math.isnan(sum(errors)) else 3e-4}
        assert FindingKind.TF32_IN_FORCE in {f.kind for f in judged(done, desk.case).findings}


def test_switches_that_do_not_take_effect_are_refused(measured, monkeypatch):
    monkeypatch.setattr(step, "_set", lambda wanted: None)
    monkeypatch.setattr(
        step, "read_switches", lambda: Switches(**dict.fromkeys(Switches.__struct_fields__, True))
    )
    with pytest.raises(SwitchesRefusedError, match="cudnn_allow_tf32=True"), switches_for(Precision.FP32):
        raise AssertionError("entered")
    done, _ = measured()
    assert done.status is Status.FAILED
    assert done.reason.startswith("fp32 was set")


# --- the profiler -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_s", "count"), [(0.001, 10), (0.0201, 5), (0.05, 3), (2.0, 3)])
def test_long_steps_are_profiled_fewer_times(fake_clock, monkeypatch, step_s, count):
    """One step shows the duration, then as many run without the profiler as with it."""

    class Profile:
        def __init__(self, activities):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def key_averages(self):
            return [SimpleNamespace(self_device_time_total=count * step_s * 0.9e6)]

    steps = []
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    clock = Clock(now_ns=fake_clock.now_ns)
    found = guards.busy_share(lambda index: steps.append(index) or fake_clock.advance(step_s), clock)
    assert len(steps) == 1 + 2 * count
    assert found == pytest.approx(0.9)


# --- compile ------------------------------------------------------------------------------------------------


@pytest.fixture
def graphs_compiled(monkeypatch):
    """Compile with dynamo only and run its graphs unchanged; return the shapes for which each was made."""
    shapes = []

    def keep(module, examples):
        shapes.append([list(e.shape) for e in examples if isinstance(e, torch.Tensor)])
        return module.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep))
    return shapes


def compile_work(make_case, model=None, batch=4):
    asked = make_case(execution=Execution.COMPILE, batch_size=batch, memory_format=None)
    task = make_task(model=model or nn.Sequential(nn.Linear(8, 4), nn.ReLU()))
    batches = tuple((x[:batch], y[:batch]) for x, y in task.batches)
    return move(with_changes(task, batches=batches), asked, CPU)


def with_changes(task, **changes):
    return Task(**({n: getattr(task, n) for n in ("model", "batches", "loss", "optimizer")} | changes))


def test_a_model_is_compiled_again_for_each_case(make_case, graphs_compiled):
    """Beyond its recompile limit torch would run another batch size eagerly; below it, one graph would serve any size."""
    limit = "recompile_limit" if torch.__version__ >= "2.6" else "cache_size_limit"
    with torch._dynamo.config.patch({limit: 1}):
        for batch in (4, 3, 2):
            work = compile_work(make_case, batch=batch)
            assert guards.graph_error(work, prepare(work)) < 1e-6
    assert all(type(side) is int for graph in graphs_compiled for shape in graph for side in shape)
    assert len(graphs_compiled) == 3


def test_a_model_without_compiled_parts_is_unsupported(make_case, graphs_compiled, monkeypatch):
    class Opaque(nn.Sequential):
        @torch.compiler.disable
        def forward(self, x):
            return super().forward(x)

    prepare(compile_work(make_case))  # a graph of an earlier case does not prove anything about this one
    work = compile_work(make_case, Opaque(nn.Linear(8, 4)))
    with pytest.raises(NotHereError, match="compiled no part"):
        prepare(work)
    recurrent, before = load_workload("lstm").tiny(4, 0), len(graphs_compiled)
    try:
        prepare(move(recurrent, work.case, CPU))
    except NotHereError as error:
        assert re.search(r"no part .*LSTM", str(error))  # noqa: PT017 - torch 2.15 compiles the layers after it
    else:
        assert len(graphs_compiled) > before
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    with pytest.raises(NotHereError, match="unset TORCH_COMPILE_DISABLE=1"):
        prepare(work)


def test_compiled_code_may_draw_other_random_numbers_for_dropout(make_case):
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    work = compile_work(make_case, model)

    def draws_its_own(index):
        torch.rand(1)
        return work.step(index)

    assert guards.graph_error(work, draws_its_own) == 0.0
    assert all(module.training for module in work.model.modules())


@pytest.mark.parametrize(
    ("layers", "compiled"),
    [
        ([nn.Linear(8, 4)], 1),
        ([nn.Linear(8, 4), nn.BatchNorm1d(4)], 1),
        ([nn.Linear(8, 4), nn.Dropout(0.5)], 2),
    ],
    ids=["plain", "batch norm", "dropout"],
)
def test_only_a_model_with_dropout_is_compiled_a_second_time_for_the_check(
    make_case, graphs_compiled, layers, compiled
):
    """The check turns dropout off, which takes another compilation; the first one stays valid."""
    work = compile_work(make_case, nn.Sequential(*layers))
    advance = prepare(work)
    assert len(graphs_compiled) == 1
    assert guards.graph_error(work, advance) < 1e-6
    assert len(graphs_compiled) == compiled
    for index in range(3):
        advance(index)
    assert len(graphs_compiled) == compiled


# --- the start of the child ---------------------------------------------------------------------------------


def test_measuring_modules_import_on_a_torch_without_selective_checkpointing():
    """Torch 2.4 has neither name; only a case that requests selective checkpointing may need them."""
    lacking = (
        "import torch.utils.checkpoint as module\n"
        "for name in ('CheckpointPolicy', 'create_selective_checkpoint_contexts'):\n"
        "    vars(module).pop(name, None)\n"
        "import gpubench.measure.worker, gpubench.profile.trace\n"
    )
    done = forked_child.run([sys.executable, "-c", lacking], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr


class Line:
    """The child's pipe."""

    def __init__(self):
        self.sent = []
        self.stop = SimpleNamespace(is_set=lambda: False)

    def send(self, message):
        self.sent.append(message)


def test_the_child_checks_its_device_and_passes_on_its_findings(cpu, monkeypatch):
    from gpubench.errors import NoDeviceError
    from gpubench.measure import step
    from gpubench.models import Finding

    odd = (Finding(kind=FindingKind.UUID_ALL_ZEROS),)
    line, setup = Line(), Setup(device=cpu, budget=BUDGET, seed=0)
    monkeypatch.setattr(step, "check_device", lambda profile: odd)
    worker.open_context(setup, line)
    (ready,) = (m for m in line.sent if isinstance(m, Ready))
    assert ready.findings == odd

    def another(profile):
        raise NoDeviceError("CUDA opened another GPU")

    monkeypatch.setattr(step, "check_device", another)
    with pytest.raises(NoDeviceError, match="another GPU"):
        worker.open_context(setup, Line())


def test_inference_at_batch_one_keeps_the_time_of_each_pass(measured):
    done, _ = measured(task=TaskKind.INFER)
    assert done.launch.latency_s == ()
    assert done.launch.fused is None
    assert done.launch.parameters_moved is None
    single, _ = measured(task=TaskKind.INFER, batch_size=1)
    assert single.launch.latency_s == pytest.approx((STEP_S,) * 39)


@pytest.mark.parametrize(
    ("ticks", "found"),
    [((10, 1), set()), ((60, 0), {FindingKind.HOST_BUSY}), ((0, 3), {FindingKind.HOST_BUSY})],
)
def test_the_host_load_of_others_is_stored_with_the_case_and_judged(
    measured, monkeypatch, tmp_path, ticks, found
):
    """The counters advance with the steps; the load is the share of the ticks that belong to others."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(launch.os, "times", lambda: (0.0,) * 5)
    steps, (busy_ticks, steal_ticks) = 0, ticks

    def tell(busy: int, steal: int, idle: int) -> None:
        (tmp_path / "stat").write_text(f"cpu {busy} 0 0 {idle} 0 0 0 {steal} 0 0\n")

    def act() -> None:
        nonlocal steps
        steps += 1
        tell(steps * busy_ticks, steps * steal_ticks, steps * (100 - busy_ticks - steal_ticks))

    tell(0, 0, 0)
    done, desk = measured(act)
    assert done.launch.host_load == pytest.approx(busy_ticks / 100)
    assert done.launch.host_steal == pytest.approx(steal_ticks / 100)
    assert {f.kind for f in judged(done, desk.case).findings} & {FindingKind.HOST_BUSY} == found
