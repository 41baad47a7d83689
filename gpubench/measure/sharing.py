"""How the processes of a job share one model: each a whole copy (DDP), or each a part of it (FSDP2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from gpubench.measure.execution import NotPreparedError
from gpubench.measure.step import Work
from gpubench.models import Case, ParallelMode, TaskKind
from gpubench.profile.blocks import repeated_blocks


def place_model(model: nn.Module, case: Case, device: torch.device) -> nn.Module:
    """Put a model on the device, whole or, where the case shards it, this process's part of each block.

    A sharded model comes block by block from the host: none of the processes ever holds all of it.

    Raises:
        NotPreparedError: If a model to be sharded has no blocks, or this torch cannot shard.
    """
    if case.parallel_mode is not ParallelMode.FSDP:
        return model.to(device)
    fully_shard = _fully_shard()
    blocks = repeated_blocks(model)
    if not blocks:
        raise NotPreparedError(
            f"fsdp shards a model block by block, and {case.workload} has no repeated block: use --jobs ddp"
        )
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for part in (*blocks, model):
        _agree(part, device)
        fully_shard(part, mesh=mesh)
    return model


def share(work: Work) -> Work:
    """Return the work as one process's share of the job: its gradients are averaged with all others'.

    Each process has its own batches, and the first one's parameters. Inference and independent jobs exchange
    nothing; the gradients of a sharded model are averaged where it is sharded.
    """
    if work.case.task is not TaskKind.TRAIN or work.case.parallel_mode is not ParallelMode.DDP:
        return work
    device_ids = None if work.device.type == "cpu" else [work.device]
    return dataclasses.replace(work, model=DistributedDataParallel(work.model, device_ids=device_ids))


def _agree(module: nn.Module, device: torch.device) -> None:
    """Move what of a module is still on the host, with the first process's values."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.device.type == "meta" or hasattr(tensor, "to_local"):
                continue  # sharded already, as a part of a block
            tensor.data = tensor.data.to(device)
            distributed.broadcast(tensor.data, 0)


def _fully_shard() -> Callable[..., Any]:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        try:
            # where torch 2.4 and 2.5 have it
            from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]
        except ImportError:
            raise NotPreparedError(f"torch {torch.__version__} has no fully_shard: fsdp needs 2.4") from None
    return fully_shard
