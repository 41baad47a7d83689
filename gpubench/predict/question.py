"""A workload at a precision: the question of a prediction, its case on each GPU, and measurements of it."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from gpubench.errors import MisuseError
from gpubench.findings import is_unfounded
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Finding,
    FindingKind,
    Framework,
    GpuSpec,
    Measurement,
    MicroResult,
    Precision,
    Run,
    Stack,
    Status,
    TaskKind,
    WorkloadProfile,
)
from gpubench.models.run import newest_first
from gpubench.precisions import AMP, BF16, best_amp, in_memory
from gpubench.profile import load_profiles
from gpubench.readings import h200_readings
from gpubench.specs import find_spec
from gpubench.spread import ELSEWHERE
from gpubench.workload import check_weights

FITTED_VENDOR = "NVIDIA"
"""Vendor of the published measurements that the model is fitted to."""
OTHER_VENDORS = ("AMD",)
"""Vendors that are predicted with the fit to ``FITTED_VENDOR`` and have their own intervals."""
FIRST_KNOWN_CAPABILITY = (5, 0)  # Maxwell; Kepler and older run about half as fast as the model says


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a workload runs, or how much memory it needs, in one setting.

    Attributes:
        precision: ``amp`` means the best mixed precision of each GPU.
        batch_size: Samples per step on one GPU; None means the workload's main batch.
    """

    profile: WorkloadProfile
    precision: Precision | Literal["amp"] = "amp"
    execution: Execution = Execution.GRAPH
    task: TaskKind = TaskKind.TRAIN
    batch_size: int | None = None
    framework: Framework = Framework.TORCH

    @property
    def batch(self) -> int:
        """The requested batch, or the main one."""
        return self.profile.main_batch if self.batch_size is None else self.batch_size


def question_of(
    profile: WorkloadProfile,
    precision: str | None,
    *,
    asked: Mapping[str, Any] = MappingProxyType({}),
    **rest: Any,
) -> Question:
    """Return the question about a profile at a precision, with its weights in the type of that precision.

    The execution becomes eager if no CUDA graph can capture the step.

    Args:
        profile: The workload's profile, with the requested recipe.
        precision: A precision's name; None means the workload's usual precision.
        asked: The requested recipe, by field.
        rest: Other fields of the question.

    Raises:
        MisuseError: If the precision contradicts the requested type of the weights.
    """
    name = profile.usual_precision if precision is None else precision
    # The best mixed precision is chosen later, for each GPU
    resolved: Precision | Literal["amp"] = "amp" if name in {None, AMP} else Precision(name)
    check_weights(profile.name, profile.recipe, asked, (resolved,), profile.offered)
    lacks_graph = profile.recipe.stack is not Stack.TORCH and rest.get("execution") is Execution.GRAPH
    is_eager_in_inference = profile.is_eager_in_inference or (profile.memory and profile.memory_untraced)
    infers_eagerly = rest.get("task") is TaskKind.INFER and is_eager_in_inference
    # No CUDA graph captures these steps; steps of other stacks than torch may be compiled
    if profile.is_eager_only or lacks_graph or infers_eagerly:
        rest["execution"] = Execution.EAGER
    return Question(profile=profile.at_precision(in_memory(resolved)), precision=resolved, **rest)


