"""The CPU time of a refit and of all evaluations."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def cpu_s_of(*command: str) -> float:
    """Return the CPU time of a Python command and its children, on one thread [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.timing
def test_a_refit_takes_under_fifteen_seconds_of_cpu(tmp_path):
    assert cpu_s_of("-m", "tools.calibrate", "-o", str(tmp_path / "calibration.json")) < 15


@pytest.mark.timing
def test_every_evaluation_of_the_page_takes_under_five_minutes_of_cpu(tmp_path):
    shutil.copy(DOCS / "prediction-evidence.md", tmp_path)
    program = f"from pathlib import Path; from tools.evaluate import write_prediction as write; write(Path({str(tmp_path)!r}))"
    assert cpu_s_of("-c", program) < 300
    assert (tmp_path / "prediction_figures.csv").exists()
