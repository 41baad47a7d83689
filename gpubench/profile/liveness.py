"""Peak memory of one step, by following storages as they live and die: no GPU, no memory, no arithmetic.

A whole step is run on fake tensors, which have shapes and types but no values. Bytes rise when a storage is
made and fall when it dies. Two batch sizes make each moment of the step a line over the batch size, and the
peak is the highest of the lines: at a small batch that may be the update of the weights, at a large one the
loss.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from gpubench.models import MemoryLine, StepMemory, TaskKind
from gpubench.workload import Task, Workload, seeded

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_BATCHES = (2, 4)
"""Not 1: at a batch of 1 some layouts coincide and copies vanish."""
_SEED = 0
_FUSED_UPDATES = "_fused_"
"""Begin the names of the operators that update all weights in place, in one kernel."""


def trace_memory(workload: Workload) -> tuple[StepMemory, ...]:
    """Trace the peak memory of each task of a workload, with autocast and without.

    Raises:
        Exception: Whatever the model or torch raises, where a step cannot run without values.
    """
    cases = [(task, is_amp) for task in workload.tasks for is_amp in (False, True)]
    with _gpu_without_values():
        made = [_build(workload.build, n) for n in _BATCHES]
        return tuple(
            StepMemory(task=task, is_amp=is_amp, lines=_lines([_fake_step(m, task, is_amp) for m in made]))
            for task, is_amp in cases
        )


def traced_peak_bytes(
    build: Callable[[int, int], Task], batch_size: int, task: TaskKind, *, is_amp: bool
) -> int:
    """Peak memory of one step at one batch size, after the state of the optimizer exists [B].

    Counted are the weights, their gradients, the optimizer's state, the prebuilt batches, and all that
    the step itself makes.
    """
    with _gpu_without_values():
        return max(_fake_step(_build(build, batch_size), task, is_amp))


# --- lines over the batch size -------------------------------------------------------------------------


def _lines(timelines: Sequence[Sequence[int]]) -> tuple[MemoryLine, ...]:
    """The lines of which one is the highest at some batch, from the same moments at two batch sizes."""
    one, two = timelines
    if len(one) != len(two):  # another course at another batch: only the peaks can be compared
        one, two = [max(one)], [max(two)]
    small, large = _BATCHES
    found: dict[float, float] = {}
    for first, second in zip(one, two, strict=True):
        slope = max(0.0, (second - first) / (large - small))
        fixed = max(first - small * slope, second - large * slope)
        found[slope] = max(fixed, found.get(slope, fixed))
    return tuple(MemoryLine(fixed_bytes=f, bytes_per_sample=s) for s, f in _envelope(sorted(found.items())))


def _envelope(lines: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of lines (slope, fixed) by rising slope, those that are the highest somewhere from a batch of 1 on."""
    kept: list[tuple[float, float]] = []
    for slope, fixed in lines:
        while kept and kept[-1][1] + kept[-1][0] <= fixed + slope:
            kept.pop()  # the steeper one is above it from the start
        while len(kept) > 1 and _crossing(kept[-2], (slope, fixed)) <= _crossing(kept[-2], kept[-1]):
            kept.pop()
        kept.append((slope, fixed))
    return kept


def _crossing(low: tuple[float, float], steep: tuple[float, float]) -> float:
    """The batch size from which on the steeper line is the higher one."""
    return (low[1] - steep[1]) / (steep[0] - low[0])


# --- one step ------------------------------------------------------------------------------------------


_GPU_OPTIONS = {"fused": True, "foreach": True}
"""What optimizers do on a GPU, the first that they know: fused where gpubench measures, else all at once."""


