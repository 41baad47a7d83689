"""The child that times the input pipeline, as ``ask_child`` runs it: its argument is an order.

The CPU comes first, so that the workers of the DataLoader are forked before anything touches the GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from statistics import fmean, median
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.measure.feeding import PipelineAnswer, PipelineOrder, PipelineReport, PreparationRate
from gpubench.measure.hardware import Hardware
from gpubench.parent import ParentChannel
from gpubench.stats import rate_interval, relative_half_width
from gpubench.units import MIB

LINK_BYTES = 256 * MIB
"""Size of a copy to the device: large enough that starting it costs nothing beside it."""
LINK_COPIES = 10
LEAST_ROUNDS = 3
LOADER_BATCH = 16
CPU_BATCH = 16
"""Small batches on the CPU: their time is in the work, and a large one takes seconds."""


def main() -> None:
    """Time what was ordered and answer."""
    parent = ParentChannel()
    (order,) = parent.arguments
    try:
        answer = PipelineAnswer(report=time_pipeline(msgspec.json.decode(order, type=PipelineOrder)))
    except MisuseError as error:
        answer = PipelineAnswer(error=str(error))
    parent.send(answer)


def time_pipeline(order: PipelineOrder) -> PipelineReport:
    """Time one process, a DataLoader, the device, and the link to it; a clip is a sample of several."""
    name = "augment" if order.frames == 1 else "augment_video"
    task = load_workload(name).build(max(1, order.batch_size // order.frames), order.seed)
    pipeline, photographs = task.model.eval(), task.batches[0][0]
    with torch.inference_mode():
        tensor = pipeline(photographs[:1])
    rates = [_one_process(order, pipeline, photographs), _workers(order, pipeline, photographs)]
    rates.append(_device_batch(order, pipeline, photographs))
    return PipelineReport(
        rates=tuple(rates),
        link_bytes_per_s=_link(Hardware(torch.device(order.device))),
        photograph_bytes=photographs[0].numel() // order.frames,
        tensor_bytes=tensor.numel() * tensor.element_size() // order.frames,
        frames=order.frames,
    )


def _one_process(order: PipelineOrder, pipeline: nn.Module, photographs: Tensor) -> PreparationRate:
    """Prepare image after image on one thread, as one worker of a loader does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    place = count()
    try:
        with torch.inference_mode():
            times = _rounds(order, lambda: _prepare(pipeline, photographs, next(place)), images=order.frames)
    finally:
        torch.set_num_threads(threads)
    return _rate("cpu_one_process", times, workers=1, threads=1, batch_size=order.frames)


def _workers(order: PipelineOrder, pipeline: nn.Module, photographs: Tensor) -> PreparationRate:
    """Prepare in worker processes, collate into batches, and take them as a training loop would."""
    samples = max(1, min(LOADER_BATCH, order.batch_size) // order.frames)
    batch_size = samples * order.frames
    loader: DataLoader[Tensor] = DataLoader(
        _Endless(pipeline, photographs),
        batch_size=samples,
        num_workers=order.workers,
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    batches = iter(loader)  # its end, when this function returns, is the end of the workers
    times = _rounds(
        order,
        # They finish together: one batch of each makes an even round.
        lambda: [next(batches) for _ in range(order.workers)],
        images=order.workers * batch_size,
    )
    return _rate("cpu_workers", times, workers=order.workers, threads=1, batch_size=batch_size)


class _Endless(IterableDataset[Tensor]):
    """Prepared images without end."""

    def __init__(self, pipeline: nn.Module, photographs: Tensor) -> None:
        self._pipeline = pipeline
        self._photographs = photographs

    def __iter__(self) -> Iterator[Tensor]:
        for place in count():
            with torch.inference_mode():
                image = _prepare(self._pipeline, self._photographs, place)
            yield image.clone()


def _prepare(pipeline: nn.Module, photographs: Tensor, place: int) -> Tensor:
    start = place % len(photographs)
    image: Tensor = pipeline(photographs[start : start + 1])[0]
    return image


def _device_batch(order: PipelineOrder, pipeline: nn.Module, photographs: Tensor) -> PreparationRate:
    """Prepare a whole batch at once where the model is trained; the images are there already."""
    hardware = Hardware(torch.device(order.device))
    device, clock = hardware.device, hardware.clock()
    most = min(CPU_BATCH, order.batch_size) if hardware.is_cpu else order.batch_size
    samples = max(1, most // order.frames)
    batch_size = samples * order.frames
    moved, on_device = pipeline.to(device), photographs[:samples].to(device)

    def work() -> None:
        moved(on_device)
        clock.synchronize()

    with torch.inference_mode():
        times = _rounds(order, work, images=batch_size)
    threads = torch.get_num_threads() if hardware.is_cpu else None
    return _rate("device_batch", times, workers=1, threads=threads, batch_size=batch_size)


def _rounds(order: PipelineOrder, work: Callable[[], Any], images: int) -> list[float]:
    """Seconds per image of each round, after one that warms up; fewer rounds where they take long."""
    times: list[float] = []
    began = time.perf_counter()
    for number in range(order.rounds + 1):
        if len(times) >= LEAST_ROUNDS and time.perf_counter() - began > order.most_s:
            break
        start, done = time.perf_counter(), 0
        while True:
            work()
            done += images
            wall_s = time.perf_counter() - start
            if wall_s >= order.round_s:
                break
        if number:
            times.append(wall_s / done)
    return times


def _rate(
    way: str, times: list[float], *, workers: int, threads: int | None, batch_size: int
) -> PreparationRate:
    mean_s = fmean(times)
    rate = rate_interval(1 / mean_s, relative_half_width(times))
    return PreparationRate(
        way=way,
        images_per_s=1 / mean_s,
        low=rate.low,
        high=rate.high,
        rounds=len(times),
        workers=workers,
        threads=threads,
        batch_size=batch_size,
    )


def _link(hardware: Hardware) -> float | None:
    """Bytes per second from pinned host memory to the device, the median of several copies; None of a CPU."""
    if hardware.is_cpu:
        return None
    clock = hardware.clock()
    host = torch.empty(LINK_BYTES, dtype=torch.uint8).pin_memory()
    there = torch.empty(LINK_BYTES, dtype=torch.uint8, device=hardware.device)

    def copy() -> None:
        there.copy_(host, non_blocking=True)

    times = [clock.time(copy) for _ in range(LINK_COPIES + 1)]
    return LINK_BYTES / median(times[1:])


if __name__ == "__main__":
    main()
