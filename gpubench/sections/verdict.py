"""The answer on one card: what to pay for, what the job takes there, how sure it is, what would change it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Fact, Facts, Paragraph
from gpubench.labels import gpu_name, gpus
from gpubench.models import (
    Change,
    Choice,
    Decision,
    Elsewhere,
    ParallelMode,
    PriceLabel,
    Pricing,
    RankedOffer,
    Ranking,
)
from gpubench.offers.dates import NOT_CURRENT_AFTER_DAYS, STALE_AFTER_DAYS
from gpubench.recommend.verdict import (
    CAUTION,
    MOST_WORDS,
    NO_GPU_NEEDED,
    RATHER_RENT,
    SURENESS,
    caution,
    how_sure,
    prices_decide,
    rather_rent,
    todays_price,
    word_count,
)
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import measured_facts, merit_unit, merit_words
from gpubench.units import (
    count,
    format_bytes,
    format_duration,
    format_number,
    format_percent,
    format_usd,
    listing,
    plain,
)

OLD_PRICES, FIRST = "-day-old prices", "First"
"""How the terms end of what to do before paying."""

SENTENCES = re.compile(r"(?<=\.)\s+(?=[A-Z])")
"""Where one sentence of a verdict ends and the next begins."""

IF_BOUGHT = "If bought"
"""Before the job on hardware that had rather be rented."""

LEAST_OF_A_PURCHASE = 0.001
"""Share of what hardware costs; for a job that takes less of it, owning is not named on the card."""

MOST_ELSEWHERE = 2
"""Other providers named beside the best offer of a GPU; JSON has five."""

MOST_REGIONS = 4
"""Regions of an offer that are named; JSON has them all."""


def _render(data: ReportData) -> Block:
    if data.ranking is None or not data.ranking.rows:
        why = data.ranking_problem or (data.ranking and data.ranking.verdict) or "no ranking was asked for"
        answer = Paragraph(text=f"There is no ranking: {plain(why, 400)}", tone="headline")
        measured = tuple(Facts(rows=(fact,), prominent=True) for fact in measured_facts(data.results))
        return Block(title="The answer", parts=(answer, *measured), brief=(answer,))
    answer = Paragraph(text=headline(data.ranking), tone="headline")
    card, _ = _card(data.ranking)
    facts = tuple(fact for fact in card if not fact.term.endswith(_NOTES))
    notes = [_note(fact) for fact in card if fact.term.endswith(_NOTES)]
    return Block(
        title="The answer",
        parts=(answer, Facts(rows=facts), *notes),
        brief=(answer, Facts(rows=tuple(card))),
    )


_NOTES = (CAUTION, OLD_PRICES, FIRST)
"""Facts of no offer, but of what to know or do before paying: on a page a sentence below the others."""


def _note(fact: Fact) -> Paragraph:
    if fact.term == CAUTION:
        return Paragraph(text=f"{fact.term}: {fact.value}.", tone="warning")
    if fact.term == FIRST:
        detail = f" ({fact.detail})" if fact.detail else ""
        return Paragraph(text=f"{fact.term}, {fact.value}{detail}.", tone="note")
    return Paragraph(text=f"{fact.term}: {fact.value}.", tone="note")


_FIRST_OF_ALL = (RATHER_RENT, "By", "Job", IF_BOUGHT, SURENESS, CAUTION, OLD_PRICES)
"""Facts that have room before any other."""

_IN_FULL = ("Best cloud", "Best marketplace", "Or own")
"""Facts that ``winners_in_full`` says with more beside them."""


def _card(ranking: Ranking) -> tuple[list[Fact], list[Fact]]:
    """Part the facts into those that there is room for, in their order, and those that are cut or left out.

    Those that come first of all come before any detail; of the others a detail goes before a whole fact does.
    """
    facts = list(_facts(ranking))
    first = [fact for fact in facts if fact.term.endswith(_FIRST_OF_ALL)]
    kept: dict[str, Fact] = {}

    def keep(fact: Fact) -> bool:
        others = [each for each in kept.values() if each.term != fact.term]
        words = sum(word_count(f"{each.term} {each.value} {each.detail}") for each in (*others, fact))
        if words > MOST_WORDS - word_count(headline(ranking)):
            return False
        kept[fact.term] = fact
        return True

    for fact in first:
        keep(replace(fact, detail=""))
    for fact in first:
        if fact.term in kept:
            keep(fact)
    for fact in facts:
        if fact not in first and not keep(fact):
            keep(replace(fact, detail=""))
    card = [kept[fact.term] for fact in facts if fact.term in kept]
    return card, [fact for fact in facts if kept.get(fact.term) != fact]


def beside_the_card(ranking: Ranking) -> list[str]:
    """Return what found no room on the card, and is not among the winners in full."""
    return [
        f"{fact.term}: {fact.value}{f' ({fact.detail})' if fact.detail else ''}."
        for fact in _card(ranking)[1]
        if fact.term not in _IN_FULL
    ]


def _sentences(ranking: Ranking) -> list[str]:
    return SENTENCES.split(plain(ranking.verdict, 1500))


def after_the_headline(ranking: Ranking) -> list[str]:
    """What the verdict says beyond what is on the card: ties, the fastest, buying."""
    on_the_card = caution(ranking)
    return [
        each
        for each in _sentences(ranking)[1:]
        if not each.startswith((SURENESS, f"{RATHER_RENT}:")) and each != on_the_card
    ]


def headline(ranking: Ranking) -> str:
    """Return the answer in a line: what to rent or own, where and for how much; or that no GPU is needed."""
    first = _sentences(ranking)[0]
    if first.startswith(NO_GPU_NEEDED) or ranking.decision is None:
        return first
    choice = ranking.decision.choice
    if choice.source == "own":
        own = f"own {_offered(choice)}{_old_price(choice)}."
        return f"{RATHER_RENT} than {own}" if rather_rent(ranking) else f"{own[0].upper()}{own[1:]}"
    conditions = ", ".join(
        [*_conditions(choice), *([] if prices_decide(ranking.decision) else _not_current(choice))]
    )
    return f"Rent {_offered(choice)}{f' ({conditions})' if conditions else ''}."


def _old_price(choice: Choice) -> str:
    """How old the price of cards to buy is, where it is old."""
    age = choice.price_age_days
    if choice.purchase_usd is None or age is None or age <= STALE_AFTER_DAYS:
        return ""
    return f" (price {count(age, 'day')} old)"


def _not_current(choice: Choice) -> list[str]:
    """How old the price of what is rented is, where it is never called current: of a partial date at most."""
    age = choice.price_age_days
    if age is None or age <= NOT_CURRENT_AFTER_DAYS:
        return []
    up_to = "up to " if len(choice.price_date) < len("2026-01-01") else ""
    return [f"price {up_to}{count(age, 'day')} old"]


def _facts(ranking: Ranking) -> Iterator[Fact]:
    decision, head = ranking.decision, ranking.rows[0]
    if decision is None:
        merit = f"{merit_words(ranking, head)} {merit_unit(ranking)}"
        yield Fact(term="By", value=merit, detail=f"{_basis(head)}, {plain(head.offer.price_date, 20)}")
        return
    choice = decision.choice
    rent = rather_rent(ranking)
    if rent:  # the room is for what to rent: the rest on the purchase stands below the table
        yield Fact(term=RATHER_RENT, value=rent)
        yield Fact(term=IF_BOUGHT, value=_job(ranking, decision))
    else:
        about = [_basis(head), *_at_its_own_batch(head), _fits(choice), *_as_assumed(choice)]
        yield Fact(term="Job", value=_job(ranking, decision), detail="; ".join(about))
    if decision.sureness is not None:
        yield Fact(term=SURENESS, value=how_sure(ranking.sorted_by, decision))
    if decision.runner_up is not None:
        changes = [_change(each, own=choice.source == "own") for each in decision.changes[:1]]
        yield Fact(term="Runner-up", value=_rival(decision.runner_up), detail="".join(changes))
    yield from _first(ranking)
    yield from _winners(ranking)


def _first(ranking: Ranking) -> Iterator[Fact]:
    """What to do or to read before paying: a doubt that decides, else what would make the choice surer."""
    sentence = caution(ranking).rstrip(".")
    decision = ranking.decision
    if sentence.startswith(CAUTION):
        yield Fact(term=CAUTION, value=sentence.removeprefix(f"{CAUTION}: "))
    elif decision is not None and prices_decide(decision):
        age_days = decision.choice.price_age_days or 0
        yield Fact(term=f"{age_days}{OLD_PRICES}", value=todays_price(decision.choice))
    elif sentence and decision is not None and decision.finding_out is not None:
        found = decision.finding_out
        net, paid = format_usd(found.net_usd), format_usd(found.cost_usd)
        value = f"measure {gpu_name(found.gpu_key)}: saves {net} net"
        yield Fact(term=FIRST, value=value, detail=f"costs {paid}")


def _job(ranking: Ranking, decision: Decision) -> str:
    """What the job takes; without one, what the rows are ranked by."""
    choice = decision.choice
    if decision.job is None or choice.hours is None:
        return f"{merit_words(ranking, ranking.rows[0])} {merit_unit(ranking)}"
    hours = format_duration(choice.hours * 3600)
    # What had rather be rented leaves the room for the ends to what is to be rented.
    cost = format_usd(choice.cost_usd) if rather_rent(ranking) else choice.job_cost_usd.by(format_usd)
    return f"{hours}, {cost} for {plain(decision.job.words, 80)}"


def _basis(row: RankedOffer) -> str:
    return str(row.estimate.basis)


def _at_its_own_batch(row: RankedOffer) -> list[str]:
    """That batches are not equal, where each GPU has its own largest."""
    return ["at its largest batch"] if row.estimate.batch_choice == "largest" else []


def _as_assumed(choice: Choice) -> list[str]:
    """What the ends of the cost of owning leave out, where it was not given."""
    open_ = [word for name, word in _RANGES.items() if name in choice.assumed]
    return [f"{listing(open_)} as assumed"] if open_ else []


_RANGES = {"utilization": "use", "resale_usd": "resale", "tariff_usd_per_kwh": "tariff"}


def _fits(choice: Choice) -> str:
    if choice.fits_memory is None:
        return "memory not checked"
    if not choice.fits_memory:
        return "may not fit in memory"
    margin = choice.memory_margin_bytes
    fits = f"fits on {choice.gpu_count} with FSDP" if choice.parallel_mode is ParallelMode.FSDP else "fits"
    return fits if margin is None else f"{fits}, {format_bytes(margin)} spare"


def _change(change: Change, *, own: bool) -> str:
    """What would make the runner-up the better; a price first, as that is what moves."""
    if change.kind == "price":
        return f"better above {format_usd(change.threshold)}/h{' of work' if own else ''}"
    if change.kind == "spot":
        return f"better over {format_percent(change.threshold)} lost"
    return f"better below {format_number(change.threshold)} samples/s"


def _winners(ranking: Ranking) -> Iterator[Fact]:
    """The best of each source and of what was measured, unless it is the choice or the runner-up."""
    decision = ranking.decision
    if decision is None:
        return
    named = {_key(each) for each in (decision.choice, decision.runner_up) if each is not None}
    measured = next((each for each in decision.by_gpu if each.basis == "measured"), None)
    is_chosen = measured is None or measured.gpu_key == decision.choice.gpu_key
    if measured is not None and not is_chosen and _key(measured) not in named:
        yield Fact(term="Best you measured", value=_beside(measured))
    for term, winner in (
        ("Best cloud", decision.best_cloud),
        ("Best marketplace", decision.best_marketplace),
        ("Or own", None if _is_for_more_work(decision.best_to_own) else decision.best_to_own),
    ):
        if winner is not None and _key(winner) not in named:
            yield Fact(term=term, value=f"{_beside(winner)}{_if_bought(winner)}")


def _is_for_more_work(choice: Choice | None) -> bool:
    """Whether the job is so small a share of the life of a machine that nobody buys it for that."""
    if choice is None or choice.cost_usd is None or choice.purchase_usd is None:
        return False
    return choice.cost_usd < LEAST_OF_A_PURCHASE * choice.purchase_usd


def _if_bought(choice: Choice) -> str:
    """What must be paid and done for the cost of a job to hold: ": $1,450 first, if busy 50 %"."""
    if choice.source != "own" or choice.purchase_usd is None:
        return ""
    return f": ${choice.purchase_usd:,.0f} first{_if_busy(choice)}"


def _if_busy(choice: Choice) -> str:
    """At what use an hour of work costs what it does; the terms of owning end with it: "3 years at 50 %"."""
    _, at, busy = plain(choice.instance, 80).rpartition(" at ")
    return f", if busy {busy}" if at else ""


def _key(choice: Choice) -> tuple[object, ...]:
    return (choice.source, choice.provider, choice.instance, choice.gpu_key, choice.gpu_count)


def _rival(choice: Choice) -> str:
    """Like a winner; hardware with what is paid for it."""
    if choice.source != "own" or choice.purchase_usd is None:
        return _beside(choice)
    cost = "" if choice.cost_usd is None else f", {format_usd(choice.cost_usd)}"
    return f"{_machines(choice)} for ${choice.purchase_usd:,.0f}{cost}"


def gpus_and_where(choice: Choice) -> str:
    """Return what to get and from whom: "1x L4 at gcp", "2x RTX 5070 (used) with a host for $2,114"."""
    return f"{_machines(choice)} {_where(choice)}"


def _machines(choice: Choice) -> str:
    """What one machine has, and how many of them the jobs of a month take: "3 machines of 1x L4"."""
    one = gpus(choice.gpu_key, choice.gpu_count)
    return one if choice.machine_count == 1 else f"{choice.machine_count} machines of {one}"


def _beside(choice: Choice) -> str:
    """What a winner is, where, and what the job costs there; all else stands below the table."""
    alone = choice.gpu_count == choice.machine_count == 1
    name = gpu_name(choice.gpu_key) if alone else _machines(choice)
    where = [] if choice.source == "own" else [plain(choice.provider, 30)]
    return ", ".join([name, *where, *([] if choice.cost_usd is None else [format_usd(choice.cost_usd)])])


def _paid(choice: Choice) -> str:
    """What hardware costs, cards and host apart: "$450 used and a host for $1,000"."""
    cards = (choice.purchase_usd or 0.0) - (choice.host_usd or 0.0)
    hosts = "a host" if choice.machine_count == 1 else f"{choice.machine_count} hosts"
    host = f" and {hosts} for ${choice.host_usd:,.0f}" if choice.host_usd else ""
    return f"${cards:,.0f} {_LABELS[choice.price_label]}{host}"


_LABELS: Mapping[PriceLabel, str] = {
    "list": "list price",
    "single host": "one host's ask",
    "quote": "as quoted",
    "new": "new",
    "used": "used",
    "launch price": "at launch",
    "unlabeled": "new or used not stated",
}


def _conditions(choice: Choice) -> list[str]:
    """What stands between asking a seller and having it."""
    single = ["single host"] if choice.price_label == "single host" else []
    return [*single, *(["quota"] if choice.needs_quota else [])]


def winners_in_full(ranking: Ranking) -> Facts:
    """The best cloud, marketplace and hardware to own, each with all that must be known before it is paid."""
    decision = ranking.decision
    if decision is None:
        return Facts(rows=())
    named = (
        ("Best cloud", decision.best_cloud),
        ("Best marketplace", decision.best_marketplace),
        ("Best to own", decision.best_to_own),
    )
    return Facts(
        rows=tuple(Fact(term=term, value=_in_full(each)) for term, each in named if each is not None)
    )


def _in_full(choice: Choice) -> str:
    """One offer: where, its price with label and age, the job, memory, feed, and what to ask first."""
    what = _machines(choice)
    age = "" if not choice.price_age_days else f", {count(choice.price_age_days, 'day')} old"
    dated = f"{plain(choice.price_date, 20)}{age}"
    if choice.source == "own":
        paid = "" if choice.purchase_usd is None else f"{_paid(choice)} ({dated}), "
        price = f"{what}, {paid}{format_usd(choice.price_usd_per_hour)} an hour of work{_if_busy(choice)}"
    else:
        label = _LABELS[choice.price_label]
        asked = "" if choice.is_expected_as_listed else f" of {format_usd(choice.price_usd_per_hour)}"
        usd = format_usd(choice.expected_usd_per_hour)
        price = f"{what} {_where(choice)}, {usd}/h ({label}{asked}, {dated})"
    job = (
        []
        if choice.hours is None
        else [f"{format_duration(choice.hours * 3600)} and {format_usd(choice.cost_usd)}"]
    )
    return "; ".join([price, *job, _fits(choice), *_feed(choice), *_to_know(choice)])


def _feed(choice: Choice) -> list[str]:
    if choice.feed_vcpus is None:
        return []
    needs = f"feeding takes {format_number(choice.feed_vcpus, 2)}"
    if choice.vcpus is None:
        return [f"{needs} vCPUs, how many it has is unknown"]
    return [f"{needs} of its {choice.vcpus:g} vCPUs{': too few' if choice.can_feed is False else ''}"]


def _to_know(choice: Choice) -> Iterator[str]:
    """Yield where it is to be had, there and elsewhere, what the others ask, and what a new account lacks."""
    if choice.regions:
        more = len(choice.regions) - MOST_REGIONS
        first = [plain(each, 30) for each in choice.regions[:MOST_REGIONS]]
        yield f"in {listing(first) if more <= 0 else ', '.join([*first, f'{more} more'])}"
    if choice.also_at:
        there = [elsewhere_words(each, choice.gpu_count) for each in choice.also_at[:MOST_ELSEWHERE]]
        yield f"also at {listing(there)}"
    asks = choice.asks
    if asks is not None and asks.ask_count > 1:
        middle = format_usd(asks.median_usd_per_hour * choice.gpu_count)
        yield f"{asks.ask_count} hosts ask {middle}/h in the middle"
    if choice.needs_quota:
        yield "a new account must ask for a quota"
    if choice.price_note:
        yield f"price: {plain(choice.price_note, 120)}"
    if choice.in_stock is not None:
        yield f"{'in stock' if choice.in_stock else 'not seen in stock'} on {choice.stock_date}"


def elsewhere_words(each: Elsewhere, gpu_count: int) -> str:
    """Return another provider of the same GPU, and what the job costs there: "aws 8x $12.00"."""
    so_many = "" if each.gpu_count == gpu_count else f" {each.gpu_count}x"
    hourly = f"{format_usd(each.expected_usd_per_hour)}/h"
    cost = hourly if each.cost_usd is None else format_usd(each.cost_usd)
    return f"{plain(each.provider, 30)}{so_many} {cost}"


def _where(choice: Choice) -> str:
    if choice.source == "own":
        return (
            "of your own"
            if choice.purchase_usd is None
            else f"{_as_sold(choice)}for ${choice.purchase_usd:,.0f}"
        )
    spot = " spot" if choice.pricing is Pricing.SPOT else ""
    return f"at {plain(choice.provider, 30)}{spot}"


def _as_sold(choice: Choice) -> str:
    """New or used, and whether a host comes with it: "(used) with a host "."""
    label = f"({choice.price_label}) " if choice.price_label in {"new", "used", "launch price"} else ""
    return f"{label}{'with a host ' if choice.host_usd else ''}"


def _offered(choice: Choice) -> str:
    if choice.source == "own":
        return gpus_and_where(choice)
    about = " for " if choice.is_expected_as_listed else ", about "
    return f"{gpus_and_where(choice)}{about}{format_usd(choice.expected_usd_per_hour)}/h"


SECTION = Section(key="verdict", render=_render, place=10, first=True)
