"""ResNet-50 and ResNet-152 as milabench trains them: SGD without momentum, and Adam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from gpubench.workload import Task, Workload, image_batches, seeded
from gpubench_workloads.resnet50 import DEPTHS_50, ResNet

DEPTHS_152 = (3, 8, 36, 3)


def build(
    batch_size: int, seed: int, *, depths: Sequence[int], optimizer: Callable[..., torch.optim.Optimizer]
) -> Task:
    """Build one training step.

    Shapes:
        inputs: (N, 3, 224, 224) float32; targets: (N,) int64; logits: (N, 1000).
    """
    with seeded(seed):
        return Task(
            model=ResNet(depths, 64, 1000),
            batches=image_batches(batch_size, (3, 224, 224), (0, 1, 2, 3), count=1),
            loss=nn.functional.cross_entropy,
            optimizer=optimizer,
        )


def _definition(
    name: str, depths: Sequence[int], optimizer: Callable[..., torch.optim.Optimizer]
) -> Workload:
    return Workload(
        name=name,
        summary=name,
        version=1,
        sample_unit="image",
        sample_shape=(3, 224, 224),
        batches=(128,),
        is_image=True,
        source="He, Zhang, Ren and Sun 2015, arXiv:1512.03385, table 1; stride on the 3 x 3",
        build=partial(build, depths=depths, optimizer=optimizer),
    )


RESNET50 = _definition("resnet50_sgd", DEPTHS_50, partial(torch.optim.SGD, lr=0.01, foreach=True))
RESNET152 = _definition("resnet152_adam", DEPTHS_152, partial(torch.optim.Adam, lr=1e-3, foreach=True))
