"""Trace the peak memory of one step by the lifetimes of its storages: no GPU, no memory, no arithmetic.

A whole step is run on fake tensors, which have shapes and types but no values. Bytes rise when a storage is
allocated and fall when it is freed. ``growth`` derives the memory at any batch size from a few traces.
"""

from __future__ import annotations

import itertools
import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from gpubench.errors import MisuseError
from gpubench.foreign_code import one_line
from gpubench.models import (
    Checkpointing,
    Recipe,
    StepMemory,
    TaskKind,
    Trainable,
    WeightType,
)
from gpubench.profile.blocks import adapt, checkpoint_blocks, repeated_blocks
from gpubench.profile.growth import (
    BATCHES,
    Moment,
    StepTrace,
    beyond_lines,
    longer,
    longer_step,
    longer_step_at,
    on_lines,
    without_equal_loop,
)
from gpubench.profile.operators import ReadsAt, groups_of, on_meta, optimizers_in, states_of
from gpubench.profile.quick_fakes import DEVICE, QuickFakeMode, gpu_without_values, numpy_bytes
from gpubench.profile.values import Known, given, numbers_as_1
from gpubench.recipes import ADAPTER_BASES, LOSS_CHUNKS
from gpubench.tensors import EveryCall, has_sparse_gradients, storage_id, tensors_in, tensors_of, with_tensors
from gpubench.units import MIB
from gpubench.workload import Task, Workload, copy_of, forward, seeded, set_mode

_SEED = 0
# Steps to find which weights never get a gradient; one used half of the time passes for one in 256 cases
_DRAWS = 8
# Limit for the parts of prebuilt batches that have values although the tensors are fake, such as NumPy arrays
_MOST_HOST_BYTES = 64 * MIB
# Limit for building and running a step, if the number of operators grows with the samples
_MOST_OPERATORS = 2_000
TOKEN_UNITS = ("sequence", "token")
"""Sample units of language models."""
# Part of the error for weights of lazy layers, which cannot be fake tensors
_LAZY = "Tensor subclass Uninitialized"


def trace_memory(
    workload: Workload,
    variants_s: float = math.inf,
    *,
    requested: Collection[Recipe] = (),
    ways: Collection[Recipe] | None = None,
    refused: list[str] | None = None,
    reads_at: ReadsAt = lambda _: {},
) -> tuple[StepMemory, ...]:
    """Trace the peak memory of each task of a workload, with autocast and without.

    Each task is traced again with weights in bfloat16. Training of a model with repeated blocks is also
    traced with each kind of checkpointing and, for a language model, with adapters.

    Args:
        workload: Any workload.
        variants_s: CPU time after which no further variant is started, and no large batch traced [s].
        requested: Recipes to trace first if possible, and without a time limit.
        ways: The other recipes to trace; None for all variants.
        refused: Collects the reason if a step fails only under autocast; that step is then left out. Without
            a list, the error is raised.
        reads_at: From ``operators.reads_at``; without it, a step that reads values raises an error.

    Raises:
        Exception: Any error from the model or torch if a step cannot run without values.
    """
    found: list[StepMemory] = []
    until_s = time.process_time() + variants_s
    with gpu_without_values() as mode:
        tracer = _Tracer(workload, workload.recipe, mode, reads_at)
        for kind, is_amp in itertools.product(workload.tasks, _autocasts(workload.recipe)):
            try:
                found.append(_traced_step(found, tracer, kind, is_amp, until_s))
            except Exception as error:
                if not is_amp or refused is None:
                    raise
                refused.append(one_line(error))
        variants = _variants(workload, has_blocks=tracer.has_blocks)
        others = [*_rebuilt(workload), *((workload, *each) for each in variants)]
        if ways is not None:
            others = [(of, recipe, steps) for of, recipe, steps in others if recipe in {*requested, *ways}]
        for of, recipe, steps in sorted(others, key=lambda each: each[1] not in requested):  # requested first
            if time.process_time() >= until_s and recipe not in requested:
                break
            with suppress(Exception):  # foreign code: a failure costs only this variant
                tracer = _Tracer(of, recipe, mode, reads_at)
                found += [_traced_step(found, tracer, kind, is_amp, until_s) for kind, is_amp in steps]
    return tuple(found)


