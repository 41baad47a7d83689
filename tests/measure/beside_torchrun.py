"""The harness beside a plain torchrun script of the same model: two ranks on the CPU, gloo, asked to be within 3 %.

    python tests/measure/beside_torchrun.py blocks
    python tests/measure/beside_torchrun.py launches

Each rank is pinned to cores of its own and computes on one thread of torch, on either side: threads that wait for
each other feel whatever else runs, and those that exchange gradients have the other cores. ``--cores 0`` leaves both
where the kernel puts them, with as many threads as the harness takes. ``--launches``, ``--block-s`` and ``--repeats``
make it longer; ``--within-s`` begins no launch that would not end by then. Any torch from 2.4 will do.

Two launches of one script differ: memory lies elsewhere, ranks run on other cores. So each launch gives one
figure, and the interval is Student's t over launches. ``blocks`` asks what the harness costs: in the ranks of each
launch its rounds and the loop of a plain script take turns on one model. ``launches`` asks of the whole: launches of the
harness and of torchrun in random order. A control stands beside both, of the plain script against itself; where that
is not 1, or too wide, nothing is judged. The last line printed is JSON of all that was read, and on what. Exit code 0:
within 3 %; 1: not; 4: a launch failed; 6: undecided.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

import beside_hand
import msgspec
from paired import EXIT_CODES, Verdict, verdict_of, words_of

from gpubench import stats
from gpubench.errors import ExitCode, GpuBenchError
from gpubench.interval import Interval
from gpubench.measure.budget import QUICK, Budget
from gpubench.measure.launcher import Launcher
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.models import Case, Execution, Precision, Status, TaskKind
from gpubench.probe.select import select_device
from gpubench.units import utc_stamp

LIMIT = 0.03
CONTROL_LIMIT = 0.015
"""Half-width of the control's interval above which the machine is too restless to judge by."""
LAUNCHES = {"blocks": 22, "launches": 10}
"""So many of blocks, of 20 s each, gave intervals of 0.6 % either way on two quiet cores; ten left 1.8 %, and the
control may have 1.5 %."""
BATCH = 64
BLOCK_S = 0.4
REPEATS = 2
WARM_S = 3.0
TIMED_S = 8.0
MOST_CORES = 4
"""Of a rank, for its thread that computes and those of gloo."""
CORES = "BESIDE_CORES"
"""Variable that tells the ranks their cores: those of each after those of the one before."""

MODEL = """
import contextlib
import os
import torch
from torch import nn

def pin():
    # in the ranks alone, and every thread that is there by now: each takes the cores of its own
    told, rank = os.environ.get("BESIDE_CORES"), os.environ.get("LOCAL_RANK")
    if told and rank:
        cores = [int(core) for core in told.split(",")]
        each = len(cores) // int(os.environ["LOCAL_WORLD_SIZE"])
        own = cores[int(rank) * each :][:each]
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread), own)
        torch.set_num_threads(1)

def build(batch_size):
    pin()
    net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    inputs, targets = torch.randn(batch_size, 1024), torch.randint(10, (batch_size,))
    return net, inputs, targets, nn.functional.cross_entropy, SGD

def SGD(parameters):
    return torch.optim.SGD(parameters, lr=0.01, fused=True)
"""


class Judged(NamedTuple):
    """What a comparison came to, with the intervals of both its ratios."""

    verdict: Verdict
    ratio: Interval
    control: Interval

    def __str__(self) -> str:
        return f"{self.verdict} {LIMIT:.0%}: {words_of(self.ratio)}; control {words_of(self.control)}"


def judge(ratios: list[float], controls: list[float]) -> Judged:
    """Judge by one ratio and one control a launch."""
    ratio, control = (
        stats.mean_interval([math.log(each) for each in one]).each(math.exp) for one in (ratios, controls)
    )
    if not (ratio.bounded and control.bounded):
        return Judged("undecided", ratio, control)
    restless = not control.holds(1.0) or control.high - control.low > 2 * CONTROL_LIMIT
    return Judged("undecided" if restless else verdict_of(ratio, LIMIT), ratio, control)


