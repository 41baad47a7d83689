"""A published snapshot, read from a real server on this machine, and the workflow that publishes it."""

from __future__ import annotations

import json
import shlex
import socket
import time
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from command import here

from gpubench.models import Pricing
from gpubench.offers.refresh import refresh, refresh_from_url
from gpubench.offers.snapshot import embedded_offers, load_offers
from gpubench.offers.sources import Complete, Quote, SourceError
from gpubench.offers.transport import HttpTransport

DAYS = [datetime(2026, 11, day, 12, tzinfo=UTC) for day in (17, 18, 19)]


WITHOUT_END = json.dumps(
    {
        "retrieved_at": "2026-11-18T00:00:00Z",
        "sources": {
            "acme": {
                "state": "ok",
                "retrieved_at": "2026-11-18T00:00:00Z",
                "covers": [{"provider": "a", "day": "2026-11-18", "pricings": [], "vendors": []}] * 10_000,
            }
        },
    }
).encode()
"""Without a limit, each offer would be compared with each of these claims to be complete."""


class Acme:
    name = provider = "acme"

    def __init__(self, *prices):
        self.prices = prices

    def fetch(self, transport):
        for number, price in enumerate(self.prices):
            yield Quote(
                provider="acme", instance=f"big.{number}", region="moon-1", gpu="T4", gpu_count=1,
                price=price, source="acme API", in_stock=True,
            )  # fmt: skip
        yield Complete(pricings=(Pricing.ON_DEMAND,))


def publish(folder, day, *prices):
    """Refresh on a day in a publisher's folder, and store the snapshot as latest.json."""
    done = refresh([Acme(*prices)], None, results=folder.parent / "publisher", now=DAYS[day])
    (folder / "latest.json").write_bytes(done.path.read_bytes())


def acme(results):
    return {
        o.instance: (float(o.price_usd_per_hour), o.price_date)
        for o in load_offers(results).offers
        if o.provider == "acme"
    }


@pytest.fixture
def read(site, tmp_path):
    def run(day=2, **options):
        with HttpTransport(sleep=lambda _s: None) as transport:
            return refresh_from_url(
                f"{site[1]}/latest.json", transport, results=tmp_path / "mine", now=DAYS[day], **options
            )

    return run