@contextmanager
def _gpu_without_values() -> Iterator[None]:
    """Make tensors fake inside the block, and treat them as a GPU would."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from gpubench.profile.cuda_rules import cuda_rules

    with _no_collection(), _no_fast_path(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fakes that are copied warn; the model's own were seen before
        with cuda_rules(), FakeTensorMode(allow_non_fake_inputs=True):
            yield


def _build(build: Callable[[int, int], Task], batch_size: int) -> Task:
    with seeded(_SEED):
        return build(batch_size, _SEED)


def _fake_step(task: Task, kind: TaskKind, is_amp: bool) -> list[int]:
    with seeded(_SEED):
        return step_timeline(task, kind, is_amp=is_amp, options=_GPU_OPTIONS)


def step_timeline(task: Task, kind: TaskKind, *, is_amp: bool, options: dict[str, bool]) -> list[int]:
    """Bytes alive after each operator of one step of a task, on the tensors that it has, fake or real.

    Args:
        task: Built and on the CPU.
        kind: A training step, or a forward pass.
        is_amp: Under autocast, as bfloat16.
        options: Of which the optimizer is given the first that it accepts.
    """
    import torch

    model = task.model.train(kind is TaskKind.TRAIN)
    optimizer = _with_state(task, model, options) if kind is TaskKind.TRAIN else None
    inputs, targets = task.batches[0]
    storages = Storages()
    storages.adopt(_tensors((list(model.parameters()), list(model.buffers()), task.batches)))
    if optimizer is not None:
        storages.adopt(_tensors([list(state.values()) for state in optimizer.state.values()]))
    with storages.followed() as timeline:
        if optimizer is None:
            with torch.no_grad(), _autocast(is_amp):
                outputs = _forward(model, inputs)
                del outputs
        else:
            optimizer.zero_grad(set_to_none=True)
            with _autocast(is_amp):
                outputs = _forward(model, inputs)
                loss = task.loss(outputs, targets)
            loss.backward()  # beside the outputs, which most training loops still have a name for
            optimizer.step()
    return timeline


def _with_state(task: Task, model: nn.Module, options: dict[str, bool]) -> Optimizer:
    """An optimizer that has updated the weights once, so that its state exists."""
    import torch

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = _optimizer(task.optimizer, trained, options)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    with Storages().followed():
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def _optimizer(
    factory: Callable[..., Optimizer], trained: Sequence[nn.Parameter], options: dict[str, bool]
) -> Optimizer:
    for name, value in options.items():
        try:
            return factory(trained, **{name: value})
        except (TypeError, ValueError, RuntimeError):
            continue  # not an option of this optimizer, or not for these weights
    return factory(trained)


def _forward(model: nn.Module, inputs: Any) -> Any:
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _autocast(is_amp: bool) -> AbstractContextManager[Any]:
    import torch

    return torch.autocast("cpu", dtype=torch.bfloat16) if is_amp else nullcontext()


# --- storages ------------------------------------------------------------------------------------------


class Storages:
    """The storages that are alive, and their bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of these tensors, each once, until they die."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()  # noqa: SLF001 - torch offers no other identity
            known = self._alive.get(key)
            if known is None:
                self._alive[key] = size, weakref.ref(storage, partial(self._gone, key))
            else:
                self._alive[key] = size, known[1]  # it may have been resized
                self.bytes -= known[0]
            self.bytes += size

    def _gone(self, key: int, _: object) -> None:
        self.bytes -= self._alive.pop(key)[0]

    @contextmanager
    def followed(self) -> Iterator[list[int]]:
        """Adopt what every operator inside makes; the list tells the bytes alive after each."""
        from torch.utils._python_dispatch import TorchDispatchMode

        timeline = [self.bytes]
        storages = self

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                del types
                if func._schema.name.startswith("aten::" + _FUSED_UPDATES) and _fake(args):  # noqa: SLF001
                    return None  # in place, and without a rule for fake tensors
                out = func(*args, **(kwargs or {}))
                storages.adopt(_tensors((out,)))
                timeline.append(storages.bytes)
                return out

        with Operators():  # type: ignore[no-untyped-call]
            yield timeline


def _fake(args: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return any(isinstance(t, FakeTensor) for t in _tensors(args))


def _tensors(values: Any) -> Iterator[Tensor]:
    import torch

    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _tensors(value)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let no garbage collection fall into the step: when it comes differs from run to run."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Keep encoder layers in eval mode to operators that fake tensors know."""
    import torch

    mha = torch.backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)
