"""The cases that a check tries for a few steps: which there are, what they take, and in which order.

Every trained workload at every usual precision; a check of everything also tries whole models in bfloat16,
products in 8 bits, what is only run forward, and the large workloads. Of these, what lacks a package, room on
the card, or a second card is named, with its reason, and not tried.
"""

from __future__ import annotations

import bisect
import importlib.util
import math
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from gpubench.installing import pip_install
from gpubench.measure import capability
from gpubench.measure.budget import REFERENCE_SAMPLES
from gpubench.measure.estimate import pace
from gpubench.measure.plan import plan, planned_case
from gpubench.measure.request import RunRequest
from gpubench.models import (
    Case,
    Checkpointing,
    DeviceProfile,
    Execution,
    ParallelMode,
    Precision,
    TaskKind,
    WeightType,
    WorkloadProfile,
)
from gpubench.options import CLASSIC
from gpubench.precisions import TORCHAO
from gpubench.profile import load_profiles
from gpubench.profile.memory import MOST_BATCH, planned_peak_bytes
from gpubench.readings import h200_readings
from gpubench.specs import find_spec, load_specs
from gpubench.units import Seconds, format_bytes

CASE_S: Seconds = 0.3
"""What any case takes beside its steps and its weights."""
BUILD_S_PER_PARAMETER = 15e-9
COPY_S_PER_PARAMETER = 4e-9
"""Drawing weights on a CPU takes 2 s for VGG16; a copy of them on the host and to the device 0.6 s."""
CPU_FLOPS_PER_S = 400e9
"""Four cores beside a GPU; the reference loss of four samples is computed once a workload and process."""
WEIGHT_BYTES = 2
"""Of a weight in half precision, which a pass for one token reads once."""
TRIALS_S: Seconds = 9.0
READ_TRIALS_S = {
    ("vgg16", False): 8.5,
    ("vgg16", True): 13.5,
    ("resnet50", False): 13.0,
    ("resnet50", True): 4.5,
}
"""cuDNN tries its algorithms for the convolutions of a large network; once a precision and process.

By workload, and whether it is strict fp32, what the first step took on two cards, with what is loaded for it:
VGG16 at amp-bf16 5.8 and 8.3 s and at fp32 13.5 on both, ResNet-50 12.5 and 13.1 and at fp32 4.3 and 4.4; any
other network that is as large their mean. The same under a new head nothing, for their shapes were seen.
"""
LARGE_IMAGE = 100_000
"""Values of one image of a large network."""
COMPILED_S = {"cnn": 18.0, "vgg16": 25.0, "lstm": 0.2}
"""What is compiled, in that order, and how long that took, the first with what the compiler loads.

The first took 17.5 and 17.6 s on an H200 and an H100, the second 25 s on the H100 beside its steps: the check
of its losses compiles it once more. The last is refused up to torch 2.11, which ends its process.
"""
EXECUTIONS = (Execution.EAGER, Execution.GRAPH)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One case to be tried for a few steps."""

    case: Case
    expected_s: Seconds
    expected_bytes: float


def slowness(device: DeviceProfile) -> float:
    """Return how many times longer than on an H200 a step takes, by memory bandwidth; at least 1.

    Where the driver does not tell the bandwidth the data sheet does.
    """
    reference = load_specs()[h200_readings().gpu_key].memory_bandwidth_bytes_per_s
    spec = find_spec(device.name, device.memory_bytes) if device.name else None
    here = device.memory_bandwidth_bytes_per_s or (spec and spec.memory_bandwidth_bytes_per_s)
    return max(1.0, reference / here) if here and reference else 1.0


def is_strict(case: Case) -> bool:
    """Whether a case belongs into the process of strict fp32."""
    return case.precision is Precision.FP32


def part_of(case: Case) -> str:
    """Name the part in which a case is tried."""
    if case.execution is Execution.COMPILE:
        return "compile"
    return "fp32" if is_strict(case) else "cases"


def case_of(
    profile: WorkloadProfile, precision: Precision, execution: Execution, batch_size: int | None = None
) -> Case:
    """Return the training case of a workload, at its main batch unless another is given."""
    return Case(
        workload=profile.name,
        workload_version=profile.version,
        task=TaskKind.TRAIN,
        precision=precision,
        execution=execution,
        memory_format=profile.memory_format_at(precision),
        batch_size=batch_size or profile.main_batch,
        sample_unit=profile.sample_unit,
    )


def batch_of(case: Case, peak_bytes: float) -> int:
    """Return the largest batch of a case whose peak the memory model puts within so much; at least 1."""
    profile = load_profiles()[case.workload]

    def peak_of(batch: int) -> float:
        return planned_peak_bytes(profile, msgspec.structs.replace(case, batch_size=batch))

    return max(1, bisect.bisect_right(range(1, MOST_BATCH + 1), peak_bytes, key=peak_of))


def wanted_trials(
    device: DeviceProfile, workloads: Sequence[str], slower: float, *, full: bool
) -> tuple[tuple[Trial, ...], dict[Case, str]]:
    """What is tried if there is time, and what of it cannot be tried here, with the reason."""
    usual = tuple(_every_trial(device, workloads, slower))
    if not full:
        return usual, {}
    found = [each for each in other_cases(device) if not workloads or each[0].workload in workloads]
    others = (trial_of(case, slower) for case, why_not in found if why_not is None)
    return (*usual, *others), {case: why_not for case, why_not in found if why_not is not None}


def _every_trial(device: DeviceProfile, workloads: Sequence[str], slower: float) -> Iterator[Trial]:
    """Every trained workload at every precision, the most telling cases first.

    Graphs of every precision come before eager rows: a graph's trial does as many eager steps as it replays.
    """
    amp = capability.best_amp(device)
    trained = [
        name
        for name, profile in load_profiles().items()
        if TaskKind.TRAIN in profile.tasks and profile.is_classic and (not workloads or name in workloads)
    ]
    names = sorted(trained, key=lambda name: name not in CLASSIC)
    here = [p for p in Precision if p.is_usual and capability.why_no_precision(p, device) is None]
    others = [p for p in here if p not in {amp, Precision.FP32}]
    for execution, precisions in product((Execution.GRAPH, Execution.EAGER), ((amp, Precision.FP32), others)):
        for name, precision in product(names, precisions):
            yield trial_of(case_of(load_profiles()[name], precision, execution), slower)


def compiled_trials(amp: Precision, slower: float) -> tuple[Trial, ...]:
    """What is tried under torch.compile."""
    profiles = load_profiles()
    cases = (case_of(profiles[name], amp, Execution.COMPILE) for name in COMPILED_S)
    return tuple(trial_of(case, slower) for case in cases)


# --- besides the usual ones ---------------------------------------------------------------------------


def other_cases(device: DeviceProfile) -> Iterator[tuple[Case, str | None]]:
    """Give each case that a card has, and why it is not tried here; None where it is."""
    for profile in load_profiles().values():
        if not profile.is_run:
            continue
        for task in profile.tasks:
            precisions = tuple(p for p in Precision if _is_other(profile, task, p, device))
            if not precisions:
                continue
            request = RunRequest(
                workloads=(profile.name,),
                precisions=precisions,
                executions=EXECUTIONS if profile.parameters else EXECUTIONS[:1],
                task=task,
                batch_size=profile.main_batch,
                budget="quick",
                micro="none",
            )
            for planned in plan(request, device, load_profiles()).cases:
                yield planned.case, _why_not(planned.case, profile, device)


def may_be_unsupported(case: Case) -> bool:
    """Whether it hangs on the release of torch or torchao that a case is to be had at all."""
    by_others = case.precision.facts.needs is not None
    return by_others or case.weight_type is WeightType.NF4 or case.checkpointing is Checkpointing.SELECTIVE


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without doing so."""
    return importlib.util.find_spec(package) is not None


