"""load_runs(): tidy, units in the names, unknown is missing."""

from __future__ import annotations

import gpubench
from gpubench.record import store


def test_every_measurement_is_one_row_with_case_figures_and_spread(tmp_path, make_run):
    store.write_run(tmp_path, make_run())
    frame = gpubench.load_runs(tmp_path)
    assert len(frame) == 1
    row = frame.iloc[0]
    assert (row.workload, row.precision, row.execution, row.batch_size) == ("cnn", "fp32", "eager", 64)
    assert row.samples_per_s * row.step_time_s == 64
    assert row.step_time_median_s == 0.1
    assert row.rounds == 3
    assert row.joules_per_sample is None


def test_no_runs_give_an_empty_frame_with_the_same_columns(tmp_path, make_run):
    empty = gpubench.load_runs(tmp_path)
    store.write_run(tmp_path, make_run())
    assert list(empty.columns) == list(gpubench.load_runs(tmp_path).columns)
    assert empty.empty
