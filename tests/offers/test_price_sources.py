"""Each price source on an answer in its documented format, and on invalid answers."""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from datetime import datetime
from itertools import chain
from pathlib import Path

import pytest

from gpubench.models import Pricing
from gpubench.offers.quotes import read_quotes
from gpubench.offers.sources import (
    Source,
    SourceError,
    SourceSkippedError,
    aws,
    azure,
    gpurentalprices,
    lambda_cloud,
    own_sources,
    runpod,
)
from gpubench.offers.sources.gpuhunt_catalog import SOURCES as GPUHUNT
from gpubench.offers.sources.vast import fetch_model

boto3 = pytest.importorskip("boto3")
ANY, Stubber = pytest.importorskip("botocore.stub").ANY, pytest.importorskip("botocore.stub").Stubber

ANSWERS = Path(__file__).parent / "answers"
NOW = "2026-11-20T12:00:00Z"


class Replay:
    """A transport that returns prepared answers in turn and records the requests."""

    def __init__(self, *answers):
        self.answers = [(ANSWERS / a).read_bytes() if isinstance(a, str) else a for a in answers]
        self.asked = []

    def __call__(self, url, *, params=None, body=None, headers=None):
        self.asked.append({"url": url, "params": params, "body": body, "headers": headers})
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def refuse(url, **_kwargs):
    pytest.fail(f"asked {url}")


def vast_of(*models):
    """Return a source that queries Vast for these models only."""
    return Source(
        "vast", "vast", lambda transport: chain.from_iterable(fetch_model(each, transport) for each in models)
    )


ROWS_OF = {
    "vast": (vast_of("RTX 4090"), "vast.json", lambda answer: answer["offers"], "dph_total"),
    "azure": (azure.SOURCE, "azure_1.json", lambda answer: answer["Items"], "retailPrice"),
    "runpod": (runpod.SOURCE, "runpod.json", lambda answer: answer["data"]["gpuTypes"], "securePrice"),
    "lambda": (lambda_cloud.SOURCE, "lambda.json", lambda answer: answer["data"], "price_cents_per_hour"),
    "gpurentalprices": (
        gpurentalprices.SOURCE,
        "gpurentalprices.json",
        lambda answer: answer["offers"],
        "usd_hr",
    ),
}
"""For each source that reads JSON: a page of its answer, where the rows are, and the field of the price.

A source whose answer is a bare list is not tried with the altered answer ``[]`` below, which lists no offers.
"""


KEYS = ("LAMBDA_API_KEY",)
"""Variables without which a source of ``ROWS_OF`` sends no request."""


@pytest.fixture
def keys(monkeypatch):
    """Set every key that a source of ``ROWS_OF`` needs."""
    for each in KEYS:
        monkeypatch.setenv(each, "k")


def gpuhunt_of(catalog):
    """Return the source of gpuhunt's catalog of one cloud."""
    return next(source for source in GPUHUNT if source.name == f"gpuhunt-{catalog}")


def offers(source, transport):
    return read_quotes(source.fetch(transport), NOW).table


def short(table):
    return {(o.instance, o.pricing.value, o.term_years): float(o.price_usd_per_hour) for o in table.offers}


def test_azure_is_paged_and_spot_reserved_and_other_products_are_distinguished():
    replay = Replay("azure_1.json", "azure_2.json", "azure_reserved.json")
    table = offers(azure.SOURCE, replay)
    assert short(table) == {
        ("Standard_NC24ads_A100_v4", "on_demand", None): 3.673,
        ("Standard_NC24ads_A100_v4", "spot", None): 0.68,
        ("Standard_NC24ads_A100_v4", "reserved", 1): 2.25,
        ("Standard_NC24ads_A100_v4", "reserved", 3): 1.6,
        ("Standard_NC4as_T4_v3", "on_demand", None): 0.6,
    }
    offer = table.offers[0]
    assert (offer.gpu_key, offer.gpu_count, offer.vcpus) == ("nvidia-a100-pcie-80gb", 1, 24)
    assert (offer.price_date, offer.retrieved_at, offer.region) == ("2026-11-20", NOW, "eastus")
    ((row, reason),) = table.set_aside
    assert "Standard_NV6ads_A10_v5" in row
    assert "unknown or ambiguous" in reason
    assert replay.asked[1]["url"].startswith("https://prices.azure.com:443/")
    assert [asked["params"]["$filter"][-13:] for asked in replay.asked if asked["params"]] == [
        "'Consumption'",
        "'Reservation'",
    ]


