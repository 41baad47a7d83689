"""What a run takes by the plan, and by a rehearsal: the product's own rules on a scripted clock.

The steps are those that were read on an H200; the phases around them, the heat and the power those that an
H100 and an H200 noted in whole runs.
"""

from __future__ import annotations

import math
from datetime import datetime
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scripted import GPU_BOUND, HOST_BOUND, Factors, StepTimes, Wall, h200_step_times

from gpubench.measure.budget import QUICK, within
from gpubench.measure.estimate import _probes, aim_s, estimate_s
from gpubench.measure.loop import Clock, Loop, Series, time_rounds, warm_up
from gpubench.measure.plan import Plan, Unit, plan
from gpubench.measure.request import RunRequest
from gpubench.models import DeviceProfile, Execution, Finding, FindingKind, Run, TelemetrySample
from gpubench.profile import load_profiles

H200 = DeviceProfile(
    backend="cuda",
    name="NVIDIA H200",
    gpu_key="nvidia-h200-sxm-141gb",
    compute_capability=(9, 0),
    memory_bytes=150_754_820_096,
)
T4 = msgspec.structs.replace(
    H200, name="Tesla T4", gpu_key="nvidia-tesla-t4-16gb", compute_capability=(7, 5), memory_bytes=16 << 30
)
PROFILES = load_profiles()
READ = h200_step_times()
RECORDED = (
    Path(__file__)
    .parents[2]
    .joinpath("results/example/runs/nvidia-h100-sxm-80gb/20261122t163414z-7514fa86.json")
)

PROCESS_S = 4.9
"""Start, import of torch and a context: the middle of ten processes."""
FIRST_S = 5.0
"""In each process, with its first optimizer: the middle of nine."""
AROUND_S = 2.0
"""The parent looks at the device, before and after."""
PROBE_S = 0.4
"""A micro-benchmark, in the mean of the 18 that an H100 made in 7.2 s."""
COMPILE_S = 21.0
SEARCH_S = {("vgg16", "fp32"): 13.6, ("vgg16", "tf32"): 6.9, ("resnet50", "fp32"): 4.3}
LARGE_SEARCH_S = {"vgg16": 5.0, "resnet50": 11.5}
SMALL_SEARCH_S = 0.5
"""cuDNN's trials in the first step: of VGG16 and ResNet-50 by precision, else of either at AMP."""
BUILD_PARAMETERS_PER_S = 1.5e8
MOVE_S = 0.3
PROFILER_S = 0.3
CPU_REFERENCE_FLOPS_PER_S = 5e11


class Heat:
    """The temperature of a card of 700 W: an H100's of 46 degrees that rose to 57 in 48 s at 610 W."""

    IDLE_W, TIME_CONSTANT_S, AT_NO_POWER_C, C_PER_W = 128.0, 21.0, 35.2, 0.0376

    def __init__(self) -> None:
        self.celsius = self.AT_NO_POWER_C + self.C_PER_W * self.IDLE_W

    def spend(self, seconds: float, power_w: float) -> None:
        end_c = self.AT_NO_POWER_C + self.C_PER_W * power_w
        self.celsius = end_c + (self.celsius - end_c) * math.exp(-seconds / self.TIME_CONSTANT_S)


def power_w(unit: Unit, *, host_bound: bool) -> float:
    """Return what a row draws, read on an H100: large networks, graphs of small ones, and eager rows."""
    if not host_bound:
        return 600.0
    return 310.0 if unit.planned.case.execution is Execution.GRAPH else 190.0


