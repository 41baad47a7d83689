"""Predicts throughput with the roofline model, starting from measured GPUs if there are any.

A measured GPU that a prediction starts from is an anchor: the roofline gives the ratio between its speed and
the target's. Without anchors, the roofline predicts from datasheets alone; that prediction is the GPU's
level. Two measurements of the user's machine are used: the card's micro-benchmarks, and the host's speed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from gpubench.arrays import Floats
from gpubench.errors import MisuseError
from gpubench.groups import grouped
from gpubench.models import Case, Execution, GpuSpec, MicroResult, Stack, TaskKind, WorkloadProfile
from gpubench.precisions import Precision
from gpubench.predict.calibration import Calibration, Learned, ScalingShares, load_calibration, pair_scale
from gpubench.predict.chips import Chips, Mode, chip_of, chips_of
from gpubench.predict.question import FITTED_VENDOR, Question, Reading, same_arithmetic
from gpubench.predict.roofline import (
    HOST_S_PER_OPERATOR,
    HOST_SHARE_LIMIT,
    Arithmetic,
    Times,
    Work,
    arithmetic_of,
    cast_bytes_of,
    deviations_of,
    leading_mode,
    least_step_s,
    log_throttle,
    step_times,
    work_of,
)
from gpubench.units import format_percent

# Share of a measured card's deviation from its level that is specific to its chip. The rest is due to the
# workload or its software. In the published pairs, with each target's harness and GPU left out, it is 0.28
# where the measured card is faster than its level and 0.34 where it is slower.
OWN_SHARE = 0.3
# Log deviation up to which OWN_SHARE applies: a level's half-width. Beyond it, the share falls linearly to 0
# at twice that deviation, where the level is wrong for the workload.
OWN_LIMIT = 0.4
# Log deviation above which a measured card is reported as slow: one standard deviation of a level.
SLOW_LIMIT = 0.25
# Share of a pair's typical error that applies if the anchor is the same GPU, measured in another case.
SAME_GPU_SHARE = 0.5
SMALLEST_PUBLISHED = 1_200_000  # parameters; the narrow layers of smaller models use little of the chip
# Factors on the log half-width for smaller models, without and with anchors; from readings of an H200.
SMALL_LEVEL, SMALL_RATIO = 2.0, 1.5
# Log half-width of the rate of large products if no GPU of the family was measured. The A100, L40S and RTX
# PRO 6000, each left out in turn, are predicted within a factor of 1.12 (tests/predict/test_products.py).
UNMEASURED_WIDTH = 0.25
LIMITED_WORDS = "limited to the best rate of matrix products in its family, so the interval is widened"
# Published over predicted speedup of a compiled training step, for language models of repeated blocks and for
# image models. Over eager steps at AMP on an A100, PyTorch's dashboard has 1.60 for Hugging Face's models and
# 1.23 for timm's (geometric means, github.com/pytorch/pytorch/issues/93794). The roofline alone
# gives 1.345 for `bert_base` and `transformer`, and 1.286 for `resnet50`, `vgg16` and `vit_b16`.
LANGUAGE_RESIDUAL, IMAGE_RESIDUAL = 1.19, 0.96
# Log half-width added for each difference in precision, type of weights, execution or layout
DIFFERENCE_NOISE = 0.10


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One predicted throughput.

    Attributes:
        half_width: Log half-width of the 90 % interval.
        most_samples_per_s: Upper limit: the throughput if all FLOPs of a step ran at the peak.
        evidence: The runs of the anchors.
        compute_share, bandwidth_share, host_share: Shares of the step's time.
    """

    samples_per_s: float
    half_width: float
    most_samples_per_s: float
    method: str
    evidence: tuple[str, ...]
    compute_share: float
    bandwidth_share: float
    host_share: float


