"""Three ways to run the same step: eager, captured whole in CUDA graphs, and torch.compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from gpubench.errors import GpuBenchError
from gpubench.measure.step import Work
from gpubench.models import Execution

Advance = Callable[[int], Tensor]
"""Issue the step with this index; the result is the loss (train) or the outputs (infer)."""

STEPS_BEFORE_CAPTURE = 3
"""Lazy state (optimizer moments, cuDNN's choice, gradient scale) must exist before a capture."""


class NotCapturedError(GpuBenchError):
    """This step cannot be captured; it is never run eagerly under the name of graph."""


def prepare(work: Work) -> Advance:
    """Return the function that issues one step in the way of the case's execution.

    Raises:
        NotCapturedError: If the step cannot be captured in a CUDA graph.
    """
    match work.case.execution:
        case Execution.GRAPH:
            return capture(work)
        case Execution.COMPILE:
            return compiled(work)
        case _:
            return work.step


def compiled(work: Work) -> Advance:
    """Return the step with its model compiled; the first call compiles."""
    model = cast("nn.Module", torch.compile(work.model))
    return dataclasses.replace(work, model=model).step


def capture(work: Work) -> Advance:
    """Capture the whole step, once for each prebuilt batch, in graphs that share one memory pool.

    One graph a batch needs no copy of inputs inside the timed step. The graphs may share memory because
    they are replayed one after the other, in the order of their capture.

    Raises:
        NotCapturedError: With torch's own reason.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(STEPS_BEFORE_CAPTURE):
            work.step(index)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graphs: list[tuple[torch.cuda.CUDAGraph, Tensor]] = []
    pool = None
    try:
        for index in range(len(work.batches)):
            if work.optimizer is not None:
                work.optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                result = work.step(index)
            graphs.append((graph, result))
            pool = graph.pool()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise NotCapturedError(f"the step cannot be captured in a CUDA graph: {error}") from error

    def replay(index: int) -> Tensor:
        graph, result = graphs[index % len(graphs)]
        graph.replay()
        return result

    return replay
