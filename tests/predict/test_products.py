"""Large GEMMs at measured rates, the rates of related cards, and the ceiling that they set."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import geometric_mean

import msgspec
import numpy as np
import pandas as pd
import pytest
from scipy.spatial import cKDTree

from gpubench.folders import data_rows
from gpubench.models import Case, Estimate, Execution, Operator, OperatorKind, Precision, Verdict
from gpubench.predict.calibration import load_calibration
from gpubench.predict.chips import chips_of, product_rate
from gpubench.predict.estimate import MOST_GAIN, estimate
from gpubench.predict.memory import fit_of
from gpubench.predict.model import LIMITED_WORDS, predict_all
from gpubench.predict.question import UNKNOWN_NOISE, Question, Reading, case_for, question_of
from gpubench.predict.roofline import arithmetic_of, least_step_s, log_throttle, step_times, work_of
from gpubench.profile import load_profiles
from gpubench.record.store import reference_runs
from gpubench.specs import load_specs
from gpubench.units import MIB

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
COLUMNS = {
    "A100 SXM 80GB": "nvidia-a100-sxm-80gb",
    "H100 SXM": "nvidia-h100-sxm-80gb",
    "H200 SXM": "nvidia-h200-sxm-141gb",
    "B200": "nvidia-b200-sxm-180gb",
    "B300": "nvidia-b300-sxm-270gb",
    "GB200": "nvidia-gb200-186gb",
    "GB300": "nvidia-gb300-279gb",
    "L40S": "nvidia-l40s-48gb",
    "RTX PRO 6000 Server": "nvidia-rtx-pro-6000-blackwell-server-96gb",
}
WITH_A_RELATIVE = ("H100 SXM", "H200 SXM", "B200", "B300", "GB200", "GB300")
H100, B200, B300 = (COLUMNS[name] for name in ("H100 SXM", "B200", "B300"))
RTX_3090 = "nvidia-geforce-rtx-3090-24gb"


@cache
def gemm_timings() -> pd.DataFrame:
    """Read the published GEMM timings with sides of 2,048 and more."""
    table = pd.read_csv(PUBLISHED / "gemm_bf16.csv.gz")
    return table[(table[["m", "n", "k"]] >= 2048).all(axis=1)]


def told(key: str, without: str | None = None) -> float:
    """Return a card's predicted rate for large bf16 GEMMs [FLOP/s]."""
    spec = load_specs()[key]
    held = log_throttle(chips_of([spec]), load_calibration().train.ratio.coefficients)
    return spec.fp16_tensor_flops_per_s * product_rate(spec, without).share * math.exp(held[0])


def off(name: str, without: str | None = None) -> float:
    """Divide the predicted ratio of a card's time to an H100's by the measured ratio for the median shape."""
    read = float((gemm_timings()[name] / gemm_timings()["H100 SXM"]).median())
    return told(H100) / told(COLUMNS[name], without) / read


def test_the_shipped_table_matches_the_published_gemms():
    shipped = {row["gpu_key"]: row for row in data_rows("product_rates.csv")}
    assert set(shipped) == set(COLUMNS.values())
    for name, key in COLUMNS.items():
        large = gemm_timings()[["m", "n", "k", name]].dropna()
        rates = 2.0 * large.m * large.n * large.k / (large[name] * 1e-3)
        assert float(shipped[key]["flops_per_s"]) == pytest.approx(rates.median(), rel=1e-3)
        assert float(shipped[key]["best_flops_per_s"]) == pytest.approx(rates.max(), rel=1e-3)
        assert int(shipped[key]["shapes"]) == len(rates)
        assert rates.max() < load_specs()[key].fp16_tensor_flops_per_s


@pytest.mark.parametrize("name", COLUMNS)
def test_a_measured_card_is_predicted_as_measured(name):
    assert off(name) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", WITH_A_RELATIVE)
def test_a_card_left_out_is_predicted_by_its_relative(name):
    key = COLUMNS[name]
    assert product_rate(load_specs()[key], key).is_measured
    assert off(name, key) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", sorted(set(COLUMNS) - set(WITH_A_RELATIVE)))
