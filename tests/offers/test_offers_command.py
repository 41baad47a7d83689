"""`gpubench offers` as a user types it: filters, ages, JSON, and one line for a mistake."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import get_args

import pytest
from command import here

from gpubench import rank
from gpubench.cli.verbs.offers import list_
from gpubench.models.ranking import Source
from gpubench.offers import quotes
from gpubench.offers.dates import freshness
from gpubench.offers.refresh import import_offers
from gpubench.offers.request import OffersRequest
from gpubench.offers.snapshot import load_offers
from gpubench.offers.table import NOT_RANKED


@pytest.fixture
def listed(gpubench):
    def run(*arguments: object) -> list[dict]:
        done = gpubench("list", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["offers"]

    return run


@pytest.mark.parametrize(
    ("options", "holds"),
    [
        (("--provider", "aws"), lambda o: o["provider"] == "aws"),
        (("--provider", "AWS", "--region", "US-EAST-1"), lambda o: o["region"] == "us-east-1"),
        (("--gpu", "h100"), lambda o: o["gpu_key"].startswith("nvidia-h100-")),
        (("--gpu", "NVIDIA Tesla T4"), lambda o: o["gpu_key"] == "nvidia-tesla-t4-16gb"),
        (("--gpu", "2xL4"), lambda o: (o["gpu_key"], o["gpu_count"]) == ("nvidia-l4-24gb", 2)),
        (("--seller", "cloud"), lambda o: o["seller"] == "cloud"),
        (("--seller", "community"), lambda o: (o["seller"], o["kind"]) == ("community", "marketplace")),
        (("--region", "any"), lambda o: o["region"] is None),
    ],
)
def test_each_filter_keeps_only_what_it_names(listed, options, holds):
    rows = listed(*options)
    assert rows
    assert all(holds(row) for row in rows)


def test_every_row_shows_date_age_and_freshness_and_the_cheapest_comes_first(listed):
    rows = listed()
    assert all(row["price_date"] and row["price_age_days"] >= 0 and row["source"] for row in rows)
    for row in rows:
        assert row["freshness"] == freshness(row["price_age_days"])
    prices = [row["usd_per_gpu_hour"] for row in rows if row["kind"] != "free"]
    assert prices == sorted(prices)
    assert [row["kind"] for row in rows[len(prices) :]] == ["free", "free"]


def test_the_cheapest_of_thousands_are_shown_with_the_total(gpubench, listed, write_table):
    some = ({"instance": f"i{n}", "on_demand_usd_per_h": f"{1 + n / 1000:.3f}"} for n in range(2_100))
    table = write_table(*({"provider": "acme", "spot_usd_per_h": ""} | row for row in some))
    given = ("--offers", table, "--provider", "acme")
    done = gpubench("list", *given)
    assert "the 2,000 cheapest of 2,100" in done.stderr
    assert done.stdout.count("acme") == 2_000
    assert "$1.00" in done.stdout
    assert "$3.05" not in done.stdout
    assert len(listed(*given)) == 2_100


@pytest.mark.parametrize(("day", "word"), [("1970-01-01", "later than"), ("2036-06-01", "days old")])
def test_a_clock_far_from_every_price_date_is_reported_with_the_list(
    tmp_path, monkeypatch, capsys, day, word
):
    monkeypatch.setattr("gpubench.today.now", lambda: datetime.fromisoformat(f"{day}T12:00:00+00:00"))
    asked = OffersRequest(results=tmp_path, gpus=("h100",))
    list_(asked, as_json=False)
    shown = capsys.readouterr()
    (said,) = [line for line in (shown.out + shown.err).splitlines() if "clock" in line]
    assert word in said
    assert day in said
    list_(asked, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["clock"] == said
    is_before = day < "2000"
    assert (document["as_of"] == day) != is_before
    assert any(offer["price_age_days"] > 0 for offer in document["offers"])


def test_hardware_that_is_never_ranked_says_why(gpubench, listed):
    reasons = {row["kind"]: row["not_ranked_because"] for row in listed()}
    assert reasons["vm"] is None
    assert {kind: reasons[kind] for kind in NOT_RANKED} == NOT_RANKED
    shown = gpubench("list").stdout
    assert " [1] " in shown
    assert "[1] not ranked:" in shown


def test_the_table_marks_old_prices_and_says_what_was_set_aside(gpubench, write_table, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    path = write_table(
        {"instance": "mine"}, {"on_demand_usd_per_h": "0"}, {"provider": "a[b]c", "instance": "[/x]"}
    )
    done = gpubench("list", "--offers", path)
    assert done.returncode == 0
    assert "2026, day unknown" in done.stdout
    assert "not current" in done.stdout
    assert "[/x]" in done.stdout
    assert "set aside: 1\n" in done.stderr
    assert "price 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("offers", "list", "--gpu", "h100"), "set aside: 4"),
        (("rank", "resnet50", "--json"), "prices.csv: 4 rows, including "),
        (("rank", "resnet50", "--json", "--buy"), "prices.csv: 4 rows, including "),
        (("report", "--workload", "resnet50"), "prices.csv: 4 rows, including "),
    ],
)
def test_rows_without_a_usable_provider_are_set_aside_and_the_rest_counts(
    arguments, said, write_table, tmp_path
):
    one = {"gpu_key": "H100 SXM", "gpu_count": "8", "price_date": "2026-11-14", "on_demand_usd_per_h": "1"}
    path = write_table(
        one | {"provider": "goodacme"}, *(one | {"provider": cell} for cell in ("", "=cmd", "@acme", "-acme"))
    )
    output = tmp_path / "report.md"
    more = ("--output", output) if arguments[0] == "report" else ()
    done = here(*arguments, "--offers", path, "--results", tmp_path, *more)
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr + (output.read_text(encoding="utf-8") if more else "")
    assert "goodacme" in shown
    assert said in shown
    assert "prices.csv:3 big.1 " in shown, "the first row that is set aside is named by its line"


def test_an_unconfirmed_price_is_marked_unless_it_is_the_users_own(gpubench, write_table, tmp_path):
    cent = {"provider": "feed", "gpu_key": "nvidia-b300-sxm-270gb", "on_demand_usd_per_h": "0.01"}
    table = write_table(cent)
    assert gpubench("import", table, "--results", tmp_path).returncode == 0
    for option in (("--provider", "feed"), ("--gpu", "b300")):
        done = gpubench("list", "--json", *option, "--results", tmp_path)
        (row,) = [o for o in json.loads(done.stdout)["offers"] if o["provider"] == "feed"]
        assert " 8 other providers" in row["not_ranked_because"]
        assert "accept-outliers" in row["not_ranked_because"]
    shown = gpubench("list", "--gpu", "b300", "--results", tmp_path).stdout
    assert "feed [1]" in shown
    own = json.loads(gpubench("list", "--json", "--provider", "feed", "--offers", table).stdout)["offers"]
    assert [row["not_ranked_because"] for row in own] == [None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--gpu", "banana"), "unknown GPU 'banana'; nearest known: "),
        (("list", "--provider", "lambdaa"), "unknown provider 'lambdaa'; nearest known: lambda"),
        (("list", "--region", "eu-wset"), "unknown region 'eu-wset'; nearest known: eu-west"),
        (
            ("list", "--kind", "free"),
            "no longer has --kind: filter the rows of gpubench offers list --json",
        ),
        (("list", "--offers", "/nowhere.csv"), "cannot read /nowhere.csv"),
        (("list", "--seller", "nobody"), "--seller 'nobody' is unknown"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(gpubench, arguments, message):
    done = gpubench(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


# --- a table without a usable row ---------------------------------------------------------------------------


def _rows(count, **change):
    return [{"instance": f"i{n}"} | change for n in range(count)]


@pytest.mark.parametrize(
    "verb",
    [
        ("offers", "list"),
        ("rank", "resnet50", "--json"),
        ("report", "--workload", "resnet50"),
        ("offers", "import"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "gift"}, "kind 'gift'"),
        ({"price_date": "2062-01-01"}, "is in the future"),
    ],
)
def test_a_table_without_a_usable_row_is_a_mistake_and_other_prices_do_not_replace_it(
    verb, change, reason, write_table, tmp_path
):
    path = write_table(*_rows(3, **change))
    given = (path,) if verb[-1] == "import" else ("--offers", path)
    done = here(*verb, *given, "--results", tmp_path / "results", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout
    for words in ("prices.csv", "3 ", "prices.csv:2 ", reason):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ({"gpu_key": "V100 SXM2 32GB", "kind": "cloud"}, "V100 SXM2 32GB at acme: torch .* no kernels"),
        ({"kind": "historic"}, "T4 at acme: "),
        ({"kind": "free", "on_demand_usd_per_h": "0"}, "T4 at acme: free of charge"),
    ],
)
def test_a_table_of_prices_that_cannot_rank_says_why(left_out, said, write_table, tmp_path):
    path = write_table(left_out, left_out | {"instance": "big.2"})
    asked = {"results": tmp_path, "offers": path, "draws": 50, "limit": 1}
    note, *_ = rank("resnet50", **asked).said("caution")
    assert re.match(f"No price from prices.csv is ranked: {said}", note)
    used = write_table(left_out, {"instance": "big.2"})
    assert "No price from" not in rank("resnet50", **asked | {"offers": used}).verdict


def test_a_table_without_rows_is_a_mistake_too(gpubench, write_table):
    done = gpubench("list", "--offers", write_table())
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no usable offer" in done.stderr


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        *(
            (word, "vm")
            for word in ("cloud", "Cloud", " VM ", "virtual machine", "instance", "bare-metal", "")
        ),
        *(
            (word, "marketplace")
            for word in ("Marketplace", "market place", "P2P", "peer to peer", "community")
        ),
        *((word, "vm") for word in ("instances", "VMs", "Virtual Machines", "clouds", "nodes")),
        *((word, "marketplace") for word in ("hosts", "marketplaces")),
        *((word, "attach-fee") for word in ("attach_fee", "Attach Fee", "attach fees")),
        *(("serverless", "serverless"), ("server-less", "serverless"), ("HISTORIC", "historic")),
    ],
)
def test_a_kind_may_be_written_in_common_spellings(write_table, tmp_path, written, kind):
    path = write_table({"kind": written})
    offers = [offer for offer in load_offers(tmp_path, path).offers if offer.provider == "acme"]
    assert [offer.kind for offer in offers] == [kind]
    import_offers(path, results=tmp_path)
    offers = [offer for offer in load_offers(tmp_path).offers if offer.provider == "acme"]
    assert [offer.kind for offer in offers] == [kind]


def test_every_ranking_source_maps_to_a_table_kind():
    kinds = {quotes.read_kind(source) for source in get_args(Source) if source != "own"}
    assert kinds == {"vm", "marketplace"}


def test_a_list_of_offers_says_that_availability_was_not_checked():
    done = here("offers", "list", "--gpu", "l4")
    assert done.returncode == 0
    assert "Availability was not checked." in done.stdout + done.stderr
