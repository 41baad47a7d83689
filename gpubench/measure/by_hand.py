"""The same training step written by hand, as a user would, and held against the harness in one process.

It shares no code with ``step`` and ``loop`` on purpose: what the harness adds, or leaves out, shows in the
ratio. Blocks of both are interleaved, so that heat and other processes hit both alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import permutations
from statistics import median

import torch
from torch import distributed

from gpubench.measure.hardware import Hardware
from gpubench.measure.loop import Loop
from gpubench.measure.step import AUTOCAST_TYPES, Work
from gpubench.measure.telemetry import Sampler, Telemetry
from gpubench.models import Blocks
from gpubench.units import Seconds

WARM_STEPS = 20
PAIRS = 12
ORDERS = tuple(permutations(("harness", "hand", "hand again")))
"""Each kind takes each place twice, and the sums of its places are equal: a steady drift hits all alike."""


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


def in_all_orders(
    harness: Callable[[], Seconds], bare: Callable[[], Seconds], repeats: int
) -> tuple[list[float], list[float]]:
    """Run one block of the harness and two by hand, in each of the six orders of the three.

    Args:
        harness: Runs one block and returns its time.
        bare: The same by hand.
        repeats: How often the six orders are run through.

    Returns:
        Of each three the time of the harness over the geometric mean of the two by hand; and that of the
        second by hand over the first, a control, since nothing differs between them.
    """
    ratios, controls = [], []
    for order in ORDERS * repeats:
        took = {kind: harness() if kind == "harness" else bare() for kind in order}
        ratios.append(took["harness"] / math.sqrt(took["hand"] * took["hand again"]))
        controls.append(took["hand again"] / took["hand"])
    return ratios, controls


def harness_over_bare(work: Work, hardware: Hardware, *, pairs: int, steps: int) -> list[float]:
    """Return for each pair the time of a harness round over that of a bare loop; pairs are an even number."""
    loop = _warm_loop(work, hardware)
    return _ratios(lambda: loop.round(steps).wall_s, lambda: bare_loop(work, hardware, steps), pairs)


def sampled_over_plain(
    work: Work, hardware: Hardware, telemetry: Telemetry, *, pairs: int, steps: int
) -> list[float]:
    """Return for each pair the time of a round with telemetry sampled beside it over one without."""
    loop = _warm_loop(work, hardware)

    def sampled() -> Seconds:
        with Sampler(telemetry, time.perf_counter):
            return loop.round(steps).wall_s

    return _ratios(sampled, lambda: loop.round(steps).wall_s, pairs)


def _warm_loop(work: Work, hardware: Hardware) -> Loop:
    loop = Loop(
        advance=work.step, edge_loss=work.edge_loss, clock=hardware.clock(), batches=len(work.batches)
    )
    loop.round(WARM_STEPS)
    return loop


def median_interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval by order statistics (binomial, normal approximation).

    Source:
        Conover 1999, Practical Nonparametric Statistics, section 3.2.
    """
    ordered = sorted(ratios)
    reach = 1.96 * len(ordered) ** 0.5 / 2
    low = max(0, int(len(ordered) / 2 - reach))
    high = min(len(ordered) - 1, int(len(ordered) / 2 + reach))
    return median(ordered), ordered[low], ordered[high]


def _ratios(first: Callable[[], Seconds], second: Callable[[], Seconds], pairs: int) -> list[float]:
    """Of each pair of blocks the time of the first kind over that of the second; either begins in turn."""
    blocks = in_fours(first, second, pairs // 2)
    return [above / below for above, below in zip(blocks.first_s, blocks.second_s, strict=True)]


def _wait(hardware: Hardware) -> None:
    """Wait for the device, and the other processes of a job, as a user would.

    No fault of the clock may reach the loop by hand.
    """
    if hardware.is_cuda:
        torch.cuda.synchronize()
    else:
        hardware.clock().synchronize()
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier(device_ids=[torch.cuda.current_device()] if hardware.is_cuda else None)
