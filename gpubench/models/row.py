"""An estimate of what a GPU does, and an offer instead among others."""

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
    """Throughput of one case on one GPU, with the interval and what it rests on.

    ``low`` and ``high`` bound 95 % for a measurement and 90 % for a prediction; None is unknown.
    ``anchored`` says whether a prediction starts from a GPU measurement of the same case. ``host_cpu`` names
    the processor that set the pace of a host-bound measurement. ``batch_choice`` says whether the batch is
    the one asked for or the largest that fits; ``batch_found_by`` is the id of the run that searched it,
    None if the memory model gave it. ``peak_memory_bytes`` is what tensors take; ``device_bytes`` is
    memory in use on the device, with its interval, and ``memory_text`` what that says of this card.
    ``fewest_gpus`` is how many must share out weights, gradients and states (FSDP) for the case to fit: above
    1, throughput is of one of them as if it held everything, memory is of one of so few.
    ``first_token_s`` is of a generation that was measured there [s]; ``per_token_s``, of each token after, of
    one that was predicted too, then with the ends of its own interval. ``power_w`` is the mean power of one
    GPU, read with the measurement or the usual share of board power. Under ``power_limit_w`` a job takes
    ``capped_time`` times the time and ``capped_energy`` times the energy. ``published`` says what others read
    on such a card; an interval that did not hold that was widened to do so.
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
    findings: tuple[Finding, ...] = ()

    @property
    def joules_per_sample(self) -> Interval:
        """Energy of one GPU for a sample, without a power limit of the user [J]."""
        return self.power_w.times(self.interval.inverse())

    @property
    def interval(self) -> Interval:
        """The throughput with its interval [samples/s]."""
        return Interval(self.samples_per_s, self.low, self.high)

    def flat(self) -> dict[str, Any]:
        """Return the estimate as ``predict show --json`` has it."""
        return flat(msgspec.structs.asdict(self))

    @property
    def is_extrapolated(self) -> bool:
        """Whether it is a guess: a prediction for a GPU that lies beyond what the fit covers."""
        return any(finding.kind is FindingKind.OUT_OF_DOMAIN for finding in self.findings)


MODELED = "modeled"
"""``Row.scaling_basis`` of several GPUs that no run has timed together."""


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An offer instead among others: what it is expected to cost, how fast it is, what the job takes.

    Attributes:
        rank: Shared by the rows of a band; see ``gpubench.recommend.chances.bands``. None beside the ranking.
        tie: Whether the row cannot be distinguished from the first of its band.
        estimate: Of one GPU; ``parts`` are those of single workloads, where several count together.
        usd_per_hour: What a buyer should expect to pay for the instance, which every figure of the row is at;
            its ends hold nine tenths. That of a list price is the one listed.
        samples_per_s: Of the whole instance: the lesser of what its GPUs do, ``gpus_samples_per_s``, and what
            its vCPUs feed.
        link: What joins such GPUs, or joins one to its host: nvlink, pcie5 ...
        usd_per_million_tokens: Of training, or of what is generated in a static batch; None without tokens.
        score: Throughput of the instance over that of one reference GPU.
        reference_hours_per_usd: Hours of the reference GPU's work that a dollar buys.
        hours, cost_usd: Of the job; unknown where there is none.
        total_usd: The cost of the job and what its hours are worth.
        scaling_efficiency: Throughput over that of as many GPUs alone, by the recipe of the job: where one of
            this many GPUs has another (``checkpointing_from``), what that gains is in the samples alone.
        parallel_mode: How the GPUs of the instance share the job.
        p_best: Probability of being the best offer, over joint draws. None if it is not computed: of a
            fourth offer of a machine below the first 1,000 rows.
        p_cheapest, p_sensible, p_fastest: Probability that no other costs less for the work, in dollars or in
            dollars and hours, or ends it earlier, whatever the rows are in order of.
        pareto: Whether nothing else is as fast, as cheap and as large in memory at once.
        dominated_by: What is, and in which respects it is better.
        spot_break_even: How much work interruptions may add, as a share of the job, before the same machine
            on demand does it for as little: 1.5 is one and a half jobs more; 0 if it does so anyway.
    """

    rank: int | None
    tie: bool = False
    offer: Offer
    estimate: Estimate
    parts: tuple[Estimate, ...] = ()
    link: str | None = None
    price_age_days: int | None = None
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
        """The price of the whole instance as it was listed; of owned hardware the cost of a useful hour."""
        return float(self.offer.price_usd_per_hour)

    @property
    def is_expected_as_listed(self) -> bool:
        """Whether the price to expect is the one listed; that of an old ask is nearer to other asks."""
        return math.isclose(self.usd_per_hour.value or 0.0, self.listed_usd_per_hour, rel_tol=1e-9)

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The estimate of each workload: ``parts``, and of a single one ``estimate`` itself."""
        return self.parts or (self.estimate,)

    @property
    def fits_memory(self) -> bool | None:
        """Whether the job fits on its GPUs; None if unknown."""
        return self.estimate.fits_memory

    @property
    def latency_s(self) -> float | None:
        """Time of one batch on one GPU [s], for inference with a single workload."""
        case = self.estimate.case
        is_one_answer = case.task is TaskKind.INFER and not self.parts
        return case.batch_size / self.estimate.samples_per_s if is_one_answer else None

    @property
    def usd_per_million_samples(self) -> float:
        """Dollars that a million samples cost."""
        return 1e6 / self.samples_per_usd.value if self.samples_per_usd.value else math.inf

    @property
    def joules_per_sample(self) -> float | None:
        """Energy of all its GPUs for a sample [J]; None if several workloads count together."""
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
