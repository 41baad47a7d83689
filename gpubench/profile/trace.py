"""Trace one training step and one forward pass of a workload, and split its cost into per-sample and fixed.

Two batch sizes give the two parts: whatever grows with the batch is per sample, the rest (weights, optimizer)
is paid once a step.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import (
    BlockSizes,
    Checkpointing,
    DecodeWork,
    MemoryLine,
    Operator,
    OperatorKind,
    StepMemory,
    TaskKind,
    WeightType,
    WorkloadProfile,
)
from gpubench.own_files import own_line
from gpubench.profile.blocks import block_sizes
from gpubench.profile.liveness import trace_memory
from gpubench.workload import TOO_LARGE, Task, Workload, lacks_memory, one_line, seeded

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gpubench.profile.kernels import Kernel

_BATCHES = (2, 4)
"""Not 1: at a batch of 1 some layouts coincide and copies vanish."""
_SEED = 0


@dataclass(frozen=True)
class _Trace:
    """What was seen at one batch size."""

    train: tuple[Kernel, ...]
    infer: tuple[Kernel, ...]
    saved_bytes: float
    parameters: int
    trainable: int
    state_bytes: float
    optimizer: str
    blocks: BlockSizes | None
    tokens: int | None = None
    decode: DecodeWork | None = None
    why_on_cpu: str | None = None
    missing_kernel: str | None = None


@dataclass(frozen=True)
class Traced:
    """A profile, and how it was read.

    Attributes:
        why_on_cpu: Where the meta device could not do it, why it was read on the CPU.
        missing_kernel: Of a step that runs on a GPU only, the kernel that others stood in for: the profile
            is good for a bound of the memory, and its FLOPs are no count.
    """

    profile: WorkloadProfile
    why_on_cpu: str | None
    missing_kernel: str | None = None


def profile_workload(workload: Workload) -> WorkloadProfile:
    """Read FLOPs, bytes, parameters and kept activations of a workload, by its other recipes too.

    Raises:
        MisuseError: If the model cannot run a step on its own batch.
    """
    others = tuple(trace_workload(workload.at(recipe)).profile for recipe in workload.variants)
    return msgspec.structs.replace(trace_workload(workload).profile, variants=others)


def trace_workload(workload: Workload, variants_s: float = math.inf, on_cpu_s: float = math.inf) -> Traced:
    """Read the profile of a workload, and say how it could be read.

    It is built and traced on the meta device, where nothing is allocated or computed; a model that looks at
    its own values cannot run there and is traced on the CPU; where that takes too long, on the meta device
    again, with every value it looks at taken as 1.

    Args:
        workload: Any.
        variants_s: As ``trace_memory`` takes it.
        on_cpu_s: Wall time for the steps on the CPU, all together [s].

    Raises:
        MisuseError: If the model cannot run a step on its own batch.
    """
    until_s = time.monotonic() + on_cpu_s
    traced = trace_operators(workload, until_s)
    missing = traced.missing_kernel
    memory, memory_untraced = _memory(workload, variants_s) if missing is None else ((), missing)
    decode, weight_type = traced.profile.decode, traced.profile.recipe.weight_type
    memory = tuple(_narrowed(step, decode, weight_type) for step in memory)
    profile = msgspec.structs.replace(traced.profile, memory=memory, memory_untraced=memory_untraced)
    if memory_untraced is not None:
        profile = msgspec.structs.replace(
            profile, saved_bytes_per_pair=_saved_bytes_per_pair(workload, until_s)
        )
    return replace(traced, profile=profile)


def _saved_bytes_per_pair(workload: Workload, until_s: float) -> float:
    """Return what saved activations grow by with the square of the batch [B], as a contrastive loss does.

    Three batches of a parabola, whose line is what ``saved_bytes_per_sample`` says; of a step that was traced
    the trace of a large batch tells it. Shrinking is no growth.
    """
    below, above = _BATCHES
    beyond = above**2
    one, two, three = (_trace(_as_held(workload), n, until_s).saved_bytes for n in (below, above, beyond))
    slopes = (two - one) / (above - below), (three - two) / (beyond - above)
    return max(0.0, (slopes[1] - slopes[0]) / (beyond - below))


def traced_steps(workload: Workload) -> tuple[int, tuple[StepMemory, ...]]:
    """Trace peak memory alone, large batches too, of the workload as it is; return its parameters too.

    Raises:
        Exception: As ``trace_memory``.
    """
    task = _on_meta(workload, 1)
    parameters = sum(p.numel() for p in task.model.parameters())
    steps = trace_memory(_as_held(workload), with_variants=False)
    return parameters, tuple(_narrowed(step, task.decode, workload.recipe.weight_type) for step in steps)


def trace_operators(workload: Workload, until_s: float = math.inf) -> Traced:
    """Read the profile of a workload but for its peak memory, which takes several times as long to trace.

    Args:
        workload: Any.
        until_s: By ``time.monotonic``: no step on the CPU goes on after it [s].

    Raises:
        MisuseError: If the model cannot run a step on its own batch.
    """
    held = _as_held(workload)
    traces = [_trace(held, n, until_s) for n in _BATCHES]
    profile = _profile(workload, traces)
    plain = _once(held)
    if plain is not None:
        own = _operators([_trace(plain, n, until_s).train for n in _BATCHES])
        profile = msgspec.structs.replace(profile, train_flops_per_sample=_flops(own))
    if held is not workload:
        model = _on_meta(workload, 1).model
        count = sum(p.numel() for p in model.parameters())
        profile = msgspec.structs.replace(profile, parameters=count, blocks=block_sizes(model))
    return Traced(profile, traces[0].why_on_cpu, traces[0].missing_kernel)


def _as_held(workload: Workload) -> Workload:
    """The workload with a frozen base in 4 bits where its recipe has one: it is built at 16."""
    if workload.recipe.weight_type is not WeightType.NF4:
        return workload
    return replace(workload, build=partial(_packed, workload.build))


def _packed(build: Callable[..., Task], batch_size: int, seed: int, **recipe: Any) -> Task:
    from gpubench.profile.nf4 import packed

    return packed(build(batch_size, seed, **recipe))


def _once(workload: Workload) -> Workload | None:
    """The workload by a recipe that computes nothing twice; None where it is so already."""
    plain = msgspec.structs.replace(workload.recipe, checkpointing=Checkpointing.NONE, loss_chunks=1)
    return None if plain == workload.recipe else workload.at(plain)


def _flops(operators: Sequence[Operator]) -> float:
    return sum(o.count * o.flops_per_sample for o in operators)


def _narrowed(step: StepMemory, decode: DecodeWork | None, weight_type: WeightType) -> StepMemory:
    """The step with the weights of its products in their own bits: they are built, and traced, at 16."""
    half, each = WeightType.BFLOAT16.bytes_each, weight_type.bytes_each
    if decode is None or each >= half:
        return step
    less = decode.flops_per_token / 2 * (half - each)

    def narrowed(moment: MemoryLine) -> MemoryLine:
        return msgspec.structs.replace(moment, fixed_bytes=moment.fixed_bytes - less)

    return step.changed(narrowed, weights_bytes=step.weights_bytes - less)


def _memory(workload: Workload, variants_s: float) -> tuple[tuple[StepMemory, ...], str | None]:
    """Trace peak memory, or say why it cannot be traced."""
    try:
        return trace_memory(_as_held(workload), variants_s), None
    except Exception as error:  # noqa: BLE001 - code of others, and a torch that lacks something: the reason is kept
        return (), _why_untraced(error)


def _why_untraced(error: Exception) -> str:
    """Say in one line why a step cannot run without values."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    if not isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return one_line(error)
    place = own_line(error)
    return "what it does depends on the values of its tensors" + (f" ({place})" if place else "")


