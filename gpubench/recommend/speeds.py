"""The throughput of one GPU of each model, with interval and draws, and how n GPUs share one job.

Several workloads are combined into one speed. The scaling efficiency of n GPUs is measured if runs measured
one GPU and n, else modeled.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from gpubench.arrays import Floats
from gpubench.findings import UNFOUNDED
from gpubench.models import (
    Basis,
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
from gpubench.models.ranking import MODELED
from gpubench.predict import memory
from gpubench.predict.model import scaling
from gpubench.predict.question import UNKNOWN_NOISE, Question, Reading, Refusal
from gpubench.profile.allowance import card_of
from gpubench.stats import Z90, Z95

Answers = Mapping[str, Estimate | Refusal]


Drawer = Callable[[Sequence[Estimate], int, int], Floats]
"""Maps (estimates, number of draws, seed) to the draws of each throughput [samples/s]."""

# A combined estimate has the weakest basis of its parts, and is not anchored if one of them is not.
_WEAKEST_LAST: tuple[Basis, ...] = ("measured", "reference", "predicted")
_ANCHORED_LAST = (False, None, True)


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of GPUs, one GPU per row.

    Attributes:
        keys: GPU keys, in the order of the rows of all other fields.
        estimates: The estimate for each GPU, combined over the workloads if there are several.
        parts: For each GPU, the estimates before they were combined, one per workload.
        samples_per_s, low, high: (G,) throughput of one GPU; NaN bounds are unknown.
        draws: (G, D) joint draws of the throughput.
        refusals: Why a GPU has no figure, by GPU key.

    If a job fits only on several GPUs together, the throughput is what one of them would reach if the whole
    job fit on it.
    """

    keys: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    parts: tuple[tuple[Estimate, ...], ...]
    samples_per_s: Floats
    low: Floats
    high: Floats
    draws: Floats
    refusals: dict[str, str]

    def row_of_one(self, key: str) -> int | None:
        """Return the row of a GPU; None if it has no figure, or if the job does not fit on a single one."""
        row = self.keys.index(key) if key in self.keys else None
        return None if row is None or self.estimates[row].fewest_gpus > 1 else row


def combine(
    answers: Mapping[str, Answers], shares: Mapping[str, float], drawer: Drawer, draws: int, seed: int
) -> Speeds:
    """Combine the answers for each workload into one speed for each GPU.

    A single workload keeps its speed. Several workloads without shares are combined by the geometric mean of
    their samples/s, which ranks GPUs in the same order as the geometric mean of their speedups over any one
    GPU. With shares, the result is the rate of that mixture of samples: 1 / sum(share_i / s_i).

    The error of a GPU is assumed to be the same for all workloads: its draws use the same random numbers. An
    average over workloads therefore does not look more certain than a single workload.

    Args:
        answers: The answers by workload, then by GPU key.
        shares: Share of the samples by workload; empty for the geometric mean.
        drawer: A function such as ``predict.answers.draw``.
        draws: Number of joint draws.
        seed: Equal seeds give equal draws.
    """
    names, tables = list(answers), list(answers.values())
    refusals = {  # a GPU refused for several workloads gets the reason of the first workload
        key: answer.reason
        for table in reversed(tables)
        for key, answer in table.items()
        if isinstance(answer, Refusal)
    }
    keys = tuple(key for key in tables[0] if key not in refusals and all(key in table for table in tables))
    by_workload = [[answer for key in keys if isinstance(answer := table[key], Estimate)] for table in tables]
    parts = tuple(zip(*by_workload, strict=True)) if keys else ()
    point, low, high = (
        _mean_of(
            np.array([[getattr(e, field) for e in row] for row in by_workload], dtype=float), names, shares
        )
        for field in ("samples_per_s", "low", "high")
    )
    return Speeds(
        keys=keys,
        estimates=tuple(
            _merged(part, *figures) for part, *figures in zip(parts, point, low, high, strict=True)
        ),
        parts=parts,
        samples_per_s=point,
        low=low,
        high=high,
        draws=_mean_of(np.array([drawer(row, draws, seed) for row in by_workload]), names, shares),
        refusals=refusals,
    )


def gpus_needed(fewest: int) -> str:
    """Return how many GPUs a job needs for its memory: ``fits on 1``, ``needs 2 with FSDP``."""
    return "fits on 1" if fewest == 1 else f"needs {fewest} with FSDP"


def batches_of(estimates: Sequence[Estimate]) -> tuple[int, ...]:
    """Return the batch size of each workload that a figure combines, in order."""
    return tuple(estimate.case.batch_size for estimate in estimates)


