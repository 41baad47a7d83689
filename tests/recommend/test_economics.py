"""Each formula on a case worked by hand; the arithmetic stands in the docstrings."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.recommend import economics as eco
from gpubench.recommend import filters, request


def test_value_and_its_inverse():
    """3600 x 1000 / 2.50 = 1,440,000 samples for a dollar; a million cost 1e6 / 1,440,000 = 0.694 USD."""
    value = eco.samples_per_usd(1000.0, 2.5)
    assert value == pytest.approx(1_440_000)
    assert eco.usd_per_million_samples(value) == pytest.approx(0.6944, abs=1e-4)


def test_hours_to_train():
    """90 x 1.281e6 = 115.29e6 samples at 3,000/s are 38,430 s = 10.675 h."""
    assert eco.train_hours(90 * 1.281e6, 3000.0) == pytest.approx(10.675)


def test_lost_work_is_throughput_lost():
    """With 20 % of it to be done again 10 h of work take 12 h: 10 / 12 = 0.833 of the throughput is kept."""
    assert eco.delivered_share(0.2) == pytest.approx(10 / 12)
    assert eco.delivered_share(0.0) == 1


def test_billed_hours():
    """12.25 h by the hour are 13, by the quarter 12.25; 2 h stay 2 h."""
    wall = np.array([12.25])
    assert eco.billed_hours(wall, np.array([1.0])) == pytest.approx(13)
    assert eco.billed_hours(wall, np.array([0.25])) == pytest.approx(12.25)
    assert eco.billed_hours(np.array([2.0000000001]), np.array([1.0])) == pytest.approx(2)
    assert eco.billed_hours(np.array([1e-16, 0.0]), np.array([0.25])).tolist() == [0.25, 0.0]


def test_cost_of_a_job():
    """(13 x 2 + 73 x 13 / 730 + 5) x 1.2 = (26 + 1.3 + 5) x 1.2 = 38.76 USD."""
    cost = eco.job_cost(np.array([13.0]), np.array([2.0]), storage_usd_per_month=73, egress_usd=5, tax=0.2)
    assert cost == pytest.approx(38.76)


def test_spot_break_even():
    """2.76 / 2.00 - 1 = 0.38: spot wins while lost work stays under 38 %."""
    assert eco.spot_break_even(2.76, 2.0) == pytest.approx(0.38)


def test_buying_worked_example():
    """30,000 USD, resale 9,000, 4 years at 0.5, 650 W, PUE 1.3, 0.15 USD/kWh, rent 2.99.

    H = 4 x 8760 x 0.5 = 17,520; capital 21,000 / 17,520 = 1.199; energy 0.65 x 1.3 x 0.15 = 0.127;
    break-even 21,000 / (2.99 - 0.12675) = 7,334 h; 7,334 / 35,040 = 0.209.
    """
    hours = eco.useful_hours(4, 0.5)
    capital = eco.capital_usd_per_hour(30_000, 9_000, hours)
    energy = eco.energy_usd_per_hour(650, 1.3, 0.15)
    assert hours == 17_520
    assert capital == pytest.approx(1.199, abs=5e-4)
    assert energy == pytest.approx(0.127, abs=5e-4)
    assert capital + energy == pytest.approx(1.325, abs=5e-4)
    after = eco.break_even_hours(30_000, 9_000, 2.99, energy)
    assert after == pytest.approx(7334, abs=1)
    assert eco.break_even_utilization(after, 4) == pytest.approx(0.209, abs=5e-4)


def test_idle_power_is_paid_by_the_useful_hours():
    """(650 + 60 x (1 - 0.5) / 0.5) W = 710 W: 0.71 x 1.3 x 0.15 = 0.13845 USD."""
    assert eco.energy_usd_per_hour(650, 1.3, 0.15, idle_w=60, utilization=0.5) == pytest.approx(0.13845)


def test_never():
    assert eco.break_even_hours(1000, 0, 0.10, 0.12) is None
    assert eco.break_even_utilization(None, 4) is None
    assert eco.break_even_utilization(40_000, 4) is None  # 40,000 h are more than 35,040


def test_a_commitment_is_paid_day_and_night():
    """1.80 USD/h used half of the time is 3.60 USD per useful hour."""
    assert eco.committed_usd_per_useful_hour(1.8, 0.5) == pytest.approx(3.6)


@settings(deadline=None)
@given(st.floats(0.01, 1e4), st.floats(1 / 3600, 24))
def test_a_bill_is_never_below_the_hours_nor_a_unit_above(hours, unit):
    billed = float(eco.billed_hours(np.array([hours]), np.array([unit]))[0])
    assert hours - 1e-6 <= billed <= hours + unit + 1e-6


@settings(deadline=None)
@given(st.floats(0.02, 100), st.floats(0, 0.01), st.floats(1000, 1e6))
def test_at_the_break_even_owning_and_renting_cost_the_same(rent, running, purchase):
    hours = eco.break_even_hours(purchase, 0.3 * purchase, rent, running)
    assert hours * rent == pytest.approx(0.7 * purchase + hours * running)


@pytest.mark.parametrize("module", [filters, request])
def test_the_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0
