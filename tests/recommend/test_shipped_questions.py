"""Buyers' questions to the command itself, on the shipped prices; each figure is recomputed here from the tables."""

from __future__ import annotations

import csv
import json
import math
import statistics
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from click.testing import CliRunner
from command import settings

import gpubench
from gpubench.cli.app import app
from gpubench.errors import MisuseError
from gpubench.models import Offer, Pricing, Ranking
from gpubench.offers.table import UNSTATED_NOTE
from gpubench.specs import load_specs

from .test_rank_cli import assert_in_order

AS_OF = date(2026, 11, 20)


@cache
def ask(*words: str, **given: Any) -> dict[str, Any]:
    """Return the JSON answer to a question under these settings."""
    with settings(**given):
        done = CliRunner().invoke(app, ["rank", *words, "--as-of", AS_OF.isoformat(), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@cache
def answer(*words: str, **given: Any) -> Ranking:
    """Return the ranking behind a JSON answer, for fields that the document lacks."""
    kept: list[Ranking] = []
    with settings(**given), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpubench.recommend.rank.document", lambda ranking, _: kept.append(ranking) or {})
        done = CliRunner().invoke(app, ["rank", *words, "--as-of", AS_OF.isoformat(), "--json"])
    assert done.exit_code == 0, done.output
    (ranking,) = kept
    return ranking


@cache
def table(name: str) -> list[dict[str, str]]:
    """Return the rows of a shipped table."""
    with (files("gpubench") / "data" / name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def expected(offer: Offer) -> float:
    """Return the expected price from the table alone: a list price, or a host's price on its way to the median.

    RunPod sets one price per GPU for all its hosts. The median is taken of the logarithms of the asking prices.
    If clouds list the GPU, 0.56 of their median counts as half a listing more.
    """
    listed = float(offer.price_usd_per_hour)
    if offer.kind != "marketplace" or offer.provider == "runpod":
        return listed
    newest = {}
    for each in sorted(table("offers.csv"), key=lambda row: f"{row['price_date']}-01-01"):
        newest[tuple(each[name] for name in ("provider", "instance", "region", "pricing", "term_years"))] = (
            each
        )
    alike = [
        (each, math.log(float(each["price_usd_per_hour"]) / int(each["gpu_count"])))
        for each in newest.values()
        if (each["pricing"], each["gpu_key"]) == ("on_demand", offer.gpu_key)
        and float(each["price_usd_per_hour"])
    ]
    asks = [(each, log) for each, log in alike if each["kind"] == "marketplace" or each["ask_count"]]
    listed_usd, clouds = {}, set()
    for each, log in alike:
        if each["kind"] in {"vm", "serverless"}:
            listed_usd.setdefault(each["provider"], []).append(math.exp(log))
            clouds |= {each["provider"]} if each["seller"] in {"", "cloud"} else set()
    voices = {name: statistics.median(each) for name, each in listed_usd.items()}
    middle, own = statistics.median(log for _, log in asks), 1.0
    borne_out = [
        usd  # one far above the other list prices does not count
        for name, usd in voices.items()
        if name in clouds
        and usd <= 5 * statistics.median([v for n, v in voices.items() if n != name] or [usd])
    ]
    if borne_out:
        suggested = math.log(0.56 * statistics.median(borne_out))
        hosts = sum(int(each["ask_count"] or 1) for each, _ in asks)
        own = hosts / (hosts + 0.5)
        middle = own * middle + (1 - own) * suggested
    middle = math.exp(middle) * offer.gpu_count
    day = date.fromisoformat(offer.price_date if len(offer.price_date) == 10 else f"{offer.price_date}-01")
    kept = own * 0.5 ** ((AS_OF - day).days / 30)
    return middle * (listed / middle) ** kept


def test_the_cheapest_answer_without_named_gpus():
    """An RTX 3090 at Vast was listed at 0.130 on 2026-10-04; the median is 0.220.

    After 47 days 0.5 ^ (47 / 30) = 0.338 of the difference remains: 0.220 x (0.130 / 0.220) ^ 0.338 = 0.184 USD/h.
    At 0.53 of an A100's speed, 24 A100 hours take 24 / 0.53 + 1/6 h.
    """
    dollars = ("--hour-worth", "0", "--gpu", "rtx 3090")
    row, in_memory = ask(*dollars)["rows"][0], answer(*dollars).rows[0]
    assert (row["provider"], row["gpu_key"]) == ("vast", "nvidia-geforce-rtx-3090-24gb")
    assert row["price_usd_per_hour"] == pytest.approx(0.1842, abs=1e-4)
    assert row["hours"] == pytest.approx(24 / in_memory.score.value + 1 / 6)
    assert row["cost_usd"] == pytest.approx(row["hours"] * 0.1842, rel=1e-3)
    assert answer(*dollars).verdict.startswith("Cheapest · Sensible: 1x RTX 3090, vast (private host): ")


@pytest.mark.parametrize("words", [(), ("resnet50", "--spot")], ids=["nothing named", "spot"])
def test_every_row_is_at_the_price_that_the_table_gives(words):
    on_demand = [row for row in answer(*words).rows if row.offer.pricing is Pricing.ON_DEMAND]
    assert len(on_demand) > 200
    for row in on_demand:
        usd = row.usd_per_hour
        assert usd.value == pytest.approx(expected(row.offer), rel=1e-3)
        assert usd.low <= usd.value <= usd.high


def test_the_cost_of_ninety_epochs_of_imagenet():
    """90 x 1,281,167 images at the rate of the row, and ten minutes before the first step."""
    for row in ask("resnet50", "--spot")["rows"]:
        hours = 90 * 1_281_167 / row["samples_per_s"] / 3600 + 1 / 6
        assert row["hours"] == pytest.approx(hours)
        assert row["cost_usd"] == pytest.approx(hours * row["price_usd_per_hour"], rel=1e-3)


def test_the_cost_of_ten_million_tokens():
    row = ask("llama_8b_lora")["rows"][0]
    assert row["hours"] == pytest.approx(1e7 / 2048 / row["samples_per_s"] / 3600 + 1 / 6)


def test_no_row_is_faster_than_its_vcpus_prepare_photographs():
    """At 150 per second each; if the number of vCPUs is unknown, and for tokens, the GPUs set the speed."""
    rows = ask("resnet50")["rows"][: len(answer("resnet50").rows)]
    kept = [
        1 / 1.015077967737538767 if row["seller"] == "community" else 1 for row in rows
    ]  # hosts fail: see test_economics.py
    fed = [150 * row["vcpus"] * k if row["vcpus"] else math.inf for row, k in zip(rows, kept, strict=True)]
    gpus = [row.gpus_samples_per_s for row in answer("resnet50").rows]
    told = [min(each) for each in zip(gpus, fed, strict=True)]
    assert [row["samples_per_s"] for row in rows] == pytest.approx(told)
    hungry = ["FEED_BOUND" in row["findings"] for row in rows]
    assert hungry == [each < takes * (1 - 1e-9) for takes, each in zip(gpus, fed, strict=True)]
    assert 10 < sum(hungry) < len(rows)
    assert_in_order(rows, "total_usd")
    assert not any("FEED_BOUND" in row["findings"] for row in ask("llama_8b_lora")["rows"])


def test_the_cheapest_answer_meets_a_budget_and_a_deadline():
    """The cheapest offer with its upper ends within both limits: the answer without limits, filtered."""
    job = ("resnet50", "--epochs", "600", "--dataset-size", "1281167")
    every, kept = ask(*job)["rows"], ask(*job, "--deadline-hours", "48", "--budget-usd", "500")["rows"]
    within = [row for row in every if row["hours_high"] <= 48 and row["cost_usd_high"] <= 500]
    assert any("FEED_BOUND" in row["findings"] for row in every if row not in within)
    assert 0 < len(within) < len(every)
    assert [(row["provider"], row["instance"], row["region"]) for row in kept] == [
        (row["provider"], row["instance"], row["region"]) for row in within
    ]


def test_sets_for_three_thousand_dollars_fit_sum_and_power_supply():
    """Cards at the dated price and a host of 1,000 USD; (cards + 150 W) within 80 % of a supply of 1,200 W."""
    prices = {
        (each["gpu_key"], each["condition"]): float(each["price_usd"]) for each in table("card_prices.csv")
    }
    gpus = {each["key"]: each for each in table("gpus.csv")}
    found = answer("--max-purchase-usd", "3000")
    assert {each.gpu_count for each in found.buy_or_rent} == {1, 2, 3}
    assert {"new", "used"} <= {each.condition for each in found.buy_or_rent}
    for each in found.buy_or_rent:
        spec = gpus[each.gpu_key]
        cards = prices[each.gpu_key, each.condition] * each.gpu_count
        host = 0 if "jetson" in each.gpu_key else 1000  # a developer kit is a whole computer
        assert each.purchase_usd == pytest.approx(cards + host)
        assert each.purchase_usd <= 3000
        assert float(spec["tdp_w"] or 0) * each.gpu_count + 150 <= 0.8 * 1200
        assert float(spec["slot_count"] or 3) * each.gpu_count <= 6
    assert any("above $3,000" in each.reason for each in found.excluded)


def test_nvlink_excludes_a_card_if_its_source_does_not_state_the_form_factor():
    """A V100 is sold with NVLink (SXM2) and without (PCIe); if the source does not say which, neither counts."""
    silent = {("verda", "1V100.6V"), ("lambda", "gpu_8x_v100")}
    named = ["--gpu", "v100,h100,rtx"]
    every = [row.offer for row in answer("--spot", *named).rows]
    assert silent <= {(each.provider, each.instance) for each in every if UNSTATED_NOTE in (each.note or "")}
    linked = ask("--spot", *named, nvlink=True)["rows"]
    assert all(load_specs()[row["gpu_key"]].is_linked for row in linked)
    assert not silent & {(row["provider"], row["instance"]) for row in linked}


def test_the_jobs_of_a_month_determine_the_number_of_machines():
    """N x hours of a job / 730 on each; if one machine cannot do them, it is excluded with the number needed."""
    found = answer("--buy", line="geforce", jobs_per_month=25)
    hours = {
        (row.offer.instance, row.offer.gpu_key, row.offer.gpu_count): row.hours.value for row in found.rows
    }
    assert hours
    for each in found.buy_or_rent:
        use = 25 * hours[each.instance, each.gpu_key, each.gpu_count] / 730
        assert each.utilization == pytest.approx(use)
        assert use <= 1
    asked = ["rank", "--buy", "--as-of", AS_OF.isoformat()]
    with settings(jobs_per_month=600), pytest.raises(MisuseError, match=r"600 jobs .* \d+ of these machines"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_the_command_that_refreshes_is_named_only_for_those_it_reads():
    """No source reads the prices of Lium; one reads those of Azure."""
    notes = answer("resnet50", "--count", "1", "--sort", "time").said("note")
    (aged,) = [note for note in notes if "fetches today's from" in note]
    read = aged.partition("fetches today's from ")[2].removesuffix(".")
    assert "azure" in read.split(", ")
    assert "lium" not in read
    assert [note for note in notes if "own pages" in note]
    lium = ask("resnet50", "--provider", "lium")
    assert not any("offers refresh" in said["text"] for said in lium["sentences"])


def test_the_assumptions_of_owning_are_listed_next_to_rent():
    """Host, power, life, resale and tariff are our assumptions until the user gives them."""

    def assumed(**given):
        return " ".join(
            note for note in answer("resnet50", **given).said("note") if note.startswith("Owning assumes")
        )

    for words in (
        "a desktop PC for $1,000 as the host",
        "a life of 3 years",
        "resale at 30 % of the price (15 to 50 %)",
        "per kWh",
        "150 W",
    ):
        assert words in assumed()
    assert "a life" not in assumed(years=3)
    assert "per kWh" not in assumed(tariff=0.2)


def test_purchase_answer_lists_the_assumptions_behind_the_compared_rent():
    """The rival is a host's old listing, at the price expected from an assumed half-life."""
    notes = [said["text"] for said in ask("--buy")["sentences"] if said["kind"] == "note"]
    assert any("a host's asking price drifts toward the median" in note for note in notes)
    assert any("may be stale (over 30 days old)" in note for note in notes)


def test_a_wider_choice_never_costs_more():
    """The first row is the best of its offers, so with more offers it is never worse, whatever the prices are."""

    def least(*words, **given):
        rows = ask(*words, **given)["rows"]
        assert_in_order(rows, "total_usd")
        return rows[0]["total_usd"]

    assert least("--spot") <= least()
    assert least("--spot") <= least("--spot", nvlink=True)
    assert least("resnet50", "--spot")


def test_a_filter_changes_no_figure_of_remaining_offers():
    """Chances stay too if the excluded offers could not have led, because each GPU has its own 2,000 draws."""
    every = answer("--count", "8", "--gpu", "tesla t4,rtx 5090,rtx 3090,l40s", "--limit", "400")
    some = answer("--count", "8", "--gpu", "rtx 5090,rtx 3090,l40s", "--limit", "400")
    rows = {row.offer: row for row in every.rows}
    assert 5 < len(some.rows) < len(rows)
    for row in some.rows:
        known = rows[row.offer]
        for figure in ("hours", "cost_usd", "score", "samples_per_s", "p_best", "p_cheapest"):
            assert getattr(row, figure) == getattr(known, figure)
    assert 0.1 < some.rows[0].p_best < 0.9


def test_the_cost_of_every_row_includes_start_up_increments_disk_egress_and_tax():
    """Hours are 1e8 / rate / 3600 + 20 min, billed by the hour; a disk of 100 a month, 12 of egress, 19 % tax."""
    extras = {"startup_minutes": 20, "billing_minutes": 60, "storage_usd_per_month": 100}
    rows = ask("vgg16", "--samples", "1e8", "--limit", "400", egress_usd=12, tax=0.19, **extras)["rows"]
    assert len(rows) > 100
    for row in rows:
        hours = 1e8 / row["samples_per_s"] / 3600 + 1 / 3
        billed = math.ceil(hours - 1e-9)
        usd = (billed * row["price_usd_per_hour"] + 100 * billed / 730 + 12) * 1.19
        assert (row["hours"], row["cost_usd"]) == (
            pytest.approx(hours, rel=1e-4),
            pytest.approx(usd, rel=1e-4),
        )


def test_a_quote_is_compared_with_the_cheapest_rent_of_its_job():
    """5,300 USD, 30 % resale, 3 years at 60 %: 3,710 / 15,768 h, plus 850 W at 0.30; the rest is as for rent."""
    quote = "2x RTX 4090, 3800 USD, host 1500 USD, 3 years, 60 %, 350 W, 0.30 USD/kWh"
    asked, given = (
        ("vgg16", "--samples", "1e8", "--have", quote, "--limit", "400"),
        {"tax": 0.19, "egress_usd": 4},
    )
    rows = ask(*asked, **given)["rows"]
    (own,) = (row for row in rows if row["pricing"] == "owned")
    running = 0.850 * 0.30
    assert own["price_usd_per_hour"] == pytest.approx(3710 / 15768 + running, rel=1e-3)
    assert own["cost_usd"] == pytest.approx(own["hours"] * own["price_usd_per_hour"] * 1.19, rel=1e-4)
    rent = min(row["cost_usd"] for row in rows if row["pricing"] == "on_demand")
    (weighed,) = (e for e in answer(*asked, **given).buy_or_rent if e.against_pricing is Pricing.ON_DEMAND)
    an_hour = rent / 1.19 / own["hours"]
    assert weighed.equivalent_usd_per_hour == pytest.approx(an_hour, rel=1e-4)
    assert weighed.break_even_hours == pytest.approx(3710 / (an_hour - running), rel=1e-3)


def test_the_90_percent_range_of_a_cost_combines_speed_and_price():
    for row in ask("vgg16", "--samples", "1e8", "--spot", "--limit", "100")["rows"]:
        likely, rate, price = row["cost_usd"], row["hours"], row["price_usd_per_hour"]
        for end in ("_low", "_high"):
            if row[f"hours{end}"] is not None:
                reach = math.hypot(
                    math.log(row[f"hours{end}"] / rate), math.log(row[f"price_usd_per_hour{end}"] / price)
                )
                away = math.log(row[f"cost_usd{end}"] / likely)
                assert abs(away) == pytest.approx(reach, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("m4", "Apple M4 is not ranked: unified memory"),
        ("tpu-v6e", "TPU v6e (per chip) is not ranked: runs JAX"),
        ("tpu", "more of that name are not ranked: runs JAX"),
        ("gaudi", "`gpubench offers list --gpu gaudi` lists the prices"),
        ("laptop", "no offer has a GPU 'laptop' (nvidia-geforce-rtx-5060-laptop-8gb): name another one"),
        ("jetson orin", "no offer has a GPU 'jetson orin'"),
    ],
)
def test_unrankable_gpu_is_refused_with_a_one_line_reason(name, says):
    with pytest.raises(MisuseError) as refused:
        gpubench.rank("resnet50", gpu=[name])
    assert says in str(refused.value)
    assert "removed" not in str(refused.value)
    assert len(str(refused.value)) < 320
