"""ConvNeXt-L: blocks of a 7 x 7 depthwise convolution and two linear layers, on images of 224 x 224."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined

DEPTHS_L, WIDTHS_L = (3, 3, 27, 3), (192, 384, 768, 1536)
EPSILON = 1e-6


class NormOfChannels(nn.LayerNorm):
    """Layer norm over the channels of an image, which it moves to the last dimension and back."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each position."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """Depthwise convolution, norm and two linear layers, with a shortcut that drops whole samples.

    Shapes:
        x, out: (N, width, S, S).
    """

    def __init__(self, width: int, dropped: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.enter = nn.Linear(width, 4 * width)
        self.leave = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 1e-6))
        self.kept = 1 - dropped

    def forward(self, x: Tensor) -> Tensor:
        """Add the scaled branch to its input."""
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        inner = self.leave(nn.functional.gelu(self.enter(inner))).permute(0, 3, 1, 2)
        inner = self.scale * inner
        if self.kept < 1:
            inner = inner * torch.empty(len(x), 1, 1, 1, dtype=inner.dtype).bernoulli_(self.kept).div_(
                self.kept
            )
        return inner + x


def network(depths: Sequence[int], widths: Sequence[int], classes: int) -> nn.Module:
    """Build stages of blocks, each after a convolution that shrinks the image."""
    stages: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, stride=4), NormOfChannels(widths[0], eps=EPSILON)]
    place, total = 0, sum(depths)
    for number, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if number:
            stages += [
                NormOfChannels(widths[number - 1], eps=EPSILON),
                nn.Conv2d(widths[number - 1], width, 2, stride=2),
            ]
        for _ in range(depth):
            stages.append(Block(width, 0.5 * place / (total - 1)))
            place += 1
    head = [
        nn.AdaptiveAvgPool2d(1),
        NormOfChannels(widths[-1], eps=EPSILON),
        nn.Flatten(1),
        nn.Linear(widths[-1], classes),
    ]
    return nn.Sequential(*stages, *head)


DEFINITION = defined(
    "convnext_large",
    "ConvNeXt-L",
    "Liu and others 2022, arXiv:2201.03545, table 1 and section 3; 197.8 M parameters",
    model=partial(network, DEPTHS_L, WIDTHS_L, 1000),
    optimizer=partial(torch.optim.SGD, lr=0.01, foreach=True),
    batch_size=64,
    count=1,
)
