"""What the user's own machine says about itself: its card's micro-benchmarks, its host's speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from gpubench.models import Execution, MicroResult
from gpubench.precisions import Precision
from gpubench.predict.anchors import Reading
from gpubench.predict.roofline import Chips, Mode

# A card whose micro-benchmarks reach a smaller share of its datasheet than usual is held down, by its power
# limit for one, and would predict others too fast.
_USUAL_GEMM = {
    facts.format.name: (Mode[facts.predicted_as.upper()], facts.format.usual_share)
    for facts in (precision.facts for precision in Precision)
    if facts.predicted_as and facts.format.usual_share
}
_USUAL_COPY = 0.89
_BELIEF = 0.5  # exponent: the usual shares are known from one card, so half of a difference is believed
_LEAST, _MOST = 0.5, 1.2  # beyond it the reading is doubted, not the card
_PREFIX = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def measured_chip(chip: Chips, micro: Iterable[MicroResult], expected: tuple[float, float]) -> Chips:
    """Datasheet figures of one card, corrected by what its micro-benchmarks read.

    Args:
        chip: One GPU.
        micro: Its micro-benchmarks; other kinds than GEMM and device copy are looked over.
        expected: Share of its peaks and of its bandwidth that the calibration already takes off, or adds,
            for this GPU: its power limit, its own deviation.
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
    """Host time per kernel on the user's machine [s], from cases run both eager and as a graph."""
    graphs = {
        _without_execution(r): r.case.batch_size / r.samples_per_s
        for r in readings
        if r.case.execution is Execution.GRAPH and r.basis == "measured"
    }
    found = []
    for r in readings:
        gpu_s = graphs.get(_without_execution(r))
        if r.case.execution is Execution.EAGER and r.basis == "measured" and gpu_s is not None:
            eager_s = r.case.batch_size / r.samples_per_s
            if eager_s > gpu_s:
                found.append(math.sqrt(eager_s**2 - gpu_s**2) / operators)
    return median(found) if found else None


def _without_execution(r: Reading) -> tuple[object, ...]:
    return r.spec.key, r.case.precision, r.case.batch_size, r.case.memory_format


def _si(result: MicroResult) -> float | None:
    """The value in FLOP/s or B/s, whatever the prefix of its unit; None for other units."""
    for unit in ("FLOP/s", "B/s"):
        if result.unit.endswith(unit) and math.isfinite(result.value) and result.value > 0:
            return result.value * _PREFIX.get(result.unit.removesuffix(unit), 1.0)
    return None


def _bounded(ratio: float) -> float:
    return float(np.clip(ratio**_BELIEF, _LEAST, _MOST))
