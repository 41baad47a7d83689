"""VGG16 with a batch norm after each convolution: forward and backward passes only, as run on 8 GB Radeon cards."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from gpubench.workload import Task, Workload, image_batches, seeded
from gpubench_workloads.vgg16 import CONFIGURATION_D, Vgg


def build(batch_size: int, seed: int) -> Task:
    """Build one step with an optimizer that keeps no state.

    Shapes:
        inputs: (N, 3, 224, 224) float32; targets: (N,) int64; logits: (N, 1000).
    """
    with seeded(seed):
        model = Vgg(CONFIGURATION_D, 224, 4096, 1000)
        model.features = nn.Sequential(
            *(
                each
                for layer in model.features
                for each in (
                    (layer, nn.BatchNorm2d(layer.out_channels)) if isinstance(layer, nn.Conv2d) else (layer,)
                )
            )
        )
        return Task(
            model=model,
            batches=image_batches(batch_size, (3, 224, 224), count=1),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.SGD, lr=0.01),
        )


DEFINITION = Workload(
    name="vgg16_bn",
    summary="VGG16 with batch norms, no state of an optimizer",
    version=1,
    sample_unit="image",
    sample_shape=(3, 224, 224),
    batches=(12,),
    is_image=True,
    source="Simonyan and Zisserman 2014, arXiv:1409.1556, table 1, D; Ioffe and Szegedy 2015, arXiv:1502.03167",
    build=build,
)
