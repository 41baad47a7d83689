"""Compares gpubench with plain training loops that share only the model's file with it.

    python tests/measure/beside_plain.py                     # cnn lstm resnet50:2 bert_base:1 examples/unet.py:2
    python tests/measure/beside_plain.py vgg16:1 my_model.py:8

For each model, this prints the median ratio of pairs of blocks with its 95 % interval, and says whether the ratio is
within 2 %, is not, or is undecided; the exit code is 0, 1 or 6. Each side builds its own model from the file. The
plain loop turns training mode on, makes its optimizer (with the same fused kernels) and rotates its batches itself.
Both sides run in strict fp32, eagerly, on the CPU. Use an idle machine; its load is printed too. PAIRS, WARM_S and
BLOCK_S change how long the comparison takes.
"""

from __future__ import annotations

import argparse
import inspect
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from builders import case_of
from paired import EXIT_CODES, Verdict, ratio_of, verdict_of, warm_count, words_of

from gpubench.discovery import load_workload
from gpubench.measure.loop import Clock, Loop
from gpubench.measure.step import move
from gpubench.models import MemoryFormat
from gpubench.units import Seconds
from gpubench.workload import Task, forward

UNET = Path(__file__).parents[2] / "examples" / "unet.py"
USUAL = ("cnn", "lstm", "resnet50:2", "bert_base:1", f"{UNET}:2")
LIMIT = 0.02
PAIRS = int(os.environ.get("PAIRS", "40"))
BLOCK_S = float(os.environ.get("BLOCK_S", "0.5"))


def plain_loop(task: Task) -> Callable[[int], Seconds]:
    """Return a function that trains a task for a number of steps, as in a tutorial, and returns the time taken."""
    model, criterion = task.model, task.loss
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    can_fuse = "fused" in inspect.signature(task.optimizer).parameters
    optimizer = task.optimizer(trained, fused=True) if can_fuse else task.optimizer(trained)
    done = 0

    def run(steps: int) -> Seconds:
        nonlocal done
        began_s = time.perf_counter()
        for _ in range(steps):
            inputs, targets = task.batches[done % len(task.batches)]
            optimizer.zero_grad()
            loss = criterion(forward(model, inputs), targets)
            loss.backward()
            optimizer.step()
            done += 1
        return time.perf_counter() - began_s

    return run


def rounds_of(task: Task, name: str, batch_size: int) -> Loop:
    """Return gpubench's own loop over a task, as for an fp32 row on a CPU."""
    case = case_of(name, memory_format=MemoryFormat.CONTIGUOUS, batch_size=batch_size, sample_unit="sample")
    work = move(task, case, torch.device("cpu"))
    return Loop(advance=work.step, edge_loss=work.edge_loss, clock=Clock(), batches=len(work.batches))


def compare(reference: str) -> Verdict:
    """Time blocks of the two sides in the order ABBA, and print the results."""
    name, _, told = reference.partition(":")
    workload = load_workload(name)
    batch_size = int(told) if told else workload.batches[0]
    loop = rounds_of(workload.build(batch_size, 0), Path(name).stem, batch_size)
    plain = plain_loop(workload.build(batch_size, 0))
    several = len(workload.build(batch_size, 0).batches)
    warm_count(lambda steps: loop.round(steps).wall_s, BLOCK_S, several)
    count = warm_count(plain, BLOCK_S, several)
    ratios: list[float] = []
    for _ in range(PAIRS // 2):
        first, second, third, fourth = (
            loop.round(count).wall_s,
            plain(count),
            plain(count),
            loop.round(count).wall_s,
        )
        ratios += [first / second, fourth / third]
    ratio = ratio_of(ratios)
    verdict = verdict_of(ratio, LIMIT)
    load = f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    print(
        f"{Path(name).name}, batch {batch_size}, rounds over a plain loop: {words_of(ratio)}: {verdict} {LIMIT:.0%}"
    )
    print(f"    {len(ratios)} pairs of {count} steps; {load}", flush=True)
    return verdict


def main() -> int:
    """Compare the named models, or the default five; return the worst exit code."""
    parser = argparse.ArgumentParser(prog="beside_plain.py", description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", default=USUAL, metavar="NAME[:BATCH]")
    found = [compare(each) for each in parser.parse_args().workloads]
    worst = next(each for each in ("not within", "undecided", "within") if each in found)
    return EXIT_CODES[worst]


if __name__ == "__main__":
    raise SystemExit(main())
