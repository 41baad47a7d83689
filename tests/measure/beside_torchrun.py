"""The harness beside a plain torchrun script of the same model: two ranks on the CPU, gloo, in pairs ABBA.

    python tests/measure/beside_torchrun.py [PAIRS]

A script and no test: what it prints is as quiet as the machine is. Each side starts its processes anew, warms
up and times blocks of equal length; of each side the median block counts, of the pairs the median ratio.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median, stdev

WARM_S, TIMED_S, BLOCK_S = 3.0, 6.0, 0.3
BATCH = 64

MODEL = """
import torch
from torch import nn

def build(batch_size):
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return net, torch.randn(batch_size, 512), torch.randint(10, (batch_size,)), nn.functional.cross_entropy, SGD

def SGD(parameters):
    return torch.optim.SGD(parameters, lr=0.01, fused=True)
"""


def plain() -> None:
    """What a user would write: DistributedDataParallel, one loop, a barrier at both edges of each block."""
    import torch
    from beside_model import SGD, build  # type: ignore[import-not-found]
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())
    net, inputs, targets, loss_of, _ = build(BATCH)
    model = DistributedDataParallel(net)
    optimizer = SGD(model.parameters())

    def block(steps: int) -> float:
        distributed.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model(inputs), targets).backward()
            optimizer.step()
        distributed.barrier()
        return (time.perf_counter() - start) / steps

    counts = torch.tensor([max(1, round(BLOCK_S / median(block(3) for _ in range(3))))])
    distributed.broadcast(counts, 0)
    steps, times = int(counts), []
    blocks = torch.tensor([max(4, round((WARM_S + TIMED_S) / (block(steps) * steps)))])
    distributed.broadcast(blocks, 0)
    times = [block(steps) for _ in range(int(blocks))]
    if distributed.get_rank() == 0:
        print(json.dumps(median(times[round(len(times) * WARM_S / (WARM_S + TIMED_S)) :])))
    distributed.destroy_process_group()


def torchrun_s(folder: Path) -> float:
    """Seconds a step of the plain script."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        __file__,
        "plain",
    ]
    told = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": f"{folder}"}, capture_output=True, text=True, check=True
    )
    return float(told.stdout.splitlines()[-1])


def harness_s(folder: Path) -> float:
    """Seconds a step of the harness: the median round, as above."""
    import msgspec

    from gpubench.measure.budget import QUICK
    from gpubench.measure.launcher import Launcher
    from gpubench.measure.plan import Plan, PlannedCase
    from gpubench.models import Case, Execution, Precision, Status, TaskKind
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
    times = {
        "warmup_least_s": WARM_S,
        "warmup_most_s": WARM_S,
        "timed_s": TIMED_S,
        "round_s": BLOCK_S,
        "case_s": None,
    }
    known = {name: value for name, value in times.items() if name in QUICK.__struct_fields__}
    budget = msgspec.structs.replace(QUICK, target=1e-9, **known)
    cpu, _ = select_device("cpu")
    planned = PlannedCase(reference=f"{folder / 'beside_model.py'}", case=case)
    made = Plan(budget=budget, seed=0, cases=(planned,), on_cpu=True, peers=(cpu,))
    (measurement,) = Launcher(made, cpu).run()
    assert measurement.status is Status.OK, measurement.reason
    return median(r.wall_s / r.steps for r in measurement.launches[0].rounds)


def main(pairs: int) -> None:
    """Print each pair, then the median and the mean ratio with its 95 % interval."""
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "beside_model.py").write_text(MODEL)
        for number in range(pairs):
            sides = [harness_s, torchrun_s] if number % 2 == 0 else [torchrun_s, harness_s]
            found = {side: side(folder) for side in sides}
            ratios.append(found[harness_s] / found[torchrun_s])
            print(
                f"pair {number + 1}: harness {found[harness_s] * 1e3:.3f} ms, torchrun {found[torchrun_s] * 1e3:.3f} ms, "
                f"ratio {ratios[-1]:.4f}",
                flush=True,
            )
    logs = [math.log(ratio) for ratio in ratios]
    half = 1.96 * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    mean = math.exp(fmean(logs))
    print(
        f"median {median(ratios):.4f}, mean {mean:.4f} ({mean * math.exp(-half):.4f} to {mean * math.exp(half):.4f})"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["plain"]:
        plain()
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 4)
