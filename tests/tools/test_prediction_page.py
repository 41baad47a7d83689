"""The figures in the text of docs/prediction-evidence.md and docs/limits.md, recomputed from the shipped data."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from statistics import fmean, median

import msgspec
import numpy as np
import pandas as pd
import pytest
from decode_fit import decode_readings
from outcomes import ADDED, one_vote_each, outcome_of
from scipy.stats import binomtest

from gpubench.folders import data_rows
from gpubench.models import Estimate, Execution, Precision, Status, TaskKind
from gpubench.predict.calibration import load_calibration
from gpubench.predict.estimate import estimate
from gpubench.predict.model import SHARES, scaling
from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS, Question, question_of
from gpubench.profile import load_profiles
from gpubench.readings import h200_readings, load_mlperf
from gpubench.recommend.rank import rank
from gpubench.recommend.request import RankRequest
from gpubench.record.store import read_run, reference_runs
from gpubench.specs import load_specs
from tools.calibrate import batch_spread, level_weights
from tools.evaluate import (
    Outcome,
    figures,
    report,
    scaling_figures,
    weighted_quantile,
)
from tools.published import DATA, fitted_on, published_rows, shipped

ROOT = Path(__file__).parents[2]
PAGE = "docs/prediction-evidence.md"
H100, H200, B200 = "nvidia-h100-sxm-80gb", "nvidia-h200-sxm-141gb", "nvidia-b200-sxm-180gb"
AS_OF = date(2026, 11, 22)
AMP, TF32, FP32 = Precision.AMP_BF16, Precision.TF32, Precision.FP32
READ_ON_BOTH = ("vgg16", "vgg16_transfer", "resnet50", "lstm_large")
READ_ONCE = ("transformer", "bert_base", "vit_b16")
LANGUAGE = ("llama_1b", "llama_8b_lora")
READ_NOWHERE = ("unet_ddpm", "resnet50_transfer")
NEWER = ("Ampere", "Ada Lovelace", "Hopper", "Blackwell")
HALF = (Precision.AMP_FP16, Precision.AMP_BF16)


@cache
def words_of(page: str) -> str:
    """Return the text of a page as one line."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def outcome(task: TaskKind = TaskKind.TRAIN) -> Outcome:
    return outcome_of("harness", task)


@cache
def document(task: TaskKind = TaskKind.TRAIN) -> dict:
    return report(outcome(task))


@cache
def jobs() -> dict:
    return scaling_figures()


def percent(ratio: float, digits: int = 0) -> str:
    return f"{100 * ratio:.{digits}f}"


def times(log: float, digits: int = 3) -> str:
    return f"x{math.exp(log):.{digits}g}"


def rows_of(name: str) -> list[dict[str, str]]:
    return list(published_rows(name) if (DATA / name).is_file() else data_rows(name))


def pairs_at(prefix: str, *architectures: str, exact: bool = False) -> dict:
    """Return the figures of a model family's pairs whose target has one of these architectures."""
    table, pairs = outcome().table, outcome().pairs
    named = [m == prefix if exact else m.startswith(prefix) for m in table.base_model[pairs.y]]
    return figures(outcome(), np.array(named) & np.isin(table.architecture[pairs.y], architectures))


# the tables of the fit


def unused() -> Iterator[str]:
    skipped = shipped((FITTED_VENDOR, *OTHER_VENDORS)).skipped
    without = {r.split("'")[1]: n for r, n in skipped.items() if r.startswith("no profile")}
    apart = sum(n for r, n in skipped.items() if "scored separately" in r)
    keras = sum(n for model, n in without.items() if re.search(r"@\d+$", model))
    texts = ("tacotron2", "transformerxlbase", "transformerxllarge", "ncf", "waveglow")
    yield f"325 of Kepler and {apart} of a TPU"
    yield f"{keras} are small Keras networks and Inception"
    yield f"{sum(without[model] for model in texts)} are Transformer-XL, NCF, Tacotron 2 and WaveGlow"


