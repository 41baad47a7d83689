"""Scoring a user's file: the fit does not use it, its order does not matter, and bad rows are named."""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner
from csvs import write_csv

from gpubench.blocks.parts import Bullets, Table
from gpubench.cli.app import app
from gpubench.errors import MisuseError
from gpubench.models import TaskKind
from gpubench.profile import load_profiles
from gpubench.sections.prediction import scored
from gpubench.units import UNKNOWN
from tools.evaluate import score
from tools.published import DATA, model_profiles, profile_named, published_rows, totals_of

KEYS = {
    "pairs", "targets", "mape", "median_ape", "coverage_90", "half_width_factor", "spearman", "regret", "by_slice",
}  # fmt: skip


GPUS = {"GTX 1080 Ti", "RTX 2080 Max-Q", "RTX 3090", "RTX A6000", "A100-PCIe-40GB"}


@pytest.fixture(scope="module")
def rows():
    """Rename one source of the shipped rows, as if it were a third party's file."""
    with (DATA / "published.csv").open(encoding="utf-8", newline="") as file:
        chosen = [
            row for row in csv.DictReader(file) if row["source"] == "lambda-tensorflow" and row["gpu"] in GPUS
        ]
    return [row | {"source": "lambda-stranger"} for row in chosen]


@pytest.fixture(scope="module")
def document(rows, tmp_path_factory):
    return score(write_csv(tmp_path_factory.mktemp("score") / "x.csv", rows))


def test_the_document_has_the_keys_that_others_rely_on(document):
    assert document.keys() >= KEYS
    assert document["regret"].keys() >= {"throughput"}
    assert 0 < document["mape"] < 0.25
    assert 0.8 < document["coverage_90"] <= 1
    assert document["half_width_factor"] > 1
    assert document["spearman"] > 0.9
    assert {"precision: fp32", "same architecture", "all pairs"} <= document["by_slice"].keys()


def test_the_order_of_the_rows_does_not_matter(rows, document, tmp_path):
    assert score(write_csv(tmp_path / "x.csv", rows[::-1])) == document


@pytest.mark.parametrize(("by", "near"), [(100, 0.015), (0.01, 0.07)])
def test_constant_factor_on_all_values_barely_changes_the_score(rows, document, tmp_path, by, near):
    """In another unit no level is known, so the figures come from ratios alone, and stay close.

    If all GPUs seem slow, the intervals widen and cover more.
    """
    far, further = (
        score(
            write_csv(tmp_path / "x.csv", [row | {"value": str(each * float(row["value"]))} for row in rows])
        )
        for each in (by, by * by)
    )
    for key in ("pairs", "mape", "median_ape", "coverage_90", "spearman"):
        assert far[key] == pytest.approx(further[key], abs=2e-4)
        assert far[key] == pytest.approx(document[key], abs=near)


def test_strange_rows_are_skipped_counted_and_named(rows, document, tmp_path):
    strange = [rows[0] | {"gpu": "Banana 9000", "gpu_key": ""}, rows[0] | {"value": "nan"}]
    again = score(write_csv(tmp_path / "x.csv", [*rows, *strange]))
    assert again["mape"] == document["mape"]
    assert again["rows"]["skipped"] - document["rows"]["skipped"] == 2
    assert any("Banana 9000" in reason for reason in again["skipped"])


def test_different_column_layout_is_read_and_its_assumptions_are_listed(rows, document, tmp_path):
    """The file has upper-case names, another order and separator, an extra column, and no batch, mode or metric."""
    kept = ("value", "unit", "precision", "model", "gpu_key", "gpu", "math_mode")
    lines = [";".join([*(name.upper() for name in kept), "my note"])]
    lines += [";".join([*(row[name] for name in kept), "x"]) for row in rows]
    path = tmp_path / "lambda-stranger.csv"
    path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    again = score(path)
    assert again["pairs"] > 0
    assert {text.partition(":")[0] for text in again["assumed"]} == {"source", "mode", "batch_size", "metric"}
    assert again["columns_not_read"] == ["my note"]
    assert document["assumed"] == []


