"""The memory that a case needs on a card, and the largest batch that fits.

A measured peak of the same case, on any GPU, replaces the estimate. A peak at another batch can raise any
estimate, but lowers only those that are not from a trace.
"""

import bisect
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from gpubench.groups import grouped
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    GpuSpec,
    MeasuredMemory,
    MemoryFit,
    MemoryNeed,
    ParallelMode,
    Run,
    TaskKind,
    WeightType,
    WorkloadProfile,
    checkpointing_over,
)
from gpubench.predict.question import (
    Question,
    Reading,
    measured_here,
    peaks_of,
    same_arithmetic,
)
from gpubench.profile import memory
from gpubench.profile.allowance import card_of, card_of_device, class_of

if TYPE_CHECKING:
    from gpubench.measure.plan import Plan


def fit_of(
    question: Question, case: Case, spec: GpuSpec, readings: Sequence[Reading], accumulate: int = 1
) -> MemoryFit | None:
    """Judge whether the case fits on a card: yes if it has run there. None if the card's memory is unknown.

    Args:
        question: Workload and task.
        case: Precision and batch size.
        spec: The card.
        readings: The peaks from ``peaks_of`` for the workload and task, in order of preference.
        accumulate: Micro-batches that the batch is split into; measured peaks are used only if it is 1.
    """
    card = card_of(spec)
    if card is None:
        return None
    fit = memory.judge_fit(
        question.profile, case, card, **known_of(question, case, spec.key, readings, accumulate)
    )
    ran = measured_here(readings, case, spec.key)
    if ran is None or accumulate > 1:
        return fit
    return fit.after_a_run(case.batch_size, "in an added run" if ran.origin else "here")


def known_of(
    question: Question, case: Case, gpu_key: str | None, readings: Sequence[Reading], accumulate: int = 1
) -> dict[str, Any]:
    """Return the keyword arguments of the functions in ``profile.memory``: what is known besides the case."""
    return {
        "measured": measured_peak(case, gpu_key, readings, accumulate),
        "scale": scale_of(question, case, readings),
        "accumulate": accumulate,
    }


def doubts(
    plan: "Plan", profiles: Mapping[str, WorkloadProfile], device: DeviceProfile, runs: Sequence[Run]
) -> tuple[str, ...]:
    """Return a line for each case of a plan that may not fit on the device.

    The cases run anyway: the device decides. A case whose batch is still to be found is not checked.

    Args:
        plan: The cases to run.
        profiles: By workload reference.
        device: The device that the plan will run on. A CPU is never checked, since it can swap.
        runs: Earlier runs of this user.
    """
    card = card_of_device(device)
    if card is None or plan.on_cpu:
        return ()
    lines = []
    for planned in (each for each in plan.cases if each.batch_choice != "largest"):
        case, profile = planned.case, profiles[planned.reference]
        question = Question(
            profile=profile, precision=case.precision, task=case.task, framework=case.framework
        )
        readings = peaks_of(question, runs)
        fit = memory.judge_fit(profile, case, card, **known_of(question, case, device.gpu_key, readings))
        if not fit.fits or fit.in_eager_steps:
            lines.append(f"{case.workload} {case.precision} batch {case.batch_size:,}: {fit.text()}")
    return tuple(dict.fromkeys(lines))


def need_of(
    question: Question, case: Case, spec: GpuSpec, readings: Sequence[Reading], accumulate: int = 1
) -> MemoryNeed:
    """Return the memory need of the case on a card, or on its class if the card's memory is unknown."""
    card = card_of(spec)
    known = known_of(question, case, spec.key, readings, accumulate)
    if card is None:
        return memory.need_of(question.profile, case, class_of(spec), **known)
    return memory.need_on(question.profile, case, card, **known)


def sharded_fit_of(
    question: Question, case: Case, spec: GpuSpec, readings: Sequence[Reading], gpu_count: int
) -> MemoryFit | None:
    """Judge whether the case fits on each of several cards that shard it (FSDP).

    The batch on each card is unchanged. None if the case cannot be sharded, or the cards' memory is unknown.
    """
    profile = question.profile
    is_quantized = case.weight_type.bytes_each < WeightType.BFLOAT16.bytes_each
    has_nothing_to_shard = case.task is not TaskKind.TRAIN or profile.blocks is None
    if has_nothing_to_shard or is_quantized or case.precision.facts.scales_gradients:
        return None
    return fit_of(question, profile.shared_by(case, gpu_count, ParallelMode.FSDP), spec, readings)


