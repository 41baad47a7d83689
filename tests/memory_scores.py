"""How the fit of memory does on readings that it has not seen: each model, source or card left out in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import msgspec
import numpy as np

from gpubench.models import CardClass
from gpubench.predict.memory_fit import MemoryReading, fit_allowance, fit_compiled_loss
from gpubench.profile.allowance import device_bytes


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How the fit did on readings of models that it had not seen.

    Attributes:
        mean_error: Mean of |likely figure / reading - 1|.
        above: Share of readings above the upper end.
        bound_over_reading: Upper end over reading, median.
    """

    readings: int
    mean_error: float
    above: float
    bound_over_reading: float


def score_left_out(readings: Sequence[MemoryReading]) -> dict[str, Score]:
    """Score memory in use, each model left out in turn; by vendor, source and model."""
    usable = [r for r in readings if r.is_fitted]
    outcomes: dict[str, list[tuple[float, float]]] = {}
    for model in sorted({r.model for r in usable}):
        fit = fit_allowance([r for r in usable if r.model != model], fitted="")
        for reading in (r for r in usable if r.model == model):
            allowance = fit.of(reading.card_class, convolves=reading.convolves)
            likely = device_bytes(allowance, reading.traced_bytes)
            ratio = likely / reading.memory_bytes
            outcome = ratio, ratio * math.exp(allowance.half_width)
            vendor = "others" if reading.card_class is CardClass.OTHER else "nvidia"
            how = "convolving" if reading.convolves else "not convolving"
            by_class = f"{reading.source} {reading.card_class}"
            for group in ("all", vendor, f"{vendor} {how}", by_class, f"{vendor} {reading.model}"):
                outcomes.setdefault(group, []).append(outcome)
    return {group: _score(pairs) for group, pairs in outcomes.items()}


def _score(pairs: Sequence[tuple[float, float]]) -> Score:
    likely, bound = np.array(pairs).T
    return Score(
        readings=len(pairs),
        mean_error=float(np.mean(np.abs(likely - 1))),
        above=float(np.mean(bound < 1)),
        bound_over_reading=float(np.median(bound)),
    )


class LossScore(msgspec.Struct, frozen=True, kw_only=True):
    """How the share of a compiled loss did on readings that it had not seen.

    Attributes:
        mean_error: Mean of |likely figure / reading - 1|.
        held: How many lie within the interval; None where the others are of one card, and have none.
    """

    readings: int
    mean_error: float
    held: int | None


def score_compiled_loss(
    readings: Sequence[MemoryReading], by: Literal["source", "gpu_key"] = "source"
) -> dict[str, LossScore]:
    """Score steps with a compiled loss, each source or each card left out in turn."""
    usable = [r for r in readings if r.compiles_loss]
    scores = {}
    for name in sorted({getattr(r, by) for r in usable}):
        left_out = [r for r in usable if getattr(r, by) == name]
        fit = fit_compiled_loss([r for r in usable if getattr(r, by) != name])
        if fit is None:
            continue
        told = [fit.of(r.traced_bytes) for r in left_out]
        errors = [abs((t.value or 0.0) / r.memory_bytes - 1) for t, r in zip(told, left_out, strict=True)]
        held = [t.holds(r.memory_bytes) for t, r in zip(told, left_out, strict=True)]
        scores[name] = LossScore(
            readings=len(left_out),
            mean_error=fmean(errors),
            held=None if None in held else held.count(True),
        )
    return scores
