"""The user's own runs join the published rows, and the fit to both is used."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from predict.runs import run_of

from gpubench import files
from gpubench.models import Execution, Framework, TaskKind
from gpubench.predict.calibration import PROFILE, load_calibration, own_calibration_path
from gpubench.predict.estimate import estimate
from gpubench.predict.question import FITTED_VENDOR, Question, case_for
from gpubench.predict.roofline import take
from gpubench.profile import load_profiles
from gpubench.specs import load_specs
from tools import calibrate
from tools.calibrate import own_table
from tools.published import fitted_on

H200, T4 = "nvidia-h200-sxm-141gb", "nvidia-tesla-t4-16gb"
SPECS = load_specs()


@pytest.fixture(scope="module")
def vgg16():
    return load_profiles()["vgg16"]


def runs(vgg16, *, factor=1.0):
    """Make runs of two GPUs at their predicted speed; the second is faster by the factor."""
    found = []
    for key, share in ((H200, 1.0), (T4, factor)):
        question = Question(profile=vgg16)
        answer = estimate(question, [SPECS[key]])[key]
        found.append(run_of(key, (answer.case, share * answer.samples_per_s), run_id=f"run-{key}"))
    return found


@pytest.fixture(scope="module")
def few_rows():
    """Fit only one source of published rows, because a fit to all takes ten seconds; the value is their number."""

    def of_one_source(task, vendors):
        table = fitted_on(task, vendors)
        return take(table, table.source == "lambda-tensorflow")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "fitted_on", of_one_source)
        yield len(of_one_source(TaskKind.TRAIN, (FITTED_VENDOR,)))


@pytest.fixture(scope="module")
def plain(few_rows, vgg16):
    """Calibrate to those rows and to runs at the predicted speed."""
    return calibrate.calibrate(runs(vgg16), fitted="2026-11-20")


def test_own_runs_join_the_fit_and_correct_their_card(few_rows, vgg16, plain):
    table = own_table(runs(vgg16))
    assert set(table.gpu_key) == {H200, T4}
    faster = calibrate.calibrate(runs(vgg16, factor=1.5), fitted="2026-11-20")
    assert plain.inputs["own runs"] != faster.inputs["own runs"]
    assert faster.train.rows == few_rows + 2
    assert np.sum(faster.train.ratio.deviations["Turing"]) > np.sum(plain.train.ratio.deviations["Turing"])
    assert faster == calibrate.calibrate(runs(vgg16, factor=1.5)[::-1], fitted="2026-11-20")


def test_the_inputs_of_the_shipped_calibration_are_those_of_this_checkout():
    assert calibrate.inputs_of() == load_calibration().inputs, (
        "run python -m tools.calibrate -o gpubench/data/calibration.json"
    )


def test_a_fit_reads_the_profiles_of_own_runs_and_of_rows_without_a_published_profile(vgg16, monkeypatch):
    read = {f"{PROFILE}{name}" for name in ("llama_8b_lora", "vgg16")}
    own = calibrate.inputs_of(runs(vgg16))
    assert {name for name in own if name.startswith(PROFILE)} == read
    assert own == calibrate.inputs_of(runs(vgg16)[::-1])
    monkeypatch.setattr(calibrate, "published_rows", lambda _table: [])
    assert read | {f"{PROFILE}resnet50"} <= calibrate.inputs_of().keys()


def test_cpu_eager_and_inference_runs_do_not_join_the_fit(vgg16):
    case = case_for(Question(profile=vgg16), SPECS[T4])
    others = [
        msgspec.structs.replace(case, **change)
        for change in (
            {"execution": Execution.EAGER},
            {"task": TaskKind.INFER},
            {"gpu_count": 2},
            {"workload_version": 99},
            {"framework": Framework.KERAS_TORCH},
        )
    ]
    assert own_table([run_of(T4, *((other, 10.0) for other in others))]) is None
    assert own_table([run_of("cpu", (case, 10.0), backend="cpu")]) is None


def test_a_users_calibration_is_used_once_it_is_written(plain):
    load_calibration.cache_clear()
    try:
        path = own_calibration_path()
        path.parent.mkdir(parents=True)
        path.write_bytes(
            files.table_json(msgspec.structs.replace(plain, fitted="2031-01-01"), order="sorted")
        )
        load_calibration.cache_clear()
        assert load_calibration().fitted == "2031-01-01"
        load_calibration.cache_clear()
        path.write_text("{")
        with pytest.raises(Exception, match="calibration"):
            load_calibration()
    finally:
        load_calibration.cache_clear()