def unstated_batches() -> Iterator[str]:
    table = fitted_on(TaskKind.TRAIN)
    open_ = table.batch_high > table.batch_low
    for harness, ends in (("gpu-insights", "128 to 1,024"), ("nvidia-dle", "128 to 256")):
        mine = open_ & (table.harness == harness)
        assert {
            f"{a:,.0f} to {b:,.0f}"
            for a, b in zip(table.batch_low[mine], table.batch_high[mine], strict=True)
        } == {ends}
    spread = np.expm1(batch_spread(table)[open_])
    yield f"{open_.sum()} rows of GPU-Insights (128 to 1,024) and NVIDIA's ResNet-50 (128 to 256); spread {percent(spread.min(), 1)} to {percent(spread.max())} %"


def inference() -> Iterator[str]:
    table = fitted_on(TaskKind.INFER)
    networks = {
        row["model"] for row in rows_of("published_inference.csv") if row["source"].startswith("timm")
    }
    yield f"the rows of training and {table.inference.sum():,} of inference together"
    yield f"`tools/data/published_inference.csv` holds {len(networks)} of timm's 1,286 networks"
    assert 0.3 < -math.expm1(-load_calibration().infer.ratio.coefficients.fused) < 0.4
    yield "saves a third of a pass's traffic"
    yield "17 % by rows of inference alone, 12 % by both"
    assert percent(document(TaskKind.INFER)["mape"]) == "12"
    found = outcome(TaskKind.INFER)
    weight, known = level_weights(found.table, found.level_error), np.isfinite(found.level_error)
    compiled, timm = found.table.arithmetic.compiled, found.table.harness == "timm"
    means = []
    for chosen in (compiled & known, ~compiled & timm & known):
        error, votes = found.level_error[chosen], weight[chosen]
        inside = np.average(np.abs(error) <= found.level_half_width[chosen], weights=votes)
        means.append((percent(np.average(np.abs(np.expm1(error)), weights=votes)), percent(inside)))
    (first, inside), (second, _) = means
    yield f"compiled passes {first} % off on average (eager ones {second} %), {inside} % inside"


def tokens() -> Iterator[str]:
    rows = decode_readings()
    yield f"{len(rows)} published rates of llama.cpp at batch 1"
    yield f"{len({row.gpu_key for row in rows})} cards, two lists of one author"


def other_vendors() -> Iterator[str]:
    learned = load_calibration().train.ratio
    width = learned.other_vendors
    yield f"an MI325X takes {1 / math.exp(learned.deviations['CDNA3'][0]):.1f} times as long as the fit says, CDNA2 is a fifth faster"
    assert math.exp(learned.deviations["CDNA2"][0]) == pytest.approx(1.2, abs=0.01)
    instinct, radeon = (
        [times(width[f"AMD {line}{half}"]) for half in ("", " at half precision")]
        for line in ("Instinct", "Radeon")
    )
    yield f"Instinct {instinct[0]} at FP32 and TF32"
    yield f"and {instinct[1]} in half precision (an MI325X alone), Radeon {radeon[0]} and {radeon[1]}"
    rdna3 = [f"x{math.exp(width[f'AMD Radeon RDNA3{half}']):.1f}" for half in ("", " at half precision")]
    yield f"other cards of the architecture: {rdna3[0]} and {rdna3[1]}"
    ratios = [over_a_b200("amd-mi355x-288gb", name) for name in (*READ_ON_BOTH[::2], *READ_ONCE, *LANGUAGE)]
    yield f"an MI355X reaches {min(ratios):.2f} to {max(ratios):.2f} of a B200"
    mi355x, mi325x, mi300x = (
        (mlperfs_lora_over_a_b200(key, name), over_a_b200(key, "llama_8b_lora"))
        for key, name in (
            ("amd-mi355x-288gb", "v5.1"), ("amd-mi325x-256gb", "v5.0"), ("amd-mi300x-192gb", "v5.0"),
        )
    )  # fmt: skip
    yield f"it reaches {mi355x[0]:.2f} of a B200 (predicted for 8B: {mi355x[1]:.2f}), an MI325X {mi325x[0]:.2f} ({mi325x[1]:.2f}), an MI300X {mi300x[0]:.2f} ({mi300x[1]:.2f})"