class Rehearsal:
    """A plan carried out on a clock that moves by what each phase takes.

    Attributes:
        findings: What the rules said of each unit.
        parts: What each phase took in all [s].
    """

    def __init__(
        self,
        made: Plan,
        steps: dict[tuple[str, str], StepTimes],
        seed: int = 0,
        noise: tuple[float, float] | None = None,
    ) -> None:
        self.plan = made
        self.noise = noise
        self.steps = steps
        self.wall = Wall()
        self.began = self.wall.now
        self.rng = np.random.default_rng(seed)
        self.findings: dict[Unit, list[Finding]] = {}
        self.parts: dict[str, float] = {}
        self.heat = Heat()

    @property
    def took_s(self) -> float:
        return self.wall.now - self.began

    def spend(self, part: str, seconds: float) -> None:
        self.wall.advance(seconds)
        self.heat.spend(seconds, Heat.IDLE_W)
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    def run(self) -> Rehearsal:
        units, whole_s = self.plan.units(), aim_s(self.plan)
        self.spend("looking", AROUND_S)
        before, task, searched = None, None, set()
        for number, unit in enumerate(units):
            if unit.group != before:
                self.spend("processes", PROCESS_S + FIRST_S)
                before, task, searched = unit.group, None, set()
            if number == 0:
                self.spend("micro", PROBE_S * len(_probes(self.plan)))
            time_s = None
            if whole_s is not None:  # as the launcher shares the time out
                time_s = max(0.0, self.began + whole_s - self.wall.now) / (len(units) - number)
            of_unit = (unit.planned.reference, unit.planned.case.batch_size)
            network = (unit.planned.case.workload, unit.planned.case.precision)
            self.case(unit, time_s, new_task=task != of_unit, new_search=network not in searched)
            searched.add(network)
            task = of_unit
        return self

    def case(self, unit: Unit, time_s: float | None, *, new_task: bool, new_search: bool) -> None:
        case, began = unit.planned.case, self.wall.now
        profile, times = PROFILES[case.workload], self.steps[case.workload, case.precision]
        step_s = times.eager_s if case.execution is Execution.EAGER else times.graph_s
        if new_task:
            self.spend("build", profile.parameters / BUILD_PARAMETERS_PER_S)
        if new_search and profile.convolves(case.task):
            searched_s = SEARCH_S.get((case.workload, case.precision), LARGE_SEARCH_S.get(case.workload))
            self.spend("search", max(searched_s or SMALL_SEARCH_S, 20 * times.eager_s))
        self.spend("check", MOVE_S + 4 * profile.forward_flops_per_sample / CPU_REFERENCE_FLOPS_PER_S)
        longest_s = 0.4 * self.plan.budget.warmup_most_s + 2 * times.eager_s
        self.spend("first steps", min(self.plan.budget.curve_steps * times.eager_s, longest_s))
        prepared = {Execution.EAGER: 1, Execution.GRAPH: 12, Execution.COMPILE: 5}[case.execution]
        self.spend("preparation", prepared * times.eager_s)
        if case.execution is Execution.COMPILE:
            self.spend("compile", COMPILE_S)
        series = self.rounds(unit, began, time_s, step_s, host_bound=times.host_bound)
        if self.plan.budget.case_s is not None and case.execution is not Execution.EAGER:
            return
        looked = series.steps_per_round + 3 + 1 + 2 * min(10, max(3, round(0.1 / step_s)))
        self.spend("second look", PROFILER_S + looked * step_s)

    def rounds(
        self, unit: Unit, began: float, time_s: float | None, step_s: float, *, host_bound: bool
    ) -> Series:
        eager = unit.planned.case.execution is Execution.EAGER
        budget, wall, series = self.plan.budget, self.wall, Series()
        spread, phi = self.noise or (HOST_BOUND if eager and host_bound else GPU_BOUND)
        drawn_w = power_w(unit, host_bound=host_bound)
        noise = Factors(spread=spread, phi=phi, round_s=budget.round_s, rng=self.rng)

        def left(round_s: float = 0.0):
            if time_s is None:
                return budget
            return within(budget, began + time_s - wall.now, round_s)

        def advance(index: int) -> int:
            took_s = step_s * noise.at(wall.now - began)
            wall.advance(took_s)
            self.heat.spend(took_s, drawn_w)
            return index

        def samples() -> list[TelemetrySample]:
            return [TelemetrySample(t_s=wall.now, temperature_c=round(self.heat.celsius))]

        clock = Clock(now_ns=wall.now_ns)
        loop = Loop(advance=advance, edge_loss=lambda *_: 1.0, clock=clock, batches=4, samples=samples)
        start = wall.now
        warm_up(loop, left(), series)
        warm = wall.now
        time_rounds(loop, left(loop.step_s * series.steps_per_round), series)
        for part, seconds in (("warm-up", warm - start), ("timed", wall.now - warm)):
            self.parts[part] = self.parts.get(part, 0.0) + seconds
        self.findings[unit] = series.findings
        return series


def planned(device: DeviceProfile = H200, **asked) -> Plan:
    return plan(RunRequest(micro="also", **asked), device, PROFILES)


def kinds(rehearsal: Rehearsal, execution: Execution) -> set[FindingKind]:
    return {
        finding.kind
        for unit, findings in rehearsal.findings.items()
        for finding in findings
        if unit.planned.case.execution is execution
    }


@pytest.mark.parametrize("seed", range(6))
def test_a_quick_run_on_an_h200_is_over_in_two_minutes(seed):
    made = planned(budget="quick", seed=seed)
    rehearsal = Rehearsal(made, READ, seed).run()
    expected_s, most_s = estimate_s(made, H200)
    assert len(rehearsal.findings) == len(_probes(made)) == 18
    assert len({unit.group for unit in rehearsal.findings}) == 1
    assert rehearsal.took_s < 120
    assert expected_s < 120
    assert rehearsal.took_s == pytest.approx(expected_s, rel=0.2)
    assert rehearsal.took_s < most_s
    assert kinds(rehearsal, Execution.GRAPH) <= {FindingKind.DRIFTING}  # of noise without drift, 1 to 3 %


