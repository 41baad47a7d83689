"""A refresh: dated snapshots, old prices kept if a source fails, jumps set aside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from gpubench.errors import MisuseError, StorageError
from gpubench.models import Pricing
from gpubench.offers.listing import list_offers
from gpubench.offers.refresh import refresh
from gpubench.offers.request import OffersRequest
from gpubench.offers.snapshot import embedded_offers, load_offers
from gpubench.offers.sources import (
    Complete,
    Quote,
    SourceError,
    SourceSkippedError,
    all_sources,
    select_sources,
)

DAYS = [datetime(2026, 11, day, 12, tzinfo=UTC) for day in (17, 18, 19)]


class Fixed:
    """A source that returns these quotes, or fails."""

    def __init__(self, name, *quotes, error=None, provider=None):
        self.name, self.provider, self.quotes, self.error = name, provider or name, quotes, error

    def fetch(self, transport):
        yield from self.quotes
        if self.error:
            raise self.error


def quote(price, **change):
    fields = {
        "provider": "acme",
        "instance": "big.1",
        "region": "moon-1",
        "gpu": "T4",
        "gpu_count": 1,
        "source": "acme API",
    }
    return Quote(**(fields | {"price": price} | change))


def run(tmp_path, day, *sources, **options):
    return refresh(sources, None, results=tmp_path, now=DAYS[day], **options)


def price(tmp_path, **wanted):
    wanted = {"provider": "acme", "instance": "big.1", "pricing": Pricing.ON_DEMAND} | wanted
    found = [o for o in load_offers(tmp_path).offers if all(getattr(o, k) == v for k, v in wanted.items())]
    return [(float(o.price_usd_per_hour), o.price_date) for o in found]


def test_a_refresh_writes_one_dated_file_that_loading_reads(tmp_path):
    done = run(tmp_path, 0, Fixed("acme", quote(0.5)))
    assert done.path == tmp_path / "offers" / "20261117T120000Z.json"
    assert price(tmp_path) == [(0.5, "2026-11-17")]
    assert [p.name for p in (tmp_path / "offers").iterdir()] == ["20261117T120000Z.json"]


def test_a_source_that_fails_keeps_its_old_prices_with_their_old_dates_and_the_others_continue(tmp_path):
    run(tmp_path, 0, Fixed("acme", quote(0.5)), Fixed("other", quote(0.7, provider="other")))
    failing = Fixed("acme", quote(0.6), error=SourceError("acme is down"))
    done = run(tmp_path, 1, failing, Fixed("other", quote(0.8, provider="other")))
    assert done.named("failed") == ("acme",)
    assert price(tmp_path) == [(0.5, "2026-11-17")]
    assert price(tmp_path, provider="other") == [(0.8, "2026-11-18")]
    (note,) = load_offers(tmp_path).notes
    assert "acme is down" in note
    assert "2026-11-17" in note


def test_a_snapshot_that_cannot_be_read_is_named_by_the_refresh_that_carries_over_an_older_one(tmp_path):
    run(tmp_path, 0, Fixed("acme", quote(0.5)))
    newest = run(tmp_path, 1, Fixed("acme", quote(0.6))).path
    newest.write_text("{")
    done = run(tmp_path, 2, Fixed("other", quote(0.7, provider="other")))
    assert price(tmp_path) == [(0.5, "2026-11-17")]
    (note,) = done.notes
    assert newest.name in note
    assert "the previous snapshot" in note


def test_without_an_answer_nothing_is_written(tmp_path):
    failing = Fixed("acme", error=SourceError("no network"))
    done = run(tmp_path, 0, failing, Fixed("b", error=SourceSkippedError("no key")))
    assert done.path is None
    assert not (tmp_path / "offers").exists()
    assert list(load_offers(tmp_path).offers) == list(embedded_offers().offers)


@pytest.mark.parametrize(("jump", "kept"), [(5.1, False), (4.9, True), (0.19, False), (0.21, True)])
def test_a_jump_from_the_last_price_is_set_aside_and_the_old_price_stays(tmp_path, jump, kept):
    run(tmp_path, 0, Fixed("acme", quote(1.0)))
    done = run(tmp_path, 1, Fixed("acme", quote(jump)))
    assert price(tmp_path) == [(jump, "2026-11-18") if kept else (1.0, "2026-11-17")]
    assert len(done.set_aside) == (not kept)
    if not kept:
        assert "accept-outliers" in done.set_aside[0].reason
        run(tmp_path, 2, Fixed("acme", quote(jump)), accept_outliers=True)
        assert price(tmp_path) == [(jump, "2026-11-19")]


def test_a_bid_floor_mistaken_for_a_price_is_set_aside(tmp_path):
    of_runpod = {"provider": "runpod", "region": None, "kind": "marketplace"}
    done = run(tmp_path, 0, Fixed("runpod", quote(0.01, instance="B200", gpu="NVIDIA B200", **of_runpod)))
    assert price(tmp_path, provider="runpod", instance="B200") == [(5.98, "2026-10-10")]
    assert "times the $5.98" in done.set_aside[0].reason
    assert done.set_aside[0].reason.startswith("on demand price ")


def test_a_second_price_of_a_source_is_set_aside_with_a_readable_reason(tmp_path):
    done = run(tmp_path, 0, Fixed("acme", quote(1.0), quote(1.1)))
    assert price(tmp_path) == [(1.0, "2026-11-17")]
    assert done.set_aside[0].reason.startswith("a second on-demand price of this instance in this region")


def test_price_far_from_other_providers_is_kept_but_not_ranked(tmp_path):
    run(tmp_path, 0, Fixed("acme", quote(20.0)))
    assert price(tmp_path) == [(20.0, "2026-11-17")]
    offers = load_offers(tmp_path).offers
    (row,) = list_offers(offers, OffersRequest(providers=("acme",)), DAYS[0].date())
    assert "times the median" in row.not_ranked_because


def test_a_marketplace_offer_replaces_the_older_one_of_its_gpu_under_any_name(tmp_path):
    of_runpod = {"provider": "runpod", "region": None, "kind": "marketplace"}
    fresh = quote(1.25, instance="A100 PCIe", gpu="NVIDIA A100 80GB PCIe", **of_runpod)
    run(tmp_path, 0, Fixed("runpod", fresh))
    a100 = ("runpod", "nvidia-a100-pcie-80gb", "community")
    runpod = [o for o in load_offers(tmp_path).offers if (o.provider, o.gpu_key, o.seller) == a100]
    assert [(o.price_usd_per_hour, o.price_date) for o in runpod] == [(Decimal("1.25"), "2026-11-17")]


def test_a_clouds_own_answer_overrides_a_collected_catalog(tmp_path):
    direct = Fixed("acme", quote(0.5))
    collected = Fixed("gpuhunt-acme", quote(0.4), provider="acme")
    run(tmp_path, 0, direct, collected)
    assert price(tmp_path) == [(0.5, "2026-11-17")]


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "offers").write_text("a file where the folder belongs")
    with pytest.raises(StorageError, match="--results"):
        run(tmp_path, 0, Fixed("acme", quote(0.5)))


def test_a_failed_write_leaves_the_old_snapshot_intact(tmp_path, monkeypatch):
    run(tmp_path, 0, Fixed("acme", quote(0.5)))

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        run(tmp_path, 1, Fixed("acme", quote(0.6)))
    assert price(tmp_path) == [(0.5, "2026-11-17")]
    assert len(list((tmp_path / "offers").iterdir())) == 1


def test_a_source_of_many_slow_answers_is_stopped_and_the_next_one_is_queried(tmp_path):
    now = [0.0]

    class Slow:
        name = provider = "slow"

        def fetch(self, transport):
            for _ in range(1000):
                transport("https://slow.example/page")
                yield quote(0.5, provider="slow")

    def transport(url, **_kwargs):
        now[0] += 59.0
        return b""

    done = refresh(
        [Slow(), Fixed("acme", quote(0.5))], transport, results=tmp_path, now=DAYS[0], clock=lambda: now[0]
    )
    assert "took over 600 s" in done.sources["slow"].reason
    assert now[0] < 700
    assert done.named("ok") == ("acme",)


def test_float_price_is_stored_as_exact_decimal(tmp_path):
    run(tmp_path, 0, Fixed("acme", quote(0.1 + 0.2)))
    (offer,) = [o for o in load_offers(tmp_path).offers if o.provider == "acme"]
    assert offer.price_usd_per_hour == Decimal("0.3")


# --- nothing is lost, and retired offers leave --------------------------------------------------------------

ALL = Complete(pricings=(Pricing.ON_DEMAND,))
SIZES = [quote(0.5 * n, instance=f"big.{n}") for n in (1, 2, 3, 4)]


def instances(tmp_path, provider="acme"):
    return {o.instance: o.price_date for o in load_offers(tmp_path).offers if o.provider == provider}


@pytest.mark.parametrize(
    "answer",
    [
        (),
        (ALL,),
        (quote(0), quote(-1, instance="big.2"), quote(float("nan"), instance="big.3"), ALL),
        (quote(0.5, gpu="H900"), ALL),
        (quote(0.0101), quote(500.0, instance="big.2"), ALL),
    ],
    ids=["empty", "empty-complete", "no-price", "no-gpu", "all-jumped"],
)
def test_an_answer_without_one_usable_price_after_a_full_one_is_a_failure_and_keeps_the_prices(
    tmp_path, answer
):
    run(tmp_path, 0, Fixed("acme", *SIZES, ALL), Fixed("other", quote(0.7, provider="other")))
    done = run(tmp_path, 1, Fixed("acme", *answer), Fixed("other", quote(0.8, provider="other")))
    assert done.named("failed") == ("acme",)
    assert "no usable price" in done.sources["acme"].reason
    assert instances(tmp_path) == dict.fromkeys((f"big.{n}" for n in (1, 2, 3, 4)), "2026-11-17")
    assert instances(tmp_path, "other") == {"big.1": "2026-11-18"}


def test_a_complete_answer_retires_offers_that_it_no_longer_lists(tmp_path):
    run(tmp_path, 0, Fixed("acme", *SIZES, ALL))
    done = run(tmp_path, 1, Fixed("acme", *SIZES[:3], ALL))
    assert done.sources["acme"].retired == 1
    assert instances(tmp_path) == dict.fromkeys(("big.1", "big.2", "big.3"), "2026-11-18")


def test_an_answer_that_is_not_complete_retires_nothing(tmp_path):
    run(tmp_path, 0, Fixed("acme", *SIZES, ALL))
    run(tmp_path, 1, Fixed("acme", *SIZES[:3]))
    assert instances(tmp_path) == {f"big.{n}": "2026-11-18" if n < 4 else "2026-11-17" for n in (1, 2, 3, 4)}


def test_an_answer_that_shrinks_to_under_half_does_not_count_as_complete(tmp_path):
    run(tmp_path, 0, Fixed("acme", *SIZES, ALL))
    done = run(tmp_path, 1, Fixed("acme", SIZES[0], ALL))
    assert done.named("ok") == ("acme",)
    assert "incomplete" in done.sources["acme"].reason
    assert instances(tmp_path) == {f"big.{n}": "2026-11-18" if n < 2 else "2026-11-17" for n in (1, 2, 3, 4)}


@pytest.mark.parametrize("price_", [0, -3, "soon", float("inf"), 70.0])
def test_an_offer_with_an_unusable_price_keeps_its_old_one(tmp_path, price_):
    run(tmp_path, 0, Fixed("acme", *SIZES, ALL))
    run(tmp_path, 1, Fixed("acme", *SIZES[:3], quote(price_, instance="big.4"), ALL))
    assert instances(tmp_path)["big.4"] == "2026-11-17"


def test_a_failure_after_a_complete_answer_retires_and_restores_nothing(tmp_path):
    run(tmp_path, 0, Fixed("acme", *SIZES, ALL))
    run(tmp_path, 1, Fixed("acme", *SIZES[:3], ALL))
    run(
        tmp_path,
        2,
        Fixed("acme", SIZES[0], error=SourceError("cut off"), provider="acme"),
        Fixed("b", quote(1.0, provider="b")),
    )
    assert set(instances(tmp_path)) == {"big.1", "big.2", "big.3"}


def _runpod(*gone, **change):
    """Return quotes at the shipped prices of all RunPod offers, except those of the GPUs that are gone."""
    shipped = [o for o in embedded_offers().offers if o.provider == "runpod" and o.gpu_key not in gone]
    return [
        quote(
            str(o.price_usd_per_hour),
            **{"provider": "runpod", "region": o.region, "kind": o.kind, "seller": o.seller}
            | {"instance": o.instance, "gpu": o.gpu_key}
            | change,
        )
        for o in shipped
    ]


def test_a_complete_answer_retires_shipped_prices_of_its_provider_and_no_others(tmp_path):
    done = run(tmp_path, 0, Fixed("runpod", *_runpod("nvidia-l4-24gb"), ALL))
    assert done.sources["runpod"].retired == 2
    table = load_offers(tmp_path)
    assert [(o.gpu_key, o.seller) for o in table.retired] == [
        ("nvidia-l4-24gb", "community"),
        ("nvidia-l4-24gb", "secure"),
    ]
    assert not any(o.provider == "runpod" and o.gpu_key == "nvidia-l4-24gb" for o in table.offers)
    others = {o.provider for o in embedded_offers().offers} - {"runpod"}
    assert {o.provider for o in table.offers} >= others
    assert len(table.offers) == len(embedded_offers().offers) - 2


def test_a_claim_for_one_gpu_or_pricing_does_not_affect_others(tmp_path):
    run(
        tmp_path,
        0,
        Fixed("acme", *SIZES, quote(1.0, instance="l4", gpu="L4"), quote(0.2, pricing=Pricing.SPOT)),
    )
    claim = Complete(pricings=(Pricing.ON_DEMAND,), gpu="T4")
    run(tmp_path, 1, Fixed("acme", *SIZES[:3], claim))
    days = [
        (o.instance, o.pricing, o.price_date) for o in load_offers(tmp_path).offers if o.provider == "acme"
    ]
    assert ("big.4", Pricing.ON_DEMAND, "2026-11-17") not in days
    assert ("l4", Pricing.ON_DEMAND, "2026-11-17") in days
    assert ("big.1", Pricing.SPOT, "2026-11-17") in days


def test_collected_catalog_retires_only_its_own_rows(tmp_path):
    mine = Complete(pricings=(Pricing.ON_DEMAND,), whole_provider=False)
    run(tmp_path, 0, Fixed("gpuhunt-runpod", *SIZES, mine, provider="acme"))
    run(tmp_path, 1, Fixed("acme", quote(9.0, instance="direct")))
    run(tmp_path, 2, Fixed("gpuhunt-runpod", *SIZES[:2], mine, provider="acme"))
    assert set(instances(tmp_path)) == {"big.1", "big.2", "direct"}


def test_an_answer_does_not_retire_vendors_that_it_never_lists(tmp_path):
    run(tmp_path, 0, Fixed("acme", *SIZES, quote(9.0, instance="gaudi", gpu="Gaudi HL-205"), ALL))
    run(tmp_path, 1, Fixed("acme", *SIZES, ALL))
    assert "gaudi" in instances(tmp_path)


def test_an_older_answer_does_not_retire_a_price_of_a_later_day(tmp_path):
    run(tmp_path, 0, Fixed("acme", *SIZES, ALL))
    run(tmp_path, 1, Fixed("gpuhunt-x", quote(5.0, instance="new"), provider="acme"))
    assert "new" in instances(tmp_path)


def test_sources_are_chosen_by_name_or_cloud():
    sources = all_sources(pytest.fail)
    names = [s.name for s in sources]
    assert {"azure", "vast", "runpod", "lambda", "aws", "gpuhunt-gcp"} <= set(names)
    assert [s.name for s in select_sources(sources, ["gcp"])] == ["gpuhunt-gcp"]
    assert [s.name for s in select_sources(sources, ["AWS", "vast"])] == ["gpuhunt-aws", "aws", "vast"]
    assert select_sources(sources, []) == sources
    with pytest.raises(MisuseError, match=r"'vats'; .*: vast"):
        select_sources(sources, ["vats"])


NO_NETWORK = """
import socket, sys
def closed(*_a, **_k): raise OSError(101, "Network is unreachable")
socket.socket.connect = closed
socket.getaddrinfo = closed
from gpubench.cli.app import main
main()
"""


def test_without_a_network_refresh_says_so_and_the_known_prices_stay(tmp_path):
    environment = os.environ | {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/none",
        "AWS_SHARED_CREDENTIALS_FILE": "/none",
    }
    done = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, "offers", "refresh", "--results", str(tmp_path), "--json"],
        capture_output=True, text=True, check=False, env=environment, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["path"] is None
    assert document["sources"]["azure"]["state"] == "failed"
    assert "not reachable" in document["sources"]["azure"]["reason"]
    assert document["sources"]["lambda"]["state"] == "skipped"
    assert "previous prices" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "offers").exists()
    listed = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, "offers", "list", "--results", str(tmp_path)], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert listed.returncode == 0
    assert "days" in listed.stdout


def test_listing_imports_no_network_library():
    code = "import sys; sys.argv=['gpubench','offers','list','--json']\nfrom gpubench.cli.app import main\ntry: main()\nexcept SystemExit: pass\nprint([m for m in ('boto3','botocore','gpuhunt','requests','urllib3') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("[]")


# --- an answer that names nothing is unknown ----------------------------------------------------------------

ONE_GPU = [Complete(pricings=(Pricing.ON_DEMAND,), gpu=gpu) for gpu in ("T4", "L4")]
TWO_GPUS = [*SIZES, *(quote(0.9 * n, instance=f"l4.{n}", gpu="L4") for n in (1, 2))]


def test_a_model_missing_from_a_complete_answer_is_unknown_and_its_prices_stay(tmp_path):
    """The model may be retired or renamed: the answer cannot tell, and no GPU may leave the table silently."""
    run(tmp_path, 0, Fixed("acme", *TWO_GPUS, *ONE_GPU))
    done = run(tmp_path, 1, Fixed("acme", *SIZES, *ONE_GPU))
    assert "2 known offers of L4:" in done.sources["acme"].reason
    assert done.sources["acme"].retired == 0
    assert {name: day for name, day in instances(tmp_path).items() if "l4" in name} == {
        "l4.1": "2026-11-17",
        "l4.2": "2026-11-17",
    }
    run(tmp_path, 2, Fixed("acme", *SIZES[:2], TWO_GPUS[-1], *ONE_GPU))
    assert set(instances(tmp_path)) == {"big.1", "big.2", "l4.2"}


def test_a_pricing_that_a_complete_answer_never_names_is_unknown(tmp_path):
    spot = [quote(0.2 * n, instance=f"big.{n}", pricing=Pricing.SPOT) for n in (1, 2)]
    both = Complete(pricings=(Pricing.ON_DEMAND, Pricing.SPOT))
    run(tmp_path, 0, Fixed("acme", *SIZES, *spot, both))
    done = run(tmp_path, 1, Fixed("acme", *SIZES, both))
    assert "2 known offers of spot:" in done.sources["acme"].reason
    assert price(tmp_path, pricing=Pricing.SPOT) == [(0.2, "2026-11-17")]


def test_a_retired_offer_stays_retired_while_the_next_answer_is_unknown(tmp_path):
    l4s = [o for o in embedded_offers().offers if (o.provider, o.gpu_key) == ("runpod", "nvidia-l4-24gb")]
    assert l4s
    fields = {"provider": "runpod", "region": None, "gpu": "L4", "kind": "marketplace", "gpu_count": 8}
    other = quote(0.3, **fields | {"gpu": "T4"})
    claims = (Complete(pricings=(Pricing.ON_DEMAND,), gpu="L4"),)
    run(tmp_path, 0, Fixed("runpod", quote(2.4, instance="8x L4", **fields), other, *claims))
    for day in (1, 2):
        run(tmp_path, day, Fixed("runpod", other, *claims))
        found = {
            (o.instance, o.price_date)
            for o in load_offers(tmp_path).offers
            if (o.provider, o.gpu_key) == ("runpod", "nvidia-l4-24gb")
        }
        assert found == {("8x L4", "2026-11-17")}
