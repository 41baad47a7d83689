"""The ranking of offers: estimates, rows, every choice, and the sentences that summarize the ranking."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gpubench.findings import Finding, FindingKind
from gpubench.interval import UNKNOWN_INTERVAL, Interval, flat
from gpubench.models.case import Case
from gpubench.models.catalog import Offer
from gpubench.models.measurement import Basis, BatchChoice
from gpubench.models.record import LINES_IN_REPR, Record, brief_repr, headed, labels, views
from gpubench.pricings import PriceCondition, Pricing
from gpubench.providers import price_page
from gpubench.recipes import ParallelMode, TaskKind
from gpubench.units import count, format_chance, format_usd

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure


class Estimate(Record, frozen=True, kw_only=True):
    """Throughput of one case on one GPU, with its interval and its basis.

    Attributes:
        low, high: Ends of the 95 % interval of a measurement, or of the 90 % interval of a prediction.
        anchored: Whether a prediction starts from a GPU measurement of the same case.
        peak_memory_bytes: Peak memory of the tensors.
        device_bytes: Peak memory in use on the device.
        memory_text: The memory verdict for this card, in words.
        host_cpu: The processor that limited a host-bound measurement.
        batch_choice: Whether the batch is the requested one or the largest that fits.
        batch_found_by: Id of the run that searched for the largest batch; None if the memory model gave it.
        fewest_gpus: How many GPUs must shard weights, gradients and states (FSDP) for the case to fit. If it
            is above 1, throughput is that of one GPU as if everything fit on it, and memory is that of one of
            these GPUs.
        first_token_s: Time to the first token; known only for a measured generation [s].
        per_token_s: Time of each later token, measured or predicted [s].
        power_w: Mean power of one GPU: measured, or the usual share of board power.
        capped_time, capped_energy: Factors by which ``power_limit_w`` changes a job's time and energy.
        published: Published readings of this card, in words. Comparable ones widen the interval.
        most_samples_per_s: Limit set by the peak of the GPU; None for a measurement.
        origin: Who measured it, on what and when, if the run was added with ``results add``.
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
    origin: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def may_fit(self) -> bool:
        """Whether the job may fit: the lower end of its need does, the upper end does not."""
        return self.fits_memory is None and self.memory_text is not None

    @property
    def joules_per_sample(self) -> Interval:
        """Energy of one GPU per sample, before any power limit that the user sets [J]."""
        return self.power_w.times(self.interval.inverse())

    @property
    def interval(self) -> Interval:
        """The throughput with its interval [samples/s]."""
        return Interval(self.samples_per_s, self.low, self.high)

    @property
    def at_peak(self) -> bool:
        """Whether ``high`` is the limit set by the GPU's peak, not the end of the 90 % interval."""
        return self.high is not None and self.high == self.most_samples_per_s

    def flat(self) -> dict[str, Any]:
        """Return the estimate as in ``predict show --json``."""
        return flat(msgspec.structs.asdict(self))

    @property
    def is_extrapolated(self) -> bool:
        """Whether this is a prediction for a GPU outside the range of the fit."""
        return any(finding.kind is FindingKind.OUT_OF_DOMAIN for finding in self.findings)

    @property
    def is_a_guess(self) -> bool:
        """Whether this is a prediction outside the range of the fit, or without an interval (host-bound)."""
        is_host_bound = any(finding.kind is FindingKind.HOST_BOUND for finding in self.findings)
        return self.is_extrapolated or (self.basis == "predicted" and self.low is None and is_host_bound)


MODELED = "modeled"
"""``Row.scaling_basis`` if no run has timed these GPUs together."""


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An offer in a ranking: its expected price, its throughput, and the time and cost of the job.

    Attributes:
        rank: The same for all rows of a band: its leader, the rows that tie with the leader, and other offers
            of their GPUs in between (``gpubench.recommend.objective.bands``). None if not ranked.
        tie: Whether the row cannot be distinguished from the leader of its band.
        estimate: For one GPU; ``parts`` has the estimate of each workload if several are combined.
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
            gain from another recipe at this number (``checkpointing_from``) shows only in ``samples_per_s``.
        parallel_mode: How the GPUs of the instance share the job.
        p_best: Probability of being the best offer, over joint draws. None if it is not computed: for a row
            that may be the best but is below the first 1,000 rows, and below three offers of its kind.
        p_cheapest, p_sensible, p_fastest: Probability of costing the fewest dollars, of having the lowest
            total cost including the hours, and of being fastest. They do not depend on the sort order.
        pareto: Whether no other offer is at least as good in speed, price and memory together.
        dominated_by: An offer that is at least as good in every respect, and what makes it better.
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
        """Whether the expected price is the listed one; that of an old listing is closer to other hosts'."""
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
        """Energy of all the offer's GPUs per sample [J]; None if several workloads are combined."""
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


