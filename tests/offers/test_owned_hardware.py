"""The one line that describes owned hardware."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.errors import MisuseError
from gpubench.offers.hardware import parse_owned


def test_owned_spec_short_form_is_parsed():
    owned = parse_owned("nvidia-geforce-rtx-4090-24gb, 1900 USD, 3 years")
    assert owned == ("nvidia-geforce-rtx-4090-24gb", 1, {"purchase_usd": 1900, "years": 3})


def test_owned_spec_long_form_is_parsed():
    owned = parse_owned(
        "2x RTX 4090, 3800 USD, host 1500 USD, resale 900 USD, 4 years, 60 %, 380 W, idle 20 W, PUE 1.2, "
        "0.25 USD/kWh, upkeep 0.05 USD/h"
    )
    given = {
        "purchase_usd": 3800,
        "host_usd": 1500,
        "resale_usd": 900,
        "years": 4,
        "utilization": 0.6,
        "power_w": 380,
        "idle_w": 20,
        "pue": 1.2,
        "tariff_usd_per_kwh": 0.25,
        "upkeep_usd_per_hour": 0.05,
    }
    assert owned == ("nvidia-geforce-rtx-4090-24gb", 2, given)


def test_a_device_of_the_users_runs_is_named_by_its_key():
    assert parse_owned("2x CPU, 800 USD", {"cpu"}) == ("cpu", 2, {"purchase_usd": 800})
    with pytest.raises(MisuseError, match="unknown GPU 'cpu'"):
        parse_owned("cpu, 800 USD")
    laptops = {"nvidia-geforce-rtx-3060-laptop-gpu", "nvidia-geforce-rtx-3070-laptop-gpu", "cpu"}
    assert parse_owned("RTX 3060 Laptop", laptops)[0] == "nvidia-geforce-rtx-3060-laptop-gpu"
    assert parse_owned("RTX 3060", laptops)[0] == "nvidia-geforce-rtx-3060-12gb", "the card, not the laptop"
    for nobody in ("Laptop GPU 3", "RTX 3050 Laptop", "-"):
        with pytest.raises(MisuseError):
            parse_owned(nobody, laptops)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("1 year", "years", 1),
        ("life 2.5 years", "years", 2.5),
        ("50% used", "utilization", 0.5),
        ("utilisation 0.4", "utilization", 0.4),
        ("utilization 40 %", "utilization", 0.4),
        ("power 300 W", "power_w", 300),
        ("tariff 0.3 usd/kWh", "tariff_usd_per_kwh", 0.3),
        ("pue 1.5", "pue", 1.5),
    ],
)
def test_each_part_of_an_owned_spec_accepts_all_its_spellings(part, field, value):
    _, _, given = parse_owned(f"T4, 500 USD, {part}")
    assert given[field] == pytest.approx(value)


@pytest.mark.parametrize(
    "typed_as",
    [
        "30000 USD",
        "30,000 USD",
        "$30000",
        "$30,000",
        "$ 30k",
        "USD 30,000.00",
        "$30,000 USD",
        "30k USD",
        "30k",
        "price 30K",
        "0.03M",
    ],
)
def test_a_price_is_read_in_every_spelling_of_a_sum_of_money(typed_as):
    owned = parse_owned(f"2x H100 SXM, {typed_as}, 300 W, resale $9,000, host 1.5k, upkeep $0.05/h")
    given = {"purchase_usd": 30_000, "resale_usd": 9_000, "host_usd": 1_500, "power_w": 300}
    assert owned[2] == pytest.approx(given | {"upkeep_usd_per_hour": 0.05})


def test_a_comma_after_a_number_still_ends_the_part():
    assert parse_owned("H100 SXM,300 W")[2]["power_w"] == 300
    assert parse_owned("T4,utilization 0.6,380 W")[2] == {
        "purchase_usd": 0,
        "utilization": 0.6,
        "power_w": 380,
    }


def test_a_machine_without_a_price_is_already_owned():
    assert parse_owned("2x T4, 60 W") == ("nvidia-tesla-t4-16gb", 2, {"power_w": 60.0, "purchase_usd": 0.0})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "names no GPU"),
        ("banana, 100 USD", "unknown GPU 'banana'"),
        ("T4, 100 EUR", "'100 EUR' is not understood"),
        ("T4, 1.800 USD", "'1.800 USD' can mean thousands: write 1800 USD"),
        ("T4, host 12.000 USD", "write 12000 USD"),
        ("T4, 0 USD", "outside 1 to"),
        ("T4, 100 USD, 100 USD", "gives purchase twice"),
        ("T4, upkeep 1 USD/h, upkeep 2 USD/h", "gives upkeep twice"),
        ("T4, 100 USD, resale 200 USD", "resale 200 USD is above the 100 USD"),
        ("T4, 100 USD, 0 years", "outside 0.1 to 30"),
        ("T4, 100 USD, 101 %", "outside 0.001 to 1"),
        ("T4, 100 USD, PUE 0.9", "outside 1 to 5"),
        ("T4, nan USD", "not understood"),
        ("T4, 30000", "'30000' is not understood"),
        ("T4, 1,25 USD", "'1' is not understood"),
        ("T4, 30m", "'30m' is not understood"),
        ("T4, $30k EUR", "'\\$30k EUR' is not understood"),
        ("T4, 3k years", "outside 0.1 to 30"),
        ("0x T4, 100 USD", "0 GPUs"),
        ("T4, 1e9 USD", "not understood"),
    ],
)
def test_a_mistake_names_the_part_and_the_fix(spec, message):
    with pytest.raises(MisuseError, match=message) as caught:
        parse_owned(spec)
    assert "\n" not in str(caught.value)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=80))
def test_no_text_breaks_the_reader(text):
    for spec in (text, f"T4, {text}", f"T4, 100 USD, {text}"):
        with contextlib.suppress(MisuseError):  # anything else fails the test
            paid_usd = parse_owned(spec)[2]["purchase_usd"]
            assert paid_usd == 0 or paid_usd >= 1
