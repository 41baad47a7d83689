"""VGG16: thirteen 3 x 3 convolutions and three wide linear layers; limited by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, image_batches, seeded

CONFIGURATION_D = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Channels of the convolutions of each block; each block ends with max pooling."""


class Vgg(nn.Module):
    """The network, with torchvision's parameter names.

    Shapes:
        images: (N, 3, S, S) float32; logits: (N, classes).
    """

    def __init__(self, blocks: Sequence[Sequence[int]], image_size: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.features = features(blocks)
        side = image_size // 2 ** len(blocks)
        self.classifier = nn.Sequential(
            nn.Linear(blocks[-1][-1] * side * side, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Score the classes."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def features(blocks: Sequence[Sequence[int]]) -> nn.Sequential:
    """Stack the convolutional blocks."""
    layers: list[nn.Module] = []
    channels = 3
    for block in blocks:
        for width in block:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def build(
    batch_size: int,
    seed: int,
    *,
    blocks: Sequence[Sequence[int]] = CONFIGURATION_D,
    image_size: int = 224,
    hidden: int = 4096,
    classes: int = 1000,
) -> Task:
    """Build one VGG16 training task on synthetic ImageNet-sized images.

    Weights have torch's default initialization. With torchvision's, the loss becomes infinite or NaN within
    15 steps at this learning rate.

    Shapes:
        inputs: (N, 3, 224, 224) float32; targets: (N,) int64 in [0, 4); logits: (N, 1000).

    Args:
        batch_size: N, images per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        blocks: Channels of the convolutions of each block.
        image_size: Side of the square images [pixels].
        hidden: Width of the two hidden linear layers.
        classes: Number of classes.

    Source:
        Simonyan and Zisserman 2014, arXiv:1409.1556, table 1, configuration D (138 M parameters).
    """
    with seeded(seed):
        return Task(
            model=Vgg(blocks, image_size, hidden, classes),
            batches=image_batches(batch_size, (3, image_size, image_size)),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        )


WORKLOAD = Workload(
    name="vgg16",
    summary="13 convolutions and 3 wide linear layers; bound by arithmetic",
    version=1,
    sample_unit="image",
    sample_shape=(3, 224, 224),
    batches=(32, 64, 128),
    is_image=True,
    source="Simonyan and Zisserman 2014, arXiv:1409.1556, table 1, configuration D",
    build=build,
    tiny=partial(build, blocks=((8, 8), (16, 16), (32, 32, 32)), image_size=32, hidden=32, classes=10),
)
