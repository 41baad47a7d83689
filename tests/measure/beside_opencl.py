"""The copy through OpenCL against one written by hand with pyopencl, in one process, paired.

``PAIRS=200 python tests/measure/beside_opencl.py`` on a quiet machine prints the ratio of the bandwidth of the probe to
that of the loop by hand on the first CPU that OpenCL has (PoCL), with its 95 % interval. The loop by hand has buffers and a
queue of its own and shares no code with the probe.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pyopencl as cl

from gpubench.measure import opencl
from gpubench.measure.by_hand import in_fours, median_interval
from gpubench.probe.opencl import BACKEND, ask_listing
from gpubench.units import MIB

PAIRS = int(os.environ.get("PAIRS", "200"))
PAIRS_OF_BUFFERS = 10
"""Where memory lies is chance, and worth some percent: both take new buffers after so many pairs, each first in turn."""
COPY_BYTES = 256 * MIB


def main() -> None:
    """Time single copies of both in the order one, two, two, one."""
    place = next(n for n, device in enumerate(ask_listing().devices) if device.is_cpu)
    opened = opencl.open_queue(BACKEND.device(place))
    ratios: list[float] = []
    for turn in range(PAIRS // PAIRS_OF_BUFFERS):
        ratios += some_ratios(opened, probe_is_first=turn % 2 == 0)
    ratio, low, high = median_interval(ratios)
    print(f"{opened.device.name.strip()}: {ratio:.3f} ({low:.3f} to {high:.3f}), {len(ratios)} pairs")


def some_ratios(opened: opencl.Queue, *, probe_is_first: bool) -> list[float]:
    """Return the bandwidth of the probe over that of the loop, of new buffers of both."""
    probe = next(p for p in opencl.other_probes(opened) if p.name == "device copy")
    assert probe.memory_bytes == 2 * COPY_BYTES
    makers = [lambda: probe.make(opened), lambda: copy_by_hand(opened.device)]
    if probe_is_first:
        action, by_hand = (make() for make in makers)
    else:
        by_hand, action = (make() for make in reversed(makers))
    clock = opencl.timer(probe, opened)
    for _ in range(2):
        clock(action), by_hand()
    blocks = in_fours(lambda: clock(action), by_hand, PAIRS_OF_BUFFERS // 2)
    return [b / a for a, b in zip(blocks.first_s, blocks.second_s, strict=True)]


def copy_by_hand(device: cl.Device):
    """Return what times one copy as the manual of pyopencl writes it [s]."""
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags
    host = np.ones(COPY_BYTES, np.uint8)
    source = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=host)
    target = cl.Buffer(context, flags.WRITE_ONLY, COPY_BYTES)

    def once() -> float:
        began_s = time.perf_counter()
        cl.enqueue_copy(queue, target, source).wait()
        return time.perf_counter() - began_s

    return once


if __name__ == "__main__":
    main()