def test_azure_never_follows_a_next_page_on_another_host():
    page = json.loads((ANSWERS / "azure_1.json").read_text()) | {"NextPageLink": "https://evil.example/p"}
    replay = Replay(json.dumps(page).encode())
    with pytest.raises(SourceError, match="another host"):
        offers(azure.SOURCE, replay)
    assert len(replay.asked) == 1


def test_azure_pages_without_end_are_stopped(monkeypatch):
    monkeypatch.setattr("gpubench.offers.sources.azure.MAX_PAGES", 5)
    page = json.loads((ANSWERS / "azure_1.json").read_text())
    pages = [
        json.dumps(page | {"NextPageLink": f"{page['NextPageLink']}{number}"}).encode() for number in range(9)
    ]
    with pytest.raises(SourceError, match="more than 5 pages"):
        offers(azure.SOURCE, Replay(*pages))


def test_azure_pages_that_repeat_are_a_failure():
    replay = Replay("azure_1.json")
    with pytest.raises(SourceError, match="already read"):
        offers(azure.SOURCE, replay)
    assert len(replay.asked) == 2


def test_vast_gives_the_cheapest_verified_host_of_each_count():
    replay = Replay("vast.json")
    table = offers(vast_of("RTX 4090"), replay)
    assert {(o.instance, o.region): float(o.price_usd_per_hour) for o in table.offers} == {
        ("RTX 4090", "NO"): 0.40,
        ("RTX 4090", None): 0.50,
        ("8x RTX 4090", None): 3.60,
    }
    assert table.offers[0].kind == "marketplace"
    assert "2 verified hosts" in table.offers[0].note
    assert [o.ask_count for o in table.offers] == [1, None, 1]  # the other host has an offer of its own
    assert table.offers[0].ask_median_usd_per_hour > table.offers[0].price_usd_per_hour
    assert "RTX 9999" in table.set_aside[0].row
    assert replay.asked[0]["body"]["verified"] == {"eq": True}


def _vast_host(name, gib, price, count=1, **change):
    host = {"gpu_name": name, "num_gpus": count, "gpu_ram": gib * 1024, "dph_total": price}
    return host | {"verification": "verified"} | change


def _vast(*hosts):
    return offers(vast_of("A100 SXM4"), Replay(json.dumps({"offers": hosts}).encode()))


def test_two_sizes_under_one_name_are_two_instances_distinguished_by_memory():
    table = _vast(
        _vast_host("A100 SXM4", 40, 0.6),
        _vast_host("A100 SXM4", 80, 1.0),
        _vast_host("A100 SXM4", 80, 7.2, 8),
    )
    assert table.set_aside == ()
    assert {(o.instance, o.gpu_key): float(o.price_usd_per_hour) for o in table.offers} == {
        ("A100 SXM4 40GB", "nvidia-a100-sxm-40gb"): 0.6,
        ("A100 SXM4 80GB", "nvidia-a100-sxm-80gb"): 1.0,
        ("8x A100 SXM4 80GB", "nvidia-a100-sxm-80gb"): 7.2,
    }
    alone = _vast(_vast_host("A100 SXM4", 80, 1.0))
    assert [o.instance for o in alone.offers] == ["A100 SXM4 80GB"]


HOST = {
    "host_id": 7,
    "machine_id": 4711,
    "geolocation": "Texas, US",
    "hosting_type": 1,
    "cpu_cores": 64,
    "cpu_cores_effective": 16.0,
    "cpu_ram": 512_000,
    "disk_space": 800.5,
    "inet_down": 900.0,
    "inet_up": 100.0,
    "reliability2": 0.995,
    "pcie_bw": 24.0,
}


def test_vast_host_facts_are_reported():
    """The offer has a quarter of the cores, so also a quarter of the memory: 512 GB / 4 = 128 GB."""
    (offer,) = _vast(_vast_host("A100 SXM4", 80, 1.0, **HOST)).offers
    assert (offer.host_id, offer.machine_id, offer.region, offer.seller) == ("7", "4711", "US", "secure")
    assert (offer.vcpus, offer.ram_bytes, offer.disk_bytes) == (16.0, 128_000_000_000, 800_500_000_000)
    assert (offer.reliability, offer.pcie_bytes_per_s) == (0.995, 24e9)
    assert (offer.download_bytes_per_s, offer.upload_bytes_per_s) == (112.5e6, 12.5e6)


