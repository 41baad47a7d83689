"""ResNet-50 as GPU-Insights trains it: images of 32 x 32, so a 3 x 3 stem of stride 1 and no max-pool."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from gpubench.workload import Task, Workload, image_batches, seeded
from gpubench_workloads.resnet50 import DEPTHS_50, ResNet

CLASSES = 10


def build(batch_size: int, seed: int) -> Task:
    """Build one training step.

    Shapes:
        inputs: (N, 3, 32, 32) float32; targets: (N,) int64; logits: (N, 10).
    """
    with seeded(seed):
        model = ResNet(DEPTHS_50, 64, CLASSES)
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
        return Task(
            model=model,
            batches=image_batches(batch_size, (3, 32, 32), range(CLASSES)),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.SGD, lr=0.01),
        )


DEFINITION = Workload(
    name="resnet50_cifar",
    summary="ResNet-50 v1.5 for images of 32 x 32",
    version=1,
    sample_unit="image",
    sample_shape=(3, 32, 32),
    batches=(128,),
    is_image=True,
    source="He, Zhang, Ren and Sun 2015, arXiv:1512.03385; stem of its section 4.2, as xiaoran007/GPU-Insights",
    build=build,
    tiny=build,
)
