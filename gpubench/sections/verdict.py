"""The answer on one card, and what found no room on it."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Fact, Facts, Paragraph
from gpubench.models import Ranking
from gpubench.recommend.verdict import CAUTION, SURENESS
from gpubench.sections.card import FIRST, JOB, OLD_PRICES, RUNNER_UP, card_of
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import measured_facts
from gpubench.units import plain


def _render(data: ReportData) -> Block:
    if data.ranking is None or not data.ranking.rows:
        why = data.ranking_problem or (data.ranking and data.ranking.verdict) or "no ranking was asked for"
        answer = Paragraph(text=f"There is no ranking: {plain(why, 400)}", tone="headline")
        measured = tuple(Facts(rows=(fact,), prominent=True) for fact in measured_facts(data.results))
        return Block(title="The answer", parts=(answer, *measured), brief=(answer,))
    card = card_of(data.ranking)
    answer = Paragraph(text=card.headline, tone="headline")
    facts = tuple(fact for fact in card.facts if not fact.term.endswith(_NOTES))
    notes = [_note(fact) for fact in card.facts if fact.term.endswith(_NOTES)]
    return Block(
        title="The answer",
        parts=(answer, Facts(rows=facts), *notes),
        brief=(answer, Facts(rows=card.facts)),
    )


_NOTES = (CAUTION, OLD_PRICES, FIRST)
"""Facts of no offer, but of what to know or do before paying: on a page a sentence below the others."""


def _note(fact: Fact) -> Paragraph:
    if fact.term == CAUTION:
        return Paragraph(text=f"{fact.term}: {fact.value}.", tone="warning")
    return Paragraph(text=f"{fact.term}: {fact.words}.", tone="note")


_IN_FULL = (JOB, SURENESS, RUNNER_UP, "Best cloud", "Best marketplace", "Or own")
"""Facts that the table and ``winners_in_full`` say with more beside them; the runner-up is never cut."""


def beside_the_card(ranking: Ranking) -> list[str]:
    """Return what found no room on the card, and does not stand in full below it."""
    return [f"{fact.term}: {fact.words}." for fact in card_of(ranking).cut if fact.term not in _IN_FULL]


SECTION = Section(key="verdict", render=_render, place=10, first=True)