def _mean_of(rates: Floats, workloads: Sequence[str], shares: Mapping[str, float]) -> Floats:
    """Return the combined rate of several workloads, which lie along the first axis.

    Without shares it is the geometric mean: 200/s and 800/s give 400/s. With shares it is the rate of the
    mixture: half at 100/s and half at 300/s give 1 / (0.5/100 + 0.5/300) = 150/s.
    """
    if len(workloads) == 1:
        return np.asarray(rates[0])
    if not shares:
        return np.asarray(np.exp(np.log(rates).mean(axis=0)))
    weights = np.array([shares[name] for name in workloads])
    return np.asarray(1 / np.tensordot(weights / weights.sum(), 1 / rates, axes=1))


def _merged(parts: tuple[Estimate, ...], point: float, low: float, high: float) -> Estimate:
    if len(parts) == 1:
        return parts[0]
    weakest = max((part.basis for part in parts), key=_WEAKEST_LAST.index)
    return msgspec.structs.replace(
        with_memory_of(parts[0], parts),
        samples_per_s=float(point),
        low=None if math.isnan(low) else float(low),
        high=None if math.isnan(high) else float(high),
        basis=weakest,
        method=f"{len(parts)} workloads together; {parts[0].method}",
        evidence=tuple(dict.fromkeys(item for part in parts for item in part.evidence)),
        anchored=min((part.anchored for part in parts), key=_ANCHORED_LAST.index),
        fits_memory=True if all(part.fits_memory for part in parts) else None,
        largest_batch=None,
        fewest_gpus=max(part.fewest_gpus for part in parts),
        host_share=max((p.host_share for p in parts if p.host_share is not None), default=None),
        host_cpu=next((p.host_cpu for p in parts if p.host_cpu), None),
        origin=next((p.origin for p in parts if p.origin), None),
        findings=tuple(dict.fromkeys(item for part in parts for item in part.findings)),
    )


def with_memory_of(estimate: Estimate, parts: Sequence[Estimate]) -> Estimate:
    """Return an estimate with the memory figures of the workload that needs the most."""
    largest = max(parts, key=lambda part: part.device_bytes.high or 0)
    return msgspec.structs.replace(
        estimate,
        peak_memory_bytes=max((p.peak_memory_bytes for p in parts if p.peak_memory_bytes), default=None),
        device_bytes=largest.device_bytes,
        memory_text=largest.memory_text,
    )


def with_fits(
    parts: tuple[Estimate, ...], fits: Sequence[MemoryFit | None], *, sharded: bool
) -> tuple[Estimate, ...]:
    """Return the estimates of single workloads, each with the memory figures of its fit, if it has one.

    Args:
        parts: The estimates for one GPU.
        fits: How each workload fits in the memory of each GPU.
        sharded: Whether the GPUs shard the job by FSDP.
    """
    if not any(fits):
        return parts
    return tuple(
        part
        if fit is None
        else msgspec.structs.replace(
            part,
            peak_memory_bytes=fit.need.allocated_bytes,
            memory_text=fit.text(sharded=sharded),
            fits_memory=True if fit.fits else None,
            largest_batch=max(fit.largest_batch, part.largest_batch or 0),
            device_bytes=fit.need.device_bytes,
        )
        for part, fit in zip(parts, fits, strict=True)
    )


# --- several GPUs ---------------------------------------------------------------------------------------

# A measurement with one of these findings does not show how GPUs scale.
_UNFIT = UNFOUNDED | {FindingKind.THROTTLED, FindingKind.SHARED_GPU, FindingKind.UNEQUAL_GPUS}
# A measured efficiency above this is an error in the data.
_MOST_EFFICIENT = 1.05


@dataclass(frozen=True, slots=True)
class Scaling:
    """How n GPUs share one workload, or all workloads of a job.

    Attributes:
        efficiency, low, high: Throughput of n GPUs divided by n times that of one with the same recipe, with
            the 90 % interval.
        by_recipe: Rate of one GPU with the recipe of the shared job, divided by its rate with the recipe for
            a single GPU. Multiplied by the efficiency, it is the rate per GPU of the shared job divided by
            the rate of a single GPU.
        basis: Where the figure is from: measured, modeled, or no sharing ("single GPU", "independent jobs").
        mode: How the GPUs share the job: FSDP if any workload fits only with it.
        fits: How each workload fits in the memory of each GPU; None if it does not, or if this is unknown.
    """

    efficiency: float
    low: float
    high: float
    basis: str
    by_recipe: float = 1.0
    mode: ParallelMode = ParallelMode.DDP
    fits: tuple[MemoryFit | None, ...] = ()


Scaler = Callable[[str, GpuSpec, int, Estimate], Scaling]
"""Maps (workload, GPU, number of GPUs, estimate for one GPU) to the scaling on these GPUs."""

