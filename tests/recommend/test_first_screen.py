"""What stands on the screen before the table: few words, few lines, and no unit that nobody asked for."""

from __future__ import annotations

import re

import msgspec
import pytest
from click.testing import CliRunner
from command import settings

from gpubench import rank
from gpubench.blocks.parts import Bullets, Fact, Facts, Paragraph
from gpubench.cli.app import app
from gpubench.errors import MisuseError
from gpubench.interval import Interval
from gpubench.sections import value, verdict
from gpubench.sections.data import of_ranking
from gpubench.sections.words import MOST_OF_A_NOTE
from gpubench.units import plain

from .builders import lines_before_the_table
from .cards import assert_card_is_whole, most_words

QUESTIONS = {
    "nothing named": (),
    "a network": ("resnet50",),
    "a language model": ("llama_8b_lora",),
    "a deadline and a budget": ("vgg16", "--deadline-hours", "48", "--budget-usd", "500"),
    "clouds of one region, spot": ("resnet50", "--spot", "--region", "us-east"),
    "a desk": ("--max-purchase-usd", "3000"),
}


def screen(*words, columns="100"):
    done = CliRunner().invoke(app, ["rank", *words, "--limit", "3"], env={"COLUMNS": columns})
    assert done.exit_code == 0, done.output
    return done.stdout


QUESTIONS_IN_PYTHON = {
    "a network": (("resnet50",), {}),
    "a language model": (("llama_8b_lora",), {}),
    "a deadline and a budget": (("vgg16",), {"deadline_hours": 48, "budget_usd": 500}),
    "spot": (("resnet50",), {"spot": True, "spot_lost": 0.2, "region": ["us-east"]}),
    "a desk": (("resnet50",), {"max_purchase_usd": 3000, "jobs_per_month": 8}),
    "two long names": (
        ("vgg16",),
        {"gpu": ["RTX PRO 6000 Blackwell Workstation Edition", "V100 16GB (form factor unstated)"]},
    ),
    "the fastest": (("vgg16",), {"sort": "time"}),
    "each at its largest batch": (("vgg16",), {"batch_size": "max"}),
    "no job": (("vgg16",), {"relative": True}),
    "inference": (("resnet50",), {"task": "infer"}),
}


@pytest.mark.parametrize(("names", "asked"), QUESTIONS_IN_PYTHON.values(), ids=QUESTIONS_IN_PYTHON)
def test_the_verdict_keeps_to_its_words_with_each_sign_and_so_does_the_card(names, asked):
    ranking = rank(*names, **asked, draws=50)
    assert len(ranking.verdict.split()) <= most_words(ranking)
    assert_card_is_whole(ranking)


MOST_LINES = 16
"""Before the table of an answer."""

UNDERFED = {
    "spot": (("resnet50",), {"provider": ["verda"], "gpu": ["v100"], "spot": True}),
    "the fastest of a cloud": (("resnet50",), {"provider": ["azure"], "sort": "time"}),
    "the fastest, extrapolated": (("resnet50",), {"provider": ["aws"], "sort": "time"}),
    "spot of a cloud": (("resnet50",), {"provider": ["aws"], "spot": True, "max_price_age": 999}),
    "one card, spot": (("resnet50",), {"gpu": ["V100"], "spot": True, "hour_worth": 0}),
    "a reseller": (("resnet50",), {"provider": ["spheron"], "max_price_age": 999}),
}


@pytest.mark.parametrize(("names", "asked"), UNDERFED.values(), ids=UNDERFED)
def test_too_few_vcpus_stand_on_the_card_however_little_room_there_is(names, asked):
    found = rank(*names, **asked, draws=50, as_of="2026-11-20")
    assert found.decision.choice.can_feed is False
    assert_card_is_whole(found)


@pytest.mark.parametrize(
    "asked", [{"gpu": ["V100"], "spot": True}, {"provider": ["aws"], "spot": True}, {"provider": ["lium"]}]
)
def test_no_line_of_the_card_is_empty_where_no_workload_is_named(asked):
    assert_card_is_whole(rank(**asked, draws=50, as_of="2026-11-20"))


@pytest.mark.parametrize("words", QUESTIONS.values(), ids=QUESTIONS)
def test_the_verdict_as_printed_is_short(words):
    shown = screen(*words)
    assert lines_before_the_table(shown) <= MOST_LINES
    above = "\n".join(shown.splitlines()[: lines_before_the_table(shown)])
    assert 20 < len(above.split()) <= 120
    assert "How sure" in above
    notes = [line for line in shown.splitlines() if line.startswith("- ")]
    assert 1 < len(notes) <= 11
    assert re.search(r"\d+ more notes: --explain\.", " ".join(shown.split()))
    memory = r"fits[a-zA-Z ]*(?:, [\d.]+ [GM]iB spare| \(needs [\d.,]+ .*of [\d.,]+ [GM]iB)"
    assert re.search(memory, " ".join(above.split()))


def test_the_runner_up_and_what_would_make_it_the_choice_stand_after_how_sure_it_is():
    lines = screen("resnet50").splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:2] == ["How", "sure"])
    assert re.search(
        r"Runner-up .*\((above \$[\d.]+/h the runner-up wins|wins above \$[\d.]+/h)\)",
        " ".join(" ".join(lines[at + 1 : at + 3]).split()),
    )


