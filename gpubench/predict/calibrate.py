"""Rebuild the calibration from the published rows, and from the user's own runs where they are given."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gpubench.models import Run
from gpubench.predict.calibration import SCHEMA_VERSION, Calibration, Learned, input_hashes
from gpubench.predict.conformal import (
    Scale,
    errors_without,
    factor_of,
    fit_scale,
    level_errors_without,
    level_weights,
    pair_scale,
)
from gpubench.predict.fit import LEVEL, RATIO, Aim, Fit, fit_table
from gpubench.predict.own_rows import own_table
from gpubench.predict.pairs import Pairs, pairs_of, sides
from gpubench.predict.published import join, shipped
from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS
from gpubench.predict.ranking import COMMON_SHARE
from gpubench.today import today

KINDS = {"known": "harness", "stranger": "stranger"}
"""What is held out to learn how wide the interval of a GPU must be, by whether its architecture has rows."""
_DIGITS = 6  # enough for every prediction, few enough to be the same on every machine


def calibrate(own: Sequence[Run] = (), *, fitted: str | None = None) -> Calibration:
    """Fit everything that a prediction needs. The same inputs give the same calibration.

    Args:
        own: Runs that join the published rows as further cells; GPU runs alone count.
        fitted: Date to write into it; None is today.
    """
    table = shipped().table
    inputs = input_hashes()
    if own:
        mine = own_table(own)
        table = table if mine is None else join(table, mine)
        inputs["own runs"] = _hash(own)
    usable = table.training
    pairs = pairs_of(table)
    ratio, level = fit_table(table, usable), fit_table(table, usable, aim=LEVEL)
    scale, factor = _ratio_width(ratio, pairs)
    return Calibration(
        schema_version=SCHEMA_VERSION,
        fitted=fitted or today().isoformat(),
        inputs=inputs,
        rows=int(usable.sum()),
        sources=len(set(table.source)),
        rows_by_gpu=dict(sorted(Counter(table.gpu_key[usable]).items())),
        ratio=_learned(ratio, scale, factor, other_vendors(RATIO)),
        level=_learned(level, None, _level_width(level), other_vendors(LEVEL)),
        common_share=COMMON_SHARE,
    )


def _ratio_width(fit: Fit, pairs: Pairs) -> tuple[Scale, dict[str, float]]:
    """The scale of the errors on what was not seen, and its factors for known and strange architectures."""
    scale, factor = None, {}
    for name, hold_out in KINDS.items():
        error, bound = errors_without(fit, pairs, hold_out)
        scale = scale or fit_scale(fit.table, pairs, error, bound)
        own, target, mode = sides(fit.table, pairs)
        scores = np.abs(error) / pair_scale(scale, own.chips, target.chips, mode)
        factor[name] = _round(factor_of(scores[bound], pairs.weight[bound]))
    assert scale is not None
    return msgspec.convert({k: _round(v) for k, v in msgspec.structs.asdict(scale).items()}, Scale), factor


def _level_width(fit: Fit) -> dict[str, float]:
    factor = {}
    for name, hold_out in KINDS.items():
        error = level_errors_without(fit, hold_out)
        scored = np.isfinite(error)
        factor[name] = _round(factor_of(np.abs(error[scored]), level_weights(fit.table, error)[scored]))
    return factor


class Others(NamedTuple):
    """Of GPUs whose vendor is not in a fit: deviations by architecture, half-widths by vendor (logs)."""

    deviations: dict[str, list[float]]
    half_width: dict[str, float]


def other_vendors(aim: Aim) -> Others:
    """Judge GPUs of other vendors by a fit that never saw one.

    An architecture's whole step is faster or slower than the fit says by the mean of its errors, shrunk as if
    each vote had an error of 30 % where architectures differ by 50 %. The width is that of the errors before
    it: there are too few votes to say how much of them this takes away. Ratios start from a GPU of the fitted
    vendor.
    """
    deviations: dict[str, list[float]] = {}
    widths: dict[str, float] = {}
    for vendor in OTHER_VENDORS:
        table = shipped((FITTED_VENDOR, vendor)).table
        fit = fit_table(table, table.training & (table.vendor == FITTED_VENDOR), aim=aim)
        if aim is LEVEL:
            error = level_errors_without(fit, "vendor")
            rows, weight = np.arange(len(table)), level_weights(table, error)
        else:
            pairs = pairs_of(table)
            error, _ = errors_without(fit, pairs, "vendor")
            error[table.vendor[pairs.x] != FITTED_VENDOR] = np.nan
            rows, weight = pairs.y, pairs.weight
        scored = np.isfinite(error)
        if not scored.any():
            continue
        widths[vendor] = _round(factor_of(np.abs(error[scored]), weight[scored]))
        kinds = table.architecture[rows]
        for name in sorted(set(kinds[scored])):
            mine = scored & (kinds == name)
            votes = float(weight[mine].sum())
            shrunk = votes / (votes + 0.3**2 / 0.5**2)
            whole = _round(float(np.average(error[mine], weights=weight[mine])) * shrunk)
            deviations[name] = [whole, 0.0, whole]
    return Others(deviations, widths)


def _learned(fit: Fit, scale: Scale | None, factor: dict[str, float], others: Others) -> Learned:
    deviations = {name: [round(v, _DIGITS) for v in d] for name, d in fit.deviations().items()}
    return Learned(
        coefficients=msgspec.convert(
            {name: _round(v) for name, v in msgspec.structs.asdict(fit.coefficients).items()},
            type(fit.coefficients),
        ),
        host_s_per_operator={s: _round(v) for s, v in fit.host_s_per_operator.items()},
        deviations=deviations | others.deviations,
        scale=scale,
        factor=factor,
        other_vendors=others.half_width,
    )


def _round(value: float) -> float:
    return float(np.format_float_scientific(value, _DIGITS - 1))


def _hash(runs: Sequence[Run]) -> str:
    digest = hashlib.sha256()
    for run in sorted(runs, key=lambda r: r.run_id):
        digest.update(msgspec.json.encode(run, order="sorted"))
    return digest.hexdigest()