def test_each_country_has_its_cheapest_vast_host_and_the_first_describes_the_others():
    asks = [("Texas, US", 1.0), ("Ohio, US", 0.9), ("Finland, FI", 1.2), ("Finland, FI", 1.6), (None, 2.0)]
    table = _vast(*(_vast_host("A100 SXM4", 80, usd, geolocation=where) for where, usd in asks))
    told = [(o.region, float(o.price_usd_per_hour), o.ask_count) for o in table.offers]
    assert told == [("US", 0.9, 3), ("FI", 1.2, None), (None, 2.0, None)]
    assert float(table.offers[0].ask_median_usd_per_hour) == 1.2
    assert {o.seller for o in table.offers} == {"community"}


@pytest.mark.parametrize(
    "broken",
    [
        {"disk_space": "much"},
        {"cpu_ram": -1},
        {"inet_down": [1]},
        {"reliability2": "high"},
        {"pcie_bw": {}},
        {"host_id": 1.5},
        {"geolocation": 7},
        {"num_gpus": None},
        {"dph_total": None},
    ],
    ids=str,
)
def test_malformed_vast_host_affects_no_other(broken):
    table = _vast(_vast_host("A100 SXM4", 80, 0.5, **HOST | broken), _vast_host("A100 SXM4", 80, 1.0, **HOST))
    assert [float(o.price_usd_per_hour) for o in table.offers] == [1.0]
    ((row, why),) = table.set_aside
    assert row == "Vast A100 SXM4: row 1 of its answer"
    assert why.startswith("not read: ")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"disk_space": 0}, "disk_bytes"),
        ({"inet_up": 0.0}, "upload_bytes_per_s"),
        ({"cpu_ram": 0}, "ram_bytes"),
        ({"cpu_cores": None}, "ram_bytes"),
        ({"geolocation": "somewhere"}, "region"),
        ({"geolocation": ", "}, "region"),
        ({"pcie_bw": None}, "pcie_bytes_per_s"),
        ({"reliability2": None}, "reliability"),
        ({"machine_id": None}, "machine_id"),
    ],
    ids=str,
)
def test_missing_vast_host_fields_are_none_and_never_zero(said, field):
    (offer,) = _vast(_vast_host("A100 SXM4", 80, 1.0, **HOST | said)).offers
    assert getattr(offer, field) is None


@pytest.mark.parametrize(
    "absurd",
    [
        {"reliability2": 99.5},
        {"machine_id": "=cmd"},
        {"disk_space": 1e12},
        {"inet_down": 1e300},
        *({field: 1e308} for field in ("disk_space", "cpu_ram", "inet_down", "pcie_bw")),
    ],
    ids=str,
)
def test_vast_host_with_impossible_values_is_set_aside_alone(absurd):
    table = _vast(_vast_host("A100 SXM4", 80, 0.5, **HOST | absurd), _vast_host("A100 SXM4", 80, 1.0))
    assert [float(o.price_usd_per_hour) for o in table.offers] == [1.0]
    assert len(table.set_aside) == 1


MACHINE = {"stockStatus": "High", "minVcpu": 16, "minMemory": 125, "minDisk": 500, "minDownload": 800,
           "minUpload": 400, "countryCode": "SE"}  # fmt: skip
L4 = {"id": "NVIDIA L4", "displayName": "L4", "memoryInGb": 24, "securePrice": 0.5, "communityPrice": 0.4}


def _runpod(*answers):
    """Query a RunPod that gives these answers in turn: lists of GPU types, or errors."""
    bodies = [
        {"errors": [{"message": a}]} if isinstance(a, str) else {"data": {"gpuTypes": a}} for a in answers
    ]
    replay = Replay(*(json.dumps(each).encode() for each in bodies))
    return offers(runpod.SOURCE, replay), replay


def test_each_cloud_of_runpod_is_reported_with_its_smallest_free_machine():
    table, _ = _runpod([L4 | {"secure": MACHINE, "community": {"stockStatus": None}}])
    community, secure = table.offers
    assert (secure.vcpus, secure.ram_bytes, secure.disk_bytes) == (16.0, 125_000_000_000, 500_000_000_000)
    assert (secure.download_bytes_per_s, secure.upload_bytes_per_s) == (1e8, 5e7)
    assert secure.note == "secure cloud; free in SE"
    assert (secure.in_stock, community.in_stock) == (True, False)
    assert (community.vcpus, community.ram_bytes, community.disk_bytes) == (None, None, None)


