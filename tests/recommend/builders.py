"""Offers, estimates and evidence made by hand, so the core is tested on figures that are easy to check."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal

import numpy as np

from gpubench.models import (
    Case,
    DeviceProfile,
    Environment,
    Estimate,
    Execution,
    Launch,
    Measurement,
    MemoryFormat,
    Offer,
    Precision,
    Pricing,
    Ranking,
    Round,
    Run,
    Status,
    TaskKind,
)
from gpubench.predict.question import Refusal
from gpubench.recommend.eligible import sift
from gpubench.recommend.evidence import Evidence
from gpubench.recommend.rank import check, judge_offers
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import Scaling

TODAY = date(2026, 11, 20)
H100, L4, T4 = "nvidia-h100-sxm-80gb", "nvidia-l4-24gb", "nvidia-tesla-t4-16gb"
RTX5090, A100 = "nvidia-geforce-rtx-5090-32gb", "nvidia-a100-sxm-80gb"
JOB = {"samples", "epochs", "dataset_size"}
KEYS = (H100, L4, T4, RTX5090, A100)


def offer(gpu_key: str = H100, price: float | str = 2.0, **changes) -> Offer:
    fields = {
        "provider": "acme",
        "instance": f"{gpu_key}-{price}",
        "region": None,
        "gpu_key": gpu_key,
        "gpu_count": 1,
        "vcpus": None,
        "ram_bytes": None,
        "price_usd_per_hour": Decimal(str(price)),
        "pricing": Pricing.ON_DEMAND,
        "kind": "vm",
        "price_date": TODAY.isoformat(),
        "source": "test",
    }
    return Offer(**fields | changes)


def estimate(gpu_key: str, rate: float, width: float | None = None, basis="predicted", **changes) -> Estimate:
    """Build an estimate; a ``width`` of 1.2 means an interval from rate / 1.2 to rate x 1.2."""
    fields = {
        "case": Case(
            workload="vgg16",
            workload_version=1,
            task=TaskKind.TRAIN,
            precision=Precision.AMP_BF16,
            execution=Execution.GRAPH,
            memory_format=MemoryFormat.CHANNELS_LAST,
            batch_size=64,
            sample_unit="image",
        ),
        "gpu_key": gpu_key,
        "samples_per_s": rate,
        "low": None if width is None else rate / width,
        "high": None if width is None else rate * width,
        "basis": basis,
        "method": "test",
    }
    return Estimate(**fields | changes)


def evidence_of(answers: Mapping[str, Mapping[str, Estimate | Refusal]]) -> Evidence:
    return Evidence(answers=answers, scaler=scaler)


def scaler(workload, spec, count, alone) -> Scaling:
    """Scale every machine to nine tenths of the sum of its GPUs."""
    return Scaling(0.9, 0.9, 0.9, "modeled")


def rank_of(
    offers,
    rates: Mapping[str, float | Estimate | Refusal],
    width: float | None = None,
    drawer=None,
    **options,
) -> Ranking:
    """Rank offers of one workload with a given throughput per GPU; no file is needed.

    By default the ranking is relative, nothing is paid before the first step, no private host fails, and an
    hour is worth nothing.
    """
    answers = {
        key: estimate(key, value, width) if isinstance(value, float | int) else value
        for key, value in rates.items()
    }
    usual = {
        "workloads": ("vgg16",),
        "draws": 400,
        "startup_minutes": 0,
        "host_lost": 0,
        "hour_worth_usd": 0,
        "relative": not options.keys() & JOB,
    }
    request = check(RankRequest(**usual | options))
    evidence = evidence_of(dict.fromkeys(request.workload_names, answers))
    return judge(
        request,
        offers,
        lambda keys: evidence,
        today=TODAY,
        drawer=drawer or log_normal,
    )


def judge(request, offers, evidence_for, *, drawer=None, **known) -> Ranking:
    """Filter offers and rank the rest."""
    left = sift(request, offers, **known)
    return judge_offers(request, left, evidence_for, drawer=drawer)


def said(ranking: Ranking) -> str:
    """Return all sentences of a ranking as one text."""
    return " ".join(each.text for each in ranking.sentences)


def log_normal(estimates, n, seed):
    """Draw independent log-normal rates whose 90 % interval is that of the estimate."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal((len(estimates), n))
    spread = np.array([0 if e.low is None else np.log(e.high / e.low) / 2 / 1.6449 for e in estimates])
    return np.array([e.samples_per_s for e in estimates])[:, None] * np.exp(noise * spread[:, None])


def measurement(case: Case, rate: float, **launch) -> Measurement:
    """Build the measurement of a case at this throughput, with three rounds that agree to 1 %."""
    step_s = case.batch_size * case.gpu_count / rate
    rounds = tuple(Round(steps=10, wall_s=10 * step_s * share) for share in (0.99, 1.0, 1.01))
    return Measurement(case=case, status=Status.OK, launches=(Launch(index=0, rounds=rounds, **launch),))


def run_of(gpu_key: str | None, *measurements: Measurement, backend: str = "nvml") -> Run:
    return Run(
        run_id=f"run-{gpu_key}",
        started_at="2026-11-20T10:00:00Z",
        budget="quick",
        seed=0,
        device=DeviceProfile(backend=backend, gpu_key=gpu_key),
        environment=Environment(gpubench="0", python="3.11", os="test"),
        measurements=measurements,
    )
