"""Prices in the draws: list prices are certain on their day and then drift; prices of single hosts vary."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from time import process_time

import numpy as np
import pytest

from gpubench import rank
from gpubench.errors import MisuseError
from gpubench.folders import data_table
from gpubench.models import Asks, Offer, PriceCondition, Pricing
from gpubench.offers import snapshot
from gpubench.offers.dates import has_day, price_day
from gpubench.offers.refresh import refresh
from gpubench.offers.snapshot import embedded_offers
from gpubench.offers.sources import Quote
from gpubench.offers.table import SETS_ITS_PRICES
from gpubench.recommend.economics import Market, drawn_prices, prices_of
from gpubench.recommend.owning import card_share, offer_of
from gpubench.recommend.request import Range
from gpubench.sections.answer import screen
from gpubench.torch_builds import read_on

from .builders import H100, L4, TODAY, offer, rank_of, said
from .test_owning import machine

DRAWS = 20_000
ASKS = Asks(
    median_usd_per_hour=0.4,
    low_usd_per_hour=0.4 * math.exp(-1.6449 * 0.3),
    high_usd_per_hour=0.4 * math.exp(1.6449 * 0.3),
    ask_count=5,
    provider_count=2,
)
MARKET = Market(TODAY, {(H100, Pricing.ON_DEMAND): ASKS}, drift=0.3)


def expected_usd_per_hour(offer, market):
    return float(prices_of([offer], market).expected[0])


def drawn(*offers):
    rows = np.arange(len(offers))
    return drawn_prices(prices_of(offers, MARKET), rows, DRAWS, 0).of(slice(None))


def test_the_time_for_many_listings_grows_linearly():
    """A table of 100,000 hosts took a second per 20,000 of them, once for each of its rows."""
    many = [offer(H100, 2.0, kind="marketplace", instance=f"host {n}") for n in range(40_000)]
    before = process_time()
    prices_of(many, MARKET)
    assert process_time() - before < 1.0


def test_a_list_price_drifts_with_its_age_and_a_providers_prices_move_together():
    """After a year its logarithm has a standard deviation of 0.3, after a quarter 0.15."""
    year, quarter = "2025-11-20", "2026-08-20"
    mine = drawn(
        offer(H100, 2.0, price_date=year),
        offer(H100, 4.0, price_date=year, gpu_count=2),
        offer(H100, 2.0, price_date=quarter, provider="other"),
    )
    spread = np.log(mine).std(axis=1)
    assert spread == pytest.approx([0.3, 0.3, 0.15], rel=0.03)
    assert np.median(mine, axis=1) == pytest.approx([2, 4, 2], rel=0.02)
    assert np.allclose(mine[1], 2 * mine[0])
    assert abs(np.corrcoef(mine[0], mine[2])[0, 1]) < 0.05


def test_expected_price_of_an_aging_listing_moves_toward_the_median():
    """0.20 per GPU with a median of 0.40: after 30 days sqrt(0.20 x 0.40) = 0.283, spread 0.3 x sqrt(3) / 2."""
    host = {"kind": "marketplace", "gpu_count": 2}
    hosts = [
        offer(H100, 0.4, **host),
        offer(H100, 0.4, **host, price_date="2026-10-21"),
        offer(H100, 0.4, **host, price_date="2021"),
    ]
    assert [expected_usd_per_hour(each, MARKET) for each in hosts] == pytest.approx(
        [0.4, 0.5657, 0.8], rel=1e-4
    )
    fresh, old, ancient = drawn(*hosts)
    assert np.median(fresh) == pytest.approx(0.4, rel=0.02)
    assert np.log(fresh).std() == pytest.approx(0.165, rel=0.03), "it may be gone before anyone books it"
    assert np.median(old) == pytest.approx(0.5657, rel=0.02)
    assert np.log(old).std() == pytest.approx(0.3 * math.sqrt(3) / 2, rel=0.03)
    assert np.median(ancient) == pytest.approx(0.8, rel=0.02)
    assert np.log(ancient).std() == pytest.approx(0.3, rel=0.03)
    assert abs(np.corrcoef(old, ancient)[0, 1]) < 0.05, "each host sets its own price"


def test_a_marketplaces_price_for_all_hosts_is_treated_as_a_list_price():
    old = {"kind": "marketplace", "price_date": "2026-08-20"}
    ask, of_all = (offer(H100, 0.2, provider=name, **old) for name in ("vast", "runpod"))
    assert expected_usd_per_hour(of_all, MARKET) == 0.2 < expected_usd_per_hour(ask, MARKET)
    prices = prices_of([ask, of_all], MARKET)
    assert prices.expected.tolist()[1] == 0.2
    assert prices.sigma[1] == pytest.approx(0.3 * math.sqrt(92 / 365.25))


def test_no_price_of_this_marketplace_has_changed_in_the_shipped_tables():
    """Prices of Vast's hosts moved by half within two months; at RunPod a GPU costs the same on every day."""
    of_each: dict[tuple[str, int], dict[str, set[float]]] = {}
    for each in data_table("offers.csv", Offer):
        is_ask = each.kind == "marketplace" and each.pricing is Pricing.ON_DEMAND
        if each.provider in SETS_ITS_PRICES and is_ask and has_day(each.price_date):
            of_days = of_each.setdefault((each.gpu_key, each.gpu_count), {})
            of_days.setdefault(each.price_date, set()).add(each.usd_per_gpu_hour)
    twice = [days for days in of_each.values() if len(days) > 1]
    assert len(twice) > 5
    assert all(len({min(usd) for usd in days.values()}) == 1 for days in twice)