def test_if_runpod_refuses_machine_data_only_its_prices_are_queried():
    table, replay = _runpod("Cannot query field minDisk", [L4 | {"lowestPrice": {"stockStatus": "Low"}}])
    assert [float(o.price_usd_per_hour) for o in table.offers] == [0.4, 0.5]
    assert [("minDisk" in each["body"]["query"]) for each in replay.asked] == [True, False]
    with pytest.raises(SourceError, match="error instead of prices"):
        _runpod("no", "no")


@pytest.mark.parametrize(
    "broken", [{"secure": {"minMemory": "125"}}, {"secure": {"minDisk": -5}}, {"community": []}, {"secure": "High"}],
    ids=str,
)  # fmt: skip
def test_malformed_runpod_type_affects_no_other(broken):
    other = L4 | {"id": "NVIDIA A40", "displayName": "A40", "memoryInGb": 48}
    table, _ = _runpod([L4 | broken, other])
    assert {o.gpu_key for o in table.offers} == {"nvidia-a40-48gb"}
    assert [row for row, _ in table.set_aside] == ["RunPod: row 1 of its answer"]


def test_vast_host_on_a_riser_or_with_low_reliability_is_not_listed():
    table = _vast(
        _vast_host("A100 SXM4", 80, 0.1, pcie_bw=0.4, reliability2=0.999),
        _vast_host("A100 SXM4", 80, 0.2, pcie_bw=22.0, reliability2=0.55),
        _vast_host("A100 SXM4", 80, 0.3, pcie_bw=None, reliability2=None),
        _vast_host("A100 SXM4", 80, 0.9, pcie_bw=12.0, reliability2=0.985),
    )
    (offer,) = table.offers
    assert (float(offer.price_usd_per_hour), offer.ask_count) == (0.3, 2)
    assert _vast(_vast_host("A100 SXM4", 80, 0.1, pcie_bw=0.4)).offers == ()


def test_stock_is_reported_if_a_source_reports_it(monkeypatch):
    monkeypatch.setenv("LAMBDA_API_KEY", "k")
    stock = {
        o.instance: (o.in_stock, o.stock_date)
        for o in offers(lambda_cloud.SOURCE, Replay("lambda.json")).offers
    }
    assert stock == {"gpu_8x_h100_sxm5": (True, "2026-11-20"), "gpu_1x_a10": (False, "2026-11-20")}
    types = [
        {"id": f"NVIDIA {name}", "displayName": name, "memoryInGb": 24, "securePrice": 1.0} | stock
        for name, stock in (
            ("L4", {"lowestPrice": {"stockStatus": "Low"}}),
            ("A10", {"lowestPrice": {"stockStatus": None}}),
            ("GeForce RTX 4090", {}),
        )
    ]
    table = offers(runpod.SOURCE, Replay(json.dumps({"data": {"gpuTypes": types}}).encode()))
    assert [o.in_stock for o in table.offers] == [True, False, None]
    assert [o.stock_date for o in table.offers] == ["2026-11-20", "2026-11-20", None]
    both = {**types[0], "communityPrice": 0.5}  # one cloud has a free machine, but which?
    table = offers(runpod.SOURCE, Replay(json.dumps({"data": {"gpuTypes": [both]}}).encode()))
    assert [o.in_stock for o in table.offers] == [None, None]
    assert offers(vast_of("RTX 4090"), Replay("vast.json")).offers[0].in_stock


def _claims(source, transport):
    return read_quotes(source.fetch(transport), NOW).claims


def test_only_an_untruncated_answer_claims_to_be_complete():
    few = json.dumps({"offers": [_vast_host("A100 SXM4", 80, 1.0)] * 63}).encode()
    cut = json.dumps({"offers": [_vast_host("A100 SXM4", 80, 1.0)] * 64}).encode()
    assert [c.gpu for c in _claims(vast_of("A100 SXM4", "L4"), Replay(few, cut))] == ["A100 SXM4"]
    assert _claims(runpod.SOURCE, Replay("runpod.json"))
    in_part = json.loads((ANSWERS / "runpod.json").read_text()) | {"errors": [{"message": "half"}]}
    assert _claims(runpod.SOURCE, Replay(json.dumps(in_part).encode())) == ()
    (claim,) = _claims(azure.SOURCE, Replay("azure_1.json", "azure_2.json", "azure_reserved.json"))
    assert set(claim.pricings) == {Pricing.ON_DEMAND, Pricing.SPOT, Pricing.RESERVED}


