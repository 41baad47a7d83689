"""Equal batch and best batch are kept apart on the page."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.models import Precision
from gpubench.report.export import as_csv
from gpubench.report.sections.amp import speed_ups

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


def test_the_throughput_at_the_largest_batch_has_a_chart_and_rows_of_its_own(data) -> None:
    charts = next(part for part in block_of("throughput", data).parts if hasattr(part, "figures"))
    titles = [figure.title for figure in charts.figures]
    assert titles == ["cnn", "cnn, best batch", "lstm", "vgg16"]
    assert "139,042" not in charts.figures[0].alt
    assert "batch 139,042, largest that fits" in charts.figures[1].alt
    rows = [row for row in table_of("throughput", data).rows if row[0] == "cnn, best batch"]
    assert [row[3] for row in rows] == ["139,042\nlargest that fits", "250,000\nlargest that fits"]
    assert "not comparable with an equal batch" in words_of("throughput", data)


def test_amp_at_the_best_batch_is_a_group_of_its_own(data) -> None:
    pairs = {(p.of.case.batch_size, p.to.case.batch_size): p for p in speed_ups(data.results)}
    assert pairs[250_000, 139_042].value == pytest.approx(2 * 250_000 / 139_042, rel=0.01)
    assert not {pair for pair in pairs if (250_000 in pair) != (139_042 in pair)}
    charts = next(part for part in block_of("amp", data).parts if hasattr(part, "figures"))
    assert [figure.title for figure in charts.figures] == ["Equal batch", "Best batch"]
    (row,) = [row for row in table_of("amp", data).rows if row[0] == "cnn\nbest batch"]
    assert row[4] == "250,000\nlargest that fits\nagainst 139,042\nlargest that fits"
    assert row[7] == "—", "after other batches other losses"


def test_without_a_search_nothing_speaks_of_it() -> None:
    plain = samples.report_data(samples.h200_run())
    assert "largest that fits" not in words_of("throughput", plain)
    assert [
        f.title for f in next(p for p in block_of("amp", plain).parts if hasattr(p, "figures")).figures
    ] == [None]


def test_the_csv_says_how_the_batch_came_about(data) -> None:
    lines = as_csv(data).splitlines()
    assert lines[0].endswith("batch_choice")
    assert sum(line.endswith("largest") for line in lines) == 2
