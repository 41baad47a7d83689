"""The fit: it uses only the chosen rows, can leave rows out cheaply, and is reproducible."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.files import table_json
from gpubench.models import GpuSpec, TaskKind
from gpubench.predict.calibration import Calibration, Scale, load_calibration, pair_scale
from gpubench.predict.chips import chips_of, predecessor
from gpubench.predict.roofline import deviations_of, take
from gpubench.readings import PublishedRun
from gpubench.specs import load_specs
from tools.calibrate import (
    NAMES,
    RATIO,
    coefficients_of,
    factor_of,
    fit_scale,
    fit_table,
    log_errors,
    pairs_of,
    predict_rows,
    sides,
    successors,
    times_of,
)
from tools.published import Table, fitted_on

RTX4090 = "nvidia-geforce-rtx-4090-24gb"


@pytest.fixture(scope="module")
def table() -> Table:
    return fitted_on(TaskKind.TRAIN)


@pytest.fixture(scope="module")
def without_4090(table):
    return fit_table(table, table.gpu_key != RTX4090)


def everything(rows) -> np.ndarray:
    return np.ones(len(rows), dtype=bool)


def mape(table, pairs, times, chosen) -> float:
    ape = np.abs(np.expm1(log_errors(table, pairs, times)))[chosen]
    return float(np.average(ape, weights=pairs.weight[chosen]))


def test_held_out_prediction_is_independent_of_the_held_out_values(table, without_4090):
    mine = table.gpu_key == RTX4090
    tripled = replace(table, log_seconds=table.log_seconds + np.where(mine, np.log(3.0), 0.0))
    other = fit_table(tripled, ~mine)
    assert np.array_equal(times_of(other).step_s, times_of(without_4090).step_s)


def test_no_row_of_a_held_out_gpu_reaches_the_fit(table, without_4090):
    assert RTX4090 not in set(table.gpu_key[without_4090.rows])
    nan = replace(table, log_seconds=np.where(table.gpu_key == RTX4090, np.nan, table.log_seconds))
    other = fit_table(nan, nan.gpu_key != RTX4090)
    assert np.isfinite(other.z).all()
    assert np.array_equal(other.z, without_4090.z)


def test_shuffling_the_specifications_at_least_doubles_the_error(table):
    """Otherwise the score would not come from the hardware's specifications."""
    pairs = pairs_of(table)
    true = mape(table, pairs, times_of(fit_table(table, everything(table))), everything(pairs.y))
    keys = sorted(set(table.gpu_key))
    shuffled = dict(zip(keys, np.random.default_rng(7).permutation(keys), strict=True))
    specs: list[GpuSpec] = [load_specs()[shuffled[key]] for key in table.gpu_key]
    wrong = replace(table, chips=chips_of(specs))
    # Deviations would absorb what the specifications no longer tell, so they are removed, as for an unseen GPU.
    fit = fit_table(wrong, everything(wrong))
    host = np.exp(fit.z[fit.places[:, 0]])
    blind = predict_rows(wrong, coefficients_of(fit.z), host, np.zeros((len(wrong), 3)))
    assert mape(wrong, pairs, blind, everything(pairs.y)) > 2 * true


def test_one_step_without_a_gpu_agrees_with_a_fit_that_never_saw_it(table, without_4090):
    full = fit_table(table, everything(table))
    pairs = pairs_of(table)
    mine = table.gpu_key[pairs.y] == RTX4090
    shortcut = times_of(full, full.without(table.gpu_key == RTX4090))
    difference = log_errors(table, pairs, shortcut) - log_errors(table, pairs, times_of(without_4090))
    assert np.abs(difference[mine]).mean() < 0.02


def test_the_order_of_the_rows_changes_nothing(table):
    order = np.random.default_rng(3).permutation(len(table))
    shuffled = take(table, order)
    a, b = fit_table(table, everything(table)), fit_table(shuffled, everything(shuffled))
    assert np.allclose(a.z, b.z, atol=1e-6)


def test_efficiencies_are_at_most_slightly_above_one(table):
    coefficients = load_calibration().train.level.coefficients
    for name in NAMES:
        value = getattr(coefficients, name)
        if name.startswith(("conv_", "matmul_", "bandwidth_")):
            assert 0.1 < value < 1.1, name


