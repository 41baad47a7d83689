"""Estimate the peak memory of one step from its profile, and judge whether it fits on a card."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import msgspec

from gpubench.interval import Interval
from gpubench.models import (
    CardClass,
    CardMemory,
    Case,
    Checkpointing,
    Execution,
    MeasuredMemory,
    MemoryBasis,
    MemoryFit,
    MemoryNeed,
    OperatorKind,
    ParallelMode,
    Precision,
    StepMemory,
    TaskKind,
    Trainable,
    Verdict,
    WeightType,
    WorkloadProfile,
)
from gpubench.profile.allowance import ClassAllowance, load_allowance
from gpubench.profile.memory_figures import (
    WORKSPACE_BYTES,
    Figures,
    Held,
    Scratch,
    algorithm_bytes,
    compiled_loss_of,
    estimated,
    held_by_one,
    measured_figures,
    on_several,
    parts_of,
    scratch_of,
)
from gpubench.recipes import ADAPTER_BASES, LOSS_CHUNKS
from gpubench.workload import BATCH_COUNT

MOST_BATCH = 2**20
"""Largest batch to search or rank: throughput stops growing far below it, and nobody trains with more."""
# Evaluations along lines before the search for the largest batch bisects: a line takes four, a bend two
_LOOKS_ALONG_LINES = 8
LEAST_SCALING_BYTES = 4 * WORKSPACE_BYTES
"""Least memory of a step for its measured peak to scale other batches; below it, the workspace dominates."""
UNTRACED_FACTOR = 2.0
"""Ratio of upper end to formula: for language models, the formula is too low by up to this factor."""
UNTRACED_LOW_FACTOR = 2.3
"""Ratio of formula to lower end: for adapters on frozen weights, the formula is too high by up to this."""
COMPILED_LEAST = 0.6
"""Lower end of a compiled step, relative to an eager one: a compiled loss keeps no scores in float32. The
lowest of 14 published readings is 0.66 of the trace of the eager step (Llama 3 8B on B200s)."""
FP32_BYTES = 4
GRADIENT_SHARE = 0.5
"""Share of the traffic of the widest operator that is the gradient of its output."""


def planned_peak_bytes(profile: WorkloadProfile, case: Case) -> float:
    """Estimate the memory to plan for: that of the tensors, and a workspace for the libraries [B].

    The tensors are weights, gradients, optimizer state, activations, transients, and the prebuilt batches:
    traced if possible, else estimated by the formula and raised by its largest known error. Whether a step
    fits is decided by ``judge_fit``.
    """
    held = _held(profile, case)
    if held is not None:
        return WORKSPACE_BYTES + held.total
    return WORKSPACE_BYTES + UNTRACED_FACTOR * _formula(profile, case).total


@lru_cache(maxsize=4096)  # cards of one class have the same need
def need_of(
    profile: WorkloadProfile,
    case: Case,
    card_class: CardClass,
    *,
    measured: MeasuredMemory | None = None,
    scale: float = 1.0,
    accumulate: int = 1,
) -> MemoryNeed:
    """Estimate the memory of one step on one GPU of a class of card, in three figures with intervals.

    Args:
        profile: Profile of the workload.
        case: Task, precision, batch, recipe, and how several GPUs share the work.
        card_class: Cards on which context, driver and libraries take the same memory.
        measured: Measured memory of this exact case, on any GPU; replaces the model.
        scale: From ``scale_of``, if this workload was measured at another batch.
        accumulate: Number of micro-batches that the batch is split into, run one after the other. Their
            gradients are summed, so they are alive through the whole step. Must be 1 with ``measured``.
    """
    allowance = _allowance(profile, case, card_class)
    traced = _held(profile, case, accumulate)
    held = traced or _formula(profile, case, accumulate)
    scratch = scratch_of(profile, _micro(case, accumulate), card_class)
    figures = estimated(allowance, held.scaled(1.0 if measured else scale), case.gpu_count, scratch)
    step_basis = MemoryBasis.SHAPE if profile.is_by_shape else MemoryBasis.TRACED
    basis = MemoryBasis.FORMULA if traced is None else step_basis
    if measured is not None:
        there = None if measured.card_class is None else _allowance(profile, case, measured.card_class)
        figures = measured_figures(allowance, there, measured, held.pinned)
        basis = MemoryBasis.MEASURED
    untraced = None if traced is not None or measured is not None else _why_untraced(profile, case)
    return MemoryNeed(
        allocated=figures.allocated,
        reserved=figures.reserved,
        device=figures.device,
        parts=parts_of(held, figures, scratch),
        basis=basis,
        untraced=untraced,
        not_linear=None if measured is not None else _why_no_line(profile, case, accumulate),
        algorithm_bytes=0.0 if measured is not None else scratch.algorithm,
        compiled_loss=compiled_loss_of(
            profile,
            _micro(case, accumulate),
            step_of(profile, case),
            scale * (held.total + held.separate),
            figures.reserved,
        ),
    )


def need_on(
    profile: WorkloadProfile,
    case: Case,
    card: CardMemory,
    *,
    measured: MeasuredMemory | None = None,
    scale: float = 1.0,
    accumulate: int = 1,
) -> MemoryNeed:
    """Estimate the memory of one step on a card; it fits there if a published step of that size ran there.

    Args as in ``need_of``.
    """
    need = need_of(profile, case, card.card_class, measured=measured, scale=scale, accumulate=accumulate)
    traced = _held(profile, case, accumulate) if measured is None and card.ran_bytes else None
    return need if traced is None else _as_ran(need, traced.scaled(scale), case, card)


@lru_cache(maxsize=4096)  # many cards have the same memory
def judge_fit(
    profile: WorkloadProfile,
    case: Case,
    card: CardMemory,
    *,
    measured: MeasuredMemory | None = None,
    scale: float = 1.0,
    accumulate: int = 1,
) -> MemoryFit:
    """Say whether one step fits on a card; ranking, prediction, search and report all use this function.

    The upper end of the memory in use decides. If a step does not fit in a CUDA graph, its eager form is
    checked instead: it needs less memory, and a job can use it. Args as in ``need_of``.
    """
    need = need_on(profile, case, card, measured=measured, scale=scale, accumulate=accumulate)
    verdict = card.verdict_of(need.device)
    largest = largest_batch(profile, case, card, scale=scale, accumulate=accumulate)
    largest = max(largest, case.batch_size) if verdict is Verdict.FITS else min(largest, case.batch_size - 1)
    one_may_fit = False
    if not largest:
        alone = msgspec.structs.replace(case, batch_size=1)
        of_one = need_on(profile, alone, card, scale=scale, accumulate=accumulate) if case != alone else need
        one_may_fit = card.verdict_of(of_one.device) is Verdict.MAY_FIT
    fit = MemoryFit(verdict=verdict, need=need, card=card, largest_batch=largest, one_may_fit=one_may_fit)
    if verdict is Verdict.FITS or case.execution is not Execution.GRAPH:
        return fit
    eagerly = msgspec.structs.replace(case, execution=Execution.EAGER)
    eager = judge_fit(profile, eagerly, card, measured=measured, scale=scale, accumulate=accumulate)
    if eager.largest_batch != largest:
        both = {"graph_largest_batch": largest, "eager_largest_batch": eager.largest_batch}
        fit, eager = (msgspec.structs.replace(each, **both) for each in (fit, eager))
    return msgspec.structs.replace(eager, graph_high_bytes=need.device.high) if eager.fits else fit


def largest_batch(
    profile: WorkloadProfile, case: Case, card: CardMemory, *, scale: float = 1.0, accumulate: int = 1
) -> int:
    """Return the largest batch of the case that fits on a card, at most ``MOST_BATCH``; 0 if none does.

    Args as in ``judge_fit``; the batch of the case is ignored.
    """
    allowance = _allowance(profile, case, card.card_class)
    step = step_of(profile, case)

    def spare_bytes(batch_size: int) -> float:
        at = msgspec.structs.replace(case, batch_size=batch_size)
        held = _formula(profile, at, accumulate) if step is None else _held_in(step, profile, at, accumulate)
        held = held.scaled(scale)
        scratch = scratch_of(profile, _micro(at, accumulate), card.card_class)
        has_run = step is not None and _has_run(held, at.gpu_count, card)
        return _spare_bytes(estimated(allowance, held, at.gpu_count, scratch), card, has_run=has_run)

    return last_that_fits(spare_bytes)


def largest_of(step: StepMemory, card: CardMemory) -> int:
    """Return the largest batch at which a traced step of a language model fits, as in ``judge_fit``."""
    allowance = load_allowance().of(card.card_class, convolves=False)

    def spare_bytes(batch_size: int) -> float:
        held = held_by_one(step, batch_size, buckets=False)
        return _spare_bytes(estimated(allowance, held, 1, Scratch()), card, has_run=_has_run(held, 1, card))

    return last_that_fits(spare_bytes)


def _spare_bytes(figures: Figures, card: CardMemory, *, has_run: bool) -> float:
    """Return what the upper end of these figures leaves of a card; at least 0 if such a step ran there."""
    high = figures.device.high
    if high is None:
        return -math.inf
    spare = card.usable_bytes - high
    return max(spare, 0.0) if has_run else spare


def _as_ran(need: MemoryNeed, held: Held, case: Case, card: CardMemory) -> MemoryNeed:
    """Cap the figures of a need at the card's memory if a published step of this size ran on it."""
    device = need.device
    if device.high is None or device.high <= card.usable_bytes or not _has_run(held, case.gpu_count, card):
        return need

    def capped(figure: Interval) -> Interval:
        return Interval(
            *(min(end or 0.0, card.usable_bytes) for end in (figure.value, figure.low, figure.high))
        )

    likely = min(device.value or 0.0, card.usable_bytes)
    parts = msgspec.structs.replace(
        need.parts,
        workspace_bytes=need.parts.workspace_bytes - ((device.value or 0.0) - likely),
        margin_bytes=card.usable_bytes - likely,
    )
    return msgspec.structs.replace(
        need,
        allocated=capped(need.allocated),
        reserved=capped(need.reserved),
        device=capped(device),
        parts=parts,
        as_published=True,
        compiled_loss=need.compiled_loss and capped(need.compiled_loss),
    )