def task_of(profile: WorkloadProfile, asked: str, *, named: bool) -> TaskKind:
    """Return the requested task, or inference if training is only the default and the workload lacks it.

    Raises:
        MisuseError: If the user gave the task and the workload lacks it.
    """
    task = profile.task_for(asked)
    if named and task != asked:
        family = [p for p in load_profiles().values() if p.name.startswith(f"{profile.name}_")]
        trained = ", ".join(p.name for p in family if TaskKind.TRAIN in p.tasks)
        others = f", or use {trained}" if trained else ""
        raise MisuseError(f"{profile.name} is never trained: leave out --task {asked}{others}")
    return task


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU for which there is no reliable figure, and why."""

    gpu_key: str
    reason: str


def first_reasons(refused: Iterable[Refusal]) -> list[str]:
    """Return the three most frequent reasons, for a short document; ties keep their order."""
    return [reason for reason, _ in Counter(each.reason for each in refused).most_common(3)]


def check(question: Question) -> None:
    """Refuse an impossible question.

    Raises:
        MisuseError: If the batch is below 1, the workload has no operators for the task, or no GPU runs it at
            the requested precision.
    """
    if question.batch < 1:
        raise MisuseError(f"batch size {question.batch} of {question.profile.name}: must be at least 1")
    if not question.profile.operators_of(question.task):
        raise MisuseError(f"{question.profile.name} has no {question.task} step to predict")
    if reason := why_impossible(question):
        raise MisuseError(reason)


def why_impossible(question: Question) -> str | None:
    """Return why no GPU can do this work at the requested precision; None if some can."""
    precisions = (
        [best_amp(lambda _: True), best_amp(lambda _: False)]  # on a recent GPU, on an old one
        if question.precision == AMP
        else [Precision(question.precision)]
    )
    reasons = [_why_not_at(question, each) for each in precisions]
    return None if None in reasons else reasons[0]


def _why_not_at(question: Question, precision: Precision) -> str | None:
    profile, trained = question.profile, question.task is TaskKind.TRAIN
    return (
        profile.why_not_at(precision)
        or precision.why_not_for(question.task)
        or (profile.why_not_trained_at(precision) if trained else None)
    )


def case_for(question: Question, spec: GpuSpec) -> Case | Refusal:
    """Return the case of the question on this GPU, or why its speed there is not predicted."""
    case = memory_case_for(question, spec)
    no_speed = None if isinstance(case, Refusal) else why_no_speed(spec, case.precision)
    return case if no_speed is None else Refusal(gpu_key=spec.key, reason=no_speed)


def why_no_speed(spec: GpuSpec, precision: Precision) -> str | None:
    """Return why only the memory, not the speed, is predicted at a precision on a GPU; None if both are.

    Without hardware for bf16, a model runs in fp16, which takes the same memory. Its speed is not predicted,
    because no published figure has weights cast to fp16.
    """
    if precision.facts.format is not BF16 or has_hardware(spec, precision):
        return None
    return f"{spec.short_name} has no {precision.facts.hardware}"


NO_SPEED = "its speed is not predicted; in fp16 the work takes the same memory"
"""Continues the reason from ``why_no_speed`` if the memory is known."""


def memory_case_for(question: Question, spec: GpuSpec) -> Case | Refusal:
    """Return the case whose memory is judged on this GPU, or why the GPU cannot run it."""
    if spec.not_ranked_because is not None:
        return Refusal(gpu_key=spec.key, reason=spec.not_ranked_because)
    precision = (
        best_amp(lambda each: has_hardware(spec, each))
        if question.precision == AMP
        else Precision(question.precision)
    )
    if reason := _why_not_at(question, precision):
        return Refusal(gpu_key=spec.key, reason=reason)
    if not has_hardware(spec, precision) and precision.facts.format is not BF16:
        lack = f"{spec.short_name} has no {precision.facts.hardware}"
        if spec.vendor != FITTED_VENDOR and not precision.facts.needs_rate:
            lack = f"{precision} is only for {FITTED_VENDOR} GPUs here, and {spec.short_name} is not one"
        return Refusal(gpu_key=spec.key, reason=lack)
    return case_at(question, precision)


def case_at(question: Question, precision: Precision) -> Case:
    """Return the case of the question at a precision, which is the same on any GPU."""
    return Case(
        workload=question.profile.name,
        workload_version=question.profile.version,
        task=question.task,
        precision=precision,
        execution=question.execution,
        memory_format=question.profile.memory_format_at(precision),
        batch_size=question.batch,
        sample_unit=question.profile.sample_unit,
        framework=question.framework,
        **question.profile.recipe.at(precision).fields,
    )


def has_hardware(spec: GpuSpec, precision: Precision) -> bool:
    """Whether a GPU has hardware for a precision: by its compute capability or, outside NVIDIA, its rates."""
    by_rate = spec.vendor != FITTED_VENDOR and precision.facts.needs_rate
    return precision.within(capability_of(spec)) or (
        by_rate and getattr(spec, precision.facts.format.peak) is not None
    )


def domain_gap(spec: GpuSpec, precision: Precision, execution: Execution = Execution.GRAPH) -> str | None:
    """Return why the model was not checked for this GPU, precision and execution; None if it was."""
    capability = capability_of(spec)
    unknown = capability is None and spec.vendor == FITTED_VENDOR
    if unknown or not spec.memory_bandwidth_bytes_per_s or not spec.fp32_flops_per_s:
        return "its row in the specification table has no peak rates"
    if capability is not None and capability < FIRST_KNOWN_CAPABILITY:
        return f"{spec.architecture} and older run about half as fast as the model says"
    mode = precision.facts.predicted_as
    if mode is None:
        return never_predicted(precision)
    if mode == "half" and spec.tensor_core_count != 0 and not spec.fp16_tensor_flops_per_s:
        return "its row in the specification table has no FP16 tensor rate"
    if mode == "tf32" and not spec.tf32_tensor_flops_per_s:
        return "its row in the specification table has no TF32 rate"
    is_fitted = execution.facts.host_s_per_operator is not None
    return None if is_fitted else never_predicted(execution)


def never_predicted(way: Precision | Execution) -> str:
    """Return why a precision or an execution mode outside the fit has only measured figures."""
    return f"{way} is measured, never predicted: the fit has no published rows for it"


def capability_of(spec: GpuSpec) -> tuple[int, int] | None:
    """Return the compute capability as numbers; None if unknown or another vendor's target (gfx942)."""
    major, dot, minor = (spec.compute_capability or "").partition(".")
    return (int(major), int(minor)) if dot and major.isdigit() and minor.isdigit() else None