def predict_all(
    question: Question,
    unmeasured: Sequence[tuple[GpuSpec, Case]],
    readings: Sequence[Reading],
    calibration: Calibration,
) -> list[Prediction]:
    """Predict the unmeasured cases of one question, each independently of the others.

    They can differ, since the best AMP precision depends on the GPU; each has its own anchors, arithmetic and
    layout.
    """
    found: dict[tuple[GpuSpec, Case], Prediction] = {}
    for case, specs in grouped((case, spec) for spec, case in unmeasured).items():
        predictions = _predict(question, specs, case, readings, calibration)
        found |= {(spec, case): each for spec, each in zip(specs, predictions, strict=True)}
    return [found[each] for each in unmeasured]


def _predict(
    question: Question,
    specs: Sequence[GpuSpec],
    case: Case,
    readings: Sequence[Reading],
    calibration: Calibration,
) -> list[Prediction]:
    anchors = choose_anchors(readings, case)
    host_s = _host(question, case, readings)
    fitted = calibration.of(question.task)
    learned = fitted.ratio if anchors else fitted.level
    is_small = question.profile.parameters < SMALLEST_PUBLISHED
    times = _times(question, case, specs, learned, host_s)
    # How much slower each anchor is than its level; NaN for small models, whose levels are unreliable
    slowdowns = [
        math.nan if is_small else _log_slowdown(question, each, fitted.level, host_s) for each in anchors
    ]
    work, chips, arithmetic = _work(question, case), chips_of(specs), _arithmetic(case, len(specs))
    if anchors:
        log_sample_s, width = _combine(
            [
                _from_anchor(
                    question, anchor, specs, case, learned, times=times, slowdown=each, host_s=host_s
                )
                for anchor, each in zip(anchors, slowdowns, strict=True)
            ]
        )
    else:
        log_sample_s = np.log(times.step_s / case.batch_size)
        width = np.array([learned.half_width(spec, half=bool(arithmetic.half[0])) for spec in specs])
    if is_small:
        width = width * (SMALL_RATIO if anchors else SMALL_LEVEL)
    least_s = least_step_s(work, chips, arithmetic)
    host_share = times.host_s / times.step_s
    host_limit = np.where(
        host_share > HOST_SHARE_LIMIT, case.batch_size / np.maximum(times.host_s, 1e-12), np.inf
    )
    speed = np.minimum(np.exp(-log_sample_s), host_limit)
    # The likely speed is limited by the best rate measured in the GPU's family, which is below the peak
    most = case.batch_size / least_step_s(work, chips, arithmetic, at_best_rate=True)
    excess = np.log(np.maximum(speed / most, 1.0))
    wide_share = times.compute_s / times.gpu_s * work.wide_flops / np.maximum(work.flops.sum(), 1.0)
    product_width = np.where(chips.product_measured, 0.0, UNMEASURED_WIDTH * wide_share)
    widths = np.hypot(width, product_width) + excess
    return [
        Prediction(
            samples_per_s=float(min(speed[i], most[i])),
            half_width=float(widths[i]),
            most_samples_per_s=case.batch_size / float(least_s[i]),
            method=_method(anchors, slowdowns, case, is_small=is_small, is_limited=bool(excess[i] > 0)),
            evidence=tuple(a.run_id for a in anchors),
            compute_share=float((1 - host_share[i]) * times.compute_s[i] / times.gpu_s[i]),
            bandwidth_share=float((1 - host_share[i]) * times.memory_s[i] / times.gpu_s[i]),
            host_share=float(host_share[i]),
        )
        for i in range(len(specs))
    ]


def _host(question: Question, case: Case, readings: Sequence[Reading]) -> float:
    # Host seconds per operator: measured on this machine, else the default; 0 unless steps are eager.
    if case.execution is not Execution.EAGER:
        return 0.0
    operators = float(_work(question, case).operators[0])
    return host_s_per_operator(readings, operators) or HOST_S_PER_OPERATOR[Execution.EAGER]


def _work(question: Question, case: Case) -> Work:
    # One step of the question's workload at the batch and precision of a case.
    profile = question.profile
    casts = cast_bytes_of(profile, question.task) if case.precision.is_amp else 0.0
    return work_of(profile.operators_of(question.task), case.batch_size, casts)