def over_a_b200(gpu_key: str, name: str) -> float:
    question = question_of(load_profiles()[name], None)
    found = estimate(question, [load_specs()[key] for key in (gpu_key, B200)], reference=reference_runs())
    return found[gpu_key].samples_per_s / found[B200].samples_per_s


def mlperfs_lora_over_a_b200(gpu_key: str, name: str) -> float:
    """Return a card's speed over a B200's for 70B LoRA on eight GPUs, within one MLPerf round."""
    minutes = [
        median(
            run.minutes
            for run in load_mlperf()
            if (run.benchmark, run.round, run.gpus, run.gpu_key) == ("llama2_70b_lora", name, 8, key)
        )
        for key in (gpu_key, B200)
    ]
    return minutes[1] / minutes[0]


# for a user without a GPU


@cache
def half_widths(name: str, precision: Precision | None) -> float:
    """Return the median half-width over NVIDIA's GPUs, as a factor, with nothing measured."""
    cards = [spec for spec in load_specs().values() if spec.vendor == FITTED_VENDOR]
    question = question_of(load_profiles()[name], precision)
    found = estimate(question, cards, own=(), reference=reference_runs()).values()
    told = [a for a in found if isinstance(a, Estimate) and a.basis == "predicted" and a.low]
    assert len(told) > 30
    return median(math.sqrt(a.high / a.low) for a in told)


def nothing_measured() -> Iterator[str]:
    most = [max(half_widths(name, p) for name in READ_ON_BOTH) for p in (None, TF32, FP32)]
    yield "measured on both | " + ", ".join(f"x{each:.2f}" for each in most) + " |"
    once = ", ".join(f"x{half_widths(name, None):.2f}" for name in READ_ONCE)
    others = [max(half_widths(name, p) for name in READ_ONCE) for p in (TF32, FP32)]
    yield f"measured on the H100 | {once} at amp (in this order), x{others[0]:.2f}, x{others[1]:.2f} |"
    yield f"measured on the H100 at AMP | x{half_widths('llama_1b', AMP):.2f} at amp, x{half_widths('llama_1b', None):.2f} at its default (bf16)"
    (none,) = {f"x{half_widths(name, p):.2f}" for name in READ_NOWHERE for p in (None, TF32, FP32)}
    yield f"a model of your own: none | {none} |"


def classes_on_new_cards() -> Iterator[str]:
    bert, resnet = pairs_at("bert", "Hopper"), pairs_at("resnet50", "Hopper", exact=True)
    yield f"on Hopper BERT is {percent(bert['mape'])} % off on {bert['pairs']} pairs, ResNet-50 (ImageNet's) {percent(resnet['mape'])} % on {resnet['pairs']}, VGG16 {percent(fmean(without_own_reading('vgg16')))} % on the readings"
    small = [pairs_at("resnet50_cifar", name) for name in ("Hopper", "Blackwell")]
    yield f"{percent(small[0]['mape'])} % on {small[0]['pairs']} pairs on Hopper, {percent(small[1]['mape'])} % on {small[1]['pairs']} on Blackwell"


@cache
def levels_on_an_h200(name: str) -> tuple[tuple[Precision, float, bool], ...]:
    """Return predicted over measured speed of each shipped reading by levels alone, and whether the interval holds it."""
    found = []
    for step in h200_readings().cases:
        if step.workload == name:
            stranger = msgspec.structs.replace(load_profiles()[name], name=f"own_{name}")
            question = Question(profile=stranger, precision=step.precision, batch_size=step.batch_size)
            (told,) = estimate(question, [load_specs()[H200]], own=(), reference=()).values()
            read = step.batch_size / step.step_s[Execution.GRAPH]
            found.append((step.precision, told.samples_per_s / read, told.low < read < told.high))
    return tuple(found)


def without_own_reading(*names: str) -> list[float]:
    return [abs(ratio - 1) for name in names for _, ratio, _ in levels_on_an_h200(name)]


