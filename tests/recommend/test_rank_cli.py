"""`gpubench rank` as a buyer types it, on the shipped tables."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import here, settings

from gpubench import rank
from gpubench.errors import MisuseError
from gpubench.labels import gpus, gpus_of
from gpubench.recommend.lines import lines

LOST_ON_HOSTS = 0.015077967737538767
"""Share of the work that a private host loses: see test_economics.py."""


@pytest.fixture
def gpubench():
    """Run ``gpubench rank ...`` in this process."""
    return functools.partial(here, "rank", NO_COLOR="1", COLUMNS="100")


def table_of(shown: str) -> str:
    """Return the rows of the table of offers, the second one after that of the answers."""
    return shown.split("───\n")[2].partition("\n\n")[0]


def assert_in_order(rows, figure):
    """Assert that rows are in ascending order of a figure: those within the fit, then the guesses outside it."""
    for is_guess in (False, True):
        part = [row[figure] for row in rows if ("OUT_OF_DOMAIN" in row["findings"]) == is_guess]
        assert part == sorted(part)
        assert part


def test_rank_json_is_the_only_output_on_stdout(gpubench):
    done = gpubench("vgg16", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert {row["basis"] for row in document["rows"]} <= {"measured", "reference", "predicted"}
    assert {row["pricing"] for row in document["rows"]} == {"on_demand"}
    assert_in_order(document["rows"], "total_usd")
    for row in document["rows"]:
        assert row["total_usd"] == pytest.approx(row["cost_usd"] + 2 * row["hours"])
    assert document["hour_worth_usd"] == 2
    assert document["job"]["words"] == "24 GPU-hours of one A100 SXM4 80GB"
    with settings(relative=True):
        relative = json.loads(gpubench("vgg16", "--json").stdout)
    assert_in_order(relative["rows"][::-1], "samples_per_usd")
    assert (relative["question"]["sort"], relative["job"]) == ("value", None)
    assert document["question"]["workloads"] == ["vgg16"]
    assert {row["execution"] for row in document["rows"]} == {"graph"}
    for row in document["rows"]:
        expected = 3600 * row["samples_per_s"] / row["price_usd_per_hour"]
        assert row["samples_per_usd"] == pytest.approx(expected)
        assert row["price_age_days"] >= 0
    assert all(e["reason"] and e["count"] and e["example"] for e in document["excluded"])


def test_the_default_is_the_geometric_mean_of_three_at_amp():
    ranking = rank(limit=3, count=1)
    assert {case.workload for case in ranking.cases} == {"cnn", "lstm", "vgg16"}
    assert all(case.precision.is_amp for case in ranking.cases)
    assert len(ranking.rows) == 3
    for row in ranking.rows:
        product = 1.0
        for part in row.parts:
            product *= part.samples_per_s * row.offer.gpu_count
        lost = LOST_ON_HOSTS if row.offer.seller == "community" else 0
        assert row.samples_per_s.value == pytest.approx(product ** (1 / 3) / (1 + lost))


@pytest.mark.parametrize("columns", ["60", "100", "400"])
def test_the_table_fits_the_terminal(gpubench, columns):
    done = gpubench("vgg16", "--limit", "5", COLUMNS=columns, FORCE_COLOR="")
    assert done.returncode == 0
    assert done.stdout.startswith("vgg16, 24 GPU-hours of one A100")
    assert "RTX" in done.stdout
    assert all(len(line) <= int(columns) for line in done.stdout.splitlines())
    assert ("Not shown" in done.stdout) == (columns != "400")
    assert "Next: " in done.stderr


@pytest.mark.parametrize(
    ("asked", "maker"),
    [
        (("vgg16",), "`gpubench report` makes"),
        (("llama-3.1-8b", "--lora"), "`gpubench.report()` in Python makes"),
    ],
)
def test_the_next_step_names_what_can_make_the_page_of_this_question(gpubench, asked, maker):
    """The command has no option for adapters or the context; the function has them all."""
    assert f"{maker} the page" in gpubench(*asked).stderr


def test_row_shows_one_gpu_and_where_else_it_is_offered(gpubench):
    ranking = rank("vgg16")
    first, second, *_ = ranking.by_gpu
    shown = gpubench("vgg16", "--limit", "2", COLUMNS="120").stdout
    table = table_of(shown)
    assert all(gpus(each.offer.gpu_key, each.offer.gpu_count) in table for each in (first, second))
    assert table.count(gpus(first.offer.gpu_key, first.offer.gpu_count)) == 1
    elsewhere = first.also_at[0]
    assert elsewhere.offer.provider in table
    assert f"${elsewhere.cost_usd:.2f}" in table
    assert f"--table --explain --limit {len(ranking.rows)} lists them" in " ".join(shown.split())
    every = gpubench("vgg16", "--limit", "40", "--table", "--explain", COLUMNS="120").stdout
    assert table_of(every).count(f"{gpus(first.offer.gpu_key, first.offer.gpu_count)} ") > 1
    assert "One row" not in every


def test_with_one_gpu_every_row_is_an_offer(gpubench):
    shown = gpubench("vgg16", "--table", "--gpu", "H100 PCIe", COLUMNS="120").stdout
    assert table_of(shown).count("1x H100 PCIe") > 1
    assert "One row" not in shown


def test_owned_machines_have_their_own_rows_next_to_the_best_rental(gpubench):
    quotes = ("--have", "RTX 3090, 900 USD", "--have", "2x RTX 3090, 1800 USD")
    dollars = ("--hour-worth", "0")
    shown = gpubench("vgg16", *quotes, *dollars, "--limit", "30", COLUMNS="120").stdout
    table = table_of(shown)
    assert len(re.findall(r"^\d+x RTX 3090 (?!Ti)", table, re.MULTILINE)) == 3
    found = rank("vgg16", have=quotes[1::2], hour_worth=0)
    same = [each for each in found.by_gpu if each.offer.gpu_key == found.first.offer.gpu_key]
    assert {each.source for each in same} == {"own", "marketplace"}
    assert sum(each.p_best_of_gpu for each in found.by_gpu) == pytest.approx(1)


def test_buying_lists_new_and_used_cards_separately(gpubench):
    words = ["vgg16", "--table", "--buy", "--gpu"]
    shown = " ".join(gpubench(*words, "rtx 5070,rtx 5080", COLUMNS="200").stdout.split())
    assert {f"buy: {label}," in shown for label in ("new", "used")} == {True}


def test_the_chances_of_all_gpus_add_up_to_one(gpubench):
    """P(best) sums to 1 over all offers, and so over all GPUs; a GPU has the sum of its sellers."""
    ranking = rank("vgg16")
    choice = ranking.first
    assert sum(row.p_best for row in ranking.rows) == pytest.approx(1)
    assert sum(each.p_best_of_gpu for each in ranking.by_gpu) == pytest.approx(1)
    same = [row.p_best for row in ranking.rows if row.offer.gpu_key == choice.offer.gpu_key]
    assert choice.p_best_of_gpu == pytest.approx(sum(same))
    of_tokens = rank("llama_8b_lora").first
    for workload, columns, first in (("vgg16", "80", choice), ("llama_8b_lora", "120", of_tokens)):
        shown = gpubench(workload, "--limit", "1", COLUMNS=columns).stdout
        assert "P(best)" in shown
        assert f"{first.p_best_of_gpu * 100:.0f} %" in table_of(shown).splitlines()[0]


def test_the_chance_of_an_offer_and_that_of_its_gpu_are_distinguished(gpubench):
    """An offer's chance covers one seller, that of a GPU all of its sellers; the text says which."""
    choice = rank("llama_1b").first
    assert choice.row.p_best < choice.p_best_of_gpu
    shown = " ".join(gpubench("llama_1b", "--limit", "1", "--explain", COLUMNS="120").stdout.split())
    assert "P(best) of GPU:" in shown
    words = ("vgg16", "--gpu", "rtx 4090", "--limit", "1", "--explain")
    alone = " ".join(gpubench(*words, COLUMNS="120").stdout.split())
    assert "P(best): the probability that this offer" in alone


