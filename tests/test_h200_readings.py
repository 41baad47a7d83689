"""The shipped readings of one card: their origin, their units, and the models that are not ours."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.folders import data_bytes
from gpubench.models import Execution, Precision
from gpubench.profile import load_profiles
from gpubench.readings import h200_readings
from gpubench.specs import load_specs


def test_h200_readings_state_their_origin():
    read = h200_readings()
    assert (read.card, read.date) == ("NVIDIA H200", "2026-11-20")
    assert read.gpu_key in load_specs()
    stored = msgspec.json.decode(data_bytes("h200_readings.json"))
    assert (stored["torch"], stored["driver"]) == ("2.11.0+cu130", "580.159.04")
    assert "share no code" in stored["source"]


def test_each_reading_is_at_the_main_batch_and_every_usual_precision():
    cases = h200_readings().cases
    names = {case.workload for case in cases}
    assert len(names) == 11
    usual = [precision for precision in Precision if precision.is_usual]
    read = {(case.workload, case.batch_size, case.precision) for case in cases}
    assert read == {(name, load_profiles()[name].main_batch, each) for name in names for each in usual}


def test_values_are_in_si_units():
    step = next(
        s for s in h200_readings().steps if (s.workload, s.precision) == ("vgg16", Precision.AMP_BF16)
    )
    assert step.step_s[Execution.EAGER] == pytest.approx(0.02027, rel=1e-3)
    assert step.step_s[Execution.GRAPH] == pytest.approx(0.01968, rel=1e-3)


def test_models_that_only_share_a_name_are_never_used_for_ours():
    read = h200_readings()
    assert set(read.not_gpubench_models) == {"bert_base", "transformer"}
    assert {case.workload for case in read.cases} - {step.workload for step in read.steps} == {
        "bert_base",
        "transformer",
    }
