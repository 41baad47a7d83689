"""U-Net with batch norms and padded convolutions, as trained for segmentation today."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined

SIDE, CLASSES, BATCHES = 256, 21, 4
WIDTHS = (64, 128, 256, 512, 1024)


def two_convolutions(channels: int, width: int) -> nn.Sequential:
    """Build two 3 x 3 convolutions, each with a batch norm and a ReLU."""
    layers: list[nn.Module] = []
    for entering in (channels, width):
        layers += [
            nn.Conv2d(entering, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Four steps down by pooling and four up by transposed convolutions.

    Shapes:
        images: (N, 3, S, S); logits: (N, classes, S, S).
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            two_convolutions(channels, width) for channels, width in zip((3, *WIDTHS), WIDTHS, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        up = WIDTHS[-2::-1]
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in up)
        self.up = nn.ModuleList(two_convolutions(2 * width, width) for width in up)
        self.head = nn.Conv2d(WIDTHS[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        x, *deeper = images, *self.down
        skipped = []
        for place, convolutions in enumerate(deeper):
            x = convolutions(self.pool(x) if place else x)
            skipped.append(x)
        skipped.pop()
        for enlarge, convolutions in zip(self.enlarge, self.up, strict=True):
            x = convolutions(torch.cat([skipped.pop(), enlarge(x)], dim=1))
        return self.head(x)


def _batches(batch_size: int) -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple(
        (torch.randn(batch_size, 3, SIDE, SIDE), torch.randint(CLASSES, (batch_size, SIDE, SIDE)))
        for _ in range(BATCHES)
    )


DEFINITION = defined(
    "unet_256",
    "U-Net that labels each pixel of 256 x 256 with one of 21 classes",
    "Ronneberger, Fischer and Brox 2015, arXiv:1505.04597, figure 1; padding, batch norms and 21 classes "
    "as xiaoran007/GPU-Insights, benchmark/models/unet.py",
    model=partial(UNet, CLASSES),
    optimizer=partial(torch.optim.SGD, lr=0.001),
    batch_size=16,
    shape=(3, SIDE, SIDE),
    batches=_batches,
)
