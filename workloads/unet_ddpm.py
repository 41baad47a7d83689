"""The denoising network of a diffusion model: a U-Net with residual blocks and attention, at 64 pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import BATCH_COUNT, Batch, Task, Workload, seeded

STEPS = 1000
"""Number of diffusion steps."""
GROUPS = 8
"""Number of groups of each group norm."""


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with the time embedding added between them, and a shortcut.

    Shapes:
        x: (N, channels, S, S); time: (N, 4 * base); out: (N, width, S, S).
    """

    def __init__(self, channels: int, width: int, time_width: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(GROUPS, channels)
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.time = nn.Linear(time_width, width)
        self.second_norm = nn.GroupNorm(GROUPS, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, width, 1) if channels != width else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Add both convolutions to the shortcut."""
        silu = nn.functional.silu
        inner = self.first(silu(self.first_norm(x))) + self.time(silu(time))[:, :, None, None]
        out: Tensor = self.second(silu(self.second_norm(inner))) + self.shortcut(x)
        return out


class PixelAttention(nn.Module):
    """Attention between all pixels, with a residual connection.

    Shapes:
        x, out: (N, C, S, S).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the pixels."""
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = self.query_key_value(pixels).unsqueeze(1).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(query, key, value).squeeze(1)
        return x + self.output(attended).transpose(1, 2).reshape(x.shape)


class DenoisingNetwork(nn.Module):
    """Predicts the noise in an image at a diffusion step.

    Shapes:
        images, out: (N, 3, S, S); steps: (N,) int64 in [0, 1000).
    """

    def __init__(self, base: int, factors: Sequence[int], side: int, attended_side: int) -> None:
        super().__init__()
        widths = [base * factor for factor in factors]
        make = partial(ResidualBlock, time_width=4 * base)
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, 4 * base), nn.SiLU(), nn.Linear(4 * base, 4 * base))
        self.enter = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, skipped = base, [base]
        for place, width in enumerate(widths):
            for _ in range(2):
                self.down.append(_stage(make(channels, width), width, side >> place == attended_side))
                channels = width
                skipped.append(channels)
            if place < len(widths) - 1:
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                skipped.append(channels)
        self.middle = nn.ModuleList(
            (make(channels, channels), PixelAttention(channels), make(channels, channels))
        )
        for place, width in reversed(list(enumerate(widths))):
            for _ in range(3):
                block = make(channels + skipped.pop(), width)
                self.up.append(_stage(block, width, side >> place == attended_side))
                channels = width
            if place:
                self.up.append(
                    nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1))
                )
        self.leave_norm = nn.GroupNorm(GROUPS, channels)
        self.leave = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, images: Tensor, steps: Tensor) -> Tensor:
        """Predict the added noise."""
        time = self.time(self._angles(steps).type_as(images))
        x = self.enter(images)
        skipped = [x]
        for stage in self.down:
            x = _run(stage, x, time)
            skipped.append(x)
        for part in self.middle:
            x = part(x) if isinstance(part, PixelAttention) else part(x, time)
        for stage in self.up:
            is_block = isinstance(stage, nn.ModuleList)
            x = _run(stage, torch.cat((x, skipped.pop()), dim=1) if is_block else x, time)
        out: Tensor = self.leave(nn.functional.silu(self.leave_norm(x)))
        return out

    def _angles(self, steps: Tensor) -> Tensor:
        half = self.base // 2
        places = torch.arange(half, device=steps.device)
        angles = steps[:, None].float() * torch.exp(places * (-math.log(10_000) / (half - 1)))
        return torch.cat((angles.sin(), angles.cos()), dim=1)


def _stage(block: nn.Module, width: int, attended: bool) -> nn.ModuleList:
    return nn.ModuleList((block, PixelAttention(width)) if attended else (block,))


def _run(stage: nn.Module, x: Tensor, time: Tensor) -> Tensor:
    if not isinstance(stage, nn.ModuleList):
        changed: Tensor = stage(x)
        return changed
    block, *attention = stage
    x = block(x, time)
    for layer in attention:
        x = layer(x)
    return x


def noise_error(found: Tensor, noise: Tensor) -> Tensor:
    """Return the mean squared error in the noise's type; torch 2.4 has no gradient for mixed types."""
    cast = found if found.dtype == noise.dtype else found.type_as(noise)
    return nn.functional.mse_loss(cast, noise)


def build(
    batch_size: int,
    seed: int,
    *,
    base: int = 128,
    factors: Sequence[int] = (1, 2, 2, 2),
    side: int = 64,
    attended_side: int = 16,
) -> Task:
    """Build the network and four batches of noised images, their steps and their noise.

    Shapes:
        inputs: (N, 3, side, side) float32 and (N,) int64; targets: (N, 3, side, side) float32.

    Args:
        batch_size: N, images per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        base: Channels of the first level.
        factors: Channels of each level, relative to the first's.
        side: Side of the square images [pixels].
        attended_side: Side of the level with attention.

    Source:
        Ho, Jain and Abbeel 2020, arXiv:2006.11239, appendix B, the network of CIFAR-10; without dropout.
    """
    with seeded(seed):
        return Task(
            model=DenoisingNetwork(base, factors, side, attended_side),
            batches=tuple(_batch(batch_size, side) for _ in range(BATCH_COUNT)),
            loss=noise_error,
            optimizer=partial(torch.optim.Adam, lr=1e-4),
        )


def _batch(batch_size: int, side: int) -> Batch:
    """Add noise to the images according to the step, with a cosine schedule for the signal."""
    images, noise = (torch.randn(batch_size, 3, side, side) for _ in range(2))
    steps = torch.randint(STEPS, (batch_size,))
    angle = (steps.float() / STEPS * (math.pi / 2))[:, None, None, None]
    return (angle.cos() * images + angle.sin() * noise, steps), noise


WORKLOAD = Workload(
    name="unet_ddpm",
    summary="a diffusion U-Net at 64 pixels with attention at 16",
    version=1,
    sample_unit="image",
    sample_shape=(3, 64, 64),
    batches=(16, 32, 64),
    is_image=True,
    source="Ho, Jain and Abbeel 2020, arXiv:2006.11239, appendix B",
    build=build,
    tiny=partial(build, base=16, factors=(1, 2), side=16, attended_side=8),
    is_classic=False,
)
