"""RegNetY-128GF: bottlenecks with grouped convolutions and squeeze-and-excitation, images of 224 x 224."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined

STEM, GROUP = 32, 264
DEPTHS, WIDTHS = (2, 7, 17, 1), (528, 1056, 2904, 7392)
"""These follow from the parameters of the design space: w0 = 456, wa = 160.83, wm = 2.52, 27 blocks."""


class Excitation(nn.Module):
    """Scale the channels by a function of their means."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(width, narrow, 1), nn.Conv2d(narrow, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled channels, in the same shape."""
        means = nn.functional.adaptive_avg_pool2d(x, 1)
        return torch.sigmoid(self.leave(nn.functional.relu(self.enter(means), inplace=True))) * x


class Block(nn.Module):
    """1 x 1, grouped 3 x 3, excitation and 1 x 1, with a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        norm, relu = partial(nn.BatchNorm2d, width), partial(nn.ReLU, inplace=True)
        convolve = partial(nn.Conv2d, bias=False)
        self.branch = nn.Sequential(
            convolve(channels, width, 1), norm(), relu(),
            convolve(width, width, 3, stride=stride, padding=1, groups=width // GROUP), norm(), relu(),
            Excitation(width, round(0.25 * channels)),
            convolve(width, width, 1), norm(),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(convolve(channels, width, 1, stride=stride), norm())
        self.relu = relu()

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut to the convolutions."""
        out: Tensor = self.relu(self.shortcut(x) + self.branch(x))
        return out


def network(classes: int) -> nn.Module:
    """Build the stem, four stages and the head."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, STEM, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(STEM),
        nn.ReLU(inplace=True),
    ]
    channels = STEM
    for depth, width in zip(DEPTHS, WIDTHS, strict=True):
        for place in range(depth):
            layers.append(Block(channels, width, 2 if place == 0 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(channels, classes))


DEFINITION = defined(
    "regnet_y_128gf",
    "RegNetY-128GF",
    "Radosavovic and others 2020, arXiv:2003.13678; at 128 GF Goyal and others 2022, arXiv:2202.08360; 644.8 M parameters",
    model=partial(network, 1000),
    optimizer=partial(torch.optim.SGD, lr=0.01, foreach=True),
    batch_size=64,
    count=1,
)
