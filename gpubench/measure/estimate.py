"""How long a plan takes: what to expect, and the most, before anything is measured.

The length of a step follows from its FLOPs and the peak of the device, or from the host's pace where that is
slower; the length of a case mostly from the limits of its budget. Figures of phases are those that an H100
and an H200 noted in whole runs on machines of 16 cores, those without a source hand-written loops' on an H200
and this package's own on a CPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise

from gpubench.measure.budget import (
    LATENCY_MOST_S,
    LATENCY_PASSES,
    LEAST_REPETITIONS,
    LEAST_ROUNDS,
    MICRO_WARM_S,
    MOST_REPETITION_S,
    PROFILED_S,
    PROFILED_STEPS,
    REFERENCE_SAMPLES,
    Budget,
    within,
)
from gpubench.measure.peaks import CPU_GEMM_SIZES, GEMM_SIZES, gemm_precisions, peak_flops_per_s
from gpubench.measure.plan import Plan, PlannedCase, Unit
from gpubench.measure.stopping import GIVE_UP_AFTER, WINDOWS
from gpubench.models import DeviceProfile, Execution, Precision, TaskKind
from gpubench.units import Seconds

PROCESS_START_S = 5.0
CPU_PROCESS_START_S = 3.0
"""Importing torch and, on a GPU, making a context: 4.0 to 5.9 s in ten processes of an H100 and an H200."""
FIRST_CASE_S = 5.0
"""More than the building of its model, in the first case of a process on a GPU: its optimizer is the first,
and loads torch's compiler. 4.1 to 6.0 s in nine processes of an H100 and an H200."""
LOOKING_S = 2.0
"""Looking at the device before the first case and after the last, twice where it seems to be in use."""

CASE_START_S = 0.3
"""Moving a model to the device, its checks but the reference, freeing its memory."""
PARAMETERS_PER_S = 1e8
"""Drawing the weights of a model, and copying them."""
HOST_FLOPS_PER_S = 3e11
CPU_CORE_FLOPS_PER_S = 3e10
"""What one core does in a training step: a third of its peak with vectors of eight."""
FORWARD_SHARE = 1 / 3
"""Of the FLOPs of a training step: the backward pass has two products for each of the forward pass."""
PLAIN_FLOPS_PER_S, TENSOR_FLOPS_PER_S = 5e12, 2e13
"""Of a GPU that the table of datasheets does not have, outside and on its tensor cores."""
PLAIN_SHARE, TENSOR_SHARE = 0.8, 0.3
"""Of the peak, likewise; read on an H200: VGG16 0.91 at fp32 and 0.30 to 0.33 else, ResNet-50 0.34 and 0.10
to 0.13."""
HOST_STEP_S = 1.5e-3
OPERATOR_S = 2.5e-5
"""The host's time for an eager step and for each operator in it: H200, 2.1 ms for the 34 of cnn, 31 ms for
the 1445 of stacked_lstm."""
KERNEL_S = 3e-6
"""A kernel of a graph: H200, 4.7 ms for the 1445 of stacked_lstm."""
SEARCH_STEPS = 20
SEARCH_S = 0.5
LARGE_SEARCH_S = 8.0
"""cuDNN tries its algorithms for each convolution in the first step of a precision in a process, and loads
them. The slowest ones set the time, not the step: VGG16 on an H100 13.6 s at fp32, 6.9 at tf32, 1.4 at
amp-bf16, and 13.5 and 6 on an H200; ResNet-50 4.3 and 12; networks of small images 0.2 to 2.7."""
LARGE_SAMPLE_FLOPS = 5e9
"""Of a training step: ResNet-50 has 24 a sample, of small images the largest 0.03."""
HEATING_S = 30.0
"""What a row whose pace the GPU sets warms up beyond its least time after one that left the GPU idle: an H100
went from 46 to 57 degrees in 48 s of VGG16, with a time constant of 21 s, before it rose by less than the
limit; rows of half the power heat half as far, and settle in 15 s less."""
LOOK_S = 0.3
LOOK_STEPS = 4
"""After the timed part: the profiler, a round, a few steps, and twice those that are profiled."""
PROBE_START_S = 0.12
"""Operands of a micro-benchmark: to pin 256 MiB takes 0.1 s."""
OTHER_PROBES = 7
CPU_OTHER_PROBES = 2
"""Copies, transfers and launches."""
LEAST_ROUND_S = 0.1
"""Of the shortest measurement."""
MOST_SLOWDOWN = 3.0
"""How much slower than expected a step, or anything else that the budget does not limit, may turn out."""
CPU_ROUNDS_SHARE = 0.6
"""Of the longest timed part: other programs spread the times of a CPU, and some rows are given up."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a case runs: a step in its execution, the same eagerly, and who sets the pace."""

    step_s: Seconds
    eager_s: Seconds
    host_bound: bool


