"""Untrusted prices: none wins a ranking unless the answer itself says what is wrong."""

from __future__ import annotations

import csv
import re
from datetime import date
from pathlib import Path

import pytest

from gpubench import rank
from gpubench.errors import MisuseError
from gpubench.labels import gpu_name
from gpubench.models import Ranking
from gpubench.offers.listing import list_offers
from gpubench.offers.refresh import import_offers
from gpubench.offers.request import OffersRequest
from gpubench.offers.snapshot import load_dated

DAY, AS_OF = "2026-11-18", "2026-11-20"
COLUMNS = (
    "provider", "instance", "gpu_key", "gpu_count", "price_usd_per_hour", "pricing", "kind", "price_date", "ram_gib",
)  # fmt: skip


def row(gpu: str, usd: float, count: int = 1, **told: object) -> dict[str, object]:
    usual = {"provider": "stranger", "instance": f"bait {count}x {gpu}", "kind": "marketplace"}
    told = {"gpu_key": gpu, "gpu_count": count, "price_usd_per_hour": usd, "price_date": DAY} | told
    return usual | {"pricing": "on_demand"} | told


CASES: dict[str, list[dict[str, object]]] = {
    "a lone ask at a cent": [row("RTX 4080", 0.01)],
    "a lone ask at a third": [row("RTX 4080", 0.06)],
    "two names in one file": [
        row("H200 SXM", 0.01, provider="fakecloud", kind="vm"),
        row("H200 SXM", 0.012, provider="othercloud", kind="vm"),
    ],
    "two names of a card that nobody else sells": [
        row("RTX 4080", 0.02, provider="fakecloud", kind="vm"),
        row("RTX 4080", 0.021, provider="othercloud", kind="vm"),
    ],
    "a dot after the name": [
        row("H200 SXM", 0.01, provider="fakecloud"),
        row("H200 SXM", 0.012, provider="fakecloud."),
    ],
    "a letter of another alphabet": [
        row("H200 SXM", 0.01, provider="fakecloud"),
        row("H200 SXM", 0.012, provider="f\u0430kecloud"),
    ],
    "known names in a region that does not exist": [
        row("H200 SXM", 0.01, provider="aws", kind="vm", region="moon-1"),
        row("H200 SXM", 0.01, provider="azure", kind="vm", region="moon-1"),
    ],
    "a host at a fifth to a quarter": [row("RTX 4090", 0.09)],
    "spot at a cent": [row("H100 SXM", 0.01, pricing="spot")],
    "spot at a cent where nobody else sells": [row("RTX 4080", 0.01, pricing="spot")],
    "an absurd count": [row("H100 SXM", 30.0, 1024)],
    "a price that does not grow with the count": [row("H100 SXM", 2.5), row("H100 SXM", 2.5, 8)],
    "a price per minute": [
        row(gpu, usd / 60)
        for gpu, usd in (("RTX 4080", 0.28), ("RTX 5080", 0.35), ("RTX 4090", 0.4), ("H100 SXM", 2.5))
    ],
    "a wrong name that maps to a better card": [
        row("H100 SXM", 0.25, instance="bait 1x Tesla T4"),
        row("B200", 0.35, instance="bait 1x Tesla T4 16GB"),
    ],
    "a host with a false memory size": [row("RTX A6000", 0.08, instance="bait 1x RTX 3060", ram_gib=4096)],
}


def asked_of(tmp_path: Path, rows: list[dict[str, object]], **options: object) -> Ranking:
    table = tmp_path / "feed.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, dict.fromkeys([*COLUMNS, *(name for each in rows for name in each)]))
        writer.writeheader()
        writer.writerows(rows)
    import_offers(table, results=tmp_path / "results", accept_outliers=True)
    return rank("resnet50", results=tmp_path / "results", as_of=AS_OF, spot=True, **options)