def steps_alike(whole: Workload, one: Workload, two: Workload, times: int) -> bool:
    """Return whether a step of ``whole``, up to its loss, is what its shorter copies predict.

    Memory, operators and the nodes of the autograd graph are compared. The nodes determine the backward pass;
    running it would take twice as long. The other arguments are those of ``Workload.shorter``.
    """
    with gpu_without_values() as mode:
        tracers = (_Tracer(each, each.recipe, mode) for each in (one, two, whole))
        seen = [each.until_loss(BATCHES[0], whole.tasks[0]) for each in tracers]
    (short, calls, nodes), (long, more_calls, more_nodes), (step, all_calls, all_nodes) = seen
    return (
        longer_step(short, long, times) == step
        and longer(calls, more_calls, times) == all_calls
        and all(
            count == nodes[name] + times * (more_nodes[name] - nodes[name])
            for name, count in (nodes | more_nodes | all_nodes).items()
        )
    )


def _traced_step(
    found: Sequence[StepMemory], tracer: _Tracer, kind: TaskKind, is_amp: bool, until_s: float
) -> StepMemory:
    """Trace a step; also at large batches, unless the memory of the same task already grew along lines."""
    one, two = (tracer.trace(n, kind, is_amp) for n in BATCHES)
    step = on_lines(one, two, kind, is_amp=is_amp, recipe=tracer.recipe)
    before = next((known for known in found if known.task is kind), None)
    if before is not None and not before.points:
        largest, kept = before.largest_traced, step.keeping
        kept = kept and msgspec.structs.replace(kept, largest_traced=largest)
        step = msgspec.structs.replace(step, largest_traced=largest, keeping=kept)
    else:
        step = beyond_lines(step, lambda n: tracer.trace_large(n, kind, is_amp, until_s))
    return without_equal_loop(step)


def _autocasts(recipe: Recipe) -> tuple[bool, ...]:
    # Without autocast and with it, which weights in half precision do not need
    return (False, True) if recipe.weight_type is WeightType.FLOAT32 else (False,)


def _rebuilt(workload: Workload) -> Iterator[tuple[Workload, Recipe, Sequence[tuple[TaskKind, bool]]]]:
    # Further recipes of a workload that offers precisions on request: chunked loss, weights in float32
    if not workload.also_at:
        return
    changes: tuple[tuple[str, object, object], ...] = (
        ("loss_chunks", 1, LOSS_CHUNKS),
        ("weight_type", WeightType.BFLOAT16, WeightType.FLOAT32),
    )
    for field, usual, other in changes:
        if getattr(workload.recipe, field) != usual or field not in workload.settings:
            continue
        recipe = msgspec.structs.replace(workload.recipe, **{field: other})
        steps = tuple(itertools.product(workload.tasks, _autocasts(recipe)))
        yield workload.at(recipe), recipe, steps


def _variants(
    workload: Workload, *, has_blocks: bool
) -> Iterator[tuple[Recipe, Sequence[tuple[TaskKind, bool]]]]:
    """Yield the variants of a built model, most informative first, with tasks and use of autocast."""
    usual = workload.recipe
    casts = usual.weight_type is WeightType.FLOAT32 and "weight_type" not in workload.settings
    half = [msgspec.structs.replace(usual, weight_type=WeightType.BFLOAT16)] if casts else []
    yield from ((recipe, [(task, False) for task in workload.tasks]) for recipe in half)
    if TaskKind.TRAIN not in workload.tasks or not has_blocks:
        return
    ways = () if "checkpointing" in workload.settings else (Checkpointing.FULL, Checkpointing.SELECTIVE)
    for how in ways:  # none if checkpointing is a setting of the workload itself
        for recipe in (usual, *half):
            changed = msgspec.structs.replace(recipe, checkpointing=how)
            yield changed, [(TaskKind.TRAIN, is_amp) for is_amp in _autocasts(recipe)]
    has_own_type = "weight_type" in workload.settings and usual.weight_type is not WeightType.BFLOAT16
    if workload.sample_unit not in TOKEN_UNITS or usual.trainable is not Trainable.FULL or has_own_type:
        return
    for trainable, base in ADAPTER_BASES.items():  # on a frozen base
        adapted = msgspec.structs.replace(usual, trainable=trainable, weight_type=base)
        for how in (usual.checkpointing, *ways[:1]):
            yield msgspec.structs.replace(adapted, checkpointing=how), [(TaskKind.TRAIN, False)]


@dataclass
class _Built:
    """A task of tensors without values, and its optimizer if a step has needed one.

    Attributes:
        calls: Operators called to build it.
        host_bytes: NumPy arrays in it, which have values [B].
    """

    task: Task
    calls: int = 0
    host_bytes: int = 0
    optimizer: Optimizer | None = None


