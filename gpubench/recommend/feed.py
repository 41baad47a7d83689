"""Whether this host can feed a GPU with augmented images: what is prepared, against what is consumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpubench.measure.feeding import (
    CLIP_FRAMES,
    Consumption,
    Feeding,
    PipelineReport,
    feeding,
    measure_pipeline,
)
from gpubench.options import check_fields
from gpubench.predict.estimate import estimate
from gpubench.predict.question import Question, Refusal
from gpubench.probe.select import select_device
from gpubench.profile import profile_of
from gpubench.recommend.request import FeedRequest
from gpubench.record.store import own_runs, reference_runs
from gpubench.specs import require_spec

CONSUMERS = ("vgg16", "resnet50")
"""One bound by arithmetic, one that takes images several times as fast."""
EXAMPLES = ("nvidia-l4-24gb", "nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb")
"""GPUs to answer for where there is none here and none is named."""


class FeedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What this host prepares, and one answer for each model on each GPU."""

    device: str
    remark: str | None
    pipeline: PipelineReport
    feedings: tuple[Feeding, ...]
    refused: tuple[str, ...] = ()


def feed(request: FeedRequest | None = None) -> FeedReport:
    """Time the input pipeline here and compare it with what GPUs consume, measured or predicted.

    Raises:
        MisuseError: If a GPU is unknown or kornia is missing.
        NoDeviceError: If a device was named that is not there.
    """
    request = check_fields(request or FeedRequest())
    device, remark = select_device(request.device)
    here = EXAMPLES if device.gpu_key is None else (device.gpu_key,)
    keys = tuple(require_spec(name).key for name in request.gpus) or here
    consumptions, refused = consumed_by(keys, request.results)
    frames = CLIP_FRAMES if request.clips else 1
    pipeline = measure_pipeline(device, workers=request.workers, frames=frames)
    return FeedReport(
        device=device.name or device.backend,
        remark=remark,
        pipeline=pipeline,
        feedings=tuple(
            feeding(c, pipeline, device_is_gpu=not device.is_cpu and c.gpu == device.gpu_key)
            for c in consumptions
        ),
        refused=refused,
    )


def consumed_by(
    gpu_keys: Sequence[str], results: Path | None = None
) -> tuple[tuple[Consumption, ...], tuple[str, ...]]:
    """Images per second of each consumer on each GPU at its best AMP, and a line for each refusal."""
    own, reference = own_runs(results), reference_runs()
    specs = [require_spec(key) for key in gpu_keys]
    found, refused = [], []
    for name in CONSUMERS:
        answers = estimate(Question(profile=profile_of(name)), specs, own=own, reference=reference)
        for key, answer in answers.items():
            if isinstance(answer, Refusal):
                refused.append(f"{name} on {key}: {answer.reason}")
            else:
                found.append(
                    Consumption(
                        workload=name,
                        gpu=key,
                        case=answer.case.label,
                        basis=answer.basis,
                        images_per_s=answer.samples_per_s,
                        low=answer.low,
                        high=answer.high,
                    )
                )
    return tuple(found), tuple(refused)
