"""Intervals: what is known of the ends, and what is printed of them."""

from __future__ import annotations

import pytest

from gpubench.interval import Interval, stacked
from gpubench.units import format_percent, format_usd


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(Interval(1.0, 0.9, 1.1), True), (Interval(1.5, 1.2, 1.9), False), (Interval(1.0, 0.9), None)],
)
def test_whether_one_is_held_is_unknown_without_both_ends(interval: Interval, expected: bool | None) -> None:
    assert interval.holds(1) is expected


def test_dividing_keeps_what_is_unknown() -> None:
    assert Interval(8.0, 6.0).over(2) == Interval(4.0, 3.0)
    assert Interval(None).over(2) == Interval(None)


def test_a_unit_stands_behind_the_value_and_the_ends_follow() -> None:
    assert Interval(4.4321, 4.41, 4.45).text("x") == "4.432x (4.410 to 4.450)"
    assert Interval(None).text("x") == "—"


def test_large_values_share_one_word() -> None:
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
def test_each_number_is_printed_by_the_function_of_its_unit(interval: Interval, expected: str) -> None:
    assert interval.by(format_percent) == expected


def test_a_cell_of_two_lines_has_the_unit_on_both() -> None:
    assert stacked(Interval(12.3e6, 9.4e6, 16.8e6).words()) == "12.3 million\n9.4 to 16.8 million"
    assert stacked(Interval(3.5, 2.25, 4.0).by(format_usd)) == "$3.50\n$2.25 to $4.00"
