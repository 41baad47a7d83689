"""Peak memory of one step from a profile alone, and whether it fits: search and ranking ask here."""

from __future__ import annotations

import bisect
import math
from typing import NamedTuple

import msgspec

from gpubench.interval import Interval
from gpubench.models import (
    CardClass,
    CardMemory,
    MemoryBasis,
    MemoryFit,
    MemoryLine,
    MemoryNeed,
    MemoryParts,
    OperatorKind,
    Precision,
    StepMemory,
    TaskKind,
    Verdict,
    WorkloadProfile,
)
from gpubench.profile.allowance import TRACE_SHARE, ClassAllowance, device_bytes, load_allowance
from gpubench.units import MIB
from gpubench.workload import BATCH_COUNT

MOST_BATCH = 2**20
"""No batch beyond this is searched or ranked: throughput has long stopped growing, and nobody trains so."""
WORKSPACE_BYTES = 256 * MIB
"""Scratch space of cuDNN and cuBLAS, which torch's allocator hands out beside the tensors."""
UNTRACED_FACTOR = 2.0
"""Over the formula for a model that could not be traced: it is too low by up to this for language models."""
UNTRACED_LOW_FACTOR = 2.3
"""Below the formula: it is too high by up to this where most weights are frozen and adapters are trained."""
FP32_BYTES = 4
GRADIENT_SHARE = 0.5
"""Of what the widest operator reads and writes: the gradient of its output."""


def peak_memory_bytes(
    profile: WorkloadProfile, task: TaskKind, precision: Precision, batch_size: int
) -> float:
    """Estimate the peak of one step, as torch counts what is allocated, with the libraries' workspace [B].

    Weights, gradients, optimizer state, activations, transients, and the prebuilt batches. Traced where the
    model could be, else the formula's estimate, raised by what it was ever too low. For planning; whether a
    step fits is for ``judge`` to say.
    """
    step = _step(profile, task, precision)
    if step is not None:
        return WORKSPACE_BYTES + step.peak(batch_size).at(batch_size)
    return WORKSPACE_BYTES + UNTRACED_FACTOR * _formula(profile, task, precision).at(batch_size)


def need_of(
    profile: WorkloadProfile,
    task: TaskKind,
    precision: Precision,
    batch_size: int,
    card_class: CardClass,
    *,
    measured_bytes: float | None = None,
    scale: float = 1.0,
) -> MemoryNeed:
    """Estimate what one step needs on a class of card, in three figures with their intervals.

    Args:
        profile: Of the workload.
        task: A training step or a forward pass.
        precision: Of the case.
        batch_size: Samples per step on one GPU.
        card_class: On which context, driver and libraries take alike.
        measured_bytes: Peak that tensors took in this very case, on any GPU; replaces the model.
        scale: Measured over estimated peak, where this workload was measured at another batch.
    """
    allowance = load_allowance().classes[card_class]
    traced = _step(profile, task, precision)
    if measured_bytes is not None:
        figures = _measured(allowance, measured_bytes)
        basis = MemoryBasis.MEASURED
    elif traced is not None:
        figures = _traced(allowance, scale * traced.peak(batch_size).at(batch_size))
        basis = MemoryBasis.TRACED
    else:
        figures = _by_formula(allowance, scale * _formula(profile, task, precision).at(batch_size))
        basis = MemoryBasis.FORMULA
    untraced = None if traced is not None or measured_bytes is not None else _why_untraced(profile)
    parts = _parts(profile, task, precision, batch_size, figures)
    return MemoryNeed(
        allocated=figures.allocated,
        reserved=figures.reserved,
        device=figures.device,
        parts=parts,
        basis=basis,
        untraced=untraced,
    )


def judge(
    profile: WorkloadProfile,
    task: TaskKind,
    precision: Precision,
    batch_size: int,
    card: CardMemory,
    *,
    measured_bytes: float | None = None,
    scale: float = 1.0,
) -> MemoryFit:
    """Say whether one step fits on a card: the one place that ranking, prediction, search and report ask.

    The upper end of the memory in use decides. Args as ``need_of``.
    """
    need = need_of(
        profile, task, precision, batch_size, card.card_class, measured_bytes=measured_bytes, scale=scale
    )
    verdict = card.verdict_of(need.device)
    largest = largest_batch(profile, task, precision, card, scale=scale)
    largest = max(largest, batch_size) if verdict is Verdict.FITS else min(largest, batch_size - 1)
    return MemoryFit(verdict=verdict, need=need, card=card, largest_batch=largest)


def largest_batch(
    profile: WorkloadProfile,
    task: TaskKind,
    precision: Precision,
    card: CardMemory,
    *,
    scale: float = 1.0,
) -> int:
    """The largest batch that fits a card, ``MOST_BATCH`` at most; 0 where none does. Args as ``judge``."""
    allowance = load_allowance().classes[card.card_class]
    step = _step(profile, task, precision)
    formula = _formula(profile, task, precision) if step is None else None

    def fits(batch_size: int) -> bool:
        if formula is not None:
            high = _by_formula(allowance, scale * formula.at(batch_size)).device.high
        else:
            assert step is not None
            high = _traced(allowance, scale * step.peak(batch_size).at(batch_size)).device.high
        return high is not None and high <= card.usable_bytes

    return bisect.bisect_left(range(1, MOST_BATCH + 1), True, key=lambda batch: not fits(batch))