def test_a_table_without_measurements_names_the_missing_columns(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("test,shape,speed\nmatmul,1024,3\n", encoding="utf-8")
    with pytest.raises(MisuseError, match="no column gpu,"):
        score(path)


def test_a_file_of_one_gpu_has_no_pairs_and_says_so(rows, tmp_path):
    one = [row for row in rows if row["gpu"] == rows[0]["gpu"]]
    document = score(write_csv(tmp_path / "x.csv", one))
    assert document["pairs"] == 0
    assert document["spearman"] is None


def test_table_without_usable_rows_is_an_error(rows, tmp_path):
    with pytest.raises(MisuseError, match="none of 1 rows"):
        score(write_csv(tmp_path / "x.csv", [rows[0] | {"model": "nobodynet"}]))


def test_the_command_prints_json_or_text(rows, document, tmp_path):
    path = write_csv(tmp_path / "x.csv", rows)
    result = CliRunner().invoke(app, ["predict", "score", str(path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["mape"] == document["mape"]
    result = CliRunner().invoke(app, ["predict", "score", str(path)])
    assert "MAPE" in result.stdout


# --- names, and the fix for a row ---------------------------------------------------------------------------

OURS = [
    {"source": "mine", "mode": "train", "gpu": gpu, "model": "transformer", "precision": "amp", "batch_size": "8",
     "metric": "throughput", "unit": "tokens/s", "value": value}
    for gpu, value in (("RTX 3090", "30000"), ("RTX 4090", "52000"), ("NVIDIA A100-SXM4-80GB", "60000"))
]  # fmt: skip


def test_shipped_workload_is_scored_by_its_name(tmp_path):
    document = score(write_csv(tmp_path / "x.csv", OURS))
    assert document["rows"] == {"read": 3, "used": 3, "skipped": 0}
    assert document["pairs"] == 6
    assert document["by_slice"]["model: transformer"]["pairs"] == 6
    assert document["by_slice"]["class: transformer"]["pairs"] == 6


def test_a_workload_has_the_totals_of_the_published_profile_of_its_network():
    """ResNet-50 has two profiles: one traced from torchvision, the other from the workload."""
    found = totals_of(load_profiles()["resnet50"], TaskKind.TRAIN)
    published = model_profiles().loc[("train", "resnet50")]
    for column, value in found.items():
        if (
            column not in {"tokens_per_sample", "approximate"} and "chain" not in column
        ):  # published profiles lack these
            assert value == pytest.approx(published[column], rel=2e-3, abs=1e-4), column


@pytest.mark.parametrize("name", ["llama_1b", "bert_transfer", "augment"])
def test_a_workload_with_bfloat16_or_frozen_weights_has_no_published_profile(name):
    assert ("train", name) not in model_profiles().index


@pytest.mark.parametrize(
    ("source", "model", "profile"),
    [
        ("MLPerf v3.1", "BERT", "bert_large_s512"),
        ("mlperf", "resnet", "resnet50"),
        ("mine", "bert", "bert"),
        ("mine", "vit_b16", "vit_b16+Adam"),
        ("mine", "vgg16", "vgg16"),
    ],
)
def test_model_label_is_resolved_per_publisher(source, model, profile):
    assert profile_named(source, model) == profile


def test_the_labels_have_a_source_and_a_profile():
    for row in published_rows("labels.csv"):
        assert row["source"]
        assert ("train", row["model"]) in model_profiles().index


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": "nobody's"}, {"precision": "fp7"}, {"mode": "sleep"}, {"model": "nobodynet"}, {"value": "-1"},
        {"model": "resnet50"}, {"unit": "parsecs"}, {"unit": "ms", "metric": "step_time", "batch_size": "0"},
        {"gpu": "AMD Instinct MI250 (per GCD)"},
    ],
)  # fmt: skip
def test_each_refused_row_says_what_would_fix_it(change, tmp_path):
    document = score(write_csv(tmp_path / "x.csv", [OURS[0] | change, *OURS]))
    (reason,) = document["skipped"]
    assert document["fixes"][reason]
    told = [item for part in scored(document) if isinstance(part, Bullets) for item in part.items]
    assert f"skipped: 1 x {reason}: {document['fixes'][reason]}" in told


@pytest.mark.parametrize(
    ("figure", "value", "title", "shown"),
    [("coverage_90", 0.0, "90 % interval covers", "0 %"), ("half_width_factor", None, "Half-width", UNKNOWN)],
)
def test_a_figure_of_zero_is_shown_and_an_unknown_one_is_a_dash(document, figure, value, title, shown):
    slices = {"all pairs": document["by_slice"]["all pairs"] | {figure: value}}
    table = next(part for part in scored(document | {"by_slice": slices}) if isinstance(part, Table))
    assert table.rows[0][[column.title for column in table.columns].index(title)] == shown


@pytest.mark.parametrize("model", ["llama_1b", "llama_8b_lora", "llama-3.1-8b"])
def test_a_model_of_ours_that_cannot_be_scored_says_why(model, tmp_path):
    document = score(write_csv(tmp_path / "x.csv", [OURS[0] | {"model": model}, *OURS]))
    (reason,) = document["skipped"]
    assert "not all of its weights are trained in float32" in reason


OWN = """
import torch


def build(batch_size):
    model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))
    return model, torch.randn(batch_size, 512), torch.randint(10, (batch_size,)), torch.nn.CrossEntropyLoss()
"""


@pytest.mark.usefixtures("traced_here")
def test_user_model_is_scored_by_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("raise ValueError('no such data')")
    rows = [
        {"gpu": gpu, "model": "./net.py", "mode": "train", "precision": "fp32", "batch_size": 256,
         "unit": "samples/s", "value": value}
        for gpu, value in (("RTX 3090", 90_000), ("RTX A6000", 85_000), ("A100-PCIe-40GB", 110_000))
    ]  # fmt: skip
    rows += [rows[0] | {"model": "./broken.py"}, rows[0] | {"model": "./missing.py"}]
    found = score(write_csv(tmp_path / "x.csv", rows))
    assert found["rows"]["used"] == 3
    assert found["pairs"] == 6
    assert any("broken.py" in reason and "no such data" in reason for reason in found["skipped"])
    assert any("missing.py" in reason and "no such file" in reason for reason in found["skipped"])
    assert all("by its file" in found["fixes"][reason] for reason in found["skipped"])