def _arithmetic(case: Case, n: int) -> Arithmetic:
    """Return the arithmetic of n steps of one case.

    The savings from compiling are fitted to published rows in inference, and computed from the profile's
    chains of operators in training.
    """
    fused = fuses_chains(case)
    compiled = case.execution is Execution.COMPILE and not fused
    return arithmetic_of(case.precision, case.memory_format, n, compiled=compiled, chains_fused=fused)


def _times(
    question: Question,
    case: Case,
    specs: Sequence[GpuSpec],
    learned: Learned,
    host_s: float,
    *,
    measured: Reading | None = None,
) -> Times:
    # The roofline of one case on n GPUs; with `measured`, on its one GPU, corrected by its micro-benchmarks
    chips, deviations = chips_of(specs), deviations_of(learned.deviations, [spec.key for spec in specs])
    if measured is not None and measured.micro:
        throttle = log_throttle(chips, learned.coefficients)[0]
        expected = np.exp([throttle + deviations[0, 0], deviations[0, 2]])
        chips = measured_chip(chips, measured.micro, (float(expected[0]), float(expected[1])))
    times = step_times(
        _work(question, case),
        chips,
        _arithmetic(case, len(specs)),
        learned.coefficients,
        host_s_per_operator=host_s if case.execution is Execution.EAGER else 0.0,
        deviations=deviations,
    )
    return replace(times, step_s=times.step_s / _residual(question.profile, case))


def _residual(profile: WorkloadProfile, case: Case) -> float:
    """Return by what factor compiled training is faster than the roofline says; 1 for any other step."""
    if case.execution is not Execution.COMPILE or not fuses_chains(case):
        return 1.0
    if profile.is_image:
        return IMAGE_RESIDUAL
    return LANGUAGE_RESIDUAL if profile.blocks is not None else 1.0


def _from_anchor(
    question: Question,
    anchor: Reading,
    specs: Sequence[GpuSpec],
    case: Case,
    learned: Learned,
    *,
    times: Times,
    slowdown: float,
    host_s: float,
) -> tuple[Floats, Floats]:
    """Predict from a measurement; the part of its deviation due to the card is left out for other chips.

    Returns:
        Log seconds per sample, and log half-widths of the intervals, each (n,).
    """
    is_other_chip = np.array([chip_of(spec.key) != chip_of(anchor.spec.key) for spec in specs])
    shift = _log_slowdown(question, anchor, learned, host_s) - own_part(slowdown) * is_other_chip
    arithmetic = _arithmetic(case, len(specs))
    assert learned.scale is not None  # only levels have none
    mode = np.broadcast_to(leading_mode(_work(question, case), arithmetic), len(specs))
    same_gpu = np.array([spec.key == anchor.spec.key for spec in specs])
    slow = np.where(same_gpu, 0.0, slowdown)
    typical = pair_scale(learned.scale, chips_of([anchor.spec]), chips_of(specs), mode, slow)
    half = bool(arithmetic.half[0])
    widths = np.array(
        [
            learned.width_from_rows(spec, SAME_GPU_SHARE * usual)
            if is_same
            else learned.half_width(spec, usual, half=half)
            for spec, usual, is_same in zip(specs, typical, same_gpu, strict=True)
        ]
    )
    n_differences = len(differences(anchor, case).keys() - {"batch_size"})  # the roofline scales by batch
    variance = anchor.noise**2 + n_differences * DIFFERENCE_NOISE**2
    return shift + np.log(times.step_s / case.batch_size), np.sqrt(widths**2 + variance)


def _log_slowdown(question: Question, anchor: Reading, learned: Learned, host_s: float) -> float:
    # Log ratio of the anchor's measured time to the time that the roofline gives for it
    as_measured = msgspec.structs.replace(
        question, profile=question.profile.at_precision(anchor.case.precision)
    )
    times = _times(as_measured, anchor.case, [anchor.spec], learned, host_s, measured=anchor)
    return -math.log(anchor.samples_per_s) - math.log(float(times.step_s[0]) / anchor.case.batch_size)


