"""An unconfirmed price does not rank by default: it is named once, with the setting that accepts it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
from command import here, settings

from gpubench import rank
from gpubench.errors import MisuseError
from gpubench.models import Pricing
from gpubench.offers.refresh import refresh
from gpubench.offers.sources import Quote
from gpubench.recommend.owning import offer_of
from gpubench.recommend.request import Range, RankRequest
from gpubench.report.page import render
from gpubench.sections.answer import screen
from gpubench.sections.data import gather

from .builders import H100, L4, offer, rank_of, said
from .test_owning import machine, weigh
from .test_rank_cli import gpubench  # noqa: F401 - the fixture

RATES = {H100: 3000.0, L4: 500.0}
HONEST = [offer(H100, 3.0, provider="a"), offer(H100, 2.5, provider="b"), offer(L4, 0.8, provider="b")]
CENT = offer(H100, 0.01, provider="feed", instance="too-good")


class Feed:
    name = provider = "feed"

    def fetch(self, transport):
        yield Quote(
            provider="feed", instance="b200.1", region="moon-1", gpu="NVIDIA B200", gpu_count=1,
            price=0.01, pricing=Pricing.ON_DEMAND, source="https://feed.example", gpu_memory_gib=180,
        )  # fmt: skip


@pytest.fixture
def fed(tmp_path):
    """Return a results folder into which a feed has put a B200 at a cent."""
    done = refresh([Feed()], lambda *_: b"", results=tmp_path, now=datetime(2026, 11, 20, tzinfo=UTC))
    assert len(done.sources["feed"].offers) == 1, done.set_aside
    return tmp_path


def test_doubted_offer_is_excluded_with_its_reason():
    ranking = rank_of([*HONEST, CENT], RATES, width=1.2)
    assert "feed" not in {row.offer.provider for row in ranking.rows}
    (left_out,) = ranking.excluded
    assert (left_out.provider, left_out.instance) == ("feed", "too-good")
    assert "other providers" in left_out.reason
    (note,) = [note for note in ranking.said("note") if "accept-outliers" in note]
    assert "feed too-good" in note
    assert "\n" not in note


def test_accept_outliers_ranks_the_doubted_offer_without_a_note():
    ranking = rank_of([*HONEST, CENT], RATES, width=1.2, accept_outliers=True)
    assert ranking.rows[0].offer.provider == "feed"
    assert not any("accept-outliers" in note for note in ranking.said("note"))


def test_price_far_above_the_others_is_excluded_without_a_note():
    dear = offer(H100, 90.0, provider="feed", instance="gold")
    others = [*HONEST, offer(H100, 2.8, provider="c")]
    ranking = rank_of([*others, dear], RATES, width=1.2)
    (left_out,) = ranking.excluded
    assert left_out.instance == "gold"
    assert "accept-outliers" in left_out.reason
    assert not any("accept-outliers" in note for note in ranking.said("note"))
    assert len(rank_of([*others, dear], RATES, accept_outliers=True).rows) == 5


def test_old_prices_are_reported_once_with_the_command_that_reads_new_ones():
    old = [offer(H100, 3.0 + n / 10, provider="aws", instance=f"i{n}", price_date="2026") for n in range(3)]
    fresh = offer(L4, 0.8, price_date="2026-11-19")
    (note,) = [note for note in rank_of([*old, fresh], RATES).said("note") if "offers refresh" in note]
    assert (
        note
        == "3 of the prices may be stale (over 30 days old); `gpubench offers refresh` fetches today's from aws."
    )
    assert not any("offers refresh" in note for note in rank_of([fresh], RATES).said("note"))


def test_a_request_for_missing_commitments_is_reported_in_one_line():
    prices = [offer(H100, 3.0), offer(L4, 0.8)]
    none = "None of the remaining prices is a commitment"
    assert none in said(rank_of(prices, RATES, commit="1y"))
    assert none not in said(rank_of(prices, RATES))
    held = offer(H100, 2.0, pricing=Pricing.RESERVED, term_years=1, provider="b")
    assert none not in said(rank_of([*prices, held], RATES, commit="1y"))


def test_a_part_of_the_world_is_every_region_in_it():
    prices = [
        offer(H100, 3.0, region=place, provider=place) for place in ("westeurope", "eu-west-1", "eastus")
    ]
    ranking = rank_of(prices, RATES, regions=("EU",))
    assert {row.offer.region for row in ranking.rows} == {"westeurope", "eu-west-1"}
    assert {row.offer.region for row in rank_of(prices, RATES, regions=("us",)).rows} == {"eastus"}
    with pytest.raises(MisuseError, match="unknown region 'asia'"):
        rank_of(prices, RATES, regions=("asia",))


def test_offers_dropped_by_another_filter_are_not_mentioned():
    ranking = rank_of([*HONEST, CENT], RATES, gpus=("l4",))
    assert not any("accept-outliers" in note for note in ranking.said("note"))
    spot = offer(H100, 0.001, provider="feed", pricing=Pricing.SPOT)
    assert not any("accept-outliers" in note for note in rank_of([*HONEST, spot], RATES).said("note"))
    assert any("accept-outliers" in note for note in rank_of([*HONEST, spot], RATES, spot=True).said("note"))


def test_prices_are_compared_with_the_whole_market_for_any_request():
    """Even in a ranking of one provider, its price is compared with other providers' prices."""
    with pytest.raises(MisuseError, match="accept-outliers") as caught:
        rank_of([*HONEST, CENT], RATES, providers=("feed",))
    assert "\n" not in str(caught.value)