def _has_run(held: Held, gpu_count: int, card: CardMemory) -> bool:
    # Whether a published step of at least this size ran on a card of this line with at most this much memory.
    # Published steps are eager, so memory that is pinned in a graph counts in addition to their tensors.
    return gpu_count == 1 and held.most * (held.total + held.separate) + held.pinned <= card.ran_bytes


def last_that_fits(spare_bytes: Callable[[int], float]) -> int:
    """Return the largest batch that leaves memory to spare, at most ``MOST_BATCH``; 0 if none does.

    Memory grows with the batch along a line or pieces of lines, so the point where the line through two
    batches leaves nothing is nearly always the answer. This takes four evaluations instead of the twenty of a
    bisection, and a ranking needs hundreds of answers. If a few evaluations are not enough, the search
    bisects.
    """
    fits, too_large = 0, MOST_BATCH + 1
    before: tuple[int, float] | None = None
    batch = 1
    for look in itertools.count(1):
        spare = spare_bytes(batch)
        if spare >= 0:
            fits = batch
        else:
            too_large = batch
        if too_large - fits == 1:
            return fits
        guess = 2 if look == 1 else None
        if before is not None and look <= _LOOKS_ALONG_LINES:
            fall = (before[1] - spare) / (batch - before[0])
            guess = math.floor(batch + spare / fall) if 0 < fall < math.inf else None
        before = (batch, spare)
        batch = (fits + too_large) // 2 if guess is None else guess
        batch = min(max(batch, fits + 1), too_large - 1)
    raise AssertionError  # pragma: no cover - the loop ends, as every evaluation narrows the gap