@pytest.mark.slow
def test_calibration_matches_the_reported_counts(calibrated, rebuilt):
    assert calibrated["fitted"] == rebuilt.fitted
    assert calibrated["rows"] == rebuilt.train.rows
    assert calibrated["skipped"]["no profile of model"] > 2000  # one count for all unknown models
    assert Path(calibrated["path"]).read_bytes() == table_json(rebuilt, order="sorted")


@pytest.mark.slow
def test_a_rebuilt_calibration_matches_the_committed_one(rebuilt):
    """The committed calibration must match the committed tables."""
    committed = load_calibration()
    assert committed.stale == (), "run python -m tools.calibrate -o gpubench/data/calibration.json"
    assert committed.inputs == rebuilt.inputs
    for task, kind in itertools.product(TaskKind, ("ratio", "level")):
        mine, theirs = getattr(rebuilt.of(task), kind), getattr(committed.of(task), kind)
        for name in NAMES:
            assert getattr(mine.coefficients, name) == pytest.approx(
                getattr(theirs.coefficients, name), rel=1e-3
            )
        assert mine.deviations.keys() == theirs.deviations.keys()
    assert msgspec.json.decode(table_json(rebuilt, order="sorted"), type=Calibration) == rebuilt


def test_an_architecture_shares_its_deviations_and_an_unseen_one_inherits_from_its_predecessor():
    known = {
        "Turing": (0.1, 0.0, 0.2),
        "Ampere": (0.3, 0.0, 0.4),
        "Hopper": (0.5, 0.0, 0.6),
        "CDNA2": (0.7, 0.0, 0.7),
        "CDNA3": (-0.6, 0.0, -0.6),
        "RDNA2": (9.0, 9.0, 9.0),
    }
    strangers = {
        "nvidia-h100-sxm-80gb": (0.5, 0, 0.6),
        "nvidia-h200-sxm-141gb": (0.5, 0, 0.6),
        "nvidia-l4-24gb": (0.3, 0, 0.4),
        "nvidia-tesla-v100-sxm2-16gb": (0, 0, 0),
        "amd-mi355x-288gb": (-0.6, 0, -0.6),
        "amd-mi100-32gb": (0, 0, 0),
        "amd-radeon-rx-9070-xt-16gb": (9, 9, 9),
        "amd-radeon-rx-5700-8gb": (0, 0, 0),
    }
    found = deviations_of(known, list(strangers))
    assert dict(zip(strangers, map(tuple, found.tolist()), strict=True)) == strangers
    assert [predecessor(name, known) for name in ("Blackwell", "Ampere", "Turing", "CDNA4")] == [
        "Hopper",
        "Turing",
        None,
        "CDNA3",
    ]


def test_held_out_architecture_inherits_the_deviations_of_its_predecessor(table):
    fit = fit_table(table, everything(table))
    z = fit.without(table.architecture == "Hopper")
    assert fit.deviations(z)["Hopper"] == fit.deviations(z)["Ada Lovelace"]
    assert fit.deviations()["Hopper"] != fit.deviations()["Ada Lovelace"]


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 2)), min_size=1, max_size=40),
    st.floats(0.1, 3),
)
def test_a_conformal_factor_covers_its_share_of_the_votes(votes, unit):
    scores, weight = (np.array(column) for column in zip(*votes, strict=True))
    factor = factor_of(scores, weight)
    assert weight[scores <= factor].sum() >= 0.9 * weight.sum() * (1 - 1e-9)
    assert factor in scores
    assert factor_of(scores * unit, weight) == pytest.approx(factor * unit)


def test_harness_has_one_vote_per_gpu_regardless_of_row_count(table):
    pairs = pairs_of(table)
    # Undo the lower weight of rows whose batch is not stated.
    weight = pairs.weight * (1 + (pairs.spread / RATIO.noise) ** 2)
    voters = [f"{table.harness[y]}|{table.gpu_key[y]}" for y in pairs.y]
    _, voter = np.unique(voters, return_inverse=True)
    assert np.bincount(voter, weight) == pytest.approx(1)


