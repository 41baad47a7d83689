"""Is it worth measuring first: the expected saving of knowing one GPU's speed, less what measuring costs."""

from __future__ import annotations

import math
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

from gpubench.cli.app import app
from gpubench.models import Pricing
from gpubench.recommend.changes import saving_usd
from gpubench.recommend.skypilot import TRIAL_MINUTES

from .builders import H100, L4, estimate, offer, rank_of

DRAWS = 20_000
runner = CliRunner()


def test_knowing_a_cost_that_may_be_above_or_below_the_other_saves_what_theory_says():
    """One costs 10 USD, the other 10 + 2 z: the lesser of the two is 10 - 2 / sqrt(2 pi) = 9.20 on average."""
    z = np.random.default_rng(1).standard_normal(DRAWS)
    costs = np.array([np.full(DRAWS, 10.0), 10 + 2 * z])
    assert saving_usd(costs, -z) == pytest.approx(2 / math.sqrt(2 * math.pi), abs=0.05)


def test_knowing_what_changes_no_choice_saves_nothing():
    z, other = np.random.default_rng(1).standard_normal((2, DRAWS))
    costs = np.array([np.full(DRAWS, 10.0), 10 + 2 * z])
    assert saving_usd(costs, other) == pytest.approx(0, abs=0.02)
    far = np.array([np.full(DRAWS, 10.0), 100 + 2 * z])
    assert saving_usd(far, -z) == pytest.approx(0, abs=1e-6)


def finding(samples, **options):
    offers = [offer(H100, 2.0, provider="lambda", instance="gpu_1x_h100_sxm5"), offer(L4, 0.36)]
    rates = {H100: 3000.0, L4: 500.0}
    return rank_of(offers, rates, **{"width": 1.5, "samples": samples, "draws": 2000} | options)


def test_it_is_advised_where_the_job_is_worth_it_with_the_command_and_the_minutes():
    large = finding(1e10).decision.finding_out
    assert large.is_advised
    assert large.net_usd == pytest.approx(large.saving_usd - large.cost_usd)
    assert large.minutes == TRIAL_MINUTES
    small = finding(1e6).decision.finding_out
    assert not small.is_advised
    assert small.cost_usd > small.saving_usd


def test_measuring_costs_the_machine_for_the_minutes_and_tax():
    """35 minutes at 2.00 USD/h with 20 % tax are 1.40 USD."""
    measured = estimate(L4, 500.0, 1.01, basis="measured")
    offers = [offer(H100, 2.0, provider="lambda", instance="gpu_1x_h100_sxm5"), offer(L4, 0.36)]
    rates = {H100: estimate(H100, 3000.0, 1.5), L4: measured}
    found = rank_of(offers, rates, samples=1e10, tax=0.2).decision.finding_out
    assert (found.gpu_key, found.provider) == (H100, "lambda")
    assert found.cost_usd == pytest.approx(2.0 * TRIAL_MINUTES / 60 * 1.2)
    tail = ["--try", "1", "--try-gpu", H100, "--try-provider", "lambda", "--out", "try"]
    assert found.command.split()[-len(tail) :] == tail


def test_nothing_is_left_to_find_out_where_all_is_measured_or_no_dollars_are_asked_for():
    measured = {key: estimate(key, 1000.0, 1.01, basis="measured") for key in (H100, L4)}
    offers = [offer(H100, 2.0), offer(L4, 1.9)]
    assert rank_of(offers, measured, samples=1e9).decision.finding_out is None
    own = {"pricing": Pricing.OWNED, "kind": "owned"}
    bought = [offer(H100, 2.0, **own), offer(L4, 0.36, **own)]
    rates = {H100: 3000.0, L4: 500.0}
    assert rank_of(bought, rates, width=1.5, samples=1e10).decision.finding_out is None
    assert finding(1e9, sort="time").decision.finding_out is None
    assert finding(None, relative=True).decision.finding_out is None
    assert rank_of(offers[:1], {H100: 3000.0}, width=1.5, samples=1e9).decision.finding_out is None


def advised(folder, monkeypatch, *words):
    """The command that is advised for a question on the shipped prices, and what the script that it writes does."""
    monkeypatch.chdir(folder)
    kept = []
    monkeypatch.setattr("gpubench.recommend.rank.document", lambda ranking: kept.append(ranking) or {})
    assert runner.invoke(app, ["rank", *words, "--json"]).exit_code == 0
    found = kept[0].decision.finding_out
    program, *asked = shlex.split(found.command)
    assert program == "gpubench"
    done = runner.invoke(app, asked)
    assert done.exit_code == 0, done.output
    return found, (folder / "try" / "try.sh").read_text().splitlines()


def test_the_advised_command_measures_that_gpu_and_asks_the_same_question(tmp_path, monkeypatch):
    """Rivals stay: what is asked again names no GPU and no provider, and has precision, batch and job as given."""
    asked = ["resnet50", "--precision", "fp32", "--batch-size", "32", "--samples", "1e9"]
    asked += ["--results", str(tmp_path / "runs")]
    found, script = advised(tmp_path, monkeypatch, *asked)
    (task,) = (tmp_path / "try").glob("try-1-*.yaml")
    assert found.provider in task.name
    again = shlex.split(script[-1])
    assert again[:2] == ["gpubench", "rank"]
    assert not {"--gpu", "--provider", "--limit", "--try"} & set(again)
    for option, value in (("--workload", "resnet50"), ("--precision", "fp32"), ("--batch-size", "32")):
        assert again[again.index(option) + 1] == value


def test_where_no_task_file_rents_it_the_same_case_is_run_there():
    offers = [offer(H100, 2.0, provider="acme", gpu_count=2), offer(L4, 0.36)]
    asked = {"precision": "fp32", "batch_size": 32, "execution": "eager", "samples": 1e10, "width": 1.5}
    command = rank_of(
        offers, {H100: 3000.0, L4: estimate(L4, 500.0, basis="measured")}, **asked
    ).decision.finding_out
    verb, run, *words = shlex.split(command.command)
    assert (verb, run) == ("gpubench", "run")
    for option, value in (
        ("--precision", "fp32"),
        ("--batch-size", "32"),
        ("--execution", "eager"),
        ("--gpus", "2"),
    ):
        assert words[words.index(option) + 1] == value