def estimate_s(plan: Plan, device: DeviceProfile) -> tuple[Seconds, Seconds]:
    """Return the time to expect and the most that what is left of a plan takes on a device [s]."""
    typical = LOOKING_S + start_s(plan)
    slowest_probe_s = MICRO_WARM_S + plan.budget.micro_s + (1 + LEAST_REPETITIONS) * MOST_REPETITION_S
    most = LOOKING_S + MOST_SLOWDOWN * start_s(plan) + len(_probes(plan)) * slowest_probe_s
    before: Unit | None = None
    searched: set[object] = set()
    hot = False
    for unit in plan.units():
        case = unit.planned.case
        new_process = before is None or before.group != unit.group
        new_task = new_process or before is None or _task(before) != _task(unit)
        searched = set() if new_process else searched
        search = (_task(unit), case.precision)
        new = {"new_task": new_task, "new_search": search not in searched}
        alone_s = FIRST_CASE_S if new_process and not plan.on_cpu else 0.0
        heats = not pace(unit.planned, device).host_bound
        if heats and not hot and plan.budget.judge_temperature and not plan.on_cpu:
            typical += HEATING_S
        hot = heats
        typical += alone_s + case_s(unit.planned, plan.budget, device, **new)
        most += MOST_SLOWDOWN * alone_s + most_case_s(unit.planned, plan.budget, device, **new)
        searched.add(search)
        before = unit
    limit = plan.time_limit_s
    return (typical, most) if limit is None else (min(typical, limit), min(most, limit))


def start_s(plan: Plan) -> Seconds:
    """Return what a plan takes beside its cases [s]: starting processes, micro-benchmarks."""
    groups = [unit.group for unit in plan.units()]
    of_micro = min(len(plan.micro_groups()), 1 if plan.shares() else 2)
    processes = max(1, of_micro, sum(a != b for a, b in pairwise([None, *groups])))
    probe_s = PROBE_START_S + MICRO_WARM_S + plan.budget.micro_s / 2
    start = CPU_PROCESS_START_S if plan.on_cpu else PROCESS_START_S
    return processes * start + len(_probes(plan)) * probe_s


def aim_s(plan: Plan) -> Seconds | None:
    """Return when a run in haste should be over [s]: the launcher shares the time out over its cases.

    ``--quick`` of three workloads at three precisions, eager and graph, is to end within two minutes on a
    fast card: a process of 5 s, 18 probes of 0.4 s and 18 cases of 5.4 s are 110 s, which leaves 10 s to
    look at the device before and after. In 5.4 s a case starts, warms up for 1.2 s and is timed for 1 to 2.
    None where the budget has all the time that its parts take.
    """
    if plan.budget.case_s is None:
        return None
    units = plan.units()
    prepared_s = sum(unit.planned.case.execution.facts.prepared_s for unit in units)
    return start_s(plan) + len(units) * plan.budget.case_s + prepared_s


