"""The published figures that are shown next to a card's prediction, recomputed from the published rows.

``PYTHONPATH=tests python tests/tools/test_card_readings.py`` writes the shipped table.
"""

from __future__ import annotations

import csv
import io

import msgspec
import pandas as pd
import pytest
from command import here

import gpubench
from gpubench.folders import data_path
from gpubench.interval import Interval
from gpubench.models import Estimate, Precision
from gpubench.predict.estimate import READINGS_FILE, CardReading, including, reading_of
from gpubench.profile import load_profiles
from gpubench.specs import load_specs
from tools.published import published_rows, usual_math_mode

SAME = {
    "resnet50": "resnet50",
    "vgg16": "vgg16",
    "bert_base_squad": "bert_base",
    "vit_b_16": "vit_b16",
    "vit_base_patch16_224": "vit_b16",
    "ddpm_64": "unet_ddpm",
}
"""Published models that are also workloads of the package, with samples of the same shape."""
MOST_ROWS = 300


def made() -> pd.DataFrame:
    """Keep, for each card, model and precision, the fastest row at the largest batch."""
    rows = pd.DataFrame(published_rows("published.csv"))
    rows = rows[
        (rows["mode"] == "train") & rows.model.isin(SAME) & (rows.metric == "throughput") & (rows.doubt == "")
    ]
    known = rows[rows.gpu_key.isin(load_specs()) & (rows.batch_size.str.isdigit())]
    mode = known.math_mode.where(known.math_mode.isin(("fp32", "tf32", "amp")), usual_math_mode(known))
    told = pd.DataFrame(
        {
            "workload": known.model.map(SAME),
            "gpu_key": known.gpu_key,
            "math": mode,
            "batch_size": known.batch_size.astype(int),
            "samples_per_s": known.value.astype(float),
            "software": known.software + known.data_input.map(lambda each: f", {each}" if each else ""),
            "source": known.source,
        }
    )
    told = told[told.math.isin(("fp32", "tf32", "amp"))].sort_values(["batch_size", "samples_per_s"])
    last = told.groupby(["workload", "gpu_key", "math"]).tail(1)
    return last.sort_values(["workload", "gpu_key", "math"]).reset_index(drop=True)


def text() -> str:
    return made().to_csv(index=False, lineterminator="\n")


def test_the_shipped_table_is_made_from_the_published_rows():
    assert data_path(READINGS_FILE).read_text() == text()
    assert 80 < len(list(csv.DictReader(io.StringIO(text())))) <= MOST_ROWS


@pytest.mark.parametrize(
    "row", made().to_dict("records"), ids=lambda row: f"{row['workload']}-{row['gpu_key']}"
)
def test_each_card_reading_is_found_by_its_case(row):
    assert row["workload"] in load_profiles()
    precision = {"fp32": Precision.FP32, "tf32": Precision.TF32, "amp": Precision.AMP_FP16}[row["math"]]
    found = reading_of(row["workload"], row["gpu_key"], precision)
    assert found is not None
    assert found.samples_per_s == pytest.approx(row["samples_per_s"])


def test_interval_is_extended_exactly_to_a_reading_outside_it():
    told = Interval(100.0, 80.0, 125.0)
    reading = CardReading(
        workload="w",
        gpu_key="nvidia-l4-24gb",
        math="amp",
        batch_size=1,
        samples_per_s=60.0,
        software="s",
        source="x",
    )
    faster = msgspec.structs.replace(reading, samples_per_s=130.0)
    assert including(told, reading, 4) == Interval(100.0, 60.0, 125.0)
    assert including(told, faster, 1) == Interval(100.0, 80.0, 130.0)
    assert including(told, msgspec.structs.replace(reading, samples_per_s=90.0), 1) == told
    assert including(Interval(100.0), reading, 1) == Interval(100.0)
    assert including(told, reading, 8) == told, "a far smaller batch may be slower"
    assert including(told, msgspec.structs.replace(faster, batch_size=5), 1) == told, (
        "a far larger one faster"
    )
    assert including(told, msgspec.structs.replace(reading, batch_size=5), 1) == Interval(100.0, 60.0, 125.0)


def test_a_reading_at_batch_448_does_not_widen_a_prediction_for_batch_1():
    (told,) = gpubench.predict("resnet50", gpu="RTX 4090", batch_size=1).values()
    assert isinstance(told, Estimate)
    assert "published at batch 448" in told.published
    assert "widened" not in told.published
    assert told.high < 2 * told.samples_per_s


def test_published_figures_of_a_v100_are_inside_its_prediction():
    done = here("predict", "show", "bert_base", "--gpu", "V100 SXM2 16GB", "--precision", "amp")
    assert done.returncode == 0
    assert "189 sequences/s published at batch 48 (NGC PyTorch 22.09, loader)" in " ".join(
        done.stdout.split()
    )


def test_a_ranking_uses_the_interval_of_the_prediction():
    key = "nvidia-rtx-6000-ada-48gb"
    (told,) = gpubench.predict("bert_base", gpu=key).values()
    estimates = [row.estimate for row in gpubench.rank("bert_base", as_of="2026-11-20").rows]
    ranked = next(each for each in estimates if each.gpu_key == key)
    assert isinstance(told, Estimate)
    reading = reading_of("bert_base", key, told.case.precision)
    assert reading is not None
    assert (ranked.low, ranked.high) == (told.low, told.high)
    assert told.low == reading.samples_per_s < told.samples_per_s
    assert "widened to include it" in ranked.published


if __name__ == "__main__":
    data_path(READINGS_FILE).write_text(text())
