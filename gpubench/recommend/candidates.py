"""The candidate offers as columns (throughput, price, rate in each draw), and the job.

Hours and dollars refer to the requested job, or else to a default job.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import msgspec
import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.draws import normals, uniforms
from gpubench.interval import Interval
from gpubench.labels import gpu_name
from gpubench.models import Job, Pricing, Seller, TaskKind, WorkloadProfile
from gpubench.models.ranking import MODELED
from gpubench.offers.table import Offers, kinds_of
from gpubench.recommend.economics import SECONDS_PER_HOUR, Market, Prices, delivered_share, prices_of
from gpubench.recommend.request import IMAGENET_IMAGES, RankRequest
from gpubench.recommend.speeds import Scaling, Speeds
from gpubench.specs import load_specs
from gpubench.spread import ELSEWHERE
from gpubench.stats import Z90
from gpubench.units import count, plural

QUOTED = "own"
"""The provider name of hardware that the buyer owns or has a quote for; hardware for sale has "buy"."""
# Epochs of the usual recipe for ResNet-50 (Goyal and others 2017, arXiv:1706.02677).
_IMAGENET_EPOCHS = 90
FINE_TUNING_TOKENS = 10_000_000  # assumed size of a job that fine-tunes a language model
# Length of the default job of other workloads, in hours of the reference GPU.
_REFERENCE_HOURS = 24.0
IMAGES_PER_VCPU_S = 150.0
"""Photographs that one vCPU is assumed to augment per second: the rate of one ``gpubench feed`` process on a
server core, excluding decoding. ``gpubench feed`` measures your own host."""
FEED_FACTOR = 2.0
"""Assumed: nine hosts in ten are within this factor of ``IMAGES_PER_VCPU_S``."""
LINK_SIGMA = 0.3
"""Standard deviation of the logarithm of the link speed between the GPUs of a private host. Assumed, because
no listing says how many lanes each card has, and no run has measured eight of these cards together."""
FEED_SIGMA = math.log(FEED_FACTOR) / Z90
"""Standard deviation of the logarithm of the number of images that a vCPU prepares per second."""


@dataclass(frozen=True, slots=True)
class Work:
    """The amount of work.

    Attributes:
        samples: Number of samples, at the expected speeds.
        reference: Row of the reference GPU in the speeds if the job is a number of hours on that GPU; the
            number of samples then differs between draws. None if the job is a fixed number of samples.
    """

    job: Job
    samples: float
    reference: int | None = None


def usual_job(profile: WorkloadProfile, task: TaskKind) -> tuple[str, float] | None:
    """Return the well-known job of a workload in words and in samples; None if there is none."""
    if task is not TaskKind.TRAIN:
        return None
    if profile.name == "resnet50":
        return f"{_IMAGENET_EPOCHS} epochs of ImageNet", float(_IMAGENET_EPOCHS * IMAGENET_IMAGES)
    if profile.tokens_per_sample and not profile.is_classic:
        return "10 million tokens", FINE_TUNING_TOKENS / profile.tokens_per_sample
    return None


def work_of(request: RankRequest, speeds: Speeds, usual: tuple[str, float] | None, unit: str) -> Work | None:
    """Return the job of a ranking: the given one, the well-known one, or hours on the reference GPU.

    None if the request is ``relative``, or if the speed of the reference GPU is needed and unknown.

    Args:
        request: The request, with the job if one was given.
        speeds: The speed of each GPU, including the reference.
        usual: The workload's well-known job, in words and in samples, if there is one.
        unit: The name of one sample, such as "image".
    """
    if request.relative:
        return None
    job = partial(Job, unit=plural(unit), is_default=True, startup_minutes=request.rented_startup_minutes)
    if request.job_samples is not None:
        samples = request.job_samples
        words = _samples_text(samples, unit)
        if request.epochs is not None:
            size = request.dataset_size
            data = "ImageNet" if size is None else _samples_text(size, unit)
            words = f"{request.epochs:,g} {'epoch' if request.epochs == 1 else 'epochs'} of {data}"
        return Work(job(words=words, samples=samples, is_default=False), samples)
    if usual is not None:
        words, samples = usual
        return Work(job(words=words, samples=samples), samples)
    row = speeds.row_of_one(request.reference_gpu)
    if row is None:
        return None
    samples = _REFERENCE_HOURS * SECONDS_PER_HOUR * float(speeds.samples_per_s[row])
    return Work(
        job=job(
            words=f"{_REFERENCE_HOURS:g} GPU-hours of one {gpu_name(request.reference_gpu)}",
            samples=samples,
            reference_gpu_key=request.reference_gpu,
            reference_hours=_REFERENCE_HOURS,
        ),
        samples=samples,
        reference=row,
    )


def _samples_text(samples: float, unit: str) -> str:
    # Return a number of samples in words; from 10 million on, or with a fraction, it has three digits.
    is_short = samples == round(samples) and samples < 1e7
    return count(int(samples), unit) if is_short else f"{Interval(samples).words()} {plural(unit)}"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Offers as columns of length N; rates and prices are those of a whole instance.

    Attributes:
        scalings: The scaling of each machine: a GPU and a number of GPUs.
        machine, gpu: Each offer's row in ``scalings`` and in ``speeds``.
        count: Number of GPUs.
        price: Expected price [USD/h]; ``prices`` is its distribution.
        memory: Memory of one GPU [B]; NaN if unknown.
        pace: Rate per GPU divided by the rate of a single GPU: the scaling efficiency times the speedup from
            the recipe for that number of GPUs.
        delivered: Share of its throughput that an offer keeps: less than 1 on spot instances and private
            hosts, where work is lost. Every rate includes this factor.
        spread: Standard deviation of the logarithm of the scaling efficiency.
        width_factor: Factor on the width of the rate's interval on a log scale. It is below 1 only for the
            measured machine itself, which does not have the difference between two cards of one model.
        vcpu_limit: Rate at which the vCPUs prepare samples; infinite if unknown. They only have to keep up
            while the GPUs work, so this rate also includes ``delivered``.
        rate, rate_low, rate_high: The lower of the GPUs' rate and ``vcpu_limit``, with its interval.
        ratio_low, ratio_high: The interval of ``rate`` divided by the reference GPU's rate, times the
            expected rate of that GPU; an error that both have in common cancels.
        work: The job, if there is one.
    """

    request: RankRequest
    offers: Offers
    speeds: Speeds
    scalings: Sequence[Scaling]
    machine: Indices
    gpu: Indices
    count: Floats
    price: Floats
    memory: Floats
    is_owned: Flags
    pace: Floats
    delivered: Floats
    spread: Floats
    width_factor: Floats
    vcpu_limit: Floats
    rate: Floats
    rate_low: Floats
    rate_high: Floats
    ratio_low: Floats
    ratio_high: Floats
    prices: Prices
    work: Work | None = None

    def __len__(self) -> int:
        return len(self.offers)

    def with_request(self, **changes: Any) -> Self:
        """Return the same offers for a request with changed fields, such as another sort order."""
        return replace(self, request=msgspec.structs.replace(self.request, **changes))

    @property
    def kind(self) -> Indices:
        """The kind of each offer. Offers of a kind have the same speed and startup; prices may differ."""
        # One number for each combination of the columns that affect speed or startup.
        kinds = 2 * (2 * self.machine + (self.width_factor < 1)) + self.is_owned
        for column in (self.delivered, self.spread, self.vcpu_limit):
            values, codes = np.unique(column, return_inverse=True)
            kinds = len(values) * kinds + codes
        return np.asarray(kinds)

    @property
    def watts(self) -> Floats:
        """Usual power of all GPUs of each instance [W]; infinite if unknown."""
        each = [estimate.power_w.value or math.inf for estimate in self.speeds.estimates]
        return np.array(each)[self.gpu] * self.count

    @property
    def gpus_rate(self) -> Floats:
        """The rate of the GPUs of each offer if data preparation keeps up."""
        return self.speeds.samples_per_s[self.gpu] * self.count * self.pace * self.delivered


