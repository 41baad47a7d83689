"""Prepares a step for its execution, checks its results, and times it outside the timed rounds."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from gpubench.executions import COMPILE_SWITCHES, REFUSED_IN_CAPTURE
from gpubench.foreign_code import lacks_memory, one_line
from gpubench.measure.budget import (
    LATENCY_MOST_S,
    LATENCY_PASSES,
    PROFILED_S,
    PROFILED_STEPS,
    REFERENCE_SAMPLES,
)
from gpubench.measure.capability import NotHereError
from gpubench.measure.launch import largest_difference, relative_difference
from gpubench.measure.loop import Clock
from gpubench.measure.step import Generation, Work, copied, generate, relative_error, seed_all, to_device
from gpubench.models import Case, Cause, Execution, TaskKind
from gpubench.tensors import off_gpu, tensors_of, with_tensors
from gpubench.units import Seconds, format_bytes
from gpubench.workload import Batch, Task, forward, set_mode

# --- three ways to run the same step: eager, in CUDA graphs, compiled -------------------------------------


# Issues the step with this index; the result is the loss (train) or the outputs (infer).
Advance = Callable[[int], Tensor]

# Steps before a capture: they create state that is built lazily, such as optimizer moments, cuDNN's choice of
# algorithm and the gradient scale.
STEPS_BEFORE_CAPTURE = 3

_Result = TypeVar("_Result")


def prepare(work: Work) -> Advance:
    """Return the function that issues one step with the case's execution.

    Raises:
        NotHereError: If the step cannot be captured in a CUDA graph, no part of it was compiled, or its
            execution has no entry in ``_WAYS``.
    """
    way = _WAYS.get(work.case.execution)
    if way is None:
        raise NotHereError(f"gpubench.measure.guards cannot run a torch step as {work.case.execution}")
    return way(work)


def compiled(work: Work) -> Advance:
    """Compile the model by running a first step, and return the compiled step.

    The cache of earlier cases is cleared first, because torch would otherwise compile a second batch size
    with dynamic shapes. torch may silently decline to compile, so its own count of compiled graphs is the
    proof.

    Raises:
        NotHereError: If no graph was compiled.
    """
    from torch._dynamo.utils import counters

    if work.new_tokens:
        raise NotHereError("generation is measured eagerly and as a CUDA graph, not with torch.compile")
    torch.compiler.reset()
    counters.clear()
    compiled_work = dataclasses.replace(work, model=cast("nn.Module", torch.compile(work.model)))
    compiled_work.step(0)
    if not counters["stats"]["unique_graphs"]:
        off = (
            f"unset {name}={os.environ[name]}"
            for name in COMPILE_SWITCHES
            if os.environ.get(name, "0") != "0"
        )
        refused = (words.splitlines()[0] for words in counters["unimplemented"] if words)
        reasons = [*off, *refused]
        why = f": {reasons[0]}" if reasons else ""
        raise NotHereError(f"torch.compile compiled no part of this model{why}")
    return compiled_work.step


def capture(work: Work) -> Advance:
    """Capture the entire step once per prebuilt batch, so the timed step copies no inputs.

    A generation has one graph for each batch's prompts, and one that adds a token to every sequence.

    Raises:
        NotHereError: With the reason why the step cannot be captured.
        OutOfMemoryError: If memory ran out, even if CUDA reported another error.
    """
    indices = range(len(work.batches))
    if not work.new_tokens:
        graphs = _captured(work, work.step, [partial(work.step, index) for index in indices])

        def replay(index: int) -> Tensor:
            graph, result = graphs[index % len(graphs)]
            graph.replay()
            return result

        return replay

    generation = Generation(work)

    def begin(index: int) -> None:
        generation.start(index)
        generation.go_on()

    parts: list[Callable[[], None]] = [
        *(partial(generation.start, index) for index in indices),
        generation.go_on,
    ]
    *prompts, token = (graph for graph, _ in _captured(work, begin, parts))

    def advance(index: int) -> Tensor:
        return generate(work, generation, index, lambda n: prompts[n % len(prompts)].replay(), token.replay)

    return advance


_WAYS: Mapping[Execution, Callable[[Work], Advance]] = {
    Execution.EAGER: lambda work: work.step,
    Execution.GRAPH: capture,
    Execution.COMPILE: compiled,
}


def _captured(
    work: Work, warm_up: Callable[[int], object], parts: Sequence[Callable[[], _Result]]
) -> list[tuple[torch.cuda.CUDAGraph, _Result]]:
    """Capture each part in its own graph; the graphs share a memory pool, because only one runs at a time.

    Warm-up steps come first, because libraries create their state at first use. The allocator caches memory
    per stream, and cuBLAS has a workspace per stream. If warm-up and capture use the same stream, and the
    cache is emptied in between, the graph takes no more memory than an eager step; otherwise, VGG16 took
    9.1 GiB on an H200, against 5.3 GiB run eagerly.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(STEPS_BEFORE_CAPTURE):
            warm_up(index)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graphs: list[tuple[torch.cuda.CUDAGraph, _Result]] = []
    pool = None
    with _capturing():
        for part in parts:
            for parameter in work.model.parameters() if work.optimizer is not None else ():
                parameter.grad = None  # else the graph would write into the earlier steps' gradients
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=side):
                result = part()
            graphs.append((graph, result))
            pool = graph.pool()
    return graphs


