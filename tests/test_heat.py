"""What heat may still take, from launches that a hand can follow."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpubench.heat import USUAL_SLOWING, Moment, is_warming_up, slowing_to_come


def launches(*step_s, celsius=(50.0, 60.0, 65.0), clocks=(1.98e9,) * 3):
    parts = zip(step_s, celsius[: len(step_s)], clocks[: len(step_s)], strict=True)
    return [Moment(step_s=s, temperature_c=c, clock_hz=hz) for s, c, hz in parts]


def test_what_slows_down_by_half_as_much_each_time_has_the_last_of_it_to_go():
    """e^0, e^0.08, e^0.12: 0.04 more to come, and the last lies 0.16 / 3 above the mean."""
    moments = launches(1.0, math.exp(0.08), math.exp(0.12))
    assert slowing_to_come(moments) == pytest.approx(0.12 - 0.2 / 3 + 0.04)


def test_what_the_times_do_not_show_is_what_is_usual():
    """Faster at last, no slower, or two launches alone."""
    assert slowing_to_come(launches(1.0, 1.0, 1.0)) == USUAL_SLOWING
    assert slowing_to_come(launches(1.0, 1.1, 1.05)) == pytest.approx(
        math.log(1.05) - math.log(1.155) / 3 + 0.015
    )
    assert slowing_to_come(launches(1.1, 1.05, 1.0)) == USUAL_SLOWING
    assert slowing_to_come(launches(1.0, 1.0, celsius=(50.0, 60.0))) == USUAL_SLOWING
    small = launches(1.0, 1.0008, 1.0012)
    assert slowing_to_come(small) == pytest.approx(0.0012 - 0.002 / 3 + USUAL_SLOWING, abs=1e-5)


def test_a_card_that_stands_has_what_its_slope_is_worth_and_one_that_tells_nothing_is_unknown():
    """One degree in half a minute, 60 s of it, 0.06 % each: 0.12 %."""
    steady = launches(1.0, 1.1, 1.2, celsius=(60.0, 60.0, 61.0))
    assert slowing_to_come(steady) == 0.0
    for slopes, come in (
        ((0.0, 1 / 15, None), 0.0012),
        ((1.0, 1.0, 1.0), USUAL_SLOWING),
        ((-0.1, 0.0, 0.0), 0),
    ):
        sloping = [structs.replace(m, slope_c_per_s=s) for m, s in zip(steady, slopes, strict=True)]
        assert slowing_to_come(sloping) == pytest.approx(come)
    assert slowing_to_come(launches(1.0)) is None
    assert slowing_to_come(launches(1.0, 1.0, 1.0, celsius=(60.0, None, 60.0))) is None


@pytest.mark.parametrize(
    ("celsius", "clocks", "warming"),
    [
        ((50.0, 60.0, 62.0), (1.98e9,) * 3, True),
        ((50.0, 60.0, 61.9), (1.98e9,) * 3, False),
        ((60.0, 60.0, 60.0), (1.98e9, 1.98e9, 1.97e9), True),
        ((60.0, 60.0, 60.0), (1.98e9, 1.98e9, 1.979e9), False),
        (
            (50.0, 60.0, 60.0),
            (1.98e9, 1.965e9, 1.965e9),
            True,
        ),  # it rests between cases, and paid for its heat
        ((50.0, 60.0, 60.0), (None, None, None), False),
        ((60.0, 60.0, 60.0), (1.98e9, 1.965e9, 1.965e9), False),
    ],
)
def test_a_card_warms_up_while_temperature_or_clock_moves(celsius, clocks, warming):
    assert is_warming_up(launches(1.0, 1.0, 1.0, celsius=celsius, clocks=clocks)) == warming


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8))
def test_a_card_that_warms_up_never_has_less_than_the_usual_to_come(step_s):
    moments = [
        Moment(step_s=each, clock_hz=None, temperature_c=40.0 + 3 * n) for n, each in enumerate(step_s)
    ]
    come = slowing_to_come(moments)
    assert USUAL_SLOWING <= come < 4.01 * math.log(4)
