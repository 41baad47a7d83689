"""What stands on the screen before the table: few words, few lines, and no unit that nobody asked for."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gpubench import rank
from gpubench.cli.app import app
from gpubench.errors import MisuseError
from gpubench.recommend.verdict import MOST_WORDS, word_count

from .builders import lines_before_the_table

QUESTIONS = {
    "nothing named": (),
    "a network": ("resnet50",),
    "a language model": ("llama_8b_lora",),
    "a deadline and a budget": ("vgg16", "--deadline-hours", "48", "--budget-usd", "500"),
    "clouds of one region, spot": ("resnet50", "--spot", "--spot-lost", "0.2", "--region", "us-east"),
    "a desk": ("--max-purchase-usd", "3000"),
}


def screen(*words, columns="100"):
    done = CliRunner().invoke(app, ["rank", *words, "--limit", "3"], env={"COLUMNS": columns})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("words", QUESTIONS.values(), ids=QUESTIONS)
def test_the_verdict_as_printed_is_short(words):
    shown = screen(*words)
    assert lines_before_the_table(shown) <= 12
    above = "\n".join(shown.splitlines()[: lines_before_the_table(shown)])
    assert 20 < word_count(above) <= MOST_WORDS
    assert "How sure" in above


def test_deadline_and_budget_act_on_the_default_job():
    """24 h of one A100 within 30 h and 60 USD: what is shown keeps both at the upper end."""
    found = rank(deadline_hours=30, budget_usd=60, draws=50)
    assert found.decision.job.is_default
    assert found.rows
    assert all(row.hours_high <= 30 and row.cost_usd_high <= 60 for row in found.rows if row.hours_high)
    reasons = " ".join(each.reason for each in found.excluded)
    assert "above 30.0 h" in reasons
    assert "above $60.00" in reasons
    with pytest.raises(MisuseError, match="--relative"):
        rank(deadline_hours=30, relative=True)


def test_multiples_of_a_reference_gpu_stand_there_where_asked_for():
    assert "hours per dollar" not in screen(columns="400")
    assert "hours per dollar" in screen("--relative", columns="400")
