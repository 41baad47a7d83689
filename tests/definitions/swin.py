"""Swin-B as in timm in 2022: windows of 7 x 7, shifted in every other layer, with stored attention scores."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import CLASSES, DropPath, FeedForward, defined

SIDE, PATCH, WINDOW, DROP = 224, 4, 7, 0.1
DEPTHS, WIDTH, HEAD_WIDTH = (2, 2, 18, 2), 128, 32
PIXELS = WINDOW**2


class WindowAttention(nn.Module):
    """Attention inside each window, with a learned bias for every distance between two pixels.

    Shapes:
        windows, out: (N * windows, 49, width); mask: (windows, 49, 49), for windows with unconnected parts.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.distances = nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, self.heads))
        self.register_buffer("places", torch.zeros(PIXELS * PIXELS, dtype=torch.int64), persistent=False)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, windows: Tensor, mask: Tensor | None) -> Tensor:
        count, _, width = windows.shape
        split = self.query_key_value(windows).reshape(count, PIXELS, 3, self.heads, HEAD_WIDTH)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = (query * HEAD_WIDTH**-0.5) @ key.transpose(-2, -1)
        bias = self.distances[self.places].view(PIXELS, PIXELS, self.heads).permute(2, 0, 1).contiguous()
        scores = scores + bias
        if mask is not None:
            by_image = scores.view(-1, len(mask), self.heads, PIXELS, PIXELS) + mask[:, None]
            scores = by_image.view(scores.shape)
        seen = scores.softmax(-1) @ value
        return self.output(seen.transpose(1, 2).reshape(count, PIXELS, width))


class Layer(nn.Module):
    """Attention in windows, shifted by half a window in every other layer, and a feed-forward network.

    Shapes:
        x, out: (N, side, side, width).
    """

    def __init__(self, width: int, side: int, *, is_shifted: bool, drop: float) -> None:
        super().__init__()
        self.shift = WINDOW // 2 if is_shifted and side > WINDOW else 0
        self.attention_norm = nn.LayerNorm(width)
        self.attention = WindowAttention(width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width)
        self.drop_path = DropPath(drop)
        mask = torch.zeros((side // WINDOW) ** 2, PIXELS, PIXELS) if self.shift else None
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self._attend(self.attention_norm(x)))
        return x + self.drop_path(self.feed_forward(self.feed_forward_norm(x)))

    def _attend(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        across = side // WINDOW
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        windows = x.view(batch, across, WINDOW, across, WINDOW, width).transpose(2, 3)
        seen = self.attention(windows.reshape(-1, PIXELS, width), self.mask)
        x = seen.view(batch, across, across, WINDOW, WINDOW, width).transpose(2, 3).reshape(x.shape)
        return x.roll((self.shift, self.shift), (1, 2)) if self.shift else x


class Merge(nn.Module):
    """Four neighboring pixels become one of twice the width.

    Shapes:
        x: (N, side, side, width); out: (N, side / 2, side / 2, 2 * width).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, dim=-1)))


class Swin(nn.Module):
    """The network.

    Shapes:
        images: (N, 3, 224, 224); logits: (N, classes).
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.patch_norm = nn.LayerNorm(WIDTH)
        layers: list[nn.Module] = []
        last = sum(DEPTHS) - 1
        shares = iter(DROP * place / last for place in range(last + 1))
        width, side = WIDTH, SIDE // PATCH
        for stage, depth in enumerate(DEPTHS):
            if stage:
                layers.append(Merge(width))
                width, side = 2 * width, side // 2
            layers += [
                Layer(width, side, is_shifted=place % 2 == 1, drop=next(shares)) for place in range(depth)
            ]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_norm(self.patches(images).permute(0, 2, 3, 1))
        return self.head(self.norm(self.layers(x)).mean((1, 2)))


DEFINITION = defined(
    "swin_base_patch4_window7_224",
    "Swin-B, windows of 7 x 7, attention not fused",
    "Liu and others 2021, arXiv:2103.14030, Swin-B; stochastic depth 0.1 as timm",
    model=partial(Swin, CLASSES),
    optimizer=partial(torch.optim.SGD, lr=1e-4, momentum=0.9),
    batch_size=64,
    shape=(3, SIDE, SIDE),
)
