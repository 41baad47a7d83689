"""EfficientNetV2-B0 with TensorFlow's padding, as in timm: with a stride, only the right and lower edges are padded."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from definitions.blocks import CLASSES, defined

STEM, HEAD = 32, 1280


class Stage(NamedTuple):
    """Layers of one shape; the first layer has the stride."""

    is_fused: bool
    depth: int
    stride: int
    expansion: int
    width: int


STAGES = (
    Stage(is_fused=True, depth=2, stride=2, expansion=4, width=32),
    Stage(is_fused=True, depth=2, stride=2, expansion=4, width=48),
    Stage(is_fused=False, depth=3, stride=2, expansion=4, width=96),
    Stage(is_fused=False, depth=5, stride=1, expansion=6, width=112),
    Stage(is_fused=False, depth=8, stride=2, expansion=6, width=192),
)
FIRST_WIDTH = 16


def convolution(
    channels: int, width: int, side: int = 1, *, stride: int = 1, groups: int = 1, is_active: bool = True
) -> nn.Sequential:
    """Build a convolution, a batch norm and, by default, a SiLU, for images with an even side."""
    layers: list[nn.Module] = []
    if stride > 1:
        layers.append(nn.ZeroPad2d((0, 1, 0, 1)))
    padding = 0 if stride > 1 else side // 2
    layers += [
        nn.Conv2d(channels, width, side, stride=stride, padding=padding, groups=groups, bias=False),
        nn.BatchNorm2d(width, eps=1e-3),
    ]
    return nn.Sequential(*layers, nn.SiLU(inplace=True)) if is_active else nn.Sequential(*layers)


class Excitation(nn.Module):
    """Scale each channel by the output of a small network on the means of all channels."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.Conv2d(width, inner, 1), nn.SiLU(inplace=True), nn.Conv2d(inner, width, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weigh(x.mean((2, 3), keepdim=True))


class Layer(nn.Module):
    """Widen, convolve, narrow; the input is added if it has the output's shape."""

    def __init__(self, stage: Stage, channels: int, stride: int) -> None:
        super().__init__()
        inner = stage.expansion * channels
        if stage.is_fused:
            layers = [convolution(channels, inner, 3, stride=stride)]
        else:
            layers = [
                convolution(channels, inner),
                convolution(inner, inner, 3, stride=stride, groups=inner),
                Excitation(inner, channels // 4),
            ]
        self.branch = nn.Sequential(*layers, convolution(inner, stage.width, is_active=False))
        self.is_residual = stride == 1 and channels == stage.width

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x) + x if self.is_residual else self.branch(x)


class EfficientNetV2(nn.Module):
    """The network.

    Shapes:
        images: (N, 3, S, S); logits: (N, classes).
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(3, STEM, 3, stride=2), convolution(STEM, FIRST_WIDTH, 3)]
        channels = FIRST_WIDTH
        for stage in STAGES:
            for place in range(stage.depth):
                layers.append(Layer(stage, channels, 1 if place else stage.stride))
                channels = stage.width
        self.features = nn.Sequential(*layers, convolution(channels, HEAD), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(HEAD, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))


DEFINITION = defined(
    "tf_efficientnetv2_b0",
    "EfficientNetV2-B0 for images of 224 x 224",
    "Tan and Le 2021, arXiv:2104.00298, B0 of the authors' code; padding as timm",
    model=partial(EfficientNetV2, CLASSES),
    optimizer=partial(torch.optim.SGD, lr=1e-4, momentum=0.9),
    batch_size=128,
)