def device_of(step: StepMemory, batch_size: int, card_class: CardClass) -> Interval:
    """Return the memory in use of a traced step of a language model on one GPU of a class of card [B]."""
    held = held_by_one(step, batch_size, buckets=False)
    return estimated(load_allowance().of(card_class, convolves=False), held, 1, Scratch()).device


def scale_of(
    profile: WorkloadProfile, case: Case, measured_bytes: float, card_class: CardClass
) -> float | None:
    """Return the factor that a measured peak implies for the estimates of other batches of the workload.

    The excess of a peak over its trace includes up to ``WORKSPACE_BYTES`` of scratch space of the libraries,
    which every upper end already includes, and memory that cuDNN used because it was free: neither grows with
    the batch as tensors do. Only the rest gives a factor. Relative to a trace, the factor is at least 1,
    because the traced tensors always exist.

    Args:
        profile: Profile of the workload.
        case: The measured case.
        measured_bytes: Peak of the allocated memory.
        card_class: Class of the measured card.

    Returns:
        The factor; None for a step below ``LEAST_SCALING_BYTES``, where scratch space matters more than
        tensors.
    """
    traced = _held(profile, case)
    held = traced or _formula(profile, case)
    if held.total < LEAST_SCALING_BYTES:
        return None
    scratch = WORKSPACE_BYTES + algorithm_bytes(profile, case, card_class)
    excess = max(0.0, measured_bytes - held.total - scratch)
    return 1.0 + excess / held.total if traced or excess else min(1.0, measured_bytes / held.total)


