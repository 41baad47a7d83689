"""The estimate of a GPU's performance, and an offer ranked among others."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from gpubench.findings import Finding, FindingKind
from gpubench.interval import UNKNOWN_INTERVAL, Interval, flat
from gpubench.models.case import Case
from gpubench.models.catalog import Offer
from gpubench.models.measurement import Basis, BatchChoice
from gpubench.models.record import Record, brief_repr
from gpubench.providers import price_page
from gpubench.recipes import ParallelMode, TaskKind
from gpubench.units import count


class Estimate(Record, frozen=True, kw_only=True):
    """Throughput of one case on one GPU, with its interval and its basis.

    Attributes:
        low, high: Ends of the 95 % interval of a measurement, or of the 90 % interval of a prediction.
        anchored: Whether a prediction starts from a GPU measurement of the same case.
        peak_memory_bytes: Tensor memory.
        device_bytes: Memory in use on the device.
        memory_text: The verdict for this card.
        host_cpu: The processor that limited a host-bound measurement.
        batch_choice: Whether the batch is the requested one or the largest that fits.
        batch_found_by: Id of the run that searched for that batch; None if the memory model gave it.
        fewest_gpus: How many GPUs must shard weights, gradients and states (FSDP) for the case to fit. If it
            is above 1, throughput is that of one GPU as if everything fit on it, and memory is that of one of
            these GPUs.
        first_token_s: Known only for a measured generation [s].
        per_token_s: Time of each later token, measured or predicted [s].
        power_w: Mean power of one GPU, measured or the usual share of board power.
        capped_time, capped_energy: Factors on time and energy of a job under ``power_limit_w``.
        published: Published readings of this card, in words. The interval was widened to include them.
        most_samples_per_s: Limit set by the peak of the GPU; None for a measurement.
    """

    case: Case
    gpu_key: str
    samples_per_s: float
    low: float | None
    high: float | None
    basis: Basis
    method: str
    evidence: tuple[str, ...] = ()
    anchored: bool | None = None
    peak_memory_bytes: int | None = None
    device_bytes: Interval = UNKNOWN_INTERVAL
    memory_text: str | None = None
    fits_memory: bool | None = None
    largest_batch: int | None = None
    compute_share: float | None = None
    bandwidth_share: float | None = None
    host_share: float | None = None
    host_cpu: str | None = None
    batch_choice: BatchChoice | None = None
    batch_found_by: str | None = None
    fewest_gpus: int = 1
    first_token_s: float | None = None
    per_token_s: Interval = UNKNOWN_INTERVAL
    power_w: Interval = UNKNOWN_INTERVAL
    power_limit_w: float | None = None
    capped_time: Interval = UNKNOWN_INTERVAL
    capped_energy: Interval = UNKNOWN_INTERVAL
    published: str | None = None
    most_samples_per_s: float | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def may_fit(self) -> bool:
        """Whether the job may fit: the lower end of its need does, the upper end does not."""
        return self.fits_memory is None and self.memory_text is not None

    @property
    def joules_per_sample(self) -> Interval:
        """Energy of one GPU per sample, without a user's power limit [J]."""
        return self.power_w.times(self.interval.inverse())

    @property
    def interval(self) -> Interval:
        """The throughput with its interval [samples/s]."""
        return Interval(self.samples_per_s, self.low, self.high)

    @property
    def at_peak(self) -> bool:
        """Whether ``high`` is the limit set by the GPU's peak, not the end of the 90 % interval."""
        return None not in {self.high, self.most_samples_per_s} and self.high == self.most_samples_per_s

    def flat(self) -> dict[str, Any]:
        """Return the estimate as in ``predict show --json``."""
        return flat(msgspec.structs.asdict(self))

    @property
    def is_extrapolated(self) -> bool:
        """Whether it is a guess: a prediction for a GPU outside the range of the fit."""
        return any(finding.kind is FindingKind.OUT_OF_DOMAIN for finding in self.findings)


