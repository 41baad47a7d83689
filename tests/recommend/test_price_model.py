"""One price in every figure: order, printed price, interval, budget and draws agree."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.errors import MisuseError
from gpubench.recommend import objective
from gpubench.recommend.objective import wins_of

from .builders import A100, H100, L4, RTX5090, offer, rank_of

RATES = {H100: 3000.0, A100: 1700.0, RTX5090: 1500.0, L4: 500.0}
DAYS = ("2026-11-20", "2026-10-21", "2026-08", "2025-11-20")
HOST = {"kind": "marketplace"}

prices = st.integers(50, 200).map(lambda cents: cents / 100)
offers = st.builds(
    lambda key, price, day, kind, count: (key, price, {"price_date": day, "kind": kind, "gpu_count": count}),
    st.sampled_from(tuple(RATES)),
    prices,
    st.sampled_from(DAYS),
    st.sampled_from(("vm", "marketplace")),
    st.sampled_from((1, 2, 8)),
)
markets = st.lists(offers, min_size=1, max_size=8)
questions = st.fixed_dictionaries(
    {
        "width": st.sampled_from((1.02, 1.3, 1.8)),
        "startup_minutes": st.sampled_from((0, 10)),
        "samples": st.sampled_from((1e7, 1e9)),
        "tax": st.sampled_from((0.0, 0.19)),
        "storage_usd_per_month": st.sampled_from((0.0, 50.0)),
        "egress_usd": st.sampled_from((0.0, 5.0)),
    }
)


def ranked(market, **question):
    """The ranking, and the cost of each of its rows in every draw, as used for P(best) and regret."""
    seen = []

    def spy(scores):
        seen.append(scores.copy())
        return wins_of(scores)

    listed = [offer(key, price, instance=str(at), **more) for at, (key, price, more) in enumerate(market)]
    with patch.object(objective, "wins_of", spy):
        ranking = rank_of(listed, RATES, **{"draws": 4000, "samples": 1e9} | question)
    _at_expected_prices, scores, *_ = seen
    return ranking, -scores


@settings(max_examples=15, deadline=None)
@given(markets, questions)
def test_half_of_the_draws_are_below_the_printed_cost_and_nine_tenths_within_its_ends(market, question):
    ranking, drawn = ranked(market, **question)
    for row, costs in zip(ranking.rows, drawn, strict=True):
        assert row.cost_usd.low <= row.cost_usd.value <= row.cost_usd.high
        assert (costs <= row.cost_usd.value).mean() == pytest.approx(0.5, abs=0.05)
        inside = (costs >= row.cost_usd.low) & (costs <= row.cost_usd.high)
        assert inside.mean() == pytest.approx(0.9, abs=0.03)


@settings(max_examples=15, deadline=None)
@given(markets, questions)
def test_the_higher_of_two_rows_costs_less_in_at_least_half_of_the_draws(market, question):
    """A lower row never has a higher P(best) in dollars, because order and chances use the same prices."""
    ranking, drawn = ranked(market, **question)
    costs = [row.cost_usd.value for row in ranking.rows]
    assert costs == sorted(costs)
    for above, below in itertools.pairwise(drawn):
        assert (above <= below).mean() >= 0.45


def test_an_old_low_listing_is_expected_between_itself_and_the_hosts_median():
    """Hosts at 0.20, 0.40 and 0.45, median 0.40.

    After 30 days: sqrt(0.20 x 0.40) = 0.283; a job of 10 h costs 2.83.
    """
    hosts = [(H100, price, HOST | {"price_date": "2026-11-20"}) for price in (0.40, 0.45)]
    ranking, _ = ranked([(H100, 0.20, HOST | {"price_date": "2026-10-21"}), *hosts], samples=10 * 3600 * 3000)
    first, *fresh = ranking.rows
    assert float(first.offer.price_usd_per_hour) == 0.20
    assert first.usd_per_hour.value == pytest.approx(0.2828, abs=1e-4)
    assert first.cost_usd.value == pytest.approx(2.828, abs=1e-3)
    assert [row.usd_per_hour.value for row in fresh] == [0.40, 0.45]
    assert first.usd_per_hour.low < 0.2828 < first.usd_per_hour.high


def test_a_certain_charge_moves_both_ends_of_a_cost_equally():
    """The speed is uncertain and the listing old, for a job that costs less than its egress."""
    old = [(H100, 0.20, HOST | {"price_date": "2026-08"}), (H100, 0.40, HOST | {"provider": "other"})]
    asked = {"width": 1.8, "samples": 1e7}
    for plain, sent in zip(
        ranked(old, **asked)[0].rows, ranked(old, **asked, egress_usd=5.0)[0].rows, strict=True
    ):
        moved = [
            getattr(sent.cost_usd, end) - getattr(plain.cost_usd, end) for end in ("low", "value", "high")
        ]
        assert moved == pytest.approx([5.0] * 3)


def test_budget_and_hourly_limit_apply_to_the_printed_figures():
    hosts = [(H100, price, HOST | {"price_date": "2026-08"}) for price in (0.20, 0.40, 0.45)]
    (first, *_) = ranked(hosts, width=1.3)[0].rows
    kept, _ = ranked(hosts, width=1.3, budget_usd=first.cost_usd.high * 1.001)
    assert kept.rows[0].offer == first.offer
    with pytest.raises(MisuseError, match="budget"):
        ranked(hosts, width=1.3, budget_usd=first.cost_usd.high * 0.999)
    with pytest.raises(MisuseError, match="max-usd-per-hour"):
        ranked(hosts, max_usd_per_hour=0.21)
    assert len(ranked(hosts, max_usd_per_hour=first.usd_per_hour.value)[0].rows) == 1
