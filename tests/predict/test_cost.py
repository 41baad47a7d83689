"""What predictions cost: a refit, every evaluation, and a question to the library once it is loaded."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpubench

DOCS = Path(__file__).parents[2] / "docs"
QUESTIONS = {
    "rank": gpubench.rank,
    "rank vgg16": lambda: gpubench.rank("vgg16"),
    "rank llama_8b_fsdp": lambda: gpubench.rank("llama_8b_fsdp"),
    "predict vgg16": lambda: gpubench.predict("vgg16"),
    "predict bert_base at the largest batch": lambda: gpubench.predict("bert_base", batch_size="max"),
}


def cpu_s_of(*command: str) -> float:
    """CPU of a child and its children, on one thread [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.timing
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_loaded_library_answers_within_half_a_second_of_cpu(question, monkeypatch, tmp_path):
    """The least of seven; what a command takes to start is held in tests/cli/test_startup.py."""
    monkeypatch.setenv("GPUBENCH_RESULTS", str(tmp_path))
    ask = QUESTIONS[question]
    ask()
    taken = []
    for _ in range(7):
        before = time.process_time()
        ask()
        taken.append(time.process_time() - before)
    assert min(taken) < 0.5


@pytest.mark.timing
def test_a_refit_takes_under_fifteen_seconds_of_cpu(tmp_path):
    assert cpu_s_of("-m", "gpubench", "calibrate", "-o", str(tmp_path / "calibration.json")) < 15


@pytest.mark.timing
def test_every_evaluation_of_the_page_takes_under_five_minutes_of_cpu(tmp_path):
    shutil.copy(DOCS / "prediction.md", tmp_path)
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import make_prediction; "
        "make_prediction.write(Path(sys.argv[2]))"
    )
    assert cpu_s_of("-c", program, str(DOCS), str(tmp_path)) < 300
    assert (tmp_path / "prediction_figures.csv").exists()
