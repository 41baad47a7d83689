"""Limits on a third party's snapshot or table: one rule per field, and no bad field affects the rest."""

from __future__ import annotations

import copy
import json
import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpubench
from gpubench.errors import GpuBenchError
from gpubench.models import Offer, Pricing
from gpubench.offers import snapshot as snapshots
from gpubench.offers.listing import list_offers
from gpubench.offers.quotes import check, read_quotes
from gpubench.offers.refresh import refresh, refresh_from_url
from gpubench.offers.request import OffersRequest
from gpubench.offers.snapshot import embedded_offers, load_offers
from gpubench.offers.sources import Quote
from gpubench.offers.table import UNSTATED_NOTE, Coverage, OfferTable, asks_of, offer_key
from gpubench.specs import load_specs

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
STAMP = "2026-11-19T00:00:00Z"
GOOD = {
    "provider": "acme",
    "instance": "RTX 4090",
    "region": "moon-1",
    "gpu_key": "nvidia-geforce-rtx-4090-24gb",
    "gpu_count": 1,
    "vcpus": 8.0,
    "ram_bytes": 2**35,
    "price_usd_per_hour": "0.30",
    "pricing": "on_demand",
    "kind": "marketplace",
    "price_date": "2026-11-18",
    "source": "acme API",
    "note": "one of many",
    "term_years": None,
    "retrieved_at": STAMP,
    "in_stock": True,
    "stock_date": "2026-11-18",
    "ask_count": 5,
    "ask_median_usd_per_hour": "0.40",
    "seller": "secure",
    "is_floor": False,
    "host_id": "17",
    "machine_id": "4711",
    "reliability": 0.99,
    "pcie_bytes_per_s": 12e9,
    "download_bytes_per_s": 1e8,
    "upload_bytes_per_s": 1e8,
    "disk_bytes": 10**12,
}
CLAIM = {
    "provider": "acme",
    "day": "2026-11-19",
    "pricings": ["on_demand"],
    "vendors": ["NVIDIA"],
    "gpu_keys": [],
    "whole_provider": True,
}
FIGURES = ["NaN", "sNaN", "Infinity", "-Infinity", "-1", "0", "1e400", "1e-400", "1e308", "1E+1000000"]
COUNTS = [-1, 0, 2**63, 2**64, 10**30, 1.5, True, "3", None]
BAD_DAYS = ["", "soon", "2026-02-30", "0001-01-01", "2099-01-01", "9999-12-31", "2026-11-18T99:00:00Z", 7]
BAD = {
    "provider": ["", "=cmd", "a\x1bb", "x" * 700, 5, None],
    "instance": ["", "@acme", "a\u0000b", 5, None],
    "region": ["=x", "x" * 700, 5],
    "gpu_key": ["", "no-such-gpu", 5, None],
    "gpu_count": [*(count for count in COUNTS if count != "3"), "3", 10_000],
    "vcpus": [-1, 0, 1e308, "8", 10**30],
    "ram_bytes": [-1, 0, 2**63, 2**64, 1e308, "8"],
    "price_usd_per_hour": [*FIGURES, -1, 0, None, "cheap", True, 1e308],
    "pricing": ["owned", "barter", "", None, 5],
    "kind": ["gift", "", None, 5],
    "price_date": BAD_DAYS,
    "source": ["", "=x", "a\x1bb", None],
    "note": ["=x", "x" * 700, "a\x1bb", 5],
    "term_years": [-1, 0, 3, 2**63, 10**30, 1.5, "3"],
    "retrieved_at": BAD_DAYS,
    "in_stock": ["yes", 1, 0.0],
    "stock_date": BAD_DAYS,
    "ask_count": [count for count in COUNTS if count is not None],
    "ask_median_usd_per_hour": [*FIGURES, "0.001", "cheap", True, -1, 1e308],
    "seller": ["cloud", "owner", "", 5],
    "is_floor": ["yes", 1, 0.0],
    "host_id": ["=x", "x" * 700, 5],
    "machine_id": ["=x", "a\x1bb", 5],
    "reliability": [-1, 0, 1.5, "0.9"],
    "pcie_bytes_per_s": [-1, 0, 1e308, "8"],
    "download_bytes_per_s": [-1, 0, 1e308, "8"],
    "upload_bytes_per_s": [-1, 0, 1e308, "8"],
    "disk_bytes": [-1, 0, 2**64, 1e308, "8"],
}
"""Invalid values of each field: absurd figures, other types, impossible or distant days."""

BAD_CLAIMS = {
    "provider": ["", "=x", 5, None],
    "day": [day for day in BAD_DAYS if day],
    "pricings": [["owned"], ["barter"], "on_demand", None],
    "vendors": [[""], [5], "NVIDIA", ["x"] * 2_000],
    "gpu_keys": [["no-such-gpu"], [5], "x"],
    "whole_provider": ["yes", 1, None],
}


