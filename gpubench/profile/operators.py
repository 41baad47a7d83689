"""Trace the operators of one step and one forward pass at one batch size, on the first device that works.

The trace runs on the meta device, where nothing is allocated or computed. Values that a model reads from its
tensors are computed beside the trace if they follow from its batch; the others come from a step on the CPU.
If the trace still fails on the meta device, it runs on the CPU. If the CPU takes too long, every such value
is taken as 1 on the meta device. A kernel that runs only on a GPU is replaced with a substitute, which
returns a tensor like its largest input and keeps its inputs for the backward pass. That is enough for a bound
on the memory, but says nothing about the FLOPs.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.autograd.function import _SingleLevelFunction
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from gpubench.errors import MisuseError
from gpubench.foreign_code import TOO_LARGE, lacks_memory, one_line, with_line
from gpubench.models import BlockSizes, DecodeWork, OperatorKind, TaskKind
from gpubench.profile.blocks import block_sizes
from gpubench.profile.cuda_rules import grouped_products_on_meta, losses_on_meta
from gpubench.profile.growth import BATCHES, LARGE_BATCHES, longer
from gpubench.profile.kernels import (
    FusedCalls,
    Kernel,
    Recorder,
    kernels_of,
)
from gpubench.profile.values import Known, Reads, are_checks, given, noted, numbers_as_1
from gpubench.tensors import (
    EveryCall,
    autocast_on_cpu,
    plain_checks,
    plain_encoders,
    storage_id,
    tensors_in,
    tensors_of,
    with_tensors,
)
from gpubench.workload import Task, Workload, copy_of, forward, seeded, set_mode

_SEED = 0
HINT = "a torch.library.custom_op with register_fake can be traced"
_NO_KERNEL = re.compile(r"Could not run '([^']+)' with arguments from the '(?:CPU|Meta)' backend")
_NO_FAKE = re.compile(r"no fake impl registered|" + _NO_KERNEL.pattern)
_WANTS_CUDA = re.compile(r"\bis_cuda\b|\b(?:cuda|gpu)\b", re.IGNORECASE)
_TRITON_WANTS_CUDA = re.compile(r"\b0 active drivers\b|cannot be accessed from Triton \(cpu tensor")
# Options of torch's optimizers that need a GPU; the state is the same without them
_ONLY_ON_GPU = {"fused", "capturable"}
# Optimizers that multiply no matrices, so their many operators need no recording
_BY_ELEMENT = {torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW}
# Limits on a large batch that runs on the CPU to find its reads, extrapolated from a smaller batch
_MOST_READ_S = 2.0
_MOST_READ_BYTES = 3e8
# Largest share of the FLOPs that may depend on guessed values
_MOST_GUESSED = 0.02

# What to do about an error from torch, by a part of its message
_ADVICE = {
    "Torch not compiled with CUDA": "call torch.cuda only if torch.cuda.is_available()",
    "no NVIDIA driver": "call torch.cuda only if torch.cuda.is_available()",
    "process group has not been initialized": "start a group of one process in this file: "
    "torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)",
    "does not support sparse gradients": "use an optimizer that supports them, such as torch.optim.SGD",
    "object has no attribute 'step'": "let the factory return one optimizer, or an object with step() "
    "and zero_grad() that holds several",
    "FlexAttention does not support backward on CPU": "call F.scaled_dot_product_attention "
    "with the mask as a tensor when q is not on a GPU",
}

# Collects what a pass of this task, run inside the block, reads from its tensors
_Reading = Callable[[TaskKind], AbstractContextManager[Reads]]
ReadsAt = Callable[[int], Mapping[TaskKind, Reads]]
"""What a step of each task reads from its tensors, by batch size."""


@dataclass(frozen=True)
class Seen:
    """The trace at one batch size.

    Attributes:
        train, infer: The kernels of a training step and of a forward pass.
        saved_bytes: Activations kept between forward and backward pass [B].
        state_bytes: State of the optimizer [B].
        why_on_cpu: As in ``Traced``.
        missing_kernel: As in ``Traced``.
        reads: What each task read from its tensors.
        read_s: CPU time of the steps that had to run on the CPU to find these reads [s].
    """

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
    reads: Mapping[TaskKind, Reads] = field(default_factory=dict, compare=False)
    read_s: float = field(default=0.0, compare=False)


class _OutOfTimeError(Exception):
    """A step on the CPU exceeded its time limit."""


class TooSlowError(MisuseError):
    """A step takes too long on the CPU, and cannot be traced without values."""


def seen_at(workload: Workload, batch_size: int, until_s: float) -> Seen:
    """Trace on the meta device, if necessary with values of the batch or from the CPU; else on the CPU.

    If the CPU is too slow, every value that does not follow from the batch is taken as 1.
    """
    if workload.shorter is not None:
        one, two, times = workload.shorter
        found = longer_trace(seen_at(one, batch_size, until_s), seen_at(two, batch_size, until_s), times)
        if found is not None:
            return found
    try:
        return seen_on_meta(workload, batch_size)
    except Exception as error:
        if not workload.is_classic:  # too large to build on the CPU
            raise MisuseError(refusal(workload.name, error)) from error
        return _seen_with_values(workload, batch_size, until_s, error)


def _seen_with_values(workload: Workload, batch_size: int, until_s: float, meta_error: Exception) -> Seen:
    known = Known()
    with suppress(Exception):
        return _trace_with_known(workload, batch_size, known)
    why = one_line(meta_error)
    try:
        if known.has_missed:
            began_s = time.process_time()
            with suppress(MisuseError):  # if this fails, a trace on the CPU may still work or say why not
                reads = _read_on_cpu(workload, batch_size, until_s)
                read_s = time.process_time() - began_s
                with suppress(Exception), torch.device("meta"), losses_on_meta():
                    with Known().followed():  # a constructor may read values that it computes itself
                        task = on_meta(workload, batch_size)
                    found = _trace_task(task, workload.tasks, lambda kind: given(reads[kind]))
                    return replace(found, why_on_cpu=why, read_s=read_s)
        with _on_cpu(workload, batch_size, until_s) as task:
            return replace(_trace_task(task, workload.tasks, lambda _: noted()), why_on_cpu=why)
    except _OutOfTimeError:
        slow = f"{why}; on the CPU it took too long, so every value that it reads was taken as 1"
    except MisuseError as error:
        if lacks_memory(error):
            raise MisuseError(f"{refusal(workload.name, meta_error)} {TOO_LARGE}") from meta_error
        if missing_kernel(error.__cause__) is None:
            raise
        return _trace_without_kernels(workload, batch_size, error)
    try:
        return replace(_trace_with_guesses(workload, batch_size), why_on_cpu=slow, reads={})
    except Exception as error:
        too_long = "one training step takes too long on this CPU, and it cannot be traced without values"
        advice = "make the model smaller, or measure it with `gpubench run`"
        raise TooSlowError(f"{workload.name}: {too_long}; {advice}: {one_line(error)}") from error


def reads_at(workload: Workload, seen: Mapping[int, Seen], until_s: float) -> ReadsAt:
    """Return what a step of each task reads at a batch size.

    For a batch that was not seen, there are three ways. If everything read follows from the batch, it is
    traced. If not, a large batch runs on the CPU if that takes little time and memory. Any other batch gets
    the reads of the largest one seen if these only check results; if they do not, the returned function
    raises an error.
    """
    found = {batch_size: each.reads for batch_size, each in seen.items()}
    if not any(found.values()):
        return lambda _: {}
    batch_size, last = max(seen.items())
    read_s, kept_bytes = last.read_s, last.saved_bytes
    for large in reversed(LARGE_BATCHES) if read_s else ():
        growth = large / batch_size
        if growth * read_s > _MOST_READ_S or growth * kept_bytes > _MOST_READ_BYTES:
            break
        began_s = time.process_time()
        with suppress(Exception):  # foreign code, which may refuse a batch
            found[large] = _read_on_cpu(workload, large, until_s)
        batch_size, read_s, kept_bytes = large, time.process_time() - began_s, growth * kept_bytes

    def at(batch_size: int) -> Mapping[TaskKind, Reads]:
        if batch_size in found:
            return found[batch_size]
        if last.read_s and all(are_checks(*each) for each in _pairs(found[n] for n in seen)):
            return last.reads
        with _disable_current_modes():
            found[batch_size] = _trace_with_known(workload, batch_size, Known()).reads
        return found[batch_size]

    return at


def _pairs(found: Iterable[Mapping[TaskKind, Reads]]) -> Iterator[tuple[Reads, Reads]]:
    # What each task read at the first batch and at the last
    first, *_, last = found
    yield from ((first.get(kind, {}), last.get(kind, {})) for kind in {*first, *last})


def seen_on_meta(workload: Workload, batch_size: int) -> Seen:
    """Trace on the meta device; raise any error from the model or torch if it cannot run there."""
    task = on_meta(workload, batch_size)
    # A second step, at the first batch size only, shows whether the first leaves state that breaks it
    return _trace_task(task if batch_size == BATCHES[0] else replace(task, again=None), workload.tasks)


def _trace_with_known(workload: Workload, batch_size: int, known: Known) -> Seen:
    # On the meta device, with the values that follow from the batch
    with torch.device("meta"), losses_on_meta(), known.followed():  # also for tensors that the step creates
        task = on_meta(workload, batch_size)
        known.forget(task.model.parameters())
        return _trace_task(task, workload.tasks, lambda _: known.reading())


def _trace_with_guesses(workload: Workload, batch_size: int) -> Seen:
    """Trace on the meta device with unknown numbers as 1, and as if unknown conditions selected all elements.

    Raises:
        MisuseError: If the FLOPs depend on how many elements are selected.
    """
    found = _trace_with_known(workload, batch_size, Known(others_as_1=True))
    if batch_size != BATCHES[0]:
        return found  # the smallest batch comes first and has passed the check below
    half = _trace_with_known(workload, batch_size, Known(others_as_1=True, one_of=2))
    flops, fewer = (sum(kernel.flops for kernel in (*each.train, *each.infer)) for each in (found, half))
    if fewer < (1 - _MOST_GUESSED) * flops:
        raise MisuseError("its work depends on how many elements its conditions select")
    return found


def longer_trace(one: Seen, two: Seen, times: int) -> Seen | None:
    """Extrapolate two traces to a model with more periods, as ``growth.longer`` does; None if it cannot."""
    train, infer = longer(one.train[:-1], two.train[:-1], times), longer(one.infer, two.infer, times)
    if train is None or infer is None or one.blocks is None or two.blocks is None:
        return None

    def extrapolated(name: str, short: Any = one, long: Any = two) -> Any:
        first = getattr(short, name)
        return first + times * (getattr(long, name) - first)

    updates = zip(one.train[-1:], two.train[-1:], strict=True)  # one kernel over all parameters
    return replace(
        one,
        train=(*train, *(replace(each, bytes=extrapolated("bytes", each, other)) for each, other in updates)),
        infer=tuple(infer),
        blocks=msgspec.structs.replace(one.blocks, count=extrapolated("count", one.blocks, two.blocks)),
        **{name: extrapolated(name) for name in ("saved_bytes", "parameters", "trainable", "state_bytes")},
    )


def _read_on_cpu(workload: Workload, batch_size: int, until_s: float) -> dict[TaskKind, Reads]:
    """Run a step of each task on the CPU, and return what it reads from its tensors."""
    read: dict[TaskKind, Reads] = {}
    with _on_cpu(workload, batch_size, until_s) as task:
        model, (inputs, targets) = task.model, task.batches[0]
        if TaskKind.TRAIN in workload.tasks:
            set_mode(model, train=True)
            with noted() as read[TaskKind.TRAIN]:
                loss = task.loss(forward(model, inputs), targets)
                if getattr(loss, "requires_grad", False) and loss.numel() == 1:  # else the trace refuses it
                    require_finite(loss)
                    loss.backward()
        model.eval()
        with noted() as read[TaskKind.INFER]:  # both attempts, as a trace makes both
            try:
                with torch.no_grad():
                    forward(model, inputs)
            except RuntimeError:  # the model may call autograd itself
                forward(model, inputs)
    return read


@contextmanager
def _on_cpu(workload: Workload, batch_size: int, until_s: float) -> Iterator[Task]:
    """Build a task on the CPU to run in the block; after the deadline, the next operator raises an error.

    Raises:
        _OutOfTimeError: If the deadline has passed.
        MisuseError: If the model fails in the block.
    """

    def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if time.process_time() >= until_s:
            raise _OutOfTimeError
        return func(*args, **kwargs)

    if time.process_time() >= until_s:
        raise _OutOfTimeError
    try:
        task = workload.build(batch_size, _SEED)
        with seeded(_SEED), EveryCall(call):
            yield task
    except _OutOfTimeError:
        raise
    except Exception as error:  # a user's model may raise anything; the cause is kept
        raise MisuseError(refusal(workload.name, error)) from error


def _trace_without_kernels(workload: Workload, batch_size: int, refused: MisuseError) -> Seen:
    """Trace GPU-only code on the meta device, with substitutes for its kernels."""
    error, functions = refused.__cause__, set[type]()
    words = f"{missing_kernel(error)}; {HINT}"
    while error is not None and missing_kernel(error):
        functions |= functions_of(error)
        try:
            with standing_in(tuple(functions)):
                trace = _trace_task(on_meta(workload, batch_size), workload.tasks)
            return replace(trace, missing_kernel=words)
        except Exception as failed:  # noqa: BLE001 - the model's own error; the first cause is reported
            error = failed if functions_of(failed) - functions else None
    raise MisuseError(f"{refused}; {HINT}") from refused.__cause__


def refusal(name: str, error: Exception) -> str:
    """Say in one line why a model cannot be trained, with its name once."""
    if isinstance(error, MisuseError):
        return f"{name}: {str(error).removeprefix(f'{name}: ')}"
    advice = "".join(f"; {words}" for sign, words in _ADVICE.items() if sign in str(error))
    return f"{name}: cannot run one training step on its own batch: {one_line(error)}{advice}"


def on_meta(workload: Workload, batch_size: int) -> Task:
    """Build a workload without allocating memory."""
    with torch.device("meta"):
        task = workload.build(batch_size, _SEED)
    if not all(p.is_meta for p in task.model.parameters()):
        # a file may return the same model from every build
        task = copy_of(task)
    batches = with_tensors(task.batches, lambda tensor: tensor.to("meta"))
    return replace(task, model=task.model.to("meta"), batches=batches)


@contextmanager
def checkpoints_on_meta() -> Iterator[None]:
    """Let torch 2.4 checkpoint on the meta device, as newer versions do: it looks for ``torch.meta``."""
    with ExitStack() as after:
        if not hasattr(torch, "meta"):
            torch.meta = torch.device("meta")  # type: ignore[attr-defined]
            after.callback(delattr, torch, "meta")
        yield


@plain_encoders()
@plain_checks()
@grouped_products_on_meta()
@checkpoints_on_meta()
@autocast_on_cpu("meta")  # torch itself refuses autocast on the meta device
@seeded(_SEED)  # random draws may decide what a step does, and must decide the same at every batch size
def _trace_task(task: Task, tasks: Sequence[TaskKind], reading: _Reading = lambda _: nullcontext({})) -> Seen:
    model, (inputs, targets) = task.model, task.batches[0]
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    train: list[Kernel] = []
    saved = state = 0.0
    optimizer = "none"
    read: dict[TaskKind, Reads] = {}
    if TaskKind.TRAIN in tasks:
        if not trained:
            raise MisuseError("the model has no parameter that takes a gradient; nothing can be trained")
        with reading(TaskKind.TRAIN) as reads:
            train, saved = _trace_step(model, lambda: task.loss(forward(model, inputs), targets))
            read[TaskKind.TRAIN] = {key: [*found] for key, found in reads.items()}
            optimizer, state, updates, numbers = _optimizer(task, trained)
            if numbers:
                read[TaskKind.TRAIN][Optimizer.step, (), None] = numbers
            if task.again is not None:
                with _recording():  # a first step may leave state that breaks a second
                    task.loss(forward(model, inputs), targets).backward()
        train += updates
    model.eval()
    with reading(TaskKind.INFER) as read[TaskKind.INFER]:
        infer = _trace_pass(lambda: forward(model, inputs))
    # Integers are tokens; floats, and bytes of an image, are not.
    tokens = (
        t.shape[1:].numel() if t.dtype in {torch.int32, torch.int64} else None for t in tensors_of(inputs)
    )
    return Seen(
        train=tuple(train),
        infer=tuple(infer),
        saved_bytes=saved,
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in trained),
        state_bytes=state,
        optimizer=optimizer,
        blocks=block_sizes(model),
        tokens=next(tokens, None),
        decode=task.decode,
        reads={kind: found for kind, found in read.items() if found},
    )


def _trace_pass(forward: Callable[[], Any]) -> list[Kernel]:
    # Kernels of a forward pass, with autograd on if the model itself differentiates
    try:
        with torch.no_grad(), _recording() as kernels:
            forward()
    except RuntimeError:
        with torch.enable_grad(), _recording() as kernels:
            forward()
    return kernels


def _trace_step(model: nn.Module, forward: Callable[[], Any]) -> tuple[list[Kernel], float]:
    """Return the kernels of forward pass, loss and backward pass, and the bytes of activations kept."""
    own = {storage_id(t) for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided and storage_id(tensor) not in own:
            # kept alive, so no other storage gets its address
            kept[storage_id(tensor)] = tensor.untyped_storage()
        return tensor

    def keep_all(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        for tensor in tensors_in([out]):
            keep(tensor)
        return out

    set_mode(model, train=True)
    with _recording() as kernels:
        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = forward()
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):
                raise
            kernels.clear()  # torch.func allows no hooks: every intermediate result counts as kept
            with EveryCall(keep_all):
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
    """Refuse a loss that is infinite or not a number; on the meta device it has no value to check.

    Raises:
        MisuseError: If the loss is not finite; the message gives its value.
    """
    with _disable_current_modes():  # which would note this as a read of the model
        if not loss.is_meta and not bool(torch.isfinite(loss.detach()).all()):
            raise MisuseError(
                f"its loss is {loss.item():g} in the first step; nothing can be learned from it"
            )


@contextmanager
def _recording() -> Iterator[list[Kernel]]:
    # Record the kernels of every aten call inside the block
    recorder = Recorder()

    def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        schema = func._schema  # noqa: SLF001 - the only place where torch marks views
        name = schema.name.partition("::")[2]
        aliases = [r.alias_info for r in schema.returns]
        is_view = any(a is not None and not a.is_write for a in aliases)
        recorder.add(*kernels_of(name, is_view, (*args, *kwargs.values()), out))
        return out

    with FusedCalls(recorder), EveryCall(call):
        yield recorder.kernels


def _optimizer(task: Task, trained: Sequence[Tensor]) -> tuple[str, float, list[Kernel], list[Any]]:
    """Return the optimizer's name, the bytes of its state after one step, its kernels, and what it reads.

    The kernels are its products of matrices, as in Muon, and one pass over the parameters: weight and
    gradient are read, weight is written, state is read and written. In float32, SGD with momentum moves 20
    bytes per parameter, Adam 28.
    """
    optimizer = task.optimizer(list(trained))
    for group in groups_of(optimizer):
        group.update(dict.fromkeys(_ONLY_ON_GPU & group.keys(), False))
    watch: AbstractContextManager[list[Kernel]]
    is_by_element = type(optimizer) in _BY_ELEMENT
    watch = nullcontext([]) if is_by_element else _recording()
    try:
        with watch as kernels, numbers_as_1() as numbers:
            optimizer.step()
    except Exception as error:
        if "closure" not in str(error):  # a missing argument, or an assertion about it
            raise
        raise MisuseError(
            f"a step of {type(optimizer).__name__} calls model and loss through a closure any number of "
            "times, so its steps differ in work; use an optimizer whose step() needs no closure"
        ) from None
    # without scalars, such as the number of steps
    kept = float(sum(t.nbytes for t in states_of(optimizer) if t.dim() and not isinstance(t, nn.Parameter)))
    weights = sum(p.numel() * p.element_size() for p in trained)
    update = Kernel(OperatorKind.OPTIMIZER, 0.0, 3.0 * weights + 2 * kept)
    products = [each for each in kernels if each.flops]
    # An update by element reads only the number of steps, which a GPU's optimizer keeps on the host
    return type(optimizer).__name__, kept, [*products, update], [] if is_by_element else numbers


def optimizers_in(optimizer: Any) -> list[Any]:
    """Return an optimizer, which need not be torch's own, and the optimizers that it wraps, each once."""
    found: dict[int, Any] = {}
    waiting = [optimizer]
    while waiting:
        each = waiting.pop()
        if id(each) in found:
            continue
        found[id(each)] = each
        for value in _attributes(each):
            held = [*value.values()] if isinstance(value, dict) else value
            parts = held if isinstance(held, list | tuple) else [held]
            waiting += (part for part in parts if isinstance(part, Optimizer))
    return [*found.values()]


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the groups of parameters of an optimizer and of those it wraps."""
    return [group for each in optimizers_in(optimizer) for group in getattr(each, "param_groups", ())]


def states_of(optimizer: Any) -> list[Tensor]:
    """Return the tensors, parameters included, that an optimizer and those it wraps hold between steps."""
    # Each once, since a wrapper may share the state of its inner optimizer
    held = {
        id(tensor): tensor
        for each in optimizers_in(optimizer)
        for tensor in tensors_of([value for value in _attributes(each) if not isinstance(value, Optimizer)])
    }
    return [*held.values()]


def _attributes(optimizer: Any) -> list[Any]:
    return [*getattr(optimizer, "__dict__", {}).values()]


# --- substitutes for kernels that do not exist here ---------------------------------------------------------


def missing_kernel(error: BaseException | None) -> str | None:
    """Name the kernel that a step lacks without a GPU; None for any other error.

    Such an error comes from torch's dispatcher, from an assertion in the model about the device of a tensor,
    or from an autograd function that calls Triton, which finds no driver, or an extension that checks the
    device.

    >>> missing_kernel(NotImplementedError("Could not run 'a::b' with arguments from the 'CPU' backend."))
    'a::b has no kernel for the CPU'
    >>> missing_kernel(ValueError("shapes cannot be multiplied")) is None
    True
    """
    if isinstance(error, NotImplementedError) and (found := _NO_KERNEL.search(str(error))):
        return with_line(f"{found[1]} has no kernel for the CPU", error)
    if error is None or not _wants_cuda(error):
        return None
    return with_line("one of its kernels takes only CUDA tensors", error)


def _wants_cuda(error: BaseException) -> bool:
    if isinstance(error, AssertionError):
        line = next((frame.line for frame in reversed(traceback.extract_tb(error.__traceback__))), "")
        return bool(_WANTS_CUDA.search(f"{error} {line}"))
    # The source line of another error may mention CUDA by chance: only the message counts
    says = _WANTS_CUDA.search(str(error)) or _TRITON_WANTS_CUDA.search(str(error))
    return bool(isinstance(error, RuntimeError | ValueError) and says and functions_of(error))


def functions_of(error: BaseException) -> set[type]:
    """Return the user's autograd functions that an error passed through."""
    codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    return {
        each
        for each in _subclasses(torch.autograd.Function)
        if any(
            getattr(getattr(each, name, None), "__code__", None) in codes for name in ("forward", "backward")
        )
    }