@contextmanager
def _capturing() -> Iterator[None]:
    """Empty the cache before a capture, and raise the true cause of a capture that fails.

    Raises:
        NotHereError: With the reason why the step cannot be captured.
        OutOfMemoryError: If memory ran out, even if CUDA reported another error.
    """
    torch.cuda.empty_cache()
    free_bytes = _free_bytes()
    try:
        yield
    except RuntimeError as error:
        cause: BaseException = error  # ending a failed capture raises another error, which hides the cause
        while _hides_the_cause(cause) and cause.__context__ is not None:
            cause = cause.__context__
        if lacks_memory(cause):
            raise cause from None
        needed_bytes = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        if _hides_the_cause(cause) and needed_bytes > free_bytes:
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory inside a graph capture: a step takes {format_bytes(needed_bytes)} more "
                f"than the model, but only {format_bytes(free_bytes)} was free ({one_line(cause)})"
            ) from error
        if not isinstance(cause, RuntimeError):
            raise cause from None  # the model's own error, hidden by the end of the capture
        refused = Cause.REFUSED_IN_CAPTURE if REFUSED_IN_CAPTURE in str(cause) else None
        reason = f"the step cannot be captured in a CUDA graph: {one_line(cause)}"
        raise NotHereError(reason, refused) from cause


def _free_bytes() -> int:
    """Return the memory still available to this process within its limit [B]."""
    free, total = torch.cuda.mem_get_info()
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # older torch does not report it
    share = 1.0 if fraction is None else fraction()
    return min(free, int(share * total) - torch.cuda.memory_reserved())


def _hides_the_cause(error: BaseException) -> bool:
    return any(words in str(error) for words in ("previous error during capture", "StreamCaptureInvalidated"))


# --- further checks of a measured step, outside the timed rounds ------------------------------------------


# Steps to time one by one; few, because a full launch queue (about a thousand kernels) makes the host wait.
ISSUED_STEPS = 3
# Approximate time that ``event_times``, ``host_issue_times`` and ``busy_share`` take together, in rounds.
READINGS_ROUNDS = 4
# Approximate time that the profiler needs to start and to summarize [s].
PROFILER_S = 2.0
MOST_EVENTS = 200
# Assumed maximum ratio of the time of a single pass to that of a step in a round.
LATENCY_MARGIN = 1.5


def event_times(advance: Advance, steps: int) -> tuple[Seconds, ...]:
    """Return the device time of each step of one round, including gaps between kernels [s].

    At most ``MOST_EVENTS`` steps are timed.
    """
    edges = [torch.cuda.Event(enable_timing=True) for _ in range(min(steps, MOST_EVENTS) + 1)]
    edges[0].record()
    for index, edge in enumerate(edges[1:]):
        advance(index)
        edge.record()
    torch.cuda.synchronize()
    return tuple(before.elapsed_time(after) * 1e-3 for before, after in pairwise(edges))


def host_issue_times(advance: Advance, clock: Clock) -> tuple[Seconds, ...]:
    """Return the issue time and the total time of each of three steps, started on an idle device [s].

    The values come in pairs: issue, whole step, issue, whole step ...
    """
    times: list[Seconds] = []
    for index in range(ISSUED_STEPS):
        clock.synchronize()
        start = clock.now_s()
        advance(index)
        times.append(clock.now_s() - start)
        clock.synchronize()
        times.append(clock.now_s() - start)
    return tuple(times)


def latency_time_s(step_s: Seconds, left_s: Seconds) -> Seconds:
    """Return the time to reserve for the latency passes [s].

    It is enough for all passes, but at most ``LATENCY_MOST_S`` and at most half of the time left.
    A single pass is slower than a step of a round, in which the host runs ahead of the device.
    """
    return max(0.0, min(LATENCY_MOST_S, LATENCY_MARGIN * LATENCY_PASSES * step_s, left_s / 2))