class _Tracer:
    """Traces a workload with a recipe; the task is built once per batch size."""

    def __init__(
        self,
        workload: Workload,
        recipe: Recipe,
        mode: QuickFakeMode,
        reads_at: ReadsAt = lambda _: {},
    ) -> None:
        self.workload, self.recipe = workload, recipe
        self._mode, self._reads_at = mode, reads_at
        self._shorter = [_Tracer(each, recipe, mode, reads_at) for each in (workload.shorter or ())[:2]]
        self._built: dict[int, _Built] = {}
        self._lengths: dict[tuple[TaskKind, bool], dict[int, int]] = {}
        # The step of each shorter model at the first batch size
        self._pairs: dict[tuple[TaskKind, bool], tuple[StepTrace, StepTrace]] = {}

    def at(self, batch_size: int) -> _Built:
        """Return the task at a batch size, built only once."""
        if batch_size not in self._built:
            before = self._mode.calls
            with numpy_bytes() as held:
                with seeded(_SEED):
                    task = _without_values(self.workload, batch_size, self._mode)
                task = _by_recipe(task, self.workload.recipe, self.recipe)
            self._built[batch_size] = _Built(task, self._mode.calls - before, sum(held))
        return self._built[batch_size]

    @property
    def has_blocks(self) -> bool:
        """Whether the model has repeated blocks; its shorter copies then have them too."""
        like = self._shorter[0] if self._shorter else self
        return bool(repeated_blocks(like.at(BATCHES[0]).task.model))

    def trace(self, batch_size: int, kind: TaskKind, is_amp: bool) -> StepTrace:
        """Trace one step at one batch size; the optimizer's state is created once per batch size."""
        if self.workload.shorter is not None:
            found = self._from_shorter(batch_size, kind, is_amp, self.workload.shorter[-1])
            if found is not None:
                return found
        with seeded(_SEED):
            task, optimizer = self._with_optimizer(batch_size, kind)
            reads = self._reads_at(batch_size).get(kind)
            step = partial(step_trace, task, optimizer, is_amp=is_amp)
            idle: list[Tensor] = []
            with nullcontext() if reads is None else given(reads):
                trace = step(idle=idle)
            if not reads and _drop_states(optimizer, idle, step):
                trace = step()
        self._lengths.setdefault((kind, is_amp), {})[batch_size] = len(trace.timeline)
        return trace

    def _from_shorter(self, batch_size: int, kind: TaskKind, is_amp: bool, times: int) -> StepTrace | None:
        # At a second batch size, the shortest model suffices if its periods are the same as at the first
        one = self._shorter[0].trace(batch_size, kind, is_amp)
        if (kind, is_amp) in self._pairs:
            found = longer_step_at(one, *self._pairs[kind, is_amp], times)
            if found is not None:
                return found
        two = self._shorter[1].trace(batch_size, kind, is_amp)
        self._pairs.setdefault((kind, is_amp), (one, two))
        return longer_step(one, two, times)

    def until_loss(self, batch_size: int, kind: TaskKind) -> tuple[StepTrace, list[Any], Counter[str]]:
        """Trace a step up to its loss; also return its calls with their shapes and the nodes of its graph."""
        calls: list[Any] = []
        nodes = Counter[str]()
        with seeded(_SEED):
            task, optimizer = self._with_optimizer(batch_size, kind)
            trace = step_trace(
                task,
                optimizer,
                is_amp=False,
                at_loss=lambda loss: nodes.update(_node_names(loss)),
                calls=calls,
            )
        return trace, calls, nodes

    def _with_optimizer(self, batch_size: int, kind: TaskKind) -> tuple[Task, Optimizer | None]:
        """Return the task at a batch size and, to train it, an optimizer that already has its state."""
        built = self.at(batch_size)
        if kind is not TaskKind.TRAIN:
            return built.task, None
        if built.optimizer is None:
            sparse = has_sparse_gradients(built.task.model)  # no fused update takes them
            built.optimizer = with_state(built.task, {} if sparse else GPU_OPTIONS)
        return built.task, built.optimizer

    def trace_large(self, batch_size: int, kind: TaskKind, is_amp: bool, until_s: float) -> StepTrace | None:
        """Trace a step at a large batch; return None if it fails, or would take too much time or memory."""
        is_traced = {*BATCHES} <= self._lengths.get((kind, is_amp), {}).keys()
        like = self if is_traced else self._shorter[0]  # a model traced at both small batches
        if time.process_time() >= until_s or like.is_too_large(batch_size, kind, is_amp):
            return None
        with suppress(Exception):  # foreign code, which may refuse a batch
            return self.trace(batch_size, kind, is_amp)
        return None

    def is_too_large(self, batch_size: int, kind: TaskKind, is_amp: bool) -> bool:
        """Return whether a large batch would take too much time or memory, judging by the traced ones."""
        lengths, (small, large) = self._lengths[kind, is_amp], (self._built[n] for n in BATCHES)
        # Per sample: operators to build and to run, and host memory. The first build may make more calls than
        # the second.
        building = max(0, large.calls - small.calls) / (BATCHES[1] - BATCHES[0])
        running = max(
            (lengths[n] - lengths[BATCHES[0]]) / (n - BATCHES[0]) for n in lengths if n > BATCHES[0]
        )
        host_bytes = large.host_bytes / BATCHES[1]
        return (
            building + running
        ) * batch_size > _MOST_OPERATORS or host_bytes * batch_size > _MOST_HOST_BYTES


