"""Three ways to run the same step: eager, captured whole in CUDA graphs, and torch.compile."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from gpubench.executions import COMPILE_SWITCHES, REFUSED_IN_CAPTURE
from gpubench.foreign_code import lacks_memory, one_line
from gpubench.measure.capability import NotHereError
from gpubench.measure.step import Turn, Work, generate
from gpubench.models import Cause, Execution
from gpubench.units import format_bytes

Advance = Callable[[int], Tensor]
"""Issue the step with this index; the result is the loss (train) or the outputs (infer)."""

STEPS_BEFORE_CAPTURE = 3
"""Lazy state (optimizer moments, cuDNN's choice, gradient scale) must exist before a capture."""

_Result = TypeVar("_Result")


class NotPreparedError(NotHereError):
    """This step cannot be captured, or compiled; it is never run eagerly under the name of either."""


def prepare(work: Work) -> Advance:
    """Return the function that issues one step in the way of the case's execution.

    Raises:
        NotPreparedError: If the step cannot be captured in a CUDA graph, nothing of it was compiled, or its
            execution has no row in ``_WAYS``.
    """
    way = _WAYS.get(work.case.execution)
    if way is None:
        raise NotPreparedError(
            f"gpubench.measure.execution has no way to run a step of torch as {work.case.execution}"
        )
    return way(work)


def eager(work: Work) -> Advance:
    """Return the step as it is."""
    return work.step


def compiled(work: Work) -> Advance:
    """Return the step with its model compiled, its first step done: that is when torch compiles.

    What torch has learned from earlier cases is dropped, since a second batch size would otherwise be
    compiled for any size. torch may decline to compile without a word, so its own count of compiled graphs
    is the proof.

    Raises:
        NotPreparedError: If not one graph was compiled.
    """
    from torch._dynamo.utils import counters

    if work.new_tokens:
        raise NotPreparedError("a generation is measured eagerly and as a CUDA graph, not with torch.compile")
    torch.compiler.reset()
    counters.clear()
    model = cast("nn.Module", torch.compile(work.model))
    compiled_work = dataclasses.replace(work, model=model)
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
        raise NotPreparedError(f"torch.compile compiled nothing of this model{why}")
    return compiled_work.step


def capture(work: Work) -> Advance:
    """Capture the whole step, once for each prebuilt batch: no copy of inputs inside the timed step.

    Of a generation the prompts of each batch are one graph, and one token of all sequences another.

    Raises:
        NotPreparedError: With the reason of what the capture could not take.
        OutOfMemoryError: If memory ran out, in whatever words.
    """
    indices = range(len(work.batches))
    if not work.new_tokens:
        graphs = _captured(work, work.step, [partial(work.step, index) for index in indices])

        def replay(index: int) -> Tensor:
            graph, result = graphs[index % len(graphs)]
            graph.replay()
            return result

        return replay

    turn = Turn(work)

    def begin(index: int) -> None:
        turn.start(index)
        turn.go_on()

    parts: list[Callable[[], None]] = [*(partial(turn.start, index) for index in indices), turn.go_on]
    *prompts, token = (graph for graph, _ in _captured(work, begin, parts))

    def advance(index: int) -> Tensor:
        return generate(work, turn, index, lambda n: prompts[n % len(prompts)].replay(), token.replay)

    return advance


_WAYS: Mapping[Execution, Callable[[Work], Advance]] = {
    Execution.EAGER: eager,
    Execution.GRAPH: capture,
    Execution.COMPILE: compiled,
}


def _captured(
    work: Work, warm_up: Callable[[int], object], parts: Sequence[Callable[[], _Result]]
) -> list[tuple[torch.cuda.CUDAGraph, _Result]]:
    """Capture each part in a graph; they may share one memory pool because they are replayed in their order.

    What libraries make at first use is made before, outside any capture, on the stream that is captured. The
    allocator's cache serves the stream that filled it, and cuBLAS has a workspace on each: with one stream
    for both, and the cache emptied before, the graph takes no more memory than the step (else VGG16 had
    9.1 GiB on an H200, and eager 5.3).
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
            if work.optimizer is not None:
                work.optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=side):
                result = part()
            graphs.append((graph, result))
            pool = graph.pool()
    return graphs


@contextmanager
def _capturing() -> Iterator[None]:
    """Begin captures with an empty cache, and tell what ended one: want of memory, the model, or its step.

    Raises:
        NotPreparedError: With the reason of what the capture could not take.
        OutOfMemoryError: If memory ran out, in whatever words.
    """
    torch.cuda.empty_cache()
    free = _free_bytes()
    try:
        yield
    except RuntimeError as error:
        cause: BaseException = error  # an invalid capture raises once more when it is ended, and hides it
        while _tells_nothing(cause) and cause.__context__ is not None:
            cause = cause.__context__
        if lacks_memory(cause):
            raise cause from None
        needed = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        if _tells_nothing(cause) and needed > free:
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory inside a graph capture: beside its model a step takes "
                f"{format_bytes(needed)}, and {format_bytes(free)} were free ({one_line(cause)})"
            ) from error
        if not isinstance(cause, RuntimeError):
            raise cause from None  # the model's own error, which the end of the capture has hidden
        refused = Cause.REFUSED_IN_CAPTURE if REFUSED_IN_CAPTURE in str(cause) else None
        reason = f"the step cannot be captured in a CUDA graph: {one_line(cause)}"
        raise NotPreparedError(reason, refused) from cause


def _free_bytes() -> int:
    """What this process may still take: free on the device, and within the share of it that it is held to."""
    free, total = torch.cuda.mem_get_info()
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # older torch does not tell it
    share = 1.0 if fraction is None else fraction()
    return min(free, int(share * total) - torch.cuda.memory_reserved())


def _tells_nothing(error: BaseException) -> bool:
    """Whether an error says no more than that something else went wrong inside the capture."""
    return any(words in str(error) for words in ("previous error during capture", "StreamCaptureInvalidated"))
