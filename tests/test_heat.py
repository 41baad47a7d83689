"""The further slowdown from heat, for launches that can be computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpubench.heat import (
    STEADY_C_PER_S,
    USUAL_PER_C,
    USUAL_RISE_C,
    Moment,
    is_warming_up,
    slowing_of,
    slowing_to_come,
)


def launches(*step_s, celsius=(50.0, 60.0, 64.0), clocks=(1.98e9,) * 3):
    parts = zip(step_s, celsius[: len(step_s)], clocks[: len(step_s)], strict=True)
    return [Moment(step_s=s, temperature_c=c, clock_hz=hz) for s, c, hz in parts]


def sloping(moments, *slopes):
    return [structs.replace(m, slope_c_per_s=s) for m, s in zip(moments, slopes, strict=True)]


def test_warming_card_gets_the_usual_remaining_rise_from_its_last_launch():
    """The last launch is 6 degrees above the mean of 58."""
    assert slowing_to_come(launches(1.0, 1.0, 1.0)) == pytest.approx(0.0006 * (25 + 6))
    assert slowing_to_come(launches(1.0, 1.1, 1.2), per_c=0.01) == pytest.approx(0.31)
    assert slowing_to_come(launches(1.0, 1.0, celsius=(50.0, 60.0))) == pytest.approx(0.0006 * (25 + 5))


def test_steady_card_gets_the_rise_of_its_temperature_slope():
    """One degree in half a minute, for 60 s, at 0.06 % a degree: 0.12 %."""
    steady = launches(1.0, 1.1, 1.2, celsius=(60.0, 60.0, 61.0))
    assert slowing_to_come(steady) == 0.0
    assert slowing_to_come(sloping(steady, 0.0, 1 / 15, None)) == pytest.approx(0.0012)
    assert slowing_to_come(sloping(steady, -0.1, 0.0, 0.0)) == 0.0
    laptop = slowing_to_come(sloping(steady, 0.0, 1 / 15, None), per_c=0.005)
    assert laptop == pytest.approx(0.005 * 4)  # 120 s, because a laptop's case warms up too
    assert slowing_to_come(sloping(steady, 0.067, 0.067, 0.067)) == pytest.approx(0.0006 * (25 + 2 / 3))
    assert slowing_to_come(launches(1.0)) is None
    assert slowing_to_come(launches(1.0, 1.0, 1.0, celsius=(60.0, None, 60.0))) is None


def test_without_a_temperature_a_moving_clock_gets_the_usual_remaining_rise():
    """1.5 %: 25 degrees of 0.06 % each."""
    untold = (None,) * 3
    falling = launches(1.0, 1.01, 1.02, celsius=untold, clocks=(1.98e9, 1.97e9, 1.95e9))
    assert slowing_to_come(falling) == pytest.approx(0.015)
    assert slowing_to_come(launches(1.0, 1.0, 1.0, celsius=untold)) is None


@pytest.mark.parametrize("apart_s", [36, 60, 92])
@pytest.mark.parametrize("celsius", [83.0, None])
@pytest.mark.parametrize("has_clock", [True, False])
def test_without_a_useful_temperature_launches_and_clock_are_used(apart_s, celsius, has_clock):
    """A card held at its limit loses a tenth of its clock, with a time constant of 60 s; four cases, 8 s apart."""

    def row(first_s):
        times_s = [first_s + n * apart_s for n in range(3)]
        falls = [1 - 0.1 * (1 - math.exp(-at_s / 60)) for at_s in times_s]
        return [
            Moment(
                step_s=1 / fall, at_s=at_s, temperature_c=celsius, clock_hz=2e9 * fall if has_clock else None
            )
            for at_s, fall in zip(times_s, falls, strict=True)
        ]

    rows = [row(8.0 * number) for number in range(4)]
    found = slowing_to_come(rows[0], **slowing_of([*rows, []]))
    truth = 1 / 0.9 / np.mean([moment.step_s for moment in rows[0]]) - 1
    if has_clock:
        assert found == pytest.approx(truth, rel=0.05)
    else:
        assert found == (None if celsius is None else 0.0), "nothing says that it warms up"


@pytest.mark.parametrize(
    ("celsius", "clocks", "warming"),
    [
        ((50.0, 60.0, 62.0), (1.98e9,) * 3, True),
        ((50.0, 60.0, 61.9), (1.98e9,) * 3, False),
        ((60.0, 60.0, 60.0), (1.98e9, 1.98e9, 1.97e9), True),
        ((60.0, 60.0, 60.0), (1.98e9, 1.98e9, 1.979e9), False),
        # The card cools between cases, and its heat has already slowed it.
        ((50.0, 60.0, 60.0), (1.98e9, 1.965e9, 1.965e9), True),
        ((50.0, 60.0, 60.0), (None, None, None), False),
        ((60.0, 60.0, 60.0), (1.98e9, 1.965e9, 1.965e9), False),
    ],
)
def test_a_card_warms_up_while_temperature_or_clock_moves(celsius, clocks, warming):
    moments = launches(1.0, 1.0, 1.0, celsius=celsius, clocks=clocks)
    assert is_warming_up(moments) == warming
    assert is_warming_up(sloping(moments, *[2.01 * STEADY_C_PER_S] * 3))


def test_heat_slope_and_its_upper_bound_match_scipy():
    """Seven cases with their own step times and three launches each, at 0.1 % a degree."""
    from scipy.stats import linregress, t

    rng = np.random.default_rng(0)
    celsius = 50 + rng.integers(0, 15, (7, 3)).astype(float)
    times = rng.uniform(0.01, 1, 7)[:, None] * np.exp(0.001 * celsius + 0.0003 * rng.standard_normal((7, 3)))
    rows = [launches(*pace, celsius=hot) for pace, hot in zip(times.tolist(), celsius.tolist(), strict=True)]
    centered = [(each - each.mean(1, keepdims=True)).ravel() for each in (celsius, np.log(times))]
    fit = linregress(*centered)
    reach = t.ppf(0.975, 13) * fit.stderr * math.sqrt(19 / 13)  # each case has its own mean
    assert slowing_of(rows)["per_c"] == pytest.approx(fit.slope + reach, rel=1e-6)
    assert 0.001 < slowing_of(rows)["per_c"] < 0.0012
    blind = [structs.replace(m, temperature_c=None) for m in rows[0]]
    assert slowing_of([*rows, blind])["per_c"] == slowing_of(rows)["per_c"]


def test_card_not_slowed_by_heat_has_almost_no_expected_slowdown():
    """An H100 at 1980 MHz from 41 to 57 degrees."""
    rng = np.random.default_rng(1)
    rows = [
        launches(*(1 + 0.0003 * rng.standard_normal(3)).tolist(), celsius=(45.0, 52.0, 56.0))
        for _ in range(7)
    ]
    assert 0 <= slowing_of(rows)["per_c"] < 0.1 * USUAL_PER_C
    faster = launches(*(math.exp(-0.001 * celsius) for celsius in (50.0, 60.0, 64.0)))
    assert slowing_of([faster, faster])["per_c"] == 0.0


def test_launches_that_are_too_noisy_or_too_similar_give_no_slope():
    rng = np.random.default_rng(2)
    restless = [launches(*(1 + 0.07 * rng.standard_normal(3)).tolist()) for _ in range(7)]
    alike = [launches(1.0, 1.001, 1.002, celsius=(60.0, 60.0, 61.0))] * 3
    assert (
        slowing_of(restless)["per_c"] == slowing_of(alike)["per_c"] == slowing_of([])["per_c"] == USUAL_PER_C
    )
    steep = [launches(1.0, math.exp(0.1), math.exp(0.15)), launches(1.0, math.exp(0.11), math.exp(0.13))]
    assert slowing_of(steep)["per_c"] > 0.005, "the lower end, if even that exceeds the usual slope"


@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(20.0, 90.0)), min_size=2, max_size=8))
def test_heat_never_makes_a_card_faster(pairs):
    moments = [Moment(step_s=s, clock_hz=None, temperature_c=c) for s, c in pairs]
    per_c = slowing_of([moments])["per_c"]
    assert per_c >= 0
    assert 0 <= slowing_to_come(moments, per_c) <= per_c * (USUAL_RISE_C + 70)
