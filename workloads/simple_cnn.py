"""The classic small classifier of the PyTorch tutorials: two padded convolutions and a wider head."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from gpubench.workload import Task, Workload, image_batches, seeded


def build(
    batch_size: int,
    seed: int,
    *,
    widths: tuple[int, int] = (32, 64),
    hidden: int = 128,
    classes: int = 10,
) -> Task:
    """Build the network and four batches of synthetic 28 x 28 color images.

    Shapes:
        inputs: (N, 3, 28, 28) float32; targets: (N,) int64 in [0, 4); logits: (N, classes).

    Args:
        batch_size: N, images per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        widths: Channels of the two convolutions.
        hidden: Width of the layer before the last.
        classes: Number of classes.
    """
    with seeded(seed):
        return Task(
            model=_model(widths, hidden, classes),
            batches=image_batches(batch_size, (3, 28, 28)),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.Adam, lr=1e-4),
        )


def _model(widths: tuple[int, int], hidden: int, classes: int) -> nn.Module:
    first, second = widths
    return nn.Sequential(
        nn.Conv2d(3, first, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * 7 * 7, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    )


WORKLOAD = Workload(
    name="simple_cnn",
    summary="two padded convolutions on 28 x 28 color images",
    version=1,
    sample_unit="image",
    sample_shape=(3, 28, 28),
    batches=(64, 512, 4096),
    is_image=True,
    source="the image classification tutorials of PyTorch, at the size of MNIST",
    build=build,
    tiny=partial(build, widths=(4, 8), hidden=16),
)
