"""Transfer learning: frozen ResNet-50, including batch statistics, with a trained new last layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, image_batches, seeded
from gpubench_workloads.resnet50 import DEPTHS_50, ResNet


class FrozenResNet(nn.Module):
    """A frozen network, outside the autograd graph, with one trained linear layer.

    Shapes:
        images: (N, 3, S, S) float32; logits: (N, classes).
    """

    def __init__(self, depths: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        network = ResNet(depths, width, classes)
        self.head = network.fc
        network.fc = nn.Identity()
        self.features = network.requires_grad_(requires_grad=False)

    def train(self, mode: bool = True) -> Self:
        """Keep the frozen batch norms in eval mode, so they neither use nor update batch statistics."""
        super().train(mode)
        self.features.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Score the classes; only the last layer saves activations for its gradient."""
        with torch.no_grad():
            features = self.features(images)
        logits: Tensor = self.head(features)
        return logits


def build(
    batch_size: int,
    seed: int,
    *,
    depths: Sequence[int] = DEPTHS_50,
    width: int = 64,
    image_size: int = 224,
    classes: int = 10,
) -> Task:
    """Build the network and four batches of synthetic ImageNet-sized images.

    The frozen weights are random, because their values do not affect the time of a step.

    Shapes:
        inputs: (N, 3, 224, 224) float32; targets: (N,) int64 in [0, 4); logits: (N, 10).

    Args:
        batch_size: N, images per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        depths: Bottlenecks of each stage.
        width: Channels of the first convolution.
        image_size: Side of the square images [pixels].
        classes: Number of classes.

    Source:
        The network: He, Zhang, Ren and Sun 2015, arXiv:1512.03385, v1.5.
    """
    with seeded(seed):
        return Task(
            model=FrozenResNet(depths, width, classes),
            batches=image_batches(batch_size, (3, image_size, image_size)),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.Adam, lr=1e-4),
        )


WORKLOAD = Workload(
    name="resnet50_transfer",
    summary="ResNet-50 frozen, a new last layer trained",
    version=1,
    sample_unit="image",
    sample_shape=(3, 224, 224),
    batches=(32, 64, 128),
    is_image=True,
    source="network of arXiv:1512.03385, v1.5, under a new last layer",
    build=build,
    tiny=partial(build, depths=(1, 1), width=8, image_size=32),
)