def test_explain_has_every_note_on_a_terminal_and_a_notebook_says_where_they_are():
    ranking = rank("resnet50")
    assert 0 < ranking.decisive_notes < len(ranking.notes)
    shown = " ".join(screen("resnet50", "--explain", columns="20000").split())
    assert all(plain(note, MOST_OF_A_NOTE) in shown for note in ranking.notes)
    assert "more notes" not in shown
    assert "more notes: ranking.notes." in ranking._repr_html_()


def test_what_finds_no_room_on_the_card_stands_below_the_table():
    found = rank("resnet50", draws=50)
    decision = msgspec.structs.replace(found.decision, unfitted="a doubt " * 7)
    data = of_ranking(msgspec.structs.replace(found, decision=decision))
    card = verdict.SECTION.render(data).brief[-1]
    terms = [fact.term for fact in card.rows]
    assert {"Job", "How sure", "Runner-up", "Caution"} <= set(terms), (
        "what is promised, and a doubt that decides"
    )
    (said,) = [fact.value for fact in card.rows if fact.term == "Caution"]
    assert "a doubt" not in said, "in a word"
    assert {fact.term: fact.tone for fact in card.rows if fact.tone != "plain"} == {"Caution": "warning"}
    table = value.SECTION.render(data)
    for parts in (table.brief, table.parts):
        (below,) = [part for part in parts if isinstance(part, Bullets)]
        assert [item for item in below.items if item.startswith("Caution: ") and "a doubt a doubt" in item]


def test_a_page_sets_a_fact_below_the_others_by_its_tone_whatever_its_term(monkeypatch):
    found = rank("resnet50", draws=50)
    advice = Fact(term="Beforehand", value="ask", tone="note")
    named_alike = Fact(term="Best at First", value="an offer")
    card = verdict.Card("Rent it.", (advice, named_alike), ())
    monkeypatch.setattr(verdict, "card_of", lambda _: card)
    _, facts, *notes = verdict.SECTION.render(of_ranking(found)).parts
    assert facts == Facts(rows=(named_alike,))
    assert notes == [Paragraph(text="Beforehand: ask.", tone="note")]


def test_marks_that_no_row_has_are_not_explained_because_a_note_of_a_provider_is_written_like_them():
    found = rank("resnet50", draws=50)
    offer = msgspec.structs.replace(found.rows[0].offer, note="a=b, not dominated")
    row = msgspec.structs.replace(found.rows[0], offer=offer, tie=False, pareto=False)
    data = of_ranking(msgspec.structs.replace(found, rows=(row,)))
    (below,) = (part for part in value.SECTION.render(data).brief if isinstance(part, Bullets))
    assert not [item for item in below.items if item.startswith(("=:", "not dominated:"))]


def test_owning_is_named_with_what_it_takes_and_not_for_a_job_of_a_moment():
    found = rank(draws=50)
    own = found.decision.best_to_own
    facts = {fact.term: fact.value for fact in winners(found)}
    assert f"${own.purchase_usd:,.0f} first, if busy 50 %" in facts["Or own"]
    busier = msgspec.structs.replace(found, best_to_own_use=0.8)  # a figure, whatever the terms are called
    assert any(fact.value.endswith(" first, if busy 80 %") for fact in winners(busier))
    row = msgspec.structs.replace(own.row, cost_usd=Interval(0.000036))
    small = msgspec.structs.replace(own, row=row)
    decision = msgspec.structs.replace(found.decision, best_to_own=small)
    shown = winners(msgspec.structs.replace(found, decision=decision))
    assert [fact.term for fact in shown] == [each for each in facts if each != "Or own"]


def winners(ranking):
    return [line.wordings[0] for line in verdict._winners(ranking, ranking.decision)]


def test_the_price_of_cards_to_buy_has_its_date():
    first = screen("--max-purchase-usd", "3000").splitlines()[0]
    assert f"({rank(max_purchase_usd=3000, draws=50).decision.choice.offer.price_date})" in first


def test_a_price_for_rent_that_is_not_current_tells_its_age_beside_the_choice():
    found = rank("resnet50", gpu=["quadro rtx 6000"], as_of="2026-10-01", draws=50)
    choice = found.decision.choice
    assert choice.row.price_age_days > 180
    assert len(choice.offer.price_date) < 10
    assert verdict.headline(found).endswith(
        f"({choice.offer.price_date}, up to {choice.row.price_age_days} days old)."
    )
    row = msgspec.structs.replace(choice.row, price_age_days=180)
    fresh = msgspec.structs.replace(choice, row=row)
    decision = msgspec.structs.replace(found.decision, choice=fresh)
    assert "old" not in verdict.headline(msgspec.structs.replace(found, decision=decision))


def test_deadline_and_budget_act_on_the_default_job():
    """24 h of one A100 within 30 h and 60 USD: what is shown keeps both at the upper end."""
    found = rank(deadline_hours=30, budget_usd=60, draws=50)
    assert found.decision.job.is_default
    assert found.rows
    assert all(row.hours.high <= 30 and row.cost_usd.high <= 60 for row in found.rows if row.hours.high)
    reasons = " ".join(each.reason for each in found.excluded)
    assert "above 30.0 h" in reasons
    assert "above $60.00" in reasons
    with pytest.raises(MisuseError, match="the setting relative"):
        rank(deadline_hours=30, relative=True)


def test_multiples_of_a_reference_gpu_stand_there_where_asked_for():
    assert "hours per dollar" not in screen(columns="400")
    with settings(relative=True):
        assert "hours per dollar" in screen(columns="400")