Source = Literal["cloud", "marketplace", "own"]
"""Who owns the machine: a cloud provider, a host of a marketplace, or the buyer."""


class Job(Record, frozen=True, kw_only=True):
    """The job that hours and dollars refer to.

    Attributes:
        words: The job in words: "90 epochs of ImageNet", "24 GPU-hours of one A100 SXM4 80GB".
        samples: Amount of work, in ``unit``; an estimate if the work was given in hours of a reference GPU.
        is_default: Whether the job is the default, because the question had none.
        startup_minutes: Paid time before the first step on every rented machine.
    """

    words: str
    samples: float
    unit: str
    is_default: bool
    startup_minutes: float
    reference_gpu_key: str | None = None
    reference_hours: float | None = None


class Asks(Record, frozen=True, kw_only=True):
    """Prices that marketplace hosts ask for one GPU of this model with the same pricing [USD/h].

    Attributes:
        low, high: Ends of the 90 % range of these prices, from the spread of their logarithms.
        own_weight: Weight of these prices in the median, 0 to 1; the rest is that of the clouds' list prices.
    """

    median_usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float
    ask_count: int
    provider_count: int
    own_weight: float = 1.0


class Elsewhere(Record, frozen=True, kw_only=True):
    """The same GPU at another provider: its best offer there, with the expected price."""

    offer: Offer
    usd_per_hour: float
    cost_usd: float | None = None


class Choice(Record, frozen=True, kw_only=True):
    """A row, with everything else to know before paying. An unknown value is None.

    Attributes:
        row: The ranked offer. It has no rank if it is only shown next to the ranking, like hardware to buy
            that was not requested.
        condition: Kind of price: a list price, one host's price, a price of new or used cards, or the buyer's
            quote.
        purchase_usd: For owned hardware, the price of the GPUs or the complete computer, plus ``host_usd``.
        host_usd: The part of the price of the computer around the cards that ``purchase_usd`` includes.
        assumed: For owned hardware, the inputs that were assumed.
        price_note: A doubt about the price, or a remark on it; for a card to buy, the price's source.
        price_doubt: How far the price is from those of other providers, if none confirms it; None if it is
            not in doubt.
        asks: The other hosts' prices on a marketplace.
        regions: Regions where this provider offers this many of the GPU, the offer's own first.
        needs_quota: Whether a new account must request a quota first.
        p_best_of_gpu: Probability that the best offer has this GPU, from any provider; computed separately
            for renting and owning.
        feed_images_per_s: Photographs to decode and augment per second while working, before spot
            interruptions; None for other data.
        feed_vcpus: vCPUs needed for that, at the assumed ``recommend.candidates.IMAGES_PER_VCPU_S``.
        also_at: The same GPU at other providers, best first.
        host_unsaid: What the offer does not say about the host, with the job's need: "RAM (23.2 GiB needed)".
    """

    row: Row
    condition: PriceCondition
    purchase_usd: float | None = None
    host_usd: float | None = None
    assumed: tuple[str, ...] = ()
    price_note: str | None = None
    price_doubt: str | None = None
    asks: Asks | None = None
    regions: tuple[str, ...] = ()
    needs_quota: bool | None = None
    p_best_of_gpu: float | None = None
    feed_images_per_s: float | None = None
    feed_vcpus: float | None = None
    also_at: tuple[Elsewhere, ...] = ()
    host_unsaid: tuple[str, ...] = ()

    @property
    def offer(self) -> Offer:
        """The offer of the row."""
        return self.row.offer

    @property
    def source(self) -> Source:
        """Who owns the machine."""
        if self.offer.pricing is Pricing.OWNED:
            return "own"
        return "marketplace" if self.offer.kind == "marketplace" else "cloud"

    @property
    def fed_share(self) -> float | None:
        """Share of the photographs consumed by the GPUs that the vCPUs can prepare; None if unknown."""
        vcpus = self.offer.vcpus
        return None if vcpus is None or not self.feed_vcpus else vcpus / self.feed_vcpus

    @property
    def can_feed(self) -> bool | None:
        """Whether the vCPUs prepare as many photographs as the GPUs consume; None if unknown."""
        return None if self.fed_share is None else self.fed_share >= 1