MODELED = "modeled"
"""``Row.scaling_basis`` if no run has timed these GPUs together."""


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An offer among others: its expected price, its throughput, and the time and cost of the job.

    Attributes:
        rank: Shared by the rows of a band (``gpubench.recommend.objective.bands``). None if not ranked.
        tie: Whether the row cannot be distinguished from the first of its band.
        estimate: Of one GPU; ``parts`` has the estimates of single workloads if several are combined.
        usd_per_hour: Expected price of the instance with a 90 % interval; every figure of the row is based on
            it. For a list price it is the listed price.
        samples_per_s: Of the entire instance: the smaller of the rate that its GPUs process,
            ``gpus_samples_per_s``, and the rate that its vCPUs prepare.
        link: The link between these GPUs, or between one GPU and its host: nvlink, pcie5 ...
        usd_per_million_tokens: Of training, or of generation in a static batch; None without tokens.
        score: Throughput of the instance over that of one reference GPU.
        reference_hours_per_usd: Hours of the reference GPU's work that a dollar buys.
        hours, cost_usd: Of the job; None without a job.
        total_usd: The cost of the job plus the value of its hours.
        scaling_efficiency: Throughput over that of the same number of separate GPUs with the job's recipe. A
            gain from another recipe at this number (``checkpointing_from``) shows only in the samples.
        parallel_mode: How the GPUs of the instance share the job.
        p_best: Probability of being the best offer, over joint draws. None if not computed, as for a fourth
            offer of a machine below the first 1,000 rows.
        p_cheapest, p_sensible, p_fastest: Probability that no other offer does the work for fewer dollars,
            at a lower total cost including its hours, or sooner. They do not depend on the sort order.
        pareto: Whether no other offer is at least as good in speed, price and memory together.
        dominated_by: The offer that is at least as good in every respect, and where it is better.
        spot_break_even: Extra work from interruptions, as a share of the job, at which the same machine costs
            no more on demand: 1.5 is one and a half extra jobs; 0 if on demand is no more expensive anyway.
    """

    rank: int | None
    tie: bool = False
    offer: Offer
    estimate: Estimate
    parts: tuple[Estimate, ...] = ()
    link: str | None = None
    price_age_days: int
    usd_per_hour: Interval
    samples_per_s: Interval
    gpus_samples_per_s: float
    samples_per_usd: Interval
    score: Interval = UNKNOWN_INTERVAL
    reference_hours_per_usd: Interval = UNKNOWN_INTERVAL
    usd_per_million_tokens: float | None = None
    hours: Interval = UNKNOWN_INTERVAL
    cost_usd: Interval = UNKNOWN_INTERVAL
    total_usd: Interval = UNKNOWN_INTERVAL
    scaling_efficiency: float
    scaling_basis: str
    parallel_mode: ParallelMode = ParallelMode.SINGLE
    p_best: float | None = None
    p_cheapest: float | None = None
    p_sensible: float | None = None
    p_fastest: float | None = None
    pareto: bool | None = None
    dominated_by: str | None = None
    spot_break_even: float | None = None
    findings: tuple[Finding, ...] = ()

    def __repr__(self) -> str:
        return brief_repr(self)

    @property
    def listed_usd_per_hour(self) -> float:
        """The listed price of the entire instance; for owned hardware, the cost of a useful hour."""
        return float(self.offer.price_usd_per_hour)

    @property
    def is_expected_as_listed(self) -> bool:
        """Whether the expected price is the listed one; for an old ask it is closer to other asks."""
        return math.isclose(self.usd_per_hour.value or 0.0, self.listed_usd_per_hour, rel_tol=1e-9)

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The estimate of each workload: ``parts``, or ``estimate`` itself for a single workload."""
        return self.parts or (self.estimate,)

    @property
    def fits_memory(self) -> bool | None:
        """Whether the job fits on the GPUs; None if unknown."""
        return self.estimate.fits_memory

    @property
    def latency_s(self) -> float | None:
        """Time of one batch on one GPU [s], for inference with a single workload."""
        case = self.estimate.case
        is_one_answer = case.task is TaskKind.INFER and not self.parts
        return case.batch_size / self.estimate.samples_per_s if is_one_answer else None

    @property
    def usd_per_million_samples(self) -> float:
        """Cost of a million samples [USD]."""
        return 1e6 / self.samples_per_usd.value if self.samples_per_usd.value else math.inf

    @property
    def joules_per_sample(self) -> float | None:
        """Energy of all its GPUs per sample [J]; None if several workloads are combined."""
        power_w, rate = self.estimate.power_w.value, self.samples_per_s.value
        if self.parts or power_w is None or not rate:
            return None
        return self.offer.gpu_count * power_w / rate

    def flat(self) -> dict[str, Any]:
        """Return the row as one flat record: the keys of ``gpubench rank --json``."""
        offer, estimate = self.offer, self.estimate
        batches = {each.case.batch_size for each in self.estimates}
        build = next((f.value for f in self.findings if f.kind is FindingKind.NEEDS_TORCH_BUILD), None)
        return flat(
            {
                "rank": self.rank,
                "tie": self.tie,
                "provider": offer.provider,
                "seller": offer.seller,
                "instance": offer.instance,
                "region": offer.region,
                "gpu_key": offer.gpu_key,
                "gpu_count": offer.gpu_count,
                "vcpus": offer.vcpus,
                "ram_bytes": offer.ram_bytes,
                "pricing": offer.pricing,
                "term": None if offer.term_years is None else count(offer.term_years, "year"),
                "price_usd_per_hour": self.usd_per_hour,
                "price_date": offer.price_date,
                "price_age_days": self.price_age_days,
                "price_source": offer.source,
                "price_url": price_page(offer.provider, offer.source),
                "ask_count": offer.ask_count,
                "link": self.link,
                "precision": estimate.case.precision,
                "execution": estimate.case.execution,
                "stack": estimate.case.stack,
                "batch_size": batches.pop() if len(batches) == 1 else None,
                "basis": estimate.basis,
                "samples_per_s": self.samples_per_s,
                "scaling_efficiency": self.scaling_efficiency,
                "hours": self.hours,
                "cost_usd": self.cost_usd,
                "total_usd": self.total_usd.value,
                "samples_per_usd": self.samples_per_usd,
                "usd_per_million_samples": self.usd_per_million_samples,
                "usd_per_million_tokens": self.usd_per_million_tokens,
                "joules_per_sample": self.joules_per_sample,
                "memory_bytes": estimate.device_bytes,
                "fits_memory": self.fits_memory,
                "legacy_build": build,
                "p_cheapest": self.p_cheapest,
                "p_sensible": self.p_sensible,
                "p_fastest": self.p_fastest,
                "pareto": self.pareto,
                "findings": [str(finding.kind) for finding in self.findings],
            }
        )
