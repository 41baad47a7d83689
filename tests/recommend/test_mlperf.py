"""Published MLPerf runs and their cost today, checked by hand."""

from __future__ import annotations

import csv
import json
import re
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from gpubench.cli.table import ListRequest
from gpubench.cli.verbs import list as list_verb
from gpubench.errors import MisuseError
from gpubench.folders import data_text
from gpubench.models import Offer, Pricing
from gpubench.readings import PublishedRun, load_mlperf, newest_and_fastest, rounds
from gpubench.sections.prices import about_mlperf, priced
from gpubench.specs import load_specs
from tools.published import DATA as PUBLISHED

from . import builders

DATA = files("gpubench") / "data"
H100 = "nvidia-h100-sxm-80gb"
SIZES_GB = (40, 80, 94, 96, 141)


def run(**changes) -> PublishedRun:
    fields = {
        "benchmark": "bert",
        "round": "v4.1",
        "date": "2024-11",
        "gpu_key": H100,
        "gpus": 8,
        "minutes": 6.0,
        "runs": 10,
        "submitter": "Somebody",
        "system": "a machine",
        "source": "repository@commit",
    }
    return PublishedRun(**(fields | changes))


def offer(usd: str, gpu_key: str = H100, **changes) -> Offer:
    fields = {"provider": "cloud", "instance": "8gpu", "region": "us", "gpu_count": 8}
    return builders.offer(gpu_key, usd, **fields | changes)


@pytest.mark.parametrize(
    ("gpus", "minutes", "machines", "usd"),
    [
        (8, 6.0, 1, 2.40),  # 0.1 h x $24
        (16, 30.0, 2, 24.00),  # 0.5 h x 2 x $24
        (4, 6.0, None, None),  # no machine of four
        (14, 6.0, None, None),  # no whole number of machines
    ],
)
def test_an_mlperf_run_is_priced_by_hours_times_machines(gpus, minutes, machines, usd) -> None:
    (one,) = priced([run(gpus=gpus, minutes=minutes)], [offer("30"), offer("24", provider="cheaper")])
    assert one.machines == machines
    assert one.usd == (None if usd is None else pytest.approx(usd))
    assert (one.offer is None) == (usd is None)


@pytest.mark.parametrize(
    "passed_over",
    [
        offer("1", kind="marketplace"),
        offer("1", pricing=Pricing.SPOT),
        offer("1", pricing=Pricing.RESERVED, term_years=1),
        offer("0", kind="free"),
        offer("1", gpu_key="nvidia-h100-pcie-80gb"),
    ],
)
def test_only_complete_on_demand_machines_of_a_cloud_give_a_price(passed_over: Offer) -> None:
    (one,) = priced([run()], [passed_over, offer("24")])
    assert one.offer is not None
    assert one.offer.price_usd_per_hour == 24


def test_the_fastest_of_the_newest_round_represents_its_gpu() -> None:
    old, slow, fast = (
        run(round="v4.0", date="2024-06", minutes=1.0),
        run(minutes=7.0),
        run(minutes=5.0, submitter="Fastest"),
    )
    assert newest_and_fastest((fast, old, slow)) == (fast,)
    four = run(gpus=4, minutes=9.0)
    assert newest_and_fastest((four, old, slow, fast)) == (fast, four)


def test_the_shipped_table_names_known_gpus_rounds_and_sources() -> None:
    runs = load_mlperf()
    assert len(runs) == 786
    assert {r.gpu_key for r in runs} <= load_specs().keys()
    assert {r.round for r in runs} == {"v3.0", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1"}
    for r in runs:  # if a system's name states a memory size, its card has that size
        named = {int(size) for size in re.findall(r"(?<!x)(\d+)\s?GB", r.system, re.IGNORECASE)} & set(
            SIZES_GB
        )
        memory_bytes = load_specs()[r.gpu_key].memory_bytes
        assert not named or any(abs(memory_bytes / 2**30 - size) < 0.1 * size for size in named), r.system
    assert all(r.minutes > 0 and 1 <= r.gpus <= 16 and r.runs >= 1 for r in runs)
    assert all(r.source.startswith(f"mlcommons/training_results_{r.round}@") for r in runs)


def test_the_page_of_workloads_counts_the_mlperf_jobs_that_are_fitted() -> None:
    tables = [file for folder in (DATA, PUBLISHED) for file in folder.iterdir() if file.name.endswith(".csv")]
    named = {file.name for file in tables if "mlperf" in file.read_text(encoding="utf-8").casefold()}
    assert named - {"mlperf.csv", "labels.csv"} == {"scaling.csv"}, (
        "another table has figures of MLPerf: the sentence must say so"
    )
    rows = list(csv.DictReader(data_text("scaling.csv").splitlines()))
    fitted = [row for row in rows if row["gpu_key"].startswith("nvidia-")]
    of_mlperf = [row for row in fitted if row["harness"] == "mlperf"]
    page = Path("docs/workloads.md").read_text(encoding="utf-8")
    assert f"{len(fitted)} published jobs, {len(of_mlperf)} of them" in " ".join(page.split())
    assert "some from MLPerf Training" in about_mlperf()


def test_the_table_states_its_first_and_last_round() -> None:
    (oldest, *_, newest) = rounds(load_mlperf())
    assert (oldest, newest) == (("v3.0", "2023-06"), ("v5.1", "2025-11"))
    assert "Rounds: v3.0 (2023-06) to v5.1 (2025-11)" in about_mlperf()


def test_the_command_lists_mlperf_runs_and_json_contains_all_of_them() -> None:
    from click.testing import CliRunner

    from gpubench.cli.app import app

    def told(*words: str) -> str:
        done = CliRunner().invoke(app, ["list", "--mlperf", *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    document = json.loads(told("--json"))
    assert len(document["mlperf"]) == len(load_mlperf())
    assert msgspec.convert(document["mlperf"][0]["run"], PublishedRun) == load_mlperf()[0]
    assert "bert" in told()


def test_two_lists_at_once_are_refused() -> None:
    with pytest.raises(MisuseError, match="are different lists"):
        list_verb.verb(ListRequest(gpus=True, mlperf=True), as_json=False)