def _allowance(profile: WorkloadProfile, case: Case, card_class: CardClass) -> ClassAllowance:
    # What the case needs on a class of card in addition to its trace
    return load_allowance().of(card_class, convolves=profile.convolves(case.task))


# --- traced steps --------------------------------------------------------------------------------------


def _held(profile: WorkloadProfile, case: Case, accumulate: int = 1) -> Held | None:
    # Memory of one GPU at the peak of the case; None if the step was not traced
    step = step_of(profile, case)
    return None if step is None else _held_in(step, profile, case, accumulate)


def _held_in(step: StepMemory, profile: WorkloadProfile, case: Case, accumulate: int) -> Held:
    """Return the memory of one GPU at the peak of the case, from its traced step."""
    case = _micro(case, accumulate)
    kept = accumulate > 1
    if case.task is TaskKind.TRAIN and case.parallel_mode is ParallelMode.FSDP:
        return _as_executed(on_several(step, profile, case, kept=kept), case)
    buckets = case.task is TaskKind.TRAIN and case.parallel_mode is ParallelMode.DDP
    return _as_executed(held_by_one(step, case.batch_size, buckets=buckets, kept=kept), case)


def _as_executed(held: Held, case: Case) -> Held:
    """Adapt the memory of a traced step, which is eager, to the execution of the case.

    A CUDA graph allocates from its own pool. Optimizer states from the first step occupy parts of segments
    that activations had used before. These segments cannot be returned, and the graph cannot use their rest.
    Large blocks are mostly transients, so the transients count twice. Several GPUs are measured eagerly.
    """
    if case.execution is Execution.COMPILE:
        return msgspec.structs.replace(held, least=COMPILED_LEAST * held.least)
    if case.execution is Execution.GRAPH and case.task is TaskKind.TRAIN and case.gpu_count == 1:
        return msgspec.structs.replace(held, pinned=held.transient)
    return held


