"""FocalNet-B with large fields of view: context from depthwise convolutions modulates each position."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined
from definitions.convnext import NormOfChannels

DEPTHS, WIDTH, LEVELS, NARROWEST, CLASSES = (2, 2, 18, 2), 128, 3, 3, 1000
SMOOTHING = 0.1


class Modulation(nn.Module):
    """A query at each position, times the gated context from increasingly wide depthwise convolutions.

    Shapes:
        x, out: (N, width, S, S).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.split = (width, width, LEVELS + 1)
        self.enter = nn.Conv2d(width, sum(self.split), 1)
        sizes = [NARROWEST + 2 * level for level in range(LEVELS)]
        self.levels = nn.ModuleList(
            nn.Conv2d(width, width, size, padding=size // 2, groups=width, bias=False) for size in sizes
        )
        self.modulator, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Gather context level by level; the last level is the mean of the whole image."""
        query, context, gates = torch.split(self.enter(x), self.split, 1)
        gathered: Tensor | int = 0
        for number, level in enumerate(self.levels):
            context = nn.functional.gelu(level(context))
            gathered = gathered + context * gates[:, number : number + 1]
        whole = nn.functional.gelu(context.mean((2, 3), keepdim=True))
        gathered = gathered + whole * gates[:, LEVELS:]
        return self.leave(query * self.modulator(gathered))


class Block(nn.Module):
    """Modulation, then two layers on each position, each after a norm and with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(NormOfChannels(width) for _ in range(2))
        self.modulate = Modulation(width)
        self.enter, self.leave = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        x = x + self.modulate(self.norms[0](x))
        return x + self.leave(nn.functional.gelu(self.enter(self.norms[1](x))))


def network() -> nn.Module:
    """Build four stages; a convolution that shrinks the image and a norm precede each."""
    layers: list[nn.Module] = []
    before = 3
    for number, depth in enumerate(DEPTHS):
        width, step = WIDTH * 2**number, 2 if number else 4
        layers += [nn.Conv2d(before, width, step, stride=step), NormOfChannels(width)]
        layers += [Block(width) for _ in range(depth)]
        before = width
    head = [NormOfChannels(before), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(before, CLASSES)]
    return nn.Sequential(*layers, *head)


DEFINITION = defined(
    "focalnet_base_lrf",
    "FocalNet-B, large fields of view",
    "Yang, Li, Dai and Gao 2022, arXiv:2203.11926, section 3 and table 1; 88.7 M parameters",
    model=network,
    optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    batch_size=64,
    count=1,
    loss=partial(nn.functional.cross_entropy, label_smoothing=SMOOTHING),
)
