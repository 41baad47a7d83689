"""Images, or frames of clips, that host and device prepare in a second: the parent's side. No torch here."""

from __future__ import annotations

import os

import msgspec

from gpubench.children import ask_child
from gpubench.errors import GpuBenchError, MisuseError
from gpubench.interval import Interval
from gpubench.models import DeviceProfile
from gpubench.needs import need_torch
from gpubench.probe.identity import child_environment
from gpubench.probe.system import usable_threads
from gpubench.units import Seconds

TIME_LIMIT_S = 180.0
DEFAULT_BATCH = 64
CLIP_FRAMES = 16
"""Of the clips of the workload ``augment_video``."""
ROUND_S = 0.25
ROUNDS = 12
WAY_LIMIT_S = 6.0
"""For the rounds of one way of preparing."""


class PreparationRate(msgspec.Struct, frozen=True, kw_only=True):
    """Images prepared per second in one way, with the 95 % interval.

    Attributes:
        way: ``cpu_one_process``, ``cpu_workers`` (a DataLoader) or ``device_batch``.
        workers: Processes that prepare.
        threads: Threads of each of them; None on a GPU.
        batch_size: Images handled at once.
        rounds: How many timed rounds the figure rests on.
    """

    way: str
    images_per_s: float
    low: float | None
    high: float | None
    rounds: int
    workers: int
    threads: int | None
    batch_size: int

    @property
    def interval(self) -> Interval:
        """The rate with its interval [images/s]."""
        return Interval(self.images_per_s, self.low, self.high)


class PipelineOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to time.

    Attributes:
        frames: Images that are drawn for as one: of a video clip; 1 is photographs.
        batch_size: Images handled at once, frames of clips among them.
    """

    device: str
    workers: int
    frames: int = 1
    batch_size: int = DEFAULT_BATCH
    round_s: Seconds = ROUND_S
    rounds: int = ROUNDS
    most_s: Seconds = WAY_LIMIT_S
    seed: int = 0


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was timed: the preparation each way, and the link from host to device.

    Attributes:
        link_bytes_per_s: Copying 8-bit images from pinned memory to the device; None on a CPU.
        photograph_bytes: One image as it comes from the decoder.
        tensor_bytes: One image as a float32 tensor, prepared.
        frames: Images that are drawn for as one, each an image in every figure; 1 is photographs.
    """

    rates: tuple[PreparationRate, ...]
    link_bytes_per_s: float | None
    photograph_bytes: int
    tensor_bytes: int
    frames: int = 1

    def rate(self, way: str) -> PreparationRate | None:
        """The rate of one way, where it was timed."""
        return next((r for r in self.rates if r.way == way), None)


class PipelineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The child's answer: a report, or one line on why there is none."""

    report: PipelineReport | None = None
    error: str | None = None


def measure_pipeline(
    device: DeviceProfile, *, workers: int | None = None, frames: int = 1, order: PipelineOrder | None = None
) -> PipelineReport:
    """Time the input pipeline on the CPU and on the device, in a child process.

    Args:
        device: Where the batch version runs.
        workers: Processes of the DataLoader; None is one for each CPU this process may use.
        frames: Images that are drawn for as one: ``CLIP_FRAMES`` of a video clip, or 1.
        order: Everything else; None is the default.

    Raises:
        MisuseError: If there are fewer than one worker, or kornia is missing.
        GpuBenchError: If the child failed.
    """
    wanted = (usable_threads() or 1) if workers is None else workers
    if wanted < 1:
        raise MisuseError(f"{wanted} workers: give a whole number from 1 up")
    need_torch("the input pipeline", install='pip install "gpubench[augment]"')
    where = "cpu" if device.is_cpu else "cuda"
    order = order or PipelineOrder(device=where, workers=wanted, frames=frames)
    asked = ask_child(
        ("-m", "gpubench.measure.pipeline_worker"),
        [msgspec.json.encode(order).decode()],
        PipelineAnswer,
        time_limit_s=TIME_LIMIT_S,
        environment={**os.environ, **child_environment(device)},
    )
    answer = asked.answer or PipelineAnswer()
    if answer.report is not None:
        return answer.report
    if answer.error is not None:
        raise MisuseError(answer.error)
    raise GpuBenchError(f"the input pipeline could not be timed: its process {asked.how}")
