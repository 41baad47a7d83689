"""ViT-B/16: an image as 196 patches, twelve pre-norm layers, a class token."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, image_batches, seeded

PATCH = 16


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each with a norm before it and a residual connection.

    Shapes:
        x, out: (N, T, width).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, eps=1e-6)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.network_norm = nn.LayerNorm(width, eps=1e-6)
        self.enter = nn.Linear(width, 4 * width)
        self.leave = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to every patch, then transform each."""
        x = x + self._attend(self.attention_norm(x))
        out: Tensor = x + self.leave(nn.functional.gelu(self.enter(self.network_norm(x))))
        return out

    def _attend(self, x: Tensor) -> Tensor:
        split = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return out


class VisionTransformer(nn.Module):
    """Patch embedding, encoder, and a head on the class token.

    Shapes:
        images: (N, 3, S, S); logits: (N, classes).
    """

    def __init__(self, side: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (side // PATCH) ** 2 + 1, width))
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Score the classes."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        token = self.class_token.expand(images.shape[0], -1, -1).type_as(patches)
        x = torch.cat((token, patches), dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


def build(
    batch_size: int,
    seed: int,
    *,
    side: int = 224,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    classes: int = 1000,
) -> Task:
    """Build the network and four batches of random images.

    Shapes:
        inputs: (N, 3, side, side) float32; targets: (N,) int64 in [0, 4); logits: (N, classes).

    Args:
        batch_size: N, images per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        side: Side of the square images [pixels], a multiple of 16.
        width: Width of the model.
        heads: Attention heads.
        layers: Encoder layers.
        classes: Number of classes.

    Source:
        Dosovitskiy and others 2020, arXiv:2010.11929, table 1; without dropout.
    """
    with seeded(seed):
        return Task(
            model=VisionTransformer(side, width, heads, layers, classes),
            batches=image_batches(batch_size, (3, side, side)),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.AdamW, lr=1e-4),
        )


WORKLOAD = Workload(
    name="vit_b16",
    summary="ViT-B/16, a vision transformer on 196 patches",
    version=1,
    sample_unit="image",
    sample_shape=(3, 224, 224),
    batches=(32, 64, 128),
    is_image=True,
    source="Dosovitskiy and others 2020, arXiv:2010.11929, table 1",
    build=build,
    tiny=partial(build, side=32, width=32, heads=2, layers=2, classes=10),
    is_classic=False,
)