def levels() -> Iterator[str]:
    every = without_own_reading(*READ_ON_BOTH)
    inside = [held for name in READ_ON_BOTH for *_, held in levels_on_an_h200(name)]
    yield f"{percent(fmean(every))} % on average, {percent(median(every))} % in the median, {sum(inside)} of {len(inside)} inside"
    slow = [1 / ratio for p, ratio, _ in levels_on_an_h200("lstm_large") if p in HALF]
    assert [f"{each:.1f}" for each in slow] == ["1.3", "1.4"]
    yield "(the LSTM under AMP is 1.3 to 1.4 times as fast as predicted)"
    hugging = [
        ratio for name in ("bert_base", "transformer") for p, ratio, _ in levels_on_an_h200(name) if p in HALF
    ]
    yield f"no anchor: {min(hugging):.2f} to {max(hugging):.2f} times too fast on an H200"
    assert not any(
        held for name in ("bert_base", "transformer") for p, _, held in levels_on_an_h200(name) if p in HALF
    )
    assert [round(ratio) for _, ratio, _ in levels_on_an_h200("cnn")] == [3, 3, 3, 3]
    yield "On an H200 `cnn` is predicted three times too fast"
    vgg = [1 / ratio - 1 for _, ratio, _ in levels_on_an_h200("vgg16")]
    yield f"predicted from datasheets, {percent(min(vgg))} to {percent(max(vgg))} % too slow"


def small_networks() -> Iterator[str]:
    smallest = min(float(row["params_m"]) for row in published_rows("model_profiles.csv") if row["params_m"])
    yield f"Below {smallest:.1f} million parameters (the smallest published model)"
    found = outcome()
    table, known = found.table, np.isfinite(found.level_error)
    names = np.array([f"{h}|{m}" for h, m in zip(table.harness, table.base_model, strict=True)])
    covered = []
    for keep in (known, known & (table.harness != "ryujaehun")):
        voters, which, count = np.unique(names[keep], return_inverse=True, return_counts=True)
        inside = np.abs(found.level_error[keep]) <= found.level_half_width[keep]
        covered.append((len(voters), percent(np.average(inside, weights=1 / count[which]))))
    (every, all_), (others, without) = covered
    assert set(table.batch[table.harness == "ryujaehun"]) == {12}
    yield f"(ryujaehun's {every - others} at 12 images)"
    yield f"{all_} % would be covered, {without} % without that harness"


# several GPUs


def several() -> Iterator[str]:
    whole, one = jobs(), jobs()["by_slice"]["from one GPU"]
    alone = one["targets"]
    held = round(one["coverage_90"] * alone)
    p = binomtest(held, alone, 0.9).pvalue
    yield f"fitted to {whole['jobs']} jobs of four harnesses"
    yield f"off by {percent(whole['mape'], 1)} % on average, and {percent(whole['coverage_90'], 1)} % of the intervals contain it"
    yield f"the {one['jobs']} jobs from one GPU are off by {percent(one['mape'], 1)} %, and {percent(one['coverage_90'], 1)} % contain it (about {held} of {alone} votes; binomial p {p:.2f}"
    shares = dict(zip(SHARES, (math.exp(v) for v in load_calibration().scaling.logs), strict=True))
    yield f"| lost with each doubling | 1.5 % in all | {percent(shares['waiting'], 1)} % |"
    yield f"| share of the backward pass that hides the exchange | 0.75 | {shares['hidden']:.2f} |"
    yield f"| share of a link's rate: NVLink | 0.75 | {shares['nvlink']:.2f} |"
    yield f"| PCIe | 0.60 | {shares['pcie']:.2f} |"
    yield f"| through the host (GeForce) | 0.35 | {shares['host']:.2f}: no published job |"
    rows = rows_of("scaling.csv")
    amd = [
        1 - float(r["many_samples_per_s"]) / float(r["few_samples_per_s"])
        for r in rows
        if "mi325x" in r["gpu_key"]
    ]
    four = [
        4 * float(r["many_samples_per_s"]) / float(r["few_samples_per_s"])
        for r in rows
        if r["many_gpus"] == "4" and r["model"] == "resnet152-ddp-gpus"
    ]
    yield f"ResNet-152 ran {median(four):.1f} times as fast as on one"
    (millions,) = {round(float(r["parameters_m"])) for r in rows if r["model"] == "diffusion-gpus"}
    yield f"exchange {millions} million gradients in small batches"
    yield f"MI325X loses {percent(fmean(amd))} % at eight"
    titan = [r["few_samples_per_s"] for r in rows if r["harness"] == "torchtitan" and r["few_gpus"] == "8"]
    yield f"torchtitan's row reads {max(map(float, titan)):,.0f} with compiled blocks"
    card = load_specs()[H100]
    found = [
        scaling(Question(profile=load_profiles()[n]), card, 8, speed)
        for n, speed in (("vgg16", 2900.0), ("resnet50", 3600.0))
    ]
    wide = {f"x{efficiency / low:.2f}" for efficiency, low, _ in found}
    assert len(wide) == 1, wide
    yield f"The half-width of eight GPUs on NVLink is about {wide.pop()}"


