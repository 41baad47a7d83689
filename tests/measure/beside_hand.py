"""The harness beside a loop written by hand, in one process and in the ranks of one job: what it adds to a step.

    python tests/measure/beside_hand.py vgg16 fp32 64
    python tests/measure/beside_hand.py vgg16 amp-fp16 64 --sampler

prints the median ratio of pairs of blocks with its 95 % interval, as JSON; ``--device`` and ``--block-s`` change where
and how long. ``--sampler`` holds rounds with telemetry read beside them against rounds without. Blocks of both sides
take turns, so that heat and other processes hit both alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import permutations
from statistics import median

import msgspec
import torch
from paired import median_interval
from torch import distributed

from gpubench.discovery import load_workload
from gpubench.measure import team
from gpubench.measure.budget import QUICK
from gpubench.measure.launch import Sampler
from gpubench.measure.launcher import environment_of
from gpubench.measure.loop import Loop
from gpubench.measure.messages import MeasureCase, Setup
from gpubench.measure.place import STORE_VARIABLE, Place
from gpubench.measure.proofs import bare_loop, in_fours, step_by_hand
from gpubench.measure.step import Hardware, Work, built, move, open_hardware, switches_for
from gpubench.models import Case, DeviceProfile, Execution, Precision, TaskKind
from gpubench.probe.probe import Telemetry, open_telemetry
from gpubench.probe.select import select_device
from gpubench.profile import load_profiles
from gpubench.units import Seconds

WARM_STEPS = 20
PAIRS = 12
BLOCK_S = 0.5
ORDERS = tuple(permutations(("harness", "hand", "hand again")))
"""Each kind takes each place twice, and the sums of its places are equal: a steady drift hits all alike."""
BY_HAND = -1
"""Where a block of steps begins that the ranks of a job do by hand."""


# --- one process ------------------------------------------------------------------------------------------


def case_of(workload: str, precision: Precision, batch: int) -> Case:
    """Return the training of a workload of gpubench's own, eager."""
    profile = load_profiles()[workload]
    return Case(
        workload=workload,
        workload_version=profile.version,
        task=TaskKind.TRAIN,
        precision=precision,
        execution=Execution.EAGER,
        memory_format=profile.memory_format_at(precision),
        batch_size=batch,
        sample_unit=profile.sample_unit,
    )


def compare(
    case: Case, device: DeviceProfile, *, sampler: bool = False, block_s: Seconds = BLOCK_S
) -> tuple[float, float, float]:
    """Return the time of the harness over that of the loop by hand, or of telemetry over none, with its interval."""
    hardware = open_hardware(device)
    with switches_for(case.precision), open_telemetry(device) as telemetry:
        work = move(load_workload(case.workload).build(case.batch_size, 0), case, hardware.device)
        once = bare_loop(work, hardware, WARM_STEPS)
        steps = max(len(work.batches), round(block_s * WARM_STEPS / once))
        if sampler:
            ratios = sampled_over_plain(work, hardware, telemetry, pairs=PAIRS, steps=steps)
        else:
            ratios = harness_over_bare(work, hardware, pairs=PAIRS, steps=steps)
    return median_interval(ratios)


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


def _ratios(first: Callable[[], Seconds], second: Callable[[], Seconds], pairs: int) -> list[float]:
    blocks = in_fours(first, second, pairs // 2)
    return [above / below for above, below in zip(blocks.first_s, blocks.second_s, strict=True)]


# --- the ranks of one job ---------------------------------------------------------------------------------


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


def in_one_job(
    reference: str, case: Case, device: DeviceProfile, *, block_s: Seconds, repeats: int
) -> tuple[float, float]:
    """Return of one job of torchrun the harness over the loop by hand, and that loop over itself, as medians.

    In these very processes, on the same model: rounds as ``team`` does them, and a plain script's loop.
    """
    setup = Setup(device=device, budget=QUICK, seed=0, peers=(device,) * (case.gpu_count - 1))
    order = MeasureCase(reference=reference, case=case, launch=0)
    elastic = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{case.gpu_count}"]
    told = [msgspec.json.encode(each).decode() for each in (setup, order)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *elastic, __file__, "rank", *told, f"{block_s}", f"{repeats}"],
            env={
                **environment_of(device, os.environ),
                STORE_VARIABLE: f"{folder}/store",
                "OMP_NUM_THREADS": f"{torch.get_num_threads()}",
            },
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=300,
        )
    ratio, control = json.loads(done.stdout.splitlines()[-1])
    return ratio, control


def rank(setup: Setup, order: MeasureCase, block_s: Seconds, repeats: int) -> None:
    """Be one process of the job: the first one times both kinds of blocks, the others follow it."""
    place, done = Place.here(), team._do

    def do(work: Work, block: team.Steps, hardware: Hardware) -> None:
        if block.first == BY_HAND:
            loop_of_script(work, block.count)
        else:
            done(work, block, hardware)

    team._do = do
    if place.rank:
        team.follow(place)
        return
    hardware = open_hardware(setup.device)
    with team.keeping_others(place):
        others = team.Team(setup, hardware, place)
        with switches_for(order.case.precision):
            read = _both(setup, order, others, hardware, block_s=block_s, repeats=repeats)
            print(json.dumps(read), flush=True)
        others.announce(team.Over())
        distributed.destroy_process_group()


def _both(
    setup: Setup, order: MeasureCase, others: team.Team, hardware: Hardware, *, block_s: Seconds, repeats: int
) -> tuple[float, float]:
    others.announce(order)
    task = built(order.reference, order.case, setup.seed)
    work = team.share(move(task, order.case, hardware.device, team.place_model))
    loop = Loop(
        advance=work.step,
        edge_loss=work.edge_loss,
        clock=others.clock(),
        batches=len(work.batches),
        announce=others.announce_steps,
    )
    loop.round(WARM_STEPS)
    steps = loop.steps_for(block_s, loop.round(WARM_STEPS).wall_s / WARM_STEPS)

    def by_hand() -> Seconds:
        others.announce_steps(BY_HAND, steps)
        return loop_of_script(work, steps)

    ratios, controls = in_all_orders(lambda: loop.round(steps).wall_s, by_hand, repeats)
    return median(ratios), median(controls)


def loop_of_script(work: Work, steps: int) -> Seconds:
    """Return the wall time of steps of a plain script, which waits for all ranks at both ends [s]."""
    step = step_by_hand(work)
    distributed.barrier()
    start = time.perf_counter()
    for index in range(steps):
        step(index)
    distributed.barrier()
    return time.perf_counter() - start


def main() -> None:
    """Compare as asked and print ratio, low and high."""
    parser = argparse.ArgumentParser(prog="beside_hand.py", description=__doc__.partition("\n")[0])
    parser.add_argument("workload")
    parser.add_argument("precision", type=Precision)
    parser.add_argument("batch", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--block-s", type=float, default=BLOCK_S, help="least length of a block")
    parser.add_argument("--sampler", action="store_true", help="hold telemetry against none instead")
    how = parser.parse_args()
    device, _ = select_device(how.device)
    case = case_of(how.workload, how.precision, how.batch)
    print(json.dumps(compare(case, device, sampler=how.sampler, block_s=how.block_s)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        setup, order = sys.argv[2:4]
        rank(
            msgspec.json.decode(setup, type=Setup),
            msgspec.json.decode(order, type=MeasureCase),
            float(sys.argv[4]),
            int(sys.argv[5]),
        )
    else:
        main()
