"""Intervals: known and unknown ends, and their text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.interval import Interval, stacked
from gpubench.units import format_percent, format_usd


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(Interval(1.0, 0.9, 1.1), True), (Interval(1.5, 1.2, 1.9), False), (Interval(1.0, 0.9), None)],
)
def test_containment_is_unknown_without_both_ends(interval: Interval, expected: bool | None) -> None:
    assert interval.holds(1) is expected


def test_dividing_keeps_unknown_ends_unknown() -> None:
    assert Interval(8.0, 6.0).over(2) == Interval(4.0, 3.0)
    assert Interval(None).over(2) == Interval(None)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Interval(3166.4, 3150.2, 3181.9), "3,166 (3,150 to 3,182)"),
        (Interval(1653.7, 1572.8, 1743.3), "1,650 (1,570 to 1,740)"),
        (Interval(100.0, 1.0, 500.0), "100 (1.0 to 500)"),
        (Interval(5.0, 5.0, 5.0), "5.000 (5.000 to 5.000)"),
        (Interval(0.0, 0.0, 0.0), "0 (0 to 0)"),
        (Interval(140.0, 54.0), "140 (at least 54)"),
        (Interval(None), "—"),
    ],
)
def test_an_interval_has_as_many_digits_as_its_width_supports(interval: Interval, expected: str) -> None:
    assert interval.text() == expected


@given(st.floats(min_value=1e-6, max_value=1e12), st.floats(min_value=1e-4, max_value=0.9))
def test_no_end_of_an_interval_is_rounded_onto_its_estimate(value: float, half_width: float) -> None:
    shown = Interval(value, value * (1 - half_width), value * (1 + half_width)).text()
    point, low, high = (float(part) for part in re.findall(r"[0-9.]+", shown.replace(",", "")))
    assert low < point < high


def test_a_unit_follows_the_value_and_the_ends_come_last() -> None:
    assert Interval(4.4321, 4.41, 4.45).text("x") == "4.432x (4.410 to 4.450)"
    assert Interval(None).text("x") == "—"


def test_a_ratio_shows_no_more_digits_than_its_interval_supports() -> None:
    assert Interval(2.3456, 1.9, 2.9).text("×") == "2.3× (1.9 to 2.9)"


@given(st.floats(min_value=1e-3, max_value=1e12), st.floats(min_value=1.0, max_value=3.0))
def test_a_worded_interval_contains_its_estimate(value: float, width: float) -> None:
    text = Interval(value, value / width, value * width).words()
    point, low, high = (
        float(t.replace(",", ""))
        for t in text.replace("(", "").replace(")", "").replace("to ", "").split()[:3]
    )
    assert low <= point * 1.05
    assert high >= point * 0.95


def test_large_values_share_one_unit_word() -> None:
    assert Interval(2.5e9, 2.1e9, 3.2e9).words() == "2.5 (2.1 to 3.2) billion"
    assert Interval(73e6, 40e6).words() == "73 (at least 40) million"


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Interval(0.41, 0.24, 0.6), "41 % (24 % to 60 %)"),
        (Interval(0.41, 0.24), "41 % (at least 24 %)"),
        (Interval(0.41), "41 %"),
        (Interval(None), "—"),
    ],
)
def test_each_number_is_printed_by_the_formatter_of_its_unit(interval: Interval, expected: str) -> None:
    assert interval.by(format_percent) == expected


def test_a_cell_of_two_lines_has_the_unit_on_both() -> None:
    assert stacked(Interval(12.3e6, 9.4e6, 16.8e6).words()) == "12.3 million\n9.4 to 16.8 million"
    assert stacked(Interval(3.5, 2.25, 4.0).by(format_usd)) == "$3.50\n$2.25 to $4.00"
