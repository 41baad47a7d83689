"""The harness beside a plain torchrun script of the same model: two ranks on the CPU, gloo.

    python tests/measure/beside_torchrun.py [WINDOWS]

A script and no test: what it prints is as sure as the machine is quiet. Both sides live at once and only one
runs: the other's processes are stopped (SIGSTOP). They take turns of a second in the order ABBA, so that whatever
else loads the machine hits both alike; of each turn the median block counts, of the pairs of turns the ratio.

Beside it stands the same ratio of processor time a step, of both ranks of a side: on a machine with more to do
than it has cores a step waits mostly for its turn, and what its processes compute is still told apart.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median, stdev

import msgspec
import psutil

BATCH = 32
BLOCK_S = 0.1
TURN_S = 2.0
"""Some blocks; the first of a turn was begun in an earlier one, and does not count."""

MODEL = """
import torch
from torch import nn

def build(batch_size):
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return net, torch.randn(batch_size, 512), torch.randint(10, (batch_size,)), nn.functional.cross_entropy, SGD

def SGD(parameters):
    return torch.optim.SGD(parameters, lr=0.01, fused=True)
"""


def plain(steps: int) -> None:
    """What a user would write: DistributedDataParallel, one loop, a barrier at both edges of each block."""
    import torch
    from beside_model import SGD, build  # type: ignore[import-not-found]
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())
    net, *_, loss_of, _ = build(BATCH)
    batches = [
        build(BATCH)[1:3] for _ in range(4)
    ]  # one alone is learned by heart, and small numbers are slow
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

    while True:
        step_s = block(steps)
        if distributed.get_rank() == 0:
            print(json.dumps(step_s), flush=True)


class Side:
    """One of the two: its processes, and the blocks that it has told of."""

    def __init__(self, processes: Callable[[], list[psutil.Process]]) -> None:
        self._processes = processes
        self.blocks: list[float] = []
        self.steps = 1
        self.cpu_s: list[float] = []

    def signal(self, number: signal.Signals) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def turn(self) -> float | None:
        """Let it run for a turn; the median block of it, None where it told of too few."""
        before, spent_s = len(self.blocks), self._spent_s()
        self.signal(signal.SIGCONT)
        time.sleep(TURN_S)
        self.signal(signal.SIGSTOP)
        told = self.blocks[before + 1 :]
        if len(told) <= 2:
            return None
        self.cpu_s.append((self._spent_s() - spent_s) / ((len(self.blocks) - before) * self.steps))
        return median(told)

    def _spent_s(self) -> float:
        """Processor time of its ranks so far; what a turn cuts off in a block, the next one finishes."""
        ranks = (process for process in self._processes() if not process.children())
        return sum(sum(rank.cpu_times()[:2]) for rank in ranks)


def torchrun(folder: Path, steps: int) -> tuple[Side, subprocess.Popen[str]]:
    """Start the plain script, with as many steps a block as the harness has."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        __file__,
    ]
    process = subprocess.Popen(
        [*command, "plain", f"{steps}"],
        env={**os.environ, "PYTHONPATH": f"{folder}", "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # as the harness does: the kernel shares out the processor by session
        stdout=subprocess.PIPE,
        text=True,
    )
    top = psutil.Process(process.pid)
    side = Side(lambda: [top, *top.children(recursive=True)])
    side.steps = steps

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            side.blocks.append(float(line))

    threading.Thread(target=read, daemon=True).start()
    return side, process


def harness(folder: Path, most_s: float) -> tuple[Side, Callable[[], None]]:
    """Start the same model under the harness, which never finds its interval narrow enough."""
    from gpubench.measure import events
    from gpubench.measure.budget import QUICK
    from gpubench.measure.launcher import Control, Launcher
    from gpubench.measure.plan import Plan, PlannedCase
    from gpubench.models import Case, Execution, Precision, TaskKind
    from gpubench.probe.select import select_device

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
    budget = msgspec.structs.replace(
        QUICK, target=1e-9, timed_s=most_s, timed_least_s=most_s, round_s=BLOCK_S, case_s=None
    )
    cpu, _ = select_device("cpu")
    planned = PlannedCase(reference=f"{folder / 'beside_model.py'}", case=case)
    made = Plan(budget=budget, seed=0, cases=(planned,), on_cpu=True, peers=(cpu,))
    control = Control()

    def ranks() -> list[psutil.Process]:
        child = control.child
        return [] if child is None else psutil.Process(child.pid).children(recursive=True)

    side = Side(ranks)

    def note(event: events.Event) -> None:
        if isinstance(event, events.RoundEnded) and event.timed:
            side.steps = event.round.steps
            side.blocks.append(event.round.wall_s / event.round.steps)

    threading.Thread(target=lambda: list(Launcher(made, cpu, note, control).run()), daemon=True).start()
    return side, control.abort


def wait_for(side: Side) -> None:
    """Wait for the first block of a side."""
    while not side.blocks:
        time.sleep(0.1)


def main(windows: int) -> None:
    """Print the median ratio of the pairs of turns, and their mean with its 95 % interval."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "beside_model.py").write_text(MODEL)
        ours, abort = harness(folder, most_s=1200.0)
        wait_for(ours)
        ours.signal(signal.SIGSTOP)
        theirs, process = torchrun(folder, ours.steps)
        try:
            wait_for(theirs)
            theirs.signal(signal.SIGSTOP)
            ratios, cpu_ratios, steps = [], [], []
            for number in range(windows):
                order = [ours, theirs] if number % 2 == 0 else [theirs, ours]
                turns = {side: side.turn() for side in order}
                if all(turns.values()):
                    ratios.append(turns[ours] / turns[theirs])
                    cpu_ratios.append(ours.cpu_s[-1] / theirs.cpu_s[-1])
                    steps.append(turns[theirs])
        finally:
            for side in (theirs, ours):
                side.signal(signal.SIGCONT)
            abort()
            process.terminate()
            process.wait(30)
    print(
        f"{len(ratios)} pairs of turns, {ours.steps} steps a block, plain step {median(steps) * 1e3:.2f} ms: harness over torchrun"
    )
    for what, each in (("time", ratios), ("processor time", cpu_ratios)):
        print(f"{what}: median {median(each):.4f}, mean {in_words(each)}")


def in_words(ratios: list[float]) -> str:
    """Return the mean of paired ratios with its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    half, mean = 1.96 * stdev(logs) / math.sqrt(len(logs)), math.exp(fmean(logs))
    return f"{mean:.4f} ({mean * math.exp(-half):.4f} to {mean * math.exp(half):.4f})"


if __name__ == "__main__":
    if sys.argv[1:2] == ["plain"]:
        plain(int(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 40)
