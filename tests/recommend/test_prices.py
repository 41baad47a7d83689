"""Prices in the draws: list prices certain on their day and drifting, asks of single hosts a distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpubench.models import Asks, Pricing
from gpubench.recommend.prices import Market, drawn_prices, expected_usd_per_hour, prices_of

from .builders import H100, L4, TODAY, offer, rank_of

DRAWS = 20_000
ASKS = Asks(
    median_usd_per_hour=0.4,
    low_usd_per_hour=0.4 * math.exp(-1.6449 * 0.3),
    high_usd_per_hour=0.4 * math.exp(1.6449 * 0.3),
    ask_count=5,
    provider_count=2,
)
MARKET = Market(TODAY, {(H100, Pricing.ON_DEMAND): ASKS}, drift=0.3)


def drawn(*offers):
    rows = np.arange(len(offers))
    return drawn_prices(prices_of(offers, MARKET), rows, DRAWS, 0)


def test_a_list_price_of_today_is_certain():
    assert np.ptp(drawn(offer(H100, 2.0))) == 0


def test_a_list_price_drifts_with_its_age_and_one_hand_sets_a_providers_prices():
    """After a year its logarithm has a standard deviation of 0.3, after a quarter one of 0.15."""
    year, quarter = "2025-11-20", "2026-08-20"
    mine = drawn(
        offer(H100, 2.0, price_date=year),
        offer(H100, 4.0, price_date=year, gpu_count=2),
        offer(H100, 2.0, price_date=quarter, provider="other"),
    )
    spread = np.log(mine).std(axis=1)
    assert spread == pytest.approx([0.3, 0.3, 0.15], rel=0.03)
    assert np.median(mine, axis=1) == pytest.approx([2, 4, 2], rel=0.02)
    assert np.allclose(mine[1], 2 * mine[0])
    assert abs(np.corrcoef(mine[0], mine[2])[0, 1]) < 0.05


def test_an_ask_is_as_listed_when_fresh_and_any_other_hosts_when_old():
    """0.20 a GPU where the middle is 0.40: after 30 days sqrt(0.20 x 0.40) = 0.283, spread 0.3 x sqrt(3) / 2."""
    host = {"kind": "marketplace", "gpu_count": 2}
    hosts = [
        offer(H100, 0.4, **host),
        offer(H100, 0.4, **host, price_date="2026-10-21"),
        offer(H100, 0.4, **host, price_date="2021"),
    ]
    assert [expected_usd_per_hour(each, MARKET) for each in hosts] == pytest.approx(
        [0.4, 0.5657, 0.8], rel=1e-4
    )
    fresh, old, ancient = drawn(*hosts)
    assert np.ptp(fresh) == 0
    assert np.median(old) == pytest.approx(0.5657, rel=0.02)
    assert np.log(old).std() == pytest.approx(0.3 * math.sqrt(3) / 2, rel=0.03)
    assert np.median(ancient) == pytest.approx(0.8, rel=0.02)
    assert np.log(ancient).std() == pytest.approx(0.3, rel=0.03)
    assert abs(np.corrcoef(old, ancient)[0, 1]) < 0.05, "each host asks for itself"


def test_hardware_that_is_owned_costs_what_it_costs():
    own = offer(L4, 0.1, pricing=Pricing.OWNED, kind="owned", price_date="2024-01-01")
    assert np.ptp(drawn(own)) == 0


def test_ties_are_at_the_prices_expected_and_chances_count_how_far_they_may_be_off():
    old = {"kind": "marketplace", "price_date": "2025-11-20"}
    hosts = [offer(H100, price, instance=str(price), **old) for price in (1.0, 2.0, 2.5)]
    rows = rank_of([*hosts, offer(L4, 0.3)], {H100: 3000.0, L4: 500.0}, samples=1e8, width=1.05).rows
    assert not any(row.tie for row in rows)
    assert rows[0].p_best < 0.5


def test_an_old_ask_makes_the_choice_less_sure_and_a_fresh_one_does_not():
    def sureness(day):
        hosts = [offer(H100, price, kind="marketplace", instance=str(price)) for price in (1.9, 2.2, 2.5)]
        cheap = offer(H100, 1.0, kind="marketplace", price_date=day)
        rates = {H100: 3000.0, L4: 500.0}
        return rank_of([*hosts, cheap, offer(L4, 0.25)], rates, samples=1e8).decision.sureness

    fresh, old = sureness(TODAY.isoformat()), sureness("2026-09-01")
    assert (fresh.p_best, fresh.regret_usd) == (1, 0)
    assert old.p_best < 0.8
    assert old.regret_usd > 0
