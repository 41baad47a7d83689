"""What an H100 read after everything here had been fitted without it: speed and memory, told before they were seen."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean, median

import pytest

from gpubench.models import Execution, Measurement, Precision, Status
from gpubench.predict.estimate import estimate
from gpubench.predict.question import question_of
from gpubench.profile import load_profiles
from gpubench.profile.memory import WORKSPACE_BYTES, planned_peak_bytes
from gpubench.record.store import read_run
from gpubench.specs import require_spec

ROOT = Path(__file__).parents[2]
KEEPS_OUTPUTS = {"transformer", "lstm_large", "llama_1b"}
"""The trace counts the outputs beside the backward pass, which gpubench's own loop lets go; here they are large."""


@pytest.fixture(scope="module")
def seen() -> list[Measurement]:
    runs = [read_run(path) for path in sorted((ROOT / "results" / "example" / "runs").rglob("*.json"))]
    rows = [m for run in runs for m in run.measurements if m.status is Status.OK]
    return [m for m in rows if m.case.execution is Execution.GRAPH]


@pytest.fixture(scope="module")
def told(seen):
    """The same cases as they were told before these runs were shipped, to somebody who had measured nothing."""
    card = require_spec("nvidia-h100-sxm-80gb")

    def tell(m: Measurement):
        profile = load_profiles()[m.case.workload]
        execution, batch_size = m.case.execution, m.case.batch_size
        question = question_of(profile, m.case.precision, execution=execution, batch_size=batch_size)
        return estimate(question, [card], own=(), reference=())[card.key]

    return [tell(m) for m in seen]


def test_speeds_were_told_within_their_intervals(seen, told):
    """22 rows: 90 % intervals that hold fewer than 20 would be too narrow for them."""
    assert len(seen) == 22
    inside = [t.low <= m.samples_per_s <= t.high for m, t in zip(seen, told, strict=True)]
    assert sum(inside) >= 20


def test_the_errors_are_those_that_the_document_prints(seen, told):
    errors = [abs(t.samples_per_s / m.samples_per_s - 1) for m, t in zip(seen, told, strict=True)]
    text = " ".join((ROOT / "docs" / "prediction.md").read_text(encoding="utf-8").split())
    printed = re.search(r"\*\*([\d.]+) % in the mean, ([\d.]+) % in the median", text)
    assert printed is not None
    assert (100 * fmean(errors), 100 * median(errors)) == pytest.approx(
        (float(printed[1]), float(printed[2])), abs=0.15
    )


def test_memory_of_tensors_was_told(seen):
    """Beside the trace: cuBLAS's workspace of 66 MiB, and up to as much again of cuDNN in small steps."""
    compared = 0
    for m in seen:
        if m.case.precision is Precision.FP32 or m.case.workload in KEEPS_OUTPUTS:
            continue  # at strict fp32 cuDNN takes up to 1.8 GiB for the algorithm that it finds fastest
        traced = planned_peak_bytes(load_profiles()[m.case.workload], m.case) - WORKSPACE_BYTES
        assert -0.01 * traced < m.peak_memory_bytes - traced < 0.02 * traced + 170 * 2**20, m.case.label
        compared += 1
    assert compared >= 10
