"""The work that hours and dollars are of: the job that was asked for, else a default that everybody knows."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gpubench.arrays import Floats
from gpubench.interval import Interval
from gpubench.labels import gpu_name
from gpubench.models import Job, TaskKind, WorkloadProfile
from gpubench.recommend.economics import SECONDS_PER_HOUR
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import Speeds
from gpubench.units import plural

IMAGENET_IMAGES = 1_281_167
"""Training images of ILSVRC 2012 (Russakovsky and others 2015, arXiv:1409.0575)."""
IMAGENET_EPOCHS = 90
"""Of the usual recipe for ResNet-50 (Goyal and others 2017, arXiv:1706.02677)."""
FINE_TUNING_TOKENS = 10_000_000
REFERENCE_HOURS = 24.0
"""Hours of the reference GPU, where a workload has no job that everybody knows."""


class UsualJob(msgspec.Struct, frozen=True):
    """A job by which a workload is known."""

    words: str
    samples: float


@dataclass(frozen=True, slots=True)
class Work:
    """How much is to be done.

    Attributes:
        samples: At the likely speeds.
        drawn, drawn_independent: (D,) where it is given in hours of a reference GPU: what that GPU does in
            them in each draw. None where it is a number of samples, which is certain.
        reference: Row of the reference GPU among the speeds.
    """

    job: Job
    samples: float
    drawn: Floats | None = None
    drawn_independent: Floats | None = None
    reference: int | None = None


def usual_job(profile: WorkloadProfile, task: TaskKind) -> UsualJob | None:
    """Return the job by which a workload is known; None where there is none."""
    if task is not TaskKind.TRAIN:
        return None
    if profile.name == "resnet50":
        return UsualJob(f"{IMAGENET_EPOCHS} epochs of ImageNet", float(IMAGENET_EPOCHS * IMAGENET_IMAGES))
    if profile.tokens_per_sample and not profile.is_classic:
        return UsualJob("10 million tokens", FINE_TUNING_TOKENS / profile.tokens_per_sample)
    return None


def work_of(request: RankRequest, speeds: Speeds, usual: UsualJob | None, unit: str) -> Work | None:
    """Return the work of a ranking; None with ``--relative``, and where the reference GPU has no figure.

    Args:
        request: Holds the job, where one was asked for.
        speeds: Of each GPU, the reference among them.
        usual: The job by which the workload is known.
        unit: What a sample is, in the plural.
    """
    if request.relative:
        return None
    if request.job_samples is not None:
        samples = request.job_samples
        words = f"{_many(samples)} {plural(unit)}"
        if request.epochs is not None and request.dataset_size is not None:
            words = f"{request.epochs:g} epochs of {_many(request.dataset_size)} {plural(unit)}"
        return Work(_job(request, words, samples, unit, is_default=False), samples)
    if usual is not None:
        return Work(_job(request, usual.words, usual.samples, unit), usual.samples)
    row = speeds.row_of_one(request.reference_gpu)
    if row is None:
        return None
    seconds = REFERENCE_HOURS * SECONDS_PER_HOUR
    samples = seconds * float(speeds.samples_per_s[row])
    words = f"{REFERENCE_HOURS:g} h of one {gpu_name(request.reference_gpu)}"
    job = _job(request, words, samples, unit)
    return Work(
        job=msgspec.structs.replace(
            job, reference_gpu_key=request.reference_gpu, reference_hours=REFERENCE_HOURS
        ),
        samples=samples,
        drawn=seconds * speeds.draws[row],
        drawn_independent=seconds * speeds.independent_draws[row],
        reference=row,
    )


def _job(request: RankRequest, words: str, samples: float, unit: str, *, is_default: bool = True) -> Job:
    return Job(
        words=words,
        samples=samples,
        unit=unit,
        is_default=is_default,
        startup_minutes=request.rented_startup_minutes,
    )


def _many(samples: float) -> str:
    return f"{samples:,.0f}" if samples == round(samples) and samples < 1e7 else Interval(samples).words()
