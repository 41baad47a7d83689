"""What is said of one choice: what it is, where, its price and its date, and what else must be known."""

from __future__ import annotations

from collections.abc import Iterator

from gpubench.blocks.parts import Fact, Facts
from gpubench.findings import FindingKind
from gpubench.labels import CONDITION_WORDS, HOSTS_ASK, card_condition, gpu_name, gpus_of, price_of
from gpubench.models import Choice, Elsewhere, ParallelMode, PriceCondition, Pricing, Ranking
from gpubench.models.memory import fits_text, without_reason
from gpubench.offers.dates import NOT_CURRENT_AFTER_DAYS, dated
from gpubench.sections.words import hours_words, in_stock_words
from gpubench.units import (
    format_bytes,
    format_number,
    format_percent,
    format_price,
    format_usd,
    listing,
    plain,
)

MOST_REGIONS = 4
"""Regions of an offer that are named."""


MOST_MEMORY_CHARACTERS = 300
"""Of what is said of memory: why a step was not traced is another's text."""


def fits_words(choice: Choice) -> str:
    """Return whether the job fits in memory, with the need: "fits (needs 6.1 to 7.8 of 24 GiB)".

    A device without figures of its memory ran the job, and needs none.
    """
    row = choice.row
    if row.fits_memory is None:
        return "memory not checked"
    if not row.fits_memory:
        return "may not fit in memory"
    return plain(row.estimate.memory_text or _fits(choice), MOST_MEMORY_CHARACTERS)


def _fits(choice: Choice) -> str:
    return fits_text(sharded=choice.row.parallel_mode is ParallelMode.FSDP)


def fits_in_short(choice: Choice) -> Iterator[str]:
    """Yield the same in ever fewer words, the last by what is spare: "fits, 16.2 GiB spare, not traced".

    Spare is what the upper end of the need leaves, which is a bound as well. Of a step that was not traced
    the need comes first.
    """
    full, margin = fits_words(choice), choice.memory_margin_bytes
    untraced = without_reason(full) != full
    if untraced:
        yield without_reason(full)
    if not choice.row.fits_memory or margin is None:
        yield without_reason(full)
        return
    fits = _fits(choice)
    in_eager_steps = any(finding.kind is FindingKind.EAGER_MEMORY for finding in choice.row.findings)
    if in_eager_steps and choice.row.parallel_mode not in {ParallelMode.DDP, ParallelMode.FSDP}:
        fits = f"{fits} eagerly"
    yield f"{fits}, {format_bytes(margin)} spare{', not traced' if untraced else ''}"


def gpus_and_where(choice: Choice) -> str:
    """Return what to get and from whom: "1x L4 at gcp", "2x RTX 5070 (used) with a host for $2,114"."""
    return f"{gpus_of(choice.offer)} {_where(choice)}"


def _where(choice: Choice) -> str:
    if choice.source == "own" and choice.purchase_usd is None:
        return "of your own"
    if choice.source == "own":
        said = card_condition(choice.condition)
        condition = f"({said}) " if said else ""
        host = "with a host " if choice.host_usd else ""
        return f"{condition}{host}for {format_price(choice.purchase_usd)}"
    spot = " spot" if choice.offer.pricing is Pricing.SPOT else ""
    return f"at {plain(choice.offer.provider, 30)}{spot}"


def beside_words(choice: Choice) -> str:
    """What a winner is, where, and what the job costs there; all else stands below the table."""
    offer, usd = choice.offer, choice.row.cost_usd.value
    name = gpu_name(offer.gpu_key) if offer.gpu_count == 1 else gpus_of(offer)
    where = [] if choice.source == "own" else [plain(offer.provider, 30)]
    return ", ".join([name, *where, *([] if usd is None else [format_usd(usd)])])


def rival_words(choice: Choice) -> str:
    """Like a winner; hardware with what is paid for it."""
    if choice.source != "own" or choice.purchase_usd is None:
        return beside_words(choice)
    usd = choice.row.cost_usd.value
    cost = "" if usd is None else f", {format_usd(usd)}"
    if not choice.purchase_usd:  # a machine that is there already
        return f"your {gpus_of(choice.offer)}{cost}"
    return f"{gpus_of(choice.offer)} for {format_price(choice.purchase_usd)}{cost}"


def if_bought(choice: Choice, use: float | None) -> str:
    """What must be paid and done for the cost of a job to hold: ": $1,450 first, if busy 50 %".

    Args:
        choice: What may be hardware to buy.
        use: The share of hours at work that its price holds for.
    """
    if choice.source != "own" or not choice.purchase_usd:
        return ""
    return f": {format_price(choice.purchase_usd)} first{_if_busy(use)}"


def _if_busy(use: float | None) -> str:
    """At what use an hour of work costs what it does."""
    return "" if use is None else f", if busy {format_percent(use)}"


