"""Blocks that several of the networks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 1000
"""Classes of ImageNet; labels are drawn from the first few of them."""
LABELS = range(4)


def loss_itself(loss: Tensor, targets: Tensor) -> Tensor:
    """Return the output of a model that computes its own loss."""
    del targets
    return loss


class FeedForward(nn.Sequential):
    """Two linear layers with a GELU between them, four times as wide inside."""

    def __init__(self, width: int, inner: int | None = None) -> None:
        inner = inner or 4 * width
        super().__init__(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class PatchEmbedding(nn.Module):
    """Cut an image into square patches and embed each.

    Shapes:
        images: (N, 3, S, S); out: (N, (S / patch)^2, width).
    """

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images).flatten(2).transpose(1, 2)


class DropPath(nn.Module):
    """Stochastic depth: in training, leave a branch out of some samples (Huang and others 2016, arXiv:1603.09382).

    Shapes:
        x, out: (N, ...).
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return x
        kept = torch.empty(x.shape[0], *(1,) * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * kept.bernoulli_(1 - self.share).div_(1 - self.share)