def _is_other(profile: WorkloadProfile, task: TaskKind, precision: Precision, device: DeviceProfile) -> bool:
    """Whether a precision is tried here and not among the classic workloads' usual ones."""
    refused = (
        profile.why_not_at(precision)
        or capability.why_no_precision(precision, device)
        or precision.why_not_for(task)
    )
    if refused:
        return False
    if not profile.parameters:
        return precision is Precision.FP32  # an input pipeline computes nothing at another
    if task is TaskKind.INFER and TaskKind.TRAIN in profile.tasks:
        return precision is Precision.INT8 and profile.blocks is not None
    if precision is Precision.INT8:
        return not profile.recipe.new_tokens
    is_usual_training = profile.is_classic and task is TaskKind.TRAIN and precision.is_usual
    return not is_usual_training


def _why_not(case: Case, profile: WorkloadProfile, device: DeviceProfile) -> str | None:
    """Say what is missing for a case; None where nothing is."""
    if profile.parallel_mode is ParallelMode.FSDP:
        return "a workload for several GPUs: run --gpus N measures it"
    needs = []
    if case.precision.facts.needs is not None:
        needs.append(case.precision.facts.needs)
    if case.weight_type is WeightType.NF4:
        needs.append(TORCHAO)
    if not profile.parameters:
        needs.append("kornia")
    for package in needs:
        if not is_installed(package):
            return f"{package} is not installed: {pip_install(package)}"
    needed = planned_peak_bytes(profile.at_precision(case.precision), case)
    if device.memory_bytes is not None and needed > device.memory_bytes:
        return f"it takes about {format_bytes(needed)}, and this card has {format_bytes(device.memory_bytes)}"
    return None


# --- what they take -----------------------------------------------------------------------------------


