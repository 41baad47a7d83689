"""The prediction itself: the roofline as a ratio from measured GPUs, or on its own where there are none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpubench.arrays import Floats
from gpubench.models import Case, Execution, GpuSpec, TaskKind
from gpubench.predict.anchors import Reading, choose_anchors, differences
from gpubench.predict.calibration import Calibration, Learned
from gpubench.predict.conformal import pair_scale
from gpubench.predict.fit import HOST_S_PER_OPERATOR, deviations_of
from gpubench.predict.own_card import host_s_per_operator, measured_chip
from gpubench.predict.pairs import HOST_SHARE_LIMIT, leading_mode
from gpubench.predict.question import Question
from gpubench.predict.roofline import (
    Arithmetic,
    Times,
    Work,
    arithmetic_of,
    cast_bytes_of,
    chips_of,
    log_throttle,
    step_times,
    work_of,
)

SAME_GPU_SHARE = 0.5  # of the usual scale, where only batch, layout or execution change
SMALLEST_PUBLISHED = 1_200_000  # parameters; below it a network's narrow layers use a sliver of the chip
SMALL_LEVEL, SMALL_RATIO = 2.0, 1.5  # factors on the log half-width there, from readings of an H200
DIFFERENCE_NOISE = 0.10  # log half-width added for each of layout, execution and kind of AMP that differ


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One predicted throughput; ``half_width`` is the natural log of the 90 % interval's factor."""

    samples_per_s: float
    half_width: float
    method: str
    evidence: tuple[str, ...]
    anchored: bool
    compute_share: float
    bandwidth_share: float
    host_share: float

    @property
    def host_bound(self) -> bool:
        """Whether a faster GPU would not help."""
        return self.host_share > HOST_SHARE_LIMIT


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Log seconds per sample (GPU alone, whole step) and log half-widths of n GPUs, from one start."""

    log_gpu_s: Floats
    log_step_s: Floats
    half_width: Floats


def predict_all(
    question: Question,
    open_cases: Sequence[tuple[GpuSpec, Case]],
    readings: Sequence[Reading],
    calibration: Calibration,
) -> list[Prediction]:
    """Predict every open case of one question, each as if it were asked alone.

    The best AMP precision differs from GPU to GPU, so anchors, arithmetic and layout are those of each case.
    """
    predictions: dict[int, Prediction] = {}
    for case in dict.fromkeys(case for _, case in open_cases):
        places = [i for i, (_, other) in enumerate(open_cases) if other == case]
        specs = [open_cases[i][0] for i in places]
        predictions |= zip(places, _predict(question, specs, case, readings, calibration), strict=True)
    return [predictions[i] for i in range(len(open_cases))]


def _predict(
    question: Question,
    specs: Sequence[GpuSpec],
    case: Case,
    readings: Sequence[Reading],
    calibration: Calibration,
) -> list[Prediction]:
    """Predict one case on n GPUs, at least one."""
    anchors = choose_anchors(readings, case)
    host = _host(question, case, readings)
    fitted = calibration.of(question.task)
    learned = fitted.ratio if anchors else fitted.level
    times = _times(question, case, specs, learned, host)
    if anchors:
        start = _combine([_from_anchor(question, a, specs, case, learned, host=host) for a in anchors])
        method = _ratio_method(anchors, case)
    else:
        half = bool(_arithmetic(case, 1).half[0])
        start = _Batch(
            log_gpu_s=np.log(times.gpu_s / case.batch_size),
            log_step_s=np.log(times.step_s / case.batch_size),
            half_width=np.array([learned.half_width(spec, half=half) for spec in specs]),
        )
        method = "not anchored: no GPU measurement of this workload to start from"
    if question.profile.parameters < SMALLEST_PUBLISHED:
        start = replace(start, half_width=start.half_width * (SMALL_RATIO if anchors else SMALL_LEVEL))
        method += "; smaller than every published model, so the interval is widened"
    host_share = times.host_s / times.step_s
    host_limit = case.batch_size / np.maximum(times.host_s, 1e-12)
    speed = np.where(
        host_share > HOST_SHARE_LIMIT,
        np.minimum(np.exp(-start.log_gpu_s), host_limit),
        np.exp(-start.log_step_s),
    )
    return [
        Prediction(
            samples_per_s=float(speed[i]),
            half_width=float(start.half_width[i]),
            method=method,
            evidence=tuple(a.run_id for a in anchors),
            anchored=bool(anchors),
            compute_share=float((1 - host_share[i]) * times.compute_s[i] / times.gpu_s[i]),
            bandwidth_share=float((1 - host_share[i]) * times.memory_s[i] / times.gpu_s[i]),
            host_share=float(host_share[i]),
        )
        for i in range(len(specs))
    ]


def _host(question: Question, case: Case, readings: Sequence[Reading]) -> float:
    """Host seconds per operator: as measured on this machine, else as usual; none inside a graph."""
    if case.execution is not Execution.EAGER:
        return 0.0
    operators = float(_work(question, case).operators[0])
    return host_s_per_operator(readings, operators) or HOST_S_PER_OPERATOR[Execution.EAGER]


def _work(question: Question, case: Case) -> Work:
    """One step of the question at the batch of a case, with the casts of its precision."""
    profile = question.profile
    operators = profile.train if question.task is TaskKind.TRAIN else profile.infer
    casts = cast_bytes_of(profile, question.task) if case.precision.is_amp else 0.0
    return work_of(operators, case.batch_size, casts)


def _arithmetic(case: Case, n: int) -> Arithmetic:
    """Of n steps of one case. Published rows say what compiling saves of a forward pass, of training none."""
    fused = case.execution is Execution.COMPILE and case.task is TaskKind.INFER
    return arithmetic_of(case.precision, case.memory_format, n, compiled=fused)


def _times(
    question: Question,
    case: Case,
    specs: Sequence[GpuSpec],
    learned: Learned,
    host: float,
    *,
    measured: Reading | None = None,
) -> Times:
    """The roofline of one case on n GPUs; of a measured one, with its own micro-benchmarks."""
    chips, deviations = chips_of(specs), deviations_of(learned.deviations, [spec.key for spec in specs])
    if measured is not None and measured.micro:
        throttle = log_throttle(chips, learned.coefficients)[0]
        expected = np.exp([throttle + deviations[0, 0], deviations[0, 2]])
        chips = measured_chip(chips, measured.micro, (float(expected[0]), float(expected[1])))
    return step_times(
        _work(question, case),
        chips,
        _arithmetic(case, len(specs)),
        learned.coefficients,
        host_s_per_operator=host if case.execution is Execution.EAGER else 0.0,
        deviations=deviations,
    )


def _from_anchor(
    question: Question,
    anchor: Reading,
    specs: Sequence[GpuSpec],
    case: Case,
    learned: Learned,
    *,
    host: float,
) -> _Batch:
    times = _times(question, case, specs, learned, host)
    own = _times(question, anchor.case, [anchor.spec], learned, host, measured=anchor)
    shift = -math.log(anchor.samples_per_s) - math.log(float(own.step_s[0]) / anchor.case.batch_size)
    arithmetic = _arithmetic(case, len(specs))
    work = _work(question, case)
    assert learned.scale is not None  # only levels are without one
    mode = np.broadcast_to(leading_mode(work, arithmetic), len(specs))
    scale = pair_scale(learned.scale, chips_of([anchor.spec]), chips_of(specs), mode)
    half = bool(arithmetic.half[0])
    widths = np.array(
        [
            learned.same_gpu(spec, SAME_GPU_SHARE * usual)
            if spec.key == anchor.spec.key
            else learned.half_width(spec, usual, half=half)
            for spec, usual in zip(specs, scale, strict=True)
        ]
    )
    unlike = sum(not d.startswith("measured at batch") for d in differences(anchor, case))
    noise = anchor.noise**2 + unlike * DIFFERENCE_NOISE**2
    return _Batch(
        log_gpu_s=shift + np.log(times.gpu_s / case.batch_size),
        log_step_s=shift + np.log(times.step_s / case.batch_size),
        half_width=np.sqrt(widths**2 + noise),
    )


def _combine(batches: Sequence[_Batch]) -> _Batch:
    """Average in log with weight 1 / width^2; the width stays: much of the error is the target's own."""
    widths = np.stack([b.half_width for b in batches])
    weights = widths**-2 / np.sum(widths**-2, axis=0)
    return _Batch(
        log_gpu_s=np.sum(weights * np.stack([b.log_gpu_s for b in batches]), axis=0),
        log_step_s=np.sum(weights * np.stack([b.log_step_s for b in batches]), axis=0),
        half_width=np.sum(weights * widths, axis=0),
    )


def _ratio_method(anchors: Sequence[Reading], case: Case) -> str:
    parts = []
    for anchor in anchors:
        differs = differences(anchor, case)
        parts.append(f"{anchor.spec.short_name}" + (f" ({', '.join(differs)})" if differs else ""))
    return f"ratio from {' and '.join(parts)}"
