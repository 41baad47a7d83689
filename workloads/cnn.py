"""The classic digit classifier of the Keras tutorials: three convolutions and a small head."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from gpubench.workload import Task, Workload, image_batches, seeded


def build(
    batch_size: int,
    seed: int,
    *,
    widths: tuple[int, int, int] = (32, 64, 64),
    hidden: int = 64,
    classes: int = 10,
) -> Task:
    """Build the network and four batches of synthetic 28 x 28 gray images.

    Shapes:
        inputs: (N, 1, 28, 28) float32; targets: (N,) int64 in [0, 4); logits: (N, classes).

    Args:
        batch_size: N, images per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        widths: Channels of the three convolutions.
        hidden: Width of the layer before the last.
        classes: Number of classes.

    Source:
        The convolutional MNIST example of the Keras documentation.
    """
    with seeded(seed):
        return Task(
            model=_model(widths, hidden, classes),
            batches=image_batches(batch_size, (1, 28, 28)),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.Adam, lr=1e-4),
        )


def _model(widths: tuple[int, int, int], hidden: int, classes: int) -> nn.Module:
    first, second, third = widths
    return nn.Sequential(
        nn.Conv2d(1, first, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(second, third, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(third * 3 * 3, hidden),  # 28 -> 26 -> 13 -> 11 -> 5 -> 3
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    )


WORKLOAD = Workload(
    name="cnn",
    summary="three small convolutions on 28 x 28 digits",
    version=1,
    sample_unit="image",
    sample_shape=(1, 28, 28),
    batches=(64, 512, 4096),
    is_image=True,
    source="the convolutional MNIST example of the Keras documentation",
    build=build,
    tiny=partial(build, widths=(4, 8, 8), hidden=8),
)