def _node_names(loss: Tensor) -> list[str]:
    # The names of the nodes of an autograd graph, in any order.
    found, waiting = dict[Any, str](), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = node.name()
            waiting += [each for each, _ in node.next_functions]
    return [*found.values()]


def _without_values(workload: Workload, batch_size: int, mode: QuickFakeMode) -> Task:
    """Build a task of fake tensors; if the author's code reads values, make real tensors fake afterward."""
    cause = None
    try:
        task = workload.build(batch_size, _SEED)
    except MisuseError as error:
        if error.__cause__ is None:
            raise
        with suppress(Exception):  # whatever fails here fails again below
            return _built_with_reads(workload, batch_size)
        cause = error
        with _disable_current_modes():
            # The shapes of lazy weights come from a forward pass, which costs nothing on the meta device
            task = on_meta(workload, batch_size) if _LAZY in str(error) else workload.build(batch_size, _SEED)
    if isinstance(task.model, torch.jit.ScriptModule):
        if cause is not None:
            raise cause  # its tensors cannot be made fake
        return task
    if cause is None and all(isinstance(each, FakeTensor) for each in task.model.parameters()):
        return task
    with _disable_current_modes():
        task = _own_copy(workload, batch_size, task)
    fakes: dict[int, Any] = {}

    def fake(tensor: Tensor) -> Any:
        if id(tensor) not in fakes:
            fakes[id(tensor)] = mode.from_tensor(tensor)
            fakes[id(tensor)].fake_device = torch.device("cpu")
        return fakes[id(tensor)]

    for module in task.model.modules():
        for held in (module._parameters, module._buffers):  # noqa: SLF001 - torch's own swaps refuse fakes
            held.update({name: fake(each) for name, each in held.items() if each is not None})
    return replace(task, batches=with_tensors(task.batches, fake))


def _built_with_reads(workload: Workload, batch_size: int) -> Task:
    """Build a task of fake tensors although its code reads values that it computes, such as drop rates."""
    known = Known()
    with _disable_current_modes(), torch.device("meta"), known.followed(), known.reading() as reads:
        # Another seed, because a workload with shorter copies reuses what it has built with the same
        # arguments
        workload.build(batch_size, _SEED + 1)
    with given(reads):
        return workload.build(batch_size, _SEED)


def _own_copy(workload: Workload, batch_size: int, task: Task) -> Task:
    """Copy the model if every build returns the same one, because the original must keep its values."""
    if task.again is None or any(each.is_meta for each in task.model.parameters()):
        return task
    others = workload.build(batch_size, _SEED).model.parameters()
    is_shared = any(one is two for one, two in zip(task.model.parameters(), others, strict=False))
    return copy_of(task) if is_shared else task


def _by_recipe(task: Task, built: Recipe, recipe: Recipe) -> Task:
    """Convert a built model to another type, add adapters, and checkpoint its blocks."""
    is_adapted = recipe.trainable is not built.trainable
    weight_type = WeightType.BFLOAT16 if is_adapted else recipe.weight_type
    if weight_type is not built.weight_type:
        task = _stored_as(task, weight_type)
    if is_adapted:
        adapt(task, in_4_bits=recipe.weight_type is WeightType.NF4)
    if recipe.checkpointing is not built.checkpointing and not checkpoint_blocks(
        [task.model], recipe.checkpointing
    ):
        raise MisuseError("it has no repeated blocks to recompute")
    return task