def test_the_quick_run_that_an_h100_made_is_now_over_in_two_minutes_as_announced():
    """It took 135 s in two processes, with 2 s of warm-up a case: its own phases, less what is no longer done."""
    run = msgspec.json.decode(RECORDED.read_bytes(), type=Run)
    began, ended = (datetime.fromisoformat(moment) for moment in (run.started_at, run.finished_at))
    took_s = (ended - began).total_seconds()
    launches = [m.launches[0] for m in run.measurements]
    (second,) = [x for x in launches if "import" in x.cold_s and x.sequence]
    usual_s = max(
        m.launches[0].cold_s["build"]
        for m in run.measurements
        if m.case.workload == "lstm" and "import" not in m.launches[0].cold_s
    )
    saved_s = second.cold_s["import"] + second.cold_s["context"] + second.cold_s["build"] - usual_s
    for launch in launches:
        warm_s = [*accumulate(done.wall_s for done in launch.warmup)]
        saved_s += warm_s[-1] - next(at for at in warm_s if at >= QUICK.warmup_least_s)
    made = planned(run.device, budget="quick")
    assert took_s == 135
    assert took_s - saved_s < 115
    assert estimate_s(made, run.device)[0] == pytest.approx(took_s - saved_s, rel=0.1)
    assert aim_s(made) == pytest.approx(took_s - saved_s, rel=0.1)


def test_the_default_run_on_an_h200_takes_what_is_announced():
    """What is given up is eager, and says what it would take; what heats warms up until the heat is spent."""
    made = planned()
    rehearsal = Rehearsal(made, READ).run()
    expected_s, most_s = estimate_s(made, H200)
    assert len(rehearsal.findings) == 54
    assert rehearsal.took_s == pytest.approx(expected_s, rel=0.2)
    assert rehearsal.took_s < min(36 * 60, most_s)
    assert kinds(rehearsal, Execution.GRAPH) == set()
    unsure = [
        f for found in rehearsal.findings.values() for f in found if f.kind is FindingKind.NOT_CONVERGED
    ]
    assert unsure
    assert all("which takes about" in finding.limit for finding in unsure)


def test_a_run_to_be_published_takes_what_is_announced():
    made = planned(budget="publish", workloads=("cnn", "vgg16"))
    rehearsal = Rehearsal(made, READ).run()
    assert len(rehearsal.findings) == 5 * 18
    assert rehearsal.took_s == pytest.approx(estimate_s(made, H200)[0], rel=0.2)
    assert rehearsal.parts["compile"] == 30 * COMPILE_S


@pytest.mark.parametrize(
    ("budget", "names"),
    [
        ("quick", tuple(dict.fromkeys(name for name, _ in READ))),
        ("default", ("bert_base", "lstm_large", "resnet50", "transformer", "vgg16_transfer")),
        pytest.param("default", tuple(dict.fromkeys(name for name, _ in READ)), marks=pytest.mark.slow),
    ],
    ids=["all, quick", "large ones", "all"],
)
def test_a_run_of_every_network_takes_what_is_announced(budget, names):
    """Those that were read: from steps of half a millisecond to 190."""
    made = planned(budget=budget, workloads=names)
    rehearsal = Rehearsal(made, READ).run()
    expected_s, most_s = estimate_s(made, H200)
    assert rehearsal.took_s == pytest.approx(expected_s, rel=0.2)
    assert rehearsal.took_s < most_s


@pytest.mark.parametrize("budget", ["quick", "default"])
def test_a_slow_card_is_announced_by_its_own_peak(budget):
    """Steps twelve times as long, as the peaks of the two cards at fp32 and fp16 have it."""
    made = planned(T4, budget=budget)
    rehearsal = Rehearsal(made, {key: steps.slower(12) for key, steps in READ.items()}).run()
    expected_s, most_s = estimate_s(made, T4)
    assert rehearsal.took_s == pytest.approx(expected_s, rel=0.3)
    assert rehearsal.took_s < most_s


@pytest.mark.parametrize(("budget", "names"), [("quick", ("cnn", "lstm", "vgg16")), ("default", ("vgg16",))])
def test_no_run_takes_more_than_the_most(budget, names):
    """Steps that take two and a half times as long as on an H200, all of them restless."""
    made = planned(budget=budget, workloads=names)
    restless = Rehearsal(made, {key: steps.slower(2.5) for key, steps in READ.items()}, noise=(0.012, 0.6))
    calm = Rehearsal(made, READ).run()
    assert calm.took_s < restless.run().took_s < estimate_s(made, H200)[1]