def test_runpod_yields_both_clouds_and_distinguishes_the_form_factor_by_the_device_name():
    """The secure price is a data center's list price; the community price is a host's."""
    table = offers(runpod.SOURCE, Replay("runpod.json"))
    assert {(o.instance, o.gpu_key, o.seller, o.kind): float(o.price_usd_per_hour) for o in table.offers} == {
        ("A100 PCIe", "nvidia-a100-pcie-80gb", "community", "marketplace"): 1.19,
        ("A100 PCIe (secure)", "nvidia-a100-pcie-80gb", "secure", "vm"): 1.39,
        ("H100 SXM (secure)", "nvidia-h100-sxm-80gb", "secure", "vm"): 2.69,
        ("RTX 4090", "nvidia-geforce-rtx-4090-24gb", "community", "marketplace"): 0.34,
        ("RTX 4090 (secure)", "nvidia-geforce-rtx-4090-24gb", "secure", "vm"): 0.59,
    }
    assert [row for row, _ in table.set_aside] == ["runpod Q9000 (secure)"]


def test_lambda_needs_a_key_and_sends_it_only_in_the_header(monkeypatch):
    monkeypatch.delenv("LAMBDA_API_KEY", raising=False)
    with pytest.raises(SourceSkippedError, match="LAMBDA_API_KEY"):
        offers(lambda_cloud.SOURCE, refuse)
    monkeypatch.setenv("LAMBDA_API_KEY", "secret-key")
    replay = Replay("lambda.json")
    table = offers(lambda_cloud.SOURCE, replay)
    assert {(o.instance, o.gpu_key, o.gpu_count): float(o.price_usd_per_hour) for o in table.offers} == {
        ("gpu_8x_h100_sxm5", "nvidia-h100-sxm-80gb", 8): 31.92,
        ("gpu_1x_a10", "nvidia-a10-24gb", 1): 1.29,
    }
    assert replay.asked[0]["headers"] == {"Authorization": "Bearer secret-key"}
    assert "secret-key" not in replay.asked[0]["url"]
    assert not any("secret" in str(o) for o in table.offers)


@pytest.mark.parametrize("name", ROWS_OF)
@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"{", b"[]", b"null", b'{"Items": 3, "offers": 3, "data": 3}', b"[" * 100_000, b"\xff", b'{"offers": [{"dph_total": NaN}]}'],
)  # fmt: skip
@pytest.mark.usefixtures("keys")
def test_an_altered_answer_is_one_line_and_names_the_provider(name, body):
    source, file, *_ = ROWS_OF[name]
    if body == b"[]" and (ANSWERS / file).read_bytes().lstrip().startswith(b"["):
        return  # a list without offers
    with pytest.raises(SourceError, match=rf"(?i){source.name}.*format") as caught:
        offers(source, Replay(body))
    assert "\n" not in str(caught.value)


def test_the_ledger_prices_the_smallest_machine_of_clouds_that_no_other_source_reads(monkeypatch):
    """Prices in the ledger are per GPU, and CoreWeave rents out eight; Azure, Lambda, RunPod and Verda have their own sources."""
    monkeypatch.setattr(gpurentalprices, "own_sources", lambda: ())
    replay = Replay("gpurentalprices.json")
    table = offers(gpurentalprices.SOURCE, replay)
    told = {
        (o.provider, o.gpu_key, o.gpu_count, o.pricing, o.seller): float(o.price_usd_per_hour)
        for o in table.offers
    }
    assert told["coreweave", "nvidia-h200-sxm-141gb", 8, "on_demand", "cloud"] == 50.44
    assert told["spheron", "nvidia-l40s-48gb", 1, "spot", "community"] == 0.97
    assert told["jarvislabs", "nvidia-a100-sxm-40gb", 1, "on_demand", "cloud"] == 0.89
    assert told["ovhcloud", "nvidia-l4-24gb", 1, "on_demand", "cloud"] == 1.0
    assert len(told) == 14
    assert not table.set_aside
    assert not {o.provider for o in table.offers} & {"azure", "lambda", "runpod", "datacrunch", "verda"}
    assert {o.price_date for o in table.offers} == {"2026-10-01"}, "the day on which it was read, not today"
    assert all("gpurentalprices.com, CC BY 4.0" in o.source for o in table.offers)
    assert replay.asked == [{"url": gpurentalprices.URL, "params": None, "body": None, "headers": None}]
    assert _claims(gpurentalprices.SOURCE, replay) == (), (
        "an offer missing from the ledger may still be available"
    )


