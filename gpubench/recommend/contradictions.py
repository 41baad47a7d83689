"""Checks a request for contradictions before anything is read or ranked; each error is one line."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import TaskKind
from gpubench.options import typed
from gpubench.predict.question import task_of
from gpubench.profile import known_profile
from gpubench.recommend.request import HOUR_WORTH_USD, RankRequest

SHARES_TOLERANCE = 0.011
"""Tolerance on the sum of the shares of a mix: three times 0.33 is 0.99."""


def check(request: RankRequest) -> RankRequest:
    """Return the request if it is valid.

    Raises:
        MisuseError: If a number is outside its limits, a choice is unknown, or two options contradict.
    """
    request = _at_its_task(request)
    for is_wrong, why in (
        *_of_the_task(request),
        *_of_money(request),
        *_of_the_job(request),
        *_of_the_mix(request),
    ):
        if is_wrong:
            raise MisuseError(why)
    return request


def _at_its_task(request: RankRequest) -> RankRequest:
    """Return the request, with inference as the task if the workload is never trained.

    Raises:
        MisuseError: If training was asked for explicitly.
    """
    known = [known_profile(name) for name in request.workload_names]
    if any(each is None or each.task_for("train") is TaskKind.TRAIN for each in known):
        return request
    for profile in filter(None, known):
        task_of(profile, request.task, named="task" in request.asked)
    return msgspec.structs.replace(request, task="infer")


def _of_the_task(asked: RankRequest) -> Iterator[tuple[bool, str]]:
    """Yield each possible error of the task: whether it applies, and its text. Similar functions follow."""
    late, infers = asked.max_latency_ms is not None, asked.task == "infer"
    yield late and not infers, "--max-latency-ms is for inference: add --task infer"
    yield (
        late and asked.batch_size == "max",
        "--max-latency-ms chooses the batch: leave out --batch-size max",
    )
    yield (
        infers and asked.jobs == "ddp",
        "the setting jobs ddp trains one model over all GPUs: it says nothing of --task infer",
    )


def _of_money(asked: RankRequest) -> Iterator[tuple[bool, str]]:
    for field, most in (("utilization", 1.0), ("resale", 1.0), ("tariff", 10.0)):
        low, likely, high = getattr(asked, field)
        yield (
            not 0 <= low <= likely <= high <= most or (field == "utilization" and low == 0),
            f"the setting {field} {low:g}-{high:g} must lie within 0 to {most:g}, the low end first",
        )
    rents, tax, lost = asked.rent_or_buy == "rent", asked.tax, asked.spot_lost
    yield rents and bool(asked.own), "rent contradicts --have; leave one of them out"
    yield (
        rents and asked.max_purchase_usd is not None,
        "rent contradicts --max-purchase-usd; leave one of them out",
    )
    yield tax >= 1, f"the setting tax {tax:g} is a share and must be below 1: {tax:g} % is {tax / 100:g}"
    yield (
        bool(lost) and not asked.spot,
        f"the setting spot-lost {lost or 0:g} is of spot prices: add --spot, or leave it out",
    )


def _of_the_job(asked: RankRequest) -> Iterator[tuple[bool, str]]:
    yield (
        asked.sort == "joules" and len(asked.workload_names) != 1,
        "--sort joules is of the samples of one workload: name one",
    )
    by_epochs, by_size = asked.epochs is not None, asked.dataset_size is not None
    yield (
        asked.samples is not None and (by_epochs or by_size),
        "--samples contradicts --epochs and --dataset-size; give one or the other",
    )
    lacks_either = asked.epoch_samples is None if by_epochs else by_size
    yield lacks_either, "--epochs and --dataset-size go together: samples = epochs x dataset size"
    yield (
        asked.relative and asked.job_samples is not None,
        "the setting relative ranks without a job: leave out --samples, --epochs and --dataset-size",
    )
    for field in ("deadline_hours", "budget_usd"):
        yield (
            asked.relative and getattr(asked, field) is not None,
            f"--{typed(field)} is of a job, and the setting relative ranks without one: leave out either",
        )
    yield (
        asked.relative and asked.hour_worth_usd not in {0, HOUR_WORTH_USD},
        "--hour-worth is of the hours of a job, and the setting relative ranks without one: leave out either",
    )
    if asked.jobs_per_month is not None:
        yield (
            asked.relative,
            "the setting jobs-per-month counts jobs, and relative ranks without one: leave out either",
        )
        yield (
            not (asked.buys or asked.own),
            "the setting jobs-per-month is what owned hardware does: add --buy, --max-purchase-usd or --have",
        )
        yield (
            asked.was_given("utilization"),
            "the setting jobs-per-month gives the utilization: leave out the setting utilization",
        )


def _of_the_mix(asked: RankRequest) -> Iterator[tuple[bool, str]]:
    if asked.mix:
        yield bool(asked.workloads), "the setting mix names its own workloads; leave out the others"
        bad = [f"{name}={share:g}" for name, share in asked.mix.items() if not 0 < share < math.inf]
        yield bool(bad), f"the setting mix {', '.join(bad)}: a share must be above 0"
        total = sum(asked.mix.values())
        yield (
            abs(total - 1) > SHARES_TOLERANCE,
            f"the setting mix shares sum to {total:g}: they must sum to 1, as in vgg16=0.5,lstm=0.5",
        )
