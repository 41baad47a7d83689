"""How n GPUs share one job: whether each has enough memory, and how efficient n GPUs are.

The efficiency is measured if a run has it, else modeled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from gpubench.findings import UNFOUNDED
from gpubench.models import (
    Case,
    Checkpointing,
    Estimate,
    Execution,
    FindingKind,
    GpuSpec,
    Measurement,
    MemoryFit,
    ParallelMode,
    Run,
    Status,
    Verdict,
)
from gpubench.models.row import MODELED
from gpubench.predict import memory
from gpubench.predict.anchors import Reading
from gpubench.predict.question import Question, Refusal
from gpubench.predict.scaling import scaling
from gpubench.profile.allowance import card_of
from gpubench.recommend.speeds import mean_of

_UNFIT = UNFOUNDED | {FindingKind.THROTTLED, FindingKind.SHARED_GPU, FindingKind.UNEQUAL_GPUS}
MOST_EFFICIENT = 1.05
"""A measured efficiency above this is an error in the data."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Throughput of n GPUs over n times that of one by the same recipe, with its interval.

    Attributes:
        by_recipe: Rate of one GPU with the recipe of the shared job, divided by its rate with the recipe for
            a single GPU.
        mode: How the GPUs share the job.
        fit: The fit in the memory of each GPU, if it is known and the job fits.
    """

    likely: float
    low: float
    high: float
    basis: str
    by_recipe: float = 1.0
    mode: ParallelMode = ParallelMode.DDP
    fit: MemoryFit | None = None


Scaler = Callable[[str, GpuSpec, int, Estimate], Efficiency]
"""Maps (workload, GPU, number of GPUs, estimate for one) to the efficiency of training together."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How an instance scales.

    Attributes:
        half_width: Half the width of the 9-in-10 interval of the log efficiency.
        by_recipe: As ``Efficiency.by_recipe``. Multiplied by the efficiency, it is the rate of each GPU
            divided by the rate of a single one.
        mode: How its GPUs share the job: by FSDP if any workload fits only that way.
        fits: ``Efficiency.fit`` of each workload.
    """

    efficiency: float
    basis: str
    half_width: float = 0.0
    by_recipe: float = 1.0
    mode: ParallelMode = ParallelMode.SINGLE
    fits: tuple[MemoryFit | None, ...] = ()


SINGLE = Scaling(1.0, "single GPU")
INDEPENDENT = Scaling(1.0, "independent jobs", mode=ParallelMode.INDEPENDENT)


def scaling_of(
    spec: GpuSpec | None,
    gpu_count: int,
    parts: Mapping[str, Estimate],
    *,
    scaler: Scaler | None,
    shares: Mapping[str, float],
) -> Scaling:
    """Return how an instance scales and where the figure comes from.

    Args:
        spec: The GPU of the instance.
        gpu_count: Number of its GPUs.
        parts: The estimate for one GPU, by workload.
        scaler: The model of one job over all GPUs, or of one job on each; None if such jobs do not slow each
            other down.
        shares: Share of the samples by workload; empty for the geometric mean of the workloads.
    """
    if gpu_count == 1:
        return SINGLE
    if scaler is None or spec is None:
        return INDEPENDENT
    names = list(parts)
    models = [scaler(name, spec, gpu_count, part) for name, part in parts.items()]
    rates = np.array([part.samples_per_s for part in parts.values()])
    single = rates * np.array([model.by_recipe for model in models])
    alone = mean_of(single, names, shares)
    likely, low, high = (
        float(mean_of(single * np.array([getattr(model, end) for model in models]), names, shares) / alone)
        for end in ("likely", "low", "high")
    )
    bases, modes = ({getattr(model, name) for model in models} for name in ("basis", "mode"))
    basis = bases.pop() if len(bases) == 1 else MODELED
    return Scaling(
        likely,
        INDEPENDENT.basis if INDEPENDENT.basis in bases else basis,
        math.log(high / low) / 2,
        by_recipe=float(alone / mean_of(rates, names, shares)),
        mode=ParallelMode.FSDP if ParallelMode.FSDP in modes else modes.pop(),
        fits=tuple(model.fit for model in models),
    )


class Seen(NamedTuple):
    """Measurements, and the readings of peak memory of one workload."""

    measured: Sequence[Run]
    peaks: Sequence[Reading]


class OneOf(NamedTuple):
    """The question with the recipe for several GPUs, and the estimate for one of them."""

    question: Question
    answer: Estimate | Refusal


class Sharing(NamedTuple):
    """How several GPUs share one job: the fit in each, if known, or why the job does not fit."""

    mode: ParallelMode
    fit: MemoryFit | None = None
    reason: str | None = None


def sharing_of(one: OneOf, spec: GpuSpec, gpu_count: int, seen: Seen) -> Sharing:
    """Return how this many GPUs share one job: all weights on each if that fits, else a shard on each."""
    alone = one.answer
    if isinstance(alone, Refusal):
        return Sharing(ParallelMode.FSDP, reason=alone.reason)
    question = msgspec.structs.replace(one.question, batch_size=alone.case.batch_size)
    whole = None
    if alone.fewest_gpus == 1:
        whole = _whole_on_each(question, spec, gpu_count, alone, seen)
        if whole.reason is None:
            return whole
    fit = memory.sharded_fit_of(question, alone.case, spec, seen.peaks, gpu_count)
    if fit is not None and measured_together(seen.measured, alone, gpu_count, ParallelMode.FSDP):
        fit = fit.after_a_run(alone.case.batch_size)
    if whole is not None and (fit is None or not fit.fits):
        return whole
    if fit is None or fit.fits:
        return Sharing(ParallelMode.FSDP, fit)
    case = question.profile.shared_by(alone.case, gpu_count, ParallelMode.FSDP)
    return Sharing(ParallelMode.FSDP, reason=_short_of(case, fit))


def _whole_on_each(question: Question, spec: GpuSpec, gpu_count: int, alone: Estimate, seen: Seen) -> Sharing:
    """Return how a job fits if each GPU holds all weights and exchanges gradients in buckets."""
    mode = ParallelMode.DDP
    case = msgspec.structs.replace(alone.case, gpu_count=gpu_count, parallel_mode=mode)
    card = card_of(spec)
    if card is None:
        return Sharing(mode)
    need = memory.need_of(question, case, spec, seen.peaks)
    if card.verdict_of(need.device) is Verdict.FITS:
        # The usual case. Only the others need the largest batch.
        there = MemoryFit(verdict=Verdict.FITS, need=need, card=card, largest_batch=case.batch_size)
        return Sharing(mode, there)
    fit = memory.fit_of(question, case, spec, seen.peaks)
    assert fit is not None  # the card's memory is known
    if measured_efficiency(seen.measured, alone.case, spec.key, gpu_count):
        return Sharing(mode, fit.after_a_run(case.batch_size))
    if alone.batch_choice == "largest" and 2 * fit.largest_batch >= case.batch_size:
        # A job on several GPUs can take a somewhat smaller batch, at nearly the same rate.
        smaller = msgspec.structs.replace(case, batch_size=fit.largest_batch)
        return Sharing(mode, memory.fit_of(question, smaller, spec, seen.peaks))
    return Sharing(mode, reason=_short_of(case, fit))


def _short_of(case: Case, fit: MemoryFit) -> str:
    again = "" if case.checkpointing is Checkpointing.NONE else f" with {case.checkpointing} checkpointing"
    return (
        f"{case.workload} at batch {case.batch_size:,}{again} on each of {case.gpu_count} GPUs: {fit.text()}"
    )


def efficiency_of(
    one: OneOf, spec: GpuSpec, gpu_count: int, mode: ParallelMode, measured: Sequence[Run]
) -> Efficiency:
    """Return the efficiency of this many GPUs at the batch of a single one: measured, else modeled."""
    alone = one.answer
    assert isinstance(alone, Estimate)  # a job that does not fit is not scaled
    found = measured_efficiency(measured, alone.case, spec.key, gpu_count, mode)
    found = found or measured_together(measured, alone, gpu_count, mode)
    if found is not None:
        return found
    question = msgspec.structs.replace(one.question, batch_size=alone.case.batch_size)
    model = scaling(question, spec, gpu_count, alone.samples_per_s, sharded=mode is ParallelMode.FSDP)
    return Efficiency(model.efficiency, model.low, model.high, model.basis)


def measured_efficiency(
    runs: Sequence[Run],
    case: Case,
    gpu_key: str,
    gpu_count: int,
    mode: ParallelMode = ParallelMode.DDP,
) -> Efficiency | None:
    """Return the efficiency of n GPUs if runs have the case on one GPU and on n, else None.

    Example: three GPUs do 2,700/s and one does 1,000/s, so it is 2,700 / (3 x 1,000) = 0.9. Several GPUs are
    measured in eager mode. A host-bound row shows the efficiency of the host, so it says nothing of a graph.
    """
    several = msgspec.structs.replace(case, gpu_count=gpu_count, parallel_mode=mode)
    exact = _efficiency(runs, several, gpu_key, _UNFIT)
    if exact is not None or case.execution is Execution.EAGER:
        return exact
    eager = msgspec.structs.replace(several, execution=Execution.EAGER)
    return _efficiency(runs, eager, gpu_key, _UNFIT | {FindingKind.HOST_BOUND})


def measured_together(
    runs: Sequence[Run], alone: Estimate, gpu_count: int, mode: ParallelMode
) -> Efficiency | None:
    """Return the efficiency of a sharded job relative to the estimate for one GPU; None if no run has it.

    Several GPUs are measured in eager mode.
    """
    if mode is not ParallelMode.FSDP:
        return None
    several = msgspec.structs.replace(
        alone.case, gpu_count=gpu_count, parallel_mode=mode, execution=Execution.EAGER
    )
    found = _readings(runs, several, alone.gpu_key, _UNFIT)
    rates = [(each, rate) for each in found if (rate := each.samples_per_s)]
    if not rates:
        return None
    together, rate = rates[-1]
    return _measured(rate / gpu_count / alone.samples_per_s, together)


def _efficiency(
    runs: Sequence[Run], several: Case, gpu_key: str, unfit: frozenset[FindingKind]
) -> Efficiency | None:
    gpu_count = several.gpu_count
    found = [_readings(runs, each, gpu_key, unfit) for each in (several.on_one_gpu, several)]
    if not all(found):
        return None
    alone, together = (readings[-1] for readings in found)  # runs come oldest first
    if not alone.samples_per_s or not together.samples_per_s:
        return None
    likely = together.samples_per_s / gpu_count / alone.samples_per_s
    return None if likely > MOST_EFFICIENT else _measured(likely, alone, together)


def _measured(likely: float, *by: Measurement) -> Efficiency:
    # Return an efficiency with the interval from the errors of its measurements.
    width = math.hypot(*(each.relative_half_width or 0.0 for each in by))
    return Efficiency(likely, likely / (1 + width), likely * (1 + width), "measured")


def _readings(
    runs: Iterable[Run], case: Case, gpu_key: str, unfit: frozenset[FindingKind]
) -> list[Measurement]:
    return [
        measurement
        for run in runs
        if run.device.gpu_key == gpu_key
        for measurement in run.measurements
        if measurement.case == case and measurement.status is Status.OK
        if not any(f.kind in unfit for f in measurement.findings)
    ]
