"""The U-Net of Stable Diffusion 1.5, as milabench trains it with a frozen image encoder and text encoder."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from definitions.blocks import defined

WIDTHS = (320, 640, 1280, 1280)
TIME_WIDTH = 4 * WIDTHS[0]
HEADS, TEXT_WIDTH, TEXT_LENGTH = 8, 768, 77
LATENT_CHANNELS, LATENT_SIDE = 4, 64
GROUPS = 32
FROZEN = 83_653_863 + 123_060_480
"""Parameters of the image encoder with its decoder, and of the text encoder, both in bfloat16."""


class Residual(nn.Module):
    """Two convolutions, each after a group norm, with the time embedding between; a 1 x 1 shortcut if widths differ.

    Shapes:
        x: (N, entering, S, S); time: (N, time width); out: (N, width, S, S).
    """

    def __init__(self, entering: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, channels) for channels in (entering, width))
        self.enter, self.leave = (nn.Conv2d(channels, width, 3, padding=1) for channels in (entering, width))
        self.time = nn.Linear(TIME_WIDTH, width)
        self.shortcut = nn.Identity() if entering == width else nn.Conv2d(entering, width, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.enter(nn.functional.silu(self.norms[0](x)))
        y = y + self.time(nn.functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.leave(nn.functional.silu(self.norms[1](y)))


class Attention(nn.Module):
    """Attention from each position to all positions, or to the text.

    Shapes:
        x, out: (N, positions, width); seen: (N, positions or tokens, its width).
    """

    def __init__(self, width: int, seen_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(seen_width, width, bias=False) for _ in range(2))
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        query, key, value = (
            part.view(len(x), -1, HEADS, x.shape[-1] // HEADS).transpose(1, 2)
            for part in (self.query(x), self.key(seen), self.value(seen))
        )
        out = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.output(out.transpose(1, 2).reshape(x.shape))


class Transformer(nn.Module):
    """Self-attention, attention to the text, and a gated feed-forward network, over all positions of an image.

    Shapes:
        x, out: (N, width, S, S); text: (N, 77, 768).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.enter, self.leave = (nn.Conv2d(width, width, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attend, self.read = Attention(width, width), Attention(width, TEXT_WIDTH)
        self.widen, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norms[0](y)
        y = y + self.attend(normed, normed)
        y = y + self.read(self.norms[1](y), text)
        value, gate = self.widen(self.norms[2](y)).chunk(2, dim=-1)
        y = y + self.narrow(value * nn.functional.gelu(gate))
        return self.leave(y.transpose(1, 2).reshape(x.shape)) + x


class UNet(nn.Module):
    """Four levels down and up, attention on the first three and in the middle.

    Shapes:
        latents, out: (N, 4, 64, 64); times: (N,); text: (N, 77, 768).
    """

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(WIDTHS[0], TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH)
        )
        self.enter = nn.Conv2d(LATENT_CHANNELS, WIDTHS[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        kept, channels = [WIDTHS[0]], WIDTHS[0]
        for level, width in enumerate(WIDTHS):
            has_attention, is_last = level < len(WIDTHS) - 1, level == len(WIDTHS) - 1
            for _ in range(2):
                self.down.append(_level(channels, width, has_attention=has_attention))
                channels = width
                kept.append(width)
            if not is_last:
                self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                kept.append(width)
        self.middle = nn.ModuleList(
            [Residual(channels, channels), Transformer(channels), Residual(channels, channels)]
        )
        for level in reversed(range(len(WIDTHS))):
            for place in range(3):
                width = WIDTHS[level]
                self.up.append(_level(channels + kept.pop(), width, has_attention=level < len(WIDTHS) - 1))
                channels = width
                if place == 2 and level:
                    self.up.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.leave = nn.Conv2d(channels, LATENT_CHANNELS, 3, padding=1)
        self.frozen = nn.Parameter(torch.zeros(FROZEN, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, latents: Tensor, times: Tensor, text: Tensor) -> Tensor:
        time = self.time(_waves(times))
        x = self.enter(latents)
        kept = [x]
        for part in self.down:
            x = part(x) if isinstance(part, nn.Conv2d) else _run(part, x, time, text)
            kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, time), text), time)
        for part in self.up:
            if isinstance(part, nn.Conv2d):
                x = part(nn.functional.interpolate(x, scale_factor=2.0))
            else:
                x = _run(part, torch.cat([x, kept.pop()], dim=1), time, text)
        return self.leave(nn.functional.silu(self.norm(x)))


def _level(entering: int, width: int, *, has_attention: bool) -> nn.ModuleList:
    return nn.ModuleList([Residual(entering, width), *([Transformer(width)] if has_attention else [])])


def _run(part: nn.ModuleList, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
    x = part[0](x, time)
    return part[1](x, text) if len(part) > 1 else x


def _waves(times: Tensor) -> Tensor:
    half = WIDTHS[0] // 2
    turns = torch.exp(-math.log(10_000) * torch.arange(half, device=times.device) / half)
    angles = times[:, None].float() * turns
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _batches(batch_size: int) -> tuple[Any, ...]:
    latents = torch.randn(batch_size, LATENT_CHANNELS, LATENT_SIDE, LATENT_SIDE)
    times = torch.randint(1000, (batch_size,))
    text = torch.randn(batch_size, TEXT_LENGTH, TEXT_WIDTH, dtype=torch.bfloat16)
    return (((latents, times, text), torch.randn_like(latents)),)


DEFINITION = defined(
    "stable_diffusion_1.5",
    "U-Net of Stable Diffusion 1.5, images of 512 x 512",
    "Rombach and others 2022, arXiv:2112.10752; recipe of mila-iqia/milabench, benchmarks/diffusion",
    model=UNet,
    optimizer=partial(torch.optim.AdamW, lr=1e-4, foreach=True),
    batch_size=16,
    shape=(LATENT_CHANNELS, LATENT_SIDE, LATENT_SIDE),
    batches=_batches,
    loss=lambda out, noise: nn.functional.mse_loss(out.float(), noise.float()),
)
