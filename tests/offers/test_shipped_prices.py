"""The shipped prices as one market: which of them rank, which day counts, and what is said about the others."""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import date
from decimal import Decimal
from statistics import median, stdev

import msgspec
import pytest
from dated_offers import dated

from gpubench.folders import data_rows, data_table
from gpubench.models import Offer, Pricing
from gpubench.offers.listing import outdated
from gpubench.offers.outliers import AskedPrices
from gpubench.offers.snapshot import embedded_offers, load_offers
from gpubench.offers.sources import _MARKETPLACES
from gpubench.offers.table import (
    ASK_TO_LIST,
    BY_USER,
    MARKET_ASKS,
    NOT_RANKED,
    USUAL_ASK_SPREAD,
    Offers,
    asks_of,
    offer_key,
)
from gpubench.recommend.filters import leave_out_doubted
from gpubench.recommend.rank import rank

TODAY = date(2026, 11, 28)


def shipped(**wanted):
    return [
        offer
        for offer in embedded_offers().offers
        if all(getattr(offer, field) == value for field, value in wanted.items())
    ]


def test_every_row_stays_in_the_table_and_the_newest_row_of_an_offer_counts():
    rows = list(data_table("offers.csv", Offer))
    assert len(rows) == len(list(data_rows("offers.csv"))) > 1_200
    newest = {}
    for row in rows:
        newest[offer_key(row)] = max(newest.get(offer_key(row), row), row, key=lambda each: each.price_date)
    assert {offer_key(o): o.price_date for o in embedded_offers().offers} == {
        key: row.price_date for key, row in newest.items()
    }


def test_the_marketplaces_are_the_providers_with_prices_of_hosts():
    hosts = {offer.provider for offer in embedded_offers().offers if offer.kind == "marketplace"}
    assert hosts == _MARKETPLACES


def test_earlier_price_counts_as_of_its_date():
    """On October 5, nobody knew that JarvisLabs would ask 3.49 for an H100 a day later."""
    then = [o for o in load_offers(as_of=date(2026, 10, 5)).offers if o.provider == "jarvislabs"]
    assert [o.price_date for o in then if o.instance == "H100 SXM"] == ["2026-09-27"]
    now = shipped(provider="jarvislabs", instance="H100 SXM")
    assert sorted(o.price_date for o in now) == ["2026-09-27", "2026-10-06"]
    aws = {o.price_date for o in load_offers(as_of=date(2026, 9, 1)).offers if o.instance == "p5.48xlarge"}
    assert "2026-07-20" in aws
    assert len(embedded_offers().changes) > 50


def test_aws_rows_without_a_day_have_the_day_of_the_generated_list():
    rows = shipped(provider="aws", region="us-east-1", pricing=Pricing.ON_DEMAND)
    of_that_day = [o for o in rows if o.price_date == "2026-07-20"]
    assert len(of_that_day) >= 37
    assert all("karpenter" in o.source for o in of_that_day)
    assert {len(o.price_date) for o in rows if o.kind == "vm"} == {10}
    assert {o.price_date for o in rows} > {"2026-07-20", "2026-10-10"}


def test_market_indices_and_unorderable_offers_never_rank():
    kinds = Counter(o.kind for o in embedded_offers().offers)
    assert {"index", "not-orderable", "capacity-block", "cluster"} <= kinds.keys()
    for asked in ({"spot": True}, {"commit": "3y"}):
        ranking = rank("vgg16", accept_outliers=True, max_price_age=10_000, **asked)
        assert {row.offer.kind for row in ranking.rows}.isdisjoint(NOT_RANKED)


def test_medians_of_hosts_count_as_listings_and_not_as_quotes():
    medians = [o for o in embedded_offers().offers if o.kind == "index" and o.ask_count is not None]
    assert len(medians) == 8
    assert all(o.ask_median_usd_per_hour == o.price_usd_per_hour for o in medians)
    h100 = next(o for o in medians if o.gpu_key == "nvidia-h100-sxm-80gb")
    assert (h100.ask_count, h100.price_usd_per_hour) == (7, Decimal("4.0002"))
    key = (h100.gpu_key, Pricing.ON_DEMAND)
    asks = [o for o in embedded_offers().offers if o.gpu_key == h100.gpu_key]
    with_it, without = asks_of(asks)[key], asks_of(o for o in asks if o is not h100)[key]
    assert with_it.ask_count == without.ask_count + 7
    assert with_it.median_usd_per_hour > without.median_usd_per_hour


def test_a_listing_is_compared_with_the_median_of_its_marketplace():
    """Next to three cheap clouds the price is plausible; at a tenth of the median of its neighbors it is not."""
    middle = dated("2026-10-10", 1.0, provider="vast", kind="index", ask_count=20,
                   ask_median_usd_per_hour=Decimal(1), instance="median")  # fmt: skip
    ask = dated("2026-10-12", 0.1, provider="vast", kind="marketplace", instance="host")
    believed = [dated("2026-10-12", 0.12, provider=name) for name in ("a", "b", "c")]
    assert "the median of the 20 hosts there" in (AskedPrices([middle, ask, *believed]).doubt(ask) or "")
    assert AskedPrices([ask, *believed]).doubt(ask) is None
    fair = msgspec.structs.replace(ask, price_usd_per_hour=Decimal("0.5"))
    assert AskedPrices([middle, fair, *believed]).doubt(fair) is None