def test_conformal_factor_of_nine_votes_is_the_maximum_and_of_none_is_nan():
    """A share of 90 % times (n + 1) / n is all of nine votes, more than nine of ten, and 18 of 19."""
    assert factor_of(np.arange(9.0), np.ones(9)) == 8
    assert factor_of(np.arange(10.0), np.ones(10)) == 9
    assert factor_of(np.arange(19.0), np.ones(19)) == 17
    assert np.isnan(factor_of(np.empty(0), np.empty(0)))


def test_error_scale_fit_recovers_simulated_parameters(table):
    pairs = pairs_of(table)
    own, target, mode = sides(table, pairs)
    true = Scale(base=0.1, gap=0.05, crossing=0.2, slow=0.3)
    level_error = np.random.default_rng(0).normal(0, 0.2, len(table))
    level_error[::7] = np.nan  # as for rows whose level is unknown
    every = np.ones(len(pairs.y), dtype=bool)
    fast = np.abs(level_error)
    error = pair_scale(true, own.chips, target.chips, mode, -fast[pairs.x])
    found = fit_scale(table, pairs, error, fast, every)
    assert (found.base, found.gap, found.crossing, found.slow) == pytest.approx((0.1, 0.05, 0.2, 0))
    error = pair_scale(true, own.chips, target.chips, mode, -level_error[pairs.x])
    assert 0.1 < fit_scale(table, pairs, error, level_error, every).slow <= true.slow


def test_a_wider_tensor_core_is_harder_to_feed_and_a_larger_cache_saves_traffic():
    c = load_calibration().train.ratio.coefficients
    assert 0 < c.width < 1
    assert 0 < c.cache < 0.2


KNOWN = {"CDNA3": [-0.5, 0.0, -0.5], "Hopper": [0.0, 0.0, 0.0]}


def mlperf(gpu_key: str, minutes: float, **changed) -> PublishedRun:
    run = PublishedRun(
        benchmark="llama2_70b_lora", round="v5.1", date="2025-11", gpu_key=gpu_key, gpus=8, minutes=minutes,
        runs=10, submitter="AMD", system="one", source="of the test",
    )  # fmt: skip
    return msgspec.structs.replace(run, **changed)


OLD = mlperf("amd-mi325x-256gb", 20.0)


@pytest.fixture
def shift_with(monkeypatch):
    """``shift_with(*runs)``: the deviation of CDNA4 that follows from these runs; None if they say nothing about it."""

    def shift(*runs: PublishedRun) -> float | None:
        monkeypatch.setattr("tools.calibrate.load_mlperf", lambda: runs)
        found = successors(load_calibration().train.level.coefficients, KNOWN)
        assert found.keys() <= {"CDNA4"}
        for compute, tensor, bandwidth in found.values():
            assert (compute, tensor) == (bandwidth, 0.0)
        return found["CDNA4"][0] if found else None

    return shift


def test_an_architecture_without_rows_gains_on_its_predecessor_what_one_submitter_measured(shift_with):
    slow, fast = (shift_with(OLD, mlperf("amd-mi355x-288gb", minutes)) for minutes in (20.0, 10.0))
    assert slow < KNOWN["CDNA3"][0], "by its datasheet it should be faster"
    assert fast - slow == pytest.approx(np.log(2) / (1 + 0.3**2 / 0.5**2))
    both = shift_with(OLD, mlperf("amd-mi355x-288gb", 10.0), mlperf("amd-mi355x-288gb", 20.0, system="two"))
    assert both == pytest.approx((slow + fast) / 2), "each card has one vote"


@pytest.mark.parametrize(
    "new",
    [
        mlperf("amd-mi355x-288gb", 10.0, submitter="another"),
        mlperf("amd-mi355x-288gb", 10.0, round="v5.0"),
        mlperf("amd-mi355x-288gb", 10.0, gpus=4),
        mlperf("amd-mi355x-288gb", 10.0, benchmark="llama31_8b"),
        mlperf("nvidia-h100-sxm-80gb", 10.0),
        mlperf("nvidia-b200-sxm-180gb", 10.0),
    ],
)
def test_runs_of_other_submitters_rounds_jobs_or_chips_say_nothing_about_a_successor(shift_with, new):
    assert shift_with(OLD, new) is None
