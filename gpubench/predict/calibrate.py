"""Rebuild the calibration from the published rows, and from the user's own runs where they are given."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

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
from gpubench.predict.fit import LEVEL, Fit, fit_table
from gpubench.predict.own_rows import own_table
from gpubench.predict.pairs import Pairs, pairs_of, sides
from gpubench.predict.published import join, shipped
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
        ratio=_learned(ratio, scale, factor),
        level=_learned(level, None, _level_width(level)),
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


def _learned(fit: Fit, scale: Scale | None, factor: dict[str, float]) -> Learned:
    return Learned(
        coefficients=msgspec.convert(
            {name: _round(v) for name, v in msgspec.structs.asdict(fit.coefficients).items()},
            type(fit.coefficients),
        ),
        host_s_per_operator={s: _round(v) for s, v in fit.host_s_per_operator.items()},
        deviations={name: [round(v, _DIGITS) for v in d] for name, d in fit.deviations().items()},
        scale=scale,
        factor=factor,
    )


def _round(value: float) -> float:
    return float(np.format_float_scientific(value, _DIGITS - 1))


def _hash(runs: Sequence[Run]) -> str:
    digest = hashlib.sha256()
    for run in sorted(runs, key=lambda r: r.run_id):
        digest.update(msgspec.json.encode(run, order="sorted"))
    return digest.hexdigest()