def _profile(workload: Workload, traces: Sequence[_Trace]) -> WorkloadProfile:
    train = _operators([t.train for t in traces])
    infer = _operators([t.infer for t in traces])
    one, two = traces
    per_batch = (two.saved_bytes - one.saved_bytes) / (_BATCHES[1] - _BATCHES[0])
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
        forward_flops_per_sample=_flops(infer),
        train_flops_per_sample=_flops(train),
        saved_bytes_per_sample=per_batch,
        optimizer_bytes_per_parameter=one.state_bytes / one.trainable if one.trainable else 0.0,
        train=train,
        infer=infer,
        tasks=workload.tasks,
        blocks=one.blocks,
        recipe=workload.recipe,
        settings=workload.settings,
        precisions=workload.precisions,
        checkpointing_from=workload.checkpointing_from,
        parallel_mode=workload.parallel_mode,
        is_classic=workload.is_classic,
        is_run=workload.is_run,
        tokens_per_sample=one.tokens,
        decode=one.decode,
    )


def _operators(kernels: Sequence[Sequence[Kernel]]) -> tuple[Operator, ...]:
    """Fit both parts of every kernel, and merge the kernels that are alike."""
    one, two = kernels
    if [k.kind for k in one] != [k.kind for k in two]:
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
    """Fit the sums of each kind, where single kernels cannot be matched.

    A model whose operators depend on its data, such as an augmentation that touches only some images, runs
    other operators at another batch.
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
    """Both parts; all per sample where chance made one of them negative."""
    per_sample, fixed = _parts(at_first, at_second)
    return (per_sample, fixed) if min(per_sample, fixed) >= 0 else (at_second / _BATCHES[1], 0.0)


def _parts(at_first: float, at_second: float) -> tuple[float, float]:
    """Per-sample and fixed part of something linear in the batch."""
    first, second = _BATCHES
    per_sample = (at_second - at_first) / (second - first)
    return per_sample, at_first - per_sample * first


class _OutOfTimeError(Exception):
    """A step on the CPU took longer than it may."""


def _trace(workload: Workload, batch_size: int, until_s: float) -> _Trace:
    """Trace on the meta device; on the CPU where that cannot be, and by one path where that takes long."""
    try:
        return _trace_task(_on_meta(workload, batch_size), workload.tasks)
    except Exception as error:
        if not workload.is_classic:  # too large to be built for a trace
            raise MisuseError(refusal(workload.name, error)) from error
        on_meta = error
    from gpubench.profile.stand_ins import missing_kernel

    why = one_line(on_meta)
    try:
        return replace(_trace_on_cpu(workload, batch_size, until_s), why_on_cpu=why)
    except _OutOfTimeError:
        slow = f"{why}; there it took too long, so that every value it looks at was taken as 1"
    except MisuseError as error:
        if lacks_memory(error):
            raise MisuseError(f"{refusal(workload.name, on_meta)} {TOO_LARGE}") from on_meta
        if missing_kernel(error.__cause__) is None:
            raise
        return _trace_without_kernels(workload, batch_size, error)
    try:
        with _values_taken_as_1():
            return replace(_trace_task(_on_meta(workload, batch_size), workload.tasks), why_on_cpu=slow)
    except Exception as error:
        too_long = "one training step takes too long on this CPU, and it cannot be traced without values"
        raise MisuseError(f"{workload.name}: {too_long}: {one_line(error)}") from error


def _trace_on_cpu(workload: Workload, batch_size: int, until_s: float) -> _Trace:
    if time.monotonic() >= until_s:
        raise _OutOfTimeError
    try:
        task = workload.build(batch_size, _SEED)
        with seeded(_SEED), _until(until_s):
            return _trace_task(task, workload.tasks)
    except _OutOfTimeError:
        raise
    except Exception as error:  # a model of the user's own may raise anything; the cause is kept
        raise MisuseError(refusal(workload.name, error)) from error


def _trace_without_kernels(workload: Workload, batch_size: int, refused: MisuseError) -> _Trace:
    """Trace on the meta device what runs on a GPU only, with what stands in for its kernels."""
    from gpubench.profile.stand_ins import HINT, functions_of, missing_kernel, standing_in

    error, functions = refused.__cause__, set[type]()
    words = f"{missing_kernel(error)}; {HINT}"
    while error is not None and missing_kernel(error):
        more = functions_of(error) - functions
        functions |= more
        try:
            with standing_in(tuple(functions)):
                trace = _trace_task(_on_meta(workload, batch_size), workload.tasks)
            return replace(trace, missing_kernel=words)
        except Exception as failed:  # noqa: BLE001 - of the model's own; the first cause is told
            error = failed if functions_of(failed) - functions else None
    raise MisuseError(f"{refused}; {HINT}") from refused.__cause__


@contextmanager
def _until(until_s: float) -> Iterator[None]:
    """Raise ``_OutOfTimeError`` at the first operator after a moment: one call of torch is waited for."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Until(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if time.monotonic() >= until_s:
                raise _OutOfTimeError
            return func(*args, **(kwargs or {}))

    with Until():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def _values_taken_as_1() -> Iterator[None]:
    """On the meta device answer 1, or True, wherever a model asks for the value of a tensor."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Ones(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:  # noqa: SLF001
                return torch.ones((), dtype=args[0].dtype).item()
            return func(*args, **(kwargs or {}))

    with Ones():  # type: ignore[no-untyped-call]
        yield


def refusal(name: str, error: Exception) -> str:
    """Say in one line, which names the model once, why it cannot be trained."""
    if isinstance(error, MisuseError):
        return f"{name}: {str(error).removeprefix(f'{name}: ')}"
    return f"{name}: cannot run one training step on its own batch: {one_line(error)}"


def _on_meta(workload: Workload, batch_size: int) -> Task:
    import torch

    with torch.device("meta"):
        task = workload.build(batch_size, _SEED)
    inputs, targets = task.batches[0]
    return Task(
        model=task.model.to("meta"),
        batches=((_to_meta(inputs), _to_meta(targets)),),
        loss=task.loss,
        optimizer=task.optimizer,
        decode=task.decode,
    )


def _to_meta(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, tuple | list):
        return type(value)(_to_meta(v) for v in value)
    if isinstance(value, dict):
        return {k: _to_meta(v) for k, v in value.items()}
    return value


def _trace_task(task: Task, tasks: Sequence[TaskKind]) -> _Trace:
    import torch

    model, (inputs, targets) = task.model, task.batches[0]
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    train: list[Kernel] = []
    saved = state = 0.0
    optimizer = "none"
    if TaskKind.TRAIN in tasks:
        if not trained:
            raise MisuseError("the model has no parameter that takes a gradient; nothing can be trained")
        train, saved = _trace_step(model, lambda: task.loss(model(*arguments), targets))
        optimizer, state = _optimizer(task, trained)
        train.append(_optimizer_kernel(trained, state))
    model.eval()
    with torch.no_grad(), _recording() as infer:
        model(*arguments)
    return _Trace(
        train=tuple(train),
        infer=tuple(infer),
        saved_bytes=saved,
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in trained),
        state_bytes=state,
        optimizer=optimizer,
        blocks=block_sizes(model),
        tokens=_tokens(arguments[0]),
        decode=task.decode,
    )


def _tokens(first: Any) -> int | None:
    """Tokens of one sample: whole numbers are tokens; floats, and bytes of an image, are not."""
    import torch

    if not isinstance(first, torch.Tensor) or first.dtype not in {torch.int32, torch.int64}:
        return None
    return first.shape[1:].numel()


def _trace_step(model: nn.Module, forward: Callable[[], Any]) -> tuple[list[Kernel], float]:
    """Kernels of forward, loss and backward, and bytes of the activations kept between them."""
    import torch

    own = {_identity(t) for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        if _identity(tensor) not in own:
            kept[_identity(tensor)] = tensor.untyped_storage()  # held, so that no other takes its address
        return tensor

    model.train()
    with _recording() as kernels:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = forward()
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise MisuseError(f"the loss is {shape}; it must be one number, a tensor of one element")
        require_finite(loss)
        if not loss.requires_grad:
            raise MisuseError("the loss depends on no parameter: no gradient reaches the model")
        loss.backward()
    if all(p.grad is None for p in model.parameters()):
        raise MisuseError("the backward pass left no gradient in any parameter of the model")
    return kernels, float(sum(storage.nbytes() for storage in kept.values()))


def require_finite(loss: Tensor) -> None:
    """Refuse a loss from which nothing is learned; on the meta device it has no value to look at.

    Raises:
        MisuseError: With the value.
    """
    import torch

    if not loss.is_meta and not bool(torch.isfinite(loss.detach()).all()):
        raise MisuseError(f"its loss is {loss.item():g} in the first step; nothing can be learned from it")


def _identity(tensor: Tensor) -> int:
    """Address of a tensor's storage object; on the meta device the data have none."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - torch offers no other identity of a storage