def uncautioned(ranking: Ranking) -> list[str]:
    """Return the names of the answers that are bait and have no caution about their GPU."""
    told = [each for each in ranking.said("caution") if each.startswith("Check before you pay: ")]
    parts = [part for each in told for part in each.split("; ")]
    every_host = re.compile(
        r"\(one (host's listing|of \d+ listings)\)"
    )  # this applies to every listing and casts no doubt
    cautions = " ".join(part for part in parts if not every_host.search(part))
    named = {name: answer.row.offer for name, answer in ranking.answers.items()}
    named["first"] = ranking.first.offer
    baits = {name: offer for name, offer in named.items() if offer.instance.startswith("bait")}
    return [name for name, offer in baits.items() if gpu_name(offer.gpu_key) not in cautions]


@pytest.mark.parametrize(
    ("case", "options"),
    [
        *((case, {}) for case in CASES),  # the three answers are the same in each order
        *(
            (case, {"sort": sort})
            for case in ("spot at a cent", "an absurd count")
            for sort in ("cost", "time")
        ),
    ],
)
def test_no_bait_price_wins_without_a_caution(tmp_path, case, options):
    assert not uncautioned(asked_of(tmp_path, CASES[case], **options))


def test_confirmed_bait_price_can_win(tmp_path):
    """Otherwise the test above could not fail: a price that other sources confirm is believed, and wins."""
    ranking = asked_of(tmp_path, [row("RTX 4090", 0.18)], sort="cost")
    assert ranking.answers["cheapest"].row.offer.instance.startswith("bait")


def test_a_users_price_dated_after_the_question_is_set_aside_with_a_caution(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "provider,instance,gpu_key,gpu_count,price_date,on_demand_usd_per_h\n"
        f"mine,late,H100 SXM,8,2026-11-25,8\nmine,early,H100 SXM,8,{DAY},16\n"
    )
    said = rank("resnet50", offers=path, as_of=AS_OF, draws=50).said("caution")
    (aside,) = (each for each in said if each.startswith("Set aside"))
    assert f"1 row, mine.csv: mine late (price of 2026-11-25, after {AS_OF})" in aside


def test_a_table_without_dates_is_refused_for_a_question_about_an_earlier_day(tmp_path):
    """Prices without a date have that of the file, which is today."""
    path = tmp_path / "mine.csv"
    path.write_text("gpu_key,on_demand_usd_per_h\nH100 SXM,2\n")
    with pytest.raises(MisuseError, match=rf"no usable offer: 1 price row .* after {AS_OF}"):
        rank("resnet50", offers=path, as_of=AS_OF, draws=50)


def test_a_users_price_for_a_month_does_not_rank_as_one_for_an_hour(tmp_path):
    """A month has 730 hours; a price of 20 times the others may still be for an hour, and ranks as given."""
    path = tmp_path / "mine.csv"
    path.write_text(f"provider,gpu,price,date\nacme,H100 SXM,1460,{DAY}\nzoom,H100 SXM,80,{DAY}\n")
    ranking = rank("resnet50", offers=path, as_of=AS_OF, draws=50)
    assert {"acme", "zoom"} & {row.offer.provider for row in ranking.rows} == {"zoom"}
    (left_out,) = (each for each in ranking.excluded if each.provider == "acme")
    assert "hardly the price of an hour" in left_out.reason
    assert [each for each in ranking.said("caution") if "for acme H100 SXM " in each and "hardly" in each]
    table, day, _ = load_dated(tmp_path, path, date.fromisoformat(AS_OF))
    (listed,) = list_offers(table.offers, OffersRequest(providers=("acme",)), day)
    assert listed.not_ranked_because == left_out.reason
    ranked = rank("resnet50", offers=path, as_of=AS_OF, draws=50, accept_outliers=True).rows
    assert "acme" in {row.offer.provider for row in ranked}
    with pytest.raises(MisuseError, match="a price far above all others"):
        rank("resnet50", offers=path, as_of=AS_OF, draws=50, provider="acme")
