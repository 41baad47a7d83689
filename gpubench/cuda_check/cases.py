"""Which cases a check of the CUDA path tries, in which order; nothing is measured here."""

from __future__ import annotations

import bisect
import importlib.util
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from gpubench.installing import pip_install
from gpubench.measure import capability
from gpubench.measure.plan import plan
from gpubench.measure.request import RunRequest
from gpubench.models import (
    Case,
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
from gpubench.units import GIB, Bytes, format_bytes

COMPILED = ("cnn", "vgg16", "lstm")
"""What is compiled, in that order: the last is refused up to torch 2.11, which ends its process."""
UNKNOWN_MEMORY_BYTES: Bytes = 4 * GIB
"""Of a card whose driver does not tell it."""
PROOF_MEMORY_SHARE = 0.3
"""What the case of a proof may take by the memory model: a graph captured by hand takes as much again."""


def case_of(
    name: str, precision: Precision, execution: Execution = Execution.EAGER, batch_size: int | None = None
) -> Case:
    """Return the training case of a workload, at its main batch unless another is given."""
    profile = load_profiles()[name]
    return Case(
        workload=name,
        workload_version=profile.version,
        task=TaskKind.TRAIN,
        precision=precision,
        execution=execution,
        memory_format=profile.memory_format_at(precision),
        batch_size=batch_size or profile.main_batch,
        sample_unit=profile.sample_unit,
    )


def expected_bytes(case: Case) -> float:
    """Return the peak memory of a case by the memory model [B]."""
    return planned_peak_bytes(load_profiles()[case.workload].at_precision(case.precision), case)


def proof_case(device: DeviceProfile) -> Case:
    """Return the case of the proofs: one whose pace the GPU sets, as large as the card has room for."""
    room = PROOF_MEMORY_SHARE * (device.memory_bytes or UNKNOWN_MEMORY_BYTES)
    amp = capability.best_amp(device)
    smaller, larger = (load_profiles()[name].batches for name in ("vgg16", "cnn"))
    wanted = (
        case_of("vgg16", amp),
        case_of("vgg16", amp, batch_size=smaller[0]),
        case_of("cnn", amp, batch_size=larger[-1]),
    )
    return next((case for case in wanted if expected_bytes(case) <= room), case_of("cnn", amp))


def usual_cases(device: DeviceProfile, workloads: Sequence[str] = ()) -> Iterator[Case]:
    """Give every trained workload at every usual precision, the most telling cases first.

    Graphs come before eager rows: a graph's trial does as many eager steps as it replays.
    """
    amp = capability.best_amp(device)
    trained = [
        name
        for name, profile in load_profiles().items()
        if TaskKind.TRAIN in profile.tasks and profile.is_classic and (not workloads or name in workloads)
    ]
    names = sorted(trained, key=lambda name: name not in CLASSIC)
    first = (amp, Precision.FP32)
    others = tuple(precision for precision in usual_precisions(device) if precision not in first)
    for execution, precisions in product((Execution.GRAPH, Execution.EAGER), (first, others)):
        for name, precision in product(names, precisions):
            yield case_of(name, precision, execution)


def usual_precisions(device: DeviceProfile) -> list[Precision]:
    """Return the usual precisions that a device has."""
    return [p for p in Precision if p.is_usual and capability.why_no_precision(p, device) is None]


def other_cases(device: DeviceProfile) -> Iterator[tuple[Case, str | None]]:
    """Give each further case that a card has, and why it is not tried here; None where it is."""
    for profile, task in ((p, task) for p in load_profiles().values() if p.is_run for task in p.tasks):
        precisions = tuple(p for p in Precision if _is_other(profile, task, p, device))
        if precisions:
            request = RunRequest(
                workloads=(profile.name,),
                precisions=precisions,
                executions=("eager", "graph") if profile.parameters else ("eager",),
                task=task,
                batch_size=profile.main_batch,
                budget="quick",
                micro="none",
            )
            for planned in plan(request, device, load_profiles()).cases:
                yield planned.case, _why_not(planned.case, profile, device)


def _is_other(profile: WorkloadProfile, task: TaskKind, precision: Precision, device: DeviceProfile) -> bool:
    """Whether a precision is tried here and not among the classic workloads' usual ones."""
    if (
        profile.why_not_at(precision)
        or capability.why_no_precision(precision, device)
        or precision.why_not_for(task)
    ):
        return False
    if not profile.parameters:
        return precision is Precision.FP32  # an input pipeline computes nothing at another
    if task is TaskKind.INFER and TaskKind.TRAIN in profile.tasks:
        return precision is Precision.INT8 and profile.blocks is not None
    if precision is Precision.INT8:
        return not profile.recipe.new_tokens
    return not (profile.is_classic and task is TaskKind.TRAIN and precision.is_usual)


def _why_not(case: Case, profile: WorkloadProfile, device: DeviceProfile) -> str | None:
    """Say what is missing for a case; None where nothing is."""
    if profile.parallel_mode is ParallelMode.FSDP:
        return "a workload for several GPUs: run --gpus N measures it"
    needs = (
        case.precision.facts.needs,
        TORCHAO if case.weight_type is WeightType.NF4 else None,
        None if profile.parameters else "kornia",
    )
    missing = next((name for name in needs if name and importlib.util.find_spec(name) is None), None)
    if missing is not None:
        return f"{missing} is not installed: {pip_install(missing)}"
    needed = planned_peak_bytes(profile.at_precision(case.precision), case)
    if device.memory_bytes is None or needed <= device.memory_bytes:
        return None
    return f"it takes about {format_bytes(needed)}, and this card has {format_bytes(device.memory_bytes)}"


def largest_within(case: Case, peak_bytes: float) -> int:
    """Return the largest batch of a case whose peak the memory model puts within so much; at least 1."""

    def peak_of(batch: int) -> float:
        return planned_peak_bytes(
            load_profiles()[case.workload], msgspec.structs.replace(case, batch_size=batch)
        )

    return max(1, bisect.bisect_right(range(1, MOST_BATCH + 1), peak_bytes, key=peak_of))


def waiting_case(precision: Precision) -> Case:
    """Return the case of a model that waits for the device in its step, as no graph can."""
    return Case(
        workload="waiting",
        workload_version=1,
        task=TaskKind.TRAIN,
        precision=precision,
        execution=Execution.GRAPH,
        memory_format=None,
        batch_size=8,
        sample_unit="row",
    )