# --- measurements of the question's workload ----------------------------------------------------------------

DISTURBED = frozenset(
    {
        FindingKind.SHARED_GPU,
        FindingKind.THROTTLED,
        FindingKind.IMPLAUSIBLE,
        FindingKind.LOSS_NOT_FINITE,
        FindingKind.MEMORY_SPILLED,
    }
)
"""A measurement with any of these findings is never used."""
UNKNOWN_NOISE = 0.05  # log half-width assumed for a measurement too short to have an interval
EAGER_LIMIT = 1.10
"""Ratio of eager to CUDA-graph step time above which an eager step counts as host-bound."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One measured case on one known GPU.

    Attributes:
        low, high: Ends of the throughput's interval; None if the measurement was too short to have one.
        noise: Log half-width of that interval, or an assumed one; includes the spread between cards and
            hosts.
        basis: ``measured`` for the user's own runs, ``reference`` for those that the package ships.
        origin: Who measured an added run, on what and when; None for a run of this results folder.
    """

    spec: GpuSpec
    case: Case
    samples_per_s: float
    low: float | None
    high: float | None
    noise: float
    host_bound: bool
    host_cpu: str | None
    peak_memory_bytes: int | None
    run_id: str
    basis: Literal["measured", "reference"]
    findings: tuple[Finding, ...] = ()
    at_largest_batch: bool = False
    peak_reserved_bytes: int | None = None
    device_bytes: int | None = None
    first_token_s: float | None = None
    per_token_s: float | None = None
    power_w: float | None = None
    micro: tuple[MicroResult, ...] = ()
    origin: str | None = None


def readings_of(question: Question, own: Sequence[Run], reference: Sequence[Run]) -> list[Reading]:
    """Return the usable GPU readings of the question's workload, task and recipe.

    The user's runs come before the shipped ones, the newest first in each; timings of a hand-written loop
    come last. A prediction never starts from a CPU, a MIG slice, a shared GPU, or a GPU missing from the
    specification table.
    """
    recipe = question.profile.recipe
    every = _read(question, own, "measured") + _read(question, reference, "reference")
    on_one_gpu = [r for r in every if r.case.gpu_count == 1 and not is_unfounded(r.findings)]
    of_recipe = (r for r in on_one_gpu if r.case.recipe == recipe.at(r.case.precision))
    return [*of_recipe, *_loop_readings(question)]


def peaks_of(question: Question, own: Sequence[Run]) -> list[Reading]:
    """Return every measurement of the question's workload and task with a peak memory, newest first.

    Any recipe and number of GPUs is accepted, host-bound or not, because a peak describes only its own case.
    Shipped runs are left out, because the memory model is checked against them.
    """
    return [reading for reading in _read(question, own, "measured") if reading.peak_memory_bytes]