def case_s(
    planned: PlannedCase,
    budget: Budget,
    device: DeviceProfile,
    *,
    new_task: bool = True,
    new_search: bool = True,
) -> Seconds:
    """Return the time to expect of one case in one launch [s].

    Args:
        planned: The case.
        budget: Its limits.
        device: Where it runs.
        new_task: Whether its model has to be built; the executions of a case share one.
        new_search: Whether cuDNN has yet to try its algorithms for it, once a precision and process.
    """
    found = pace(planned, device)
    on_cpu, step_s = device.is_cpu, found.step_s
    around_s = _around_s(planned, budget, found, on_cpu=on_cpu, new_task=new_task, new_search=new_search)
    # The least of the warm-up, or its windows where steps are long; in haste no longer than that leaves.
    windows_s = WINDOWS * max(budget.window_s, step_s)
    settled_s = max(budget.warmup_least_s, budget.warmup_steps * step_s, windows_s) + budget.window_s / 4
    warmup_s = min(settled_s, _in_haste(budget, step_s).warmup_most_s + step_s)
    return around_s + warmup_s + _rounds_s(budget, found, on_cpu=on_cpu)


def least_case_s(planned: PlannedCase, budget: Budget, device: DeviceProfile) -> Seconds:
    """Return what a case takes until it has any figure: all around it, and the fewest short rounds [s]."""
    found = pace(planned, device)
    around_s = _around_s(planned, budget, found, on_cpu=device.is_cpu, new_task=True, new_search=True)
    return around_s + LEAST_ROUNDS * max(LEAST_ROUND_S, found.step_s)


def most_case_s(
    planned: PlannedCase,
    budget: Budget,
    device: DeviceProfile,
    *,
    new_task: bool = True,
    new_search: bool = True,
) -> Seconds:
    """Return the most that one case takes in one launch [s]: warm-up and rounds to their limits, slow steps.

    A round or a step that has begun is finished, so that a step of half a minute passes every limit.
    """
    found = pace(planned, device)
    slow = Pace(
        step_s=MOST_SLOWDOWN * found.step_s,
        eager_s=MOST_SLOWDOWN * found.eager_s,
        host_bound=found.host_bound,
    )
    on_cpu = device.is_cpu
    around_s = _around_s(planned, budget, slow, on_cpu=on_cpu, new_task=new_task, new_search=new_search)
    fixed_s = (MOST_SLOWDOWN - 1) * CASE_START_S
    return around_s + fixed_s + budget.warmup_most_s + budget.timed_s + 2 * max(budget.round_s, slow.step_s)


def pace(planned: PlannedCase, device: DeviceProfile) -> Pace:
    """Return how fast a case runs on a device, by FLOPs and operators; what is unknown takes no time."""
    case = planned.case
    work_s = case.batch_size * (planned.flops_per_sample or 0.0) / flops_per_s(device, case.precision)
    operators = planned.operators or 0
    eager_s = max(work_s, HOST_STEP_S + OPERATOR_S * operators)
    if case.execution is Execution.GRAPH:
        return Pace(step_s=max(work_s, KERNEL_S * operators), eager_s=eager_s, host_bound=False)
    return Pace(step_s=eager_s, eager_s=eager_s, host_bound=eager_s > work_s)


def flops_per_s(device: DeviceProfile, precision: Precision) -> float:
    """Return what a device does in a training step at a precision [FLOP/s], to a factor of two or three."""
    if device.is_cpu:
        return CPU_CORE_FLOPS_PER_S * (device.core_count or os.cpu_count() or 1)
    peak = peak_flops_per_s(device, precision)
    on_tensor_cores = precision.facts.format.on_tensor_cores
    if peak is None:
        return TENSOR_FLOPS_PER_S if on_tensor_cores else PLAIN_FLOPS_PER_S
    return peak * (TENSOR_SHARE if on_tensor_cores else PLAIN_SHARE)


