"""The frame of ``load_runs``: one row per measurement, units in the names, and no value for an unknown."""

from __future__ import annotations

import msgspec
import pytest

import gpubench
from gpubench.blocks.parts import Bullets, Paragraph
from gpubench.blocks.terminal import show
from gpubench.cli.verbs.run import run_parts
from gpubench.models import Finding, FindingKind, Launch, MicroResult, Round
from gpubench.record import store
from gpubench.record.figures import SPREAD, cold_costs, run_document, spread
from gpubench.sections.data import brief, of_run


def test_every_measurement_is_one_row_with_case_figures_and_spread(tmp_path, make_run):
    store.write_run(tmp_path, make_run())
    frame = gpubench.load_runs(tmp_path)
    assert len(frame) == 1
    row = frame.iloc[0]
    assert (row.workload, row.precision, row.execution, row.batch_size) == ("cnn", "fp32", "eager", 64)
    assert row.samples_per_s * row.step_time_s == 64
    assert row.step_time_median_s == 0.1
    assert (row.rounds, row.outliers, row.launches) == (3, 0, 1)
    assert row.launch_step_time_min_s == row.launch_step_time_max_s == pytest.approx(0.1)
    assert row.joules_per_sample is None


def test_no_runs_give_an_empty_frame_with_the_same_columns(tmp_path, make_run):
    empty = gpubench.load_runs(tmp_path)
    store.write_run(tmp_path, make_run())
    assert list(empty.columns) == list(gpubench.load_runs(tmp_path).columns)
    assert empty.empty


def test_launches_and_outliers_are_distinguished(make_run):
    """Launches of 0.1 and 0.2 s a step differ from each other; only the round of 8 s is an outlier within its launch."""
    (row,) = make_run().measurements
    slow = Launch(index=1, rounds=tuple(Round(steps=4, wall_s=w) for w in (0.8, 0.82, 0.78, 0.8, 8.0)))
    found = spread(msgspec.structs.replace(row, launches=(*row.launches, slow)))
    assert found["outliers"] == 1
    assert found["launch_step_time_min_s"] == pytest.approx(0.1)
    assert found["launch_step_time_max_s"] == pytest.approx(11.2 / 20)
    assert found["step_time_median_s"] == pytest.approx(0.1975)
    nothing = spread(msgspec.structs.replace(row, launches=()))
    assert nothing == dict.fromkeys(SPREAD) | {"rounds": 0}


def test_the_spread_is_flat_in_the_json_of_a_run(make_run):
    (row,) = run_document(make_run())["measurements"]
    assert row["step_time_mad_s"] == pytest.approx(0.0025)
    assert row["step_time_p5_s"] < row["step_time_median_s"] < row["step_time_p95_s"]
    assert len(row["launches"]) == 1


def test_one_time_costs_are_ranges_over_launches_in_order(make_run):
    (row,) = make_run().measurements
    costs = ({"first_step": 0.5, "import": 3.0}, {"first_step": 0.2, "capture": 1.0, "unheard_of": 9.0})
    launches = tuple(msgspec.structs.replace(row.launches[0], cold_s=cold) for cold in costs)
    row = msgspec.structs.replace(row, launches=launches)
    assert list(cold_costs((row,)).items()) == [
        ("import", (3.0, 3.0)),
        ("first_step", (0.2, 0.5)),
        ("capture", (1.0, 1.0)),
    ]
    run = msgspec.structs.replace(make_run(), measurements=(row,))
    (line,) = [part.text for part in brief(of_run(run), "method") if isinstance(part, Paragraph)]
    assert all(each in line for each in (": import 3.00 s,", "200 ms to 500 ms", "capture 1.00 s."))
    assert not [part for part in brief(of_run(make_run()), "method") if isinstance(part, Paragraph)]


def test_a_run_reports_doubts_about_its_micro_benchmarks(make_run):
    doubt = Finding(kind=FindingKind.NOT_CONVERGED, value=0.3, limit=0.02)
    result = MicroResult(
        name="gemm", precision="fp32", size="64", value=1.0, low=None, high=None, unit="FLOP/s", n=9
    )
    run = make_run(micro=(msgspec.structs.replace(result, findings=(doubt,)),))
    (doubts,) = [part.items for part in brief(of_run(run), "method") if isinstance(part, Bullets)]
    assert doubts[0].endswith("[NOT_CONVERGED]")


def test_finished_run_prints_its_best_gemm_and_one_time_costs(make_run, capsys):
    (row,) = make_run().measurements
    row = msgspec.structs.replace(
        row, launches=(msgspec.structs.replace(row.launches[0], cold_s={"import": 3.0}),)
    )
    fields = {"name": "gemm", "precision": "fp32", "low": None, "high": None, "unit": "FLOP/s", "n": 9}
    products = (
        MicroResult(size="4096", value=2e12, **fields),
        MicroResult(size="8192", value=1e12, **fields),
    )
    show(*run_parts(make_run(measurements=(row,), micro=products)))
    out = capsys.readouterr().out
    assert "gemm fp32 2.00 TFLOP/s at 4096" in out
    assert "8192" not in out
    assert "import 3.00 s" in out
