"""Blocks that several of the networks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, image_batches, seeded

CLASSES = 1000
"""Classes of ImageNet; labels are drawn from the first few of them."""
LABELS = range(4)


def defined(
    name: str,
    summary: str,
    source: str,
    *,
    model: Callable[[], nn.Module],
    optimizer: Callable[..., torch.optim.Optimizer],
    batch_size: int,
    shape: tuple[int, ...] = (3, 224, 224),
    unit: str = "image",
    batches: Callable[[int], tuple[Any, ...]] | None = None,
    count: int = 4,
    loss: Callable[..., Tensor] = nn.functional.cross_entropy,
) -> Workload:
    """Define a network with its training step.

    Args:
        name, summary, source: Of the workload.
        model: Makes the network.
        optimizer: Makes the optimizer from the parameters.
        batch_size: The batch of the reading or the row.
        shape: Shape of a sample.
        unit: Name of a sample.
        batches: Makes the batches of a size; by default ``count`` batches of images of four classes.
        count: Number of those batches.
        loss: Takes outputs and targets.
    """

    def build(batch_size: int, seed: int) -> Task:
        with seeded(seed):
            made = batches(batch_size) if batches else image_batches(batch_size, shape, LABELS, count=count)
            return Task(model=model(), batches=made, loss=loss, optimizer=optimizer)

    return Workload(
        name=name,
        summary=summary,
        version=1,
        sample_unit=unit,
        sample_shape=shape,
        batches=(batch_size,),
        is_image=unit == "image",
        source=source,
        build=build,
    )


def same_tokens(vocabulary: int, length: int) -> Callable[[int], tuple[Any, ...]]:
    """Return what makes one batch of tokens that are their own targets."""

    def batches(batch_size: int) -> tuple[Any, ...]:
        tokens = torch.randint(vocabulary, (batch_size, length))
        return ((tokens, tokens.clone()),)

    return batches


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