SINGLE = Scaling(1.0, 1.0, 1.0, "single GPU", mode=ParallelMode.SINGLE)
INDEPENDENT = Scaling(1.0, 1.0, 1.0, "independent jobs", mode=ParallelMode.INDEPENDENT)


def scaling_of(
    spec: GpuSpec | None,
    gpu_count: int,
    parts: Mapping[str, Estimate],
    *,
    scaler: Scaler | None,
    shares: Mapping[str, float],
) -> Scaling:
    """Return how an instance scales, over all workloads together.

    Args:
        spec: The GPU of the instance.
        gpu_count: Number of its GPUs.
        parts: The estimate for one GPU, by workload.
        scaler: Returns the scaling of one job over all GPUs, or of one job on each. None stands for separate
            jobs that do not slow each other down.
        shares: Share of the samples by workload; empty for the geometric mean of the workloads.
    """
    if gpu_count == 1:
        return SINGLE
    if scaler is None or spec is None:
        return INDEPENDENT
    names = list(parts)
    scalings = [scaler(name, spec, gpu_count, part) for name, part in parts.items()]
    alone = np.array([part.samples_per_s for part in parts.values()])
    with_recipe = alone * np.array([each.by_recipe for each in scalings])
    one_gpu = _mean_of(with_recipe, names, shares)
    efficiency, low, high = (
        float(_mean_of(with_recipe * np.array([getattr(s, end) for s in scalings]), names, shares) / one_gpu)
        for end in ("efficiency", "low", "high")
    )
    bases, modes = ({getattr(each, field) for each in scalings} for field in ("basis", "mode"))
    mixed = INDEPENDENT.basis if INDEPENDENT.basis in bases else MODELED
    return Scaling(
        efficiency,
        low,
        high,
        basis=bases.pop() if len(bases) == 1 else mixed,
        by_recipe=float(one_gpu / _mean_of(alone, names, shares)),
        mode=ParallelMode.FSDP if ParallelMode.FSDP in modes else modes.pop(),
        fits=tuple(fit for each in scalings for fit in each.fits),
    )


class Sharing(NamedTuple):
    """How several GPUs share one job.

    Attributes:
        fit: How the job fits in the memory of each GPU; None if it does not, or if this is unknown.
        reason: Why it does not fit; None if it fits.
    """

    mode: ParallelMode
    fit: MemoryFit | None = None
    reason: str | None = None


def sharing_of(
    question: Question,
    alone: Estimate | Refusal,
    spec: GpuSpec,
    gpu_count: int,
    *,
    measured: Sequence[Run],
    peaks: Sequence[Reading],
) -> Sharing:
    """Return how this many GPUs share one job: each holds all weights if they fit, else a shard of them.

    A job that was measured on this many GPUs fits, whatever the memory model says.

    Args:
        question: The question with the recipe for this many GPUs.
        alone: The estimate for one GPU with that recipe.
        spec: The GPU.
        gpu_count: Number of GPUs.
        measured: All runs.
        peaks: Measurements of the workload's peak memory.
    """
    if isinstance(alone, Refusal):
        return Sharing(ParallelMode.FSDP, reason=alone.reason)
    question = msgspec.structs.replace(question, batch_size=alone.case.batch_size)
    whole = None
    if alone.fewest_gpus == 1:
        whole = _whole_on_each(question, spec, gpu_count, alone, measured=measured, peaks=peaks)
        if whole.reason is None:
            return whole
    fit = memory.sharded_fit_of(question, alone.case, spec, peaks, gpu_count)
    if fit is not None and _measured_together(measured, alone, gpu_count, ParallelMode.FSDP):
        fit = fit.after_a_run(alone.case.batch_size)
    if whole is not None and (fit is None or not fit.fits):
        return whole
    if fit is None or fit.fits:
        return Sharing(ParallelMode.FSDP, fit)
    case = question.profile.shared_by(alone.case, gpu_count, ParallelMode.FSDP)
    return Sharing(ParallelMode.FSDP, reason=_why_no_fit(case, fit))


def _whole_on_each(
    question: Question,
    spec: GpuSpec,
    gpu_count: int,
    alone: Estimate,
    *,
    measured: Sequence[Run],
    peaks: Sequence[Reading],
) -> Sharing:
    # Return how a job fits, or why it does not, if each GPU holds all weights and the buckets for exchanging
    # gradients.
    mode = ParallelMode.DDP
    case = msgspec.structs.replace(alone.case, gpu_count=gpu_count, parallel_mode=mode)
    card = card_of(spec)
    if card is None:
        return Sharing(mode)
    need = memory.need_of(question, case, spec, peaks)
    if card.verdict_of(need.device) is Verdict.FITS:
        # The usual case needs no search for the largest batch.
        there = MemoryFit(verdict=Verdict.FITS, need=need, card=card, largest_batch=case.batch_size)
        return Sharing(mode, there)
    fit = memory.fit_of(question, case, spec, peaks)
    assert fit is not None  # the card's memory is known
    if measured_efficiency(measured, alone.case, spec.key, gpu_count):
        return Sharing(mode, fit.after_a_run(case.batch_size))
    if alone.batch_choice == "largest" and 2 * fit.largest_batch >= case.batch_size:
        # A job on several GPUs can take a somewhat smaller batch, at nearly the same rate.
        smaller = msgspec.structs.replace(case, batch_size=fit.largest_batch)
        return Sharing(mode, memory.fit_of(question, smaller, spec, peaks))
    return Sharing(mode, reason=_why_no_fit(case, fit))