def own_part(slowdown: Floats | float) -> Floats:
    """Return the card-specific part of log deviations from the level; 0 where the deviation is NaN."""
    known = np.nan_to_num(slowdown)
    return np.asarray(OWN_SHARE * known * np.clip(2 - np.abs(known) / OWN_LIMIT, 0.0, 1.0))


def _combine(from_each: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Average the predictions from several anchors, with weights 1 / width^2.

    The width does not shrink with the number of anchors, because most of the error is due to the target.
    """
    logs, widths = (np.stack(each) for each in zip(*from_each, strict=True))
    weights = widths**-2 / np.sum(widths**-2, axis=0)
    return np.sum(weights * logs, axis=0), np.sum(weights * widths, axis=0)


def _method(
    anchors: Sequence[Reading], slowdowns: Sequence[float], case: Case, *, is_small: bool, is_limited: bool
) -> str:
    named = [(anchor.spec.short_name, ", ".join(differences(anchor, case).values())) for anchor in anchors]
    names = [f"{name} ({how})" if how else name for name, how in named]
    start = f"ratio from {' and '.join(names)}"
    if not anchors:
        start = "not anchored: no GPU measurement of this workload to start from"
    for anchor, slowdown in zip(anchors, slowdowns, strict=True):
        if slowdown > SLOW_LIMIT:
            slow = f"{anchor.spec.short_name} ran at {format_percent(math.exp(-slowdown))} of its usual speed"
            start = f"{start}; the {slow}, which widens the intervals of other GPUs"
    if is_small:
        start = f"{start}; smaller than every published model, so the interval is widened"
    return f"{start}; {LIMITED_WORDS}" if is_limited else start


# --- anchors ------------------------------------------------------------------------------------------------


def choose_anchors(readings: Sequence[Reading], case: Case) -> list[Reading]:
    """Return, for each GPU, the reading closest to this case that a prediction may start from.

    The arithmetic must be the same; both kinds of AMP count as one. Execution, layout and batch may differ.
    If no reading has the same arithmetic, one that runs its matrix products on the same units is accepted:
    AMP for BF16 weights, and vice versa. A host-bound reading says nothing about a GPU and is never an
    anchor. A training step that fuses chains of operators starts only from readings that fuse them too, and
    any other step only from readings that do not. If the user has measured an anchor, the shipped readings
    are left out, because another harness adds its own error.
    """
    gpu_bound = [r for r in readings if not r.host_bound and fuses_chains(r.case) is fuses_chains(case)]
    usable = [r for r in gpu_bound if same_arithmetic(r.case, case)] or [
        r for r in gpu_bound if r.case.precision.facts.predicted_as == case.precision.facts.predicted_as
    ]
    usable = [r for r in usable if r.basis == "measured"] or usable

    def distance(reading: Reading) -> float:
        # Assumed weights; 1 is a batch that is larger or smaller by a factor of e
        measured = reading.case
        return (
            10.0 * (measured.execution != case.execution)
            + 5.0 * (measured.memory_format != case.memory_format)
            + 2.0 * (measured.precision != case.precision)
            + abs(math.log(measured.batch_size / case.batch_size))
        )

    return [
        min((r for r in usable if r.spec.key == key), key=distance)
        for key in dict.fromkeys(r.spec.key for r in usable)
    ]


def differences(reading: Reading, case: Case) -> dict[str, str]:
    """Describe, by field, how the reading's case differs from the predicted case."""
    measured = reading.case
    words = {
        "precision": f"measured at {measured.precision}",
        "weight_type": f"measured with {measured.weight_type} weights",
        "execution": f"measured {measured.execution.facts.words}",
        "memory_format": f"measured in {measured.memory_format} layout",
        "batch_size": f"measured at batch {measured.batch_size}",
    }
    return {name: text for name, text in words.items() if getattr(measured, name) != getattr(case, name)}


def fuses_chains(case: Case) -> bool:
    """Whether the case is a training step that fuses chains of operators.

    False for inference: the savings from compiling are fitted there, so compiled and other steps may anchor
    each other.
    """
    return case.task is TaskKind.TRAIN and (case.execution is Execution.COMPILE or case.stack is Stack.FUSED)


# --- facts about the user's own machine ---------------------------------------------------------------------

# A card that reaches a smaller share of its datasheet's rates than usual in micro-benchmarks is throttled,
# for example by its power limit. Without a correction, predictions of other cards from it would be too slow.
#
# By number format: the arithmetic, and the share of the peak that a GEMM usually reaches
_USUAL_GEMM = {
    facts.format.name: (Mode[facts.predicted_as.upper()], facts.format.usual_share)
    for facts in (precision.facts for precision in Precision)
    if facts.predicted_as and facts.format.usual_share
}
_USUAL_COPY = 0.89  # the same for the bandwidth of a device copy
_BELIEF = 0.5  # share of a log difference that counts; below 1, as the usual shares are from one card
_LEAST, _MOST = 0.5, 1.2  # limits of a correction; a measurement beyond them is not trusted
_PREFIX = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def measured_chip(chip: Chips, micro: Iterable[MicroResult], expected: tuple[float, float]) -> Chips:
    """Return the datasheet figures of one card, corrected by the results of its micro-benchmarks.

    Args:
        chip: Datasheet figures of the card's GPU, n = 1.
        micro: Its micro-benchmarks; kinds other than GEMM and device copy are ignored.
        expected: The factors on its peaks and on its bandwidth that the calibration already applies, for the
            usual power limit and the architecture's deviation.
    """
    peaks, bandwidth = chip.peaks.copy(), chip.bandwidth.copy()
    best: dict[Mode, float] = {}
    for result in micro:
        value = _si(result)
        if value is None:
            continue
        precision = (result.precision or "").removeprefix("amp-")
        if "gemm" in result.name and precision in _USUAL_GEMM:
            mode, usual = _USUAL_GEMM[precision]
            best[mode] = max(best.get(mode, 0.0), value / usual / expected[0])
        elif "copy" in result.name and "host" not in result.name and result.unit.endswith("B/s"):
            bandwidth[0] *= _bounded(value / _USUAL_COPY / expected[1] / bandwidth[0])
    for mode, value in best.items():
        peaks[0, mode] *= _bounded(value / peaks[0, mode])
    return replace(chip, peaks=peaks, bandwidth=bandwidth)


def host_s_per_operator(readings: Sequence[Reading], operators: float) -> float | None:
    """Return the host time per operator on the user's machine [s], from cases run both eager and as a graph.

    A graph takes no host time. Since step^2 = gpu^2 + host^2 (``HOST_POWER``), the eager step's host time is
    sqrt(eager^2 - graph^2). None if no case was run both ways, or if eager steps were not slower.

    Args:
        readings: Newest first; the newest graph reading of a case counts.
        operators: Operators per step.
    """
    own = [r for r in readings if r.basis == "measured"]
    graph_step_s = {
        _without_execution(r): r.case.batch_size / r.samples_per_s
        for r in reversed(own)
        if r.case.execution is Execution.GRAPH
    }
    found = []
    for r in own:
        gpu_s, step_s = graph_step_s.get(_without_execution(r)), r.case.batch_size / r.samples_per_s
        if r.case.execution is Execution.EAGER and gpu_s is not None and step_s > gpu_s:
            found.append(math.sqrt(step_s**2 - gpu_s**2) / operators)
    return median(found) if found else None


def _without_execution(r: Reading) -> tuple[object, ...]:
    return r.spec.key, r.case.precision, r.case.batch_size, r.case.memory_format


def _si(result: MicroResult) -> float | None:
    # The value in FLOP/s or B/s, for any prefix of its unit; None for other units.
    for unit in ("FLOP/s", "B/s"):
        if result.unit.endswith(unit) and math.isfinite(result.value) and result.value > 0:
            return result.value * _PREFIX.get(result.unit.removesuffix(unit), 1.0)
    return None


def _bounded(ratio: float) -> float:
    return float(np.clip(ratio**_BELIEF, _LEAST, _MOST))


# --- several GPUs in one data-parallel job ------------------------------------------------------------------

# The cost of exchanging gradients, and how much of it is hidden. A ring all-reduce moves 2 (n - 1) / n times
# the gradient bytes over the slowest link. Buckets of gradients are sent during the backward pass as they
# become ready, which hides part of the exchange. The GPUs wait for each other, which costs a share of the
# step for each doubling of the GPU count. The shares are fitted to published rows; see docs/prediction.md.

Link: TypeAlias = Literal["nvlink", "fabric", "pcie", "host"]

GRADIENT_BYTES = 4  # data parallel training exchanges fp32 gradients, under AMP too
BACKWARD_SHARE = 2 / 3  # of the step: two of the three products of each layer
BUCKET_BYTES = 25 * 1024**2  # of torch's DistributedDataParallel; nothing overlaps the last bucket
PCIE_LANES = 16
_PCIE_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
SHARES = ("waiting", "hidden", "nvlink", "fabric", "pcie", "host")
"""The fitted shares, in the order of ``ScalingShares``: the share of the step lost with each doubling of the
GPU count, the share of the backward pass that hides the exchange, and the share of each link's one-way rate
that is reached."""
_SMALL = 1e-3  # step of numerical derivatives, in log shares


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU exchanges in a step, and over which link.

    Attributes:
        rate: Rate of the link in one direction [B/s].
        step_s: Time of the step without the exchange.
        unhidden_bytes: The part of the exchange that overlaps with nothing.
        cover_share: Share of the step that can overlap the exchange.
    """

    gradient_bytes: float
    link: Link
    rate: float
    step_s: float
    unhidden_bytes: float = BUCKET_BYTES
    cover_share: float = BACKWARD_SHARE


def scaling(
    question: Question, spec: GpuSpec, n: int, samples_per_s: float, *, sharded: bool = False
) -> tuple[float, float, float]:
    """Model how well n of these GPUs train together.

    Args:
        question: Workload, batch per GPU and task; inference needs no exchange.
        spec: The GPU.
        n: Number of GPUs in one host, at least 1.
        samples_per_s: Throughput of one GPU, above 0.
        sharded: Whether weights, gradients and optimizer states are sharded (FSDP); the weights are then
            gathered twice in each step.

    Returns:
        Ratio of the throughput of n GPUs to n times that of one, at the same batch per GPU, with the ends of
        its 90 % interval; 1 is perfect.

    Raises:
        MisuseError: If n is below 1 or the throughput is not positive.
    """
    if n < 1 or not samples_per_s > 0:
        raise MisuseError(f"{n} GPUs at {samples_per_s} samples/s: both must be positive")
    if n == 1 or question.task is TaskKind.INFER:
        return 1.0, 1.0, 1.0
    exchange = exchange_of(question, spec, question.batch / samples_per_s, sharded=sharded)
    fitted = load_calibration().scaling
    likely = log_efficiency(fitted.logs, exchange, 1, n)
    width = fitted.factor * usual_error(fitted, exchange, 1, n)
    # The fit has no jobs with FSDP, nor any on other vendors' GPUs
    if fitted.other_vendors is not None and (sharded or spec.vendor != FITTED_VENDOR):
        width = max(width, fitted.other_vendors) if sharded else fitted.other_vendors
    return math.exp(likely), math.exp(likely - width), min(1.0, math.exp(likely + width))


def exchange_of(question: Question, spec: GpuSpec, step_s: float, *, sharded: bool) -> Exchange:
    """Return the exchange of a step: all gradients; with FSDP, also all weights for each of the two passes.

    Each of FSDP's three transfers moves half the bytes of an all-reduce of the same size. Blocks are sent
    before they are used, so all but the first can overlap with the whole step.
    """
    profile, (link, rate) = question.profile, link_of(spec)
    if not sharded:
        gradient = float(profile.trainable_parameters * GRADIENT_BYTES)
        return Exchange(gradient_bytes=gradient, link=link, rate=rate, step_s=step_s)
    element = profile.recipe.weight_type.bytes_each
    weights, gradients = profile.parameters * element, profile.trainable_parameters * element
    first = profile.parameters if profile.blocks is None else profile.blocks.largest_parameters
    return Exchange(
        gradient_bytes=(2 * weights + gradients) / 2,
        link=link,
        rate=rate,
        step_s=step_s,
        unhidden_bytes=first * element / 2,
        cover_share=1.0,
    )


def log_efficiency(logs: Floats | tuple[float, ...], exchange: Exchange, few: int, many: int) -> float:
    """Return the log ratio of the throughput per GPU on ``many`` GPUs to that on ``few``."""
    shares = _shares_of(tuple(logs))

    def log_slowdown(n: int) -> float:
        waits_s = exposed_s(exchange, n, shares[exchange.link], shares["hidden"])
        return math.log(1 + shares["waiting"] * math.log2(n) + waits_s / exchange.step_s)

    return (log_slowdown(few) if few > 1 else 0.0) - log_slowdown(many)


@lru_cache(maxsize=64)
def _shares_of(logs: tuple[float, ...]) -> Mapping[str, float]:
    return dict(zip(SHARES, map(math.exp, logs), strict=True))


def usual_error(fitted: ScalingShares, exchange: Exchange, few: int, many: int) -> float:
    """Return the typical error of ``log_efficiency``, from the uncertainty of the shares and other effects.

    Other effects, such as the harness's data loading and logging, grow with each doubling of the GPU count.
    """
    slope = slopes(fitted.logs, exchange, few, many)
    variance = float(slope @ np.array(fitted.covariance) @ slope)
    return math.hypot(math.sqrt(max(0.0, variance)), fitted.noise * math.log2(many / few))


def slopes(logs: Floats | tuple[float, ...], exchange: Exchange, few: int, many: int) -> Floats:
    """Return the derivatives of ``log_efficiency`` with respect to the log of each share, (6,)."""
    base = log_efficiency(logs, exchange, few, many)
    moved = _moved(tuple(logs))
    return np.array([log_efficiency(row, exchange, few, many) - base for row in moved]) / _SMALL


@lru_cache(maxsize=8)
def _moved(logs: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    # Return the logs with one of them moved in each row.
    return tuple(map(tuple, (np.array(logs) + _SMALL * np.eye(len(SHARES))).tolist()))


def link_of(spec: GpuSpec) -> tuple[Link, float]:
    """Return the link that carries the gradients, and its rate in one direction [B/s].

    NVLink and Infinity Fabric count only if every card of this model has them (SXM, OAM), because offers do
    not say whether PCIe cards have a bridge. GeForce cards do not communicate directly over PCIe.
    """
    if spec.is_linked and spec.link is not None and spec.nvlink_bytes_per_s:
        return spec.link, spec.nvlink_bytes_per_s / 2
    lanes = PCIE_LANES * _PCIE_LANE_BYTES_PER_S.get(spec.pcie_generation or 3, _PCIE_LANE_BYTES_PER_S[3])
    return ("host" if spec.line in {"GeForce", "TITAN"} else "pcie"), lanes


def exposed_s(exchange: Exchange, n: int, share: float, hidden_share: float) -> float:
    """Return the exchange time that the step waits for [s], at least that of the last bucket.

    Args:
        exchange: What is exchanged, and over which link.
        n: Number of GPUs.
        share: Share of the link's rate that is reached.
        hidden_share: Share of the backward pass that hides the exchange. A fitted share above 1 counts as 1.
    """
    ring, rate = 2 * (n - 1) / n, exchange.rate * share
    whole = ring * exchange.gradient_bytes / rate
    last = ring * min(exchange.gradient_bytes, exchange.unhidden_bytes) / rate
    return max(last, whole - min(1.0, hidden_share) * exchange.cover_share * exchange.step_s)
