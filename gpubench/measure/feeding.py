"""Can this host feed that GPU? What it prepares, against what a model consumes and the link carries.

Images, or frames of clips, are prepared in a child, ``pipeline_worker``; this is the parent's side, without
torch. The CPU augments and sends float32 tensors, or the GPU augments and the link carries 8-bit photographs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import msgspec

from gpubench.children import ask_child
from gpubench.errors import GpuBenchError, MisuseError
from gpubench.interval import Interval
from gpubench.models import DeviceProfile
from gpubench.models.workload import PHOTOGRAPH_SHAPE
from gpubench.probe.identity import child_environment
from gpubench.probe.system import usable_threads
from gpubench.profile import load_profiles
from gpubench.units import Seconds, format_number, format_percent, format_si
from gpubench.workload import need_torch

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
    need_torch("the input pipeline", beside=["kornia"])
    order = order or PipelineOrder(device=device.torch_type, workers=wanted, frames=frames)
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


TENSOR_BYTES = 4
"""An element as float32 [B]."""


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


class Consumption(msgspec.Struct, frozen=True, kw_only=True):
    """Images per second that a GPU trains on, with its interval (None is unknown), and what it rests on."""

    workload: str
    gpu: str
    case: str
    basis: str
    images_per_s: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> Interval:
        """The rate with its interval [images/s]."""
        return Interval(self.images_per_s, self.low, self.high)


class Feeding(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one GPU beside the input pipeline of one host.

    Attributes:
        photographs_bytes_per_s: Consumed, as 8-bit images: what the link carries if the GPU augments.
        tensors_bytes_per_s: Consumed, as float32 tensors: what the link carries if the CPU augments.
        cpu_share: Prepared by the CPU's workers over consumed; below 1 the GPU waits.
        workers_needed: Worker processes that would keep up, each at the rate of one process here.
        gpu_images_per_s: Trained where the GPU augments its own batches, at most what the link carries of
            photographs; None where that was not timed.
        tensors_link_share: Tensors consumed over what the link carries; None where that was not measured.
        photographs_link_share: The same for photographs.
        fed: Whether the CPU's workers and the link keep up; None where the link alone decides and is unknown.
        certain: Whether both ends of every interval say the same.
    """

    consumption: Consumption
    photographs_bytes_per_s: float
    tensors_bytes_per_s: float
    cpu_images_per_s: float
    cpu_share: float
    workers_needed: int
    gpu_images_per_s: float | None
    tensors_link_share: float | None
    photographs_link_share: float | None
    fed: bool | None
    certain: bool
    verdict: str


def feeding(consumption: Consumption, report: PipelineReport, *, device_is_gpu: bool) -> Feeding:
    """Compare one consumption with what was timed.

    The CPU's rate is that of its worker processes (of one process if that is faster): decoding is not in it,
    so a verdict of "fed" is the best that the host can do. A GPU that augments its own batches does so
    between steps: its time per image is the sum of both, and the link must carry the photographs.

    Args:
        consumption: What the model takes.
        report: What this host prepares.
        device_is_gpu: Whether the batch version was timed on the GPU that trains.
    """
    consumed = consumption.images_per_s
    one = report.rate("cpu_one_process")
    best = max((r for r in report.rates if r.way.startswith("cpu_")), key=lambda r: r.images_per_s)
    link = report.link_bytes_per_s
    augmented, batch = None, report.rate("device_batch") if device_is_gpu else None
    if batch is not None:
        carried = math.inf if link is None else link / report.photograph_bytes
        augmented = min(1 / (1 / consumed + 1 / batch.images_per_s), carried)
    ends = (consumption.low, consumption.high, best.low, best.high)
    favorable = _keeps_up(consumption.low, best.high, report)
    adverse = _keeps_up(consumption.high, best.low, report)
    found = Feeding(
        consumption=consumption,
        photographs_bytes_per_s=consumed * report.photograph_bytes,
        tensors_bytes_per_s=consumed * report.tensor_bytes,
        cpu_images_per_s=best.images_per_s,
        cpu_share=best.images_per_s / consumed,
        workers_needed=math.ceil(consumed / one.images_per_s) if one is not None else 0,
        gpu_images_per_s=augmented,
        tensors_link_share=None if link is None else consumed * report.tensor_bytes / link,
        photographs_link_share=None if link is None else consumed * report.photograph_bytes / link,
        fed=_keeps_up(consumed, best.images_per_s, report),
        certain=None not in ends and favorable == adverse,
        verdict="",
    )
    return msgspec.structs.replace(found, verdict=_verdict(found, report))


def _keeps_up(consumed: float | None, prepared: float | None, report: PipelineReport) -> bool | None:
    """Whether CPU and link keep up with a consumption; None where that is not known."""
    if consumed is None or prepared is None:
        return None
    if prepared < consumed:
        return False
    link = report.link_bytes_per_s
    return None if link is None else consumed * report.tensor_bytes <= link


def _verdict(found: Feeding, report: PipelineReport) -> str:
    consumption = found.consumption
    sent = f"{format_si(found.tensors_bytes_per_s, 'B/s')} of tensors"
    if found.fed:
        answer = "it can feed it"
    elif found.fed is None:
        answer = f"enough, but whether the link carries {sent} is not known: none was measured here"
    elif found.cpu_share >= 1:
        carried = format_si(report.link_bytes_per_s, "B/s")
        answer = f"the link carries {carried} and not {sent}: it cannot feed it{_alternative(found)}"
    else:
        idle = format_percent(math.floor(100 * (1 - found.cpu_share)) / 100)
        too_much = (found.tensors_link_share or 0) > 1
        link = f", if the link carried {sent}, which it does not" if too_much else ""
        answer = (
            f"the GPU would wait {idle} of the time; {found.workers_needed} such workers would keep up{link}"
            f"{_alternative(found)}"
        )
    text = (
        f"{consumption.workload} on {consumption.gpu} consumes {consumption.interval.text()} images/s; this "
        f"CPU prepares {format_number(found.cpu_images_per_s)} images/s: {answer}"
    )
    doubt = "" if found.certain else "; not certain, as the intervals allow the opposite or are unknown"
    return f"{text}{doubt}"


def _alternative(found: Feeding) -> str:
    """What the GPU trains if it augments by itself."""
    if found.gpu_images_per_s is None:
        return ""
    capped = " (all that the link carries of photographs)" if (found.photographs_link_share or 0) > 1 else ""
    unknown = ", if the link carries the photographs" if found.photographs_link_share is None else ""
    rate = format_number(found.gpu_images_per_s)
    return f", or the GPU augments by itself and trains {rate} images/s{capped}{unknown}"