RANKING_SCHEMA = "gpubench.ranking/3"
"""Schema of ``gpubench rank --json``; other documents have their own versions."""

SortedBy = Literal["total", "value", "throughput", "cost", "time", "joules"]
"""The order of the rows of a ranking."""

SentenceKind = Literal["answer", "asked", "sureness", "caution", "note"]


class BuyOrRent(Record, frozen=True, kw_only=True):
    """A comparison of owning one machine with the best rented offer at equal throughput.

    A break-even of None means never. ``_low`` is the end of the interval that favors owning, and ``_high``
    the other end. The interval covers the ranges of resale value, utilization and tariff, and the interval of
    the throughput ratio.

    Attributes:
        usd_per_hour: Cost of a useful hour of the owned machine.
        equivalent_usd_per_hour: Cost of renting to do the work of that hour.
        break_even_hours: Useful hours after which owning is cheaper.
        break_even_utilization: The minimum utilization: those hours as a share of the machine's life.
        verdict: buy, rent, or depends.
        condition, price_date: Kind and date of the card price: new, used, or quoted by the buyer.
        host_usd: Part of the purchase price for the machine around the cards.
        power_w: Power draw of its GPUs while working.
        years, utilization: The assumed life and expected utilization.
    """

    gpu_key: str
    gpu_count: int
    instance: str
    purchase_usd: float
    power_w: float
    usd_per_hour: float
    usd_per_hour_low: float
    usd_per_hour_high: float
    against: str
    against_pricing: Pricing
    equivalent_usd_per_hour: float
    break_even_hours: float | None
    break_even_hours_low: float | None
    break_even_hours_high: float | None
    break_even_utilization: float | None
    break_even_utilization_low: float | None
    break_even_utilization_high: float | None
    verdict: Literal["buy", "rent", "depends"]
    condition: PriceCondition
    host_usd: float
    assumed: tuple[str, ...]
    years: float
    utilization: float
    price_date: str

    @property
    def hourly_usd(self) -> Interval:
        """Cost of a useful hour of the owned machine [USD]."""
        return Interval(self.usd_per_hour, self.usd_per_hour_low, self.usd_per_hour_high)


class ExcludedOffer(Record, frozen=True, kw_only=True):
    """An offer that is not ranked, and why; ``rule`` is the option or fact that excludes it."""

    provider: str
    instance: str
    gpu_key: str
    reason: str
    rule: str


class Sentence(Record, frozen=True, kw_only=True):
    """One sentence about a ranking, ending in a period.

    Attributes:
        kind: ``answer``, a reply to an option (``asked``), the certainty (``sureness``), something to know
            before paying (``caution``), or a ``note`` on the figures. The first screen has every ``asked``
            and ``caution``, whatever its length, and no ``note``.
    """

    kind: SentenceKind
    text: str


class Answer(Record, frozen=True, kw_only=True):
    """The answer to one of three questions: the cheapest, the sensible choice, the fastest.

    Attributes:
        choice: The row, with everything else to know about it.
        p_best: Probability that these GPUs are the best answer, from any provider; None if it is not computed
            or only one GPU is left. The row has its own probability.
        toss_up: The GPUs of the row and their most likely rivals: key, count, and the probability of being
            the best answer. None if the odds against the rivals are at least two to one.
    """

    choice: Choice
    p_best: float | None = None
    toss_up: tuple[tuple[str, int, float], ...] | None = None

    @property
    def row(self) -> Row:
        """The row of the choice."""
        return self.choice.row


