"""The prediction itself: the roofline as a ratio from measured GPUs, or on its own where there are none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpubench.models import Case, Execution, GpuSpec, TaskKind
from gpubench.predict.anchors import Reading, choose_anchors, differences
from gpubench.predict.calibration import Calibration
from gpubench.predict.interval import anchored_half_width, pair_scale
from gpubench.predict.question import Question
from gpubench.predict.roofline import Times, arithmetic_of, chips_of, mode_of, step_times, work_of

HOST_SHARE_LIMIT = 0.7  # above it the host, not the GPU, sets the pace
SAME_CASE_SCALE = 0.5  # of the pair scale, where only batch or execution change on the same GPU


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
    """Log seconds per sample and log half-widths of n GPUs, from one anchor."""

    log_gpu_s: NDArray[np.float64]
    log_step_s: NDArray[np.float64]
    half_width: NDArray[np.float64]


def predict_all(
    question: Question,
    open_cases: Sequence[tuple[GpuSpec, Case]],
    readings: Sequence[Reading],
    calibration: Calibration,
) -> list[Prediction]:
    """Predict every open case of one question; all of them use the same arithmetic."""
    if not open_cases:
        return []
    specs = [spec for spec, _ in open_cases]
    case = open_cases[0][1]
    times = model_times(question, case, specs, calibration)
    anchors = choose_anchors(readings, case)
    host_share = times.host_s / (times.host_s + times.gpu_s)
    if anchors:
        batches = [_from_anchor(question, a, open_cases, times, calibration) for a in anchors]
        combined = _combine(batches)
        method = _ratio_method(anchors, case)
    else:
        combined = _absolute(case, times, calibration)
        method = "absolute: no GPU measurement of this workload to start from"
    total = times.compute_s + times.memory_s + times.floor_s
    host_limit = np.where(times.host_s > 0, case.batch_size / np.maximum(times.host_s, 1e-12), np.inf)
    bound = host_share > HOST_SHARE_LIMIT
    speed = np.where(bound, np.minimum(np.exp(-combined.log_gpu_s), host_limit), np.exp(-combined.log_step_s))
    return [
        Prediction(
            samples_per_s=float(speed[i]),
            half_width=float(combined.half_width[i]),
            method=method,
            evidence=tuple(a.run_id for a in anchors),
            anchored=bool(anchors),
            compute_share=float((1 - host_share[i]) * times.compute_s[i] / total[i]),
            bandwidth_share=float((1 - host_share[i]) * times.memory_s[i] / total[i]),
            host_share=float(host_share[i]),
        )
        for i in range(len(specs))
    ]


def model_times(question: Question, case: Case, specs: Sequence[GpuSpec], calibration: Calibration) -> Times:
    """The roofline of one case on n GPUs."""
    profile = question.profile
    operators = profile.train if question.task is TaskKind.TRAIN else profile.infer
    coefficients = calibration.coefficients
    return step_times(
        work_of(operators, case.batch_size),
        chips_of(specs),
        arithmetic_of(case.precision, len(specs)),
        coefficients.host_s_per_operator if case.execution is Execution.EAGER else 0.0,
        coefficients,
    )


def _from_anchor(
    question: Question,
    anchor: Reading,
    targets: Sequence[tuple[GpuSpec, Case]],
    times: Times,
    calibration: Calibration,
) -> _Batch:
    specs, case = [spec for spec, _ in targets], targets[0][1]
    own = model_times(question, anchor.case, [anchor.spec], calibration)
    log_measured = -math.log(anchor.samples_per_s)
    log_own = math.log(float(own.step_s[0]) / anchor.case.batch_size)
    log_gpu = np.log(times.gpu_s / case.batch_size)
    log_step = np.log(times.step_s / case.batch_size)
    mode = mode_of(case.precision)
    chips, chip = chips_of(specs), chips_of([anchor.spec])
    distance = np.abs(
        np.log(chip.bandwidth[0] / chips.bandwidth) - np.log(chip.peaks[0, mode] / chips.peaks[:, mode])
    )
    known = np.array([s.architecture in calibration.known_architectures for s in specs])
    reach = np.abs(log_own - log_step)
    scale = np.where(known, pair_scale(distance, reach, known=True), pair_scale(distance, reach, known=False))
    scale = np.where([s.key == anchor.spec.key for s in specs], SAME_CASE_SCALE * scale, scale)
    return _Batch(
        log_gpu_s=log_measured + log_gpu - log_own,
        log_step_s=log_measured + log_step - log_own,
        half_width=anchored_half_width(scale, calibration.widths, anchor.noise),
    )


def _absolute(case: Case, times: Times, calibration: Calibration) -> _Batch:
    return _Batch(
        log_gpu_s=np.log(times.gpu_s / case.batch_size),
        log_step_s=np.log(times.step_s / case.batch_size),
        half_width=np.full(len(times.gpu_s), calibration.widths.absolute),
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
        parts.append(f"{anchor.spec.name}" + (f" ({', '.join(differs)})" if differs else ""))
    return f"ratio from {' and '.join(parts)}"
