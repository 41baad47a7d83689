"""ResNet-50 v1.5, with the stride on the 3 x 3 convolution; limited by arithmetic and memory bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, image_batches, seeded

DEPTHS_50 = (3, 4, 6, 3)
EXPANSION = 4
"""Ratio of a bottleneck's output channels to its inner channels."""


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut.

    Shapes:
        x: (N, channels, S, S); out: (N, 4 * width, S / stride, S / stride).
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = EXPANSION * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != wide:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, wide, 1, stride=stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add the three convolutions to the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += shortcut
        out: Tensor = self.relu(x)
        return out


class ResNet(nn.Module):
    """The network, with torchvision's parameter names.

    Shapes:
        images: (N, 3, S, S) float32; logits: (N, classes).
    """

    def __init__(self, depths: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        for place, depth in enumerate(depths):
            inner = width * 2**place
            blocks = []
            for block in range(depth):
                stride = 2 if block == 0 and place > 0 else 1
                blocks.append(Bottleneck(channels, inner, stride))
                channels = EXPANSION * inner
            self.add_module(f"layer{place + 1}", nn.Sequential(*blocks))
        self.stages = len(depths)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Score the classes."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def build(
    batch_size: int,
    seed: int,
    *,
    depths: Sequence[int] = DEPTHS_50,
    width: int = 64,
    image_size: int = 224,
    classes: int = 1000,
) -> Task:
    """Build one ResNet-50 training task on synthetic ImageNet-sized images.

    Shapes:
        inputs: (N, 3, 224, 224) float32; targets: (N,) int64 in [0, 4); logits: (N, 1000).

    Args:
        batch_size: N, images per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        depths: Bottlenecks of each stage.
        width: Channels of the first convolution.
        image_size: Side of the square images [pixels].
        classes: Number of classes.

    Source:
        He, Zhang, Ren and Sun 2015, arXiv:1512.03385, with the stride on the 3 x 3 convolution (v1.5).
    """
    with seeded(seed):
        return Task(
            model=ResNet(depths, width, classes),
            batches=image_batches(batch_size, (3, image_size, image_size)),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        )


WORKLOAD = Workload(
    name="resnet50",
    summary="bottleneck blocks, v1.5; half bound by memory",
    version=1,
    sample_unit="image",
    sample_shape=(3, 224, 224),
    batches=(32, 64, 128),
    is_image=True,
    source="He, Zhang, Ren and Sun 2015, arXiv:1512.03385; v1.5 has the stride on the 3 x 3 convolution",
    build=build,
    tiny=partial(build, depths=(1, 1), width=8, image_size=32, classes=10),
)