def trial_of(case: Case, slower: float) -> Trial:
    """Return the trial of a case on a card so many times slower than an H200."""
    profile = load_profiles()[case.workload].at_precision(case.precision)
    compiling_s = COMPILED_S[case.workload] if case.execution is Execution.COMPILE else 0.0
    copy_s = COPY_S_PER_PARAMETER * profile.parameters
    return Trial(
        case=case,
        expected_s=steps_take_s(case, slower) + CASE_S + copy_s + compiling_s,
        expected_bytes=planned_peak_bytes(profile, case),
    )


def steps_take_s(case: Case, slower: float) -> Seconds:
    """What the steps of a trial take; a compiled step as long as an eager one."""
    eager, prepared = case.execution.facts.tried_steps
    eager_s = step_takes_s(msgspec.structs.replace(case, execution=Execution.EAGER), slower)
    return eager * eager_s + prepared * step_takes_s(case, slower)


def step_takes_s(case: Case, slower: float) -> Seconds:
    """What a step takes; a replay is as the device does it, an eager step no shorter than the host was.

    A precision that was not read on the card of the readings takes as long as the slowest, a workload that
    was not read as long as its FLOPs and operators let expect. Of a new token all weights are read, and each
    operator is issued.
    """
    at = {s.precision: s for s in h200_readings().steps if s.workload == case.workload}
    if at:
        read = at.get(case.precision) or max(at.values(), key=lambda s: s.step_s[Execution.EAGER])
        samples = max(1.0, case.batch_size / read.batch_size)
        graph_s, eager_s = samples * read.step_s[Execution.GRAPH], samples * read.step_s[Execution.EAGER]
    else:
        h200 = DeviceProfile(backend="cuda", gpu_key=h200_readings().gpu_key)
        graph = msgspec.structs.replace(case, execution=Execution.GRAPH)
        profile = load_profiles()[case.workload].at_precision(case.precision)
        planned = planned_case(case.workload, profile, graph)
        step, token = pace(planned, h200), pace(msgspec.structs.replace(planned, flops_per_sample=None), h200)
        bandwidth = load_specs()[h200_readings().gpu_key].memory_bandwidth_bytes_per_s or math.inf
        read_s = WEIGHT_BYTES * (planned.parameter_count or 0) / bandwidth
        graph_s = step.step_s + case.new_tokens * max(read_s, token.step_s)
        eager_s = step.eager_s + case.new_tokens * max(read_s, token.eager_s)
    device_s = slower * graph_s
    return device_s if case.execution is Execution.GRAPH else max(device_s, eager_s)


def building_s(profile: WorkloadProfile) -> Seconds:
    """What drawing the weights and the reference loss on the CPU take."""
    samples = min(REFERENCE_SAMPLES, profile.main_batch)
    reference_s = samples * profile.forward_flops_per_sample / CPU_FLOPS_PER_S
    return BUILD_S_PER_PARAMETER * profile.parameters + reference_s


def searching_s(profile: WorkloadProfile, *, strict: bool = False) -> Seconds:
    """What cuDNN's trials take: of a network that trains its convolutions on large images."""
    trains_all = profile.train_flops_per_sample > 2 * profile.forward_flops_per_sample
    large = profile.is_image and math.prod(profile.sample_shape) > LARGE_IMAGE
    return READ_TRIALS_S.get((profile.name, strict), TRIALS_S) if trains_all and large else 0.0


# --- in which order -----------------------------------------------------------------------------------


def chosen_trials(every: Sequence[Trial], proof: Case, room_s: Seconds | None) -> tuple[Trial, ...]:
    """Take trials in the order of their weight while there is time, then put them in the order of measuring.

    In that order a workload is built once for all its precisions and executions, and cuDNN tries its
    algorithms once for both executions; the first that needs either is expected to take as much longer.
    """
    taken: list[Trial] = []
    for trial in every:
        more = [*taken, trial]
        if room_s is None or sum(t.expected_s for t in _in_order(more, every, proof)) <= room_s:
            taken = more
    return _in_order(taken, every, proof)


def _in_order(taken: Sequence[Trial], every: Sequence[Trial], proof: Case) -> tuple[Trial, ...]:
    rank = {name: n for n, name in reversed([*enumerate(t.case.workload for t in every)])}
    ordered = sorted(
        taken, key=lambda t: (is_strict(t.case), rank[t.case.workload], t.case.precision, t.case.execution)
    )
    met: set[object] = {("searched", proof.workload, proof.precision)}
    profiles = load_profiles()

    def firsts_s(case: Case) -> Iterator[Seconds]:
        costs_s = {
            ("built", case.workload, is_strict(case)): building_s(profiles[case.workload]),
            ("searched", case.workload, case.precision): searching_s(
                profiles[case.workload], strict=is_strict(case)
            ),
        }
        yield from (cost_s for what, cost_s in costs_s.items() if what not in met)
        met.update(costs_s)

    return tuple(msgspec.structs.replace(t, expected_s=t.expected_s + sum(firsts_s(t.case))) for t in ordered)
