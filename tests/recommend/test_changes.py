"""Where the order turns: at a threshold the runner-up is as good, and beyond it the better, whatever else is paid."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.recommend.changes import find_threshold

from .builders import A100, H100, offer, rank_of

JUST = 1e-6
"""Relative step to either side of a threshold."""

EXTRAS = st.fixed_dictionaries(
    {
        "startup_minutes": st.sampled_from([0, 10, 45]),
        "storage_usd_per_month": st.sampled_from([0, 73, 900]),
        "egress_usd": st.sampled_from([0, 5, 40]),
        "tax": st.sampled_from([0, 0.2]),
        "billing_minutes": st.sampled_from([None, 1, 60]),
        "sort": st.sampled_from(["cost", "time"]),
        "samples": st.sampled_from([2e7, 1e8]),
    }
)
OFFERS = {H100: 2.0, A100: 1.7}
RATES = {H100: 3000.0, A100: 1700.0}


def ranked(prices, rates, **extras):
    offers = [offer(key, f"{usd:.12f}", instance=key) for key, usd in prices.items()]
    return rank_of(offers, rates, draws=1, **extras)


def merits(ranking):
    """Cost or time of the job by GPU."""
    figure = {"cost": "cost_usd", "time": "hours"}[ranking.sorted_by]
    return {row.offer.gpu_key: getattr(row, figure).value for row in ranking.rows}


def changes(ranking):
    """The one change, by its kind."""
    change = ranking.decision.change
    return {} if change is None else {change.kind: change}


@settings(max_examples=25, deadline=None)
@given(EXTRAS, st.floats(0.3, 6), st.floats(0.3, 6), st.floats(300, 5000), st.floats(300, 5000))
def test_the_order_turns_at_each_threshold_and_there_the_two_are_equal(
    extras, usd, other_usd, rate, other_rate
):
    prices, rates = {H100: usd, A100: other_usd}, {H100: rate, A100: other_rate}
    found = ranked(prices, rates, **extras)
    key = found.decision.choice.offer.gpu_key
    assert set(changes(found)) == {"price" if extras["sort"] == "cost" else "throughput"}
    for kind, each in changes(found).items():
        at = {
            step: ranked(
                prices | ({key: each.threshold * step} if kind == "price" else {}),
                rates | ({key: each.threshold * step} if kind == "throughput" else {}),
                **extras,
            )
            for step in (1 - JUST, 1, 1 + JUST)
        }
        cheaper, dearer = (at[1 - JUST], at[1 + JUST]) if kind == "price" else (at[1 + JUST], at[1 - JUST])
        if each.threshold != pytest.approx(each.value, rel=2 * JUST):
            assert cheaper.decision.choice.offer.gpu_key == key
        assert dearer.decision.choice.offer.gpu_key != key
        one, two = merits(at[1]).values()
        assert one == pytest.approx(two, rel=1e-6)


LIMITS = {"budget_usd": "cost_usd", "deadline_hours": "hours", "max_usd_per_hour": "usd_per_hour"}


@settings(max_examples=25, deadline=None)
@given(EXTRAS, st.floats(300, 5000), st.sampled_from(sorted(LIMITS)), st.floats(1.01, 3))
def test_the_order_turns_at_the_latest_where_a_limit_is_missed(extras, rate, option, room):
    rates = {H100: rate, A100: 1700.0}
    free = ranked(OFFERS, rates, **extras)
    limit = {option: room * max(getattr(row, LIMITS[option]).value for row in free.rows)}
    found = ranked(OFFERS, rates, **extras, **limit)
    key = found.decision.choice.offer.gpu_key
    assert key == free.decision.choice.offer.gpu_key
    for kind, each in changes(found).items():
        now = {"price": OFFERS, "throughput": rates}[kind]

        def choice_at(step, now=now, kind=kind, each=each):
            figures = now | {key: each.threshold * step}
            given = (figures, rates) if kind == "price" else (OFFERS, figures)
            return ranked(*given, **extras, **limit).decision.choice.offer.gpu_key

        up = 1 if kind == "price" else -1
        assert choice_at(1 + up * JUST) != key
        if each.threshold != pytest.approx(each.value, rel=2 * JUST):
            assert choice_at(1 - up * JUST) == key
        unlimited = changes(free).get(kind)
        assert unlimited is None or up * each.threshold <= up * unlimited.threshold * (1 + up * 1e-9)


def test_a_budget_and_a_ceiling_on_the_price_come_before_the_runner_up():
    """10 h at 2 USD against 17.647 h at 1.7, 30 USD: the first may cost 3.00 an hour, by 25 USD for the job 2.50."""
    for limit, usd in ({}, 3.0), ({"budget_usd": 31}, 3.0), ({"max_usd_per_hour": 2.2}, 2.2):
        price = changes(ranked(OFFERS, RATES, samples=1.08e8, **limit))["price"]
        assert price.threshold == pytest.approx(usd, rel=1e-4)
    rates, asked = RATES | {A100: 2250.0}, {"samples": 1.08e8, "sort": "time"}
    assert changes(ranked(OFFERS, rates, **asked))["throughput"].threshold == pytest.approx(2250)
    late = changes(ranked(OFFERS, rates, **asked, deadline_hours=20))["throughput"]
    assert late.threshold == pytest.approx(2250)
    dear = changes(ranked(OFFERS, rates, **asked, budget_usd=24))
    assert dear["price"].threshold == pytest.approx(2.4)


def test_egress_and_storage_are_not_part_of_the_price_that_may_rise():
    """1.08e8 images: 10 h at 3,000/s, 17.647 h at 1,700/s. 17.647 x 1.7 + 20 = 50.00 USD, so the ten hours
    may cost 50 - 20 = 30 USD, 3.00 an hour; with 730 USD of storage a month, 1 USD an hour, 3.765."""
    for extras, usd in (
        ({"egress_usd": 20}, 3.0),
        ({"egress_usd": 20, "tax": 0.25}, 3.0),
        ({"egress_usd": 20, "storage_usd_per_month": 730}, 3.0 + 7.647 / 10),
    ):
        price = changes(ranked(OFFERS, RATES, samples=1.08e8, **extras))["price"]
        assert price.threshold == pytest.approx(usd, rel=1e-4)


def test_both_start_before_the_first_step():
    """The other takes 17.647 h and 45 min; the first starts in 45 min as well, so that it may be as slow."""
    speed = changes(ranked(OFFERS, RATES, samples=1.08e8, startup_minutes=45, sort="time"))["throughput"]
    assert speed.threshold == pytest.approx(1700)


def test_a_bill_by_the_hour_turns_where_the_next_hour_begins():
    """10 h at 2 USD against 17.647 h, billed 18, at 1.7: for 30.60 USD the ten hours may cost 3.06 each."""
    price = changes(ranked(OFFERS, RATES, samples=1.08e8, billing_minutes=60))["price"]
    assert price.threshold == pytest.approx(3.06)


def test_what_is_free_stays_the_better_at_any_speed():
    assert find_threshold(lambda figure: True, 3.0, 0.5) is None
    assert find_threshold(lambda figure: False, 3.0, 0.5) == 3.0
    assert find_threshold(lambda usd: usd < 4.5, 0.0, 2.0) == pytest.approx(4.5)
