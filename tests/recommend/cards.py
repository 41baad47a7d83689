"""What every decision card holds, whatever was asked."""

from __future__ import annotations

from gpubench.blocks.parts import Fact, Facts, Paragraph
from gpubench.labels import gpu_name
from gpubench.models import Choice, Decision, Ranking
from gpubench.recommend.verdict import NO_GPU_NEEDED, other_answers, room_for, toss_ups
from gpubench.sections import verdict
from gpubench.sections.choices import fits_in_short, fits_words
from gpubench.sections.data import of_ranking
from gpubench.units import format_bytes, format_duration, format_number, format_percent, format_usd

MOST_WORDS, MOST_WORDS_OF_ANOTHER, MOST_WORDS_OF_HOW_SURE = 60, 24, 15


def most_words(ranking: Ranking) -> int:
    """Return how many words an answer may have: 60, and those of what stands beside it, 112 in all."""
    others = [f"{term} {text}".split() for term, text in other_answers(ranking).items()]
    assert len(others) <= 4
    assert all(len(words) <= MOST_WORDS_OF_ANOTHER for words in others), others
    even = sum(len(f"{name} {chances}".split()) for name, chances in toss_ups(ranking.answers).items())
    assert room_for(ranking) == min(MOST_WORDS + sum(map(len, others)) + even, 112)
    return room_for(ranking)


def card_of(ranking: Ranking) -> tuple[str, dict[str, Fact]]:
    """Return the headline of the card, and its facts by their terms."""
    *_, headline, facts = verdict.SECTION.render(of_ranking(ranking)).brief
    return headline.text, {fact.term: fact for fact in facts.rows}


def words_of(*parts: Paragraph | Facts) -> list[str]:
    """Return what a reader sees, split at every space: signs and units too."""
    texts = [
        text
        for part in parts
        for text in (
            [part.text]
            if isinstance(part, Paragraph)
            else [f"{fact.term} {fact.value} {fact.detail}" for fact in part.rows]
        )
    ]
    return " ".join(texts).split()


def assert_card_is_whole(ranking: Ranking) -> None:
    """Hold the card to its words with every promised element in it, on a terminal and on a page."""
    block = verdict.SECTION.render(of_ranking(ranking))
    for parts in (block.brief[len(ranking.opening) :], block.parts[len(ranking.opening) :]):
        assert len(words_of(*parts)) <= most_words(ranking), " ".join(words_of(*parts))
        assert all(fact.value for part in parts if isinstance(part, Facts) for fact in part.rows)
    headline, facts = card_of(ranking)
    decision = ranking.decision
    assert facts.keys() >= other_answers(ranking).keys()
    if headline.startswith(NO_GPU_NEEDED):
        return
    paid = decision.rather_rent or decision.choice
    _assert_what(headline, paid)
    _assert_job(facts["Job"], decision, paid, room=most_words(ranking) - len(words_of(*block.brief)))
    assert 3 <= len(facts["How sure"].value.split()) <= MOST_WORDS_OF_HOW_SURE
    second = decision.choice if decision.rather_rent else decision.runner_up
    if second is not None:
        assert gpu_name(second.offer.gpu_key) in facts["Runner-up"].value
    if decision.change is not None and not decision.rather_rent:
        change, detail = decision.change, facts["Runner-up"].detail
        figure = f"below {format_number(change.threshold)} samples/s"
        if change.kind == "price":
            figure = f"above {format_usd(change.threshold)}/h"
        assert f"{figure} the runner-up wins" in detail or f"wins {figure}" in detail
    if decision.choice.can_feed is False:
        share = format_percent(decision.choice.offer.vcpus / decision.choice.feed_vcpus)
        assert f"vCPUs feed {share}" in facts["Caution"].value


def _assert_what(headline: str, paid: Choice) -> None:
    assert gpu_name(paid.offer.gpu_key) in headline
    if paid.source != "own":
        assert paid.offer.provider in headline
        assert f"{format_usd(paid.row.usd_per_hour.value)}/h" in headline
    elif paid.purchase_usd is not None:
        assert f"${paid.purchase_usd:,.0f}" in headline
    if paid.source != "own" or paid.purchase_usd is not None:
        assert paid.offer.price_date in headline


def _assert_job(job: Fact, decision: Decision, paid: Choice, *, room: int) -> None:
    """Hold the line of the job to its figures, and to its name unless the card has no room for that."""
    if decision.job is not None and paid.row.hours.value is not None:
        assert job.value.startswith(format_duration(paid.row.hours.value * 3600))
        assert format_usd(paid.row.cost_usd.value) in job.value
        no_room = len(decision.job.words.split()) - len(["the", "job"]) > room
        assert job.value.endswith((f"for {decision.job.words}", *(["for the job"] if no_room else [])))
    wordings = (fits_words(paid), *fits_in_short(paid))
    fits = next(each for each in wordings if job.detail.endswith(f"; {each}"))
    assert job.detail.startswith(f"{paid.row.estimate.basis}; ")
    assert fits.startswith("fits") == bool(paid.row.fits_memory)
    if paid.row.fits_memory and paid.memory_margin_bytes is not None:
        spare = f"{format_bytes(paid.memory_margin_bytes)} spare"
        assert spare in fits or "needs " in fits or paid.row.estimate.memory_text is None
    assert ("not traced" in fits) == bool(
        paid.row.fits_memory and "not traced" in (paid.row.estimate.memory_text or "")
    )