def _micro(case: Case, accumulate: int) -> Case:
    return msgspec.structs.replace(case, batch_size=-(-case.batch_size // accumulate))


def step_of(profile: WorkloadProfile, case: Case) -> StepMemory | None:
    """Return the traced step of a case; None if none was traced."""
    recipe = case.recipe
    if recipe.weight_type is WeightType.FLOAT16:
        recipe = msgspec.structs.replace(recipe, weight_type=WeightType.BFLOAT16)  # of the same size
    wanted = case.task, case.precision.is_amp, recipe
    steps = (step for traced in (profile, *profile.variants) for step in traced.memory)
    return next((step for step in steps if (step.task, step.is_amp, step.recipe) == wanted), None)


def checkpointed(profile: WorkloadProfile, case: Case) -> tuple[Case, ...]:
    """Return the case with each traced kind of checkpointing that saves more, the cheapest kind first."""
    ways = (Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL)
    more = ways[ways.index(case.checkpointing) + 1 :]
    cases = (msgspec.structs.replace(case, checkpointing=how) for how in more)
    return tuple(each for each in cases if _held(profile, each) is not None)


def chunked(profile: WorkloadProfile, case: Case) -> Case | None:
    """Return the case with its loss in chunks of tokens; None if it is so already, or this was not traced."""
    changed = msgspec.structs.replace(case, loss_chunks=LOSS_CHUNKS)
    return changed if case.loss_chunks == 1 and _held(profile, changed) is not None else None


def with_adapters(profile: WorkloadProfile, case: Case) -> Iterator[Case]:
    """Yield the case with adapters on frozen weights, and on a 4-bit base, if these were traced.

    There are none for a model with inputs other than tokens, or one that already trains adapters.
    """
    if case.trainable is not Trainable.FULL:
        return
    # Weights in half precision need no autocast
    whole = Precision.TF32 if case.precision.is_amp else case.precision
    for how, base in ADAPTER_BASES.items():
        adapted = msgspec.structs.replace(case, trainable=how, weight_type=base, precision=whole)
        if _held(profile, adapted) is not None:
            yield adapted


def _why_no_line(profile: WorkloadProfile, case: Case, accumulate: int) -> str | None:
    """Say where the figure comes from if the memory does not grow along lines; None if it does."""
    step = step_of(profile, case)
    batch = _micro(case, accumulate).batch_size
    if step is None or (step.is_on_lines(batch) and step.is_traced_at(batch)):
        return None
    if not step.points:
        return (
            f"no batch above {step.largest_traced:,} could be traced: memory is assumed to grow in proportion"
        )
    if not step.is_traced_at(batch):
        return f"beyond the largest batch that could be traced, {step.points[-1].batch_size:,}"
    low, high = step.around(batch)
    where = f"traced at {high:,}" if batch == high else f"between traced batches of {low:,} and {high:,}"
    return f"memory does not grow in proportion to the batch: {where}"


def _why_untraced(profile: WorkloadProfile, case: Case) -> str:
    if profile.memory_untraced is not None:
        return profile.memory_untraced
    if not profile.memory:
        return "its profile was made before steps were traced"
    if case.checkpointing is not Checkpointing.NONE and profile.blocks is None:
        return "it has no repeated blocks to recompute"
    return f"no step with {case.recipe.words or 'its own weights'} was traced"


# --- the formula, if a step cannot be traced -----------------------------------------------------------


def _formula(profile: WorkloadProfile, case: Case, accumulate: int = 1) -> Held:
    """Compute weights, gradients, optimizer state and activations; FSDP shards the first three."""
    case = _micro(case, accumulate)
    train = case.task is TaskKind.TRAIN
    size = case.weight_type.bytes_each
    weights = profile.parameters * size
    trained = profile.trainable_parameters if train else 0
    wide = max(size, 2.0)  # quantized weights are not trained: their adapters are in half precision
    gradients = trained * wide
    states = trained * profile.optimizer_bytes_per_parameter * wide / FP32_BYTES
    if case.parallel_mode is ParallelMode.DDP:
        gradients *= 2  # a second copy, in buckets
    share = 1 / case.gpu_count if case.parallel_mode is ParallelMode.FSDP else 1.0
    # Autocast's copies of the weights in half precision
    copies = weights / 2 if case.precision.is_amp and case.weight_type is WeightType.FLOAT32 else 0.0
    scale = 0.5 if case.precision.is_amp or size < FP32_BYTES else 1.0
    saved = profile.saved_bytes_per_sample if train else 0.0  # frozen layers save nothing
    widest = max(
        (
            op.bytes_per_sample
            for op in profile.operators_of(case.task)
            if op.kind is not OperatorKind.OPTIMIZER
        ),
        default=0,
    )
    activations = scale * max(saved + GRADIENT_SHARE * widest, widest)
    per_sample = activations + BATCH_COUNT * FP32_BYTES * math.prod(profile.sample_shape)
    kept = case.batch_size * saved * scale
    pairs = case.batch_size**2 * profile.saved_bytes_per_pair  # in float32, like the loss
    held = Held(
        weights=weights * share,
        gradients=gradients * share,
        optimizer=states * share,
        saved=kept + pairs,
        transient=case.batch_size * per_sample - kept + (1 + GRADIENT_SHARE) * pairs + copies,
        least=1 / UNTRACED_LOW_FACTOR,
        most=UNTRACED_FACTOR,
    )
    return _as_executed(held, case)
