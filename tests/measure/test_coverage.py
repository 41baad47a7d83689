"""Intervals contain the truth as often as docs/method-evidence.md says, in whole runs on a scripted card."""

from __future__ import annotations

from functools import cache

import pytest
from simulated import KINDS, RUNS, Coverage, Kind, coverage, stated

from gpubench.measure.budget import BUDGETS
from gpubench.models import FindingKind

FEW = {"quick": 20, "default": 20, "publish": 8}
HEATING = KINDS[6]
CASES = [(kind, name) for kind in KINDS for name in RUNS if name != "publish" or kind in (KINDS[0], HEATING)]
"""Runs of ``--publish`` are long, so only two kinds of card are run: one that stays the same, and one that heats."""
BY_THREE = KINDS[:2]
"""Behavior that three launches can see."""


@cache
def reached(kind: Kind, budget: str) -> Coverage:
    return coverage(kind, BUDGETS[budget], runs=FEW[budget], seed=1)


@pytest.mark.parametrize(("kind", "budget"), CASES, ids=[f"{kind.words}, {name}" for kind, name in CASES])
def test_the_intervals_contain_the_truth_as_often_as_the_page_says(kind, budget):
    """A few runs, on other cards. Cases of one run share a card, so a share is known to about 0.15."""
    assert reached(kind, budget).share == pytest.approx(stated()[kind.words, budget], abs=0.16)


def test_publish_covers_90_percent_and_so_does_the_default_if_three_launches_can_see():
    shares = stated()
    publish = [shares[kind.words, "publish"] for kind in KINDS[:7]]
    assert all(0.90 <= share <= 0.97 for share in publish[:6])
    assert publish[6] >= 0.90
    assert all(0.90 <= shares[kind.words, "default"] <= 0.97 for kind in BY_THREE)


def test_row_states_what_its_budget_could_not_detect():
    for kind, budget in CASES:
        told = reached(kind, budget).findings.get(FindingKind.SHORT_LOOK, 0.0)
        assert told == pytest.approx(0.0 if budget == "publish" else 1.0)


def test_heating_card_is_flagged_by_its_second_launch():
    heated = reached(HEATING, "default")
    assert heated.findings[FindingKind.NOT_HEAT_SOAKED] > 0.8
    assert FindingKind.NOT_HEAT_SOAKED not in reached(KINDS[0], "default").findings


@pytest.mark.slow
@pytest.mark.parametrize("budget", RUNS)
@pytest.mark.parametrize("kind", KINDS, ids=[kind.words for kind in KINDS])
def test_the_table_on_the_page_matches_its_script(kind, budget):
    found = coverage(kind, BUDGETS[budget], runs=RUNS[budget])
    assert found.share == pytest.approx(stated()[kind.words, budget], abs=0.011)