def fewest_sharing(
    question: Question, case: Case, spec: GpuSpec, readings: Sequence[Reading], most: int
) -> tuple[int, MemoryFit] | None:
    """Return the fewest GPUs, from 2 to ``most``, on which the sharded case fits, and its fit there.

    If no number is enough, return the one with the largest batch. None as in ``sharded_fit_of``, or if
    ``most`` is 1.
    """
    tried: dict[int, MemoryFit | None] = {}

    def fits(gpu_count: int) -> bool:
        fit = tried[gpu_count] = sharded_fit_of(question, case, spec, readings, gpu_count)
        return fit is not None and fit.fits

    best: tuple[int, MemoryFit] | None = None
    # Counts in one group use the same checkpointing, so the memory per GPU falls as the count rises
    by_gpu_count = question.profile.checkpointing_from
    for _, group in groupby(range(2, most + 1), lambda count: checkpointing_over(by_gpu_count, count)):
        counts = list(group)
        at = min(bisect.bisect_left(counts, True, key=fits), len(counts) - 1)
        fit = tried[counts[at]]
        if fit is None or fit.fits:
            return None if fit is None else (counts[at], fit)
        if best is None or fit.largest_batch >= best[1].largest_batch:
            best = counts[at], fit
    return best


def largest_batch(question: Question, case: Case, spec: GpuSpec, readings: Sequence[Reading]) -> int:
    """Return the largest batch of the case that fits on a card of known memory; 0 if none does."""
    card = card_of(spec)
    assert card is not None
    return memory.largest_batch(question.profile, case, card, scale=scale_of(question, case, readings))


def scale_of(question: Question, case: Case, readings: Sequence[Reading]) -> float:
    """Return the factor that corrects a case's estimated memory, from peaks at its recipe; 1 without any.

    It is a geometric mean over the peaks on the same number of GPUs or, if there are none, on one GPU. Peaks
    with the same use of autocast are preferred, and small steps are ignored.
    """
    usable = [reading for reading in readings if _setup(reading.case) == _setup(case)]
    if case.gpu_count > 1 and not usable:
        usable = [reading for reading in readings if _setup(reading.case) == _setup(case.on_one_gpu)]
    profile, is_amp = question.profile, case.precision.is_amp
    by_autocast = grouped(
        (r.case.precision.is_amp, scale)
        for r in usable
        if (peak := r.peak_memory_bytes)
        and (scale := memory.scale_of(profile, r.case, peak, class_of(r.spec))) is not None
    )
    return geometric_mean(by_autocast.get(is_amp) or by_autocast.get(not is_amp) or [1.0])


def _setup(case: Case) -> tuple[object, ...]:
    return case.gpu_count, case.parallel_mode, case.recipe


def measured_peak(
    case: Case, gpu_key: str | None, readings: Sequence[Reading], accumulate: int = 1
) -> MeasuredMemory | None:
    """Return the largest measured peak of this case, in the same execution mode if there is one.

    A peak at one type of AMP counts for the other, because both take the same memory. One at TF32 does not
    count for strict fp32, which takes more.
    """
    same = [
        reading
        for reading in readings
        if reading.peak_memory_bytes
        and accumulate == 1
        and reading.case.batch_size == case.batch_size
        and same_arithmetic(reading.case, case)
        and _setup(reading.case) == _setup(case)
    ]
    if not same:
        return None
    most = max(
        [reading for reading in same if reading.case.execution is case.execution] or same,
        key=lambda reading: reading.peak_memory_bytes or 0,
    )
    return MeasuredMemory(
        allocated_bytes=most.peak_memory_bytes or 0,
        reserved_bytes=most.peak_reserved_bytes,
        device_bytes=most.device_bytes,
        card_class=class_of(most.spec),
        same_card=most.spec.key == gpu_key,
        in_graph=most.case.execution is Execution.GRAPH,
    )