def _stored_as(task: Task, weight_type: WeightType) -> Task:
    # The task with weights and inputs of another floating-point type; tied weights stay tied inside
    # ``gpu_without_values``
    dtype = getattr(torch, weight_type)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return replace(task, model=task.model.to(dtype), batches=with_tensors(task.batches, cast))


# --- one step ------------------------------------------------------------------------------------------


GPU_OPTIONS = {"fused": True, "foreach": True}
"""Implementations of an optimizer on a GPU, in order of preference: fused as in gpubench, else foreach."""


def step_trace(
    task: Task,
    optimizer: Optimizer | None,
    *,
    is_amp: bool,
    keep_gradients: bool = False,
    at_loss: Callable[[Tensor], object] | None = None,
    calls: list[Any] | None = None,
    idle: list[Tensor] | None = None,
) -> StepTrace:
    """Track the live bytes during one step of a task, on its fake or real tensors.

    Args:
        task: A task built on the CPU.
        optimizer: An optimizer that already has its state, from ``with_state``; None means a forward pass.
        is_amp: Whether to run under autocast, in bfloat16.
        keep_gradients: Whether earlier gradients stay alive through the forward pass, as they do if they are
            accumulated, or set to zero instead of freed.
        at_loss: Receives the loss, in place of backward pass and update.
        calls: Collects each operator with the shapes of its tensors.
        idle: Collects the weights that get no gradient although they are trained.
    """
    model = set_mode(task.model, train=optimizer is not None)
    trained = [p for p in model.parameters() if p.requires_grad]
    inputs, targets = task.batches[0]
    storages = Storages()
    weights, states = _adopt_before_step(storages, task, optimizer)
    if optimizer is not None and keep_gradients:
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
            storages.mark_gradient(parameter.grad)
    saved = 0
    with storages.followed(calls) as timeline, storages.gradients_of(trained):
        if optimizer is None:
            with _autocast(is_amp):
                try:
                    with torch.no_grad():
                        outputs = forward(model, inputs)
                except RuntimeError:  # the model may call autograd itself
                    outputs = forward(model, inputs)
                saved = storages.bytes - weights
                del outputs
        else:
            with _autocast(is_amp):
                outputs = forward(model, inputs)
                storages.follow_outputs(_tensors(outputs))
                loss = task.loss(outputs, targets)
                del outputs
            saved = storages.bytes - storages.gradient_bytes - weights - states
            if at_loss is None:
                loss.backward()
                if idle is not None:
                    idle += [p for p in trained if p.grad is None]
                with numbers_as_1():
                    optimizer.step()
            else:
                at_loss(loss)
    if optimizer is not None:
        model.zero_grad()  # an optimizer's own ``zero_grad`` need not free the gradients
    return StepTrace(timeline, weights, sum(p.nbytes for p in trained), states, saved)


def _adopt_before_step(storages: Storages, task: Task, optimizer: Optimizer | None) -> tuple[int, int]:
    """Count what is alive before a step; return the bytes of the weights and of the optimizer's state."""
    storages.adopt(_tensors([*task.model.parameters(), *task.model.buffers()]))
    weights = storages.bytes
    if optimizer is not None:
        storages.adopt(_tensors(states_of(optimizer)))
    held = storages.bytes
    storages.adopt(_tensors(task.batches))
    # Without values, batches may share their tensors; in a run each has its own
    first = sum({storage_id(t): t.untyped_storage().nbytes() for t in _tensors(task.batches[:1])}.values())
    shared = len(task.batches) * min(first, storages.bytes - held)
    storages.bytes = max(storages.bytes, held + shared)
    return weights, held - weights


def with_state(task: Task, options: dict[str, bool]) -> Optimizer:
    """Return an optimizer that has updated the weights once, so its state exists; no gradient is left.

    Args:
        task: The task with the weights to update.
        options: The first option that the optimizer accepts is used.
    """
    trained = [p for p in task.model.parameters() if p.requires_grad]
    for name, value in options.items():
        # The optimizer may lack the option, or refuse it for these weights
        with suppress(TypeError, ValueError, RuntimeError):
            return _stepped(task.optimizer(trained, **{name: value}), task.model)
    optimizer = task.optimizer(trained)
    for group in groups_of(optimizer):
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = options.get("foreach")  # torch's own choice on a GPU
    return _stepped(optimizer, task.model)


