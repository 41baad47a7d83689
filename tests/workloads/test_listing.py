"""`gpubench list` has every workload and every GPU, with no figure cut short."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from command import here

from gpubench.discovery import workload_names
from gpubench.specs import load_specs


def gpubench(*arguments: str) -> str:
    done = here(*arguments, COLUMNS="200")
    assert done.returncode == 0
    return done.stdout


def test_the_list_shows_every_workload() -> None:
    lines = gpubench("list").splitlines()
    assert {line.split()[0] for line in lines[3:] if line} == {*workload_names()}
    vgg16 = next(line for line in lines if line.startswith("vgg16 "))
    for cell in ("138,357,544", "30.9 GFLOP", "92.6 GFLOP", "32, 64, 128", "3 x 224 x 224"):
        assert cell in vgg16


def test_frozen_or_uncounted_work_is_not_shown_as_a_figure() -> None:
    lines = {line.split()[0]: line for line in gpubench("list").splitlines()[3:]}
    assert "6,425,354 of 21.1M" in lines["vgg16_transfer"]
    assert "none" in lines["augment"]
    assert lines["augment"].count("—") == 2
    rows = {row["name"]: row for row in json.loads(gpubench("list", "--json"))["workloads"]}
    assert rows["augment"]["forward_flops_per_sample"] is None
    assert rows["augment"]["train_flops_per_sample"] is None
    assert rows["vgg16_transfer"]["trainable_parameters"] == 6_425_354


def test_the_json_list_contains_the_figures() -> None:
    rows = {row["name"]: row for row in json.loads(gpubench("list", "--json"))["workloads"]}
    assert rows["vgg16"]["train_flops_per_sample"] == 92_648_177_664
    assert rows["vgg16"]["batches"] == [32, 64, 128]
    assert rows["cnn"]["parameters"] == 93_322


def test_the_listed_gpus_match_the_table() -> None:
    cards, _, others = gpubench("list", "--gpus").partition("\n\n")
    assert {line.split()[0] for line in cards.splitlines()[2:]} == {*load_specs()}
    assert others.startswith("Processor")
    assert len(json.loads(gpubench("list", "--gpus", "--json"))["gpus"]) == len(load_specs())


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("list", "--gpus")])
def test_listing_imports_no_heavy_library(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom gpubench.cli.app import app\n"
        f"app({list(arguments)!r}, standalone_mode=False)\n"
        "assert not {'torch', 'pandas', 'plotly', 'scipy', 'numpy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("what", [[], ["--gpus"]])
def test_a_narrow_terminal_cuts_no_cell(what: list[str]) -> None:
    pexpect = pytest.importorskip("pexpect")
    child = pexpect.spawn(
        sys.executable, ["-m", "gpubench", "list", *what], dimensions=(200, 80), timeout=60, encoding="utf-8"
    )
    text = child.read()
    child.close()
    assert child.exitstatus == 0
    assert "…" not in text
    for cell in (
        ["nvidia-l4-24gb", "FP32", "TFLOP/s"] if what else ["138,357,544", "92.6 GFLOP", "32, 64, 128"]
    ):
        assert cell in text
