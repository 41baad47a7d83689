"""The offers still in the race, as columns: what each delivers, what it costs, and its score in each draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpubench.models import GpuSpec, Offer, Pricing
from gpubench.predict.interval import Z90
from gpubench.recommend import economics
from gpubench.recommend.request import RankRequest
from gpubench.recommend.scaling import Scaling
from gpubench.recommend.speeds import Speeds

MINUTES_PER_HOUR = 60.0

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Columns over N offers; ``gpu`` is the row of each in ``speeds``, rates are of the whole instance.

    ``spread`` is the standard deviation of the log of the scaling efficiency.
    """

    offers: Sequence[Offer]
    speeds: Speeds
    scalings: Sequence[Scaling]
    gpu: Indices
    count: Floats
    price: Floats
    memory: Floats
    is_spot: NDArray[np.bool_]
    is_owned: NDArray[np.bool_]
    efficiency: Floats
    spread: Floats
    rate: Floats
    rate_low: Floats
    rate_high: Floats

    def __len__(self) -> int:
        """Return the number of offers."""
        return len(self.offers)


def candidates_of(
    offers: Sequence[Offer],
    speeds: Speeds,
    specs: Mapping[str, GpuSpec],
    scaling_of: Mapping[tuple[str, int], Scaling],
) -> Candidates:
    """Lay offers out as columns; each offer's GPU must be among ``speeds``."""
    row_of = {key: row for row, key in enumerate(speeds.keys)}
    memory_of = [_memory(specs.get(key)) for key in speeds.keys]
    gpu = np.array([row_of[offer.gpu_key] for offer in offers], dtype=np.int64)
    count = np.array([offer.gpu_count for offer in offers], dtype=float)
    scalings = [scaling_of[offer.gpu_key, offer.gpu_count] for offer in offers]
    efficiency = np.array([scaling.efficiency for scaling in scalings])
    half_width = np.array([scaling.half_width for scaling in scalings])
    rate = speeds.samples_per_s[gpu] * count * efficiency
    below = np.sqrt(np.log(speeds.samples_per_s / speeds.low)[gpu] ** 2 + half_width**2)
    above = np.sqrt(np.log(speeds.high / speeds.samples_per_s)[gpu] ** 2 + half_width**2)
    return Candidates(
        offers=offers,
        speeds=speeds,
        scalings=scalings,
        gpu=gpu,
        count=count,
        price=np.array([float(offer.price_usd_per_hour) for offer in offers]),
        memory=np.array(memory_of)[gpu],
        is_spot=np.array([offer.pricing is Pricing.SPOT for offer in offers]),
        is_owned=np.array([offer.pricing is Pricing.OWNED for offer in offers]),
        efficiency=efficiency,
        spread=half_width / Z90,
        rate=rate,
        rate_low=rate * np.exp(-below),
        rate_high=rate * np.exp(above),
    )


def hours(request: RankRequest, pool: Candidates, rate: Floats, rows: Indices | slice) -> Floats:
    """Return the hours until the job is done, at a rate of the instance; shape of ``rate``.

    One job over all GPUs has the whole rate; of independent jobs each has one GPU. Owned hardware needs
    no start-up, and only spot instances lose work.
    """
    assert request.job_samples is not None
    if not request.one_job_over_all_gpus:
        rate = rate / _beside(pool.count[rows], rate)
    work = economics.train_hours(request.job_samples, rate)
    startup = np.where(pool.is_owned[rows], 0.0, request.startup_minutes / MINUTES_PER_HOUR)
    lost = np.where(pool.is_spot[rows], request.spot_lost, 0.0)
    return economics.wall_hours(work, _beside(startup, rate), _beside(lost, rate))


def cost(request: RankRequest, pool: Candidates, job_hours: Floats, rows: Indices | slice) -> Floats:
    """Return what one job costs [USD]; independent jobs share the instance's price."""
    price = pool.price[rows]
    if not request.one_job_over_all_gpus:
        price = price / pool.count[rows]
    unit = economics.SECOND_IN_HOURS
    if request.billing_minutes is not None:
        unit = request.billing_minutes / MINUTES_PER_HOUR
    units = np.where(pool.is_owned[rows], economics.SECOND_IN_HOURS, unit)
    return economics.job_cost(
        economics.billed_hours(job_hours, _beside(units, job_hours)),
        _beside(price, job_hours),
        request.storage_usd_per_month,
        request.egress_usd,
        request.tax,
    )


def score(request: RankRequest, pool: Candidates, rate: Floats, rows: Indices | slice) -> Floats:
    """Return what the request sorts by, at a rate of the instance: larger is better."""
    if request.job_samples is not None and request.sort in {"time", "cost"}:
        job_hours = hours(request, pool, rate, rows)
        return -job_hours if request.sort == "time" else -cost(request, pool, job_hours, rows)
    if request.sort in {"throughput", "time"}:
        return rate
    return economics.samples_per_usd(rate, _beside(pool.price[rows], rate))


def drawn_rates(request: RankRequest, pool: Candidates, rows: Indices) -> Floats:
    """Return the (N, D) rate of these rows' instances in every joint draw; rows of one GPU share its draw."""
    factor = pool.count[rows] * pool.efficiency[rows]
    rate = pool.speeds.draws[pool.gpu[rows]] * factor[:, None]
    spread = pool.spread[rows]
    if spread.any():  # one error of the scaling model for each GPU, whatever the count
        shape = (len(pool.speeds.keys), request.draws)
        error = np.random.default_rng(request.seed + 1).standard_normal(shape)
        rate *= np.exp(error[pool.gpu[rows]] * spread[:, None])
    return rate


def drawn_scores(request: RankRequest, pool: Candidates, rows: Indices) -> Floats:
    """Return the (N, D) score of these rows in every joint draw."""
    return score(request, pool, drawn_rates(request, pool, rows), rows)


def _beside(column: Floats, like: Floats) -> Floats:
    """Return a column (N,) so that it multiplies rates of shape (N,) or (N, D)."""
    return column[:, None] if like.ndim == 2 else column


def _memory(spec: GpuSpec | None) -> float:
    return float("nan") if spec is None or spec.memory_bytes is None else float(spec.memory_bytes)
