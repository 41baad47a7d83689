"""User models with behavior that the standard workloads lack, on the strict fake."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpubench.workload import Task


class Acting(nn.Module):
    """A small network with an extra action in each forward pass."""

    def __init__(self, act: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        out = self.layers(x)
        changed = self.act(out)
        return changed if isinstance(changed, Tensor) else out


class Recurrent(nn.Module):
    """Two recurrent layers with dropout between them, and a head that a compiler separates from them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 8, 2, batch_first=True, dropout=dropout)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.recurrent(x)
        return self.head(out[:, -1])


def task(model: nn.Module, *shape: int, batch: int = 4, **options: Any) -> Task:
    """Wrap a model as a task on two batches of random samples of a shape."""
    torch.manual_seed(0)
    return Task(
        model=model,
        batches=tuple((torch.randn(batch, *shape), torch.arange(batch) % 4) for _ in range(2)),
        loss=nn.functional.cross_entropy,
        optimizer=partial(options.get("optimizer", torch.optim.SGD), lr=0.01),
    )


def acting(act: Callable[[Tensor], Any], batch: int = 4) -> Task:
    """Make a task of an ``Acting`` network."""
    return task(Acting(act), 8, batch=batch)


def recurrent(dropout: float = 0.0) -> Task:
    """Make a task with recurrent layers."""
    return task(Recurrent(dropout), 5, 8)