def candidates_of(
    request: RankRequest,
    offers: Offers,
    speeds: Speeds,
    *,
    scaling_of: Mapping[tuple[str, int], Scaling],
    market: Market,
    photograph_share: float,
    work: Work | None,
) -> Candidates:
    """Arrange offers as columns; each offer's GPU must be in ``speeds``.

    The vCPUs of a host must prepare ``photograph_share`` of the samples.
    """
    row_of = {key: row for row, key in enumerate(speeds.keys)}
    rows = np.array([row_of.get(key, -1) for key in offers.gpu_key.values], dtype=np.int64)
    gpu, count = rows[offers.gpu_key.codes], offers.gpu_count.figures(float)
    memory = [spec.memory_bytes if (spec := load_specs().get(key)) else None for key in speeds.keys]
    machines = kinds_of(offers.gpu_key, offers.gpu_count)
    scalings = [scaling_of[machine] for machine in machines.values]
    pace = np.array([scaling.efficiency * scaling.by_recipe for scaling in scalings])[machines.codes]
    half_width = _scaling_half_width(offers, scalings, machines.codes)
    delivered = delivered_by(request, offers)
    vcpu_limit = _vcpu_limit(offers, delivered, photograph_share)
    rate = speeds.samples_per_s[gpu] * count * pace * delivered
    prices = prices_of(offers, market)
    width_factor = _width_factor(speeds, offers, gpu)
    return Candidates(
        request=request,
        offers=offers,
        speeds=speeds,
        scalings=scalings,
        machine=machines.codes,
        gpu=gpu,
        count=count,
        price=prices.expected,
        memory=np.array(memory, dtype=float)[gpu],
        is_owned=offers.is_owned,
        pace=pace,
        delivered=delivered,
        spread=half_width / Z90,
        width_factor=width_factor,
        vcpu_limit=vcpu_limit,
        **_rates(
            speeds,
            request.reference_gpu,
            gpu,
            rate=rate,
            half_width=half_width,
            width_factor=width_factor,
            vcpu_limit=vcpu_limit,
        ),
        prices=prices,
        work=work,
    )


