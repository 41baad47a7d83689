"""Text for people: significant digits, units, and no more digits than an interval supports."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_number(0), "0"),
        (units.format_number(9.996), "10.0"),
        (units.format_number(None), "—"),
        (units.format_number(float("nan")), "—"),
        (units.format_si(4.8e12, "B/s"), "4.80 TB/s"),
        (units.format_bytes(150754820096), "140 GiB"),
        (units.format_bytes(None), "—"),
        (units.format_duration(0.0012), "1.20 ms"),
        (units.format_duration(95), "1 min 35 s"),
        (units.format_duration(100000), "27.8 h"),
        (units.format_usd(0.13), "$0.130"),
        (units.format_usd(53.52), "$53.52"),
        (units.format_percent(0.0213), "2.1 %"),
        (units.format_interval(3166.4, 3150.2, 3181.9), "3,166 (3,150 to 3,182)"),
        (units.format_interval(1653.7, 1572.8, 1743.3), "1,650 (1,570 to 1,740)"),
        (units.format_interval(100.0, 1.0, 500.0), "100 (1.0 to 500)"),
        (units.format_interval(5.0, 5.0, 5.0), "5.000 (5.000 to 5.000)"),
        (units.format_interval(0.0, 0.0, 0.0), "0 (0 to 0)"),
        (units.format_interval(140.0, 54.0, None), "140 (at least 54)"),
        (units.count(1, "thread"), "1 thread"),
        (units.format_interval(None, None, None), "—"),
    ],
)
def test_a_quantity_is_written_as_its_digits_support(text, expected):
    assert text == expected


@given(st.floats(min_value=1e-12, max_value=1e12), st.integers(min_value=1, max_value=6))
def test_a_written_number_is_within_half_a_digit_of_the_value(value, digits):
    written = float(units.format_number(value, digits).replace(",", ""))
    assert written == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


@given(st.floats(min_value=1e-6, max_value=1e12), st.floats(min_value=1e-4, max_value=0.9))
def test_no_end_of_an_interval_is_rounded_onto_its_estimate(value, half_width):
    shown = units.format_interval(value, value * (1 - half_width), value * (1 + half_width))
    point, low, high = (float(part) for part in re.findall(r"[0-9.]+", shown.replace(",", "")))
    assert low < point < high


@given(st.text(max_size=400))
def test_plain_text_has_no_control_character_and_a_bound(text):
    shown = units.plain(text)
    assert len(shown) <= 200
    assert not any(ord(c) < 32 or ord(c) == 127 for c in shown)
