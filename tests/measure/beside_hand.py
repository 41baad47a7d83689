"""Compares the harness with a hand-written loop and measures its overhead per step.

    python tests/measure/beside_hand.py vgg16 fp32 64
    python tests/measure/beside_hand.py vgg16 amp-fp16 64 --sampler

These print the median ratio of pairs of blocks with its 95 % interval, as JSON. ``--device`` and
``--block-s`` set the device and the duration. ``--sampler`` compares rounds with telemetry against rounds
without. Blocks of both sides alternate, so heat and other processes affect both equally.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from builders import case_of
from paired import median_interval

from gpubench.discovery import load_workload
from gpubench.measure.launch import sampling
from gpubench.measure.loop import Loop
from gpubench.measure.proofs import bare_loop, in_fours, step_by_hand
from gpubench.measure.step import Hardware, Work, move, open_hardware, switches_for
from gpubench.models import Case, DeviceProfile, Precision
from gpubench.probe.backend import Readings
from gpubench.probe.probe import open_telemetry
from gpubench.probe.select import select_device
from gpubench.profile import load_profiles
from gpubench.units import Seconds

WARM_STEPS = 20
PAIRS = 12
BLOCK_S = 0.5


def compare(
    case: Case, device: DeviceProfile, *, sampler: bool = False, block_s: Seconds = BLOCK_S
) -> tuple[float, float, float]:
    """Return the ratio of harness to hand-written loop, or of times with and without telemetry, and its interval."""
    hardware = open_hardware(device)
    with switches_for(case.precision), open_telemetry(device) as telemetry:
        work = move(load_workload(case.workload).build(case.batch_size, 0), case, hardware.device)
        once = bare_loop(step_by_hand(work), hardware, WARM_STEPS)
        steps = max(len(work.batches), round(block_s * WARM_STEPS / once))
        if sampler:
            ratios = sampled_over_plain(work, hardware, telemetry, pairs=PAIRS, steps=steps)
        else:
            ratios = harness_over_bare(work, hardware, pairs=PAIRS, steps=steps)
    return median_interval(ratios)


def harness_over_bare(work: Work, hardware: Hardware, *, pairs: int, steps: int) -> list[float]:
    """Return, for each pair, the ratio of a harness round's time to a bare loop's; ``pairs`` must be even."""
    loop, by_hand = _warm_loop(work, hardware), step_by_hand(work)
    return _ratios(lambda: loop.round(steps).wall_s, lambda: bare_loop(by_hand, hardware, steps), pairs)


def sampled_over_plain(
    work: Work, hardware: Hardware, telemetry: Readings, *, pairs: int, steps: int
) -> list[float]:
    """Return, for each pair, the ratio of a round's time with telemetry to one without."""
    loop = _warm_loop(work, hardware)

    def sampled() -> Seconds:
        with sampling(telemetry, time.perf_counter):
            return loop.round(steps).wall_s

    return _ratios(sampled, lambda: loop.round(steps).wall_s, pairs)


def _warm_loop(work: Work, hardware: Hardware) -> Loop:
    loop = Loop(
        advance=work.step, edge_loss=work.edge_loss, clock=hardware.clock(), batches=len(work.batches)
    )
    loop.round(WARM_STEPS)
    return loop


def _ratios(first: Callable[[], Seconds], second: Callable[[], Seconds], pairs: int) -> list[float]:
    blocks = in_fours(first, second, pairs // 2)
    return [above / below for above, below in zip(blocks.first_s, blocks.second_s, strict=True)]


def main() -> None:
    """Compare as requested and print ratio, low and high."""
    parser = argparse.ArgumentParser(prog="beside_hand.py", description=__doc__.partition("\n")[0])
    parser.add_argument("workload")
    parser.add_argument("precision", type=Precision)
    parser.add_argument("batch", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--block-s", type=float, default=BLOCK_S, help="minimum length of a block")
    parser.add_argument("--sampler", action="store_true", help="compare telemetry with none instead")
    how = parser.parse_args()
    device, _ = select_device(how.device)
    profile = load_profiles()[how.workload]
    case = case_of(
        how.workload,
        precision=how.precision,
        memory_format=profile.memory_format_at(how.precision),
        batch_size=how.batch,
        sample_unit=profile.sample_unit,
    )
    print(json.dumps(compare(case, device, sampler=how.sampler, block_s=how.block_s)))


if __name__ == "__main__":
    main()