def test_a_card_left_out_without_a_relative_is_predicted_as_usual(name):
    key = COLUMNS[name]
    assert not product_rate(load_specs()[key], key).is_measured
    assert max(off(name, key), 1 / off(name, key)) < 1.13


TILE = 128
"""Rows and columns of the output that one multiprocessor computes at a time, as cuBLAS usually does."""


def log_waste(name: str) -> np.ndarray:
    """Return the log of the time that the last, incomplete wave of tiles adds, for each shape."""
    shapes, sm_count = gemm_timings(), load_specs()[COLUMNS[name]].sm_count
    tiles = np.ceil(shapes.m / TILE) * np.ceil(shapes.n / TILE)
    return np.log(np.ceil(tiles / sm_count) * sm_count * TILE**2 / (shapes.m * shapes.n)).to_numpy()


@pytest.mark.parametrize(
    ("neighbors", "plain", "with_waves"), [(None, 8.4, 8.9), (1, 8.9, 9.2), (5, 7.5, 8.1)]
)
def test_nearest_shapes_and_tile_waves_predict_unseen_shapes_hardly_better(neighbors, plain, with_waves):
    """This is why a card has one rate: mean error in percent of its ratio to an H100, a fifth of the weight
    shapes left out at a time. Waves of tiles make it worse, and the median of five shapes gains 1 %."""
    shapes = gemm_timings()
    fold = shapes.groupby(["n", "k"]).ngroup().to_numpy() % 5
    sides = np.log(shapes[["m", "n", "k"]].to_numpy())
    found = {0: [], 1: []}
    for name in set(COLUMNS) - {"H100 SXM"}:
        for waves, errors in found.items():
            waste = waves * (log_waste(name) - log_waste("H100 SXM"))
            ratio = np.log(shapes[name] / shapes["H100 SXM"]).to_numpy() - waste
            for left_out in range(5):
                known, unseen = (np.isfinite(ratio) & each for each in (fold != left_out, fold == left_out))
                nearest = np.arange(known.sum())[None]
                if neighbors is not None:
                    nearest = cKDTree(sides[known]).query(sides[unseen], k=[*range(1, neighbors + 1)])[1]
                told = np.median(ratio[known][nearest], axis=1)
                errors.append(100 * np.abs(np.expm1(told - ratio[unseen])).mean())
    assert np.mean(found[0]) == pytest.approx(plain, abs=0.06)
    assert np.mean(found[1]) == pytest.approx(with_waves, abs=0.06)


def test_geforce_gemm_rate_is_not_taken_from_a_workstation_card_with_the_same_chip():
    a6000, geforce = (product_rate(load_specs()[key]) for key in ("nvidia-rtx-a6000-48gb", RTX_3090))
    assert a6000.is_measured
    assert not geforce.is_measured
    assert geforce.share == geforce.best == 0.85


def test_a_gb10_has_the_rate_of_the_other_cards_with_its_tensor_cores():
    gb10, server = (load_specs()[key] for key in ("nvidia-gb10-128gb", COLUMNS["RTX PRO 6000 Server"]))
    assert gb10.compute_capability != server.compute_capability
    assert product_rate(gb10).is_measured
    assert product_rate(gb10).best == product_rate(server).best


def test_a_b300_is_not_slower_than_a_b200():
    for name in ("resnet50", "vgg16", "transformer", "bert_base", "vit_b16", "llama_1b", "llama_8b_lora"):
        question = question_of(load_profiles()[name], None)
        found = estimate(question, [load_specs()[B200], load_specs()[B300]], reference=reference_runs())
        assert found[B300].samples_per_s >= found[B200].samples_per_s, name


def matmul(side: int) -> Operator:
    return Operator(
        kind=OperatorKind.MATMUL, count=1, flops_per_sample=2.0 * side**3, bytes_per_sample=12.0 * side**2
    )


