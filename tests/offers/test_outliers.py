"""Whether a price is plausible next to others: what it is compared with, what confirms it, and what is never judged."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recommend import builders

from gpubench.models import Offer, Pricing
from gpubench.offers.outliers import AskedPrices, set_aside_jumps
from gpubench.offers.snapshot import embedded_offers
from gpubench.offers.table import UNSTATED as UNSTATED_ORIGIN
from gpubench.offers.table import Offers, OfferTable

B300, V100, UNSTATED = "nvidia-b300-sxm-270gb", "nvidia-tesla-v100-sxm2-16gb", "nvidia-h100-unstated-80gb"


def offer(provider: str, usd_per_hour: float, gpu_key: str = B300, **changes) -> Offer:
    usual = {"provider": provider, "price_date": "2026-11-01"}
    return builders.offer(gpu_key, usd_per_hour, **usual | changes)


def doubt(suspect: Offer, *others: Offer) -> str | None:
    return AskedPrices([suspect, *others]).doubt(suspect)


CLOUDS = (offer("a", 7.0), offer("b", 8.0), offer("c", 18.0))


def test_a_price_of_a_cent_for_a_b300_is_rejected_with_the_figures():
    """The median of 7, 8 and 18 is 8.00, and 0.01 / 8 = 0.00125."""
    reason = doubt(offer("feed", 0.01), *CLOUDS)
    assert "$0.0100" in reason
    assert "0.0013 times" in reason
    assert "3 other providers" in reason
    assert "$8.00" in reason


@pytest.mark.parametrize(("usd", "believed"), [(1.61, True), (1.59, False)])
def test_the_limit_is_a_fifth_of_the_median(usd, believed):
    assert (doubt(offer("feed", usd), *CLOUDS) is None) == believed


def test_a_price_of_an_unstated_form_factor_confirms_each_variant():
    key = "nvidia-h100-sxm-80gb"
    dear = offer("feed", 90.0, key)
    others = [offer(name, 8.0, key) for name in "abc"]
    assert doubt(dear, *others)
    assert doubt(dear, *others, offer("open", 80.0, UNSTATED)) is None


@pytest.mark.parametrize(("usd", "believed"), [(39.9, True), (40.1, False)])
def test_the_limit_above_is_five_times_the_median(usd, believed):
    assert (doubt(offer("feed", usd), *CLOUDS) is None) == believed


def test_one_wrong_price_of_a_cent_does_not_exclude_the_right_one():
    assert doubt(offer("a", 8.0), offer("feed", 0.01)) is None
    assert doubt(offer("a", 8.0), *(offer(name, 0.01, kind="marketplace") for name in "xyz")) is None


def test_confirmed_price_of_the_same_kind_sets_the_upper_limit():
    """8.00 is over five times the 1.50 of the only other cloud, which a marketplace's 1.00 confirms."""
    dear, cloud, host = offer("a", 8.0), offer("b", 1.5), offer("x", 1.0, kind="marketplace")
    assert doubt(dear, cloud) is None
    assert doubt(cloud, dear)
    assert "5.3 times" in doubt(dear, cloud, host)
    assert doubt(cloud, dear, host) is None


def test_a_high_price_is_confirmed_like_a_low_one():
    assert doubt(offer("feed", 90.0), *CLOUDS, offer("d", 8.0), offer("other", 45.1)) is None
    assert "11 times" in doubt(offer("feed", 90.0), *CLOUDS, offer("d", 8.0), offer("other", 44.9))
    elsewhere = offer("feed", 80.0, region="elsewhere")
    assert doubt(offer("feed", 90.0), *CLOUDS, elsewhere)


def test_prices_are_compared_per_gpu_hour_so_a_wrong_count_is_noticed():
    """Eight GPUs for 7.00 USD an hour are 0.875 each, a ninth of 8.00."""
    assert doubt(offer("feed", 7.0, gpu_count=8), *CLOUDS)
    assert doubt(offer("feed", 56.0, gpu_count=8), *CLOUDS) is None


def test_a_second_provider_within_twice_the_price_confirms_it():
    assert doubt(offer("feed", 0.5), *CLOUDS, offer("other", 1.0)) is None
    assert doubt(offer("feed", 0.5), *CLOUDS, offer("other", 1.01))
    assert doubt(offer("feed", 0.5), *CLOUDS, offer("other", 0.25)) is None
    assert doubt(offer("feed", 0.5), *CLOUDS, offer("market", 0.9, kind="marketplace")) is None


def test_regions_and_instances_of_one_provider_do_not_confirm_each_other():
    regions = [offer("feed", 0.01, region=f"r{number}") for number in range(20)]
    assert doubt(regions[0], *regions[1:], *CLOUDS)