def test_a_fresh_listing_is_uncertain_and_a_list_price_is_not():
    """Half the usual spread of 0.33: nine tenths within a factor of exp(1.645 x 0.165) = 1.31."""
    alone = offer(L4, 0.4, kind="marketplace")  # no other host asks for this GPU
    prices = prices_of([alone, offer(H100, 0.4, kind="marketplace"), offer(H100, 0.4)], MARKET)
    assert prices.sigma == pytest.approx([0.165, 0.165, 0.0])
    assert prices.expected == pytest.approx([0.4, 0.4, 0.4])


def test_fresh_listing_of_a_private_host_is_never_almost_certainly_the_best(tmp_path):
    """With an exact price, the cheapest of six current hosts would have a chance of over 99 %."""
    alike = {"gpu": "RTX 4090", "gpu_count": 1, "source": "x", "vcpus": 16}
    hosts = [
        Quote(provider="vast", instance=f"h{n}", region=f"r{n}", price=usd, kind="marketplace", **alike)
        for n, usd in enumerate((0.14, 0.17, 0.18, 0.19, 0.2, 0.21))
    ]
    cloud = Quote(provider="acme", instance="c", region=None, price=0.3, **alike)

    class Source:
        name = provider = "acme"

        def fetch(self, transport):
            yield from (*hosts, cloud)

    refresh([Source()], None, results=tmp_path, now=datetime(2026, 11, 20, 12, tzinfo=UTC))
    found = rank("resnet50", results=tmp_path, gpu=["RTX 4090"], as_of="2026-11-20", limit=100)
    rows = {row.offer.instance: row for row in found.rows if row.offer.price_date == "2026-11-20"}
    first = rows["h0"]
    told = first.usd_per_hour  # 0.14, pulled slightly toward the other hosts and the clouds' level
    assert 0.14 < told.value < 0.15
    assert told.low < told.value / 1.312 * 1.001
    assert told.high > told.value * 1.312 * 0.999
    assert rows["c"].usd_per_hour.low == rows["c"].usd_per_hour.high == 0.3
    assert first.p_best < 0.9


def test_hardware_quoted_to_the_buyer_has_a_certain_price():
    own = offer(L4, 0.1, pricing=Pricing.OWNED, kind="owned", price_date="2024-01-01")
    assert np.ptp(drawn(own)) == 0


def test_cards_to_buy_drift_with_the_age_of_their_price_whether_one_or_two():
    """Two cards of 600 and a host of 800, no energy: the cards are 0.6 of the cost, so 0.6 x 0.3 after a year."""
    cards = {
        "host_usd": 800.0, "condition": PriceCondition.USED, "source": "a report", "price_date": "2025-11-20",
        "power_w": 0.0, "resale_usd": Range.of(0.0),
    }  # fmt: skip
    one, two = machine(purchase_usd=1400.0, **cards), machine(purchase_usd=2000.0, gpu_count=2, **cards)
    machines = {offer_of(each): card_share(each) for each in (one, two)}
    assert list(machines.values()) == pytest.approx([600 / 1400, 0.6])
    assert card_share(machine()) == 0, "a quote"
    free = machine(purchase_usd=600.0, **cards | {"resale_usd": Range.of(600.0)})
    assert card_share(free) == 0, "resold at its price and run without energy, it costs nothing"
    moved = drawn_prices(prices_of(machines, Market(TODAY, {}, 0.3, machines)), np.arange(2), DRAWS, 0)
    walks = np.log(moved.of(slice(None)))
    assert walks.std(axis=1) == pytest.approx([0.3 * 600 / 1400, 0.18], rel=0.03)
    assert np.corrcoef(walks)[0, 1] == pytest.approx(1)


def test_the_cost_of_a_used_card_depends_on_the_age_of_its_price():
    choice = rank("resnet50", max_purchase_usd=3000, as_of="2026-11-20", draws=50).first
    assert choice.condition == "used"
    assert choice.row.usd_per_hour.low < choice.row.usd_per_hour.value < choice.row.usd_per_hour.high
    quoted = rank("resnet50", have=["RTX 3090, 700 USD"], gpu=["RTX 3090"], as_of="2026-11-20", draws=50)
    own = quoted.best_to_own
    usd = own.row.usd_per_hour
    assert usd.low == usd.value == usd.high


