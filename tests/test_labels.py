"""There is one way to print a GPU and an offer."""

from __future__ import annotations

from collections import Counter

import pytest
from recommend.builders import offer

from gpubench.labels import CONDITION_WORDS, PRICING_WORDS, card_condition, full_name, gpu_name, offer_name
from gpubench.models import PriceCondition, Pricing
from gpubench.specs import load_specs


def test_no_two_gpus_share_a_short_name() -> None:
    assert [name for name, times in Counter(map(gpu_name, load_specs())).items() if times > 1] == []


def test_the_name_of_an_offer_includes_its_term_and_pricing() -> None:
    reserved = offer(pricing=Pricing.RESERVED, region="us-east-1", term_years=3)
    assert offer_name(reserved).endswith("us-east-1 (reserved 3 y)")


def test_every_pricing_and_every_price_condition_has_its_own_words() -> None:
    assert set(PRICING_WORDS) == set(Pricing)
    assert set(CONDITION_WORDS) == set(PriceCondition)
    assert len(set(CONDITION_WORDS.values())) == len(PriceCondition)


@pytest.mark.parametrize(
    "condition",
    [PriceCondition.NEW, PriceCondition.USED, PriceCondition.UNSTATED, PriceCondition.LAUNCH_PRICE],
)
def test_unstated_card_condition_is_blank(condition: PriceCondition) -> None:
    assert card_condition(condition) == ("" if condition is PriceCondition.UNSTATED else condition)


def test_text_from_outside_is_stripped_of_escapes() -> None:
    assert "\x1b" not in offer_name(offer(provider="evil\x1b[31m"))
    assert "\x1b" not in full_name(offer(provider="evil\x1b[31m"))
    assert "\x1b" not in gpu_name("\x1b[31mred")