def snapshot(*offers: object, covers: list[object] | None = None, name: str = "acme") -> dict:
    source = {"state": "ok", "retrieved_at": STAMP, "offers": list(offers), "covers": covers or []}
    return {"schema_version": 1, "retrieved_at": STAMP, "sources": {name: source}}


def lay(results: Path, document: object, name: str = "20261119T000000Z.json") -> Path:
    (results / "offers").mkdir(parents=True, exist_ok=True)
    path = results / "offers" / name
    path.write_bytes(json.dumps(document).encode())
    return path


def published(results: Path, document: object) -> object:
    body = json.dumps(document).encode()
    url = f"https://a.example/latest.json#sha256={sha256(body).hexdigest()}"
    return refresh_from_url(url, lambda _url, **_: body, results=results, now=NOW)


def instances(table: object) -> set[str]:
    return {offer.instance for offer in table.offers if offer.provider == "acme"}


def test_every_field_of_an_offer_and_of_a_coverage_has_a_rule():
    """A new field without a rule would accept anything; every rule is tested below."""
    assert set(Offer.__struct_fields__) == set(BAD)
    assert set(Coverage.__struct_fields__) == set(BAD_CLAIMS)


def test_every_shipped_offer_is_valid_and_unique():
    """Shipped offers are read unchanged; nothing cleans them at run time."""
    offers = embedded_offers().offers
    for offer in offers:
        check(offer, date(2026, 11, 27))
        left_open = bool(load_specs()[offer.gpu_key].variants)
        assert (UNSTATED_NOTE in (offer.note or "")) == left_open, offer
        assert offer.provider == offer.provider.lower()
    assert len(set(map(offer_key, offers))) == len(offers)


@pytest.mark.parametrize("field", BAD)
def test_bad_field_drops_only_its_row_from_every_input(tmp_path, field):
    """One row for each bad value of the field, since loading the offers takes longer than checking a row."""
    rows = [GOOD | {"instance": f"bad: {value}"[:60]} | {field: value} for value in BAD[field]]
    document = snapshot(*rows, GOOD)
    lay(tmp_path / "stored", document)
    table = load_offers(tmp_path / "stored")
    assert instances(table) == {"RTX 4090"}
    assert len(table.set_aside) == len(rows)
    (tmp_path / "table" / "offers" / "imported").mkdir(parents=True)
    (tmp_path / "table" / "offers" / "imported" / "own-a.json").write_text(json.dumps([*rows, GOOD]))
    imported = load_offers(tmp_path / "table")
    assert instances(imported) == {"RTX 4090"}
    assert [reason for _, reason in imported.set_aside] == [reason for _, reason in table.set_aside]
    done = published(tmp_path / "taken", document)
    assert instances(load_offers(tmp_path / "taken")) == {"RTX 4090"}
    assert len(done.set_aside) == len(rows)
    for said in (table, imported, done):
        assert all(len(f"{row}: {reason}".splitlines()) == 1 for row, reason in said.set_aside)


@pytest.mark.parametrize("field", BAD_CLAIMS)
def test_a_bad_coverage_is_not_a_claim_and_its_reason_is_reported(tmp_path, field):
    claims = [CLAIM | {field: value} for value in BAD_CLAIMS[field]]
    lay(tmp_path / "stored", snapshot(GOOD, covers=claims))
    table = load_offers(tmp_path / "stored")
    assert instances(table) == {"RTX 4090"}
    assert table.covers == ()
    assert len(table.set_aside) == len(claims)
    published(tmp_path / "taken", snapshot(GOOD, GOOD | {"instance": "other"}))
    newer = snapshot(GOOD, covers=claims)
    newer["sources"]["acme"]["retrieved_at"] = "2026-11-20T00:00:00Z"
    done = published(tmp_path / "taken", newer)
    assert instances(load_offers(tmp_path / "taken")) == {"RTX 4090", "other"}
    assert len(done.set_aside) == len(claims)


def test_valid_coverage_claim_retires_unlisted_offers(tmp_path):
    published(tmp_path, snapshot(GOOD, GOOD | {"instance": "other"}))
    newer = snapshot(GOOD, covers=[CLAIM])
    newer["sources"]["acme"]["retrieved_at"] = "2026-11-20T00:00:00Z"
    published(tmp_path, newer)
    assert instances(load_offers(tmp_path)) == {"RTX 4090"}


def test_a_coverage_claim_without_offers_retires_shipped_ones(tmp_path):
    assert load_offers(tmp_path).offers is embedded_offers(None).offers  # not even a copy
    lay(tmp_path, snapshot(covers=[CLAIM | {"provider": "runpod"}]))
    found = load_offers(tmp_path)
    assert {offer.provider for offer in found.retired} == {"runpod"}
    assert len(found.offers) == len(embedded_offers().offers) - len(found.retired)