def _scaling_half_width(offers: Offers, scalings: Sequence[Scaling], machine: Indices) -> Floats:
    # Return half the width of the 90 % interval of the logarithm of each offer's scaling efficiency.
    half_width = np.array([math.log(each.high / each.low) / 2 for each in scalings])[machine]
    # The error of an unmeasured link is scaled by the share of time spent on communication.
    exchange = np.array([max(0.0, 1 - s.efficiency) if s.basis == MODELED else 0.0 for s in scalings])
    unmeasured = np.where(offers.kind.equals("marketplace"), exchange[machine], 0.0)
    return np.asarray(np.hypot(half_width, Z90 * LINK_SIGMA * unmeasured))


def _vcpu_limit(offers: Offers, delivered: Floats, photograph_share: float) -> Floats:
    # Return the rate at which the vCPUs of each offer prepare samples; infinite if no limit is known.
    if not photograph_share:
        return np.full(len(offers), np.inf)
    return delivered * offers.vcpus.figures(
        lambda vcpus: math.inf if vcpus is None else vcpus * IMAGES_PER_VCPU_S / photograph_share
    )


def lost_share(request: RankRequest, pricing: Pricing | None, seller: Seller | None) -> float:
    """Return the share of work lost because of pricing and seller; None for either adds nothing."""
    by_spot = request.spot_lost_share if pricing is Pricing.SPOT else 0.0
    return by_spot + (request.host_lost_share if seller == "community" else 0.0)


def delivered_by(request: RankRequest, offers: Offers) -> Floats:
    """Return the share of its throughput that each offer keeps: less than 1 on spot and on private hosts."""
    by_pricing = offers.pricing.figures(lambda pricing: lost_share(request, pricing, None))
    lost = by_pricing + offers.seller.figures(lambda seller: lost_share(request, None, seller))
    return np.asarray(delivered_share(lost))


def _width_factor(speeds: Speeds, offers: Offers, gpu: Indices) -> Floats:
    # Return the column ``width_factor`` of Candidates.
    width = np.log(speeds.high / speeds.low) / 2
    pairs = zip(speeds.keys, speeds.estimates, strict=True)  # an unlisted device is always the measured one
    measured = [each.basis == "measured" and key in load_specs() for key, each in pairs]
    by_card = np.zeros(len(width))  # the share of the width that is the difference between two cards
    np.divide(ELSEWHERE, width, out=by_card, where=np.array(measured, dtype=bool) & (width > ELSEWHERE))
    is_here = offers.is_owned & offers.provider.equals(QUOTED)
    return np.where(is_here, np.sqrt(1 - by_card**2)[gpu], 1.0)


def _rates(
    speeds: Speeds,
    reference_gpu: str,
    gpu: Indices,
    *,
    rate: Floats,
    half_width: Floats,
    width_factor: Floats,
    vcpu_limit: Floats,
) -> dict[str, Floats]:
    # Return the rates of instances with their intervals, and the intervals relative to the reference GPU.
    down, up = np.log(speeds.samples_per_s / speeds.low), np.log(speeds.high / speeds.samples_per_s)
    ratio_down, ratio_up, exact_low, exact_high = _widths_over(reference_gpu, speeds)
    below, above = (np.hypot(width[gpu] * width_factor, half_width) for width in (down, up))
    ratio_below, ratio_above = (np.hypot(width[gpu], half_width) for width in (ratio_down, ratio_up))
    return {
        "rate": np.minimum(rate, vcpu_limit),
        "rate_low": np.minimum(rate * np.exp(-below), vcpu_limit / FEED_FACTOR),
        "rate_high": np.minimum(rate * np.exp(above), vcpu_limit * FEED_FACTOR),
        "ratio_low": np.minimum(
            rate * np.exp(-ratio_below), vcpu_limit / _combined(1 / exact_low, FEED_FACTOR)
        ),
        "ratio_high": np.minimum(rate * np.exp(ratio_above), vcpu_limit * _combined(exact_high, FEED_FACTOR)),
    }