def _why_no_fit(case: Case, fit: MemoryFit) -> str:
    recipe = "" if case.checkpointing is Checkpointing.NONE else f" with {case.checkpointing} checkpointing"
    full = "; `--recipe checkpointing=full` needs less"
    return (
        f"{case.workload} at batch {case.batch_size:,}{recipe} on each of {case.gpu_count} GPUs: "
        f"{fit.text()}{full if case.checkpointing is Checkpointing.SELECTIVE else ''}"
    )


def efficiency_of(
    question: Question,
    alone: Estimate,
    spec: GpuSpec,
    gpu_count: int,
    *,
    mode: ParallelMode,
    measured: Sequence[Run],
) -> Scaling:
    """Return the efficiency of this many GPUs, each at the batch size of one alone: measured or modeled."""
    found = measured_efficiency(measured, alone.case, spec.key, gpu_count, mode)
    found = found or _measured_together(measured, alone, gpu_count, mode)
    if found is not None:
        return found
    question = msgspec.structs.replace(question, batch_size=alone.case.batch_size)
    model = scaling(question, spec, gpu_count, alone.samples_per_s, sharded=mode is ParallelMode.FSDP)
    return Scaling(*model, MODELED)


def measured_efficiency(
    runs: Sequence[Run],
    case: Case,
    gpu_key: str,
    gpu_count: int,
    mode: ParallelMode = ParallelMode.DDP,
) -> Scaling | None:
    """Return the efficiency of n GPUs if runs measured the case on one GPU and on n, else None.

    Example: if three GPUs do 2,700/s and one does 1,000/s, the efficiency is 2,700 / (3 x 1,000) = 0.9. Runs
    measure several GPUs in eager mode. Their efficiency is also used for a CUDA graph, unless a measurement
    was host-bound: it then says more about the host than about the GPUs.
    """
    several = msgspec.structs.replace(case, gpu_count=gpu_count, parallel_mode=mode)
    exact = _efficiency(runs, several, gpu_key, _UNFIT)
    if exact is not None or case.execution is Execution.EAGER:
        return exact
    eager = msgspec.structs.replace(several, execution=Execution.EAGER)
    return _efficiency(runs, eager, gpu_key, _UNFIT | {FindingKind.HOST_BOUND})


def _measured_together(
    runs: Sequence[Run], alone: Estimate, gpu_count: int, mode: ParallelMode
) -> Scaling | None:
    """Return the efficiency of a sharded job relative to the estimate for one GPU; None if not measured.

    Runs measure several GPUs in eager mode.
    """
    if mode is not ParallelMode.FSDP:
        return None
    several = msgspec.structs.replace(
        alone.case, gpu_count=gpu_count, parallel_mode=mode, execution=Execution.EAGER
    )
    found = _usable(runs, several, alone.gpu_key, _UNFIT)
    rates = [(each, rate) for each in found if (rate := each.samples_per_s)]
    if not rates:
        return None
    together, rate = rates[-1]
    return _measured(rate / gpu_count / alone.samples_per_s, together)


def _efficiency(
    runs: Sequence[Run], several: Case, gpu_key: str, unfit: frozenset[FindingKind]
) -> Scaling | None:
    found = [_usable(runs, each, gpu_key, unfit) for each in (several.on_one_gpu, several)]
    if not all(found):
        return None
    alone, together = (measurements[-1] for measurements in found)  # the newest
    if not alone.samples_per_s or not together.samples_per_s:
        return None
    likely = together.samples_per_s / several.gpu_count / alone.samples_per_s
    return None if likely > _MOST_EFFICIENT else _measured(likely, alone, together)


def _measured(likely: float, *by: Measurement) -> Scaling:
    # Return a measured efficiency. Its 90 % interval combines the 95 % intervals of its measurements; an
    # unknown interval is assumed to be UNKNOWN_NOISE.
    width = Z90 / Z95 * math.hypot(*(each.relative_half_width or UNKNOWN_NOISE for each in by))
    return Scaling(likely, likely / (1 + width), likely * (1 + width), "measured")


def _usable(
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
