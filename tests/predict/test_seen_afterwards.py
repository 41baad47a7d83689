"""Readings of an H100 taken after the fits: its speed and memory were predicted before."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpubench.models import CardClass, Execution, Measurement, Precision, Run, Status
from gpubench.predict.estimate import estimate
from gpubench.predict.memory import fit_of, scale_of
from gpubench.predict.memory import need_of as need_with
from gpubench.predict.question import Reading, peaks_of, question_of
from gpubench.profile import load_profiles
from gpubench.profile.memory import need_of
from gpubench.record.store import read_run
from gpubench.specs import require_spec
from gpubench.units import MIB

ROOT = Path(__file__).parents[2]
WORKSPACE_READ_BYTES = 170 * MIB
"""cuBLAS takes 66 MiB on Hopper; cuDNN takes up to as much again, and more in small steps."""


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [read_run(path) for path in sorted((ROOT / "results" / "example" / "runs").rglob("*.json"))]


@pytest.fixture(scope="module")
def every(runs) -> list[Measurement]:
    return [m for run in runs for m in run.measurements if m.status is Status.OK]


@pytest.fixture(scope="module")
def seen(every) -> list[Measurement]:
    return [m for m in every if m.case.execution is Execution.GRAPH]


@pytest.fixture(scope="module")
def told(seen):
    """Predict the same cases for a user without measurements, as before these runs shipped."""
    card = require_spec("nvidia-h100-sxm-80gb")

    def tell(m: Measurement):
        profile = load_profiles()[m.case.workload]
        execution, batch_size = m.case.execution, m.case.batch_size
        question = question_of(profile, m.case.precision, execution=execution, batch_size=batch_size)
        return estimate(question, [card], own=(), reference=())[card.key]

    return [tell(m) for m in seen]


def test_speeds_are_within_the_predicted_intervals(seen, told):
    """If fewer than 20 of the 22 rows were inside, the 90 % intervals would be too narrow."""
    assert len(seen) == 22
    inside = [t.low <= m.samples_per_s <= t.high for m, t in zip(seen, told, strict=True)]
    assert sum(inside) >= 20


def test_memory_of_tensors_was_predicted(every):
    """Apart from cuDNN's workspace, the error is within 1 %; the upper end covers all, even strict fp32 convolutions."""
    compared = 0
    for m in every:
        need = need_of(load_profiles()[m.case.workload], m.case, CardClass.HBM)
        more = m.peak_memory_bytes - need.allocated.value
        assert -0.03 * need.allocated.value < more, m.case.label
        assert more < 0.01 * need.allocated.value + WORKSPACE_READ_BYTES + need.algorithm_bytes, m.case.label
        assert m.peak_memory_bytes <= need.allocated.high, m.case.label
        compared += 1
    assert compared >= 30


def _question(m: Measurement, batch_size: int):
    return question_of(load_profiles()[m.case.workload], m.case.precision, batch_size=batch_size)


def test_measured_peak_never_puts_a_larger_batch_below_its_trace(runs, every):
    """What a peak has beyond its trace is scratch space of the libraries, mostly in small steps."""
    card = require_spec("nvidia-geforce-rtx-4090-24gb")
    for m in every:
        for times in (2, 16, 256, 4096):
            case = msgspec.structs.replace(m.case, batch_size=times * m.case.batch_size)
            question = _question(m, case.batch_size)
            traced = need_with(question, case, card, [])
            told = need_with(question, case, card, peaks_of(question, runs))
            assert told.allocated.low >= traced.allocated.low * (1 - 1e-9), case.label
            assert told.device.high >= traced.device.high * (1 - 1e-9), case.label


def test_measured_small_batch_does_not_make_a_large_one_fit(runs, every):
    card = require_spec("nvidia-geforce-rtx-4090-24gb")
    small = next(m for m in every if m.case.workload == "cnn" and m.case.precision is Precision.AMP_BF16)
    case = msgspec.structs.replace(small.case, batch_size=200_000)
    question = _question(small, case.batch_size)
    alone, seen = (fit_of(question, case, card, peaks) for peaks in ([], peaks_of(question, runs)))
    assert not alone.fits
    assert not seen.fits
    assert seen.largest_batch <= alone.largest_batch


def test_memory_that_cudnn_takes_in_strict_float32_affects_no_other_precision(runs, every):
    """VGG16 in strict float32 used 1.8 GiB beyond its trace; under autocast it uses none of that."""
    (read,) = {
        m.case
        for m in every
        if (m.case.workload, m.case.precision) == ("vgg16", Precision.FP32)
        and m.case.execution is Execution.EAGER
    }
    question = question_of(load_profiles()["vgg16"], Precision.AMP_BF16, batch_size=2 * read.batch_size)
    case = msgspec.structs.replace(read, precision=Precision.AMP_BF16, batch_size=2 * read.batch_size)
    of_fp32: list[Reading] = [r for r in peaks_of(question, runs) if r.case.precision is Precision.FP32]
    assert of_fp32
    assert scale_of(question, case, of_fp32) == 1.0