def _combined(*factors: float) -> float:
    # Combine the factors of independent errors, which add in quadrature on a log scale.
    return math.exp(math.hypot(*map(math.log, factors)))


# Quantiles at the ends of a 90 % interval.
_ENDS = (0.05, 0.95)


def _widths_over(reference_gpu: str, speeds: Speeds) -> tuple[Floats, Floats, float, float]:
    """Return the interval widths of speeds relative to the reference GPU; NaN if its speed is unknown.

    Returns:
        down, up: Widths of the logarithm of each GPU's ratio; NaN is unknown. The reference GPU's ratio to
            itself is 1, give or take the difference between two machines of the same model.
        low, high: For an exactly known rate, the ends of its ratio to the reference GPU, relative to the
            expected ratio.
    """
    row = speeds.row_of_one(reference_gpu)
    if row is None:
        unknown = np.full(len(speeds.keys), np.nan)
        return unknown, unknown, 1.0, 1.0
    ratio = np.log(speeds.draws / speeds.draws[row])
    likely = np.log(speeds.samples_per_s / speeds.samples_per_s[row])
    low, high = np.quantile(ratio, _ENDS, axis=1)
    is_open = np.isnan(speeds.low) | np.isnan(speeds.low[row])
    down, up = (np.where(is_open, np.nan, np.maximum(width, 0.0)) for width in (likely - low, high - likely))
    down[row] = up[row] = ELSEWHERE
    slow, fast = np.quantile(speeds.draws[row] / speeds.samples_per_s[row], _ENDS)
    return down, up, min(1.0, 1 / float(fast)), max(1.0, 1 / float(slow))


def drawn_rates(pool: Candidates, rows: Indices) -> Floats:
    """Return the (N, D) rates of the instances in these rows; in a draw, rows of one GPU share its speed."""
    factor = pool.count[rows] * pool.pace[rows] * pool.delivered[rows]
    rate = pool.speeds.draws[pool.gpu[rows]] * factor[:, None]
    here = np.flatnonzero(pool.width_factor[rows] < 1)  # the measured card itself, with less error
    error = pool.speeds.draws[pool.gpu[rows[here]]] / pool.speeds.samples_per_s[pool.gpu[rows[here]]][:, None]
    rate[here] *= error ** (pool.width_factor[rows[here]] - 1)[:, None]
    spread = pool.spread[rows]
    gpus = pool.gpu[rows]
    for gpu in np.unique(gpus[spread > 0]).tolist():  # one scaling error, whatever the number of GPUs
        error = normals(pool.request.draws, pool.request.seed, "scaling", pool.speeds.keys[gpu])
        scaled = np.flatnonzero((gpus == gpu) & (spread > 0))
        rate[scaled] *= np.exp(error * spread[scaled][:, None])
    vcpu_limit = pool.vcpu_limit[rows]
    bound = np.flatnonzero(np.isfinite(vcpu_limit))
    if len(bound):
        rate[bound] = np.minimum(
            rate[bound], vcpu_limit[bound][:, None] * feed_errors(pool.request.seed, pool.request.draws)
        )
    return rate


def startup_factors(pool: Candidates, rows: Indices) -> Floats:
    """Return the (N, D) factors on the assumed startup time; all offers of one machine share their factors.

    The logarithm is uniform, so the factors are bounded; 90 % of them are within ``startup_factor``.
    """
    factors = np.ones((len(rows), pool.request.draws))
    if pool.request.startup_factor == 1:
        return factors
    machines = pool.machine[rows]
    for machine in np.unique(machines).tolist():
        row = rows[machines == machine][0]
        gpu, gpu_count = pool.speeds.keys[pool.gpu[row]], int(pool.count[row])
        moves = uniforms(pool.request.draws, pool.request.seed, "start", gpu, str(gpu_count))
        factors[machines == machine] = farthest_startup(pool.request.startup_factor) ** (2 * moves - 1)
    return factors


def farthest_startup(factor: float) -> float:
    """Return the largest startup factor of any draw, given the factor that covers 90 % of the draws."""
    return math.pow(factor, 1 / _COVERED)


# Share of the draws that the factor covers.
_COVERED = 0.9


def feed_errors(seed: int, draws: int) -> Floats:
    """Return the (D,) factors on the images that a vCPU prepares, common to all hosts in a draw."""
    return np.exp(FEED_SIGMA * normals(draws, seed, "feeding"))
