"""Scores the memory fit on readings that it has not seen: each model, source or card is left out in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from memory_cases import ALONE, Held, own_readings
from scipy import optimize

from gpubench.models import CardClass, Execution, MemoryNeed
from gpubench.profile.allowance import device_bytes
from gpubench.profile.memory_figures import FIXED_BYTES, WORKSPACE_BYTES
from gpubench.units import MIB
from tools.make import fit_allowance, fit_compiled_loss


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Score of the fit on readings of models that it has not seen.

    Attributes:
        mean_error: Mean of |likely figure / reading - 1|.
        above: Share of readings above the upper end.
        bound_over_reading: Upper end over reading, median.
    """

    readings: int
    mean_error: float
    above: float
    bound_over_reading: float


def score_left_out(readings: pd.DataFrame) -> dict[str, Score]:
    """Score memory in use with each model left out in turn; by vendor, source and model."""
    usable = readings[readings.is_fitted]
    outcomes: dict[str, list[tuple[float, float]]] = {}
    for model, left_out in usable.groupby("model"):
        fit = fit_allowance(usable[usable.model != model], fitted="")
        for reading in left_out.itertuples():
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
    """Score, on unseen readings, the fitted share of traced memory that a step with a compiled loss uses.

    Attributes:
        mean_error: Mean of |likely figure / reading - 1|.
        held: Number of readings within the interval; None if the others are of one card and give no interval.
    """

    readings: int
    mean_error: float
    held: int | None


def score_compiled_loss(
    readings: pd.DataFrame, by: Literal["source", "gpu_key"] = "source"
) -> dict[str, LossScore]:
    """Score steps with a compiled loss, with each source or each card left out in turn."""
    usable = readings[readings.compiles_loss]
    scores = {}
    for name, rows in usable.groupby(by):
        left_out = [*rows.itertuples()]
        fit = fit_compiled_loss(usable[usable[by] != name])
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


class ReservedOutcome(NamedTuple):
    """The reserved memory of gpubench's own step on an H100 [B], and the figure for it without its model."""

    reserved: float
    error: float


def sound_readings() -> list[Held]:
    """Return gpubench's own readings of reserved memory without unneeded cache."""
    return [each for each in own_readings() if each.is_sound]


def fit_fixed_bytes(readings: Sequence[Held]) -> float:
    """Fit ``FIXED_BYTES``: least squares of the logarithm, each model counting once, as for the overheads."""
    models = [each.case.workload for each in readings]
    weights = [1 / models.count(model) for model in models]

    def misfit(fixed: float) -> float:
        told = [_reserved(each.need, fixed * MIB) / each.reserved for each in readings]
        return sum(w * math.log(ratio) ** 2 for w, ratio in zip(weights, told, strict=True))

    return MIB * float(
        optimize.minimize_scalar(misfit, bounds=(0, WORKSPACE_BYTES / MIB), method="bounded").x
    )


def _reserved(need: MemoryNeed, fixed_bytes: float) -> float:
    """Return the likely reserved memory with another fixed part."""
    return (need.reserved.value or 0.0) - FIXED_BYTES + fixed_bytes


def score_reserved() -> list[ReservedOutcome]:
    """Score the likely reserved memory of own readings, each model left out of the fit of its fixed part."""
    sound = sound_readings()
    outcomes = []
    for model in sorted({each.case.workload for each in sound}):
        fixed = fit_fixed_bytes([each for each in sound if each.case.workload != model])
        outcomes += [
            ReservedOutcome(each.reserved, abs(_reserved(each.need, fixed) / each.reserved - 1))
            for each in sound
            if each.case.workload == model
        ]
    return outcomes


def score_reserved_alone(execution: Execution) -> list[ReservedOutcome]:
    """Score steps with an eager loss that each had a process of its own; the fit uses none of them."""
    sound = sound_readings()
    outcomes = []
    for read in ALONE:
        if read.execution is execution and read.limit_bytes is None and not read.compiled_loss:
            fixed = fit_fixed_bytes([each for each in sound if each.case.workload != read.workload])
            error = abs(_reserved(read.need, fixed) / read.reserved_bytes - 1)
            outcomes.append(ReservedOutcome(read.reserved_bytes, error))
    return outcomes