def test_gemm_efficiency_loss_falls_with_width():
    """At the usual width only the fit counts; a huge GEMM runs at the measured rate."""
    chips, c = chips_of([load_specs()[H100]]), load_calibration().train.ratio.coefficients
    half = arithmetic_of(Precision.AMP_BF16, None, 1)
    rates = []
    for side in (1536, 6144, 10**6):
        work = work_of([matmul(side)], 1)
        seconds = step_times(
            work, chips, half, c, host_s_per_operator=0.0, deviations=np.zeros((1, 3))
        ).compute_s
        rates.append(float(work.flops[0, 2] / seconds[0]))
    assert work_of([matmul(1536)], 1).wide_flops[0] == 0
    assert work_of([matmul(6144)], 1).wide_flops[0] == pytest.approx(0.75 * 2 * 6144**3)
    assert rates[0] < rates[1] < rates[2]
    assert rates[2] == pytest.approx(told(H100), rel=0.01)


def test_no_row_does_more_arithmetic_than_the_best_gemm_of_its_family():
    """A prediction above what any card of the family has achieved is capped, widened and flagged."""
    profile, spec = load_profiles()["llama_8b_lora"], load_specs()[RTX_3090]
    question = question_of(profile, None)
    case = case_for(question, spec)
    calibration = load_calibration()
    (free,) = predict_all(question, [(spec, case)], (), calibration)
    assert LIMITED_WORDS not in free.method
    level = calibration.train.level
    faster = msgspec.structs.replace(
        level.coefficients, matmul_half=10.0, bandwidth_half=50.0, operator_floor_s=1e-12
    )
    fast = msgspec.structs.replace(level, coefficients=faster)
    unbound = msgspec.structs.replace(
        calibration, train=msgspec.structs.replace(calibration.train, level=fast)
    )
    (held,) = predict_all(question, [(spec, case)], (), unbound)
    work = work_of(profile.train, case.batch_size)
    most = case.batch_size / least_step_s(
        work, chips_of([spec]), arithmetic_of(case.precision, None, 1), at_best_rate=True
    )
    assert held.method.endswith(LIMITED_WORDS)
    assert held.samples_per_s == pytest.approx(float(most[0]))
    assert held.half_width > free.half_width
    assert held.most_samples_per_s > held.samples_per_s


@pytest.mark.parametrize(
    ("key", "precision", "is_limited"),
    [(RTX_3090, "tf32", True), ("nvidia-tesla-v100-sxm2-16gb", "fp32", False)],
)
def test_winograd_beats_the_ceiling_only_without_tensor_cores(key, precision, is_limited):
    """VGG16 is predicted to do more arithmetic than matrix products can on either card."""
    question, spec = question_of(load_profiles()["vgg16"], precision), load_specs()[key]
    (answer,) = estimate(question, [spec], reference=reference_runs()).values()
    flops = work_of(question.profile.train, answer.case.batch_size).flops.sum() / answer.case.batch_size
    rate = answer.samples_per_s * flops
    assert (LIMITED_WORDS in answer.method) is is_limited
    if is_limited:
        assert rate == pytest.approx(0.85 * spec.tf32_tensor_flops_per_s, rel=1e-3)
        assert answer.high > answer.samples_per_s > answer.low
    else:
        assert rate > 1.1 * spec.fp32_flops_per_s


def test_a_family_without_a_reading_gets_a_wider_interval():
    """The interval widens with the share of large GEMMs in the step.

    The RTX 3090 is compared with the A6000, which has the same chip.
    """
    keys = RTX_3090, "nvidia-rtx-a6000-48gb"
    question = question_of(load_profiles()["llama_8b_lora"], None)
    found = estimate(question, [load_specs()[key] for key in keys])
    wide, usual = (math.log(found[key].samples_per_s / found[key].low) for key in keys)
    assert wide > usual


# compiled steps


def test_compiling_a_training_step_saves_the_bytes_of_its_chains_and_their_launches():
    profile = load_profiles()["transformer"]
    chips, c = chips_of([load_specs()[H100]]), load_calibration().train.ratio.coefficients
    plain = arithmetic_of(Precision.AMP_BF16, None, 1)
    fused = replace(plain, chains_fused=np.ones(1, dtype=bool))
    work = work_of(profile.train, 8)

    def told_as(how):
        return step_times(work, chips, how, c, host_s_per_operator=0.0, deviations=np.zeros((1, 3)))

    before, after = told_as(plain), told_as(fused)
    assert after.memory_s < before.memory_s
    floor_s, launched_s = (each.gpu_s - each.compute_s - each.memory_s for each in (before, after))
    assert launched_s == pytest.approx(floor_s * (1 - work.chain_operators / work.operators))
    assert after.compute_s < before.compute_s
    assert work.chain_bytes < work.bytes_


