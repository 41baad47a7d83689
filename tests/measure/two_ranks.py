"""Runs ten steps of a small model, in one process or in two that split the samples, for a test to compare."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed import TCPStore

from gpubench.measure.step import move
from gpubench.measure.team import place_model, share
from gpubench.models import Case, Execution, ParallelMode, Precision, TaskKind
from gpubench.workload import Task

SAMPLES, STEPS, WIDTH = 8, 10, 16
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=1e-3),
}
MODES = (ParallelMode.DDP, ParallelMode.FSDP)
SHARDS_ON_A_CPU = hasattr(torch, "accelerator")
"""Older torch can shard a model only over CUDA devices."""
EIGHT_BITS = "fp8"
"""SGD with FP8 products in the linear layers of the blocks, if torchao is installed. Weights are float32, because
torch's fused SGD on a CPU loses small updates of bfloat16 weights."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU())
        self.outer = nn.Linear(32, WIDTH)
        self.register_buffer("scale", torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.outer(self.inner(self.norm(x)))


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(11, WIDTH), nn.Sequential(*(Block() for _ in range(3))), nn.Linear(WIDTH, 3)
    )


def batches(part: slice) -> tuple[tuple[Tensor, Tensor], ...]:
    torch.manual_seed(5)
    whole = [(torch.randint(11, (SAMPLES, 4)), torch.randn(SAMPLES, 4, 3)) for _ in range(4)]
    return tuple((x[part], y[part]) for x, y in whole)


def trained(rank: int, size: int, mode: ParallelMode, how: str) -> list[list[float]]:
    """Return every parameter after the steps; each process initializes a model, and the first process's is used."""
    each = SAMPLES // size
    in_fp8 = how == EIGHT_BITS
    case = Case(
        workload="two",
        workload_version=1,
        task=TaskKind.TRAIN,
        precision=Precision.FP8 if in_fp8 else Precision.FP32,
        execution=Execution.EAGER,
        memory_format=None,
        batch_size=each,
        sample_unit="sample",
        gpu_count=size,
        parallel_mode=mode,
    )
    task = Task(
        model=net(seed=rank),
        batches=batches(slice(rank * each, (rank + 1) * each)),
        loss=nn.functional.mse_loss,
        optimizer=OPTIMIZERS["sgd" if in_fp8 else how],
    )
    work = share(move(task, case, torch.device("cpu"), place_model))
    for index in range(STEPS):
        work.step(index)
    whole = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in work.model.parameters())
    return [p.detach().flatten().tolist() for p in whole]


def main(rank: int, port: int, out: Path) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=rank == 0)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    ways = (*OPTIMIZERS, *([EIGHT_BITS] if find_spec("torchao") else []))
    modes = MODES if SHARDS_ON_A_CPU else MODES[:1]
    found = {f"{mode} {how}": trained(rank, 2, mode, how) for mode in modes for how in ways}
    (out / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