def test_a_cloud_with_its_own_source_is_not_read_from_the_ledger(monkeypatch):
    """The two sources would name its machines differently, and each offer would be listed twice."""

    def clouds_beside(*sources):
        monkeypatch.setattr(gpurentalprices, "own_sources", lambda: sources)
        table = offers(gpurentalprices.SOURCE, Replay("gpurentalprices.json"))
        return {offer.provider for offer in table.offers}

    clouds = clouds_beside()
    assert "hyperstack" in clouds
    assert clouds_beside(Source("hyperstack-book", "hyperstack", refuse)) == clouds - {"hyperstack"}
    monkeypatch.undo()
    read_here = {source.provider for source in own_sources()}
    table = offers(gpurentalprices.SOURCE, Replay("gpurentalprices.json"))
    assert {offer.provider for offer in table.offers} == clouds - read_here


# --- gpuhunt ----------------------------------------------------------------------------------------------


def write_catalog(path, text, day="2026-11-18"):
    path.write_text(text)
    os.utime(path, times=(datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp(),) * 2)


def test_gpuhunt_reads_the_folder_of_its_variable_without_the_network(tmp_path, monkeypatch):
    write_catalog(tmp_path / "gcp.csv", (ANSWERS / "gcp.csv").read_text())
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(tmp_path))
    table = offers(gpuhunt_of("gcp"), refuse)
    assert {(o.instance, o.gpu_key, o.gpu_count) for o in table.offers} == {
        ("a2-highgpu-1g", "nvidia-a100-sxm-40gb", 1),
        ("a3-highgpu-8g", "nvidia-h100-sxm-80gb", 8),
        ("n1-standard-8 + 1x V100", "nvidia-tesla-v100-sxm2-16gb", 1),
        ("n1-standard-8 + 1x T4", "nvidia-tesla-t4-16gb", 1),
        ("v5litepod-8", "google-tpu-v5e", 8),
    }
    assert all(o.region == "us-central1-a" for o in table.offers)
    assert {o.price_date for o in table.offers} == {"2026-11-18"}, "an old folder must not look fresh"


def test_gpuhunt_without_a_catalog_of_this_cloud_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(tmp_path))
    with pytest.raises(SourceError, match=r"cannot read .*oci\.csv"):
        offers(gpuhunt_of("oci"), refuse)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'a,"' + b"x" * 200_000])
def test_an_invalid_catalog_file_is_a_failure(tmp_path, monkeypatch, content):
    (tmp_path / "oci.csv").write_bytes(content)
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(tmp_path))
    with pytest.raises(SourceError, match=r"oci\.csv is not"):
        offers(gpuhunt_of("oci"), refuse)


def _packed(name="gcp.csv", content=None):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content or (ANSWERS / "gcp.csv").read_bytes())
    return buffer.getvalue()


def _damaged(packed):
    return packed[:40] + bytes(255 - byte for byte in packed[40:60]) + packed[60:]


def test_gpuhunt_dates_its_rows_by_the_version_it_fetched(monkeypatch):
    monkeypatch.delenv("GPUHUNT_CATALOG_DIR", raising=False)
    replay = Replay(b"20261118-7\n", _packed())
    table = offers(gpuhunt_of("gcp"), replay)
    assert {o.price_date for o in table.offers} == {"2026-11-18"}
    assert [asked["url"].rsplit("/v3/")[-1] for asked in replay.asked] == [
        "gcp/version",
        "gcp/20261118-7/catalog.zip",
    ]
    import os

    assert "GPUHUNT_CATALOG_DIR" not in os.environ


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((b"../../etc",), "a valid version"),
        ((b"1", b"no zip"), "not a valid archive"),
        ((b"1", _packed("aws.csv")), "not a valid archive"),
        ((b"1", _damaged(_packed())), "not a valid archive"),
    ],
)
def test_a_damaged_gpuhunt_catalog_is_a_failure(monkeypatch, answers, message):
    monkeypatch.delenv("GPUHUNT_CATALOG_DIR", raising=False)
    with pytest.raises(SourceError, match=message):
        offers(gpuhunt_of("gcp"), Replay(*answers))


