"""ViT-B/16: patches of 16 x 16 pixels, twelve pre-norm layers, a class token."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import CLASSES, FeedForward, PatchEmbedding, defined

WIDTH, HEADS, LAYERS, PATCH, SIDE = 768, 12, 12, 16, 224


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a norm before it and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed_forward_norm = nn.LayerNorm(width, eps=1e-6)
        self.feed_forward = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.feed_forward(self.feed_forward_norm(x))


class VisionTransformer(nn.Module):
    """The network.

    Shapes:
        images: (N, 3, 224, 224); logits: (N, classes).
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.patches = PatchEmbedding(PATCH, WIDTH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2 + 1, WIDTH))
        self.layers = nn.Sequential(*(Layer(WIDTH, HEADS) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        token = self.class_token.expand(images.shape[0], -1, -1)
        x = torch.cat([token, self.patches(images)], dim=1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


DEFINITION = defined(
    "vit_base_patch16_224",
    "ViT-B/16 over 196 patches and a class token",
    "Dosovitskiy and others 2020, arXiv:2010.11929, table 1; attention by torch's own module, as xiaoran007/GPU-Insights, which has 10 classes",
    model=partial(VisionTransformer, CLASSES),
    optimizer=partial(torch.optim.SGD, lr=0.001),
    batch_size=64,
    shape=(3, SIDE, SIDE),
)
