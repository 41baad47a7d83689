"""Measures how many images per second the CPU prepares in the workers of a DataLoader."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from statistics import fmean
from typing import Any

import msgspec

from gpubench import children, foreign_code, stats, workload
from gpubench.errors import GpuBenchError
from gpubench.interval import Interval
from gpubench.units import Seconds

# A worker that takes longer to return its next batch counts as hung.
TIME_LIMIT_S = 60.0
# Frames in a clip of the workload ``augment_video``.
CLIP_FRAMES = 16
# Images in a worker's batch; a batch of video is one clip.
BATCH = 16
# Number of distinct random images, which are prepared over and over.
DISTINCT_IMAGES = 64
# Size of one prepared image, as float32.
TENSOR_BYTES = 4 * 3 * 224 * 224
# Size of an uncropped photograph, as it is sent to a GPU that crops it.
EIGHT_BIT_BYTES = 3 * 500 * 375
# Minimum number of timed rounds, and their shortest total time by default.
LEAST_ROUNDS = 3
TIMED_S = 6.0


class ImageRate(msgspec.Struct, frozen=True, kw_only=True):
    """Images per second with their 95 % interval; an unknown bound is None."""

    images_per_s: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> Interval:
        """The rate with its interval [images/s]."""
        return Interval(self.images_per_s, self.low, self.high)


class PreparationRate(ImageRate, frozen=True, kw_only=True):
    """Images that the workers of a DataLoader prepare per second.

    Attributes:
        workers: Number of processes that prepare images, each on one thread.
        frames: Images that share one random augmentation, 1 for photographs; the rate counts every image.
        rounds: Number of timed rounds behind the figure, each of one batch per worker.
    """

    workers: int
    frames: int
    rounds: int


def measure_preparation(workers: int, *, frames: int = 1, timed_s: Seconds = TIMED_S) -> PreparationRate:
    """Time the input pipeline on the CPU by taking batches as a training loop would.

    Args:
        workers: Processes of the DataLoader.
        frames: Images that share one random augmentation: ``CLIP_FRAMES`` for a video clip, or 1.
        timed_s: Shortest total time of the timed rounds, each of one batch per worker [s].

    Raises:
        MisuseError: If kornia is missing.
        GpuBenchError: If a worker failed, or returned nothing for ``TIME_LIMIT_S``.
    """
    workload.need_torch("the input pipeline", also=["kornia"])
    from torch.utils.data import DataLoader

    from gpubench.discovery import load_workload

    task = load_workload("augment" if frames == 1 else "augment_video").build(DISTINCT_IMAGES // frames, 0)
    inputs, samples = task.batches[0][0], BATCH // frames
    loader: Any = DataLoader(
        inputs,
        batch_size=samples,
        sampler=cycle(range(len(inputs))),
        collate_fn=partial(_prepared, task.model.eval()),
        num_workers=workers,
        timeout=TIME_LIMIT_S,
        worker_init_fn=partial(_end_with, os.getpid()),
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    times_s: list[Seconds] = []
    try:
        batches = iter(loader)
        while len(times_s) <= LEAST_ROUNDS or sum(times_s[1:]) < timed_s:
            began_s = time.perf_counter()
            for _ in range(workers):  # all workers finish at about the same time
                next(batches)
            times_s.append(time.perf_counter() - began_s)
    except (RuntimeError, OSError) as error:  # how torch reports the error of a worker
        raise GpuBenchError(
            f"the input pipeline could not be timed: {foreign_code.one_line(error)}"
        ) from error
    per_image_s = [each_s / (workers * samples * frames) for each_s in times_s[1:]]  # the first warms up
    images_per_s = 1 / fmean(per_image_s)
    rate = stats.rate_interval(images_per_s, stats.relative_half_width(per_image_s))
    return PreparationRate(
        images_per_s=images_per_s,
        low=rate.low,
        high=rate.high,
        workers=workers,
        frames=frames,
        rounds=len(per_image_s),
    )


def _end_with(parent_pid: int, _worker: int) -> None:
    # Make a worker end with its parent: torch's own check misses a parent that ends before the check starts.
    children.die_with_parent(parent_pid)


def _prepared(pipeline: Any, samples: Sequence[Any]) -> Any:
    # Prepare one batch in a worker, sample by sample, as a dataset does.
    import torch

    with torch.inference_mode():
        return torch.stack([pipeline(sample[None])[0] for sample in samples])