def _read(question: Question, runs: Sequence[Run], basis: Literal["measured", "reference"]) -> list[Reading]:
    """Return every undisturbed measurement of the question's workload and task on a known GPU."""
    return [
        _reading(spec, m, run, basis)
        for run in newest_first(runs)
        if (spec := gpu_of(run.device)) is not None
        for m in run.measurements
        if _is_of(question, m)
    ]


def _is_of(question: Question, m: Measurement) -> bool:
    return (
        m.case.workload == question.profile.name
        and m.case.workload_version == question.profile.version
        and m.case.task == question.task
        and m.case.framework == question.framework
        and m.status is Status.OK
        and bool(m.samples_per_s)
        and not any(finding.kind in DISTURBED for finding in m.findings)
    )


def _reading(spec: GpuSpec, m: Measurement, run: Run, basis: Literal["measured", "reference"]) -> Reading:
    assert m.samples_per_s is not None  # ``_is_of`` requires it
    low, high = m.samples_per_s_low, m.samples_per_s_high
    spread = None if low is None or high is None else math.log(high / low) / 2
    # The answer must hold for any card of this model, in any host
    noise = math.hypot(UNKNOWN_NOISE if spread is None else spread, ELSEWHERE)
    has_interval = basis == "reference" or spread is not None
    return Reading(
        spec=spec,
        case=m.case,
        samples_per_s=m.samples_per_s,
        low=m.samples_per_s * math.exp(-noise) if has_interval else None,
        high=m.samples_per_s * math.exp(noise) if has_interval else None,
        noise=noise,
        host_bound=m.is_host_bound,
        host_cpu=run.environment.cpu if m.is_host_bound else None,
        peak_memory_bytes=m.peak_memory_bytes,
        run_id=run.run_id,
        basis=basis,
        findings=m.findings,
        at_largest_batch=m.at_largest_batch,
        peak_reserved_bytes=m.peak_reserved_bytes,
        device_bytes=m.device_bytes,
        first_token_s=m.first_token_s,
        power_w=m.mean_power_w,
        per_token_s=m.per_token_s,
        micro=run.micro,
        origin=run.origin,
    )


def _loop_readings(question: Question) -> Iterator[Reading]:
    """Yield the shipped timings of a hand-written loop: the GPU-bound steps of the question's workload."""
    shipped = h200_readings()
    spec = find_spec(shipped.gpu_key)
    if (
        spec is None
        or question.task is not TaskKind.TRAIN
        or question.framework is not Framework.TORCH
        or load_profiles().get(question.profile.name) != question.profile
    ):
        return
    timed = [
        (step, execution, step_s)
        for step in shipped.steps
        if step.workload == question.profile.name
        for execution, step_s in step.step_s.items()
        if step_s <= EAGER_LIMIT * step.step_s[Execution.GRAPH]
    ]
    for step, execution, step_s in timed:
        asked = msgspec.structs.replace(question, execution=execution, batch_size=step.batch_size)
        rate = step.batch_size / step_s
        yield Reading(
            spec=spec,
            case=case_at(asked, step.precision),
            samples_per_s=rate,
            low=rate * math.exp(-ELSEWHERE),
            high=rate * math.exp(ELSEWHERE),
            noise=ELSEWHERE,
            host_bound=False,
            host_cpu=None,
            peak_memory_bytes=None,
            run_id=f"hand-written loop on {shipped.card}, {shipped.date}",
            basis="reference",
        )


def gpu_of(device: DeviceProfile) -> GpuSpec | None:
    """Return the specification of a measured device; None for a CPU, a MIG slice, or an unknown GPU."""
    if device.is_cpu or device.mig_enabled or device.gpu_key is None:
        return None
    return find_spec(device.gpu_key)


def measured_here(readings: Iterable[Reading], case: Case, gpu_key: str) -> Reading | None:
    """Return the first reading of exactly this case on this GPU; the readings are in order of preference."""
    return next((r for r in readings if r.spec.key == gpu_key and r.case == case), None)


def same_arithmetic(a: Case, b: Case) -> bool:
    """Whether two cases use the same arithmetic; both kinds of AMP count as one."""
    return a.precision == b.precision or (a.precision.is_amp and b.precision.is_amp)
