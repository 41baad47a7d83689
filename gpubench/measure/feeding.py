"""How many images a second the CPU prepares in the workers of one DataLoader; a child runs this file."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec

from gpubench.children import ask_child
from gpubench.errors import GpuBenchError, MisuseError
from gpubench.interval import Interval
from gpubench.models.workload import PHOTOGRAPH_SHAPE
from gpubench.parent import ParentChannel
from gpubench.probe.system import usable_threads
from gpubench.profile import load_profiles
from gpubench.stats import rate_interval, relative_half_width
from gpubench.units import Seconds
from gpubench.workload import need_torch

TIME_LIMIT_S = 180.0
CLIP_FRAMES = 16
"""Of the clips of the workload ``augment_video``."""
BATCH = 16
"""Images that a worker hands over at once, or frames of one clip."""
DRAWN = 64
"""Different images that are prepared over and over."""
LEAST_ROUNDS = 3
TIMED_S = 6.0
TENSOR_BYTES = 4
"""An element as float32 [B]."""


class PreparationRate(msgspec.Struct, frozen=True, kw_only=True):
    """Images that the workers of a DataLoader prepare per second, with the 95 % interval.

    Attributes:
        workers: Processes that prepare, each on one thread.
        frames: Images that are drawn for as one, each an image in the rate; 1 is photographs.
        rounds: How many timed rounds, of a batch from each worker, the figure rests on.
    """

    images_per_s: float
    low: float | None
    high: float | None
    workers: int
    frames: int
    rounds: int

    @property
    def interval(self) -> Interval:
        """The rate with its interval [images/s]."""
        return Interval(self.images_per_s, self.low, self.high)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to time."""

    workers: int
    frames: int = 1
    timed_s: Seconds = TIMED_S


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The child's answer: a rate, or one line on why there is none."""

    rate: PreparationRate | None = None
    error: str = ""


def measure_preparation(
    workers: int | None = None, *, frames: int = 1, timed_s: Seconds = TIMED_S
) -> PreparationRate:
    """Time the input pipeline on the CPU.

    Args:
        workers: Processes of the DataLoader; None is one for each CPU this process may use.
        frames: Images that are drawn for as one: ``CLIP_FRAMES`` of a video clip, or 1.
        timed_s: How long rounds are timed [s].

    Raises:
        MisuseError: If there are fewer than one worker, or kornia is missing.
        GpuBenchError: If the child failed.
    """
    wanted = (usable_threads() or 1) if workers is None else workers
    if wanted < 1:
        raise MisuseError(f"{wanted} workers: give a whole number from 1 up")
    need_torch("the input pipeline", beside=["kornia"])
    order = msgspec.json.encode(Order(workers=wanted, frames=frames, timed_s=timed_s)).decode()
    asked = ask_child(("-m", __name__), [order], Answer, time_limit_s=TIME_LIMIT_S)
    if asked.answer is None:
        raise GpuBenchError(f"the input pipeline could not be timed: its process {asked.how}")
    if asked.answer.rate is None:
        raise MisuseError(asked.answer.error)
    return asked.answer.rate


def tensor_bytes(sample_shape: Sequence[int]) -> int:
    """Bytes of one prepared sample, as float32."""
    return TENSOR_BYTES * math.prod(sample_shape)


def eight_bit_bytes(sample_shape: Sequence[int]) -> int:
    """Bytes of one sample as 8-bit values, for a device that prepares it.

    Where the pipeline crops, that is the whole photograph and no quarter of the tensor: 562,500 bytes against
    602,112. An image that is used as it is has a byte for each element.
    """
    if tuple(sample_shape) == PHOTOGRAPH_SHAPE:
        return math.prod(load_profiles()["augment"].sample_shape)
    return math.prod(sample_shape)


# --- in the child ----------------------------------------------------------------------------------------


class Prepared:
    """Prepared samples without end, as a DataLoader takes them."""

    def __init__(self, pipeline: Any, drawn: Any) -> None:
        self._pipeline = pipeline
        self._drawn = drawn

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, place: int) -> Any:
        import torch

        start = place % len(self._drawn)
        with torch.inference_mode():
            return self._pipeline(self._drawn[start : start + 1])[0].clone()


def time_loader(order: Order) -> PreparationRate:
    """Take batches as a training loop would, and time rounds of one batch from each worker."""
    from torch.utils.data import DataLoader

    from gpubench.discovery import load_workload

    task = load_workload("augment" if order.frames == 1 else "augment_video").build(DRAWN // order.frames, 0)
    samples = BATCH // order.frames
    dataset: Any = Prepared(task.model.eval(), task.batches[0][0])
    loader = DataLoader(
        dataset,
        batch_size=samples,
        num_workers=order.workers,
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    batches = iter(loader)
    times_s: list[Seconds] = []
    images = order.workers * samples * order.frames
    while len(times_s) <= LEAST_ROUNDS or sum(times_s[1:]) < order.timed_s:
        began_s = time.perf_counter()
        for _ in range(order.workers):  # they finish together
            next(batches)
        times_s.append(time.perf_counter() - began_s)
    timed_s = [each_s / images for each_s in times_s[1:]]  # the first one warms up
    rate = rate_interval(1 / fmean(timed_s), relative_half_width(timed_s))
    return PreparationRate(
        images_per_s=1 / fmean(timed_s),
        low=rate.low,
        high=rate.high,
        workers=order.workers,
        frames=order.frames,
        rounds=len(timed_s),
    )


def main() -> None:
    """Time what was ordered and answer."""
    parent = ParentChannel()
    try:
        answer = Answer(rate=time_loader(msgspec.json.decode(parent.arguments[0], type=Order)))
    except MisuseError as error:
        answer = Answer(error=str(error))
    parent.send(answer)


if __name__ == "__main__":
    main()
