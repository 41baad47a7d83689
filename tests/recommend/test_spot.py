"""The share of work that spot may lose until the job costs as much as on demand."""

from __future__ import annotations

import math
from datetime import date

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpubench.models import Pricing
from gpubench.recommend.economics import Market, checkpoint_interval_hours, lost_to_interruptions, prices_of

from .builders import H100, offer, rank_of, said

JUST = 1e-6
"""Relative step to each side of a break-even."""
MOST_LOST = 9.9
"""A share of lost work of 10 or more is not accepted."""

EXTRAS = st.fixed_dictionaries(
    {
        "startup_minutes": st.sampled_from([0, 10, 45]),
        "storage_usd_per_month": st.sampled_from([0, 73, 900]),
        "egress_usd": st.sampled_from([0, 5]),
        "tax": st.sampled_from([0, 0.2]),
        "billing_minutes": st.sampled_from([None, 1, 60]),
        "samples": st.sampled_from([2e7, 1e8]),
        "jobs": st.sampled_from(["ddp", "independent"]),
    }
)


def both(usd, on_demand_usd, *, count=1, **extras):
    """Return the rows of one machine on spot and on demand."""
    same = {"instance": "same", "gpu_count": count}
    offers = [
        offer(H100, f"{usd:.9f}", pricing=Pricing.SPOT, **same),
        offer(H100, f"{on_demand_usd:.9f}", **same),
    ]
    rows = rank_of(offers, {H100: 3000.0}, draws=1, spot=True, **extras).rows
    return sorted(rows, key=lambda row: row.offer.pricing is Pricing.ON_DEMAND)


@settings(max_examples=20, deadline=None)
@given(EXTRAS, st.floats(0.3, 3), st.floats(0.8, 6), st.sampled_from([1, 8]), st.sampled_from([0.0, 0.3]))
def test_spot_is_cheaper_exactly_up_to_its_break_even(extras, usd, times, count, lost):
    row = both(usd, usd * times, count=count, spot_lost=lost, **extras)[0]
    share = row.spot_break_even
    assume(share < MOST_LOST)  # hourly billing has room to repeat a short job many times
    below, above = (
        both(usd, usd * times, count=count, spot_lost=at, **extras)
        for at in (share * (1 - JUST), share * (1 + JUST) + 1e-9)
    )
    if share:
        assert below[0].cost_usd.value < below[1].cost_usd.value
    assert above[0].cost_usd.value >= above[1].cost_usd.value * (1 - 1e-9)


def test_spot_that_is_no_cheaper_may_lose_no_work():
    assert both(2.0, 1.5, samples=1e8)[0].spot_break_even == 0
    assert both(2.0, 1.5)[0].spot_break_even == 0


def test_spot_is_called_cheaper_but_does_not_win_when_sorted_by_time():
    same = {"instance": "same"}
    offers = [offer(H100, 1.0, pricing=Pricing.SPOT, **same), offer(H100, 2.0, **same)]
    asked = {"spot": True, "spot_lost": 0.0, "samples": 1e8}
    for sort in ("value", "time"):
        told = said(rank_of(offers, {H100: 3000.0}, **asked, sort=sort))
        assert (
            "Spot stays cheaper than its seller's on-demand price unless interruptions add 100 % to the work."
            in told
        )


def test_the_cost_of_interruptions_assumes_the_best_checkpoints():
    """One in 24 h, a minute to write, 5 to restart: every 53.7 minutes, 4.07 %; no other interval costs less."""
    rate = 1 / 24
    best = checkpoint_interval_hours(rate)
    assert best == pytest.approx(0.8944, abs=1e-4)
    assert lost_to_interruptions(rate) == pytest.approx(0.0407, abs=1e-4)

    def lost(interval):
        return 1 / 60 / interval + rate * (interval / 2 + 5 / 60)

    assert lost(best) == pytest.approx(lost_to_interruptions(rate))
    assert lost(best) < min(lost(0.9 * best), lost(1.1 * best))


def test_interruptions_are_assumed_and_stated_unless_their_loss_is_given():
    offers = [offer(H100, 1.0, provider="aws", pricing=Pricing.SPOT), offer(H100, 2.0, provider="aws")]
    found = rank_of(offers, {H100: 3000.0}, spot=True, samples=1e8)
    assert found.rows[0].samples_per_s.value == pytest.approx(3000 / 1.0407, rel=1e-4)
    (risk,) = [each for each in found.said("caution") if "spot interruption" in each]
    (seen,) = [each for each in found.said("caution") if "took back" in each]
    assert "in 24 hours, checkpoints every 54 minutes" in risk
    assert "4.1 % of the work" in risk
    assert seen == "aws took back 15 to 20 % of its H100 SXM5 80GB machines in a month (2026-02-24)."
    given = rank_of(offers, {H100: 3000.0}, spot=True, spot_lost=0.0, samples=1e8)
    on_demand = rank_of(offers[1:], {H100: 3000.0}, spot=True, samples=1e8)
    assert not [each for found in (given, on_demand) for each in found.said("caution") if "took back" in each]
    assert not [
        each for found in (given, on_demand) for each in found.said("caution") if "spot interruption" in each
    ]


def test_an_old_spot_price_is_uncertain():
    """The spread is 0 on its day, and 0.38 x sqrt(3 / 4) after a half-life of 30 days."""
    market = Market(today=date(2026, 11, 20), asks={})
    prices = prices_of(
        [offer(H100, 1.0, pricing=Pricing.SPOT, price_date=day) for day in ("2026-11-20", "2026-10-21")],
        market,
    )
    assert prices.sigma.tolist() == [0.0, pytest.approx(0.38 * math.sqrt(0.75))]
