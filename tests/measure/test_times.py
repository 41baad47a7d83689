"""The duration of a run, rehearsed with the product's own plan and rules on a scripted clock.

The steps were measured on an H200. The phases around them take the longest time that an
H100 or an H200 recorded in its check; heat and power are from whole runs.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scripted import GPU_BOUND, HOST_BOUND, Factors, StepTimes, Wall, h200_step_times

from gpubench.measure.budget import MICRO_MOST_S
from gpubench.measure.loop import Clock, Loop, Series, time_rounds, warm_up
from gpubench.measure.plan import Plan, Unit, plan
from gpubench.measure.request import RunRequest
from gpubench.models import DeviceProfile, Execution, Finding, FindingKind, TelemetrySample
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
DATA = Path(__file__).parents[1] / "data"
CONFIRMED = [json.loads(file.read_bytes()) for file in sorted((DATA / "confirmed").glob("*.json"))]
"""What `gpubench check --cuda` recorded on an H100 and an H200: cases, and a quick run."""


@cache
def recorded_s(phase: str, workload: str | None = None, precision: str | None = None) -> float:
    """Longest time of a phase on either card, for a workload at a precision [s]; 0 if not recorded."""
    rows = [
        (row["case"], times)
        for check in CONFIRMED
        for row in (*check["cases"], *check["quick"]["measurements"])
        for times in (row.get("cold_s") or row["launches"][0]["cold_s"],)
    ]
    of_both = [
        times.get(phase, 0.0)
        for case, times in rows
        if workload in {None, case["workload"]} and precision in {None, case["precision"]}
    ]
    return max(of_both, default=0.0)


PROCESS_S = recorded_s("import") + recorded_s("context")
FIRST_S = recorded_s("build", "cnn")
"""Time to build the first model of a process, with its first optimizer."""
AROUND_S = 2.0
"""Time that the parent takes to read the device before and after a process."""
COMPILE_S = recorded_s("compile")
BUILD_PARAMETERS_PER_S = 1.5e8
MOVE_S = 0.3
PROFILER_S = 0.3
CPU_REFERENCE_FLOPS_PER_S = 5e11


class Heat:
    """The temperature of a 700 W card: that of an H100 rose from 46 to 57 degrees in 48 s at 610 W."""

    IDLE_W, TIME_CONSTANT_S, AT_NO_POWER_C, C_PER_W = 128.0, 21.0, 35.2, 0.0376

    def __init__(self) -> None:
        self.celsius = self.AT_NO_POWER_C + self.C_PER_W * self.IDLE_W

    def spend(self, seconds: float, power_w: float) -> None:
        end_c = self.AT_NO_POWER_C + self.C_PER_W * power_w
        self.celsius = end_c + (self.celsius - end_c) * math.exp(-seconds / self.TIME_CONSTANT_S)


def power_w(unit: Unit, *, host_bound: bool) -> float:
    """Return the power draw of a row, measured on an H100: large networks, graphs of small ones, and eager rows."""
    if not host_bound:
        return 600.0
    return 310.0 if unit.planned.case.execution is Execution.GRAPH else 190.0


class Rehearsal:
    """A plan executed on a clock that each phase advances by its duration.

    Attributes:
        findings: The findings of the rules on each unit.
        parts: Total duration of each phase [s].
        first_s: Time of the first figure [s].
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

    @property
    def rounds_s(self) -> float:
        return self.parts["warm-up"] + self.parts["timed"]

    def spend(self, part: str, seconds: float) -> None:
        self.wall.advance(seconds)
        self.heat.spend(seconds, Heat.IDLE_W)
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    def run(self) -> Rehearsal:
        self.spend("looking", AROUND_S)
        before, task, searched = None, None, set()
        for number, unit in enumerate(self.plan.units()):
            if unit.group != before:
                self.spend("processes", PROCESS_S + FIRST_S)
                before, task, searched = unit.group, None, set()
            of_unit = (unit.planned.reference, unit.planned.case.batch_size)
            network = (unit.planned.case.workload, unit.planned.case.precision)
            self.case(unit, new_task=task != of_unit, new_search=network not in searched)
            searched.add(network)
            task = of_unit
            if number == 0:
                self.first_s = self.took_s
                self.spend("micro", MICRO_MOST_S)
        return self

    def case(self, unit: Unit, *, new_task: bool, new_search: bool) -> None:
        case = unit.planned.case
        profile, times = PROFILES[case.workload], self.steps[case.workload, case.precision]
        step_s = times.eager_s if case.execution is Execution.EAGER else times.graph_s
        if new_task:
            self.spend("build", profile.parameters / BUILD_PARAMETERS_PER_S)
        if new_search and profile.convolves(case.task):
            searched_s = recorded_s("first_step", case.workload, case.precision)  # cuDNN tries its algorithms
            self.spend("search", max(searched_s, 20 * times.eager_s))
        self.spend("check", MOVE_S + 4 * profile.forward_flops_per_sample / CPU_REFERENCE_FLOPS_PER_S)
        longest_s = 0.4 * self.plan.budget.warmup_most_s + 2 * times.eager_s
        self.spend("first steps", min(self.plan.budget.curve_steps * times.eager_s, longest_s))
        prepared = {Execution.EAGER: 1, Execution.GRAPH: 12, Execution.COMPILE: 5}[case.execution]
        self.spend("preparation", prepared * times.eager_s)
        if case.execution is Execution.COMPILE:
            self.spend("compile", COMPILE_S)
        series = self.rounds(unit, step_s, host_bound=times.host_bound)
        if unit.launch or (self.plan.budget.in_haste and case.execution is not Execution.EAGER):
            return
        looked = series.steps_per_round + 3 + 1 + 2 * min(10, max(3, round(0.1 / step_s)))
        self.spend("second look", PROFILER_S + looked * step_s)

    def rounds(self, unit: Unit, step_s: float, *, host_bound: bool) -> Series:
        eager = unit.planned.case.execution is Execution.EAGER
        budget, wall, series = self.plan.budget, self.wall, Series()
        spread, phi = self.noise or (HOST_BOUND if eager and host_bound else GPU_BOUND)
        drawn_w = power_w(unit, host_bound=host_bound)
        noise = Factors(spread=spread, phi=phi, round_s=budget.round_s, rng=self.rng)

        began = heated = wall.now

        def advance(index: int) -> int:
            wall.advance(step_s * noise.at(wall.now - began))
            return index

        def samples() -> list[TelemetrySample]:
            nonlocal heated
            self.heat.spend(wall.now - heated, drawn_w)  # of all steps since, which are millions
            heated = wall.now
            return [TelemetrySample(t_s=wall.now, temperature_c=round(self.heat.celsius))]

        clock = Clock(now_ns=wall.now_ns)
        loop = Loop(advance=advance, edge_loss=lambda *_: 1.0, clock=clock, batches=4, samples=samples)
        start = wall.now
        warm_up(loop, budget, series)
        warm = wall.now
        time_rounds(loop, budget, series)
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