def _stepped(optimizer: Optimizer, model: nn.Module) -> Optimizer:
    # The step may raise an error for options that the constructor accepted
    for module in model.modules():
        for parameter in (p for p in module.parameters(recurse=False) if p.requires_grad):
            parameter.grad = torch.zeros_like(parameter)
            if getattr(module, "sparse", False):  # with two rows: torch miscounts a single one
                rows = parameter.new_zeros(2, *parameter.shape[1:])
                parameter.grad = torch.sparse_coo_tensor(torch.zeros(1, 2).long(), rows, parameter.shape)
    with Storages().followed(), numbers_as_1():
        optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
    return optimizer


def _drop_states(optimizer: Optimizer | None, idle: Sequence[Tensor], step: Callable[..., StepTrace]) -> bool:
    """Free the states of weights that never get a gradient, as a run makes none; return whether any do.

    Steps with other seeds show which of the idle weights of one step are used at random.
    """
    states = [each.state for each in optimizers_in(optimizer) if isinstance(each, Optimizer)]
    idle = [p for p in idle if any(p in state for state in states)]
    for seed in range(_SEED + 1, _SEED + _DRAWS if idle else 0):
        others: list[Tensor] = []
        with seeded(seed):
            step(idle=others)
        idle = [p for p in idle if any(p is other for other in others)]
    for state, parameter in itertools.product(states, idle):
        state.pop(parameter, None)
    return bool(idle)


def _autocast(is_amp: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16) if is_amp else nullcontext()


# --- storages ------------------------------------------------------------------------------------------


class Storages:
    """The storages that are alive, and their bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self.gradient_bytes = 0
        self.dead_output_bytes = 0
        self._gradients: dict[int, int] = {}
        self._outputs: set[int] = set()
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of these tensors, each once, until they are freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, size = storage_id(tensor), storage.nbytes()
            known = self._alive.get(key)
            if known is None:
                self._alive[key] = size, weakref.ref(storage, partial(self._gone, key))
                self.bytes += size
            elif known[0] != size:  # it was resized
                self._alive[key] = size, known[1]
                self.bytes += size - known[0]

    def mark_gradient(self, gradient: Tensor) -> None:
        """Count a tensor as a gradient of the weights, until it is freed."""
        self.adopt([gradient])
        key = storage_id(gradient)
        self.gradient_bytes += self._alive[key][0] - self._gradients.get(key, 0)
        self._gradients[key] = self._alive[key][0]

    def follow_outputs(self, tensors: Iterable[Tensor]) -> None:
        """From now on, also count these tensors after they are freed, as a loop may still hold them."""
        self._outputs |= {storage_id(t) for t in tensors} & self._alive.keys()

    @contextmanager
    def gradients_of(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """Mark the gradients that the backward pass computes for these parameters."""

        def mark(parameter: Tensor) -> None:
            for gradient in _tensors([parameter.grad]):
                self.mark_gradient(gradient)

        handles = [p.register_post_accumulate_grad_hook(mark) for p in parameters]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _gone(self, key: int, _: object) -> None:
        size = self._alive.pop(key)[0]
        self.bytes -= size
        if key in self._outputs:
            self._outputs.remove(key)  # another storage may get its address
            self.dead_output_bytes += size
        self.gradient_bytes -= self._gradients.pop(key, 0)

    def _moment(self) -> Moment:
        return Moment(self.bytes, self.gradient_bytes, self.dead_output_bytes)

    @contextmanager
    def followed(self, calls: list[Any] | None = None) -> Iterator[list[Moment]]:
        """Track the results of every operator in the block; the list has the live bytes after each.

        ``calls`` collects each operator with the shapes of its tensors.
        """
        timeline = [self._moment()]

        def note(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
            self.adopt(_tensors((out,)))
            timeline.append(self._moment())
            if calls is not None:
                calls.append((func, [each.shape for each in tensors_in((*args, *kwargs.values()))]))

        def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            out = func(*args, **kwargs)
            if func is not DEVICE:
                note(func, args, kwargs, out)
            return out

        fakes = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, QuickFakeMode)]
        with fakes[-1].noting(note) if fakes else EveryCall(call):
            yield timeline


def _tensors(values: Any) -> Iterator[Tensor]:
    # The tensors that own memory: for a sparse tensor its parts; for a wrapper, such as a quantized weight,
    # the wrapped tensors
    for tensor in tensors_in(tensors_of(values)):
        if hasattr(type(tensor), "__tensor_flatten__"):
            yield from _tensors([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])  # type: ignore[attr-defined]
        else:
            yield tensor