def test_the_command_reads_a_published_snapshot_with_its_dates(site, tmp_path, gpubench):
    folder, url = site
    publish(folder, 0, 0.5, 0.6)
    done = gpubench("refresh", "--from", f"{url}/latest.json", "--results", tmp_path / "mine", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sources"]["acme"]["offers"] == 2
    assert acme(tmp_path / "mine") == {"big.0": (0.5, "2026-11-17"), "big.1": (0.6, "2026-11-17")}
    again = gpubench("refresh", "--from", f"{url}/latest.json", "--results", tmp_path / "mine")
    assert again.returncode == 0
    assert "newer" in again.stderr
    listed = gpubench("list", "--provider", "acme", "--results", tmp_path / "mine", "--json")
    row = json.loads(listed.stdout)["offers"][0]
    assert (row["in_stock"], row["stock_date"]) == (True, "2026-11-17")


def _ranked(tmp_path, url, *more):
    """Rank with this snapshot URL in the settings; return the process and the known offers of acme."""
    (tmp_path / "gpubench.toml").write_text(f'snapshot-url = "{url}"\n')
    mine = tmp_path / "mine"
    done = here("rank", "resnet50", "--limit", "1", "--results", str(mine), *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done, acme(mine)


def test_rank_reads_the_snapshot_that_a_setting_names_and_no_other(site, tmp_path):
    publish(site[0], 0, 0.5)
    url = f"{site[1]}/latest.json"
    assert _ranked(tmp_path, url, "--offline")[1] == {}
    assert _ranked(tmp_path, url)[1] == {"big.0": (0.5, "2026-11-17")}
    publish(site[0], 1, 0.4)
    assert _ranked(tmp_path, f"{url}#sha256={'0' * 64}")[1] == {"big.0": (0.5, "2026-11-17")}
    assert "snapshot-url" in _ranked(tmp_path, f"{url}#sha256={'0' * 64}")[0].stderr
    assert _ranked(tmp_path, url)[1] == {"big.0": (0.4, "2026-11-18")}


def test_rank_waits_a_second_for_a_snapshot_and_continues_with_the_prices_here(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with HttpTransport(within_s=0.3) as transport, pytest.raises(SourceError, match=r"took over 0\.3 s"):
            transport(f"http://127.0.0.1:{silent.getsockname()[1]}/latest.json")
        assert time.monotonic() - began < 5
        done, known = _ranked(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}/latest.json")
    assert "took over 1 s" in done.stderr
    assert "the local prices are used" in done.stderr
    assert known == {}
    assert "Sensible" in done.stdout


def test_a_complete_published_answer_retires_and_an_empty_one_loses_nothing(site, tmp_path, read):
    publish(site[0], 0, 0.5, 0.6, 0.7)
    read()
    publish(site[0], 1, 0.55, 0.6)
    assert read().sources["acme"].retired == 1
    assert acme(tmp_path / "mine") == {"big.0": (0.55, "2026-11-18"), "big.1": (0.6, "2026-11-18")}
    snapshot = json.loads((site[0] / "latest.json").read_text())
    snapshot["sources"]["acme"] |= {"offers": [], "retrieved_at": "2026-11-19T00:00:00Z"}
    (site[0] / "latest.json").write_text(json.dumps(snapshot))
    with pytest.raises(SourceError, match="has no offers"):
        read()
    assert acme(tmp_path / "mine") == {"big.0": (0.55, "2026-11-18"), "big.1": (0.6, "2026-11-18")}


def test_an_older_snapshot_does_not_override_the_users_own(site, tmp_path, read):
    publish(site[0], 0, 0.5)
    refresh([Acme(0.6)], None, results=tmp_path / "mine", now=DAYS[1])
    assert read().path is None
    assert acme(tmp_path / "mine") == {"big.0": (0.6, "2026-11-18")}


def test_impossible_rows_and_jumps_are_set_aside(site, tmp_path, read):
    publish(site[0], 0, 1.0, 1.0, 1.0, 1.0, 1.0)
    read()
    publish(site[0], 1, 1.1, 1.1, 1.1, 1.1, 1.1)
    snapshot = json.loads((site[0] / "latest.json").read_text())
    offers = snapshot["sources"]["acme"]["offers"]
    offers[1]["price_usd_per_hour"] = "0"
    offers[2]["price_usd_per_hour"] = "50"
    offers[3]["price_date"] = "2027-11-01"
    offers[4]["gpu_key"] = "no-such-gpu"
    (site[0] / "latest.json").write_text(json.dumps(snapshot))
    assert len(read().set_aside) == 4
    assert acme(tmp_path / "mine")["big.0"] == (1.1, "2026-11-18")
    old = dict.fromkeys(("big.1", "big.2", "big.3", "big.4"), (1.0, "2026-11-17"))
    assert acme(tmp_path / "mine") == old | {"big.0": (1.1, "2026-11-18")}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a price snapshot"),
        (b"<html>", "not a price snapshot"),
        (
            b'{"retrieved_at": "2026-11-18T00:00:00Z", "sources": {"acme": {"state": "maybe"}}}',
            "not a price snapshot",
        ),
        (b'{"retrieved_at": "2026-11-18T00:00:00Z"}', "has no offers"),
        (b'{"retrieved_at": "2036-11-18T00:00:00Z"}', "in the future"),
        (b'{"retrieved_at": "soon"}', "the time"),
        (b'{"retrieved_at": "2026-11-18T00:00:00Z", "schema_version": 99}', "upgrade gpubench"),
        (b"[" * 100_000, "not a price snapshot"),
        (WITHOUT_END, "not a price snapshot"),
    ],
)
def test_an_invalid_snapshot_is_one_line_and_changes_nothing(site, tmp_path, read, content, says):
    (site[0] / "latest.json").write_bytes(content)
    with pytest.raises(SourceError, match=says) as caught:
        read()
    assert "\n" not in str(caught.value)
    assert list(load_offers(tmp_path / "mine").offers) == list(embedded_offers().offers)


def test_a_snapshot_that_does_not_match_its_hash_changes_nothing(site, tmp_path, read):
    """Valid JSON is no proof: the file may be an older snapshot, or somebody may have changed prices on the way."""
    publish(site[0], 0, 0.5)
    (site[0] / "latest.json.sha256").write_text(f"{'0' * 64}  latest.json")
    with pytest.raises(SourceError, match="does not match its SHA-256"):
        read()
    assert list(load_offers(tmp_path / "mine").offers) == list(embedded_offers().offers)


def test_a_given_hash_replaces_the_one_next_to_a_snapshot(site, tmp_path, gpubench):
    publish(site[0], 0, 0.5)
    (site[0] / "latest.json.sha256").write_text("none")
    told = sha256((site[0] / "latest.json").read_bytes()).hexdigest()
    for digest, code in ((told.upper(), 0), ("0" * 64, 1)):
        url = f"{site[1]}/latest.json#sha256={digest}"
        assert gpubench("refresh", "--from", url, "--results", tmp_path / digest).returncode == code


def test_a_snapshot_without_a_hash_says_how_to_name_one(site, read):
    class NotFound:
        def __call__(self, url, **_):
            if url.endswith(".sha256"):
                raise SourceError("a.example refused the request: HTTP 404")
            return b"{}"

    with pytest.raises(SourceError, match=r"HTTP 404; give the missing hash as --from URL#sha256=HASH"):
        refresh_from_url(
            "https://a.example/latest.json", NotFound(), results=site[0] / "results", now=DAYS[0]
        )


def test_a_missing_page_ends_with_one_line_and_exit_code_1(site, tmp_path, gpubench):
    done = gpubench("refresh", "--from", f"{site[1]}/none.json", "--results", tmp_path / "mine")
    assert done.returncode == 1
    assert "HTTP 404" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "url", ["ftp://prices.example/x", "latest.json", "http://prices.example/x", "https://", "http://[x"]
)
def test_an_address_without_https_is_misuse(tmp_path, gpubench, url):
    done = gpubench("refresh", "--from", url, "--results", tmp_path / "mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert url in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_price_decimals_are_preserved(site, tmp_path, read):
    publish(site[0], 0, "0.123456")
    read()
    (offer,) = [o for o in load_offers(tmp_path / "mine").offers if o.provider == "acme"]
    assert offer.price_usd_per_hour == Decimal("0.123456")
    assert msgspec.json.decode(msgspec.json.encode(offer), type=type(offer)) == offer


# --- the workflow -------------------------------------------------------------------------------------------

WORKFLOW = Path(__file__).parents[2] / ".github" / "workflows" / "prices.yml"


def steps():
    yaml = pytest.importorskip("yaml")
    document = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return document, document["jobs"]["refresh"]["steps"]


def test_the_workflow_runs_on_a_schedule_and_contains_no_secret():
    document, _ = steps()
    assert document[True]["schedule"]  # YAML reads the word "on" as true
    assert document["permissions"] == {"contents": "write"}
    assert "secrets." not in WORKFLOW.read_text(encoding="utf-8")


def test_every_command_of_the_workflow_exists(gpubench, monkeypatch):
    """With --help at its end, a command is parsed but not run."""
    commands = [
        shlex.split(line.partition(">")[0])
        for step in steps()[1]
        for line in step.get("run", "").splitlines()
        if line.strip().startswith("gpubench ")
    ]
    assert len(commands) >= 4
    for command in commands:
        done = here(*command[1:], "--help")
        assert done.returncode == 0, (command, done.stderr)


def test_the_workflow_checks_before_it_publishes():
    names = [step.get("name") for step in steps()[1]]
    assert names.index("Refresh") < names.index("Check") < names.index("Publish")
