"""The answer on one card: what to pay for, what the job takes there, how sure it is, what would change it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Fact, Facts, Paragraph, Part
from gpubench.labels import gpus
from gpubench.models import (
    Change,
    Choice,
    Decision,
    ParallelMode,
    PriceLabel,
    Pricing,
    RankedOffer,
    Ranking,
    Sureness,
)
from gpubench.recommend.verdict import CAUTION, MOST_WORDS, NO_GPU_NEEDED, SURENESS, caution
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import merit_unit, merit_words, share_words
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

SENTENCES = re.compile(r"(?<=\.)\s+(?=[A-Z])")
"""Where one sentence of a verdict ends and the next begins."""

MOST_REGIONS = 4
"""Regions of an offer that are named; JSON has them all."""


def _render(data: ReportData) -> Block:
    if data.ranking is None or not data.ranking.rows:
        why = data.ranking_problem or (data.ranking and data.ranking.verdict) or "no ranking was asked for"
        headline = Paragraph(text=f"There is no ranking: {plain(why, 400)}", tone="headline")
        return Block(title="The answer", parts=(headline,), brief=(headline,))
    sentences = _sentences(data.ranking)
    headline = Paragraph(text=_headline(data.ranking, sentences), tone="headline")
    facts = _within(MOST_WORDS - len(headline.text.split()), tuple(_facts(data.ranking)))
    beside = (*_before_paying(data.ranking), *_winners(data.ranking))
    below: list[Part] = [Facts(rows=beside, prominent=True)] if beside else []
    return Block(
        title="The answer",
        parts=(headline, Facts(rows=facts), *below),
        brief=(headline, Facts(rows=(*facts, *beside))),
    )


def _within(most_words: int, facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """Take details off, the last first, until the card is as short as it must be; they stand below, too."""
    kept = list(facts)
    for i in reversed(range(len(kept))):
        while kept[i].detail and sum(map(_words_of, kept)) > most_words:
            kept[i] = replace(kept[i], detail=kept[i].detail.rpartition("; ")[0])
    return tuple(kept)


def _words_of(fact: Fact) -> int:
    return len(f"{fact.term} {fact.value} {fact.detail}".split())


def _sentences(ranking: Ranking) -> list[str]:
    return SENTENCES.split(plain(ranking.verdict, 1500))


def after_the_headline(ranking: Ranking) -> list[str]:
    """What the verdict says beyond what is on the card: ties, the fastest, buying."""
    on_the_card = caution(ranking)
    return [each for each in _sentences(ranking)[1:] if not each.startswith(SURENESS) and each != on_the_card]


def _headline(ranking: Ranking, sentences: list[str]) -> str:
    if sentences[0].startswith(NO_GPU_NEEDED) or ranking.decision is None:
        return sentences[0]
    choice = ranking.decision.choice
    if choice.source == "own":
        return f"Own {_offered(choice)}."
    return f"Rent {_offered(choice)} ({', '.join([plain(choice.price_date, 20), *_conditions(choice)])})."


def _facts(ranking: Ranking) -> Iterator[Fact]:
    decision, head = ranking.decision, ranking.rows[0]
    if decision is None:
        merit = f"{merit_words(ranking, head)} {merit_unit(ranking)}"
        yield Fact(term="By", value=merit, detail=f"{_basis(head)}, {plain(head.offer.price_date, 20)}")
        return
    choice = decision.choice
    yield Fact(
        term="The job", value=_job(ranking, decision), detail=f"{_basis(head)}{_batch(head)}; {_fits(choice)}"
    )
    if decision.sureness is not None:
        yield Fact(term="How sure", value=_how_sure(decision.sureness, decision.sureness_independent))
    if decision.runner_up is not None:
        changes = [_change(each, own=choice.source == "own") for each in decision.changes[:1]]
        yield Fact(term="Runner-up", value=_winner(decision.runner_up), detail="".join(changes))


def _before_paying(ranking: Ranking) -> Iterator[Fact]:
    """What to look at first: a doubt that decides, else what would make the choice surer."""
    sentence = caution(ranking).rstrip(".")
    if sentence:
        said = sentence.removeprefix(f"{CAUTION}: ")
        yield Fact(term="Before you pay", value=said[:1].upper() + said[1:])


def _how_sure(sure: Sureness, alone: Sureness | None) -> str:
    """P(best), P(within 10 % of it) and the expected regret, each in brackets under independent errors."""
    best = _both(sure.p_best, None if alone is None else alone.p_best)
    near = _both(sure.p_near_best, None if alone is None else alone.p_near_best)
    regret, regret_alone = _regret(sure), "" if alone is None else _regret(alone)
    brackets = f" ({regret_alone})" if regret_alone not in {"", regret} else ""
    return f"best {best}, within 10 % {near}; regret {regret}{brackets}"


def _both(joint: float, alone: float | None) -> str:
    """A share, and in brackets what it is under independent errors: "32 (25) %"."""
    words, words_alone = share_words(joint), share_words(alone)
    if alone is None or words == words_alone:
        return words
    return f"{words.removesuffix(' %')} ({words_alone.removesuffix(' %')}) %"


def _regret(sure: Sureness) -> str:
    return format_percent(sure.regret_share) if sure.regret_usd is None else format_usd(sure.regret_usd)


def _job(ranking: Ranking, decision: Decision) -> str:
    """What the job takes; without one, what the rows are ranked by."""
    choice = decision.choice
    if decision.job is None or choice.hours is None:
        return f"{merit_words(ranking, ranking.rows[0])} {merit_unit(ranking)}"
    hours = format_duration(choice.hours * 3600)
    return f"{hours} and {choice.job_cost_usd.by(format_usd)} for {plain(decision.job.words, 80)}"


def _basis(row: RankedOffer) -> str:
    return str(row.estimate.basis)


def _batch(row: RankedOffer) -> str:
    """That batches are not equal, where each GPU has its own largest."""
    return " at its largest batch" if row.estimate.batch_choice == "largest" else ""


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
    """The best of each source beside the choice, and of what was measured where that is not the choice."""
    decision = ranking.decision
    if decision is None:
        return
    for term, winner in (
        ("Best cloud", decision.best_cloud),
        ("Best marketplace", decision.best_marketplace),
        ("Best to own", decision.best_to_own),
    ):
        if winner is not None and _key(winner) != _key(decision.choice):
            yield Fact(term=term, value=gpus(winner.gpu_key, winner.gpu_count), detail=_beside(winner))
    measured = next((each for each in decision.by_gpu if each.basis == "measured"), None)
    if measured is not None and measured.gpu_key != decision.choice.gpu_key:
        cost = "" if measured.cost_usd is None else f", {format_usd(measured.cost_usd)}"
        where = plain(measured.provider, 30)
        yield Fact(
            term="Best you measured",
            value=gpus(measured.gpu_key, measured.gpu_count),
            detail=f"{where}{cost}",
        )


def _key(choice: Choice) -> tuple[object, ...]:
    return (choice.source, choice.provider, choice.instance, choice.gpu_key, choice.gpu_count)


def _winner(choice: Choice) -> str:
    cost = "" if choice.cost_usd is None else f", {format_usd(choice.cost_usd)}"
    return f"{gpus_and_where(choice)}{cost}"


def gpus_and_where(choice: Choice) -> str:
    """Return what to get and from whom: "1x L4 at gcp", "2x RTX 5070 (used) with a host for $2,114"."""
    return f"{gpus(choice.gpu_key, choice.gpu_count)} {_where(choice)}"


def _beside(choice: Choice) -> str:
    bought = choice.source == "own" and choice.purchase_usd
    where = [_paid(choice)] if bought else [plain(choice.provider, 30), *_conditions(choice)]
    cost = [] if choice.cost_usd is None else [format_usd(choice.cost_usd)]
    return ", ".join([*where, *cost])


def _paid(choice: Choice) -> str:
    """What hardware costs, cards and host apart: "$450 used and a host for $1,000"."""
    cards = (choice.purchase_usd or 0.0) - (choice.host_usd or 0.0)
    host = f" and a host for ${choice.host_usd:,.0f}" if choice.host_usd else ""
    return f"${cards:,.0f} {_LABELS[choice.price_label]}{host}"


_LABELS: Mapping[PriceLabel, str] = {
    "list": "list price",
    "single host": "one host's ask",
    "quote": "as quoted",
    "new": "new",
    "used": "used",
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
    what = gpus(choice.gpu_key, choice.gpu_count)
    age = "" if not choice.price_age_days else f", {count(choice.price_age_days, 'day')} old"
    dated = f"{plain(choice.price_date, 20)}{age}"
    if choice.source == "own":
        paid = "" if choice.purchase_usd is None else f"{_paid(choice)} ({dated}), "
        price = f"{what}, {paid}{format_usd(choice.price_usd_per_hour)} an hour of work"
    else:
        label = _LABELS[choice.price_label]
        price = f"{what} {_where(choice)}, {format_usd(choice.price_usd_per_hour)}/h ({label}, {dated})"
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
    """Yield where it is to be had, what the others ask, and what a new account lacks."""
    if choice.regions:
        more = len(choice.regions) - MOST_REGIONS
        first = [plain(each, 30) for each in choice.regions[:MOST_REGIONS]]
        yield f"in {listing(first) if more <= 0 else ', '.join([*first, f'{more} more'])}"
    asks = choice.asks
    if asks is not None and asks.ask_count > 1:
        middle = format_usd(asks.median_usd_per_hour * choice.gpu_count)
        yield f"{asks.ask_count} hosts ask {middle}/h in the middle"
    if choice.needs_quota:
        yield "a new account must ask for a quota"
    if choice.price_note and choice.source == "cloud":
        yield plain(choice.price_note, 120)
    if choice.in_stock is not None:
        yield f"{'in stock' if choice.in_stock else 'not in stock'} on {choice.stock_date}"


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
    label = f"({choice.price_label}) " if choice.price_label in {"new", "used"} else ""
    return f"{label}{'with a host ' if choice.host_usd else ''}"


def _offered(choice: Choice) -> str:
    if choice.source == "own":
        return gpus_and_where(choice)
    return f"{gpus_and_where(choice)} for {format_usd(choice.price_usd_per_hour)}/h"


SECTION = Section(key="verdict", render=_render, place=10, first=True)
