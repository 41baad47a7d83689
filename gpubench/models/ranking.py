"""The offers ranked by what a dollar buys: each choice, its place, and the sentences that sum them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from gpubench.interval import Interval
from gpubench.models.case import Case
from gpubench.models.catalog import Offer
from gpubench.models.record import LINES_IN_REPR, Record, headed, labels, shown, views
from gpubench.models.row import Row
from gpubench.pricings import PriceCondition, Pricing
from gpubench.units import count, format_chance, format_usd

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure


Source = Literal["cloud", "marketplace", "own"]
"""Who owns the machine: a cloud provider, a host of a marketplace, or the buyer."""


class Job(Record, frozen=True, kw_only=True):
    """The work that hours and dollars refer to.

    Attributes:
        words: "90 epochs of ImageNet", "24 h of one A100 SXM4 80GB".
        samples: How much, in ``unit``; of work given in hours of a reference GPU its likely figure.
        is_default: Whether the question named no job.
        startup_minutes: Paid before the first step on every rented machine.
    """

    words: str
    samples: float
    unit: str
    is_default: bool
    startup_minutes: float
    reference_gpu_key: str | None = None
    reference_hours: float | None = None


class Asks(Record, frozen=True, kw_only=True):
    """Asking prices of marketplace hosts for an hour of one such GPU, with the same pricing [USD].

    Attributes:
        low, high: Ends of the 90 % range of the asks, from the spread of their logarithms.
        own_weight: Weight of the asks against the list prices of clouds; 1 is the asks alone.
    """

    median_usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float
    ask_count: int
    provider_count: int
    own_weight: float = 1.0


class Elsewhere(Record, frozen=True, kw_only=True):
    """The same GPU at another provider: its best offer there, with what to expect to pay."""

    offer: Offer
    usd_per_hour: float
    cost_usd: float | None = None


class Choice(Record, frozen=True, kw_only=True):
    """A row, with everything else to know before paying; unknown is None.

    Attributes:
        row: The offer in its place; without a rank where it stands beside the ranking, as hardware to buy
            unless asked for.
        condition: What its price is: a list price, one host's, of new or used cards, or quoted by the buyer.
        purchase_usd: Of owned hardware: GPUs and the counted share of the host, ``host_usd``.
        assumed: Of owned hardware: what was not given.
        price_note: A doubt about the price, or a remark on it; for a card to buy, its source.
        price_doubt: How far a price that no other provider confirms stands from theirs; None where it is
            believed.
        asks: Of a marketplace: what the others ask.
        regions: Where this provider has this GPU in this number, the offer's own first.
        needs_quota: Whether a new account must ask for a quota first.
        p_best_of_gpu: Probability that the best is an offer of this GPU, anyone's; to rent and to own apart.
        feed_images_per_s: Photographs that must be decoded and augmented each second at work, of spot before
            any work is lost; None for other data.
        feed_vcpus: How many vCPUs that takes, at ``recommend.candidates.IMAGES_PER_VCPU_S``, assumed.
        also_at: The same GPU elsewhere, best first.
        host_unsaid: Unknown facts of the host, with what the job needs: "RAM (23.2 GiB needed)".
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
        """What is paid for."""
        return self.row.offer

    @property
    def source(self) -> Source:
        """Who has the machine."""
        if self.offer.pricing is Pricing.OWNED:
            return "own"
        return "marketplace" if self.offer.kind == "marketplace" else "cloud"

    @property
    def fed_share(self) -> float | None:
        """Photographs that its vCPUs prepare, as a share of what its GPUs take; None where not known."""
        vcpus = self.offer.vcpus
        return None if vcpus is None or not self.feed_vcpus else vcpus / self.feed_vcpus

    @property
    def can_feed(self) -> bool | None:
        """Whether its vCPUs prepare as many photographs as its GPUs take; None where that is not known."""
        return None if self.fed_share is None else self.fed_share >= 1


RANKING_SCHEMA = "gpubench.ranking/3"
"""Schema of ``gpubench rank --json``; other documents have their own versions."""

SortedBy = Literal["total", "value", "throughput", "cost", "time", "joules"]
"""What sorts the rows of a ranking."""


SentenceKind = Literal["answer", "asked", "sureness", "caution", "note"]


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
        condition, price_date: Of the price of the cards: dated and new or used, or quoted by the buyer.
        host_usd: The share of the purchase that is the machine around the cards.
        power_w: What its GPUs draw at work.
        years, utilization: Its life, and the likely share of hours at work, that the figures hold for.
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
    """An offer that is not ranked, and why; ``rule`` is the option, or the fact, that leaves it out."""

    provider: str
    instance: str
    gpu_key: str
    reason: str
    rule: str