def test_graph_measurement_does_not_anchor_a_compiled_prediction():
    """A measurement made with CUDA graphs doesn't anchor a prediction of a compiled training step."""
    spec = load_specs()[H100]
    for execution, anchored in ((Execution.GRAPH, True), (Execution.COMPILE, False)):
        question = Question(profile=load_profiles()["transformer"], execution=execution, batch_size=16)
        assert estimate(question, [spec], reference=reference_runs())[H100].anchored is anchored


@pytest.mark.parametrize("name", ["cnn", "vgg16", "lstm_large", "transformer"])
def test_compiled_step_is_between_its_graph_and_the_assumed_largest_gain(name):
    """Without these limits, a small network was predicted at five times its measured graph, and VGG16 below its graph."""
    questions = [
        Question(profile=load_profiles()[name], execution=execution, batch_size=8)
        for execution in (Execution.GRAPH, Execution.COMPILE)
    ]
    graphs, compiled = (
        estimate(each, [*load_specs().values()], reference=reference_runs()) for each in questions
    )
    gains = []
    for key, graph in graphs.items():
        answer = compiled[key]
        if isinstance(graph, Estimate) and isinstance(answer, Estimate) and graph.anchored is not False:
            gains.append(answer.samples_per_s / graph.samples_per_s)
            if gains[-1] in {1.0, MOST_GAIN}:
                assert answer.low <= (graph.low or graph.samples_per_s)
                assert answer.high >= min(MOST_GAIN * graph.samples_per_s, answer.most_samples_per_s)
                assert "its CUDA graph's speed and 2.5 times that (assumed)" in answer.method
    assert len(gains) > 50
    assert min(gains) >= 0.999
    assert max(gains) <= 1.001 * MOST_GAIN


@pytest.mark.parametrize(("name", "batch", "read"), [("vgg16", 128, 4846), ("cnn", 4096, 1.996e6)])
def test_compiled_steps_of_an_h200_lie_in_their_intervals(name, batch, read):
    """An independent loop measured both at amp-bf16, and no fit uses its readings."""
    question = question_of(load_profiles()[name], "amp-bf16", execution=Execution.COMPILE, batch_size=batch)
    spec = load_specs()["nvidia-h200-sxm-141gb"]
    (answer,) = estimate(question, [spec], reference=reference_runs()).values()
    assert answer.low < read < answer.high
    assert answer.samples_per_s == pytest.approx(read, rel=0.6)


@cache
def gpt_2() -> pd.DataFrame:
    """Read the rows of twenty rented cards, which no fit uses; six rows look power-limited."""
    return pd.read_csv(PUBLISHED / "gpt2_cards.csv").assign(read=lambda table: table.value / 1024)


def compiled(batch_size: int) -> Question:
    return question_of(
        load_profiles()["transformer"], "amp", execution=Execution.COMPILE, batch_size=int(batch_size)
    )


def as_measured(row: pd.Series) -> Reading:
    """Turn a row of the table into a user's measurement."""
    spec = load_specs()[row.gpu_key]
    case = case_for(compiled(row.batch_size), spec)
    assert isinstance(case, Case)
    return Reading(
        spec=spec,
        case=case,
        samples_per_s=row.read,
        low=None,
        high=None,
        noise=UNKNOWN_NOISE,
        host_bound=False,
        host_cpu=None,
        peak_memory_bytes=None,
        run_id="gpt2",
        basis="measured",
    )


def pairs_of(table: pd.DataFrame) -> pd.DataFrame:
    """Predict from every card to every other card, at every batch size."""
    calibration, found = load_calibration(), []
    for owned, rows in table.groupby("gpu_key"):
        for batch, others in table[table.gpu_key != owned].groupby("batch_size"):
            nearest = rows.iloc[np.argmin(np.abs(np.log(rows.batch_size / batch)))]
            specs = [load_specs()[key] for key in others.gpu_key]
            cases = [(spec, case_for(compiled(batch), spec)) for spec in specs]
            told = predict_all(compiled(batch), cases, [as_measured(nearest)], calibration)
            for read, each in zip(others.read, told, strict=True):
                off = math.log(read / each.samples_per_s)
                found.append((owned, abs(math.expm1(off)), abs(off) <= each.half_width, each.method))
    return pd.DataFrame(found, columns=["owned", "error", "inside", "method"])


