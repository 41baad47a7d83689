"""A model that waits for the device in each forward pass: no CUDA graph can hold it.

``gpubench check --cuda`` captures it on purpose, to see that it is refused with its cause.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, seeded

WIDTH = 64


class Waiting(nn.Module):
    """A linear layer whose output depends on a number that is read on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the output by its own largest value.

        Shapes:
            x: (N, 64) float32; result: (N, 64).
        """
        out: Tensor = self.layer(x)
        return out / (1.0 + abs(out.detach().max().item()))


def build(batch_size: int, seed: int) -> Task:
    """Build the model on random rows, to be learned by regression.

    Shapes:
        inputs: (N, 64) float32; targets: (N, 64) float32.
    """
    with seeded(seed):
        return Task(
            model=Waiting(),
            batches=tuple((torch.randn(batch_size, WIDTH), torch.zeros(batch_size, WIDTH)) for _ in range(2)),
            loss=nn.functional.mse_loss,
            optimizer=partial(torch.optim.SGD, lr=0.01),
        )


WORKLOAD = Workload(
    name="waiting",
    version=1,
    sample_unit="row",
    sample_shape=(WIDTH,),
    batches=(8,),
    is_image=False,
    source="gpubench",
    build=build,
)
