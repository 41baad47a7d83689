"""Can this host feed that GPU? What a model consumes, against what is prepared and what the link carries.

The CPU augments and sends float32 tensors, or the GPU augments and the link carries 8-bit photographs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gpubench.interval import Interval
from gpubench.measure.pipeline import PipelineReport
from gpubench.models.workload import PHOTOGRAPH_SHAPE
from gpubench.profile import load_profiles
from gpubench.units import format_number, format_percent, format_si

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
        gpu_images_per_s=_augmented_by_gpu(consumed, report) if device_is_gpu else None,
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


def _augmented_by_gpu(consumed: float, report: PipelineReport) -> float | None:
    batch = report.rate("device_batch")
    if batch is None:
        return None
    together = 1 / (1 / consumed + 1 / batch.images_per_s)
    link = report.link_bytes_per_s
    return together if link is None else min(together, link / report.photograph_bytes)


def _verdict(found: Feeding, report: PipelineReport) -> str:
    consumption = found.consumption
    consumed = consumption.interval.text()
    text = (
        f"{consumption.workload} on {consumption.gpu} consumes {consumed} images/s; this CPU prepares "
        f"{format_number(found.cpu_images_per_s)} images/s: {_answer(found, report)}"
    )
    return (
        text if found.certain else f"{text}; not certain, as the intervals allow the opposite or are unknown"
    )


def _answer(found: Feeding, report: PipelineReport) -> str:
    sent = f"{format_si(found.tensors_bytes_per_s, 'B/s')} of tensors"
    if found.fed:
        return "it can feed it"
    if found.fed is None:
        return f"enough, but whether the link carries {sent} is not known: none was measured here"
    if found.cpu_share >= 1:
        carried = format_si(report.link_bytes_per_s, "B/s")
        return f"the link carries {carried} and not {sent}: it cannot feed it{_alternative(found)}"
    idle = format_percent(math.floor(100 * (1 - found.cpu_share)) / 100)
    link = "" if (found.tensors_link_share or 0) <= 1 else f", if the link carried {sent}, which it does not"
    return (
        f"the GPU would wait {idle} of the time; {found.workers_needed} such workers would keep up{link}"
        f"{_alternative(found)}"
    )


def _alternative(found: Feeding) -> str:
    """What the GPU trains if it augments by itself."""
    if found.gpu_images_per_s is None:
        return ""
    capped = " (all that the link carries of photographs)" if (found.photographs_link_share or 0) > 1 else ""
    unknown = ", if the link carries the photographs" if found.photographs_link_share is None else ""
    rate = format_number(found.gpu_images_per_s)
    return f", or the GPU augments by itself and trains {rate} images/s{capped}{unknown}"
