"""Estimates, and the offers ranked by them."""

from __future__ import annotations

import math
from collections import Counter
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gpubench.findings import Finding, FindingKind
from gpubench.interval import Interval
from gpubench.models.case import Case
from gpubench.models.catalog import Offer
from gpubench.models.decision import Decision
from gpubench.models.measurement import Basis, BatchChoice
from gpubench.models.record import (
    LINES_IN_REPR,
    Record,
    brief_repr,
    headed,
    labels,
    shown,
    views,
)
from gpubench.pricings import PriceCondition, Pricing
from gpubench.recipes import ParallelMode
from gpubench.units import count, format_chance, format_usd

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure


SortedBy = Literal["value", "throughput", "cost", "time"]
"""What the rows of a ranking are in order of: the last two are of a job."""


class Estimate(Record, frozen=True, kw_only=True):
    """Throughput of one case on one GPU, with the interval and what it rests on.

    ``low`` and ``high`` bound 95 % for a measurement and 90 % for a prediction; None is unknown.
    ``anchored`` says whether a prediction starts from a GPU measurement of the same case. ``host_cpu`` names
    the processor that set the pace of a host-bound measurement. ``batch_choice`` says whether the batch is
    the one asked for or the largest that fits; ``batch_found_by`` is the id of the run that searched it,
    None where the memory model gave it. ``peak_memory_bytes`` is what tensors take; ``device_bytes`` is
    memory in use on the device, with its interval, and ``memory_text`` what that says of this card.
    ``fewest_gpus`` is how many must share out weights, gradients and states (FSDP) for the case to fit: above
    1, throughput is of one of them as if it held everything, memory is of one of so few.
    ``first_token_s`` is of a generation that was measured there [s]; ``per_token_s``, of each token after, of
    one that was predicted too, then with the ends of its own interval, ``_low`` and ``_high``.
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
    device_bytes: int | None = None
    device_bytes_low: int | None = None
    device_bytes_high: int | None = None
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
    per_token_s: float | None = None
    per_token_s_low: float | None = None
    per_token_s_high: float | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def interval(self) -> Interval:
        """The throughput with its interval [samples/s]."""
        return Interval(self.samples_per_s, self.low, self.high)

    @property
    def is_extrapolated(self) -> bool:
        """Whether it is a guess: a prediction for a GPU that lies beyond what the fit covers."""
        return any(finding.kind is FindingKind.OUT_OF_DOMAIN for finding in self.findings)


class RankedOffer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of a ranking. ``samples_per_s`` is of the whole instance, with all that follows from it.

    Attributes:
        samples_per_s: The lesser of what its GPUs do, ``gpus_samples_per_s``, and what its vCPUs feed.
        rank: Shared by the rows of a band; see ``gpubench.recommend.chances.bands``. None beside the ranking.
        expected_usd_per_hour: What a buyer should expect to pay for the instance, which every figure of the
            row is at; ``_low`` and ``_high`` hold nine tenths. That of a list price is the one listed.
        tie: Whether the row cannot be told from the first of its band.
        p_best, p_top3: Probability of being the best offer, or among the best three, over joint draws.
            None where it is not worked out: of a fourth offer of a machine below the first 1,000 rows.
        p_best_independent: The first where the error of each GPU is its own and none cancels.
        p_near_best: Probability of coming within 10 % of the best.
        hours, cost_usd: Of the job, where one was given; ``_low`` and ``_high`` are of the interval.
        pareto: Whether nothing else is as fast, as cheap and as large in memory at once.
        dominated_by: What is, and in which respects it is better.
        score: Throughput of the instance over that of one reference GPU.
        reference_hours_per_usd: Hours of the reference GPU's work that a dollar buys.
        spot_break_even: Share of the work that may be lost before the same machine on demand does the job for
            as little; 0 where it does so anyway.
        latency_s: Of one batch, for inference.
        scaling_efficiency: Throughput over that of as many GPUs alone, by the recipe of the job: where one of
            so many GPUs has another (``checkpointing_from``), what that gains is in the samples alone.
        parallel_mode: How the GPUs of the instance share the job.
        factors: Memory, cores, ECC ... of the GPU.
        parts: The estimates of single workloads, where several count together.
    """

    rank: int | None
    offer: Offer
    estimate: Estimate
    expected_usd_per_hour: float
    expected_usd_per_hour_low: float
    expected_usd_per_hour_high: float
    samples_per_s: float
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    gpus_samples_per_s: float
    samples_per_usd: float
    samples_per_usd_low: float | None
    samples_per_usd_high: float | None
    usd_per_million_samples: float
    scaling_efficiency: float
    scaling_basis: str
    hours: float | None = None
    cost_usd: float | None = None
    p_best: float | None = None
    p_best_independent: float | None = None
    p_near_best: float | None = None
    p_top3: float | None = None
    pareto: bool | None = None
    tie: bool = False
    fits_memory: bool | None = None
    price_age_days: int | None = None
    score: float | None = None
    score_low: float | None = None
    score_high: float | None = None
    reference_hours_per_usd: float | None = None
    reference_hours_per_usd_low: float | None = None
    reference_hours_per_usd_high: float | None = None
    hours_low: float | None = None
    hours_high: float | None = None
    cost_usd_low: float | None = None
    cost_usd_high: float | None = None
    dominated_by: str | None = None
    spot_break_even: float | None = None
    latency_s: float | None = None
    parallel_mode: ParallelMode = ParallelMode.SINGLE
    factors: dict[str, Any] = {}
    parts: tuple[Estimate, ...] = ()
    findings: tuple[Finding, ...] = ()

    def __repr__(self) -> str:
        """Return the fields; what is long is named by its type and length."""
        return brief_repr(self)

    @property
    def is_expected_as_listed(self) -> bool:
        """Whether the price to expect is the one listed; that of an old ask is nearer to other asks."""
        listed = float(self.offer.price_usd_per_hour)
        return math.isclose(self.expected_usd_per_hour, listed, rel_tol=1e-9)

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The estimate of each workload: ``parts``, and of a single one ``estimate`` itself."""
        return self.parts or (self.estimate,)

    @property
    def hourly_usd(self) -> Interval:
        """What to expect to pay for the instance [USD/h]."""
        return Interval(
            self.expected_usd_per_hour, self.expected_usd_per_hour_low, self.expected_usd_per_hour_high
        )

    @property
    def job_hours(self) -> Interval:
        """Time of the job [h]; unknown where none was given."""
        return _certain_or_not(self.hours, self.hours_low, self.hours_high)

    @property
    def job_cost_usd(self) -> Interval:
        """Cost of the job [USD]; unknown where none was given."""
        return _certain_or_not(self.cost_usd, self.cost_usd_low, self.cost_usd_high)

    def flat(self) -> dict[str, Any]:
        """Return the row as one flat record: the keys of ``gpubench rank --json``."""
        flat: dict[str, Any] = {"rank": self.rank}
        flat.update(zip(_OFFER_COLUMNS, _offer_values(self.offer), strict=True))
        flat["price_usd_per_hour"] = float(self.offer.price_usd_per_hour)
        flat["price_note"] = self.offer.note
        flat.update(zip(_ESTIMATE_COLUMNS, _estimate_values(self.estimate), strict=True))
        case = self.estimate.case
        flat["batch_size"], flat["precision"] = case.batch_size, case.precision
        flat.update(zip(_ROW_COLUMNS, _row_values(self), strict=True))
        flat.update(self.factors)
        flat["findings"] = [str(finding.kind) for finding in self.findings]
        return flat


def _certain_or_not(value: float | None, low: float | None, high: float | None) -> Interval:
    """Return a figure without ends where they are the figure itself: a reference GPU against itself is 1."""
    return Interval(value) if low == value == high else Interval(value, low, high)


_NOT_FLAT = frozenset({"offer", "estimate", "parts", "factors", "findings"})
_ROW_COLUMNS = tuple(name for name in RankedOffer.__struct_fields__ if name not in _NOT_FLAT)
_ESTIMATE_COLUMNS = (
    "basis",
    "anchored",
    "method",
    "host_cpu",
    "peak_memory_bytes",
    "device_bytes",
    "device_bytes_low",
    "device_bytes_high",
    "memory_text",
    "largest_batch",
    "batch_choice",
    "fewest_gpus",
)
_OFFER_COLUMNS = (
    "provider", "instance", "region", "gpu_key", "gpu_count", "vcpus", "ram_bytes",
    "pricing", "kind", "price_usd_per_hour", "price_date", "in_stock", "stock_date",
)  # fmt: skip


_row_values, _offer_values, _estimate_values = (
    attrgetter(*columns) for columns in (_ROW_COLUMNS, _OFFER_COLUMNS, _ESTIMATE_COLUMNS)
)


class Purchase(Record, frozen=True, kw_only=True):
    """A set of cards to buy, with the host around it, that keeps within what was asked.

    Attributes:
        condition: Of the price: new, used, unstated, the maker's launch price, or quoted by the buyer.
        gpu_count: Of one machine; ``machine_count`` of them do the jobs of a month, 1 where none are told.
        cards_usd: All the cards; with ``host_usd`` they make ``purchase_usd``, of all machines.
        board_power_w, slots: What the cards draw at most and take in the host.
        memory_free: Share of a card's memory that the workloads leave; None is unknown.
        samples_per_s: Of the set; ``score`` is the same as a multiple of the reference GPU.
        usd_per_hour: Cost of a useful hour.
        hours: Of one job.
        utilization: Share of all hours that it works: what the jobs of a month take, else assumed.
        cards_needed: Such cards that do the jobs of a month; None where none are told.
        extrapolated: Whether its throughput is predicted beyond what the model was fitted on.
        assumed: What was not given.
    """

    gpu_key: str
    gpu_count: int
    machine_count: int = 1
    condition: PriceCondition
    cards_usd: float
    host_usd: float
    purchase_usd: float
    price_date: str
    source: str
    rank: int | None
    p_best: float | None
    board_power_w: float
    slots: float
    memory_free: float | None
    samples_per_s: float
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    score: float | None
    score_low: float | None
    score_high: float | None
    usd_per_hour: float
    hours: float | None
    utilization: float
    cards_needed: int | None
    extrapolated: bool = False
    assumed: tuple[str, ...] = ()


class BuyOrRent(Record, frozen=True, kw_only=True):
    """Owning one machine against the best rented offer at equal throughput.

    A break-even of None is never; ``_low`` is the end that favors owning, ``_high`` the other, over the
    ranges of resale, utilization and tariff and the interval of the throughput ratio.

    Attributes:
        usd_per_hour: Cost of a useful hour of the owned machine.
        equivalent_usd_per_hour: What the rival costs for the same work in that hour.
        break_even_hours: Useful hours after which owning is the cheaper.
        break_even_utilization: Those hours as a share of all hours of its life: what it must work at least.
        verdict: buy, rent, or depends.
        quoted: Whether the price is the buyer's own; else a dated one of a card, new or used (``condition``).
        host_usd: The share of the purchase that is the machine around the cards.
        years, utilization: Its life, and the likely share of hours at work, that the figures hold for.
    """

    gpu_key: str
    gpu_count: int
    instance: str
    purchase_usd: float
    power_w: float
    power_basis: str
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
    quoted: bool = False
    condition: PriceCondition = PriceCondition.QUOTED
    host_usd: float = 0.0
    assumed: tuple[str, ...] = ()
    years: float | None = None
    utilization: float | None = None

    @property
    def hourly_usd(self) -> Interval:
        """Cost of a useful hour of the owned machine [USD]."""
        return Interval(self.usd_per_hour, self.usd_per_hour_low, self.usd_per_hour_high)


class ExcludedOffer(Record, frozen=True, kw_only=True):
    """An offer that is not ranked, and why."""

    provider: str
    instance: str
    gpu_key: str
    reason: str


class SentenceKind(StrEnum):
    """What a sentence of a verdict tells, by which a reader finds it."""

    NO_GPU_NEEDED = "no gpu needed"
    ANSWER = "answer"
    SURENESS = "sureness"
    CAUTION = "caution"
    """What the answer rests on and should not."""
    ADVICE = "advice"
    """What to do before paying, that the choice be surer."""
    BESIDE = "beside"
    """All else: ties, the fastest, what buying takes."""


class Sentence(Record, frozen=True, kw_only=True):
    """One thing that a verdict says, with its full stop."""

    kind: SentenceKind
    text: str


class Ranking(Record, frozen=True, kw_only=True):
    """Offers by training per dollar, with what was left out and the sentences that sum it up.

    Attributes:
        objective: What the rows are in order of, in words.
        sorted_by: The same as one word. P(best), ties and the verdict are of it too: ``value`` (samples per
            dollar) or ``throughput``, and where a job was given ``cost`` or ``time`` of the job.
        unit: What a sample is, in the plural; of several workloads it is just "samples".
        by_reference: Whether figures are for people as multiples of the reference GPU, because samples of
            several workloads together mean nothing; ``throughput_of`` and ``value_of`` give them.
        throughput_unit, value_unit: Units of what those two return.
        max_purchase_usd: The limit of a purchase, where one was given; ``purchases`` are the sets within it.
        offer_count: Offers that were ranked; ``rows`` may be the first of them, or the best of each GPU.
        sentences: Of the verdict: the answer, how sure it is, the fastest and the cheapest; the first stands
            alone. ``verdict`` is their text.
        decision: The same as data, with what the verdict has no room for.
        best_to_own_use: Likely share of hours at work that an hour of ``decision.best_to_own`` is priced at;
            None where nothing was paid for it.
        notes: What to know of the figures, a sentence each.
        decisive_notes: So many of the first notes are to be read before acting; figures rest on the others.
    """

    schema_version: int = 2
    as_of: str
    objective: str
    sorted_by: SortedBy = "value"
    cases: tuple[Case, ...]
    unit: str
    by_reference: bool = False
    throughput_unit: str = "samples/s"
    value_unit: str = "samples per dollar"
    reference_gpu_key: str | None
    rows: tuple[RankedOffer, ...]
    offer_count: int | None = None
    excluded: tuple[ExcludedOffer, ...]
    sentences: tuple[Sentence, ...] = ()
    decision: Decision
    best_to_own_use: float | None = None
    buy_or_rent: tuple[BuyOrRent, ...] = ()
    max_purchase_usd: float | None = None
    purchases: tuple[Purchase, ...] = ()
    notes: tuple[str, ...] = ()
    decisive_notes: int = 0

    def __repr__(self) -> str:
        """Return the day, what it is in order of, and the head of the rows; ``rows`` has them all."""
        head = (
            f"<Ranking as of {self.as_of} by {self.objective}: {count(len(self.rows), 'row')}, "
            f"{len(self.excluded):,} excluded"
        )
        shared_ranks = self.shared_ranks
        lines = []
        for row in self.rows[:LINES_IN_REPR]:
            offer, tie = row.offer, "=" if row.rank in shared_ranks else " "
            what = f"{labels().gpus_of(offer)} at {shown(offer.provider)} {shown(offer.instance)}"
            price = f"{labels().pricing_words(offer)}, {format_usd(row.expected_usd_per_hour)}/h"
            best = "" if row.p_best is None else f", P(best) {format_chance(row.p_best)}"
            job = "" if row.cost_usd is None else f", the job {format_usd(row.cost_usd)}"
            lines.append(f"  {row.rank}{tie} {what}, {price}{job}{best}")
        return headed(head, lines, len(self.rows))

    def _repr_html_(self) -> str:
        """Return the card and the head of the rows for notebooks."""
        html: str = views().ranking_html(self)
        return html

    def plot(self) -> Figure:
        """Return every GPU on one axis, its best offer by what the rows are in order of, as a figure."""
        return views().ranking_figure(self)

    @property
    def verdict(self) -> str:
        """The answer, how sure it is, the fastest and the cheapest, as one text."""
        return " ".join(each.text for each in self.sentences)

    def throughput_of(self, row: RankedOffer) -> Interval:
        """Return a row's throughput and its interval, in ``throughput_unit``."""
        if self.by_reference:
            return _certain_or_not(row.score, row.score_low, row.score_high)
        return Interval(row.samples_per_s, row.samples_per_s_low, row.samples_per_s_high)

    def value_of(self, row: RankedOffer) -> Interval:
        """Return what a dollar buys of a row and its interval, in ``value_unit``."""
        if self.by_reference:
            return _certain_or_not(
                row.reference_hours_per_usd,
                row.reference_hours_per_usd_low,
                row.reference_hours_per_usd_high,
            )
        return Interval(row.samples_per_usd, row.samples_per_usd_low, row.samples_per_usd_high)

    def merit_of(self, row: RankedOffer) -> Interval:
        """Return what the rows are in order of, and its interval: see ``sorted_by``."""
        if self.sorted_by == "cost":
            return row.job_cost_usd
        if self.sorted_by == "time":
            return row.job_hours
        return self.value_of(row) if self.sorted_by == "value" else self.throughput_of(row)

    @property
    def shared_ranks(self) -> frozenset[int]:
        """Ranks that several offers have: ties, and what stands among them."""
        of = Counter(row.rank for row in self.rows)
        return frozenset(
            row.rank for row in self.rows if row.rank is not None and (row.tie or of[row.rank] > 1)
        )

    def to_frame(self) -> DataFrame:
        """Return the ranked rows as a pandas frame, one row an offer, columns as in ``rank --json``."""
        import pandas as pd

        return pd.DataFrame([row.flat() for row in self.rows])