def test_provider_counts_once_in_the_median_however_many_regions_it_lists():
    """One vote each: 1.00, 7, 8 and 18 have the median 7.5; a vote for each row would make it 1.00."""
    crowd = [offer("crowd", 1.0, region=f"r{number}") for number in range(30)]
    assert doubt(offer("feed", 0.4), *crowd, *CLOUDS)


def test_a_spot_price_does_not_confirm_an_on_demand_price_but_the_reverse_does():
    spot = offer("x", 0.9, pricing=Pricing.SPOT)
    assert doubt(offer("feed", 0.8), *CLOUDS, spot)
    dear = [msgspec.structs.replace(each, pricing=Pricing.SPOT) for each in CLOUDS]
    assert doubt(offer("feed", 0.8, pricing=Pricing.SPOT), *dear, offer("x", 0.9)) is None


def test_a_price_is_compared_with_the_same_kind_and_pricing_if_possible():
    """Clouds ask 8, but a marketplace is compared with another marketplace, which asks 1.50."""
    market = offer("market", 1.5, kind="marketplace")
    assert doubt(offer("feed", 0.7, kind="marketplace"), *CLOUDS, market) is None
    assert doubt(offer("feed", 0.2, kind="marketplace"), *CLOUDS, market)
    spot = offer("b", 1.5, pricing=Pricing.SPOT)
    assert doubt(offer("feed", 0.7, pricing=Pricing.SPOT), *CLOUDS, spot) is None


def test_price_without_peers_of_its_kind_is_compared_with_others_at_twice_the_tolerance():
    """Marketplaces ask less than clouds, and spot less than on demand: the limits are 8 / 10 = 0.8 and 8 / 20 = 0.4."""
    assert doubt(offer("feed", 0.81, kind="marketplace"), *CLOUDS) is None
    assert doubt(offer("feed", 0.79, kind="marketplace"), *CLOUDS)
    assert doubt(offer("feed", 0.41, pricing=Pricing.SPOT), *CLOUDS) is None
    assert doubt(offer("feed", 0.39, pricing=Pricing.SPOT), *CLOUDS)


def test_single_other_provider_is_enough_to_doubt_a_price():
    assert "only other provider" in doubt(offer("feed", 0.01), offer("a", 7.0))
    assert doubt(offer("feed", 0.01)) is None
    assert doubt(offer("feed", 0.01), offer("feed", 7.0, region="elsewhere")) is None


def test_past_and_partial_prices_are_neither_judged_nor_compared_with():
    for kind in ("historic", "attach-fee", "free"):
        assert doubt(offer("feed", 0.01), offer("a", 7.0, kind=kind)) is None
        assert doubt(offer("feed", 0.01, kind=kind), *CLOUDS) is None


def test_price_of_an_unstated_form_factor_is_compared_with_all_its_variants():
    assert doubt(
        offer("feed", 0.01, UNSTATED),
        offer("a", 2.0, "nvidia-h100-sxm-80gb"),
        offer("b", 1.9, "nvidia-h100-pcie-80gb"),
    )


def test_few_shipped_prices_are_doubted_and_another_seller_confirms_the_v100_at_twenty_cents():
    """Verda asks 0.196, but AWS 3.06 and Lambda 0.79; Runpod's 0.23 and 0.19 confirm Verda's price."""
    offers = embedded_offers().offers
    market = AskedPrices(offers)
    doubted = [o for o in offers if market.doubt(o)]
    # Far above: two of Paperspace. Far below: one Vast host.
    assert {(o.provider, o.instance) for o in doubted} == {
        ("paperspace", "A4000"),
        ("paperspace", "A5000"),
        ("vast", "Tesla V100 32GB"),
    }
    assert [o.provider for o in doubted if market.is_below(o)] == ["vast"]
    cheap = [o for o in offers if o.instance == "1V100.6V"]
    assert cheap
    alone = AskedPrices([o for o in offers if o.provider != "runpod"])
    assert any(alone.doubt(o) for o in cheap)


prices = st.floats(0.01, 100)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), prices), min_size=1, max_size=12), prices, st.floats(0.1, 1)
)
def test_lower_price_is_never_more_credible_without_confirmation(listed, usd, share):
    others = [offer(name, price, region=str(number)) for number, (name, price) in enumerate(listed)]
    market = AskedPrices(others)
    lower = offer("feed", usd * share)
    high = offer("feed", usd)
    if market.is_below(high) and market.doubt(high) and market.doubt(lower) is None:
        own = float(lower.price_usd_per_hour)
        assert any(own / 2 <= price <= own * 2 for _, price in listed)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), prices), min_size=1, max_size=12))