def test_a_zip_bomb_is_refused_before_it_is_unpacked(monkeypatch):
    monkeypatch.setattr("gpubench.offers.sources.gpuhunt_catalog.MAX_CSV_BYTES", 10_000)
    monkeypatch.delenv("GPUHUNT_CATALOG_DIR", raising=False)
    with pytest.raises(SourceError, match=r"over 10,000 bytes"):
        offers(gpuhunt_of("gcp"), Replay(b"1", _packed(content=b"x" * 20_000)))


# --- AWS --------------------------------------------------------------------------------------------------


def _listing(instance, region, gpu, price, *, reserved=True):
    def term(amount, **attributes):
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": amount}, "description": "x"}
        return {
            "priceDimensions": {"A.B": dimension},
            "termAttributes": attributes,
            "effectiveDate": "2026-11-01T00:00:00Z",
        }

    terms = {"OnDemand": {"A": term(price)}}
    if reserved:
        standard = {"OfferingClass": "standard", "PurchaseOption": "No Upfront"}
        terms["Reserved"] = {
            "B": term("13.0", LeaseContractLength="1yr", **standard),
            "C": term("9.0", LeaseContractLength="3yr", **standard),
            "D": term(
                "8.0", LeaseContractLength="3yr", OfferingClass="convertible", PurchaseOption="No Upfront"
            ),
        }
    attributes = {
        "instanceType": instance,
        "regionCode": region,
        "vcpu": "96",
        "memory": "1,152 GiB",
        "gpu": gpu,
    }
    return json.dumps(
        {"product": {"productFamily": "Compute Instance", "attributes": attributes}, "terms": terms}
    )


