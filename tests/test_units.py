"""Text for people: significant digits and units."""

from __future__ import annotations

import pytest
from hypothesis import example, given
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
        (units.format_duration(95), "1.58 min"),
        (units.format_duration(100000), "27.8 h"),
        (units.format_usd(0.13), "$0.130"),
        (units.format_usd(53.52), "$53.52"),
        (units.format_usd(0.000036), "under $0.0001"),
        (units.format_percent(0.0213), "2.1 %"),
        (units.format_percent(float("nan")), "—"),
        (units.format_bytes(float("inf")), "—"),
        (units.format_chance(float("nan")), "—"),
        (units.count(1, "thread"), "1 thread"),
        (units.count(2, "other process"), "2 other processes"),
        (units.count(1.0, "year"), "1 year"),
        (units.count(1234567, "sample"), "1,234,567 samples"),
        (units.plural("batch"), "batches"),
    ],
)
def test_a_quantity_has_its_supported_number_of_digits(text, expected):
    assert text == expected


@given(st.floats(min_value=1e-12, max_value=1e12), st.integers(min_value=1, max_value=6))
def test_a_written_number_is_within_half_a_digit_of_the_value(value, digits):
    written = float(units.format_number(value, digits).replace(",", ""))
    assert written == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


@given(st.text(max_size=400))
@example("one\u2028two\u2029three")
def test_plain_text_has_no_control_character_and_a_bound(text):
    shown = units.plain(text)
    assert len(shown) <= 200
    assert not any(ord(c) < 32 or ord(c) == 127 for c in shown)
    assert len(shown.splitlines()) <= 1