@contextmanager
def _recording() -> Iterator[list[Kernel]]:
    """Record the kernels of every aten call inside the block."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from gpubench.profile.fused import FusedCalls, Recorder
    from gpubench.profile.kernels import kernels_of

    recorder = Recorder()

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            out = func(*args, **(kwargs or {}))
            schema = func._schema  # noqa: SLF001 - the only place where torch says what is a view
            name = schema.name.partition("::")[2]
            aliases = [r.alias_info for r in schema.returns]
            is_view = any(a is not None and not a.is_write for a in aliases)
            recorder.add(*kernels_of(name, is_view, (*args, *(kwargs or {}).values()), out))
            return out

    with FusedCalls(recorder), Calls():  # type: ignore[no-untyped-call]
        yield recorder.kernels


def _optimizer(task: Task, trained: Sequence[Tensor]) -> tuple[str, float]:
    """Name of the optimizer, and bytes of the state it keeps, by letting it take one step."""
    optimizer = task.optimizer(list(trained))
    optimizer.step()
    sizes = {p: p.numel() for p in trained}
    kept = sum(
        value.numel() * value.element_size()
        for parameter, state in optimizer.state.items()
        for value in state.values()
        if hasattr(value, "numel") and value.numel() == sizes.get(parameter)
    )
    return type(optimizer).__name__, float(kept)


def _optimizer_kernel(trained: Sequence[Tensor], state_bytes: float) -> Kernel:
    """One pass over the parameters: weight and gradient read, weight written, state read and written.

    In float32 SGD with momentum moves 20 bytes per parameter, Adam 28.
    """
    from gpubench.profile.kernels import Kernel

    weights = sum(p.numel() * p.element_size() for p in trained)
    return Kernel(OperatorKind.OPTIMIZER, 0.0, 3.0 * weights + 2 * state_bytes)
