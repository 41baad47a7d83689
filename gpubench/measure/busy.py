"""A second look at a measured step: device events, the host's issue time, the share of time in kernels.

Each costs time or disturbs the step, so none of it runs while rounds count.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import torch

from gpubench.measure.budget import LATENCY_MOST_S, LATENCY_PASSES, PROFILED_S, PROFILED_STEPS
from gpubench.measure.execution import Advance
from gpubench.measure.loop import Clock
from gpubench.units import Seconds

ISSUED_STEPS = 3
"""Few, because a full launch queue (about a thousand kernels) makes the host wait."""
PASSES = 4
LEAST_LEFT_S = 2.0
"""The profiler takes about this long to start and to sum up."""
MOST_EVENTS = 200
LATENCY_MARGIN = 1.5


def event_times(advance: Advance, steps: int) -> tuple[Seconds, ...]:
    """Return the device time between the edges of each step of one round [s]; gaps between kernels count."""
    edges = [torch.cuda.Event(enable_timing=True) for _ in range(min(steps, MOST_EVENTS) + 1)]
    edges[0].record()
    for index, edge in enumerate(edges[1:]):
        advance(index)
        edge.record()
    torch.cuda.synchronize()
    return tuple(before.elapsed_time(after) * 1e-3 for before, after in pairwise(edges))


def host_issue_times(advance: Advance, clock: Clock) -> tuple[Seconds, ...]:
    """Return for three steps from a drained device: time to issue, then time until the device is done [s].

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
    """Return the time to keep back for the latency passes [s]: enough for all of them, half of what is left.

    A single pass is slower than a step of a round, in which the host runs ahead of the device.
    """
    return max(0.0, min(LATENCY_MOST_S, LATENCY_MARGIN * LATENCY_PASSES * step_s, left_s / 2))


def latencies(advance: Advance, clock: Clock, most_s: Seconds = LATENCY_MOST_S) -> tuple[Seconds, ...]:
    """Return the time of single passes, each from a drained device to a drained device [s].

    Enough passes for the 99th percentile where they are quick enough.
    """
    times: list[Seconds] = []

    def one() -> None:
        advance(len(times))

    began_s = clock.now_s()
    while len(times) < LATENCY_PASSES and (clock.now_s() - began_s < most_s or not times):
        times.append(clock.time(one))
    return tuple(times)


def busy_share(advance: Advance, clock: Clock) -> float | None:
    """Return the time in kernels over the wall time of the same steps unprofiled; it may pass 1 slightly."""
    from torch.profiler import ProfilerActivity, profile

    def steps(count: int = 1) -> None:
        for index in range(count):
            advance(index)

    least, most = PROFILED_STEPS
    step_s = clock.time(steps)
    count = min(most, max(least, math.ceil(PROFILED_S / max(step_s, PROFILED_S / most))))
    wall_s = clock.time(partial(steps, count))
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        clock.time(partial(steps, count))
    kernels_us = sum(
        event.self_device_time_total
        for event in seen.key_averages()
        if not getattr(event, "is_user_annotation", False)  # it spans kernels that are counted themselves
    )
    return kernels_us * 1e-6 / wall_s if kernels_us > 0 else None
