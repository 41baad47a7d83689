"""The names of providers, and the page that shows a price."""

import pytest

from gpubench.folders import data_rows
from gpubench.offers.snapshot import embedded_offers
from gpubench.offers.table import NOT_RANKED
from gpubench.providers import find_provider, price_page


def _shipped_providers():
    return {offer.provider for offer in embedded_offers().offers}


@pytest.mark.parametrize(
    ("said", "provider"),
    [
        ("Vast.ai", "vast"), ("Google Cloud", "gcp"), ("Oracle", "oci"), ("lambda-labs", "lambda"),
        ("Hot Aisle", "hotaisle"), ("OVH", "ovhcloud"), ("DataCrunch", "verda"), ("AMAZON", "aws"),
        ("Massed Compute", "massedcompute"), ("limu", None), ("", None),
    ],
)  # fmt: skip
def test_a_provider_is_found_by_its_common_names(said, provider):
    assert find_provider(said, _shipped_providers()) == provider


def test_each_row_is_of_a_shipped_provider():
    assert {row["provider"] for row in data_rows("providers.csv")} <= _shipped_providers()


def test_nearly_every_shipped_price_that_ranks_has_a_page():
    without = {
        offer.provider
        for offer in embedded_offers().offers
        if offer.kind not in NOT_RANKED and price_page(offer.provider, offer.source) is None
    }
    assert without <= {"yotta"}


@pytest.mark.parametrize(
    ("source", "page"),
    [
        ("see https://shop.example/a?b=1.", "https://shop.example/a?b=1"),
        ("HTTP://shop.example:8080/", "HTTP://shop.example:8080/"),
        ("(https://shop.example)", "https://shop.example"),
        ("https://bank.example@shop.example/", "https://bank.example"),
        ('https://shop.example/"><script>alert(1)</script>', "https://shop.example/"),
        ("https://shop.example/' onclick='x", "https://shop.example/"),
        ("javascript:alert('x')", None), ("data:text/html,x", None), ("ftp://shop.example/", None),
        ("https://", None), ("https:///etc/passwd", None), ("", None),
    ],
)  # fmt: skip
def test_only_a_web_address_counts_as_a_page(source, page):
    assert price_page("a stranger", source) == page
