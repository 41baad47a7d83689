"""The first screen of a ranking: the model, three rows, the cautions; few words, few lines."""

from __future__ import annotations

import functools
import re

import msgspec
import pytest
from click.testing import CliRunner
from command import settings

from gpubench import rank
from gpubench.blocks.parts import Bullets
from gpubench.cli.app import app
from gpubench.errors import MisuseError
from gpubench.models import Ranking
from gpubench.recommend.lines import lines, seller
from gpubench.recommend.rank import rank as ranked
from gpubench.recommend.request import RankRequest
from gpubench.sections import answer
from gpubench.sections.data import MOST_OF_A_NOTE, of_ranking
from gpubench.units import plain

QUESTIONS = {
    "nothing named": (),
    "a network": ("resnet50",),
    "a language model": ("llama_8b_lora",),
    "a deadline and a budget": ("vgg16", "--deadline-hours", "48", "--budget-usd", "500"),
    "clouds of one region, spot": ("resnet50", "--spot", "--region", "us-east"),
    "a desk": ("vgg16", "--max-purchase-usd", "3000"),
    "a card at hand": ("vgg16", "--have", "RTX 3090"),
    "inference": ("resnet50", "--task", "infer"),
    "the longest names": ("vgg16", "--gpu", "RTX PRO 6000 Blackwell Workstation Edition"),
}


ASKED = {
    QUESTIONS[name]
    for name in (
        "a language model",
        "a deadline and a budget",
        "clouds of one region, spot",
        "a card at hand",
        "a desk",
    )
}
"""Questions with an option that the screen also answers, which takes more words."""


RANKED: dict[str, Ranking] = {}


def ranked_once(request: RankRequest) -> Ranking:
    """Rank each question once, because the width of the screen does not affect the ranking."""
    asked = repr(request)
    if asked not in RANKED:
        RANKED[asked] = ranked(request)
    return RANKED[asked]