def test_doubted_offer_is_not_compared_with_buying():
    ranking = weigh([machine()], [*HONEST, CENT], RATES)
    assert all("feed" not in each.against for each in ranking.buy_or_rent)


def test_owned_hardware_is_never_doubted():
    owned = machine(purchase_usd=100.0, resale_usd=Range.of(0.0), power_w=10.0)
    ranking = weigh([owned], HONEST, RATES)
    assert ranking.rows[0].offer == offer_of(owned)


def test_a_users_table_ranks_as_given_with_its_distance_from_other_prices(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text(
        "provider,instance,gpu_key,gpu_count,price_date,on_demand_usd_per_h\n"
        "mine,pod,H100 SXM,8,2026-11-14,1.20\n"
    )
    ranking = rank(workload="vgg16", offers=table)
    assert ranking.rows[0].offer.provider == "mine"
    (note,) = [each for each in ranking.said("caution") if "mine pod" in each]
    assert "other providers" in note
    assert "accept-outliers" not in note


def test_a_doubted_price_that_decides_is_on_the_first_screen_and_in_its_row(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text(
        "provider,instance,gpu_key,gpu_count,price_date,on_demand_usd_per_h,note\n"
        "mine,one,B200,1,2026-11-14,0.01,a quote\n"
    )
    ranking = rank("resnet50", offers=table, as_of="2026-11-20", draws=50)
    choice = ranking.first
    assert choice.offer.provider == "mine"
    assert re.fullmatch(r"0\.00\d+ times what \d+ others \w+", choice.price_doubt)
    assert choice.price_note == ranking.rows[0].offer.note == f"price {choice.price_doubt}; a quote"
    caution = f"Check before you pay: B200 180GB ({choice.price_doubt})."
    assert caution in ranking.said("caution")
    assert any(caution in getattr(part, "text", "") for part in screen(ranking))
    admitted = rank_of([*HONEST, CENT], RATES, width=1.2, accept_outliers=True)
    assert "others ask" in admitted.rows[0].offer.note
    assert ranking.rows[1].offer.note is None or "others ask" not in ranking.rows[1].offer.note


def test_one_cent_price_in_a_feed_never_ranks_as_best_value(fed, gpubench):  # noqa: F811
    document = json.loads(gpubench("vgg16", "--json", "--results", str(fed)).stdout)
    assert "feed" not in {row["provider"] for row in document["rows"]}
    (left_out,) = [each for each in document["excluded"] if "far below all others" in each["reason"]]
    assert left_out["count"] == 1
    assert left_out["example"].startswith("feed ")
    assert "$0.0100" in left_out["example"]
    shown = gpubench("vgg16", "--table", "--results", str(fed), COLUMNS="400").stdout
    assert "feed" not in shown.partition("───")[0]
    (line,) = [line for line in shown.splitlines() if "accept-outliers" in line]
    assert "feed b200.1" in line
    with settings(accept_outliers=True):
        admitted = gpubench("vgg16", "--results", str(fed), "--limit", "1", "--json").stdout
    assert json.loads(admitted)["rows"][0]["provider"] == "feed"


def test_the_page_reports_excluded_prices_in_one_line(fed):
    data = gather(RankRequest(results=fed))
    text = render(data, "md")
    (line,) = [line for line in text.splitlines() if "accept" in line and "Left out" in line]
    assert "b200.1" in line
    page = render(data, "html")
    assert "accept-outliers" in page


def test_report_respects_the_accept_outliers_setting(fed):
    path = fed / "page.json"
    with settings(accept_outliers=True):
        done = here("report", "--results", fed, "-o", path)
    assert done.returncode == 0
    assert "accept-outliers = true" in done.stderr
    assert json.loads(path.read_text())["ranking"]["rows"][0]["provider"] == "feed"