def planned(folder: Path, budget: Budget = QUICK) -> tuple[Plan, PlannedCase]:
    """Write the model, and plan it for two processes of this CPU."""
    (folder / "beside_model.py").write_text(MODEL)
    case = Case(
        workload="beside",
        workload_version=1,
        task=TaskKind.TRAIN,
        precision=Precision.FP32,
        execution=Execution.EAGER,
        memory_format=None,
        batch_size=BATCH,
        sample_unit="sample",
        gpu_count=2,
    )
    cpu, _ = select_device("cpu")
    one = PlannedCase(reference=f"{folder / 'beside_model.py'}", case=case)
    return Plan(budget=budget, seed=0, cases=(one,), on_cpu=True, peers=(cpu,)), one


# --- blocks: in the ranks of one job ----------------------------------------------------------------------


def in_one_job(folder: Path, *, block_s: float = 0.5, repeats: int = 3) -> tuple[float, float]:
    """Return of one launch the harness over the loop by hand, and that loop over itself."""
    plan, one = planned(folder)
    return beside_hand.in_one_job(one.reference, one.case, plan.peers[0], block_s=block_s, repeats=repeats)


# --- launches: each side in processes of its own ----------------------------------------------------------


def by_harness(folder: Path) -> float:
    """Return the median time of a step of one launch of the harness [s]."""
    budget = msgspec.structs.replace(
        QUICK,
        target=0.0,  # never narrow enough: the series is as long as the script's
        timed_s=TIMED_S,
        timed_least_s=TIMED_S,
        warmup_least_s=WARM_S,
        warmup_most_s=WARM_S,
        round_s=BLOCK_S,
        in_haste=False,
    )
    plan, _ = planned(folder, budget)
    (measured,) = Launcher(plan, plan.peers[0]).run()
    assert measured.status is Status.OK, measured.reason
    return median(block.wall_s / block.steps for block in measured.launches[0].rounds)