@functools.cache
def screen(*words, columns="80"):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpubench.recommend.rank.rank", ranked_once)
        done = CliRunner().invoke(app, ["rank", *words], env={"COLUMNS": columns, "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("words", QUESTIONS.values(), ids=QUESTIONS)
def test_first_screen_fits_its_line_and_word_limits(words, columns):
    shown = screen(*words, columns=columns)
    assert len(shown.splitlines()) <= 24
    assert len(shown.split()) <= (155 if words in ASKED else 131)
    assert all(len(line) <= int(columns) for line in shown.splitlines())
    assert "Not shown at this width" not in shown
    assert "…" not in shown
    unbroken = " ".join(screen(*words, columns="400").split())
    whole = set(re.findall(r"[\w$.,%*·–-]+", unbroken))
    assert set(re.findall(r"[\w$.,%*·–-]+", shown)) <= whole


def test_resnet50_is_answered_in_120_words():
    assert len(screen("resnet50").split()) <= 120


def test_the_title_names_model_job_and_precision():
    assert screen("resnet50").splitlines()[0] == "resnet50, 90 epochs of ImageNet, amp-bf16."
    assert screen("resnet50", "--task", "infer", "--max-latency-ms", "5").startswith(
        "resnet50 inference, 24 "
    )
    assert screen("llama_8b").startswith("llama_8b inference, 24 ")


def test_the_three_answers_have_their_figures_and_chances():
    found = rank("resnet50")
    told = lines(found)
    assert [line.names for line in told if line.answers] == ["Cheapest", "Sensible", "Fastest"]
    shown = " ".join(screen("resnet50", columns="200").split())
    for line in told:
        row = line.choice.row
        assert f"{row.offer.gpu_count}x " in shown
        assert seller(row.offer).removesuffix(" (cloud)") in shown
        low, high = (f"${end:.2f}" for end in (row.cost_usd.low, row.cost_usd.high))
        assert f"{low}–{high}" in shown


def test_if_the_cheapest_is_a_private_host_the_best_cloud_is_shown_too():
    found = rank("resnet50", draws=50)
    cheapest, cloud, *_ = lines(found)
    assert seller(cheapest.choice.offer).endswith(" (private host)")
    assert (cloud.names, cloud.choice.offer.seller) == ("Cloud", "cloud")
    assert cloud.choice.row.cost_usd.value >= cheapest.choice.row.cost_usd.value
    of_clouds = [
        row for row in found.rows if row.offer.seller == "cloud" and not row.estimate.is_extrapolated
    ]
    assert cloud.choice.row.cost_usd.value == min(row.cost_usd.value for row in of_clouds)
    assert rank("resnet50", seller=["cloud"], draws=50).cloud is None
    assert "(private host)" in screen("resnet50", columns="200")


def test_every_machine_that_was_named_has_a_line_or_a_reason():
    found = rank("llama_8b_lora", have=["RTX 3090", "2x H100", "RTX 3060"], draws=50)
    named = {line.choice.offer.gpu_key for line in lines(found)}
    for each in found.owned:
        assert each.offer.gpu_key in named
    removed = [text for text in found.said("asked") if text.startswith("Your ") and "is not ranked: " in text]
    assert len(found.owned) + len(removed) == 3


UNDERFED = {
    "spot": (("resnet50",), {"provider": ["verda"], "gpu": ["v100"], "spot": True}),
    "one card, spot": (("resnet50",), {"gpu": ["V100"], "spot": True, "hour_worth": 0}),
    "a reseller": (("resnet50",), {"provider": ["spheron"], "max_price_age": 999}),
}


@pytest.mark.parametrize(("names", "asked"), UNDERFED.values(), ids=UNDERFED)
def test_too_few_vcpus_are_reported_on_the_first_screen(names, asked):
    found = rank(*names, **asked, draws=50, as_of="2026-11-20")
    assert found.first.can_feed is False
    (told, *_) = [text for text in found.said("caution") if "decoding" in text]
    assert any(told in getattr(part, "text", "") for part in answer.screen(found))


def test_explain_has_every_note_on_a_terminal_and_a_notebook_points_to_them():
    ranking = rank("resnet50")
    assert ranking.said("note")
    shown = " ".join(screen("resnet50", "--explain", columns="20000").split())
    assert all(plain(note, MOST_OF_A_NOTE) in shown for note in ranking.said("note"))
    assert "more notes" not in shown
    assert "more notes: ranking.sentences." in ranking._repr_html_()


def test_a_provider_note_that_looks_like_a_mark_is_not_explained_as_one():
    found = rank("resnet50", draws=50)
    offer = msgspec.structs.replace(found.rows[0].offer, note="a=b, not dominated")
    row = msgspec.structs.replace(found.rows[0], offer=offer, tie=False, pareto=False)
    data = of_ranking(msgspec.structs.replace(found, rows=(row,)))
    (below,) = (part for part in answer.SECTIONS["value"](data).brief if isinstance(part, Bullets))
    assert not [item for item in below.items if item.startswith(("=:", "not dominated:"))]


def test_deadline_and_budget_act_on_the_default_job():
    """24 h of one A100 within 30 h and 60 USD: the upper end of each row meets both limits."""
    found = rank(deadline_hours=30, budget_usd=60, draws=50)
    assert found.job.is_default
    assert found.rows
    assert all(row.hours.high <= 30 and row.cost_usd.high <= 60 for row in found.rows if row.hours.high)
    reasons = " ".join(each.reason for each in found.excluded)
    assert "above 30.0 h" in reasons
    assert "above $60.00" in reasons
    with pytest.raises(MisuseError, match="the setting relative"):
        rank(deadline_hours=30, relative=True)


def test_multiples_of_a_reference_gpu_are_shown_on_request():
    assert "hours per dollar" not in screen(columns="400")
    with settings(relative=True):
        assert "hours per dollar" in screen.__wrapped__(columns="400")


def test_a_named_gpu_that_may_not_have_the_memory_is_answered_for_with_a_caution():
    job = ("gpt2", "--execution", "compile", "--batch-size", "16")
    named = screen(*job, "--gpu", "RTX A4000", columns="300")
    assert re.search(r"Cheapest.* 1x RTX A4000 ", named)
    assert re.search(r"Batch 16 on RTX A4000: may fit \(needs [\d.]+ to [\d.]+ of 16 GiB\)", named)
    assert re.search(r"Check before you pay: RTX A4000 \(.*may not fit in memory\)\.", named)
    assert "RTX A4000" not in screen(*job, columns="300")