def a_job_of_eight() -> Iterator[str]:
    name = "llama_8b_fsdp"
    found = rank(RankRequest(workloads=(name,), gpus=(H100,), results=Path("/nowhere"), as_of=AS_OF))
    row = next(row for row in found.rows if row.offer.gpu_count == 8)
    tokens = load_profiles()[name].tokens_per_sample
    rates = row.samples_per_s.value, row.samples_per_s.low, row.samples_per_s.high
    likely, low, high = (f"{float(f'{rate * tokens / 8:.3g}'):,.0f}" for rate in rates)
    batch = row.estimate.case.batch_size
    yield f"on 8 H100s at batch {batch} is predicted at {likely} tokens/s per GPU ({low} to {high})"


# errors on the shipped rows


def headline() -> Iterator[str]:
    found = outcome()
    table, pairs = found.table, found.pairs
    voters = {(table.harness[i], table.gpu_key[i]) for i in pairs.y}
    yield f"a full refit without each of the {len(voters)} groups"
    first = np.array([not source.startswith(ADDED) for source in table.source[pairs.y]])
    error, weight = np.abs(np.expm1(found.log_error[first])), one_vote_each(table, pairs.y[first])
    mean, middle = percent(np.average(error, weights=weight), 1), percent(weighted_quantile(error, weight), 1)
    yield f"nikolasent ({first.sum():,} of these pairs): {mean} / {middle} %"
    newer = figures(found, np.isin(table.architecture[pairs.y], NEWER))
    yield f"Ampere and newer ({newer['pairs']:,} pairs): {percent(newer['mape'], 1)} / {percent(newer['median_ape'], 1)} %"
    assert document()["heaviest_source"]["harness"] == "lambda-pytorch"
    assert document()["heaviest_source"]["share"] == pytest.approx(1 / 3, abs=0.03)
    yield "a third of the votes are lambda-pytorch's"
    differences = between_harnesses(found)
    middle = percent(median(differences), 1)
    yield f"{len(differences)} ratios measured by two harnesses differ by {percent(fmean(differences), 1)} / {middle} %"


def between_harnesses(found: Outcome) -> list[float]:
    """Return how much two harnesses differ in the ratio of two GPUs at equal model and precision.

    A harness's ratio is the median over its batches; each pair of harnesses counts once.
    """
    table, x, y = found.table, found.pairs.x, found.pairs.y
    per_sample = table.log_seconds - np.log(table.batch)
    keys = ("model", "precision", "own", "target", "harness")
    columns = (table.base_model[y], table.precision[y], table.gpu_key[x], table.gpu_key[y], table.harness[y])
    ratios = pd.DataFrame(dict(zip(keys, columns, strict=True))).assign(log=per_sample[y] - per_sample[x])
    once = ratios[ratios.own < ratios.target].groupby([*keys]).log.median()
    alike = once.groupby(level=[*keys[:-1]])
    return [abs(math.expm1(one - two)) for _, each in alike for one, two in itertools.combinations(each, 2)]