@contextmanager
def standing_in(functions: Sequence[type]) -> Iterator[None]:
    """Make these autograd functions, and operators without a kernel, return a copy of their largest input."""

    def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if not _NO_FAKE.search(str(error)):
                raise
            like = _largest((*args, *kwargs.values()))
            outs = [like.clone() for _ in func._schema.returns]  # noqa: SLF001 - the only source of their number
            return tuple(outs) if len(outs) > 1 else next(iter(outs), None)

    names = {"forward": _forward, "backward": _backward, "setup_context": _SingleLevelFunction.setup_context}
    with EveryCall(call), ExitStack() as after:
        for each, (name, function) in product(functions, names.items()):
            is_own = name in vars(each)  # not inherited
            undo = partial(setattr, each, name, vars(each)[name]) if is_own else partial(delattr, each, name)
            after.callback(undo)
            setattr(each, name, staticmethod(function))
        yield


def _forward(ctx: Any, *args: Any) -> Any:
    ctx.save_for_backward(*(a if isinstance(a, torch.Tensor) else None for a in args))
    return _largest(args).clone()


def _backward(ctx: Any, *_: Any) -> Any:
    return tuple(None if a is None or not a.is_floating_point() else a.clone() for a in ctx.saved_tensors)


def _largest(values: Sequence[Any]) -> Any:
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if not tensors:
        raise RuntimeError("a kernel without tensor inputs has no substitute")
    return max(tensors, key=lambda t: (t.is_floating_point(), t.numel()))


def _subclasses(kind: type) -> Iterator[type]:
    each: type
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