def offered(choice: Choice, *, aged: bool) -> str:
    """What to get, from whom, and for how much, with the date of the price: "own 1x RTX 5090 (used) ..."."""
    if choice.source == "own":
        day = "" if choice.purchase_usd is None else f" ({_dated(choice, aged=aged)})"
        return f"own {gpus_and_where(choice)}{day}"
    conditions = [_dated(choice, aged=aged)]
    row = choice.row
    listed_usd, as_listed = row.listed_usd_per_hour, row.is_expected_as_listed
    if not as_listed and listed_usd >= (row.usd_per_hour.value or 0.0):
        conditions.append(f"asked {format_usd(listed_usd)}")  # the one price that anybody was seen to ask
    if choice.condition is PriceCondition.SINGLE_HOST:
        conditions.append(HOSTS_ASK)
    conditions += ["quota"] if choice.needs_quota else []
    price = f"{' for ' if as_listed else ', ~'}{price_of(row)}"
    return f"rent {gpus_and_where(choice)}{price} ({', '.join(conditions)})"


def _dated(choice: Choice, *, aged: bool) -> str:
    """The date of a price; of one that is never called current, of a partial date at most, also its age."""
    age, day = choice.row.price_age_days, plain(choice.offer.price_date, 20)
    if not aged or age is None or age <= NOT_CURRENT_AFTER_DAYS:
        return day
    return dated(day, age)


def winners_in_full(ranking: Ranking) -> Facts:
    """The best cloud, marketplace and hardware to own, each with all that must be known before it is paid."""
    decision = ranking.decision
    named = (
        ("Best cloud", decision.best_cloud),
        ("Best marketplace", decision.best_marketplace),
        ("Best to own", decision.best_to_own),
    )
    return Facts(
        rows=tuple(
            Fact(term=term, value=_in_full(each, ranking.best_to_own_use))
            for term, each in named
            if each is not None
        )
    )


def _in_full(choice: Choice, use: float | None) -> str:
    """One offer: where, its price with label and age, the job, memory, feed, and what to ask first."""
    what, row = gpus_of(choice.offer), choice.row
    read = dated(plain(choice.offer.price_date, 20), row.price_age_days)
    if choice.source == "own":
        paid = ""
        if choice.purchase_usd is not None:
            host_usd = choice.host_usd or 0.0
            host = f" and a host for {format_price(host_usd)}" if host_usd else ""
            cards = f"{format_price(choice.purchase_usd - host_usd)} {CONDITION_WORDS[choice.condition]}"
            paid = f"{cards}{host} ({read}), "
        price = f"{what}, {paid}{format_usd(row.listed_usd_per_hour)} an hour of work{_if_busy(use)}"
    else:
        label = CONDITION_WORDS[choice.condition]
        asked = "" if row.is_expected_as_listed else f" of {format_usd(row.listed_usd_per_hour)}"
        price = f"{what} {_where(choice)}, {price_of(row)} ({label}{asked}, {read})"
    job = []
    if row.hours.value is not None:
        job = [f"{hours_words(row.hours.value)} and {format_usd(row.cost_usd.value)}"]
    return "; ".join([price, *job, fits_words(choice), *_to_know(choice)])


def _to_know(choice: Choice) -> Iterator[str]:
    """Yield what feeding takes, where it is to be had, what others ask, and what a new account lacks."""
    offer = choice.offer
    if choice.feed_vcpus is not None:
        needs = f"feeding takes {format_number(choice.feed_vcpus, 2)}"
        few = ": too few" if choice.can_feed is False else ""
        has = "vCPUs, how many it has is unknown"
        yield f"{needs} {has}" if offer.vcpus is None else f"{needs} of its {offer.vcpus:g} vCPUs{few}"
    if choice.regions:
        more = len(choice.regions) - MOST_REGIONS
        first = [plain(each, 30) for each in choice.regions[:MOST_REGIONS]]
        yield f"in {listing(first) if more <= 0 else ', '.join([*first, f'{more} more'])}"
    if choice.also_at:
        there = [elsewhere_words(each, offer.gpu_count) for each in choice.also_at]
        yield f"also at {listing(there)}"
    asks = choice.asks
    if asks is not None and asks.ask_count > 1:
        middle = format_usd(asks.median_usd_per_hour * offer.gpu_count)
        yield f"the median of {asks.ask_count} hosts' asks is {middle}/h"
    if choice.needs_quota:
        yield "a new account must ask for a quota"
    if choice.price_note:
        yield f"price: {plain(choice.price_note, 120)}"
    if offer.in_stock is not None:
        yield in_stock_words(offer)


def elsewhere_words(each: Elsewhere, gpu_count: int) -> str:
    """Return another provider of the same GPU, and what the job costs there: "aws 8x $12.00"."""
    there = each.offer
    so_many = "" if there.gpu_count == gpu_count else f" {there.gpu_count}x"
    hourly = f"{format_usd(each.usd_per_hour)}/h"
    cost = hourly if each.cost_usd is None else format_usd(each.cost_usd)
    return f"{plain(there.provider, 30)}{so_many} {cost}"
