"""Compares the rate at which this host augments images with the rate at which a GPU consumes them."""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpubench.measure.feeding import CLIP_FRAMES, ImageRate, PreparationRate, measure_preparation
from gpubench.predict import estimate, question
from gpubench.probe import host, select
from gpubench.profile import profile_of
from gpubench.recommend.request import FeedRequest
from gpubench.record.store import own_runs, reference_runs
from gpubench.specs import require_spec
from gpubench.units import format_number, format_percent

# One workload is limited by arithmetic; the other consumes images several times as fast.
_CONSUMERS = ("vgg16", "resnet50")
EXAMPLES = ("nvidia-l4-24gb", "nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb")
"""The GPUs to compare with on a machine that has none."""


class Consumption(ImageRate, frozen=True, kw_only=True):
    """Images per second that one GPU consumes in training, and the basis of the figure."""

    workload: str
    gpu: str
    case: str
    basis: str


class Feeding(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one GPU, compared with the rate of this host.

    Attributes:
        cpu_share: Prepared images per second divided by consumed ones; below 1, the GPU waits.
        workers_needed: Number of worker processes that would keep up, at this host's rate per process.
        fed: Whether this host keeps up, according to the likely figures.
        certain: Whether both ends of every interval agree on ``fed``.
    """

    consumption: Consumption
    cpu_share: float
    workers_needed: int
    fed: bool
    certain: bool
    verdict: str


class FeedReport(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of this host, compared with each model on each GPU.

    Attributes:
        remark: A message about the choice of the GPU, if any.
        refused: The models and GPUs without a rate, with the reasons.
    """

    remark: str | None
    prepared: PreparationRate
    feedings: tuple[Feeding, ...]
    refused: tuple[str, ...] = ()


def feed(request: FeedRequest) -> FeedReport:
    """Time the input pipeline on this host and compare it with the measured or predicted rates of GPUs.

    Raises:
        MisuseError: If a GPU is unknown or kornia is missing.
        NoDeviceError: If this machine has an NVIDIA GPU that cannot be used.
    """
    device, remark = select.select_device("auto")
    here = EXAMPLES if device.gpu_key is None else (device.gpu_key,)
    keys = tuple(require_spec(name).key for name in request.gpus) or here
    consumptions, refused = consumed_by(keys, request.results)
    prepared = measure_preparation(host.usable_threads() or 1, frames=CLIP_FRAMES if request.clips else 1)
    feedings = tuple(feeding(consumption, prepared) for consumption in consumptions)
    return FeedReport(remark=remark, prepared=prepared, feedings=feedings, refused=refused)


def feeding(consumption: Consumption, prepared: PreparationRate) -> Feeding:
    """Compare the rate that a GPU consumes with the rate that this host prepares.

    The host's rate includes neither decoding nor the transfer to the GPU, so it is the best case.
    """
    consumed, supplied = consumption.images_per_s, prepared.images_per_s
    share = supplied / consumed
    needed = math.ceil(consumed * prepared.workers / supplied)
    extremes = ((prepared.low, consumption.high), (prepared.high, consumption.low))
    keeps_up = {None if host is None or gpu is None else host >= gpu for host, gpu in extremes}
    certain = len(keeps_up) == 1 and None not in keeps_up
    idle = format_percent(math.floor(100 * (1 - share)) / 100)
    answer = (
        "it can feed the GPU"
        if share >= 1
        else f"the GPU would wait {idle} of the time; {needed} of these workers would keep up"
    )
    doubt = "" if certain else "; not certain, as the intervals allow the opposite or are unknown"
    return Feeding(
        consumption=consumption,
        cpu_share=share,
        workers_needed=needed,
        fed=share >= 1,
        certain=certain,
        verdict=f"{consumption.workload} on {consumption.gpu} consumes {consumption.interval.text()} "
        f"images/s; this CPU prepares {format_number(supplied)} images/s: {answer}{doubt}",
    )


def consumed_by(
    gpu_keys: Sequence[str], results: Path | None = None
) -> tuple[tuple[Consumption, ...], tuple[str, ...]]:
    """Return what each model consumes on each GPU at its best AMP precision, and the refusals."""
    specs, own = [require_spec(key) for key in gpu_keys], own_runs(results)
    answers = [
        (name, key, answer)
        for name in _CONSUMERS
        for key, answer in estimate.estimate(
            question.Question(profile=profile_of(name)), specs, own=own, reference=reference_runs()
        ).items()
    ]
    found = tuple(
        Consumption(
            workload=name,
            gpu=key,
            case=answer.case.label,
            basis=answer.basis,
            images_per_s=answer.samples_per_s,
            low=answer.low,
            high=answer.high,
        )
        for name, key, answer in answers
        if not isinstance(answer, question.Refusal)
    )
    refused = (
        f"{name} on {key}: {answer.reason}"
        for name, key, answer in answers
        if isinstance(answer, question.Refusal)
    )
    return found, tuple(refused)