def scale_of(
    profile: WorkloadProfile, task: TaskKind, precision: Precision, batch_size: int, measured_bytes: float
) -> float:
    """Measured over estimated peak: what another batch of the same workload is scaled by.

    A measured peak holds the scratch space of the libraries, which weighs most in small steps: with it in the
    estimate too, a small step says little of a large one.
    """
    step = _step(profile, task, precision)
    likely = _formula(profile, task, precision) if step is None else step.peak(batch_size)
    return measured_bytes / (WORKSPACE_BYTES + likely.at(batch_size))


# --- three figures -------------------------------------------------------------------------------------


class _Figures(NamedTuple):
    allocated: Interval
    reserved: Interval
    device: Interval


def _measured(allowance: ClassAllowance, peak: float) -> _Figures:
    """Left is what the allocator holds beside, which differs little within one model."""
    spread = math.exp(allowance.half_width_within)
    return _Figures(
        Interval(peak, peak, peak),
        Interval(allowance.factor * peak, peak, allowance.factor * peak * spread),
        Interval(
            device_bytes(allowance, peak),
            allowance.overhead_bytes / spread + peak,
            device_bytes(allowance, peak) * spread,
        ),
    )


def _traced(allowance: ClassAllowance, peak: float) -> _Figures:
    """How much of the factor is scratch space, and so allocated, is not known: it is the upper end."""
    spread = math.exp(allowance.half_width)
    reserved = allowance.factor * peak
    device = device_bytes(allowance, peak)
    low = (1 - TRACE_SHARE) * peak
    return _Figures(
        Interval(peak, low, reserved * spread),
        Interval(reserved, low, reserved * spread),
        Interval(device, device / spread, device * spread),
    )


def _by_formula(allowance: ClassAllowance, peak: float) -> _Figures:
    """The widest bound: the formula was ever off by this much either way."""
    high = _traced(allowance, UNTRACED_FACTOR * peak)
    low = _traced(allowance, peak / UNTRACED_LOW_FACTOR)
    likely = _traced(allowance, peak)
    return _Figures(*(Interval(v.value, a.low, b.high) for v, a, b in zip(likely, low, high, strict=True)))


def _parts(
    profile: WorkloadProfile, task: TaskKind, precision: Precision, batch_size: int, figures: _Figures
) -> MemoryParts:
    """Split the likely figure; a measured peak that differs from the trace shows in the transients."""
    allocated, device, high = figures.allocated.value, figures.device.value, figures.device.high
    assert allocated is not None
    assert device is not None
    assert high is not None
    step = _step(profile, task, precision)
    if step is None:
        weights = float(profile.parameters * FP32_BYTES)
        train = task is TaskKind.TRAIN
        gradients = profile.trainable_parameters * FP32_BYTES if train else 0.0
        states = profile.trainable_parameters * profile.optimizer_bytes_per_parameter if train else 0.0
        saved = batch_size * profile.saved_bytes_per_sample * (0.5 if precision.is_amp else 1.0)
        saved = saved if train else 0.0
    else:
        weights, states = step.weights_bytes, step.optimizer_bytes
        gradients = step.peak(batch_size).gradient_bytes
        saved = step.saved.at(batch_size) if step.saved is not None else 0.0
    activations = max(0.0, allocated - weights - states - gradients)
    saved = min(saved, activations)
    return MemoryParts(
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=states,
        saved_bytes=saved,
        transient_bytes=activations - saved,
        workspace_bytes=device - weights - states - gradients - activations,
        margin_bytes=high - device,
    )


def _step(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> StepMemory | None:
    for traced in profile.memory:
        if traced.task is task and traced.is_amp is precision.is_amp and not traced.recomputed:
            return traced
    return None


def with_blocks_recomputed(profile: WorkloadProfile) -> WorkloadProfile | None:
    """The profile of the model with activation checkpointing; None where that was not traced."""
    again = tuple(
        msgspec.structs.replace(step, recomputed=False) for step in profile.memory if step.recomputed
    )
    return msgspec.structs.replace(profile, memory=again) if again else None


def _why_untraced(profile: WorkloadProfile) -> str:
    return profile.memory_untraced or "its profile was made before steps were traced"


# --- the formula, for what cannot be traced ------------------------------------------------------------


def _formula(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> MemoryLine:
    inputs = BATCH_COUNT * FP32_BYTES * math.prod(profile.sample_shape)
    activations = _activation_bytes(profile, task, precision)
    return MemoryLine(
        fixed_bytes=_fixed_bytes(profile, task, precision), bytes_per_sample=activations + inputs
    )


def _fixed_bytes(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> float:
    weights = float(profile.parameters * FP32_BYTES)
    if precision.is_amp:
        weights *= 1.5  # autocast keeps a half-precision copy during the forward pass
    if task is TaskKind.INFER:
        return weights
    return weights + profile.trainable_parameters * (FP32_BYTES + profile.optimizer_bytes_per_parameter)


def _activation_bytes(profile: WorkloadProfile, task: TaskKind, precision: Precision) -> float:
    """Activations of one sample, all saved ones in training; frozen layers save nothing."""
    scale = 0.5 if precision.is_amp else 1.0
    train = task is TaskKind.TRAIN
    operators = profile.train if train else profile.infer
    widest = max(
        (op.bytes_per_sample for op in operators if op.kind is not OperatorKind.OPTIMIZER), default=0
    )
    saved = profile.saved_bytes_per_sample if train else 0.0
    return scale * max(saved + GRADIENT_SHARE * widest, widest)
