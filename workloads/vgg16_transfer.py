"""Transfer learning: frozen convolutions of VGG16 with a small trained head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, image_batches, seeded
from gpubench_workloads.vgg16 import CONFIGURATION_D, features


class FrozenFeatures(nn.Module):
    """Frozen convolutions, outside the autograd graph, with a head of two linear layers.

    Shapes:
        images: (N, 3, S, S) float32; logits: (N, classes).
    """

    def __init__(self, blocks: Sequence[Sequence[int]], image_size: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.features = features(blocks).requires_grad_(requires_grad=False)
        side = image_size // 2 ** len(blocks)
        self.head = nn.Sequential(
            nn.Linear(blocks[-1][-1] * side * side, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Score the classes; only the head saves activations for its gradient."""
        with torch.no_grad():
            frozen = self.features(images)
        logits: Tensor = self.head(frozen.flatten(1))
        return logits


def build(
    batch_size: int,
    seed: int,
    *,
    blocks: Sequence[Sequence[int]] = CONFIGURATION_D,
    image_size: int = 224,
    hidden: int = 256,
    classes: int = 10,
) -> Task:
    """Build the network and four batches of synthetic ImageNet-sized images.

    The frozen weights are random, because their values do not affect the time of a step.

    Shapes:
        inputs: (N, 3, 224, 224) float32; targets: (N,) int64 in [0, 4); logits: (N, 10).

    Args:
        batch_size: N, images per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        blocks: Channels of the convolutions of each block.
        image_size: Side of the square images [pixels].
        hidden: Width of the hidden layer of the head.
        classes: Number of classes.

    Source:
        The convolutions: Simonyan and Zisserman 2014, arXiv:1409.1556, table 1, configuration D.
    """
    with seeded(seed):
        return Task(
            model=FrozenFeatures(blocks, image_size, hidden, classes),
            batches=image_batches(batch_size, (3, image_size, image_size)),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.Adam, lr=1e-4),
        )


WORKLOAD = Workload(
    name="vgg16_transfer",
    summary="VGG16's convolutions frozen, a new head trained",
    version=1,
    sample_unit="image",
    sample_shape=(3, 224, 224),
    batches=(32, 64, 128),
    is_image=True,
    source="convolutions of arXiv:1409.1556, configuration D, under a new head",
    build=build,
    tiny=partial(build, blocks=((8, 8), (16, 16), (32, 32, 32)), image_size=32, hidden=32),
)
