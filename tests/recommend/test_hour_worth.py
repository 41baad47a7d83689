"""Ranking by dollars plus the value of hours, checked by hand, and the cheapest and fastest answers next to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.errors import MisuseError
from gpubench.sentences import texts

from .builders import H100, L4, RTX5090, offer, rank_of

SAMPLES = 3.6e8
OFFERS = [offer(L4, 0.2), offer(RTX5090, 0.6), offer(H100, 4.0)]
RATES = {L4: 1e3, RTX5090: 4e3, H100: 1e4}
"""The job takes 100 h and 20 USD on an L4, 25 h and 15 USD on an RTX 5090, 10 h and 40 USD on an H100."""


def ranked(worth: float, **options):
    return rank_of(OFFERS, RATES, samples=SAMPLES, hour_worth_usd=worth, **options)


def order(ranking) -> list[str]:
    return [row.offer.gpu_key for row in ranking.rows]


@pytest.mark.parametrize(
    ("worth", "expected"),
    [
        (0, [RTX5090, L4, H100]),
        (1, [RTX5090, H100, L4]),  # 40, 50 and 120
        (2, [H100, RTX5090, L4]),  # 60, 65 and 220
    ],
)
def test_rows_are_sorted_by_dollars_plus_the_value_of_hours(worth, expected):
    ranking = ranked(worth)
    assert order(ranking) == expected
    for row in ranking.rows:
        total_usd = row.cost_usd.value + worth * row.hours.value
        assert row.total_usd.value == pytest.approx(total_usd)
    assert ranking.hour_worth_usd == worth


def test_the_three_answers_minimize_dollars_both_and_hours():
    answers = ranked(2).answers
    assert {name: each.row.offer.gpu_key for name, each in answers.items()} == {
        "cheapest": RTX5090,
        "sensible": H100,
        "fastest": H100,
    }
    assert {name: each.p_best for name, each in answers.items()} == dict.fromkeys(answers, 1.0)


def test_the_price_of_an_hour_between_two_answers_needs_no_hour_worth():
    """15.00 USD in 25 h, and 40.00 in 10."""
    for worth in (1, 2):
        # At 1 USD/h Sensible is the cheapest offer, at 2 USD/h the fastest.
        names = " than Sensible, Fastest" if worth == 1 else ", Sensible"
        assert f"For $25.00 more{names} saves 15.0 h ($1.67/h)." in ranked(worth).said("answer")
    begin, _, _ = texts()["hour_worth"].partition("{")
    for worth in (0, 1):
        waiting = [text for text in ranked(worth).said("caution") if text.startswith(begin)]
        assert len(waiting) == worth


def test_no_price_of_an_hour_is_given_if_both_take_equally_long():
    hosts = [offer(H100, 2.0, provider="one", kind="marketplace"), offer(H100, 3.0, provider="two")]
    found = rank_of(hosts, {H100: 1e4}, samples=SAMPLES, hour_worth_usd=2)
    assert not [text for text in found.said("answer") if "saves" in text]
    assert found.cloud.offer.provider == "two"


def test_hour_worth_without_a_job_is_refused():
    with pytest.raises(MisuseError, match="--hour-worth values the hours of a job"):
        rank_of(OFFERS, RATES, hour_worth_usd=5)


@pytest.mark.parametrize("sort", ["value", "cost", "time", "throughput"])
def test_the_chances_of_a_row_do_not_depend_on_the_sort_order(sort):
    usual = {row.offer.gpu_key: row for row in ranked(2, width=1.5, draws=2000).rows}
    for row in ranked(2, width=1.5, draws=2000, sort=sort).rows:
        same = usual[row.offer.gpu_key]
        for name in ("p_cheapest", "p_sensible", "p_fastest"):
            assert getattr(row, name) == pytest.approx(getattr(same, name), abs=1e-12), name
    assert sum(row.p_sensible for row in usual.values()) == pytest.approx(1)
    assert usual[L4].p_sensible == 0


def test_if_hours_are_worth_nothing_only_dollars_count():
    free, dollars = ranked(0, width=1.5), ranked(2, width=1.5, sort="cost")
    assert (free.sorted_by, order(free)) == ("cost", order(dollars))
    assert [row.p_best for row in free.rows] == [row.p_best for row in dollars.rows]


def test_a_slow_card_that_may_be_slower_has_the_wider_total():
    """A factor of 1.5 in speed changes hours and dollars together: 120 USD of an L4 are 80 to 180."""
    total = next(row.total_usd for row in ranked(1, width=1.5).rows if row.offer.gpu_key == L4)
    assert (total.low, total.value, total.high) == pytest.approx((80, 120, 180))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(100, 1e5)), min_size=2, max_size=5),
    st.floats(0, 20),
    st.floats(0, 20),
)
def test_the_more_an_hour_is_worth_the_faster_is_the_answer(market, one, other):
    keys = [H100, L4, RTX5090, "nvidia-tesla-t4-16gb", "nvidia-a100-sxm-80gb"][: len(market)]
    offers = [offer(key, round(price, 3)) for key, (price, _) in zip(keys, market, strict=True)]
    rates = {key: rate for key, (_, rate) in zip(keys, market, strict=True)}
    less, more = (
        rank_of(offers, rates, samples=SAMPLES, hour_worth_usd=worth, draws=1).rows[0].hours.value
        for worth in sorted((one, other))
    )
    assert more <= less * (1 + 1e-9)