def weak_spots() -> Iterator[str]:
    xhmy = document()["by_slice"]["harness: xhmy"]
    yield f"four versions of PyTorch; {percent(xhmy['coverage_90'])} % covered"
    pascal = committed("inference, harness", "architecture: Pascal")
    yield f"Pascal cards: {percent(float(pascal['coverage_90']))} % covered"


# a card seen afterwards


def seen_afterwards() -> Iterator[str]:
    errors: dict[bool, list[float]] = {True: [], False: []}
    for path in sorted((ROOT / "results" / "example" / "runs").rglob("*.json")):
        for m in read_run(path).measurements:
            case = m.case
            if m.status is not Status.OK or case.execution is not Execution.GRAPH:
                continue
            profile = load_profiles()[case.workload]
            question = question_of(
                profile, case.precision, execution=case.execution, batch_size=case.batch_size
            )
            (told,) = estimate(question, [load_specs()[H100]], own=(), reference=()).values()
            off = told.samples_per_s / m.samples_per_s - 1
            errors[told.anchored].append(abs(off))
            figures_ = (
                f"{v:,.0f}" if v >= 100 else f"{v:.1f}" for v in (told.samples_per_s, m.samples_per_s)
            )
            yield "| `{}` {} | {} | {} | {} | {:+.0f} % |".format(
                case.workload, case.batch_size, case.precision, *figures_, 100 * off
            )
    with_, without = errors[True], errors[False]
    assert (len(with_), len(without)) == (16, 6)
    yield f"The 16 that start from a shipped reading of an H200 are {percent(fmean(with_), 1)} % off on average, the six others {percent(fmean(without), 1)} %"
    every = with_ + without
    yield f"**{percent(fmean(every), 1)} % on average, {percent(median(every), 1)} % in the median"


# other pages


def not_confirmed() -> Iterator[str]:
    whole, level = document(), document()["no_gpu_owned"]
    strangers = committed("stranger", "all pairs")
    ends = percent(whole["mape"]), percent(float(strangers["mape"]))
    yield f"**Predictions are off by {ends[0]} to {ends[1]} % on average, {percent(whole['median_ape'])} % in the median**"
    plain = whole["geometric_mean"]
    yield f"({whole['targets']} cards, Maxwell to Blackwell; the geometric mean of peak and bandwidth: {percent(plain['mape'])} and {percent(plain['median_ape'])} %)"
    yield f"the 90 % intervals contain {percent(whole['coverage_90'])} % of the pairs. If you own no GPU, times are off by {percent(level['mape'])} % on average"


def own_runs() -> Iterator[str]:
    """If only the target GPU is left out, the fit includes rows of the target's harness."""
    without, with_them = (
        percent(float(committed(name, "all pairs")["mape"]), 1) for name in ("harness", "gpu")
    )
    yield f"the error of a ratio falls from {without} to {with_them} %"


def committed(hold_out: str, part: str) -> dict[str, str]:
    with (ROOT / "docs" / "prediction_figures.csv").open(encoding="utf-8", newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if (row["hold_out"], row["slice"]) == (hold_out, part)]
    return row


STATED = {
    PAGE: (
        unused, own_runs, unstated_batches, inference, tokens, other_vendors, nothing_measured, classes_on_new_cards, levels,
        small_networks, several, a_job_of_eight, headline, weak_spots, seen_afterwards,
    ),
    "docs/limits.md": (not_confirmed,),
}  # fmt: skip


WHOLE_EVALUATION = pytest.mark.slow
"""Inference needs an evaluation of its own, and ``tests/tools/test_evaluate.py`` checks its figures at each run."""


@pytest.mark.parametrize(
    ("page", "told"),
    [
        pytest.param(page, told, id=told.__name__, marks=WHOLE_EVALUATION if told is inference else ())
        for page, every in STATED.items()
        for told in every
    ],
)
def test_the_figures_on_the_page_match_the_shipped_tables(page, told):
    text = words_of(page)
    assert [words for words in told() if words not in text] == []