def latencies(advance: Advance, clock: Clock, most_s: Seconds = LATENCY_MOST_S) -> tuple[Seconds, ...]:
    """Return the time of single passes, each from an idle device to an idle device [s].

    There are ``LATENCY_PASSES`` times, enough for the 99th percentile, or fewer if ``most_s`` is up first.
    """
    times: list[Seconds] = []
    began_s = clock.now_s()
    while len(times) < LATENCY_PASSES and (clock.now_s() - began_s < most_s or not times):
        times.append(clock.time(lambda: advance(len(times))))
    return tuple(times)


def busy_share(advance: Advance, clock: Clock) -> float | None:
    """Return the kernel time of a few steps divided by their unprofiled wall time; None without kernels.

    The result may slightly exceed 1.
    """
    from torch.profiler import ProfilerActivity, profile

    def steps(count: int = 1) -> None:
        for index in range(count):
            advance(index)

    least, most = PROFILED_STEPS
    step_s = clock.time(steps)
    count = min(most, max(least, math.ceil(PROFILED_S / max(step_s, 1e-9))))
    wall_s = clock.time(partial(steps, count))
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        clock.time(partial(steps, count))
    kernels_us = sum(
        event.self_device_time_total
        for event in seen.key_averages()
        if not getattr(event, "is_user_annotation", False)  # its kernels are also listed separately
    )
    return kernels_us * 1e-6 / wall_s if kernels_us > 0 else None


# A module with one of these in its class name drops values at random in training mode.
_DROPOUT = ("drop", "stochasticdepth")
# Why nothing can be compared with the device.
RANDOM = "the forward pass draws random numbers, and a CPU draws different ones"
NO_NUMBER = "the inference outputs have no form that can be compared"
# Relative difference allowed between two losses of the same step on the CPU: rounding depends on threads.
SAME_LOSS = 1e-6


class Expected(NamedTuple):
    """A task's results on the CPU, in the type of its weights, which is float32 unless requested otherwise.

    Attributes:
        loss: None if it cannot be compared with the device's, or if the loss function does not accept the
            model's inference outputs.
        outputs: In inference, the outputs of at most four samples, (n, ...). None in training; if ``draws``
            is true; if they are not one tensor; if the model has no weights (an input pipeline gives random
            outputs); or if any weight is not float32, because the CPU's error is then as large as the
            device's.
        is_whole: Whether the results are for the whole batch, because the model does not run on a part of it.
        unchecked: Why nothing can be compared with the device; None if something can.
        draws: Whether the forward pass draws random numbers, other than for dropout.
        needs_grad: Whether the forward pass or the loss fails without autograd, because it takes derivatives.
        carries: Whether a second pass gives a different loss, because the model keeps state.
        rebinds: Whether each pass stores that state in new tensors.
    """

    loss: float | None
    outputs: Tensor | None = None
    is_whole: bool = False
    unchecked: str | None = None
    draws: bool = False
    needs_grad: bool = False
    carries: bool = False
    rebinds: bool = False


class Errors(NamedTuple):
    """The relative errors of a case against the CPU; None if unknown."""

    loss: float | None
    outputs: float | None = None


def reference_errors(work: Work, task: Task, expected: Expected | None = None) -> Errors:
    """Return the errors of the first loss and outputs relative to the CPU's; see ``Expected``.

    Dropout is off, batch norm is in the mode of the case's task, and both sides see the same slice of at most
    four samples, or the whole batch if the model does not run on a part of it. The error of the outputs is
    over the whole tensor, ``|x - y| / |y|``.

    Args:
        work: The model on its device, before any step.
        task: The same task on the CPU.
        expected: The task's results, if already known; they are the same for every precision and execution.
    """
    expected = expected or expected_of(task, work.case)
    if expected.unchecked is not None:
        return Errors(None)
    inputs, targets = task.batches[0] if expected.is_whole else _reference_batch(task, work.case)
    train = work.case.task is TaskKind.TRAIN
    loss = output_error = None
    with (
        torch.set_grad_enabled(expected.needs_grad),
        without_dropout(work.model, train=train),
        work.autocast(),
    ):
        on_device = forward(work.model, to_device(inputs, work.device, work.case, work.cast))
        if expected.loss is not None:
            found = work.loss(on_device, to_device(targets, work.device))
            loss = relative_difference(float(found.detach()), expected.loss)
    if expected.outputs is not None:
        output_error = relative_error(on_device.detach().cpu(), expected.outputs.detach().double())
    return Errors(loss, output_error if output_error is not None and math.isfinite(output_error) else None)