def test_starting_at_price_is_marked_and_reported_if_it_decides():
    floors = [o for o in embedded_offers().offers if o.is_floor]
    assert {"vast", "runpod", "nebius", "tensorwave", "voltagepark", "latitude"} <= {
        o.provider for o in floors
    }
    ranking = rank("vgg16", gpu=["h100"], provider=["voltagepark"])
    assert 'H100 SXM5 80GB (a "starting at" price)' in ranking.verdict


def test_an_old_price_competes_with_a_newer_one_of_the_same_gpu_and_pricing():
    old = dated("2026-01-15", 1.0, instance="old")
    spot = dated("2026-11-01", 1.0, provider="b", pricing=Pricing.SPOT)
    historic = dated("2026-11-01", 1.0, provider="c", kind="historic")
    assert outdated(Offers.of([old, spot, historic]), TODAY) == {}
    newer = dated("2026-11-01", 9.0, provider="d")
    assert list(outdated(Offers.of([old, spot, historic, newer]), TODAY)) == [offer_key(old)]
    assert outdated(Offers.of([old, newer], [BY_USER, ""]), TODAY) == {}  # a user's price counts as given
    assert outdated(Offers.of([old, newer], ["", BY_USER]), TODAY) == {}  # and competes with no shipped one


@pytest.mark.parametrize(
    ("change", "ranks"),
    [
        ({}, False),
        ({"provider": "b"}, True),
        ({"region": "moon-1"}, True),
        ({"gpu_count": 2}, True),
        ({"gpu_key": "nvidia-l4-24gb"}, True),
        ({"pricing": Pricing.SPOT}, True),
        ({"instance": "z"}, False),
    ],
)
def test_undated_price_ranks_only_if_no_similar_price_is_dated(change, ranks):
    without = dated("2026-10", 1.0, instance="x")
    other = dated("2026-11-01", 1.0, **{"instance": "y"} | change)
    assert (offer_key(without) not in outdated(Offers.of([without, other]), TODAY)) == ranks


def test_an_outdated_price_displaces_none():
    """Otherwise each of the two would be left out because of the other, and nobody would sell the GPU."""
    without, old = dated("2026-08", 1.0, instance="x"), dated("2025-11-20", 1.0, instance="y")
    assert list(outdated(Offers.of([without, old]), TODAY)) == [offer_key(old)]


def test_old_prices_are_left_out_with_the_option_that_ranks_them():
    ranking = rank("vgg16", gpu=["v100"], as_of="2026-11-28", accept_outliers=True)
    assert all(row.price_age_days <= 180 for row in ranking.rows if row.price_age_days is not None)
    left = [each for each in ranking.excluded if "max-price-age" in each.rule]
    assert left
    assert {each.reason for each in left} <= {
        "its price is over 180 days old, and there are newer ones for this GPU",
        "its price has no day, unlike another price for this GPU there",
    }
    asked = rank("vgg16", gpu=["v100"], as_of="2026-11-28", accept_outliers=True, max_price_age=10_000)
    assert len(asked.rows) > len(ranking.rows)


def test_an_old_price_that_nothing_newer_replaces_is_reported_in_the_answer():
    """On that day, the only price of the card was dated only by its year."""
    ranking = rank("vgg16", gpu=["quadro rtx 6000"], as_of="2026-10-01")
    said = next(each for each in ranking.said("caution") if each.startswith("Check before you pay"))
    assert "(a price of 2026, up to 273 days old)" in said


def test_the_ranking_says_how_old_its_prices_are():
    told = [
        each for each in rank("vgg16", as_of="2026-11-28").said("caution") if each.startswith("Median price")
    ]
    assert re.fullmatch(r"Median price age: \d+ days\.", *told)


def test_the_ratio_of_hosts_to_clouds_is_fitted_to_the_shipped_prices():
    """The ratio is the median over 23 GPUs, and its spread sets the ratio's weight against a few listings."""
    table = Offers.of(embedded_offers().offers)
    on_sale = table.kind.is_in(lambda kind: kind not in NOT_RANKED) & table.pricing.equals(Pricing.ON_DEMAND)
    believed, _, _ = leave_out_doubted(AskedPrices(table), table.where(on_sale & (table.price > 0)))
    logs: dict[bool, dict[str, dict[str, list[float]]]] = {True: {}, False: {}}
    for each in (each for each in believed if each.price_date >= "2026-07"):
        of_gpu = logs[each.kind == "marketplace"].setdefault(each.gpu_key, {})
        of_gpu.setdefault(each.provider, []).append(math.log(each.usd_per_gpu_hour))
    ratios = []
    for key in logs[True].keys() & logs[False].keys():
        asks = [one for some in logs[True][key].values() for one in some]
        if len(asks) >= 2:
            ratios.append(median(asks) - median(map(median, logs[False][key].values())))
    assert len(ratios) >= 20
    assert math.exp(median(ratios)) == pytest.approx(ASK_TO_LIST["community"], rel=0.1)
    assert (USUAL_ASK_SPREAD / stdev(ratios)) ** 2 == pytest.approx(MARKET_ASKS, rel=0.2)


def test_modals_functions_are_not_on_demand():
    """Each function with a GPU may be preempted: https://modal.com/docs/guide/preemption."""
    assert {offer.pricing for offer in shipped(provider="modal")} == {Pricing.SPOT}