H100 = msgspec.structs.replace(
    H200, name="NVIDIA H100 80GB HBM3", gpu_key="nvidia-h100-sxm-80gb", memory_bytes=85_520_809_984
)
H100_STEPS = {key: steps.slower(1.11) for key, steps in READ.items()}
"""VGG16 at AMP took 22.1 ms on an H100 and 19.9 ms on an H200, in their own quick runs."""


@pytest.mark.parametrize("seed", range(6))
def test_the_default_run_of_an_h100_takes_four_minutes_and_its_first_figure_half_a_minute(seed):
    rehearsal = Rehearsal(planned(H100, seed=seed), H100_STEPS, seed).run()
    assert len(rehearsal.findings) == 3 * 7
    assert rehearsal.took_s < 240
    assert rehearsal.first_s < 30
    assert kinds(rehearsal, Execution.GRAPH) <= {FindingKind.DRIFTING}  # 1 to 3 % false alarms


def test_a_quick_run_is_over_in_a_minute_and_a_half():
    rehearsal = Rehearsal(planned(budget="quick"), READ).run()
    assert len(rehearsal.findings) == 7
    assert rehearsal.took_s < 90


def test_a_compiled_case_is_compiled_in_every_launch():
    made = planned(workloads=("resnet50", "bert_base"), executions=("compile",), precisions=("amp",))
    rehearsal = Rehearsal(made, READ).run()
    assert rehearsal.parts["compile"] == pytest.approx(3 * 2 * COMPILE_S)


@pytest.mark.parametrize("budget", ["quick", "default", pytest.param("publish", marks=pytest.mark.slow)])
def test_no_rounds_of_short_steps_pass_the_sum_of_their_limits(budget):
    """Steps that take two and a half times as long as on an H200, all of them noisy."""
    made = planned(budget=budget, workloads=("cnn", "lstm", "vgg16"))
    slower = {key: steps.slower(2.5) for key, steps in READ.items()}
    calm, restless = Rehearsal(made, READ).run(), Rehearsal(made, slower, noise=(0.012, 0.6)).run()
    assert calm.rounds_s < restless.rounds_s <= made.most_s()


def test_slow_card_still_times_ten_steps():
    """A T4 is twelve times as slow as an H200, by the peaks of the two cards."""
    made = planned(T4, workloads=("vgg16",), precisions=("fp32",), executions=("eager",))
    slow = Rehearsal(made, {key: steps.slower(12) for key, steps in READ.items()}).run()
    assert READ["vgg16", "fp32"].slower(12).eager_s > 0.4
    assert not any(slow.findings.values())
