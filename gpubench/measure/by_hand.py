"""The same training step written by hand, as a user would: what ``proofs`` hold the harness against.

It shares no code with ``step`` and ``loop`` on purpose: what the harness adds, or leaves out, shows in the
ratio. Blocks of both are interleaved, so that heat and other processes hit both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from gpubench.measure.hardware import Hardware
from gpubench.measure.step import AUTOCAST_TYPES, Work
from gpubench.models import Blocks
from gpubench.units import Seconds


def step_by_hand(work: Work, *, in_graph: bool = False) -> Callable[[int], None]:
    """Return a training step as a tutorial writes it; it takes the number of the step.

    Args:
        work: Whose weights it trains.
        in_graph: Whether it is to be captured: autocast must not keep a copy of a weight from outside.
    """
    model, optimizer, scaler = work.model, work.optimizer, work.scaler
    assert optimizer is not None  # only training is written by hand
    dtype, device = AUTOCAST_TYPES.get(work.case.precision), work.device.type

    def step(index: int) -> None:
        inputs, targets = work.batches[index % len(work.batches)]
        optimizer.zero_grad(set_to_none=True)
        if dtype is None:
            loss = work.loss(model(inputs), targets)
        else:
            with torch.autocast(device, dtype=dtype, cache_enabled=not in_graph):
                loss = work.loss(model(inputs), targets)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return step


def bare_loop(work: Work, hardware: Hardware, steps: int) -> Seconds:
    """Return the wall time of ``steps`` training steps by hand [s]."""
    step = step_by_hand(work)
    _wait(hardware)
    start = time.perf_counter()
    for index in range(steps):
        step(index)
    _wait(hardware)
    return time.perf_counter() - start


def bare_graph(work: Work) -> Callable[[], None]:
    """Capture one training step by hand in a CUDA graph as a tutorial does; return its replay.

    One graph of one batch, in memory of its own: what the harness adds to a replay, or leaves out of the step
    that it captures, shows in the ratio. It trains the same weights.
    """
    step = step_by_hand(work, in_graph=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(0)
    torch.cuda.current_stream().wait_stream(side)
    work.model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(0)
    return graph.replay


def bare_replays(replay: Callable[[], None], steps: int) -> Seconds:
    """Return the wall time of ``steps`` replays [s]."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        replay()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def in_fours(first: Callable[[], Seconds], second: Callable[[], Seconds], fours: int) -> Blocks:
    """Run two kinds of blocks in the order first, second, second, first: a steady drift hits both alike.

    Args:
        first: Runs one block and returns its seconds per step.
        second: The same of the other kind.
        fours: How often that order is run through.
    """
    above, below = [], []
    for _ in range(fours):
        above.append(first())
        below += [second(), second()]
        above.append(first())
    return Blocks(first_s=tuple(above), second_s=tuple(below))


def _wait(hardware: Hardware) -> None:
    """Wait for the device as a user would: no fault of the clock may reach the loop by hand."""
    if hardware.is_cuda:
        torch.cuda.synchronize()
    else:
        hardware.clock().synchronize()
