"""A small U-Net as your own model: from this file to a ranking of GPUs, without a GPU.

    gpubench rank --workload examples/unet.py            which GPU or cloud instance trains it best per dollar
    gpubench run --workload examples/unet.py --quick     how fast it trains on this machine
    gpubench predict show --workload examples/unet.py --precision amp --gpu nvidia-h100-sxm-80gb

The model segments images: each pixel gets one of two classes. Its only tie to gpubench is ``build``, which
returns the model, one batch of inputs and targets, and the loss. The file says nothing about devices,
precision or timing; gpubench moves the model, runs it in FP32 and in mixed precision, and checks that its
loss falls.

Source: Ronneberger, Fischer and Brox 2015, arXiv:1505.04597; here padded, with batch norm, at half the width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCHES = (4, 16, 32)
SAMPLE_UNIT = "image"
SOURCE = "U-Net, arXiv:1505.04597, at half the width"

WIDTHS = (32, 64, 128, 256)
IMAGE_SIZE = 128
CLASSES = 2


def double_convolution(channels: int, width: int) -> nn.Sequential:
    """Two 3 x 3 convolutions, each with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Downsampling through the widths and upsampling again, with a skip connection at each width.

    Shapes:
        images: (N, 3, S, S) float32; logits: (N, CLASSES, S, S). S is a multiple of 8.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            double_convolution(channels, width) for channels, width in zip((3, *WIDTHS), WIDTHS, strict=False)
        )
        pairs = list(zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, stride=2) for wide, narrow in pairs)
        self.up = nn.ModuleList(double_convolution(2 * narrow, narrow) for _, narrow in pairs)
        self.head = nn.Conv2d(WIDTHS[0], CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Score both classes of each pixel."""
        x, shortcuts = images, []
        for place, block in enumerate(self.down):
            x = block(x if place == 0 else nn.functional.max_pool2d(x, 2))
            shortcuts.append(x)
        for enlarge, block, shortcut in zip(self.enlarge, self.up, shortcuts[-2::-1], strict=True):
            x = block(torch.cat([enlarge(x), shortcut], dim=1))
        logits: Tensor = self.head(x)
        return logits


def build(batch_size: int) -> tuple[nn.Module, Tensor, Tensor, nn.Module]:
    """Return model, inputs, targets and loss; bright pixels are in class 1, so the model can learn."""
    images = torch.randn(batch_size, 3, IMAGE_SIZE, IMAGE_SIZE)
    masks = (images.mean(dim=1) > 0).long()
    return UNet(), images, masks, nn.CrossEntropyLoss()
