"""Each formula on a case computed by hand; the arithmetic is in the docstrings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.recommend import economics as eco


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


@settings(deadline=None)
@given(st.floats(0.01, 1e4), st.floats(1 / 3600, 24))
def test_billed_hours_are_between_the_worked_hours_and_one_unit_more(hours, unit):
    billed = float(eco.billed_hours(np.array([hours]), np.array([unit]))[0])
    assert hours - 1e-6 <= billed <= hours + unit + 1e-6