def test_the_order_of_the_table_does_not_matter(listed):
    offers = [offer(name, price, region=str(number)) for number, (name, price) in enumerate(listed)]
    there, back = AskedPrices(offers), AskedPrices(offers[::-1])
    assert [there.doubt(each) for each in offers] == [back.doubt(each) for each in offers]


# --- prices of one provider that do not grow with the number of GPUs ----------------------------------------

COUNTS = (1, 2, 4, 8)
OTHER = {"provider": "another", "instance": "y"}


def of_acme(usd, **changes):
    return offer(changes.pop("provider", "acme"), usd, "nvidia-h100-sxm-80gb", **{"instance": "x"} | changes)


def asked(*offers, origins):
    table = Offers.of(offers, origins)
    return AskedPrices(table), table


def test_price_flat_in_gpu_count_is_doubted_except_for_the_fewest_gpus():
    """2.50 USD for one and for eight: 0.31 per GPU-hour, 0.12 times its price for one."""
    rows = [of_acme(2.5, gpu_count=n, instance=f"x{n}") for n in COUNTS]
    prices, table = asked(*rows, origins=["a table"] * 4)
    assert prices.doubted(table).tolist() == [False, True, True, True]
    assert (
        prices.doubt(rows[-1])
        == "$0.312 per GPU-hour is 0.12 times its provider's price for 1 of them ($2.50)"
    )
    assert prices.doubt_in_short(rows[-1]) == "0.12 times its provider's price for 1 of them"
    assert prices.is_below(rows[-1])


@pytest.mark.parametrize("per_gpu", [2.5, 2.0, 1.3])
def test_a_price_that_grows_with_the_count_is_accepted_even_with_a_discount(per_gpu):
    rows = [of_acme(2.5)]
    rows += [of_acme(per_gpu * n, gpu_count=n, instance=f"x{n}") for n in COUNTS[1:]]
    prices, table = asked(*rows, origins=["a table"] * 4)
    assert not prices.doubted(table).any()


def test_the_price_of_a_single_gpu_is_the_outlier_if_another_seller_asks_as_much_per_gpu():
    """20 USD for one and for eight: 2.50 per GPU-hour, which another table has too."""
    rows = [of_acme(20.0, gpu_count=n, instance=f"x{n}") for n in (1, 8)]
    prices, _ = asked(*rows, of_acme(2.4, **OTHER), origins=["a table", "a table", "b table"])
    assert prices.doubt(rows[1]) is None


@pytest.mark.parametrize(("kind", "believed"), [("marketplace", False), ("vm", True)])
def test_company_price_flat_in_gpu_count_is_not_confirmed_by_a_private_host(kind, believed):
    """2.50 USD for one and for four: 0.625 per GPU-hour, close to the price of a host, or of a company."""
    rows = [of_acme(2.5, gpu_count=n, instance=f"x{n}", kind="vm") for n in (1, 4)]
    other = of_acme(0.7, **OTHER, kind=kind)
    prices, _ = asked(*rows, other, origins=["a table", "a table", "b table"])
    assert (prices.doubt(rows[1]) is None) == believed


@pytest.mark.parametrize(("kind", "jumps"), [("vm", True), ("historic", False)])
def test_a_price_jumps_from_the_last_one_but_not_from_a_historic_one(kind, jumps):
    new, old = offer("acme", 1.0, instance="big.1"), offer("acme", 6.0, instance="big.1", kind=kind)
    kept, jumped = set_aside_jumps(OfferTable(offers=[new]), [old])
    assert (len(kept.offers) == 0, len(jumped) == 1) == (jumps, jumps)


def test_hosts_do_not_confirm_the_low_price_of_a_company_in_the_users_own_table():
    """8 cards at 0.10 each are 0.45 times what other companies ask; a host at 0.16 does not confirm that."""
    key = "nvidia-geforce-rtx-3090-24gb"
    own = offer("acme", 0.80, key, gpu_count=8)
    others = [offer(name, 0.22, key) for name in "abc"]
    host = offer("x", 0.16, key, kind="marketplace")
    market = Offers.of([own, *others, host], ["own table", *[UNSTATED_ORIGIN] * 4])
    assert AskedPrices(market).caution(own) == "0.45 times what 3 others ask"
    peer = offer("d", 0.15, key)
    market = Offers.of([own, *others, peer], ["own table", *[UNSTATED_ORIGIN] * 4])
    assert AskedPrices(market).caution(own) is None
