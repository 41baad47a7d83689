"""The work behind hours and dollars: as requested, else a well-known job."""

from __future__ import annotations

import math
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.errors import MisuseError
from gpubench.models import Pricing, TaskKind
from gpubench.profile import profile_of
from gpubench.recommend.candidates import usual_job

from .builders import A100, H100, L4, offer, rank_of

RATES = {H100: 3000.0, L4: 500.0, A100: 1500.0}

APART = math.exp(math.hypot(math.log(1.05), math.log(1.006)))
"""Factor by which two cards of one model differ in two hosts."""


def of_default(offers, rates=RATES, **options):
    return rank_of(offers, rates, **{"relative": False, "startup_minutes": None} | options)


def test_default_job_is_one_day_of_an_a100():
    """H100: 24 x 1500 / 3000 = 12 h, and 10 minutes: 12.167 h at 2 USD are 24.33 USD."""
    ranking = of_default([offer(H100, 2.0), offer(A100, 1.5)])
    first, reference = ranking.rows
    assert first.hours.value == pytest.approx(12 + 1 / 6)
    assert first.cost_usd.value == pytest.approx(24.333, abs=1e-3)
    assert reference.hours.value == pytest.approx(24 + 1 / 6)
    job = ranking.job
    assert (job.words, job.is_default, job.reference_gpu_key) == (
        "24 GPU-hours of one A100 SXM4 80GB",
        True,
        A100,
    )
    assert job.samples == pytest.approx(24 * 3600 * 1500)
    assert ranking.sorted_by == "cost"


@settings(max_examples=30, deadline=None)
@given(st.floats(1.05, 3.0), st.sampled_from([0, 10]))
def test_reference_gpu_is_uncertain_only_by_machine_differences(width, startup):
    ranking = of_default([offer(A100, 1.5), offer(H100, 2.0)], width=width, startup_minutes=startup)
    rows = {row.offer.gpu_key: row for row in ranking.rows}
    own, other = rows[A100], rows[H100]
    assert (own.score.low, own.score.value, own.score.high) == pytest.approx((1 / APART, 1, APART))
    assert own.hours.value == pytest.approx(24 + startup / 60)
    assert own.hours.low == pytest.approx(24 / APART + startup / 60)
    assert own.hours.high == pytest.approx(24 * APART + startup / 60)
    assert other.hours.low < other.hours.value < other.hours.high
    assert own.samples_per_s.low == pytest.approx(1500 / width)


def test_a_common_error_cancels_in_a_ratio():
    """A common error affects all GPUs equally, so an H100 certainly takes half of the hours."""

    def together(estimates, n, seed):
        error = np.random.default_rng(seed).standard_normal(n) * 0.3
        return np.array([each.samples_per_s for each in estimates])[:, None] * np.exp(error)

    ranking = of_default([offer(H100, 2.0)], width=2.0, drawer=together, startup_minutes=10.0)
    row = ranking.rows[0]
    assert row.hours.low == pytest.approx(row.hours.value)
    assert row.hours.high == pytest.approx(row.hours.value)
    assert row.samples_per_s.low == pytest.approx(1500)


def test_relative_units_are_shown_if_requested():
    ranking = of_default([offer(H100, 2.0)], relative=True)
    assert ranking.job is None
    assert (ranking.sorted_by, ranking.rows[0].hours.value) == ("value", None)


def test_without_a_reference_figure_the_ranking_is_relative():
    ranking = of_default([offer(H100, 2.0)], {H100: 3000.0})
    assert ranking.job is None
    assert ranking.sorted_by == "value"


def test_ten_minutes_of_start_up_decide_a_short_job():
    """4.32 M images. H100: 0.4 h, with 10 min 0.567 h at 3.30 = 1.87 USD. L4: 2.4 and 2.567 h at 0.60 = 1.54."""
    offers, job = [offer(H100, 3.3), offer(L4, 0.6)], {"samples": 4.32e6}
    assert rank_of(offers, RATES, **job, startup_minutes=0).rows[0].offer.gpu_key == H100
    rows = rank_of(offers, RATES, **job, startup_minutes=None).rows
    assert [row.offer.gpu_key for row in rows] == [L4, H100]
    assert [row.cost_usd.value for row in rows] == [pytest.approx(1.54), pytest.approx(1.87)]


def test_owned_hardware_has_no_startup_time():
    own = msgspec.structs.replace(offer(H100, 1.0), pricing=Pricing.OWNED, kind="owned")
    assert of_default([own]).rows[0].hours.value == pytest.approx(12)


def test_some_workloads_have_their_own_default_job():
    """90 x 1,281,167 = 115,305,030 images; 10,000,000 / 2,048 = 4,882.8 sequences."""
    resnet = profile_of("resnet50")
    assert usual_job(resnet, TaskKind.TRAIN)[1] == 115_305_030
    for name in ("llama_8b_lora", "llama_8b_qlora"):
        assert usual_job(profile_of(name), TaskKind.TRAIN)[1] == pytest.approx(4882.8125)
    assert usual_job(profile_of("vgg16"), TaskKind.TRAIN) is None
    assert usual_job(resnet, TaskKind.INFER) is None


@pytest.mark.parametrize(
    ("limits", "ways"),
    [
        ({"deadline_hours": 5.0}, {"--deadline-hours": H100}),
        ({"budget_usd": 5.0}, {"--budget-usd": L4}),
        ({"deadline_hours": 20.0, "budget_usd": 25.0}, {"--deadline-hours": L4, "--budget-usd": H100}),
        ({"deadline_hours": 5.0, "budget_usd": 5.0}, {"both": H100}),
    ],
)
def test_if_nothing_meets_the_limits_each_suggested_limit_suffices(limits, ways):
    """The job takes 10 h and 40 USD on an H100, 100 h and 20 USD on an L4, each with an interval of 1.1."""
    offers, rates = [offer(H100, 4.0), offer(L4, 0.2)], {H100: 1e4, L4: 1e3}

    def ranked(**asked):
        return rank_of(offers, rates, width=1.1, samples=3.6e8, **asked)

    with pytest.raises(MisuseError) as caught:
        ranked(**limits)
    told = str(caught.value).rpartition("; ")[2]
    found = re.findall(r"((?:--[a-z-]+ [\d.]+(?: and )?)+) would leave 1x (H100|L4)", told)
    assert len(found) == len(ways)
    for options, gpu in found:
        relaxed = {
            name[2:].replace("-", "_"): float(value) for name, value in re.findall(r"(--\S+) (\S+)", options)
        }
        wanted = ways["both"] if "both" in ways else ways[options.split()[0]]
        rows = ranked(**limits | relaxed).rows
        assert [row.offer.gpu_key for row in rows] == [wanted]
        assert gpu == {H100: "H100", L4: "L4"}[wanted]
