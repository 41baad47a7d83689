"""Can this host feed that GPU? What a model consumes, against what is prepared and what the link carries."""

from __future__ import annotations

import math

import msgspec

from gpubench.measure.pipeline import PipelineReport
from gpubench.units import format_number, format_percent, format_si


class Consumption(msgspec.Struct, frozen=True, kw_only=True):
    """Images per second that a GPU trains on, and what that figure rests on."""

    workload: str
    gpu: str
    case: str
    basis: str
    images_per_s: float


class Feeding(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one GPU beside the input pipeline of one host.

    Attributes:
        photographs_bytes_per_s: Consumed, as 8-bit images: what the link carries if the GPU augments.
        tensors_bytes_per_s: Consumed, as float32 tensors: what the link carries if the CPU augments.
        cpu_share: Prepared by the CPU's workers over consumed; below 1 the GPU waits.
        workers_needed: Worker processes that would keep up, each at the rate of one process here.
        gpu_images_per_s: Trained where the GPU augments its own batches; None where that was not timed.
        link_share: Bytes consumed, in the form the advice sends, over what the link carries; None unknown.
        fed: Whether the CPU's workers and the link keep up.
    """

    consumption: Consumption
    photographs_bytes_per_s: float
    tensors_bytes_per_s: float
    cpu_images_per_s: float
    cpu_share: float
    workers_needed: int
    gpu_images_per_s: float | None
    link_share: float | None
    fed: bool
    verdict: str


def feeding(consumption: Consumption, report: PipelineReport, *, device_is_gpu: bool) -> Feeding:
    """Compare one consumption with what was timed.

    The CPU's rate is that of its worker processes (of one process if that is faster): decoding is not in it,
    so a verdict of "fed" is the best that the host can do. A GPU that augments its own batches does so
    between steps: its time per image is the sum of both.

    Args:
        consumption: What the model takes.
        report: What this host prepares.
        device_is_gpu: Whether the batch version was timed on the GPU that trains.
    """
    consumed = consumption.images_per_s
    one = report.rate("cpu_one_process")
    prepared = max((r.images_per_s for r in report.rates if r.way.startswith("cpu_")), default=0.0)
    batch = report.rate("device_batch") if device_is_gpu else None
    together = None if batch is None else 1 / (1 / consumed + 1 / batch.images_per_s)
    link = report.link_bytes_per_s
    found = Feeding(
        consumption=consumption,
        photographs_bytes_per_s=consumed * report.photograph_bytes,
        tensors_bytes_per_s=consumed * report.tensor_bytes,
        cpu_images_per_s=prepared,
        cpu_share=prepared / consumed,
        workers_needed=math.ceil(consumed / one.images_per_s) if one is not None else 0,
        gpu_images_per_s=together,
        link_share=None if link is None else consumed * report.tensor_bytes / link,
        fed=prepared >= consumed and (link is None or consumed * report.tensor_bytes <= link),
        verdict="",
    )
    return msgspec.structs.replace(found, verdict=_verdict(found, report))


def _verdict(found: Feeding, report: PipelineReport) -> str:
    consumption = found.consumption
    name = f"{consumption.workload} on {consumption.gpu}"
    consumed = f"{format_number(consumption.images_per_s)} images/s"
    prepared = f"{format_number(found.cpu_images_per_s)} images/s"
    if found.fed:
        return f"{name} consumes {consumed}; this CPU prepares {prepared}: it can feed it"
    if found.cpu_share >= 1:
        sent = format_si(found.tensors_bytes_per_s, "B/s")
        carried = format_si(report.link_bytes_per_s, "B/s")
        return f"{name} consumes {consumed}, {sent} of tensors; the link carries {carried}: it cannot feed it"
    idle = format_percent(math.floor(100 * (1 - found.cpu_share)) / 100)
    text = (
        f"{name} consumes {consumed}; this CPU prepares {prepared}: the GPU would wait {idle} of the time; "
        f"{found.workers_needed} such workers would keep up"
    )
    if found.gpu_images_per_s is None:
        return text
    return (
        f"{text}, or the GPU augments by itself and trains {format_number(found.gpu_images_per_s)} images/s"
    )