def search_s(planned: PlannedCase, eager_s: Seconds) -> Seconds:
    """Return what cuDNN's trials of its algorithms take in the first step of a case [s]."""
    if not planned.convolves:
        return 0.0
    is_large = (planned.flops_per_sample or 0.0) > LARGE_SAMPLE_FLOPS
    return max(LARGE_SEARCH_S if is_large else SEARCH_S, SEARCH_STEPS * eager_s)


def _around_s(
    planned: PlannedCase, budget: Budget, pace: Pace, *, on_cpu: bool, new_task: bool, new_search: bool
) -> Seconds:
    """What a case takes beside warm-up and rounds: building, checks, first steps, preparation, last look."""
    case, eager_s, step_s = planned.case, pace.eager_s, pace.step_s
    train = case.task is TaskKind.TRAIN
    forward = (planned.flops_per_sample or 0.0) * (FORWARD_SHARE if train else 1.0)
    samples = 0 if on_cpu and case.precision is Precision.FP32 else min(REFERENCE_SAMPLES, case.batch_size)
    passed_s = samples * forward / HOST_FLOPS_PER_S
    built_s = (planned.parameter_count or 0) / PARAMETERS_PER_S if new_task else 0.0
    first_s = eager_s + min(budget.curve_steps * eager_s, budget.warmup_most_s / 2 + eager_s)
    searched_s = search_s(planned, eager_s) if new_search and not on_cpu else 0.0
    facts = case.execution.facts
    prepared_s = facts.prepared_s + facts.prepared_steps * eager_s
    hurried = budget.in_haste and case.execution is not Execution.EAGER
    looked_s = 0.0
    if not (on_cpu or hurried or case.gpu_count > 1):
        least, most = PROFILED_STEPS
        profiled_s = 2 * step_s * min(most, max(least, PROFILED_S / step_s))
        looked_s = LOOK_S + max(budget.round_s, step_s) + LOOK_STEPS * step_s + profiled_s
    if case.task is TaskKind.INFER and case.batch_size == 1:
        looked_s += min(LATENCY_MOST_S, LATENCY_PASSES * eager_s)
    return CASE_START_S + built_s + passed_s + first_s + searched_s + prepared_s + looked_s


def _rounds_s(budget: Budget, pace: Pace, *, on_cpu: bool) -> Seconds:
    """The least of the timed part where a GPU sets the pace; else until the row is given up."""
    if on_cpu:
        return max(CPU_ROUNDS_SHARE * budget.timed_s, pace.step_s)
    least_s = max(budget.timed_least_s, LEAST_ROUNDS * max(budget.round_s, pace.step_s))
    if pace.host_bound:
        least_s = max(least_s, GIVE_UP_AFTER * budget.timed_least_s)
    return min(least_s, _in_haste(budget, pace.step_s).timed_s + pace.step_s)


def _in_haste(budget: Budget, step_s: Seconds) -> Budget:
    """The budget of a case that comes late in a run in haste; the budget itself where there is none."""
    return within(budget, 0.0, step_s) if budget.in_haste else budget


def _probes(plan: Plan) -> list[str]:
    """The micro-benchmarks of a plan, by name; those of a precision that the device lacks are among them."""
    groups = plan.micro_groups()
    precisions = gemm_precisions(in_haste=plan.budget.in_haste)
    names = [name for name, precision in precisions.items() if (precision is Precision.FP32) in groups]
    if plan.on_cpu:
        names = [name for name in names if precisions[name].facts.on_cpu]
    products = [name for name in names for _ in (CPU_GEMM_SIZES if plan.on_cpu else GEMM_SIZES[name])]
    others = CPU_OTHER_PROBES if plan.on_cpu else OTHER_PROBES
    return products + (["other"] * others if groups else [])


def _task(unit: Unit) -> tuple[str, int]:
    return unit.planned.reference, unit.planned.case.batch_size
