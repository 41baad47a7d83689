"""The tools as a maintainer runs them, and `gpubench predict calibrate`, which calls one."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from command import called, gpubench

from gpubench.errors import MisuseError
from gpubench.predict.calibration import read_calibration
from tools.calibrate import write_calibration
from tools.evaluate import WHOLE, read_figures

ROOT = Path(__file__).parents[2]


def tool_here(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a tool in this process, which has already imported its libraries."""
    file = ROOT / "tools" / f"{name}.py"
    return called(partial(runpy.run_path, str(file), run_name="__main__"), file, *arguments)


@pytest.mark.parametrize("day", ["2026-99-99", "2999-01-01"])
def test_an_invalid_or_future_date_is_refused(day, tmp_path):
    table = tmp_path / "calibration.json"
    done = tool_here("calibrate", "--date", day, "-o", str(table))
    assert (done.returncode, done.stdout, table.exists()) == (2, "", False)
    assert "--date" in done.stderr
    assert day in done.stderr


def test_a_calibration_is_written_only_where_the_maintainer_says():
    """A user's own calibration replaces the shipped one in every later command, so it is never made by default."""
    done = tool_here("calibrate")
    assert (done.returncode, done.stdout) == (2, "")
    assert "-o" in done.stderr


def test_evaluation_matches_the_committed_figures_of_its_hold_out():
    done = tool_here("evaluate", "--hold-out", "vendor", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (committed,) = (row for row in read_figures() if (row["hold_out"], row["slice"]) == ("vendor", WHOLE))
    assert document["pairs"] == committed["pairs"]
    assert document["mape"] == pytest.approx(committed["mape"], abs=0.01)
    assert document["several_gpus"]["jobs"] > 100


def test_an_unknown_hold_out_is_refused_with_the_known_ones():
    done = tool_here("evaluate", "--hold-out", "foo")
    assert done.returncode == 2
    assert "'stranger'" in done.stderr


@pytest.mark.slow
def test_own_runs_are_fitted_by_the_command_and_then_used(tmp_path):
    data = tmp_path / "data"
    environment = {**os.environ, "XDG_DATA_HOME": str(data)}
    done = gpubench(
        environment, "predict", "calibrate", "--with", str(ROOT / "results" / "example"), "--json"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    written = read_calibration(Path(document["path"]))
    assert Path(document["path"]).is_relative_to(data)
    assert written.train.rows == document["rows"]
    assert "own runs" in written.inputs
    assert write_calibration(ROOT / "results" / "example", tmp_path / "again.json") == {
        **document,
        "path": str(tmp_path / "again.json"),
    }


def test_a_folder_without_runs_is_no_results_folder(tmp_path):
    with pytest.raises(MisuseError, match="is not a results folder: give the one that contains runs/"):
        write_calibration(tmp_path, tmp_path / "calibration.json")
    assert not (tmp_path / "calibration.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="numpy brings OpenBLAS and its threads on Linux")
def test_calibrate_starts_no_threads_for_its_small_matrices():
    code = (
        "import pathlib, psutil\n"
        "from gpubench.cli.verbs.predict import CalibrateRequest, calibrate_\n"
        "from gpubench.errors import MisuseError\n"
        "try: calibrate_(CalibrateRequest(own=pathlib.Path('nowhere')), as_json=False)\n"
        "except MisuseError: import numpy; print(psutil.Process().num_threads())\n"
    )
    free = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=free, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