def by_torchrun(folder: Path) -> float:
    """Return the same of one launch of the plain script [s]."""
    elastic = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    threads = max(1, len(os.sched_getaffinity(0)) // 2)  # as many each as the harness gives
    done = subprocess.run(
        [*elastic, __file__, "plain"],
        env={**os.environ, "PYTHONPATH": f"{folder}", "OMP_NUM_THREADS": f"{threads}"},
        start_new_session=True,  # as the harness does: the kernel shares out the processor by session
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return float(json.loads(done.stdout))


def plain() -> None:
    """What a user would write: DistributedDataParallel, one loop, a barrier at both edges of each block."""
    import torch
    from beside_model import SGD, build  # type: ignore[import-not-found]
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())
    net, *_, loss_of, _ = build(BATCH)
    # one batch alone is learned by heart, and small numbers are slow
    batches = [build(BATCH)[1:3] for _ in range(4)]
    model = DistributedDataParallel(net)
    optimizer = SGD(model.parameters())

    def block(steps: int) -> float:
        distributed.barrier()
        start = time.perf_counter()
        for index in range(steps):
            inputs, targets = batches[index % len(batches)]
            optimizer.zero_grad(set_to_none=True)
            loss_of(model(inputs), targets).backward()
            optimizer.step()
        distributed.barrier()
        return (time.perf_counter() - start) / steps

    block(20)
    step_s = torch.tensor([block(20)])
    distributed.broadcast(step_s, 0)  # or the ranks would not agree how many steps there are
    steps = 4 * math.ceil(BLOCK_S / float(step_s) / 4)
    for _ in range(math.ceil(WARM_S / BLOCK_S)):
        block(steps)
    took = [block(steps) for _ in range(math.ceil(TIMED_S / BLOCK_S))]
    if distributed.get_rank() == 0:
        print(json.dumps(median(took)), flush=True)
    distributed.destroy_process_group()


def in_random_order(folder: Path, draw: random.Random) -> tuple[float, float]:
    """Return of three launches the harness over the mean of two of torchrun, and the one of these over the other."""
    planned(folder)
    order = ["harness", "torchrun", "torchrun again"]
    draw.shuffle(order)
    took = {name: by_harness(folder) if name == "harness" else by_torchrun(folder) for name in order}
    print("  " + ", ".join(f"{name} {step_s * 1e3:.2f} ms" for name, step_s in took.items()))
    both = math.sqrt(took["torchrun"] * took["torchrun again"])
    return took["harness"] / both, took["torchrun again"] / took["torchrun"]


# --- the command ------------------------------------------------------------------------------------------


def cores_of_ranks(each: int | None) -> list[int]:
    """Return the cores of two ranks, from the last on, so that the first ones stay free for everything else."""
    here = sorted(os.sched_getaffinity(0))
    most = len(here) // 2
    wanted = min(MOST_CORES, max(1, (len(here) - 2) // 2)) if each is None else each
    if wanted > most:
        sys.exit(f"--cores {wanted} for each of two ranks: there are {len(here)}")
    return here[len(here) - 2 * wanted :]


def asked(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="beside_torchrun.py", description=__doc__.partition("\n")[0])
    parser.add_argument("question", choices=list(LAUNCHES))
    parser.add_argument("--launches", type=int, help="how many figures [22 blocks, 10 launches]")
    parser.add_argument("--cores", type=int, help="cores of each rank [4 at most]; 0 pins nothing")
    parser.add_argument("--block-s", type=float, default=BLOCK_S, help="of blocks: length of one")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of blocks: times all orders")
    parser.add_argument("--within-s", type=float, default=math.inf, help="begin no launch that ends later")
    return parser.parse_args(argv)


def main(how: argparse.Namespace) -> int:
    """Print the figures of each launch, what they come to, and all of it as JSON."""
    began_s = time.monotonic()
    count = how.launches or LAUNCHES[how.question]
    cores = cores_of_ranks(how.cores)
    os.environ.pop(CORES, None)
    if cores:
        os.environ[CORES] = ",".join(map(str, cores))
    figures: list[tuple[float, float]] = []
    longest_s = 0.0
    draw = random.Random(0)
    while len(figures) < count:
        launch_s = time.monotonic()
        if figures and launch_s - began_s + longest_s > how.within_s:
            print(f"{len(figures)} of {count}: one more would not end within {how.within_s:g} s")
            break
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if how.question == "blocks":
                figures.append(in_one_job(folder, block_s=how.block_s, repeats=how.repeats))
            else:
                figures.append(in_random_order(folder, draw))
        longest_s = max(longest_s, time.monotonic() - launch_s)
        ratio, control = figures[-1]
        print(f"{how.question} {len(figures)} of {count}: {ratio:.4f}, control {control:.4f}", flush=True)
    judged = judge([ratio for ratio, _ in figures], [control for _, control in figures])
    print(f"harness over a plain script, {len(figures)} {how.question}: {judged}")
    print(json.dumps(record(how, cores, figures, judged, time.monotonic() - began_s)), flush=True)
    return EXIT_CODES[judged.verdict]


def record(
    how: argparse.Namespace,
    cores: list[int],
    figures: list[tuple[float, float]],
    judged: Judged,
    took_s: float,
) -> dict[str, object]:
    """Return what was asked, on what, what was read and what it comes to."""
    cpu, _ = select_device("cpu")
    return {
        "question": how.question,
        "date": utc_stamp(),
        "cpu": cpu.name,
        "cores": len(os.sched_getaffinity(0)),
        "cores_of_ranks": cores,
        "load": os.getloadavg(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "block_s": how.block_s,
        "repeats": how.repeats,
        "took_s": round(took_s, 1),
        "ratios": [ratio for ratio, _ in figures],
        "controls": [control for _, control in figures],
        "ratio": msgspec.to_builtins(judged.ratio),
        "control": msgspec.to_builtins(judged.control),
        "verdict": judged.verdict,
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["plain"]:
        plain()
    else:
        try:
            sys.exit(main(asked(sys.argv[1:])))
        except GpuBenchError as error:
            print(error, file=sys.stderr)
            sys.exit(ExitCode.EVERY_CASE_FAILED)
