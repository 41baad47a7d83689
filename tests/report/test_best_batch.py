"""The page keeps results at an equal batch and at the best batch apart."""

from __future__ import annotations

import csv
import re

import msgspec
import pytest

from gpubench.effects import amp_effects, inference_effects, results_of
from gpubench.models import Execution, Precision, TaskKind
from gpubench.report.page import as_csv
from gpubench.sections.compared import cpu_gpu_pairs

from . import samples
from .test_deeper_sections import table_of
from .test_sections import block_of, words_of


def _searched(batch: int, precision: Precision, step_s: float):
    made = samples.measurement(samples.case("cnn", batch, precision), step_s)
    return msgspec.structs.replace(made, batch_choice="largest")


@pytest.fixture
def data():
    run = samples.h200_run()
    best = (_searched(139_042, Precision.FP32, 0.5), _searched(250_000, Precision.AMP_BF16, 0.25))
    return samples.report_data(samples.h200_run(measurements=(*run.measurements, *best)))


def test_the_throughput_at_the_largest_batch_has_its_own_chart_and_rows(data) -> None:
    charts = next(part for part in block_of("throughput", data).parts if hasattr(part, "figures"))
    titles = [figure.title for figure in charts.figures]
    assert titles == ["cnn", "cnn, best batch", "lstm", "vgg16"]
    assert "139,042" not in charts.figures[0].alt
    assert "batch 139,042, largest" in charts.figures[1].alt
    rows = [row[0] for row in table_of("throughput", data).rows if row[0].startswith("cnn, best batch\n")]
    assert ["139,042, largest that fits" in rows[0], "250,000, largest that fits" in rows[1]] == [True, True]
    assert "cannot be compared" in words_of("throughput", data)


def test_the_rows_of_the_chart_of_best_batches_are_not_cut(data) -> None:
    charts = next(part for part in block_of("throughput", data).parts if hasattr(part, "figures"))
    labels = charts.figures[1].figure["layout"]["yaxis"]["ticktext"]
    assert list(labels) == ["fp32<br>batch 139,042", "amp-bf16, channels_last<br>batch 250,000"]


def test_every_table_of_cases_says_which_batch_was_searched(data) -> None:
    label = "cnn fp32 graph batch 139,042, the largest that fits"
    text = str(block_of("method", data))
    assert label in text
    for case in ("cnn fp32 graph batch 139,042", "cnn amp-bf16 graph batch 250,000"):
        assert text.count(case) == text.count(f"{case}, the largest ")
    run = data.runs[0]
    eager = samples.measurement(samples.case("cnn", 139_042, Precision.FP32, Execution.EAGER), 0.6)
    eager = msgspec.structs.replace(eager, batch_choice="largest")
    paired = samples.report_data(msgspec.structs.replace(run, measurements=(*run.measurements, eager)))
    assert any("batch 139,042, largest that fits" in row[0] for row in table_of("host", paired).rows)


def test_the_fastest_is_at_a_given_batch_if_possible(data) -> None:
    both = samples.report_data(data.runs[0], samples.cpu_run())
    (found,) = [c for c in cpu_gpu_pairs(both) if c.cpu.case.workload == "cnn"]
    assert found.gpu.case.batch_size == 512


def test_amp_at_the_best_batch_is_a_separate_group(data) -> None:
    pairs = {(p.result.case.batch_size, p.baseline.case.batch_size): p for p in amp_effects(data.results)}
    assert pairs[250_000, 139_042].value == pytest.approx(2 * 250_000 / 139_042, rel=0.01)
    assert not {pair for pair in pairs if (250_000 in pair) != (139_042 in pair)}
    (row,) = [row for row in table_of("amp", data).rows if row[0].startswith("cnn, best batch\n")]
    assert re.findall(r"\d+,\d+", row[0]) == ["250,000", "139,042"]
    assert row[5] == "—", "losses after other batches differ"


def test_fixed_batch_page_does_not_mention_a_batch_search() -> None:
    plain = samples.report_data(samples.h200_run())
    assert "largest that fits" not in words_of("throughput", plain)
    assert "best batch" not in words_of("amp", plain)


def test_the_csv_says_how_the_batch_was_chosen(data) -> None:
    rows = list(csv.DictReader(as_csv(data).splitlines()))
    assert sum(row["batch_choice"] == "largest" for row in rows) == 2


def test_inference_is_compared_with_the_faster_of_two_fp32_layouts() -> None:
    def infer(precision: Precision, layout: str, step_s: float):
        case = msgspec.structs.replace(
            samples.case("cnn", 64, precision), task=TaskKind.INFER, memory_format=layout
        )
        return samples.measurement(case, step_s)

    fp32 = [infer(Precision.FP32, "channels_last", 0.5), infer(Precision.FP32, "contiguous", 0.8)]
    for rows in (fp32, fp32[::-1]):
        run = samples.h200_run(measurements=(*rows, infer(Precision.AMP_BF16, "channels_last", 0.25)))
        (pair,) = inference_effects(results_of(run))
        assert pair.value == pytest.approx(2.0, rel=1e-3)
