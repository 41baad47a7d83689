"""`gpubench predict` as a user types it."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from click.testing import CliRunner
from command import here

from gpubench.cli.app import app
from gpubench.cli.verbs import predict as verb
from gpubench.errors import MisuseError
from gpubench.interval import Interval
from gpubench.predict.calibration import load_calibration
from gpubench.specs import load_specs
from gpubench.units import GIB


def test_show_prints_json_or_text():
    result = CliRunner().invoke(
        app, ["predict", "show", "--workload", "vgg16", "--gpu", "Tesla T4", "--json"]
    )
    assert result.exit_code == 0, result.output
    (estimate,) = json.loads(result.stdout)["estimates"]
    assert estimate["basis"] == "predicted"
    assert "published rows" in estimate["reasons"]
    result = CliRunner().invoke(app, ["predict", "show", "--workload", "vgg16"])
    assert " images/s" in result.stdout
    assert result.stdout.startswith("vgg16 amp-")
    assert f"all {len(load_specs())} GPUs" in result.stdout


def test_show_fails_if_no_gpu_has_a_figure():
    asked = ("predict", "show", "resnet50", "--precision", "tf32", "--gpu", "V100 PCIe 32GB")
    said = (
        "gpubench: no GPU has a prediction: V100 PCIe 32GB has no TF32 tensor cores; "
        "change the GPU, the precision or the batch\n"
    )
    done = here(*asked)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    done = here(*asked, "--json")
    assert (done.returncode, done.stderr) == (2, said)
    document = json.loads(done.stdout)
    assert (document["estimates"], len(document["refused"])) == ([], 1)
    assert here(*asked, "--gpu", "L4").returncode == 0
    nowhere = here("predict", "show", "llama_1b", "--precision", "fp8").stderr
    assert nowhere.startswith("gpubench: no GPU has a prediction: fp8 is measured, never predicted"), nowhere


def test_a_model_after_predict_is_shown():
    done = here("predict", "resnet50", "--gpu", "L4")
    assert (done.returncode, done.stdout) == (0, here("predict", "show", "resnet50", "--gpu", "L4").stdout)


@pytest.mark.parametrize("typed", ["2x L4", "2xL4", "L4 x2"])
def test_show_answers_for_one_gpu_and_says_so(typed):
    done = here("predict", "show", "resnet50", "--gpu", typed)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpubench: {typed!r} is 2 GPUs: give the name of one, 'L4'\n"


@pytest.mark.parametrize("tool", ["evaluate", "calibrate"])
def test_without_the_tools_the_missing_table_is_named(tool, tmp_path, monkeypatch):
    """A wheel contains only the package."""
    monkeypatch.setattr(verb.folders, "package_path", lambda name: tmp_path / "gpubench" / name)
    with pytest.raises(MisuseError, match=r"no .*/tools/data/published\.csv\): run this in a checkout"):
        verb._tool(tool)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("calibrate", "-o", "x.json"), "gpubench predict calibrate --with DIR"),
        (("predict", "evaluate", "--hold-out", "gpu"), "python -m tools.evaluate"),
    ],
)
def test_a_removed_verb_names_the_replacement(words, instead):
    done = here(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert instead in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_option_is_requested_by_its_command_line_name():
    done = here("predict", "calibrate")
    assert (done.returncode, done.stderr) == (2, "gpubench: --with is missing: give a path\n")


def test_calibration_fitted_on_other_tables_is_stale():
    """One of the tables ships with the package; the other has the published rows."""
    calibration = load_calibration()
    assert calibration.stale == (), "run python -m tools.calibrate -o gpubench/data/calibration.json"
    for name in ("gpus.csv", "published.csv", "profile of llama_8b_lora"):
        older = msgspec.structs.replace(calibration, inputs=calibration.inputs | {name: "0" * 64})
        assert older.stale == (name,)


def test_memory_begins_with_whether_it_fits():
    """One line per card: the verdict, the largest batch, one figure and its interval."""
    asked = ("memory", "transformer", "--batch-size", "16", "--gpu", "RTX 4090", "--gpu", "RTX 5080")
    done = here(*asked, "--gpu", "RTX 5070")
    head, _, _ = done.stdout.partition("\n\n")
    lines = re.sub(r"\n(?!RTX)", " ", head).splitlines()
    smallest, middle, largest = (" ".join(line.split()) for line in lines)
    assert smallest.startswith("RTX 5070: batch 16 does not fit; needs ")
    assert middle.startswith("RTX 5080: batch 16 may fit; needs ")
    assert all("; largest batch " in line for line in (smallest, middle))
    assert largest.startswith("RTX 4090: fits")
    told = {card["gpu_keys"][0]: card for card in json.loads(here(*asked, "--json").stdout)["cards"]}
    card = told["nvidia-geforce-rtx-4090-24gb"]
    assert f"; largest batch {card['largest_batch']}" in largest
    need = Interval(*(card[f"device_bytes{end}"] / GIB for end in ("", "_low", "_high")))
    assert largest.endswith(f"; needs {need.text()} GiB, has 24 GiB")


def test_memory_without_a_named_card_begins_with_the_number_of_cards_that_fit():
    first = " ".join(here("memory", "vgg16").stdout.partition("\n\n")[0].split())
    assert " fits on " in first
    assert "; on the smallest of them (" in first
    assert " GiB) at batch " in first


def shown(*words: str) -> dict:
    done = here("predict", "show", "vgg16", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_power_limit_costs_time_and_saves_energy():
    (estimate,) = shown("--gpu", "RTX 4090", "--power-limit", "300")["estimates"]
    assert estimate["power_w_low"] < estimate["power_w"] < estimate["power_w_high"] < 450
    assert estimate["power_limit_w"] == 300
    assert 1 <= estimate["capped_time_low"] <= estimate["capped_time"] < estimate["capped_time_high"]
    assert estimate["capped_energy_low"] < estimate["capped_energy"] < 1
    (uncapped,) = shown("--gpu", "RTX 4090")["estimates"]
    assert uncapped["capped_time"] is uncapped["capped_energy"] is uncapped["power_limit_w"] is None
    assert uncapped["samples_per_s"] == estimate["samples_per_s"]
    done = here("predict", "show", "vgg16", "--gpu", "RTX 4090", "--power-limit", "300")
    assert "under a limit of 300 W" in done.stdout


def test_measured_power_allows_a_lower_power_limit_than_the_usual_value():
    """In the shipped run, an H100 drew 0.88 of its board power."""
    (read,) = shown("--gpu", "H100 SXM", "--power-limit", "450")["estimates"]
    assert (read["basis"], read["power_w_low"]) == ("reference", None)
    (usual,) = shown("--gpu", "H100 PCIe", "--power-limit", "225")["estimates"]
    assert usual["power_w_low"] is not None
    assert read["capped_time"] > usual["capped_time"]


@pytest.mark.parametrize("limit_w", ["20", "70", "300"])
def test_an_unknown_limit_is_refused_with_the_known_ones(limit_w):
    done = here("predict", "show", "vgg16", "--gpu", "T4", "--power-limit", limit_w)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        f"gpubench: --power-limit {limit_w}: T4 has a limit of 70 W by default, and the lowest "
        "measured limit is 24 W: give one between the two\n"
    )


def test_among_many_gpus_those_that_a_limit_does_not_affect_are_refused():
    answers = shown("--power-limit", "150")
    assert any("T4 has a limit of 70 W" in each["reason"] for each in answers["refused"])
    assert {each["power_limit_w"] for each in answers["estimates"]} == {150}


def test_borderline_case_gets_an_estimate_if_the_gpu_is_named():
    """A published run did fit: Qwen2.5 1.5B with QLoRA at 4,096 tokens reserved 13.56 GiB on an RTX 4080."""
    asked = ("qwen2.5-1.5b", "--qlora", "--context", "4096", "--batch-size", "1", "--execution", "eager")
    done = here("predict", "show", *asked, "--recipe", "loss-chunks=1", "--gpu", "RTX 4080", "--json")
    assert done.returncode == 0, done.stderr
    (estimate,) = json.loads(done.stdout)["estimates"]
    assert estimate["fits_memory"] is None
    assert estimate["memory_text"].startswith("may fit")
    assert estimate["device_bytes_low"] < 13.56 * GIB < 16 * GIB < estimate["device_bytes_high"]