class Ranking(Record, frozen=True, kw_only=True):
    """The ranked offers, the excluded offers, and the sentences that summarize the ranking.

    Attributes:
        objective: The sort order in words.
        sorted_by: The sort order as one word; P(best) and ties use it too: ``value`` (samples per dollar) or
            ``throughput``, and for a job also ``total`` (dollars plus the value of its hours), ``cost`` or
            ``time``.
        hour_worth_usd: Value of an hour of waiting for the job [USD]; None if there is no job.
        unit: What a sample is, in the plural; "samples" for several workloads.
        by_reference: Whether ``throughput_of`` and ``value_of`` return multiples of the reference GPU,
            because a sum of samples of different workloads is meaningless.
        throughput_unit, value_unit: Units of the results of those two methods.
        max_purchase_usd: The limit on the purchase price, if one was given.
        offer_count: Number of ranked offers; ``rows`` may hold only the first, or the best of each GPU.
        job: The job that hours and dollars refer to; None with the setting ``relative``, or if no job can be
            defined.
        answers: The cheapest row (in dollars), the sensible row (in dollars plus the value of the hours) and
            the fastest, whatever the sort order.
        cloud: The cheapest offer of a cloud, if the cheapest offer is from another kind of seller; else None.
        owned: Each ranked machine of the buyer (``--have``).
        asked: The cheapest offer of each GPU, if several were requested.
        by_gpu: The best offer of each GPU, best first, with the other providers of that GPU; renting and
            owning are separate.
        best_to_own: The best hardware to buy, even if only rentals were ranked; None if only renting was
            requested.
        best_to_own_use: Expected utilization in the hourly cost of ``best_to_own``; None if nothing was paid
            for it.
        sentences: The summary, most important sentence first.
        question: The question as it was understood.
    """

    as_of: str
    objective: str
    sorted_by: SortedBy = "value"
    hour_worth_usd: float | None = None
    cases: tuple[Case, ...]
    unit: str
    by_reference: bool = False
    throughput_unit: str = "samples/s"
    value_unit: str = "samples per dollar"
    reference_gpu_key: str | None
    rows: tuple[Row, ...]
    offer_count: int | None = None
    excluded: tuple[ExcludedOffer, ...]
    job: Job | None
    answers: Mapping[str, Answer]
    cloud: Choice | None = None
    owned: tuple[Choice, ...] = ()
    asked: tuple[Choice, ...] = ()
    by_gpu: tuple[Choice, ...]
    best_to_own: Choice | None = None
    sentences: tuple[Sentence, ...] = ()
    question: Mapping[str, Any] = {}
    best_to_own_use: float | None = None
    buy_or_rent: tuple[BuyOrRent, ...] = ()
    max_purchase_usd: float | None = None

    def __repr__(self) -> str:
        """Return the day, the objective, and the first rows; ``rows`` has every row."""
        head = (
            f"<Ranking as of {self.as_of} by {self.objective}: {count(len(self.rows), 'row')}, "
            f"{len(self.excluded):,} excluded"
        )
        shared_ranks = self.shared_ranks
        lines = []
        for row in self.rows[:LINES_IN_REPR]:
            tie = "=" if row.rank in shared_ranks else " "
            price = f"{labels().gpus_at(row.offer)}, {format_usd(row.usd_per_hour.value)}/h"
            best = "" if row.p_best is None else f", P(best) {format_chance(row.p_best)}"
            job = "" if row.cost_usd.value is None else f", the job {format_usd(row.cost_usd.value)}"
            lines.append(f"  {row.rank}{tie} {price}{job}{best}")
        return headed(head, lines, len(self.rows))

    def _repr_html_(self) -> str:
        return str(views().ranking_html(self))

    def plot(self) -> Figure:
        """Return a plot of hours versus dollars; without a job, of throughput versus the price of an hour."""
        return views().ranking_figure(self)

    @property
    def first(self) -> Choice:
        """The first row, with everything else to know about it."""
        return self.by_gpu[0]

    @property
    def verdict(self) -> str:
        """The sentences except the notes, as one text."""
        return " ".join(self.said("answer", "asked", "sureness", "caution"))

    def said(self, *kinds: SentenceKind) -> tuple[str, ...]:
        """Return the text of each sentence of these kinds, in the ranking's order."""
        return tuple(each.text for each in self.sentences if each.kind in kinds)

    def throughput_of(self, row: Row) -> Interval:
        """Return a row's throughput and its interval, in ``throughput_unit``."""
        return row.score.collapsed if self.by_reference else row.samples_per_s

    def value_of(self, row: Row) -> Interval:
        """Return the work per dollar of a row, and its interval, in ``value_unit``."""
        return row.reference_hours_per_usd.collapsed if self.by_reference else row.samples_per_usd

    @property
    def shared_ranks(self) -> frozenset[int]:
        """Ranks that several offers share."""
        counts = Counter(row.rank for row in self.rows)
        return frozenset(
            row.rank for row in self.rows if row.rank is not None and (row.tie or counts[row.rank] > 1)
        )

    def to_frame(self) -> DataFrame:
        """Return the ranked rows as a pandas DataFrame: one row per offer, columns as in ``rank --json``."""
        import pandas as pd

        return pd.DataFrame([row.flat() for row in self.rows])
