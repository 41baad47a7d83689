"""The input pipeline of a video classifier: clips of 8-bit frames to augmented, normalized 224 x 224 tensors.

It only runs forward, and needs kornia (the extra ``augment``). It does not include video decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gpubench.models import TaskKind
from gpubench.workload import BATCH_COUNT, Task, Workload, seeded
from gpubench_workloads.augment import CROP, kornia_of, share_finite, transforms

FRAMES = 16
"""Frames per clip, as in the training of video classifiers (Tran and others 2015, arXiv:1412.0767)."""
FRAME = (256, 340)
"""Height and width of a frame in common copies of Kinetics: 256 on the short side [pixels]."""


class ClipAugmentation(nn.Module):
    """Randomly crop and resize, flip, rotate and jitter each clip, with the same parameters for all frames.

    Then convert to YCbCr and normalize, with the frames of all clips as one batch of images.

    Shapes:
        clips: (N, T, 3, H, W) uint8; out: (N, T, 3, crop, crop) float32.
    """

    def __init__(self, crop: int) -> None:
        super().__init__()
        library = kornia_of("augment_video")
        augmentation = library.augmentation
        self.drawn = augmentation.VideoSequential(
            *transforms(augmentation, crop), data_format="BTCHW", same_on_frame=True
        )
        self.change_space = library.color.rgb_to_ycbcr
        self.normalize = augmentation.Normalize(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

    def forward(self, clips: Tensor) -> Tensor:
        """Augment a batch of clips, with separate random parameters for each clip."""
        augmented = self.drawn(clips.float() / 255)
        frames: Tensor = self.normalize(self.change_space(augmented.flatten(0, 1)))
        return frames.unflatten(0, clips.shape[:2])


def build(
    batch_size: int, seed: int, *, frames: int = FRAMES, frame: Sequence[int] = FRAME, crop: int = CROP
) -> Task:
    """Build the pipeline and four batches of clips of random 8-bit color frames.

    Shapes:
        inputs: (N, 16, 3, 256, 340) uint8; targets: (N,) int64, unused.
        outputs: (N, 16, 3, 224, 224) float32.

    Args:
        batch_size: N, clips per step.
        seed: Fixes the frames; equal seeds give equal tasks.
        frames: T, frames of a clip.
        frame: Height and width of a frame before the augmentation [pixels].
        crop: Side of the square frame after it [pixels].
    """
    with seeded(seed):
        return Task(
            model=ClipAugmentation(crop),
            batches=tuple(
                (
                    torch.randint(256, (batch_size, frames, 3, *frame), dtype=torch.uint8),
                    torch.zeros(batch_size).long(),
                )
                for _ in range(BATCH_COUNT)
            ),
            loss=share_finite,
            optimizer=torch.optim.SGD,
        )


WORKLOAD = Workload(
    name="augment_video",
    summary="input pipeline: clips of 16 frames, 340 x 256, to augmented 224 x 224",
    version=1,
    sample_unit="clip",
    sample_shape=(FRAMES, 3, *FRAME),
    batches=(4, 16),
    is_image=False,  # the input does not go to a convolution, so there is no memory format to choose
    source="the usual augmentation of video classifiers, one draw a clip, on kornia",
    build=build,
    tiny=partial(build, frames=4, frame=(24, 32), crop=16),
    tasks=(TaskKind.INFER,),
)
