"""The question that a prediction answers (a workload at a precision), and its case on each GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import (
    Case,
    Execution,
    Framework,
    GpuSpec,
    Precision,
    Stack,
    TaskKind,
    WorkloadProfile,
)
from gpubench.precisions import AMP, BF16, best_amp, in_memory
from gpubench.profile import load_profiles
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
    resolved = precision_of(precision, profile)
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
    if precision.within(capability_of(spec)):
        return True
    by_rate = spec.vendor != FITTED_VENDOR and precision.facts.needs_rate
    return by_rate and getattr(spec, precision.facts.format.peak) is not None


def domain_gap(spec: GpuSpec, precision: Precision) -> str | None:
    """Return why the model was not checked for this GPU and precision; None if it was."""
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
    return None


def never_predicted(way: Precision | Execution) -> str:
    """Return why a precision or an execution mode outside the fit has only measured figures."""
    return f"{way} is measured, never predicted: the fit has no published rows for it"


def precision_of(text: str | None, profile: WorkloadProfile | None = None) -> Precision | Literal["amp"]:
    """Return a precision by name, or the profile's usual one; ``amp`` is resolved for each GPU later."""
    name = profile.usual_precision if text is None and profile is not None else text
    return "amp" if name is None or name == AMP else Precision(name)


def capability_of(spec: GpuSpec) -> tuple[int, int] | None:
    """Return the compute capability as numbers; None if unknown or another vendor's target (gfx942)."""
    major, dot, minor = (spec.compute_capability or "").partition(".")
    return (int(major), int(minor)) if dot and major.isdigit() and minor.isdigit() else None
