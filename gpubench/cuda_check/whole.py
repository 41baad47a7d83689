"""What a check of everything tries besides the trained workloads at the usual precisions.

Whole models in bfloat16, products in 8 bits, what is only run forward, and the large workloads. What lacks a
package, room on the card, or a second card is named, with its reason, and not tried.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from gpubench.measure import capability
from gpubench.measure.plan import plan
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
from gpubench.profile import load_profiles
from gpubench.profile.memory import planned_peak_bytes
from gpubench.units import format_bytes

EXECUTIONS = (Execution.EAGER, Execution.GRAPH)


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
    in_8_bits = case.precision in {Precision.FP8, Precision.INT8}
    return in_8_bits or case.weight_type is WeightType.NF4 or case.checkpointing is Checkpointing.SELECTIVE


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
    for package, extra in _needed(case, profile):
        if not is_installed(package):
            return f'{package} is not installed: pip install "gpubench[{extra}]"'
    needed = planned_peak_bytes(profile.at_precision(case.precision), case)
    if device.memory_bytes is not None and needed > device.memory_bytes:
        return f"it takes about {format_bytes(needed)}, and this card has {format_bytes(device.memory_bytes)}"
    return None


def _needed(case: Case, profile: WorkloadProfile) -> Iterator[tuple[str, str]]:
    """Name the packages that a case needs, and gpubench's extras that bring them."""
    if case.precision in {Precision.FP8, Precision.INT8} or case.weight_type is WeightType.NF4:
        yield "torchao", "quantized"
    if not profile.parameters:
        yield "kornia", "augment"
