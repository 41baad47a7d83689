"""Compares the OpenCL copy probe with a hand-written pyopencl copy, paired in one process; the limit is 5 %.

``PAIRS=200 python tests/measure/beside_opencl.py`` on a quiet machine prints the ratio of the probe's
bandwidth to the hand-written loop's on OpenCL's first CPU (PoCL), with its 95 % interval; the argument
``gpu`` selects the first GPU instead. Exit code 0: within 5 %; 1: not; 6: undecided. The hand-written loop has
its own buffers and queue and shares no code with the probe. ``BLOCK_S`` is the length of a block of copies,
``WARM_S`` the length of the warm-up."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pyopencl as cl
from paired import EXIT_CODES, WARM_S, ratio_of, verdict_of, warm_count, words_of

from gpubench.measure import opencl
from gpubench.measure.loop import Clock
from gpubench.measure.probes import by_clock
from gpubench.measure.proofs import in_fours
from gpubench.models import Blocks
from gpubench.probe.opencl import BACKEND, ask_listing

LIMIT = 0.05
PAIRS = int(os.environ.get("PAIRS", "200"))
BLOCK_S = float(os.environ.get("BLOCK_S", "0.2"))
PAIRS_PER_BUFFER = 10
"""Where a buffer lies in memory is random and changes the bandwidth by a few percent, so both sides allocate new
buffers after this many pairs. They take turns at allocating first.
"""


def main(*, on_gpu: bool) -> int:
    """Time blocks of copies by the two sides in the order ABBA, and return the exit code."""
    place = next(n for n, device in enumerate(ask_listing().devices) if (device.core_count is None) is on_gpu)
    queue = opencl.open_queue(BACKEND.device(place))
    count, turns = 0, []
    for turn in range(-(-PAIRS // PAIRS_PER_BUFFER)):
        pairs = min(PAIRS_PER_BUFFER, PAIRS - turn * PAIRS_PER_BUFFER)
        sides = both(queue, probe_is_first=turn % 2 == 0)
        if not count:
            warm_count(sides[1], BLOCK_S, 1, WARM_S)
            count = warm_count(sides[0], BLOCK_S, 1, WARM_S)
        turns.append(some_blocks(*sides, count, pairs // 2))
    ratio = ratio_of([b / a for one in turns for a, b in zip(one.first_s, one.second_s, strict=True)])
    verdict = verdict_of(ratio, LIMIT)
    print(
        f"{queue.device.name.strip()}, bandwidth over a hand-written loop: {words_of(ratio)}: {verdict} {LIMIT:.0%}"
    )
    probe_s = median(s for one in turns for s in one.first_s)
    by_hand_s = median(s for one in turns for s in one.second_s)
    print(
        f"{sum(len(one.first_s) for one in turns)} pairs of {count} copies, "
        f"blocks of {probe_s:.3f} s and {by_hand_s:.3f} s; "
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    )
    return EXIT_CODES[verdict]


def both(
    queue: cl.CommandQueue, *, probe_is_first: bool
) -> tuple[Callable[[int], float], Callable[[int], float]]:
    """Return functions that time this many copies by the probe and by hand, with new buffers [s]."""
    probe = next(p for p in opencl.probes(queue) if p.name == "device copy")
    size_bytes = probe.memory_bytes // 2
    makers = [lambda: probe.make(queue), lambda: copy_by_hand(queue.device, size_bytes)]
    if probe_is_first:
        action, by_hand = (make() for make in makers)
    else:
        by_hand, action = (make() for make in reversed(makers))
    clock = by_clock(probe, Clock(synchronize=queue.finish))
    return lambda count: sum(clock(action) for _ in range(count)), lambda count: sum(
        by_hand() for _ in range(count)
    )


def some_blocks(
    probe: Callable[[int], float], by_hand: Callable[[int], float], count: int, fours: int
) -> Blocks:
    """Time blocks of both, after two copies by each: the first copies touch memory that was never written."""
    probe(2), by_hand(2)
    return in_fours(lambda: probe(count), lambda: by_hand(count), fours)


def copy_by_hand(device: cl.Device, size_bytes: int) -> Callable[[], float]:
    """Return a function that times one copy as in the manual of pyopencl [s]."""
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags
    host = np.ones(size_bytes, np.uint8)
    source = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=host)
    target = cl.Buffer(context, flags.WRITE_ONLY, size_bytes)

    def once() -> float:
        began_s = time.perf_counter()
        cl.enqueue_copy(queue, target, source).wait()
        return time.perf_counter() - began_s

    return once


if __name__ == "__main__":
    sys.exit(main(on_gpu=sys.argv[1:] == ["gpu"]))
