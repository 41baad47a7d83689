"""One way to print a GPU and an offer."""

from __future__ import annotations

from collections import Counter

from recommend.builders import offer

from gpubench.labels import gpu_name, offer_name
from gpubench.models import Pricing
from gpubench.specs import load_specs


def test_no_two_gpus_of_the_table_have_one_short_name() -> None:
    assert [name for name, times in Counter(map(gpu_name, load_specs())).items() if times > 1] == []


def test_a_term_and_a_way_to_pay_are_part_of_an_offers_name() -> None:
    reserved = offer(pricing=Pricing.RESERVED, region="us-east-1", term_years=3)
    assert offer_name(reserved).endswith("us-east-1 (reserved 3 y)")


def test_what_comes_from_outside_is_stripped_of_escapes() -> None:
    assert "\x1b" not in offer_name(offer(provider="evil\x1b[31m"))
    assert "\x1b" not in gpu_name("\x1b[31mred")
