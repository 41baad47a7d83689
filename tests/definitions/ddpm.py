"""The denoising network of GPU-Insights: a U-Net with residual blocks, a time embedding and attention."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined

SIDE, STEPS = 64, 1000
WIDTHS = (128, 256, 384, 512)
ATTENDED_SIDE, HEADS, GROUPS, TIME_WIDTH = 16, 4, 8, 512


class SelfAttention(nn.Module):
    """Attention between all pixels, added to the input.

    Shapes:
        x, out: (N, C, H, W).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width)
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        seen, _ = self.attention(pixels, pixels, pixels, need_weights=False)
        return x + seen.transpose(1, 2).reshape(x.shape)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with the time embedding added between them, and a shortcut."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = self._convolution(channels, width)
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(TIME_WIDTH, width))
        self.second = self._convolution(width, width)
        self.shortcut = nn.Conv2d(channels, width, 1) if channels != width else nn.Identity()

    @staticmethod
    def _convolution(channels: int, width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.GroupNorm(GROUPS, channels), nn.SiLU(), nn.Conv2d(channels, width, 3, padding=1, bias=False)
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        inner = self.first(x) + self.time(time)[:, :, None, None]
        return self.second(inner) + self.shortcut(x)


class Level(nn.Module):
    """Two residual blocks, and attention at one image size."""

    def __init__(self, channels: int, width: int, side: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList((ResidualBlock(channels, width), ResidualBlock(width, width)))
        self.attention = SelfAttention(width) if side == ATTENDED_SIDE else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, time)
        return self.attention(x)


class DenoisingUNet(nn.Module):
    """Predicts the noise in an image.

    Shapes:
        images, out: (N, 3, 64, 64); steps: (N,).
    """

    def __init__(self) -> None:
        super().__init__()
        sides = [SIDE // 2**place for place in range(len(WIDTHS))]
        deepest = WIDTHS[-1]
        self.time = nn.Sequential(
            nn.Linear(WIDTHS[0], TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH)
        )
        self.enter = nn.Conv2d(3, WIDTHS[0], 3, padding=1)
        self.down = nn.ModuleList(map(Level, (WIDTHS[0], *WIDTHS), WIDTHS, sides))
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in WIDTHS[:-1])
        self.middle = nn.ModuleList((ResidualBlock(deepest, deepest), ResidualBlock(deepest, deepest)))
        self.middle_attention = SelfAttention(deepest)
        up = WIDTHS[::-1]
        before = (deepest, *up)
        self.up = nn.ModuleList(Level(b + w, w, s) for b, w, s in zip(before, up, sides[::-1], strict=False))
        self.enlarge = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(w, w, 3, padding=1)) for w in up[:-1]
        )
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, WIDTHS[0]), nn.SiLU(), nn.Conv2d(WIDTHS[0], 3, 3, padding=1)
        )

    def forward(self, images: Tensor, steps: Tensor) -> Tensor:
        half = WIDTHS[0] // 2
        rates = torch.exp(torch.arange(half, device=images.device) * (-math.log(10_000) / (half - 1)))
        angles = steps[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x = self.enter(images)
        skipped = []
        for place, level in enumerate(self.down):
            x = level(self.shrink[place - 1](x) if place else x, time)
            skipped.append(x)
        x = self.middle[1](self.middle_attention(self.middle[0](x, time)), time)
        for place, level in enumerate(self.up):
            x = self.enlarge[place - 1](x) if place else x
            x = level(torch.cat([x, skipped.pop()], dim=1), time)
        return self.leave(x)


class Denoiser(nn.Module):
    """Adds noise to images and predicts it.

    Shapes:
        images, predicted, noise: (N, 3, 64, 64).
    """

    def __init__(self) -> None:
        super().__init__()
        self.network = DenoisingUNet()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.randint(STEPS, (images.shape[0],), device=images.device)
        noise = torch.randn_like(images)
        kept = (1 - steps.float() / STEPS)[:, None, None, None]
        return self.network(kept.sqrt() * images + (1 - kept).sqrt() * noise, steps), noise


def loss(outputs: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
    """Return the mean squared error of the predicted noise; there are no labels."""
    return nn.functional.mse_loss(*outputs)


DEFINITION = defined(
    "ddpm_64",
    "a diffusion U-Net that predicts the noise in images of 64 x 64",
    "Ho, Jain and Abbeel 2020, arXiv:2006.11239; four levels of 128 to 512 channels, attention at 16 x 16, "
    "as xiaoran007/GPU-Insights, benchmark/models/ddpm.py",
    model=Denoiser,
    optimizer=partial(torch.optim.SGD, lr=0.001),
    batch_size=64,
    shape=(3, SIDE, SIDE),
    loss=loss,
)
