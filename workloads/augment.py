"""The input pipeline of an image classifier: 8-bit photographs to augmented, normalized 224 x 224 tensors.

It only runs forward, and needs kornia (the extra ``augment``). It does not include JPEG decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpubench.errors import MisuseError
from gpubench.installing import pip_install
from gpubench.models import TaskKind
from gpubench.workload import BATCH_COUNT, Task, Workload, seeded

PHOTOGRAPH = (375, 500)
"""Height and width of a typical ImageNet photograph [pixels]."""
CROP = 224


class Augmentation(nn.Module):
    """Randomly crop and resize, flip, rotate and jitter each image; then convert to YCbCr and normalize.

    Shapes:
        images: (N, 3, H, W) uint8; out: (N, 3, crop, crop) float32.
    """

    def __init__(self, crop: int) -> None:
        super().__init__()
        library = kornia_of("augment")
        augmentation = library.augmentation
        self.drawn = augmentation.AugmentationSequential(*transforms(augmentation, crop), data_keys=["input"])
        self.change_space = library.color.rgb_to_ycbcr
        self.normalize = augmentation.Normalize(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

    def forward(self, images: Tensor) -> Tensor:
        """Augment a batch, with separate random parameters for each image."""
        augmented = self.drawn(images.float() / 255)
        out: Tensor = self.normalize(self.change_space(augmented))
        return out


def transforms(augmentation: Any, crop: int) -> tuple[nn.Module, ...]:
    """Return the random operations from kornia's module: crop and resize, flip, rotation, colors."""
    return (
        augmentation.RandomResizedCrop((crop, crop), cropping_mode="resample"),  # one kernel for all images
        augmentation.RandomHorizontalFlip(p=0.5),
        augmentation.RandomRotation(15.0),
        augmentation.ColorJitter(0.4, 0.4, 0.4, 0.1),
    )


def kornia_of(name: str) -> Any:
    """Import kornia for a workload.

    Raises:
        MisuseError: If it is not installed.
    """
    try:
        import kornia
    except ModuleNotFoundError as error:
        raise MisuseError(f"workload {name}: kornia is not installed; {pip_install('kornia')}") from error
    except ImportError as error:
        raise MisuseError(f"workload {name}: kornia is not compatible with this torch: {error}") from error
    return kornia


def share_finite(outputs: Tensor, _targets: Tensor) -> Tensor:
    """Return the share of finite values, which is 1 on every device, for any random parameters."""
    return outputs.isfinite().float().mean()


def build(batch_size: int, seed: int, *, photograph: Sequence[int] = PHOTOGRAPH, crop: int = CROP) -> Task:
    """Build the pipeline and four batches of random 8-bit color images.

    Shapes:
        inputs: (N, 3, 375, 500) uint8; targets: (N,) int64, unused; outputs: (N, 3, 224, 224) float32.

    Args:
        batch_size: N, images per step.
        seed: Fixes the images; equal seeds give equal tasks.
        photograph: Height and width of an image before the augmentation [pixels].
        crop: Side of the square image after it [pixels].
    """
    with seeded(seed):
        return Task(
            model=Augmentation(crop),
            batches=tuple(
                (torch.randint(256, (batch_size, 3, *photograph)).byte(), torch.zeros(batch_size).long())
                for _ in range(BATCH_COUNT)
            ),
            loss=share_finite,
            optimizer=torch.optim.SGD,
        )


WORKLOAD = Workload(
    name="augment",
    summary="input pipeline: 500 x 375 photographs to augmented 224 x 224",
    version=1,
    sample_unit="image",
    sample_shape=(3, *PHOTOGRAPH),
    batches=(64, 256),
    is_image=False,  # the input does not go to a convolution, so there is no memory format to choose
    source="the usual ImageNet training augmentation, on kornia",
    build=build,
    tiny=partial(build, photograph=(24, 32), crop=16),
    tasks=(TaskKind.INFER,),
)
