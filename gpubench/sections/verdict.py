"""The answer in 60 words beside the two other answers: what to pay for, what it takes, how sure that is.

What is promised always stands, at its shortest where names are long; what is left of the room goes to the
intervals, to what to know before paying, and to the best of other sources. What found none stands below.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum, auto
from typing import NamedTuple

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Fact, Facts, Paragraph
from gpubench.labels import price_of
from gpubench.models import BuyOrRent, Choice, Decision, Ranking, Sentence, SentenceKind
from gpubench.profile import published_decoder
from gpubench.recommend.decision import against_rent_by_the_hour, recommended, second_best
from gpubench.recommend.verdict import (
    BEST_CLOUD,
    CAUTION,
    ONLY_OFFER,
    SURENESS,
    TOSS_UP,
    confidence,
    decisive_doubts,
    other_answers,
    room_for,
    toss_ups,
    underfed,
    word_count,
)
from gpubench.sections.choices import beside_words, fits_in_short, if_bought, offered, rival_words
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import hours_words, measured_facts, merit_unit
from gpubench.units import format_number, format_percent, format_price, format_usd, listing, plain

JOB, RUNNER_UP = "Job", "Runner-up"
"""The terms of what the job takes, and of the next best."""

LEAST_OF_A_PURCHASE = 0.001
"""Share of what hardware costs; for a job that takes less of it, owning is not named on the card."""


class _Tier(IntEnum):
    """Who has room on the card before whom."""

    PROMISED = auto()
    """Always stands, at its shortest where there is no room for more."""
    NEXT = auto()
    """Comes before a longer wording of what is promised: what was measured, what to know before paying."""
    BESIDE = auto()
    """Comes where all of the above have said what they can."""


class _Line(NamedTuple):
    """A line of the card in its wordings, the fullest first."""

    tier: _Tier
    wordings: tuple[Fact, ...]


class Card(NamedTuple):
    """The card in as many words as there is room for, and the facts that are cut or left out, in full."""

    headline: str
    facts: tuple[Fact, ...]
    cut: tuple[Fact, ...]


_ROOM_MADE = ((True, True), (False, True), (False, False))
"""Whether the headline tells the age of its price, and whether the job is named: the longest names of GPUs
leave no room for it beside what is promised."""


def card_of(ranking: Ranking) -> Card:
    """Return the card of a ranking with at least one row."""
    for aged, named in _ROOM_MADE:
        answer, lines = headline(ranking, aged=aged), list(_lines(ranking, named=named))
        card = {i: line.wordings[-1] for i, line in enumerate(lines) if line.tier is _Tier.PROMISED}
        room = room_for(ranking) - word_count(answer)
        if sum(map(_words, card.values())) <= room:
            break

    def put(i: int, wordings: tuple[Fact, ...]) -> None:
        """Set a line in the fullest of these wordings that there is room for."""
        taken = sum(_words(fact) for k, fact in card.items() if k != i)
        fitting = next((fact for fact in wordings if taken + _words(fact) <= room), None)
        if fitting is not None:
            card[i] = fitting

    for i, line in enumerate(lines):
        if line.tier is _Tier.NEXT:
            put(i, line.wordings[-1:])
    for i in sorted(card, key=lambda at: (lines[at].wordings[0].tone != "warning", at)):  # cautions first
        put(i, lines[i].wordings)
    for i, line in enumerate(lines):
        if line.tier is _Tier.BESIDE:
            put(i, line.wordings)
    cut = (line.wordings[0] for i, line in enumerate(lines) if card.get(i) != line.wordings[0])
    return Card(answer, tuple(card[i] for i in sorted(card)), tuple(cut))


def _words(fact: Fact) -> int:
    return word_count(f"{fact.term} {fact.value} {fact.detail}")


def after_the_headline(ranking: Ranking) -> list[str]:
    """What the verdict says beyond what is on the card: ties, the fastest, buying."""
    decision = ranking.decision
    on_the_card = {SentenceKind.CAUTION, SentenceKind.OTHER_ANSWER, SentenceKind.TOSS_UP}
    if decision.rather_rent is None:
        on_the_card.add(SentenceKind.SURENESS)
    return [_printable(each) for each in ranking.sentences[1:] if each.kind not in on_the_card]


def _printable(sentence: Sentence) -> str:
    return plain(sentence.text, 1500)


def headline(ranking: Ranking, *, aged: bool = True) -> str:
    """Return the answer in a line: what to rent or own, where, for how much; or that no GPU is needed.

    Args:
        ranking: With at least one row.
        aged: Whether a price that is not current tells its age beside its date.
    """
    first = ranking.sentences[0] if ranking.sentences else None
    if first is not None and first.kind is SentenceKind.NO_GPU_NEEDED:
        return _printable(first)
    decision = ranking.decision
    answer = (
        f"{offered(recommended(decision), aged=aged)}{', rather than buy' if decision.rather_rent else ''}."
    )
    if ranking.max_purchase_usd is not None and recommended(decision).source == "own":
        return f"For {format_price(ranking.max_purchase_usd)}: {answer}"
    return f"{answer[0].upper()}{answer[1:]}"


def _lines(ranking: Ranking, *, named: bool) -> Iterator[_Line]:
    """Yield the lines of the card in their order; the job by its name, or as "the job"."""
    decision = ranking.decision
    yield _job(ranking, decision, named=named)
    for term, value in other_answers(ranking).items():
        yield _promised(Fact(term=term, value=value))
    weighed = against_rent_by_the_hour(decision.choice, ranking.buy_or_rent)
    if decision.rather_rent is not None and weighed is not None:
        yield from _against_buying(decision, weighed)
    else:
        sureness = {ONLY_OFFER: None}
        if ranking.offer_count != 1:  # of the GPU as well where the table says so, if there is room
            said = (confidence(ranking.sorted_by, decision, of_the_gpu=of) for of in (True, False))
            sureness = dict.fromkeys(said)
        yield _promised(*(Fact(term=SURENESS, value=value) for value in sureness))
        yield from _runner_up(decision)
    yield from _even(ranking)
    if found := decisive_doubts(decision):  # where room is short the first few in a word, all below the table
        words = [each.in_a_word for each in found]
        shorter = (listing(words[:most]) for most in range(len(words), 0, -1))
        least = words[0].partition(" of ")[0]  # the longest names leave no room for whose price it is
        values = dict.fromkeys(("; ".join(each.text for each in found), *shorter, least))
        yield _promised(*(Fact(term=CAUTION, value=value, tone="warning") for value in values))
    shown = {
        each.offer.gpu_key for each in (recommended(decision), second_best(decision)) if each is not None
    }
    measured = next((each for each in decision.by_gpu if each.row.estimate.basis == "measured"), None)
    if measured is not None and measured.offer.gpu_key not in shown:
        yield _Line(_Tier.NEXT, (Fact(term="Best measured", value=beside_words(measured)),))
    yield from _winners(ranking, decision)


def _promised(*wordings: Fact) -> _Line:
    return _Line(_Tier.PROMISED, wordings)


def _job(ranking: Ranking, decision: Decision, *, named: bool) -> _Line:
    """What the job takes, measured or predicted, and by how much it fits; the interval if there is room."""
    choice = recommended(decision)
    row = choice.row
    largest = ranking.rows[0].estimate.batch_choice == "largest"  # of each GPU its own: they are not equal
    batch = ["at largest batch"] if largest else []
    hows = ["; ".join([str(row.estimate.basis), *batch, fits]) for fits in fits_in_short(choice)]
    if decision.job is None or row.hours.value is None:
        if decision.rather_rent is None:  # by what the rows are ranked
            value = f"{ranking.merit_of(ranking.rows[0]).words()} {merit_unit(ranking)}"
        else:  # no row of the ranking: its price beside that of an hour owned
            value = f"{price_of(decision.rather_rent.row)}, owned {price_of(decision.choice.row)} of work"
        return _promised(*(Fact(term=JOB, value=value, detail=how) for how in hows))
    hours, work = hours_words(row.hours.value), plain(decision.job.words, 80) if named else "the job"
    if named and published_decoder(row.estimate.case.workload):  # it was looked up: say which was found
        work = f"{plain(row.estimate.case.workload, 60)}, {work}"
    interval, point = (
        f"{hours}, {cost} for {work}"
        for cost in (row.cost_usd.by(format_usd), format_usd(row.cost_usd.value))
    )
    in_words = ((interval, hows[0]), *((point, how) for how in hows))
    return _promised(*(Fact(term=JOB, value=value, detail=detail) for value, detail in in_words))


def _even(ranking: Ranking) -> Iterator[_Line]:
    """The answers that are toss-ups: with both chances, those of the first, or by their names alone."""
    if found := toss_ups(ranking.answers):
        told = [f"{name} {chances}" for name, chances in found.items()]
        names = listing(list(found))
        wordings = dict.fromkeys(["; ".join(told), "; ".join([told[0], *list(found)[1:]]), names])
        yield _promised(*(Fact(term=TOSS_UP, value=value) for value in wordings))


def _runner_up(decision: Decision) -> Iterator[_Line]:
    """The runner-up, and what would make it the choice."""
    other = decision.runner_up
    if other is not None:
        measured = ["measured"] if other.row.estimate.basis == "measured" else []
        changes, few = _change(decision), underfed(other)
        known = ["; ".join([*measured, change]) for change in changes] or ["".join(measured)]
        details = [f"{each}; {few}" if each else few for each in known] if few else []
        details += [*known, *changes[-1:]]  # the longest names leave no room for how it is known
        value = rival_words(other)
        yield _promised(*(Fact(term=RUNNER_UP, value=value, detail=detail) for detail in details))


def _against_buying(decision: Decision, weighed: BuyOrRent) -> Iterator[_Line]:
    """From which use on a purchase pays at the end that favors it, and at the likely one."""
    share, planned = weighed.break_even_utilization_low, format_percent(weighed.utilization)
    pays = "never pays" if share is None else f"pays from {format_percent(share)} use"
    yield _promised(Fact(term=SURENESS, value=f"at best, buying {pays}; planned {planned}"))
    likely = weighed.break_even_utilization
    change = "never pays" if likely is None else f"better above {format_percent(likely)} use"
    yield _promised(Fact(term=RUNNER_UP, value=rival_words(decision.choice), detail=change))


def _change(decision: Decision) -> tuple[str, ...]:
    """What would make the runner-up the better, in full and short: a price of the choice, or its speed."""
    change = decision.change
    if change is None:
        return ()
    figure = f"below {format_number(change.threshold)} samples/s"
    if change.kind == "price":
        figure = f"above {format_usd(change.threshold)}/h"
    return f"{figure} the runner-up wins", f"wins {figure}"


def _winners(ranking: Ranking, decision: Decision) -> Iterator[_Line]:
    """The best of each source, unless it is named already."""
    named = {
        _key(each)
        for each in (recommended(decision), decision.choice, decision.runner_up)
        if each is not None
    }
    own = decision.best_to_own
    # whether the job is so small a share of the life of a machine that nobody buys it for that
    if own is not None and own.row.cost_usd.value is not None and own.purchase_usd is not None:
        own = None if own.row.cost_usd.value < LEAST_OF_A_PURCHASE * own.purchase_usd else own
    for term, winner in (
        (BEST_CLOUD, None if BEST_CLOUD in other_answers(ranking) else decision.best_cloud),
        ("Best marketplace", decision.best_marketplace),
        ("Or own", own),
    ):
        if winner is not None and _key(winner) not in named:
            fact = Fact(
                term=term, value=f"{beside_words(winner)}{if_bought(winner, ranking.best_to_own_use)}"
            )
            yield _Line(_Tier.BESIDE, (fact,))


def _key(choice: Choice) -> tuple[object, ...]:
    offer = choice.offer
    return (choice.source, offer.provider, offer.instance, offer.gpu_key, offer.gpu_count)


def _render(data: ReportData) -> Block:
    if data.ranking is None or not data.ranking.rows:
        why = data.ranking_problem or (data.ranking and data.ranking.verdict) or "no ranking was asked for"
        answer = Paragraph(text=f"There is no ranking: {plain(why, 400)}", tone="headline")
        measured = tuple(Facts(rows=(fact,), prominent=True) for fact in measured_facts(data.results))
        return Block(title="The answer", parts=(answer, *measured), brief=(answer,))
    card = card_of(data.ranking)
    opening = [Paragraph(text=plain(each, 400)) for each in data.ranking.opening]
    answer = Paragraph(text=card.headline, tone="headline")
    facts = tuple(fact for fact in card.facts if fact.tone == "plain")
    notes = [
        Paragraph(text=f"{fact.term}: {fact.words}.", tone=fact.tone)
        for fact in card.facts
        if fact.tone != "plain"
    ]
    return Block(
        title="The answer",
        parts=(*opening, answer, Facts(rows=facts), *notes),
        brief=(*opening, answer, Facts(rows=card.facts)),
    )


_IN_FULL = (JOB, SURENESS, RUNNER_UP, BEST_CLOUD, "Best marketplace", "Or own")
"""Facts that the table and ``winners_in_full`` say with more beside them; the runner-up is never cut."""


def beside_the_card(ranking: Ranking) -> list[str]:
    """Return what found no room on the card, and does not stand in full below it."""
    return [f"{fact.term}: {fact.words}." for fact in card_of(ranking).cut if fact.term not in _IN_FULL]


SECTION = Section(key="verdict", render=_render, place=10)