def test_any_measured_card_can_anchor_predictions_for_the_others():
    """Rows that look power-limited are excluded."""
    pairs = pairs_of(gpt_2()[gpt_2().quality == "A"])
    assert len(pairs) == 544
    assert not pairs.method.str.contains("usual speed").any()
    assert pairs.error.mean() < 0.08
    assert pairs.error.median() < 0.075
    by_card = pairs.groupby("owned")
    assert by_card.error.mean().max() < 0.13
    assert by_card.inside.mean().min() >= 0.85


def test_card_slower_than_predicted_widens_predictions_anchored_on_it():
    """Two cards look power-limited.

    Predictions anchored on them get wider intervals and say so; the others don't.
    """
    pairs = pairs_of(gpt_2())
    assert len(pairs) == 760
    assert pairs.inside.mean() >= 0.85
    doubted = set(pairs.owned[pairs.method.str.contains("which widens the intervals of other GPUs")])
    assert doubted == {"nvidia-h100-nvl-94gb", "nvidia-rtx-6000-ada-48gb"}


def test_a_slow_reading_still_predicts_its_own_card_at_another_batch():
    """Whatever slows the card also slows its other batches; a faster reading than usual doesn't widen anything."""
    row = gpt_2().iloc[7]
    spec, asked = load_specs()[row.gpu_key], compiled(row.batch_size * 2)
    cases = [(each, case_for(asked, each)) for each in (spec, load_specs()[H100])]
    widths = []
    for factor in (0.5, 1.25, 1.43):
        reading = replace(as_measured(row), samples_per_s=row.read * factor)
        widths.append([each.half_width for each in predict_all(asked, cases, [reading], load_calibration())])
    slow, usual, fast = widths
    assert slow[0] == usual[0] == fast[0]
    assert slow[1] > 1.3 * usual[1]
    assert fast[1] == usual[1]


@pytest.mark.parametrize(
    ("names", "published"),
    [(("bert_base", "transformer"), 1.60), (("resnet50", "vgg16", "vit_b16"), 1.23)],
    ids=["Hugging Face", "timm"],
)
def test_compiled_steps_gain_what_pytorchs_dashboard_reports_on_average(names, published):
    """Its geometric means of training at AMP on an A100, over eager steps."""
    spec = load_specs()["nvidia-a100-sxm-40gb"]
    gains = []
    for name in names:
        speeds = []
        for execution in (Execution.EAGER, Execution.COMPILE):
            asked = question_of(load_profiles()[name], "amp", execution=execution)
            (answer,) = estimate(asked, [spec], reference=()).values()
            speeds.append(answer.samples_per_s)
        gains.append(speeds[1] / speeds[0])
    assert geometric_mean(gains) == pytest.approx(published, rel=0.02)


def test_no_compiled_gpt_2_job_that_ran_is_refused_for_its_memory():
    """nvidia-smi reported the peaks, so they include everything on the card."""
    for row in gpt_2().itertuples():
        spec, question = load_specs()[row.gpu_key], compiled(row.batch_size)
        case = case_for(question, spec)
        assert isinstance(case, Case)
        fit = fit_of(question, case, spec, ())
        assert fit is not None
        assert fit.verdict is not Verdict.DOES_NOT_FIT
        device = fit.need.device
        assert device.low <= row.peak_memory_mib * MIB <= device.high


def test_compiled_gpt_2_is_predicted_with_nothing_measured():
    errors, inside = [], []
    for row in gpt_2().itertuples():
        spec = msgspec.structs.replace(load_specs()[row.gpu_key], memory_bytes=10**12)
        (answer,) = estimate(compiled(row.batch_size), [spec], reference=reference_runs()).values()
        assert isinstance(answer, Estimate)
        errors.append(abs(answer.samples_per_s / row.read - 1))
        inside.append(answer.low <= row.read <= answer.high)
    assert len(errors) == 40
    assert np.mean(errors) < 0.14
    assert np.mean(inside) >= 0.85
