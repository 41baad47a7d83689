"""Trace one training step and one forward pass of a workload, and split their cost into two parts.

Traces at two batch sizes give the parts: costs that grow with the batch are per sample; the rest (weights,
optimizer) is fixed and occurs once per step.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from gpubench.errors import MisuseError
from gpubench.foreign_code import one_line, with_line
from gpubench.models import (
    Checkpointing,
    DecodeWork,
    MemoryLine,
    Operator,
    OperatorKind,
    Recipe,
    StepMemory,
    TaskKind,
    WeightType,
    WorkloadProfile,
)
from gpubench.profile.blocks import block_sizes, packed
from gpubench.profile.decoder_step import flops_of
from gpubench.profile.growth import BATCHES
from gpubench.profile.kernels import Kernel
from gpubench.profile.layout import why_contiguous, why_no_amp
from gpubench.profile.liveness import trace_memory
from gpubench.profile.operators import ReadsAt, Seen, TooSlowError, on_meta, reads_at, seen_at
from gpubench.profile.shorter import with_shorter
from gpubench.user_loss import loose_tensor
from gpubench.workload import Task, Workload

BY_VALUE = "what it does depends on the values of its tensors"
"""Start of the reason for having no trace if a step needs values, so that no CUDA graph can capture it."""
# Part of the error if a fake tensor is passed to NumPy or SciPy, which call its ``numpy()``
_READS_BY_NUMPY = ".numpy() is not supported for tensor subclasses"


@dataclass(frozen=True)
class Traced:
    """A profile, and how it was traced.

    Attributes:
        why_on_cpu: Why it could not be traced on the meta device alone, if that failed.
        only_reads_on_cpu: Whether it was traced on the meta device with values read in a step on the CPU.
        why_contiguous: Why a step with channels_last images fails, if it does.
        missing_kernel: The kernel that a step lacks without a GPU, if it lacks one. A substitute was traced:
            the profile gives a bound on the memory, but no count of FLOPs.
        reads_at: What a step reads from its tensors, by task, at a given batch size.
    """

    profile: WorkloadProfile
    why_on_cpu: str | None
    missing_kernel: str | None = None
    why_contiguous: str | None = None
    reads_at: ReadsAt = lambda _: {}
    only_reads_on_cpu: bool = False


def profile_workload(workload: Workload) -> WorkloadProfile:
    """Trace the profile of a workload; its variants are the profiles of the other recipes.

    Raises:
        MisuseError: If the model cannot run a step on its own batch.
    """
    others = tuple(trace_workload(workload.at(recipe)).profile for recipe in workload.variants)
    return msgspec.structs.replace(trace_workload(workload).profile, variants=others)


def trace_workload(
    workload: Workload,
    variants_s: float = math.inf,
    on_cpu_s: float = math.inf,
    requested: Collection[Recipe] = (),
    *,
    ways: Collection[Recipe] | None = None,
    memory_of: Collection[TaskKind] = (),
) -> Traced:
    """Trace the profile of a workload, and say how it was traced.

    The model is built and traced on the meta device, where nothing is allocated or computed. Values that it
    reads are derived from its batch or come from one step on the CPU; if that step takes too long, each value
    is taken as 1.

    Args:
        workload: Any workload.
        variants_s: As in ``trace_memory``.
        on_cpu_s: Limit on the total CPU time of steps on the CPU [s].
        requested: As in ``trace_memory``.
        ways: As in ``trace_memory``.
        memory_of: The tasks whose memory is traced; all tasks if the workload has none of these.

    Raises:
        MisuseError: If the model cannot run a step on its own batch.
    """
    until_s = time.process_time() + on_cpu_s
    workload = with_shorter(workload)
    _refuse_loose_tensor(workload)
    traced = trace_operators(workload, until_s)
    missing = traced.missing_kernel
    on_cpu = traced.why_on_cpu is not None

    def has_time() -> bool:
        return not on_cpu or time.process_time() < until_s

    refused: list[str] = []
    how = {"requested": requested, "refused": refused, "ways": ways, "reads_at": traced.reads_at}
    asked = _of_tasks(workload, memory_of)
    memory, memory_untraced = ((), missing) if missing is not None else _memory(asked, variants_s, **how)
    if not memory and missing is None and TaskKind.TRAIN in workload.tasks and has_time():
        refused = [*filter(None, [why_no_amp(workload)])]
    not_channels_last = None
    if missing is None and has_time():
        # If no memory could be traced without values, the step needs real tensors
        reads = None if on_cpu and not memory else next(iter(traced.reads_at(BATCHES[0]).values()), {})
        not_channels_last = why_contiguous(workload, reads)
    decode, weight_type = traced.profile.decode, traced.profile.recipe.weight_type
    profile = msgspec.structs.replace(
        traced.profile,
        memory=tuple(_narrowed(step, decode, weight_type) for step in memory),
        memory_untraced=memory_untraced,
        is_contiguous_only=not_channels_last is not None,
        why_no_amp=next(iter(refused), None),
        saved_bytes_per_pair=0.0 if memory else _saved_bytes_per_pair(workload, until_s),
    )
    profile = _with_eager_tasks(profile, traced)
    return replace(traced, profile=profile, why_contiguous=not_channels_last)


def _refuse_loose_tensor(workload: Workload) -> None:
    """Refuse a loss that uses a tensor that gpubench cannot move; a shorter model has the same loss."""
    loose = None
    with suppress(Exception):  # the trace reports why the model cannot be built on the meta device
        loose = loose_tensor(on_meta(workload.shorter[0] if workload.shorter else workload, BATCHES[0]))
    if loose is not None:
        raise MisuseError(
            f"{workload.name}: the loss uses a tensor that gpubench can neither move nor train ({loose}); "
            "return the loss as an nn.Module that registers it: with self.register_buffer, as an "
            "nn.Parameter, or in a submodule"
        )


def _with_eager_tasks(profile: WorkloadProfile, traced: Traced) -> WorkloadProfile:
    """Mark the steps that no CUDA graph can capture because they read values on the host."""
    reads = traced.reads_at(BATCHES[0])
    by_value = not profile.memory and (profile.memory_untraced or "").startswith(BY_VALUE)
    is_eager = TaskKind.TRAIN in reads or by_value
    in_inference = TaskKind.INFER in reads and not is_eager
    return msgspec.structs.replace(profile, is_eager_only=is_eager, is_eager_in_inference=in_inference)


def _saved_bytes_per_pair(workload: Workload, until_s: float) -> float:
    """Return the bytes of saved activations per squared batch size, as in a contrastive loss [B].

    Only a step without a memory trace needs this. Three batch sizes determine a parabola; its linear part is
    ``saved_bytes_per_sample``. Return 0 if the quadratic part is negative, if the workload is not trained, or
    if the time for steps on the CPU runs out.
    """
    if TaskKind.TRAIN not in workload.tasks:
        return 0.0
    small, middle = BATCHES
    large = middle**2
    try:
        one, two, three = (
            seen_at(_as_stored(workload), n, until_s).saved_bytes for n in (small, middle, large)
        )
    except TooSlowError:
        return 0.0
    slopes = (two - one) / (middle - small), (three - two) / (large - middle)
    return max(0.0, (slopes[1] - slopes[0]) / (large - small))


def traced_steps(workload: Workload) -> tuple[int, tuple[StepMemory, ...]]:
    """Return a workload's parameter count and the peak memory of its own recipe, traced at large batches too.

    Raises:
        Exception: As ``trace_memory``.
    """
    task = on_meta(workload, 1)
    parameters = sum(p.numel() for p in task.model.parameters())
    steps = trace_memory(_as_stored(workload), ways=())
    return parameters, tuple(_narrowed(step, task.decode, workload.recipe.weight_type) for step in steps)


def trace_operators(workload: Workload, until_s: float = math.inf) -> Traced:
    """Trace a workload's profile without its peak memory, which takes several times as long to trace.

    Args:
        workload: Any workload.
        until_s: Deadline by ``time.process_time`` for steps on the CPU [s].

    Raises:
        MisuseError: If the model cannot run a step on its own batch.
    """
    stored = _as_stored(workload)
    traces = [seen_at(stored, n, until_s) for n in BATCHES]
    profile = _profile(workload, traces)
    plain = msgspec.structs.replace(stored.recipe, checkpointing=Checkpointing.NONE, loss_chunks=1)
    if plain != stored.recipe:  # recomputation is not part of the model's work
        own = _operators([seen_at(stored.at(plain), n, until_s).train for n in BATCHES])
        profile = msgspec.structs.replace(profile, train_flops_per_sample=flops_of(own))
    if stored is not workload:  # packed layers have other parameter counts
        model = on_meta(workload, 1).model
        count = sum(p.numel() for p in model.parameters())
        profile = msgspec.structs.replace(profile, parameters=count, blocks=block_sizes(model))
    reads = reads_at(stored, dict(zip(BATCHES, traces, strict=True)), until_s)
    one = traces[0]
    return Traced(
        profile, one.why_on_cpu, one.missing_kernel, reads_at=reads, only_reads_on_cpu=one.read_s > 0
    )


def _as_stored(workload: Workload) -> Workload:
    """Return the workload; if its base is in 4 bits, its tasks are built in 16 bits and then packed."""
    if workload.recipe.weight_type is not WeightType.NF4:
        return workload

    def with_base_in_4_bits(build: Callable[..., Task]) -> Callable[..., Task]:
        return lambda batch_size, seed, **recipe: packed(build(batch_size, seed, **recipe))

    return workload.built(with_base_in_4_bits)


def _narrowed(step: StepMemory, decode: DecodeWork | None, weight_type: WeightType) -> StepMemory:
    """Return the step, traced in 16 bits, with the weights of matrix products in ``weight_type``."""
    half, each = WeightType.BFLOAT16.bytes_each, weight_type.bytes_each
    if decode is None or each >= half:
        return step
    less = decode.flops_per_token / 2 * (half - each)  # a token takes 2 FLOP per weight

    def narrowed(moment: MemoryLine) -> MemoryLine:
        return msgspec.structs.replace(moment, fixed_bytes=moment.fixed_bytes - less)

    return step.changed(narrowed, weights_bytes=step.weights_bytes - less)


def _memory(workload: Workload, variants_s: float, **how: Any) -> tuple[tuple[StepMemory, ...], str | None]:
    """Return the traced peak memory, and in one line why a part could not be traced; None if all was."""
    memory, untraced = _memory_of_all(workload, variants_s, **how)
    if untraced is not None and TaskKind.TRAIN in workload.tasks and len(workload.tasks) > 1:
        # Inference may read values where training does not, to stop early or to drop overlapping boxes
        memory, _ = _memory_of_all(_of_tasks(workload, (TaskKind.TRAIN,)), variants_s, **how)
    return memory, untraced


def _of_tasks(workload: Workload, wanted: Collection[TaskKind]) -> Workload:
    # The workload with only the wanted tasks; with all of its tasks if it has none of those
    tasks = tuple(task for task in workload.tasks if task in wanted) or workload.tasks
    return workload.built(lambda build: build, tasks=tasks)


def _memory_of_all(
    workload: Workload, variants_s: float, **how: Any
) -> tuple[tuple[StepMemory, ...], str | None]:
    # The traced peak memory of all tasks and None; if one task cannot be traced, no memory and the reason
    try:
        return trace_memory(_as_stored(workload), variants_s, **how), None
    except Exception as error:  # noqa: BLE001 - foreign code, or a torch that lacks something; the reason is returned
        needs_values = isinstance(error, DataDependentOutputException | DynamicOutputShapeException)
        if needs_values or _READS_BY_NUMPY in str(error):
            return (), with_line(BY_VALUE, error)
        return (), one_line(error)


def _profile(workload: Workload, traces: Sequence[Seen]) -> WorkloadProfile:
    train = _operators([t.train for t in traces])
    infer = _operators([t.infer for t in traces])
    one, two = traces
    per_batch = (two.saved_bytes - one.saved_bytes) / (BATCHES[1] - BATCHES[0])
    return WorkloadProfile(
        name=workload.name,
        version=workload.version,
        summary=workload.summary,
        sample_unit=workload.sample_unit,
        sample_shape=workload.sample_shape,
        is_image=workload.is_image,
        source=workload.source,
        optimizer=one.optimizer,
        parameters=one.parameters,
        trainable_parameters=one.trainable,
        batches=workload.batches,
        forward_flops_per_sample=flops_of(infer),
        train_flops_per_sample=flops_of(train),
        saved_bytes_per_sample=per_batch,
        optimizer_bytes_per_parameter=one.state_bytes / one.trainable if one.trainable else 0.0,
        train=train,
        infer=infer,
        tasks=workload.tasks,
        blocks=one.blocks,
        recipe=workload.recipe,
        settings=workload.settings,
        precisions=workload.precisions,
        also_at=workload.also_at,
        checkpointing_from=workload.checkpointing_from,
        parallel_mode=workload.parallel_mode,
        is_classic=workload.is_classic,
        is_run=workload.is_run,
        tokens_per_sample=one.tokens,
        decode=one.decode,
    )


def _operators(kernels: Sequence[Sequence[Kernel]]) -> tuple[Operator, ...]:
    """Fit the per-sample and fixed parts of every kernel, and merge equal kernels."""
    one, two = kernels
    if [k.kind for k in one] != [k.kind for k in two] or any(
        large.flops < small.flops for small, large in zip(one, two, strict=True)
    ):
        return _operators_by_kind(one, two)
    found: Counter[tuple[OperatorKind, float, float, float, float]] = Counter(
        (a.kind, *_parts(a.flops, b.flops), *_parts(a.bytes, b.bytes)) for a, b in zip(one, two, strict=True)
    )
    return tuple(
        Operator(
            kind=kind,
            count=count,
            flops_per_sample=flops_per_sample,
            flops_fixed=flops_fixed,
            bytes_per_sample=bytes_per_sample,
            bytes_fixed=bytes_fixed,
        )
        for (kind, flops_per_sample, flops_fixed, bytes_per_sample, bytes_fixed), count in found.items()
    )


def _operators_by_kind(one: Sequence[Kernel], two: Sequence[Kernel]) -> tuple[Operator, ...]:
    """Fit the sums over each kind of operator, if single kernels cannot be matched.

    If operators depend on the data, as in an augmentation that touches only some images, other operators may
    run at another batch size. An expert may even get fewer samples from a larger batch.
    """
    found = []
    for kind in OperatorKind:
        both = [[k for k in kernels if k.kind is kind] for kernels in (one, two)]
        count = max(len(kernels) for kernels in both)
        if count:
            flops = _growing_parts(*(sum(k.flops for k in kernels) / count for kernels in both))
            moved = _growing_parts(*(sum(k.bytes for k in kernels) / count for kernels in both))
            found.append(
                Operator(
                    kind=kind,
                    count=count,
                    flops_per_sample=flops[0],
                    flops_fixed=flops[1],
                    bytes_per_sample=moved[0],
                    bytes_fixed=moved[1],
                )
            )
    return tuple(found)


def _growing_parts(at_first: float, at_second: float) -> tuple[float, float]:
    # Per-sample and fixed part of a cost. If chance makes one negative, the entire cost counts as per sample.
    per_sample, fixed = _parts(at_first, at_second)
    return (per_sample, fixed) if min(per_sample, fixed) >= 0 else (at_second / BATCHES[1], 0.0)


def _parts(at_first: float, at_second: float) -> tuple[float, float]:
    # Per-sample and fixed part of a cost that is linear in the batch size
    first, second = BATCHES
    per_sample = (at_second - at_first) / (second - first)
    return per_sample, at_first - per_sample * first