def expected_of(task: Task, case: Case) -> Expected:
    """Return a task's results on the CPU, for at most four samples if the batch can be cut.

    They are computed from two seeds: a model that draws random numbers, or gives two different losses, has no
    reference. A user's own model is copied or built again for each seed, because a pass may change its state.
    """
    train = case.task is TaskKind.TRAIN
    attempts = list(itertools.product((False, True), (False, True)))
    for needs_grad, is_whole in attempts:
        try:
            batch = task.batches[0] if is_whole else _reference_batch(task, case)
            used = fresh(task)
            before = _state_tensors(used.model)
            loss, outputs, draws = _on_cpu(used, batch, train=train, seed=0, grad=needs_grad)
            break
        except Exception:  # the user's code may need the whole batch, or autograd
            if (needs_grad, is_whole) == attempts[-1]:
                raise
    with_other_seed, _, _ = _on_cpu(fresh(task), batch, train=train, seed=1, grad=needs_grad)
    carries = rebinds = False
    if used is not task:
        second, _, _ = _on_cpu(used, batch, train=train, seed=0, grad=needs_grad)
        are_new = any(a is not b for a, b in itertools.zip_longest(before, _state_tensors(used.model)))
        # Any difference counts, because a loss over a long sequence hardly depends on the state at its start.
        rebinds = are_new and second != loss
        carries = rebinds or _differ(second, loss)
    has_weights = any(True for _ in task.model.parameters())
    draws = _differ(with_other_seed, loss) or (draws and has_weights)
    types = {p.dtype for p in task.model.parameters() if p.is_floating_point()}
    keeps_outputs = not (train or draws) and types == {torch.float32} and isinstance(outputs, Tensor)
    unchecked = RANDOM if draws else (NO_NUMBER if loss is None and not keeps_outputs else None)
    return Expected(
        None if draws else loss,
        outputs if keeps_outputs else None,
        is_whole,
        unchecked,
        draws=draws,
        needs_grad=needs_grad,
        carries=carries,
        rebinds=rebinds,
    )


def _state_tensors(model: nn.Module) -> list[Tensor]:
    # Return the tensors that a model's modules hold, other than parameters.
    return [
        tensor
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in {"_parameters", "_modules"}
        for tensor in tensors_of(value)
    ]


def _differ(loss: float | None, other: float | None) -> bool:
    difference = None if loss is None or other is None else relative_difference(loss, other)
    return (difference or 0.0) > SAME_LOSS


def _on_cpu(
    task: Task, batch: Batch, *, train: bool, seed: int, grad: bool
) -> tuple[float | None, Any, bool]:
    """Return the loss and outputs of a batch on the CPU, and whether the forward pass drew random numbers.

    The loss is None for inference if the loss function does not accept the model's output.
    """
    inputs, targets = batch
    with (
        off_gpu(),
        torch.random.fork_rng(devices=[]),
        torch.set_grad_enabled(grad),
        without_dropout(task.model, train=train),
    ):
        seed_all(seed)
        before = _randomness()
        outputs = forward(task.model, inputs)
        try:
            loss = float(torch.as_tensor(task.loss(outputs, targets)).detach())
        except Exception:
            if train:
                raise
            loss = None
        return loss, outputs, _randomness() != before


def fresh(task: Task) -> Task:
    """Return a copy for one pass if the model is a user's own; else the task itself."""
    return task if task.again is None else copied(task)


def _randomness() -> tuple[object, ...]:
    # Return the state of the random generators that a model may use on the CPU.
    numbers = np.random.get_state(legacy=False)  # noqa: NPY002 - models draw from the global generator
    numpy_state = msgspec.json.encode(numbers, enc_hook=np.ndarray.tolist)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state


def graph_error(work: Work, advance: Advance, *, draws: bool = False, carries: bool = False) -> float | None:
    """Compare two prepared steps with two eager steps: return the largest relative difference of the losses.

    None means that they cannot be compared. Both pairs start from the same state, which is restored
    afterward. The second loss of a pair depends on the first update, so it also checks the update. A replay
    draws dropout's random numbers from the generator, as an eager step does. Compiled code and recurrent
    layers draw their own, so for these, dropout is turned off, and a graph is captured again without it.

    Args:
        work: The case on its device, after its first steps.
        advance: Runs a prepared step: a replay or a compiled step.
        draws: Whether the forward pass draws random numbers, other than for dropout; compiled code draws
            different ones.
        carries: As in ``Expected``; if true, the model's earlier state cannot be restored.
    """
    train = work.case.task is TaskKind.TRAIN
    recurrent_dropout = train and any(isinstance(m, nn.RNNBase) and m.dropout for m in work.model.modules())
    draws_its_own = work.case.execution is Execution.COMPILE or recurrent_dropout
    if carries or (draws and draws_its_own):
        return None
    state = _State(work)
    with without_dropout(work.model, train=train) if draws_its_own else nullcontext():
        if work.case.execution is Execution.GRAPH and recurrent_dropout:
            advance = prepare(work)
            state.restore()
        eager = _two_losses(work, work.step)
        state.restore()
        prepared = _two_losses(work, advance)
    state.restore()
    return largest_difference(prepared, eager)


