"""Each formula on a case computed by hand; the arithmetic is in the docstrings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.recommend import economics as eco


def test_samples_per_dollar_follow_from_rate_and_price():
    """3600 x 1000 / 2.50 = 1,440,000 samples per dollar."""
    assert eco.samples_per_usd(1000.0, 2.5) == pytest.approx(1_440_000)


def test_hours_follow_from_samples_and_rate():
    """90 x 1.281e6 = 115.29e6 samples at 3,000/s are 38,430 s = 10.675 h."""
    assert eco.train_hours(90 * 1.281e6, 3000.0) == pytest.approx(10.675)


def test_lost_work_reduces_throughput():
    """With 20 % of it repeated, 10 h of work take 12 h: 10 / 12 = 0.833 of the throughput remains."""
    assert eco.delivered_share(0.2) == pytest.approx(10 / 12)
    assert eco.delivered_share(0.0) == 1


def test_a_private_host_fails_once_in_a_week():
    """A checkpoint every sqrt(2 / 60 x 168) = 2.366 h; 1/60 / 2.366 + (2.366 / 2 + 10/60) / 168 = 0.01508 is lost."""
    week = 1 / eco.HOST_HOURS_BETWEEN
    assert eco.checkpoint_interval_hours(week) == pytest.approx(2.3664, abs=1e-4)
    assert eco.lost_to_interruptions(week, 10 / 60) == pytest.approx(0.01508, abs=1e-5)


def test_hours_are_billed_in_increments():
    """12.25 h billed by the hour are 13, by the quarter 12.25; 2 h stay 2 h."""
    wall = np.array([12.25])
    assert eco.billed_hours(wall, np.array([1.0])) == pytest.approx(13)
    assert eco.billed_hours(wall, np.array([0.25])) == pytest.approx(12.25)
    assert eco.billed_hours(np.array([2.0000000001]), np.array([1.0])) == pytest.approx(2)
    assert eco.billed_hours(np.array([1e-16, 0.0]), np.array([0.25])).tolist() == [0.25, 0.0]


def test_the_cost_of_a_job_includes_storage_egress_and_tax():
    """(13 x 2 + 73 x 13 / 730 + 5) x 1.2 = (26 + 1.3 + 5) x 1.2 = 38.76 USD."""
    cost = eco.job_cost(np.array([13.0]), np.array([2.0]), storage_usd_per_month=73, egress_usd=5, tax=0.2)
    assert cost == pytest.approx(38.76)


@settings(deadline=None)
@given(st.floats(0.01, 1e4), st.floats(1 / 3600, 24))
def test_billed_hours_are_between_the_worked_hours_and_one_unit_more(hours, unit):
    billed = float(eco.billed_hours(np.array([hours]), np.array([unit]))[0])
    assert hours - 1e-6 <= billed <= hours + unit + 1e-6