def test_each_answer_is_detailed_with_its_caveats(gpubench):
    asked = {"hour_worth": 0, "provider": ["aws", "lium"]}
    found = rank("vgg16", **asked)
    words = ("vgg16", "--hour-worth", "0", "--limit", "1", "--provider", "aws", "--provider", "lium")
    shown = " ".join(gpubench(*words, COLUMNS="250").stdout.split())
    told = {line.names: line.choice for line in lines(found)} | {"Best to own": found.best_to_own}
    for each in told.values():
        assert gpus_of(each.offer) in shown
        assert re.search(rf"{each.offer.price_date}, (up to )?{each.row.price_age_days} days old", shown)
        assert "; fits (needs " in shown
    assert f"in {found.cloud.regions[0]}" in shown
    assert f"of its {found.cloud.offer.vcpus:g} vCPUs" in shown
    assert "data loading needs " in shown
    assert "(one host's listing" in shown


def test_a_cloud_that_requires_a_quota_is_marked(gpubench):
    shown = gpubench("vgg16", "--provider", "aws", "--limit", "1").stdout
    assert "New accounts at aws must request a quota first." in " ".join(shown.split())


def test_the_table_is_ascii_in_an_ascii_locale():
    done = subprocess.run(
        [sys.executable, "-m", "gpubench", "rank", "vgg16", "--limit", "3"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_a_tiny_job_ranks_without_a_warning(gpubench):
    done = gpubench("resnet50", "--samples", "1e-9", "--limit", "2")
    assert done.returncode == 0
    assert "Warning" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "h1000"], "unknown GPU 'h1000'"),
        (["--provider", "awz"], "unknown provider 'awz'; nearest known: aws"),
        (["vgg61"], "vgg16"),
        (["--batch-size", "many"], "--batch-size 'many' is not a whole number or max"),
        (["--rent", "--buy"], "gpubench rank no longer has --rent: leave it out"),
        (["--tax=0.19"], "gpubench rank no longer has --tax: set tax in gpubench.toml"),
        (
            ["llama_1b", "--recipe", "loss-chunks"],
            "--recipe 'loss-chunks' must be KEY=VALUE with one of the keys weight-type",
        ),
        (
            ["llama_1b", "--recipe", "chunks=2"],
            "--recipe 'chunks=2' must be KEY=VALUE with one of the keys weight-type",
        ),
        (["llama_1b", "--recipe", "loss-chunks=0"], "--recipe loss-chunks 0 must be from 1 to 65536"),
        (["llama_1b", "--recipe", "loss-chunks=2=4"], "--recipe loss-chunks '2=4' is not a whole number"),
        (["llama_1b", "--recipe", "loss-chunks=2,loss-chunks=4"], "--recipe gives loss-chunks twice"),
        (["--max-latency-ms", "5"], "add --task infer"),
        (["--have", "RTX 5090, many USD"], "is not understood"),
        (["--try", "2"], "gpubench rank no longer has --try: save the answer with gpubench rank --json"),
        (["--limit", "0", "--json"], "--limit 0 must be at least 1"),
        (["--samples", "inf"], "--samples inf must be a number from 1e-09 to 1e+15, above 0"),
    ],
)
def test_misuse_is_one_line_and_exit_2(gpubench, arguments, message):
    done = gpubench(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_usd_per_hour": 0.01}, "the setting max-usd-per-hour removed"),
        ({"mix": "vgg16"}, "gpubench.toml: mix part 'vgg16' is not WORKLOAD=SHARE"),
        ({"relative": True}, "--deadline-hours needs a job, and the setting relative ranks without one"),
        ({"reference": "gtx 9999"}, "unknown GPU 'gtx 9999'"),
        ({"utilization": 1.5}, "must be above 0 and at most 1, low end first"),
        ({"utilization": 0}, "must be above 0 and at most 1, low end first"),
        ({"resale": 1.5}, "must be from 0 to 1, low end first"),
        ({"spot_lost": 20}, "gpubench.toml: spot-lost 20 must be from 0 to below 10"),
        ({"spot_lost": 0.2}, "the setting spot-lost 0.2 applies to spot prices: add --spot"),
        ({"tax": 19}, "the setting tax 19 is a share and must be below 1: 19 % is 0.19"),
        ({"tax": "19"}, "gpubench.toml: tax must be a number, not '19' (str)"),
        ({"slots": 2.5}, "gpubench.toml: slots must be a whole number, not 2.5 (float)"),
        ({"txa": 0.19}, "unknown setting in gpubench.toml 'txa'; nearest known: tax"),
        ({"TAX": 0.19}, "unknown setting in gpubench.toml 'TAX'; nearest known: tax"),
        ({"max_wats": 300}, "unknown setting in gpubench.toml 'max-wats'; nearest known: max-watts"),
        ({"samples": 5}, "gpubench.toml: samples is not a setting: give --samples on the command line"),
        ({"loss_chunks": 8}, "loss-chunks is not a setting: give --recipe loss-chunks on the command line"),
        ({"relative": "yes"}, "gpubench.toml: relative must be true or false, not 'yes' (str)"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_one_line_and_exit_2(gpubench, given, message):
    with settings(**given):
        done = gpubench("vgg16", "--deadline-hours", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "text", "tax"),
    [
        ("gpubench.toml", "tax = 0.19\nseed = 3\n", 0.19),
        ("gpubench.toml", "\ufefftax = 0.19\n", 0.19),  # some editors start a file with a byte order mark
        ("pyproject.toml", "[tool.gpubench]\ntax = 0.07\n", 0.07),
        ("pyproject.toml", "[tool.other]\ntax = 0.07\n", None),
    ],
)
def test_settings_take_effect_and_are_listed_last(gpubench, file, text, tax):
    with settings() as folder:
        (folder / file).write_text(text)
        told = gpubench("vgg16").stderr.splitlines()[-1]
        document = json.loads(gpubench("vgg16", "--json", "--brief").stdout)
    said = f"set in {file}: tax = {tax}"
    assert (told == said) == (tax is not None)
    assert document["settings"] == ([] if tax is None else [f"tax = {tax}"])
    assert document["question"]["tax"] == (tax or 0)


def test_gpubench_toml_comes_before_pyproject_toml_and_a_broken_file_is_named(gpubench):
    with settings() as folder:
        (folder / "pyproject.toml").write_text("[tool.gpubench]\ntax = 0.07\n")
        (folder / "gpubench.toml").write_text("pue = 1.2\n")
        assert json.loads(gpubench("vgg16", "--json", "--brief").stdout)["settings"] == ["pue = 1.2"]
        (folder / "gpubench.toml").write_text("pue = \n")
        done = gpubench("vgg16")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpubench: gpubench.toml is not valid TOML: ")


def test_settings_file_does_not_affect_the_python_api():
    with settings(tax=0.19):
        assert rank("vgg16", limit=1, draws=50).question["tax"] == 0


def test_explain_lists_what_is_left_out(gpubench):
    done = gpubench("vgg16", "--limit", "1", "--explain")
    assert "Not ranked: " in done.stdout
    assert "a historic price" in done.stdout


def test_a_purchase_lists_its_assumptions(gpubench):
    own = "2x RTX 5090, 8000 USD"
    done = gpubench("vgg16", "--have", own, "--gpu", "5090", "--limit", "3", COLUMNS="300")
    assert done.returncode == 0
    assert "not given" in done.stdout
    table = done.stdout.partition("Must work")[2]
    assert "% of all hours (" in table
    assert "of 36 months at 50 %" in table


def test_the_documented_example_runs():
    path = Path(__file__).parents[2] / "examples" / "four_5090_or_two_h100.py"
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Many jobs" in done.stdout
    assert "One job" in done.stdout
    assert "pays" in done.stdout


def test_the_python_function_refuses_an_option_that_it_does_not_have():
    with pytest.raises(MisuseError, match="no option color"):
        rank(color="red")


TWO_SELLERS = """provider,instance,gpu_key,gpu_count,price_date,price_usd_per_hour,kind,seller
acme,plain host,L4,1,2026-11-18,0.31,marketplace,
acme,vetted host,L4,1,2026-11-18,0.33,marketplace,Secure
acme,company,L4,1,2026-11-18,0.35,vm,
acme,no such,L4,1,2026-11-18,0.32,vm,community
acme,nobody,L4,1,2026-11-18,0.32,vm,bob
"""


def test_the_seller_is_a_field_and_a_filter(gpubench, tmp_path):
    """A host counts as a stranger unless a source calls it vetted, so vetted hosts are a kind of their own."""
    table = tmp_path / "mine.csv"
    table.write_text(TWO_SELLERS)
    asked = ("vgg16", "--offers", str(table), "--provider", "acme", "--as-of", "2026-11-20", "--json")
    found = {row["instance"]: row["seller"] for row in json.loads(gpubench(*asked).stdout)["rows"]}
    assert found == {"plain host": "community", "vetted host": "secure", "company": "cloud"}
    for sellers, left in (("community", {"plain host"}), ("cloud,secure", {"vetted host", "company"})):
        document = json.loads(gpubench(*asked, "--seller", sellers).stdout)
        assert {row["instance"] for row in document["rows"]} == left
        assert next(each["count"] for each in document["excluded"] if each["reason"] == "--seller")
    assert "choose from cloud, secure, community" in gpubench(*asked, "--seller", "bob").stderr
    own = rank("vgg16", have="RTX 4090, 1500 USD", seller=("secure",), offers=table, as_of="2026-11-20")
    assert "own" in {row.offer.provider for row in own.rows}


def test_a_free_tier_is_noted_and_never_ranked(gpubench):
    document = json.loads(gpubench("vgg16", "--json").stdout)
    (note,) = [n["text"] for n in document["sentences"] if n["text"].startswith("Free of charge")]
    assert "google-colab" in note
    assert "12 h" in note
    assert "google-colab" not in {row["provider"] for row in document["rows"]}
    reasons = [e.reason for e in rank("vgg16").excluded if e.provider == "google-colab"]
    assert reasons
    assert all("free of charge" in reason for reason in reasons)
    asked = json.loads(gpubench("vgg16", "--json", "--gpu", "L4").stdout)
    assert not any(n["text"].startswith("Free of charge") for n in asked["sentences"])


def test_best_batch_and_equal_batch_are_distinguished(gpubench):
    best = gpubench("cnn", "--batch-size", "max", "--limit", "3", COLUMNS="160")
    assert best.returncode == 0
    assert "Batch" in best.stdout
    assert "does not compare GPUs at equal batch" in " ".join(best.stdout.split())
    equal = gpubench("cnn", "--limit", "3", COLUMNS="160")
    assert "largest batch" not in equal.stdout
    assert "Batch" not in equal.stdout
    assert rank("cnn", batch_size="max", limit=1).objective.endswith("own largest batch")


def test_predict_accepts_max_as_the_batch():
    asked = [
        "predict",
        "show",
        "--workload",
        "cnn",
        "--gpu",
        "nvidia-tesla-t4-16gb",
        "--json",
        "--batch-size",
    ]
    (found,) = json.loads(here(*asked, "max").stdout)["estimates"]
    assert found["case"]["batch_size"] == found["largest_batch"] > 4096
    refused = here(*asked, "many")
    assert refused.returncode == 2
    assert "'many' is" in refused.stderr


def test_a_missing_results_folder_is_named(tmp_path):
    ranking = rank("vgg16", gpu="l4", results=tmp_path / "nowhere")
    assert any("no folder" in each and "nowhere" in each for each in ranking.said("asked"))
    assert not any("no folder" in each for each in rank("vgg16", gpu="l4", results=tmp_path).said("asked"))


def test_model_name_as_first_argument_runs_rank():
    asked, named = (here(*words, "resnet50", "--limit", "1") for words in (("rank",), ()))
    assert (named.returncode, named.stdout) == (0, asked.stdout)
    unknown = here("resnet51")
    assert unknown.returncode == 2
    assert "unknown workload 'resnet51'; nearest known: resnet50" in unknown.stderr


def test_one_gpu_is_compared_with_several_of_another_by_their_counts(gpubench):
    done = gpubench("resnet50", "--gpu", "1x H100,4x L40S", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert {(row["gpu_key"].split("-")[1], row["gpu_count"]) for row in rows} == {("h100", 1), ("l40s", 4)}