def fingerprint(model: nn.Module) -> list[Tensor]:
    """Return a copy of the start of every trained parameter, which shows later whether any has changed.

    Only this process's part of a sharded parameter is used, because gathering the rest takes all processes.
    """
    trained = (p.detach() for p in model.parameters() if p.requires_grad)
    own = (p.to_local() if hasattr(p, "to_local") else p for p in trained)
    return [part.reshape(-1)[:1024].clone() for part in own]


def has_moved(model: nn.Module, before: list[Tensor]) -> bool:
    """Return whether any trained parameter differs from its fingerprint."""
    return any(not torch.equal(a, b) for a, b in zip(fingerprint(model), before, strict=True))


@contextmanager
def without_dropout(model: nn.Module, *, train: bool) -> Iterator[None]:
    """Turn dropout off, and restore modes, rates and buffers afterward.

    In training, all other modules stay in training mode, because some compute differently without it: batch
    norm uses the statistics of its batch. Dropout means every module with a word of ``_DROPOUT`` in its class
    name, and every number with "drop" in its attribute name, such as the rate of a recurrent layer.
    """
    modules = {module: module.training for module in model.modules()}
    rates = [
        (module, name, rate)
        for module in modules
        for name, rate in vars(module).items()
        if "drop" in name.lower() and isinstance(rate, float)
    ]
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    set_mode(model, train=train)
    for module in modules:
        if any(word in type(module).__name__.lower() for word in _DROPOUT):
            module.training = False
    for module, name, _ in rates:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, training in modules.items():
            module.training = training
        for module, name, rate in rates:
            setattr(module, name, rate)
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


class _State:
    """The saved values of parameters, buffers, optimizer moments and gradient scale."""

    def __init__(self, work: Work) -> None:
        self._live = list(work.model.buffers())
        if work.optimizer is not None:  # else parameters stay unchanged
            self._live += work.model.parameters()
            for state in getattr(work.optimizer, "state", {}).values():
                self._live += (value for value in state.values() if isinstance(value, Tensor))
        if work.scaler is not None:
            scale = (getattr(work.scaler, name, None) for name in ("_scale", "_growth_tracker"))
            self._live += (value for value in scale if isinstance(value, Tensor))
        self._kept = [tensor.detach().clone() for tensor in self._live]

    def restore(self) -> None:
        """Write the saved values into the same memory, which a captured graph continues to use."""
        with torch.no_grad():
            for tensor, kept in zip(self._live, self._kept, strict=True):
                tensor.copy_(kept)


def _two_losses(work: Work, advance: Advance) -> list[float]:
    seed_all(0)
    return [work.edge_loss(advance(index), index) for index in range(2)]


def _reference_batch(task: Task, case: Case) -> Batch:
    """Return the first samples of the first batch, cut to as many tokens as a CPU computes quickly."""
    inputs, targets = (_slice(part, case.batch_size, task.reference_tokens) for part in task.batches[0])
    return inputs, targets


def _slice(value: Any, batch_size: int, tokens: int | None) -> Any:
    """Cut every tensor or list with one item per sample to the first samples, and sequences to ``tokens``."""

    def is_by_sample(part: Any) -> bool:
        return isinstance(part, Tensor) and part.dim() > 0 and len(part) == batch_size

    def cut(tensor: Tensor) -> Tensor:
        if not is_by_sample(tensor):
            return tensor
        samples = tensor[:REFERENCE_SAMPLES]
        return samples if tokens is None or tensor.dim() == 1 else samples[:, :tokens]

    def cut_list(part: Any) -> Any:
        by_sample = isinstance(part, list | tuple) and len(part) == batch_size > REFERENCE_SAMPLES
        # A list of whole-batch tensors is cut tensor by tensor, even if it is as long as the batch.
        return part[:REFERENCE_SAMPLES] if by_sample and not all(map(is_by_sample, part)) else None

    return with_tensors(value, cut, cut_list)
