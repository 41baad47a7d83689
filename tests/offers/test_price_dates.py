"""A partial date counts as its earliest day, and age is never negative."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.offers.dates import age_days, freshness, price_day, show_price_date
from gpubench.offers.snapshot import embedded_offers


@pytest.mark.parametrize(
    ("text", "day", "shown"),
    [
        ("2026", date(2026, 1, 1), "2026, day unknown"),
        ("2026-08", date(2026, 8, 1), "2026-08, day unknown"),
        ("2026-08-14", date(2026, 8, 14), "2026-08-14"),
    ],
)
def test_a_partial_date_counts_as_its_earliest_day(text, day, shown):
    assert price_day(text) == day
    assert show_price_date(text) == shown


@pytest.mark.parametrize(
    "text", ["", "26", "2026-13", "2026-02-30", "20260814", "2026-8-1", "२०२६", "2026-08-14\n"]
)
def test_an_invalid_date_is_refused(text):
    with pytest.raises(ValueError, match="price date"):
        price_day(text)


@given(st.dates(min_value=date(2000, 1, 1), max_value=date(2100, 1, 1)))
def test_more_precise_date_is_never_older(day):
    full, month, year = day.isoformat(), day.isoformat()[:7], day.isoformat()[:4]
    assert price_day(year) <= price_day(month) <= price_day(full) == day


def test_age_counts_days_and_stops_at_zero():
    offer = next(o for o in embedded_offers().offers if o.price_date == "2026-10-04")
    assert age_days(offer.price_date, date(2026, 11, 20)) == 47
    assert age_days(offer.price_date, date(2026, 10, 4) - timedelta(days=1)) == 0


@pytest.mark.parametrize(
    ("days", "word"),
    [(0, "current"), (30, "current"), (31, "stale"), (180, "stale"), (181, "not current")],
)
def test_freshness_has_two_limits(days, word):
    assert freshness(days) == word
