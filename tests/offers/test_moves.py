"""How far a price may be from what is paid: the drift of list prices and the spread of hosts' prices."""

from __future__ import annotations

import math
from decimal import Decimal

import msgspec
import pytest
from dated_offers import dated
from recommend.builders import H100

from gpubench.models import Pricing
from gpubench.offers.dates import USUAL_DRIFT, PriceChange, change_of, drift_of
from gpubench.offers.snapshot import embedded_offers, load_offers
from gpubench.offers.table import USUAL_ASK_SPREAD, OfferTable, asks_of, overlay, spread_of


def test_without_a_history_the_drift_is_the_usual_one():
    assert drift_of([]) == pytest.approx(USUAL_DRIFT)


def test_price_drift_is_estimated_from_the_tables_own_price_history():
    """Eight prices doubled in a year, and the usual drift counts as eight: sqrt((ln 2 ^ 2 + 0.27 ^ 2) / 2) = 0.526.

    A price that doubled in four years drifted half as far in one year.
    """
    doubled = [PriceChange(math.log(2), 1.0)] * 8
    assert drift_of(doubled) == pytest.approx(0.526, abs=1e-3)
    slowly = [PriceChange(math.log(2), 4.0)] * 8
    assert drift_of(slowly) == pytest.approx(math.sqrt((math.log(2) ** 2 / 4 + USUAL_DRIFT**2) / 2))
    stood = [PriceChange(0.0, 2.0)] * 24
    assert drift_of(stood) == pytest.approx(USUAL_DRIFT / 2)


def test_the_shipped_price_history_counts_in_every_answer(tmp_path):
    changes = load_offers(tmp_path).changes
    assert changes == embedded_offers().changes
    assert len(changes) > 100
    assert drift_of(changes) != pytest.approx(USUAL_DRIFT, rel=0.01)


def test_newer_table_yields_the_price_change():
    """The price rose from 2.99 to 3.99 USD in 365 days."""
    old, new = dated("2025-10-04", 2.99), dated("2026-10-04", 3.99)
    (change,) = overlay([OfferTable(offers=(old,)), OfferTable(offers=(new,))]).changes
    assert change == (pytest.approx(math.log(3.99 / 2.99)), pytest.approx(365 / 365.25))
    assert change_of(new, old) is None
    assert change_of(old, dated("2025-10-04", 3.99)) is None
    assert change_of(old, dated("2026-10-04", 3.99, kind="marketplace")) is None


def test_listings_have_a_median_a_spread_and_a_number():
    """Hosts ask 0.20, 0.30 and 0.45 per GPU-hour: the median is 0.30.

    The spread is that of their logarithms (0 and +-0.405) and of three usual ones. A cloud asks 9.00; 0.56 of that
    has the weight of half a listing: 0.30^(3/3.5) x 5.04^(0.5/3.5).
    """
    hosts = [
        dated("2026-11-01", 0.2, kind="marketplace"),
        dated("2026-11-01", 0.6, kind="marketplace", gpu_count=2, provider="other"),
        dated("2026-11-01", 0.45, kind="marketplace"),
        dated("2026-11-01", 9.0),
    ]
    (((key, pricing), asks),) = asks_of(hosts).items()
    assert (key, pricing) == (H100, Pricing.ON_DEMAND)
    assert asks.median_usd_per_hour == pytest.approx(0.3 ** (3 / 3.5) * 5.04 ** (0.5 / 3.5))
    assert asks.own_weight == pytest.approx(3 / 3.5)
    (alone,) = asks_of(hosts[:3]).values()
    assert (alone.median_usd_per_hour, alone.own_weight) == (pytest.approx(0.3), 1.0)
    assert (asks.ask_count, asks.provider_count) == (3, 2)
    spread = math.sqrt((2 * math.log(1.5) ** 2 + 3 * USUAL_ASK_SPREAD**2) / 5)
    assert spread_of(asks) == pytest.approx(spread, rel=1e-3)
    assert alone.low_usd_per_hour == pytest.approx(0.3 * math.exp(-1.6449 * spread), rel=1e-6)


def test_the_number_and_median_of_a_source_are_used():
    """Two GPUs for 0.10 USD/h, with a median of 0.40, are 0.05 and 0.20 per GPU; their geometric mean is 0.10."""
    host = msgspec.structs.replace(
        dated("2026-11-01", 0.1, kind="marketplace", gpu_count=2),
        ask_count=12,
        ask_median_usd_per_hour=Decimal("0.4"),
    )
    (asks,) = asks_of([host]).values()
    assert asks.median_usd_per_hour == pytest.approx(0.1)
    assert asks.ask_count == 12