def test_rows_that_carry_over_are_cleaned_by_the_next_refresh(tmp_path):
    """Otherwise a source that is not queried again would keep its bad rows through every refresh."""
    lay(tmp_path, snapshot(GOOD | {"instance": "bad", "ask_median_usd_per_hour": "0"}, GOOD))

    class Other:
        name = provider = "other"

        def fetch(self, transport):
            yield Quote(
                provider="other", instance="x", region=None, gpu="T4", gpu_count=1, price=0.5, source="x API"
            )

    done = refresh([Other()], None, results=tmp_path, now=NOW)
    kept = json.loads(done.path.read_text())["sources"]["acme"]["offers"]
    assert [offer["instance"] for offer in kept] == ["RTX 4090"]


@pytest.mark.parametrize(
    "change",
    [
        {"pricing": Pricing.OWNED},
        {"pricing": Pricing.RESERVED, "term_years": 99},
        {"term_years": 3},
        {"ask_count": -1},
        {"ask_count": 2**63},
        {"ask_median": 0.001},
        {"ask_median": float("nan")},
        {"price_date": "2099-01-01"},
        {"price_date": "0001-01-01"},
        {"in_stock": "yes"},
        {"region": 5},
        {"gpu_memory_gib": "x"},
        {"price": None},
        {"price": [1]},
        {"kind": "gift"},
    ],
    ids=str,
)
def test_quotes_from_a_source_follow_the_same_rules(change):
    good = {"provider": "acme", "instance": "x", "region": None, "gpu": "T4", "gpu_count": 1, "price": 0.5}
    good |= {"source": "acme API", "kind": "marketplace"}
    found = read_quotes([Quote(**good | change), Quote(**good | {"instance": "good"})], STAMP)
    assert [offer.instance for offer in found.table.offers] == ["good"]
    assert len(found.table.set_aside) == 1


def test_a_bad_snapshot_in_the_results_folder_never_ends_a_ranking(tmp_path):
    changes = (
        {"ask_median_usd_per_hour": "0"},
        {"ask_median_usd_per_hour": "NaN"},
        {"ask_median_usd_per_hour": "1E+1000000"},
        {"pricing": "owned", "price_usd_per_hour": "0.01"},
        {"retrieved_at": "soon", "stock_date": "never"},
    )
    bad = [GOOD | {"instance": f"bad {number}"} | change for number, change in enumerate(changes)]
    lay(tmp_path, snapshot(*bad, GOOD, covers=[CLAIM | {"day": "soon"}]))
    ranking = gpubench.rank("resnet50", results=tmp_path, limit=2_000)
    ours = {row.offer.instance for row in ranking.rows if row.offer.provider == "acme"}
    assert ours == {"RTX 4090"}
    assert not any(row.offer.pricing is Pricing.OWNED for row in ranking.rows)


# --- any mutation -------------------------------------------------------------------------------------------

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([*FIGURES, "owned", *map(str, BAD_DAYS), "\u2028", "=1+1", "[" * 50]),
    st.text(max_size=20),
    st.lists(st.none() | st.text(max_size=5) | st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.none() | st.integers(), max_size=2),
)


def _places(document: object, path: tuple = ()) -> list[tuple]:
    found = [path] if path else []
    steps = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in steps:
        found += _places(value, (*path, key))
    return found


WHOLE = snapshot(GOOD, GOOD | {"instance": "two", "region": None}, covers=[CLAIM])
PLACES = _places(WHOLE)


@pytest.fixture
def nothing_shipped(monkeypatch):
    """Leave out the shipped offers: cleaning hundreds of them takes most of an example's time and hides a bad row."""
    monkeypatch.setattr(snapshots, "embedded_offers", lambda *_: OfferTable())


@pytest.mark.usefixtures("nothing_shipped")
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PLACES), ANYTHING)
def test_a_snapshot_with_one_field_changed_is_read_or_refused_in_one_line_and_never_owns(place, value):
    document = copy.deepcopy(WHOLE)
    target = document
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        stored, taken = Path(folder, "stored"), Path(folder, "taken")
        lay(stored, document)
        refusal = ""
        try:
            published(taken, document)
        except GpuBenchError as error:
            refusal = str(error)
        assert len(refusal.splitlines()) <= 1
        for results in (stored, taken):
            table = load_offers(results)
            assert not any(offer.pricing is Pricing.OWNED for offer in table.offers)
            assert all(asks.median_usd_per_hour > 0 for asks in asks_of(table.offers).values())
            list_offers(table.offers, OffersRequest(), NOW.date())
            msgspec.json.encode(table.set_aside)
            assert all(isinstance(offer.price_usd_per_hour, Decimal) for offer in table.offers)