def test_ties_use_expected_prices_and_chances_include_their_uncertainty():
    old = {"kind": "marketplace", "price_date": "2025-11-20"}
    hosts = [offer(H100, price, instance=str(price), **old) for price in (1.0, 2.0, 2.5)]
    rows = rank_of([*hosts, offer(L4, 0.3)], {H100: 3000.0, L4: 500.0}, samples=1e8, width=1.05).rows
    assert not any(row.tie for row in rows)
    assert rows[0].p_best < 0.5


def test_the_ends_of_a_cost_include_the_drift_of_its_price():
    """The 90 % range is ln 1.2 = 0.1823 of the throughput and, after a year of the usual drift, 1.645 x 0.27
    = 0.4441 of the price: sqrt(0.1823 ^ 2 + 0.4441 ^ 2) = 0.4801 of the cost.
    """
    old = offer(H100, 2.0, price_date="2025-11-20")
    (row,) = rank_of([old], {H100: 3000.0}, width=1.2, samples=1e9).rows
    ends = (row.cost_usd.low, row.cost_usd.high)
    assert ends == pytest.approx([row.cost_usd.value * math.exp(side * 0.4801) for side in (-1, 1)], rel=1e-3)


def test_an_old_listing_makes_the_choice_less_certain_than_a_fresh_one():
    def p_best(day):
        hosts = [offer(H100, price, kind="marketplace", instance=str(price)) for price in (1.9, 2.2, 2.5)]
        cheap = offer(H100, 1.0, kind="marketplace", price_date=day)
        rates = {H100: 3000.0, L4: 500.0}
        return rank_of([*hosts, cheap, offer(L4, 0.25)], rates, samples=1e8).rows[0].p_best

    assert 0.9 < p_best(TODAY.isoformat()) < 1
    assert p_best("2026-09-01") < 0.8


PRICES = max(price_day(each.price_date) for each in embedded_offers().offers)
SHIPPED = max(PRICES, read_on())


@pytest.mark.parametrize(
    ("day", "tables", "last"),
    [
        (date(1970, 1, 1), read_on(), SHIPPED),
        (SHIPPED - timedelta(days=2), read_on(), SHIPPED),
        (date(1970, 1, 1), date.min, PRICES),  # as if prices were refreshed after the tables were made
    ],
)
def test_a_clock_before_known_dates_is_reported_and_makes_no_price_fresh(
    tmp_path, monkeypatch, day, tables, last
):
    asked = {"results": tmp_path, "draws": 200}
    true = rank("resnet50", **asked, as_of=last.isoformat())
    monkeypatch.setattr(snapshot, "read_on", lambda: tables)
    monkeypatch.setattr("gpubench.today.now", lambda: datetime.combine(day, time(12), tzinfo=UTC))
    wrong = rank("resnet50", **asked)
    assert wrong.as_of == last.isoformat()
    ages = [[(row.offer.instance, row.price_age_days) for row in each.rows] for each in (true, wrong)]
    assert ages[0] == ages[1]
    (told,) = [each for each in wrong.said("caution") if "clock" in each]
    assert told.startswith("The ")
    assert f" {last}, later than this computer's clock says ({day})" in told
    assert "clock" not in said(true)
    assert any("clock" in getattr(part, "text", "") for part in screen(wrong))


@pytest.mark.parametrize(("day", "is_said"), [("2036-06-01", True), ("2027-06-01", False)])
def test_a_clock_years_after_every_price_is_reported_once_and_ages_count_from_it(
    tmp_path, monkeypatch, day, is_said
):
    monkeypatch.setattr("gpubench.today.now", lambda: datetime.fromisoformat(f"{day}T12:00:00+00:00"))
    found = rank("resnet50", results=tmp_path, draws=200)
    assert found.as_of == day
    told = [each for each in found.said("caution") if "clock" in each]
    assert [each.startswith("By ") for each in told] == [True] * is_said
    assert sum("clock" in getattr(part, "text", "") for part in screen(found)) == is_said
    as_asked = rank("resnet50", results=tmp_path, draws=200, as_of=day)
    assert "clock" not in said(as_asked), "a given day is taken as known"


@pytest.mark.parametrize("day", ["2020-01-01", "2025-01-01"])
def test_a_day_before_every_machine_on_offer_asks_for_a_later_one(tmp_path, day):
    """By 2025-01-01 there are prices, but only historic ones."""
    with pytest.raises(MisuseError, match=r"dated on or before .*: ask for a later day"):
        rank("resnet50", results=tmp_path, as_of=day, draws=10)


def test_a_date_of_tomorrow_is_accepted_because_of_time_zones(tmp_path, monkeypatch):
    noon = datetime.combine(read_on() - timedelta(days=1), time(12), tzinfo=UTC)
    monkeypatch.setattr("gpubench.today.now", lambda: noon)
    found = rank("resnet50", results=tmp_path, draws=200)
    assert found.as_of == noon.date().isoformat()
    assert "clock" not in said(found)