class Sentence(Record, frozen=True, kw_only=True):
    """One thing that is said of a ranking, with its full stop.

    Attributes:
        kind: ``answer``, what an option asked about (``asked``), how sure it is (``sureness``), what to know
            before paying (``caution``), or a ``note`` on the figures. A first screen has what was asked and
            what to know whatever else it has room for, and no note.
    """

    kind: SentenceKind
    text: str


class Answer(Record, frozen=True, kw_only=True):
    """What answers one of three questions: the cheapest, the sensible choice, the fastest.

    Attributes:
        choice: The row, with what else must be known of it.
        p_best: Probability that no other GPUs are a better answer, whoever sells these; None if it is not
            computed, and where one GPU is left to choose from. That of the row alone is the row's own.
        toss_up: The GPUs of the row and their likeliest rivals: key, how many, and the probability that they
            are the best answer. None if the odds against the rivals are two to one at least.
    """

    choice: Choice
    p_best: float | None = None
    toss_up: tuple[tuple[str, int, float], ...] | None = None

    @property
    def row(self) -> Row:
        """The row that answers."""
        return self.choice.row


class Ranking(Record, frozen=True, kw_only=True):
    """Offers by training per dollar, with what was left out and the sentences that sum it up.

    Attributes:
        objective: What the rows are in order of, in words.
        sorted_by: The same as one word. P(best) and ties are of it too: ``value`` (samples per dollar) or
            ``throughput``, and of a job ``total`` (dollars and what its hours are worth), ``cost`` or
            ``time``.
        hour_worth_usd: What an hour of waiting for the job counts [USD]; None if there is no job.
        unit: What a sample is, in the plural; of several workloads it is just "samples".
        by_reference: Whether figures are for people as multiples of the reference GPU, because samples of
            several workloads together mean nothing; ``throughput_of`` and ``value_of`` give them.
        throughput_unit, value_unit: Units of what those two return.
        max_purchase_usd: The limit of a purchase, where one was given.
        offer_count: Offers that were ranked; ``rows`` may be the first of them, or the best of each GPU.
        job: What hours and dollars are of; None with the setting ``relative`` and where none can be made.
        answers: The cheapest row (of dollars), the sensible one (of dollars and what the hours are worth) and
            the fastest, whatever the rows are in order of.
        cloud: The least in dollars of a cloud, where the cheapest is of anybody else; None elsewhere.
        owned: Each machine that the buyer named and that is ranked.
        asked: The least in dollars of each GPU that was named beside others.
        by_gpu: The best offer of each GPU, best first, each with where else it is offered; to rent and to own
            apart.
        best_to_own: The best hardware to buy, also where only rent was ranked, unless rent was asked for.
        best_to_own_use: Likely share of hours at work that an hour of ``best_to_own`` is priced at; None
            if nothing was paid for it.
        sentences: What is said of it, the most important first.
        question: What was asked, as it was understood.
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
            price = f"{labels().pricing_words(offer)}, {format_usd(row.usd_per_hour.value)}/h"
            best = "" if row.p_best is None else f", P(best) {format_chance(row.p_best)}"
            job = "" if row.cost_usd.value is None else f", the job {format_usd(row.cost_usd.value)}"
            lines.append(f"  {row.rank}{tie} {what}, {price}{job}{best}")
        return headed(head, lines, len(self.rows))

    def _repr_html_(self) -> str:
        html: str = views().ranking_html(self)
        return html

    def plot(self) -> Figure:
        """Return every GPU on one axis, its best offer by what the rows are in order of, as a figure."""
        return views().ranking_figure(self)

    @property
    def first(self) -> Choice:
        """The first row, with what else must be known of it."""
        return self.by_gpu[0]

    @property
    def verdict(self) -> str:
        """The answers and what is said of them but for the notes, as one text."""
        return " ".join(self.said("answer", "asked", "sureness", "caution"))

    def said(self, *kinds: SentenceKind) -> tuple[str, ...]:
        """Return the text of each sentence of these kinds, in their order."""
        return tuple(each.text for each in self.sentences if each.kind in kinds)

    def throughput_of(self, row: Row) -> Interval:
        """Return a row's throughput and its interval, in ``throughput_unit``."""
        return row.score.collapsed if self.by_reference else row.samples_per_s

    def value_of(self, row: Row) -> Interval:
        """Return what a dollar buys of a row and its interval, in ``value_unit``."""
        return row.reference_hours_per_usd.collapsed if self.by_reference else row.samples_per_usd

    @property
    def shared_ranks(self) -> frozenset[int]:
        """Ranks that several offers share: ties, and the rows among them."""
        of = Counter(row.rank for row in self.rows)
        return frozenset(
            row.rank for row in self.rows if row.rank is not None and (row.tie or of[row.rank] > 1)
        )

    def to_frame(self) -> DataFrame:
        """Return the ranked rows as a pandas frame, one row an offer, columns as in ``rank --json``."""
        import pandas as pd

        return pd.DataFrame([row.flat() for row in self.rows])
