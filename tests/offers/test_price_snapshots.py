"""The one table that ranking reads: embedded, then refreshed, then the user's own."""

from __future__ import annotations

import os
import time
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from gpubench.errors import MisuseError
from gpubench.models import Pricing
from gpubench.offers import snapshot
from gpubench.offers.quotes import find_machine
from gpubench.offers.snapshot import Snapshot, SourceOffers, embedded_offers, load_offers
from gpubench.specs import load_specs


def _t4(price: str, **change):
    offer = next(o for o in embedded_offers().offers if o.instance == "g4dn.xlarge")
    return msgspec.structs.replace(offer, price_usd_per_hour=Decimal(price), **change)


def _write(folder, name, *offers, **change):
    folder.mkdir(parents=True, exist_ok=True)
    source = SourceOffers(state="ok", retrieved_at="2026-11-19T00:00:00Z", offers=offers)
    document = {"retrieved_at": "2026-11-19T00:00:00Z", "sources": {"aws": source}} | change
    (folder / name).write_bytes(msgspec.json.encode(Snapshot(**document)))


def test_shipped_kinds_are_those_of_their_providers():
    """A row without a machine is a fee, a private host's GPU is a marketplace's, and past prices are historic."""
    offers = embedded_offers().offers
    for offer in offers:
        if "(attach)" in offer.instance:
            assert offer.kind == "attach-fee", offer
        if offer.provider in {"vast", "runpod", "tensordock", "lium", "spheron"}:
            is_list_price = offer.provider == "runpod" and offer.seller == "secure"
            is_median = offer.kind == "index" and offer.ask_count is not None
            assert (offer.kind == "marketplace") != (is_list_price or is_median), offer
        if offer.price_date < "2026":
            assert offer.kind in {"historic", "free", "index"}, offer
    regions = {o.region for o in offers if o.provider == "aws" and o.kind == "vm"}
    assert len(regions) >= 6
    assert {"google-tpu-v6e", "google-tpu-v5p"} & {o.gpu_key for o in offers}


def test_a_shipped_instance_has_the_gpu_that_a_refresh_would_find_in_it():
    found = 0
    for offer in embedded_offers().offers:
        machine = find_machine(offer.provider, offer.instance)
        if machine is not None:
            assert machine.gpu_key == offer.gpu_key, offer
            assert machine.gpu_count in {None, offer.gpu_count}, offer
            found += 1
    assert found > 100


def test_a_row_with_only_a_spot_price_gives_only_a_spot_offer():
    offers = [o for o in embedded_offers().offers if o.instance == "a4-highgpu-8g"]
    assert [o.pricing for o in offers] == [Pricing.SPOT]


def test_refreshed_overrides_embedded_and_the_users_file_overrides_both(tmp_path, write_table):
    _write(tmp_path / "offers", "20261119T000000Z.json", _t4("0.40"), _t4("0.41", region="mars-1"))
    own = write_table(
        {"provider": "AWS", "instance": "g4dn.xlarge", "region": "us-east-1", "on_demand_usd_per_h": "0.30"}
    )

    def price(table, region="us-east-1"):
        (found,) = (o for o in table.offers if (o.instance, o.region) == ("g4dn.xlarge", region))
        return found.price_usd_per_hour

    assert price(load_offers(tmp_path / "none")) == Decimal("0.526")
    assert price(load_offers(tmp_path)) == Decimal("0.40")
    assert price(load_offers(tmp_path), "mars-1") == Decimal("0.41")
    assert price(load_offers(tmp_path, own)) == Decimal("0.30")
    assert len(load_offers(tmp_path, own).offers) == len(embedded_offers().offers) + 1


def test_the_newest_snapshot_counts_and_a_damaged_one_is_a_note(tmp_path):
    folder = tmp_path / "offers"
    _write(folder, "20261118T000000Z.json", _t4("0.38"))
    _write(folder, "20261119T000000Z.json", _t4("0.40"))
    (folder / "20261120T000000Z.json").write_text('{"retrieved_at": "2026')
    (folder / "notes.json").write_text("not a snapshot")
    table = load_offers(tmp_path)
    assert Decimal("0.40") in {o.price_usd_per_hour for o in table.offers if o.instance == "g4dn.xlarge"}
    assert len(table.notes) == 1
    assert "20261120T000000Z.json" in table.notes[0]


def test_a_snapshot_of_a_newer_version_says_to_upgrade(tmp_path):
    _write(tmp_path / "offers", "20261119T000000Z.json", schema_version=99)
    assert "upgrade gpubench" in load_offers(tmp_path).notes[0]


def test_a_snapshot_that_is_a_link_is_not_followed(tmp_path):
    _write(tmp_path / "elsewhere", "x.json", _t4("0.40"))
    (tmp_path / "offers").mkdir()
    (tmp_path / "offers" / "20261119T000000Z.json").symlink_to(tmp_path / "elsewhere" / "x.json")
    assert "a link" in load_offers(tmp_path).notes[0]


def test_the_default_folder_follows_the_variable_then_the_working_folder(tmp_path, monkeypatch):
    _write(tmp_path / "named" / "offers", "20261119T000000Z.json", _t4("0.11"))
    _write(tmp_path / "results" / "offers", "20261119T000000Z.json", _t4("0.22"))
    monkeypatch.chdir(tmp_path)

    def price():
        return next(o.price_usd_per_hour for o in load_offers().offers if o.instance == "g4dn.xlarge")

    monkeypatch.setenv("GPUBENCH_RESULTS", str(tmp_path / "named"))
    assert price() == Decimal("0.11")
    monkeypatch.delenv("GPUBENCH_RESULTS")
    assert price() == Decimal("0.22")


@pytest.mark.skipif(os.name != "posix", reason="POSIX file types")
def test_results_path_that_is_not_a_folder_is_refused_even_for_prices(tmp_path):
    """A pipe is not read, and missing refreshed prices must not go unnoticed."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(MisuseError, match="not a folder"):
            load_offers(path)
    (tmp_path / "offers").mkdir()
    (tmp_path / "offers" / "imported").touch()
    assert any("imported: Not a" in note for note in load_offers(tmp_path).notes)
    (tmp_path / "offers" / "imported").unlink()
    (tmp_path / "offers").rmdir()
    os.mkfifo(tmp_path / "offers")
    assert any("offers: Not a" in note for note in load_offers(tmp_path).notes)


@pytest.mark.timing
def test_the_embedded_tables_load_fast():
    load_specs.cache_clear()
    snapshot.embedded_offers.cache_clear()
    start = time.process_time()
    assert load_specs()
    assert embedded_offers().offers
    assert time.process_time() - start < 0.060


@pytest.mark.parametrize(
    ("instance", "key", "usd_per_chip"),
    [("trn1.2xlarge", "aws-trainium-32gb", 1.34375), ("dl1.24xlarge", "intel-gaudi-32gb", 1.63863)],
)
def test_accelerators_without_a_prediction_have_prices_and_are_never_ranked(instance, key, usd_per_chip):
    found = [o for o in embedded_offers().offers if o.instance == instance and o.pricing is Pricing.ON_DEMAND]
    assert {(o.gpu_key, float(o.price_usd_per_hour) / o.gpu_count) for o in found} == {(key, usd_per_chip)}
    assert load_specs()[key].not_ranked_because
