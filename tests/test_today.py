"""One module reads today's date, and another day can replace it."""

from __future__ import annotations

import ast
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from command import here

import gpubench
from gpubench.errors import MisuseError
from gpubench.offers.snapshot import Snapshot, SourceOffers, embedded_offers, load_offers, write_snapshot
from gpubench.options import request_from
from gpubench.recommend.request import RankRequest
from gpubench.sections.data import gather
from gpubench.today import day_of, now, today

PACKAGE = Path(__file__).resolve().parents[1] / "gpubench"
OWNER = PACKAGE / "today.py"
CLOCKS_OF_DAYS = {
    ("date", "today"), ("datetime", "today"), ("datetime", "now"), ("datetime", "utcnow"),
    ("time", "strftime"), ("time", "localtime"), ("time", "gmtime"), ("time", "ctime"), ("time", "asctime"),
}  # fmt: skip


def _asks_the_date(source: str) -> set[str]:
    """Return the calls of a calendar clock, by class and method, including ``datetime.datetime.now``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            found |= {f"{owner}.{node.attr}"} if (owner, node.attr) in CLOCKS_OF_DAYS else set()
    return found


@pytest.mark.parametrize("source", ["date.today()", "datetime.datetime.now(UTC)", "time.gmtime()"])
def test_date_detector_finds_every_kind_of_call(source):
    assert _asks_the_date(source)


def test_only_one_module_reads_the_date():
    found = {
        str(path.relative_to(PACKAGE)): ways
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != OWNER and (ways := _asks_the_date(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_the_day_is_in_utc():
    before = datetime.now(UTC)
    moment, day = now(), today()
    after = datetime.now(UTC)
    assert before <= moment <= after
    assert before.date() <= day <= after.date()


@pytest.mark.parametrize("given", ["2026-10-04", date(2026, 10, 4)])
def test_a_day_can_be_requested(given):
    asked = request_from(RankRequest, {"as_of": given}, "rank")
    assert day_of(asked.as_of) == date(2026, 10, 4)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "2026",
        "2026-02-30",
        "20261004",
        "2026-W01-1",
        "२०२६-१०-०४",
        "tomorrow",
        datetime(2026, 10, 4, tzinfo=UTC),
    ],
)
def test_an_invalid_day_is_refused(given):
    with pytest.raises(MisuseError, match="YYYY-MM-DD"):
        request_from(RankRequest, {"as_of": given}, "rank")


def test_a_future_day_is_refused():
    with pytest.raises(MisuseError, match="the future"):
        day_of(datetime.now(UTC).date() + timedelta(days=2))


@pytest.mark.parametrize("verb", [("rank",), ("report",), ("offers", "list")])
@pytest.mark.parametrize("day", ["2999-01-01", "soon"])
def test_each_verb_refuses_a_future_day_in_one_line(verb, day):
    done = here(*verb, "--as-of", day)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert day in done.stderr


def _refreshed(folder: Path, day: int, price: str) -> None:
    offer = next(o for o in embedded_offers().offers if o.instance == "g4dn.xlarge")
    fresh = msgspec.structs.replace(offer, price_usd_per_hour=Decimal(price), price_date=f"2026-10-{day:02}")
    stamp = f"2026-10-{day:02}T23:59:59Z"
    source = SourceOffers(state="ok", retrieved_at=stamp, offers=(fresh,))
    write_snapshot(folder / "offers", Snapshot(retrieved_at=stamp, sources={"aws": source}))


def test_prices_after_the_as_of_date_do_not_count(tmp_path):
    """Each day has the price that was known then: the shipped one, one of two snapshots, or the user's own."""
    _refreshed(tmp_path, 10, "0.40")
    _refreshed(tmp_path, 12, "0.30")
    own = tmp_path / "own.csv"
    own.write_text(
        "provider,instance,gpu_key,gpu_count,region,on_demand_usd_per_h,price_date\n"
        "aws,g4dn.xlarge,nvidia-tesla-t4-16gb,1,us-east-1,0.20,2026-10-14\n"
        "aws,g4dn.2xlarge,nvidia-tesla-t4-16gb,1,us-east-1,0.70,2026-10-01\n",
        encoding="utf-8",
    )

    def price(day: int) -> Decimal:
        table = load_offers(tmp_path, own, date(2026, 10, day))
        assert all(o.price_date <= f"2026-10-{day:02}" for o in table.offers if len(o.price_date) == 10)
        (found,) = (o for o in table.offers if (o.instance, o.region) == ("g4dn.xlarge", "us-east-1"))
        return found.price_usd_per_hour

    assert [str(price(day)) for day in (9, 10, 11, 12, 13, 14)] == [
        "0.526",
        "0.40",
        "0.40",
        "0.30",
        "0.30",
        "0.20",
    ]


def test_excluded_prices_state_the_reason():
    (reason, *_) = {r for _, r in load_offers(as_of=date(2026, 1, 31)).set_aside if "after" in r}
    assert reason.endswith("after 2026-01-31")


def test_a_ranking_a_list_and_a_report_use_the_given_day(tmp_path):
    day = date(2026, 11, 18)
    asked = {"workload": "vgg16", "gpu": "l4", "provider": "gcp", "results": tmp_path}
    then, since = gpubench.rank(as_of="2026-11-18", **asked), gpubench.rank(**asked)
    assert then.as_of == "2026-11-18"
    ages = {row.offer: row.price_age_days for row in since.rows}
    passed = (today() - day).days
    assert then.rows
    assert all(ages[row.offer] - row.price_age_days == passed for row in then.rows)
    data = gather(RankRequest(results=tmp_path, as_of=day, workloads=("vgg16",)))
    assert (data.today, data.ranking.as_of) == (day, "2026-11-18")
    listed = here("offers", "list", "--as-of", "2026-11-18", "--json", "--provider", "aws")
    document = json.loads(listed.stdout)
    assert document["as_of"] == "2026-11-18"
    assert all(row["price_date"] <= "2026-11-18" for row in document["offers"])