def _client():
    return boto3.client("pricing", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")


def test_aws_lists_on_demand_and_reserved_page_by_page(monkeypatch):
    pricing = _client()
    lists = Stubber(pricing)
    first = [
        _listing("p4d.24xlarge", "us-east-1", "8", "21.96"),
        _listing("p4d.24xlarge", "us-east-1", "8", "0.0000000000", reserved=False),
    ]
    second = [
        _listing("p4d.24xlarge", "me-south-1", "8", "25.0", reserved=False),
        _listing("g99.xlarge", "us-east-1", "1", "1.0", reserved=False),
    ]
    expected = {"ServiceCode": "AmazonEC2", "Filters": ANY}
    lists.add_response("get_products", {"PriceList": first, "NextToken": "t"}, expected)
    lists.add_response("get_products", {"PriceList": second}, expected | {"NextToken": "t"})
    monkeypatch.setattr(aws, "_client", lambda: pricing)
    with lists:
        table = offers(aws.SOURCE, refuse)
    lists.assert_no_pending_responses()
    assert {(o.region, o.pricing, o.term_years): float(o.price_usd_per_hour) for o in table.offers} == {
        ("us-east-1", Pricing.ON_DEMAND, None): 21.96,
        ("us-east-1", Pricing.RESERVED, 1): 13.0,
        ("us-east-1", Pricing.RESERVED, 3): 9.0,
        ("me-south-1", Pricing.ON_DEMAND, None): 25.0,
    }
    assert {o.gpu_key for o in table.offers} == {"nvidia-a100-sxm-40gb"}
    assert table.offers[0].ram_bytes == 1152 * 1024**3
    assert any("g99.xlarge" in row for row, _ in table.set_aside)


def test_aws_without_permission_is_a_failure_of_one_line(monkeypatch):
    pricing = _client()
    with (
        Stubber(pricing) as stub,
        pytest.raises(SourceError, match=r"AWS price list failed.*AccessDenied") as caught,
    ):
        stub.add_client_error("get_products", "AccessDeniedException", "not allowed")
        monkeypatch.setattr(aws, "_client", lambda: pricing)
        offers(aws.SOURCE, refuse)
    assert "\n" not in str(caught.value)


def test_aws_without_credentials_is_skipped(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SourceSkippedError, match="no AWS credentials"):
        offers(aws.SOURCE, refuse)


def test_aws_without_its_library_prints_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(SourceSkippedError, match=r"boto3 is not installed: pip install 'boto3>=1\.34,<2'$"):
        offers(aws.SOURCE, refuse)


# --- one bad row --------------------------------------------------------------------------------------------


def test_every_source_that_reads_json_is_tried_with_a_bad_row():
    own = {source.name for source in own_sources() if not source.name.startswith("gpuhunt-")}
    assert own - {"aws"} == set(ROWS_OF), "boto3 decodes what AWS answers"


def _spoiled(row, field, how):
    """Return a row with its price, wherever it is, corrupted in one way."""
    if how == "no object":
        return 7
    changed = json.loads(json.dumps(row))
    place = changed.get("instance_type", changed)
    if how == "missing":
        del place["displayName" if field == "securePrice" else field]  # a price may be missing there
    else:
        place[field] = {"null": None, "string": "0.5 USD", "list": [0.5], "object": {}}[how]
    return changed


@pytest.mark.parametrize("how", ["string", "list", "object", "missing", "no object"])
@pytest.mark.parametrize("name", ROWS_OF)
@pytest.mark.usefixtures("keys")
def test_one_bad_row_affects_no_other_and_is_counted(name, how):
    source, file, rows_of, field = ROWS_OF[name]
    answer = json.loads((ANSWERS / file).read_text())
    if isinstance(answer, dict):
        answer.pop("NextPageLink", None)
    whole = read_quotes(source.fetch(Replay(json.dumps(answer).encode())), NOW)
    rows = rows_of(answer)
    if isinstance(rows, dict):
        rows["one more"] = _spoiled(next(iter(rows.values())), field, how)
    else:
        rows.insert(0, _spoiled(rows[0], field, how))
    found = read_quotes(source.fetch(Replay(json.dumps(answer).encode())), NOW)
    assert found.table.offers == whole.table.offers
    added = [each for each in found.table.set_aside if each not in whole.table.set_aside]
    assert added
    assert all("not read" in reason for _, reason in added)
    assert whole.claims or name == "gpurentalprices"
    assert found.claims == (), "an answer with an unreadable row is not complete"


@pytest.mark.parametrize("price", [None, "0.2", 0, -1, 1e-9, 1e308])
def test_unpriced_host_does_not_displace_a_similar_one(price):
    table = _vast(_vast_host("A100 SXM4", 80, price), _vast_host("A100 SXM4", 80, 1.0))
    assert [float(o.price_usd_per_hour) for o in table.offers] == [1.0]
    assert table.offers[0].ask_count == 1
    assert len(table.set_aside) == 1


def test_an_absurdly_large_disk_of_runpod_loses_only_that_gpu():
    gpus = [
        {"id": name, "displayName": name, "memoryInGb": 24, "securePrice": 0.5, "secure": {"minDisk": disk}}
        for name, disk in (("NVIDIA L4", 1e308), ("NVIDIA A30", 100))
    ]
    table = offers(runpod.SOURCE, Replay(json.dumps({"data": {"gpuTypes": gpus}}).encode()))
    assert [each.instance for each in table.offers] == ["NVIDIA A30 (secure)"]
    assert len(table.set_aside) == 1


def test_a_source_with_only_unreadable_rows_gives_nothing_and_says_why():
    table = _vast({"gpu": "A100 SXM4", "usd": 1.0}, {"gpu": "A100 SXM4", "usd": 2.0})
    assert table.offers == ()
    assert [row for row, _ in table.set_aside] == [f"Vast A100 SXM4: row {n} of its answer" for n in (1, 2)]


def test_a_row_of_gpuhunt_without_a_price_is_set_aside_and_its_catalog_is_then_not_complete(
    tmp_path, monkeypatch
):
    text = (ANSWERS / "gcp.csv").read_text()
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(tmp_path))
    good = "\n".join(line for line in text.splitlines() if "nonsense" not in line)
    write_catalog(tmp_path / "gcp.csv", good)
    whole = read_quotes(gpuhunt_of("gcp").fetch(refuse), NOW)
    write_catalog(tmp_path / "gcp.csv", text)
    found = read_quotes(gpuhunt_of("gcp").fetch(refuse), NOW)
    assert found.table.offers == whole.table.offers
    assert any("nonsense" in reason for _, reason in found.table.set_aside)
    assert (len(whole.claims), len(found.claims)) == (1, 0)


def test_an_unreadable_aws_listing_affects_no_other(monkeypatch):
    pricing = _client()
    texts = ["{", '{"product": 5}', _listing("p4d.24xlarge", "us-east-1", "8", "21.96", reserved=False)]
    monkeypatch.setattr(aws, "_client", lambda: pricing)
    with Stubber(pricing) as lists:
        lists.add_response("get_products", {"PriceList": texts}, {"ServiceCode": "AmazonEC2", "Filters": ANY})
        found = read_quotes(aws.SOURCE.fetch(refuse), NOW)
    assert [float(o.price_usd_per_hour) for o in found.table.offers] == [21.96]
    assert len(found.table.set_aside) == 2
    assert found.claims == ()
