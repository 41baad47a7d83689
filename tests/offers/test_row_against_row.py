"""Prices of one provider that do not grow with the number of GPUs: a price of one GPU stands beside eight."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gpubench.models import Offer, Pricing
from gpubench.offers.columns import Offers
from gpubench.offers.outliers import AskedPrices


def dated(day, price, **changes):
    fields = {"provider": "acme", "instance": "x", "region": None, "gpu_key": "nvidia-h100-sxm-80gb"}
    fields |= {"gpu_count": 1, "vcpus": None, "ram_bytes": None, "pricing": Pricing.ON_DEMAND, "kind": "vm"}
    fields |= {"price_usd_per_hour": Decimal(str(price)), "price_date": day, "source": "test"}
    return Offer(**fields | changes)


COUNTS = (1, 2, 4, 8)
OTHER = {"provider": "another", "instance": "y"}


def asked(*offers, origins):
    table = Offers.of(offers, origins)
    return AskedPrices(table), table


def test_a_price_that_is_no_higher_for_more_gpus_is_doubted_for_all_but_the_fewest():
    """2.50 USD for one and for eight: 0.31 a GPU-hour, 0.12 times what it asks for one."""
    rows = [dated("2026-11-01", 2.5, gpu_count=n, instance=f"x{n}") for n in COUNTS]
    prices, table = asked(*rows, origins=["a table"] * 4)
    assert prices.doubted(table).tolist() == [False, True, True, True]
    assert prices.doubt(rows[-1]) == "$0.312 a GPU-hour is 0.12 times what it asks for 1 of them ($2.50)"
    assert prices.doubt_in_short(rows[-1]) == "0.12 times what it asks for 1 of them"
    assert prices.is_below(rows[-1])


@pytest.mark.parametrize("per_gpu", [2.5, 2.0, 1.3])
def test_a_price_that_grows_is_believed_be_it_with_a_rebate(per_gpu):
    rows = [dated("2026-11-01", 2.5)]
    rows += [dated("2026-11-01", per_gpu * n, gpu_count=n, instance=f"x{n}") for n in COUNTS[1:]]
    prices, table = asked(*rows, origins=["a table"] * 4)
    assert not prices.doubted(table).any()


def test_where_another_asks_as_much_for_a_gpu_the_price_of_one_alone_is_the_odd_one():
    """20 USD for one and for eight: 2.50 a GPU-hour, which another table has too."""
    rows = [dated("2026-11-01", 20.0, gpu_count=n, instance=f"x{n}") for n in (1, 8)]
    prices, _ = asked(*rows, dated("2026-11-01", 2.4, **OTHER), origins=["a table", "a table", "b table"])
    assert prices.doubt(rows[1]) is None
