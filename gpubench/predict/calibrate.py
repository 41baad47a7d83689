"""Rebuild the calibration from the published rows, and from the user's own runs where they are given."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import Run, TaskKind
from gpubench.predict.calibration import (
    SCHEMA_VERSION,
    Calibration,
    Fitted,
    Learned,
    ScalingShares,
    group_names,
    halved,
    input_hashes,
)
from gpubench.predict.conformal import (
    Scale,
    errors_without,
    factor_of,
    fit_scale,
    level_errors_without,
    level_weights,
    usual_errors,
)
from gpubench.predict.fit import LEVEL, Fit, fit_table
from gpubench.predict.own_rows import own_table
from gpubench.predict.pairs import Pairs, of_task, pairs_of
from gpubench.predict.published import Table, fitted_on, join
from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS
from gpubench.predict.ranking import COMMON_SHARE
from gpubench.predict.scaling_fit import fit_scaling
from gpubench.specs import load_specs
from gpubench.today import today

KINDS = {"known": "harness", "stranger": "stranger"}
"""What is held out to learn how wide the interval of a GPU must be, by whether its architecture has rows."""
FEWEST_CARDS = 3
"""Of another vendor's architecture that has an interval of its own."""
_DIGITS = 6  # enough for every prediction, few enough to be the same on every machine


def calibrate(own: Sequence[Run] = (), *, fitted: str | None = None) -> Calibration:
    """Fit everything that a prediction needs. The same inputs give the same calibration.

    Args:
        own: Runs that join the published rows as further cells; GPU runs alone count.
        fitted: Date to write into it; None is today.
    """
    mine = own_table(own) if own else None
    inputs = input_hashes() | ({"own runs": _hash(own)} if own else {})
    return Calibration(
        schema_version=SCHEMA_VERSION,
        fitted=fitted or today().isoformat(),
        inputs=inputs,
        train=_fitted(TaskKind.TRAIN, mine),
        infer=_fitted(TaskKind.INFER, mine),
        scaling=_rounded(fit_scaling()),
        common_share=COMMON_SHARE,
    )


def _fitted(task: TaskKind, own: Table | None) -> Fitted:
    """Both fits of one task, and what stands behind them.

    GPUs of other vendors are in the table and never in the fit.
    """
    table = fitted_on(task, (FITTED_VENDOR, *OTHER_VENDORS))
    table = table if own is None else join(table, own)
    seen = table.vendor == FITTED_VENDOR
    mine = of_task(table, task)
    scored, apart = mine & seen, mine & ~seen
    ratio, level = fit_table(table, seen), fit_table(table, seen, aim=LEVEL)
    scale, factor = _ratio_width(ratio, pairs_of(table, seen))
    return Fitted(
        rows=int(scored.sum()),
        sources=len(set(table.source[scored])),
        rows_by_gpu=dict(sorted(Counter(table.gpu_key[scored]).items())),
        apart_by_gpu=dict(sorted(Counter(table.gpu_key[apart]).items())),
        ratio=_learned(ratio, scale, factor, _others_by_ratio(ratio)),
        level=_learned(level, None, _level_width(level, seen), _others_by_level(level)),
    )


def _ratio_width(fit: Fit, pairs: Pairs) -> tuple[Scale, dict[str, float]]:
    """The scale of the errors on what was not seen, and its factors for known and strange architectures."""
    scale, factor = None, {}
    for name, hold_out in KINDS.items():
        error, bound = errors_without(fit, pairs, hold_out)
        scale = scale or fit_scale(fit.table, pairs, error, bound)
        scores = np.abs(error) / usual_errors(fit.table, pairs, scale)
        factor[name] = _round(factor_of(scores[bound], pairs.weight[bound]))
    assert scale is not None  # there are kinds to hold out
    return msgspec.convert({k: _round(v) for k, v in msgspec.structs.asdict(scale).items()}, Scale), factor


def _level_width(fit: Fit, seen: Flags) -> dict[str, float]:
    factor = {}
    for name, hold_out in KINDS.items():
        error = level_errors_without(fit, hold_out, seen)
        scored = np.isfinite(error)
        factor[name] = _round(factor_of(np.abs(error[scored]), level_weights(fit.table, error)[scored]))
    return factor


class Others(NamedTuple):
    """Of GPUs whose vendor is not in a fit: deviations by architecture, half-widths by group (logs)."""

    deviations: dict[str, list[float]]
    half_width: dict[str, float]


def _others_by_ratio(fit: Fit) -> Others:
    """Ratios start from a GPU of the fitted vendor."""
    pairs = pairs_of(fit.table)
    error, _ = errors_without(fit, pairs, "vendor")
    vendor = fit.table.vendor
    error[(vendor[pairs.x] != FITTED_VENDOR) | (vendor[pairs.y] == FITTED_VENDOR)] = np.nan
    return _others(fit, error, pairs.y, pairs.weight)


def _others_by_level(fit: Fit) -> Others:
    error = level_errors_without(fit, "vendor", fit.table.vendor != FITTED_VENDOR)
    return _others(fit, error, np.arange(len(error)), level_weights(fit.table, error))


def _others(fit: Fit, error: Floats, rows: Indices, weight: Floats) -> Others:
    """Judge GPUs of other vendors by a fit that never saw one.

    An architecture's whole step is faster or slower than the fit says by the mean of its errors, shrunk as if
    each vote had an error of 30 % where architectures differ by 50 %. A line of cards (Instinct, Radeon) has
    the width of its errors before that, in half precision and else apart. An architecture of
    ``FEWEST_CARDS`` or more has its own: of the errors that are left where the other cards of the
    architecture say how much faster it is.
    """
    deviations: dict[str, list[float]] = {}
    widths: dict[str, float] = {}
    known = np.isfinite(error)
    rows, error, weight = rows[known], error[known], weight[known]
    keys, kinds, half = (
        a[rows] for a in (fit.table.gpu_key, fit.table.architecture, fit.table.arithmetic.half)
    )
    lines = np.array([group_names(load_specs()[key])[-1] for key in keys], dtype=object)
    for line in sorted(set(lines)):
        widths |= _widths(line, error, weight, lines == line, half)
    for name in sorted(set(kinds)):
        mine = kinds == name
        deviations[name] = [_round(_shift(error[mine], weight[mine])), 0.0]
        deviations[name].append(deviations[name][0])
        cards = sorted(set(keys[mine]))
        if len(cards) >= FEWEST_CARDS:
            left = error.copy()
            for card in cards:
                others = mine & (keys != card)
                left[mine & (keys == card)] -= _shift(error[others], weight[others])
            widths |= _widths(group_names(load_specs()[cards[0]])[0], left, weight, mine, half)
    return Others(deviations, widths)


def _widths(name: str, error: Floats, weight: Floats, mine: Flags, half: Flags) -> dict[str, float]:
    """Half-width of a group by arithmetic: its matrix cores err otherwise than its vector units."""
    found = {}
    for label, chosen in ((name, mine & ~half), (halved(name), mine & half)):
        if chosen.any():
            found[label] = _round(factor_of(np.abs(error[chosen]), weight[chosen]))
    return found


def _shift(error: Floats, weight: Floats) -> float:
    votes = float(weight.sum())
    return float(np.average(error, weights=weight)) * votes / (votes + 0.3**2 / 0.5**2)


def _learned(fit: Fit, scale: Scale | None, factor: dict[str, float], others: Others) -> Learned:
    own, sources = set(fit.table.architecture[fit.rows]), set(fit.table.source[fit.rows])
    deviations = {name: [round(v, _DIGITS) for v in d] for name, d in fit.deviations().items() if name in own}
    return Learned(
        coefficients=msgspec.convert(
            {name: _round(v) for name, v in msgspec.structs.asdict(fit.coefficients).items()},
            type(fit.coefficients),
        ),
        host_s_per_operator={s: _round(v) for s, v in fit.host_s_per_operator.items() if s in sources},
        deviations=deviations | others.deviations,
        scale=scale,
        factor=factor,
        other_vendors=others.half_width,
    )


def _rounded(shares: ScalingShares) -> ScalingShares:
    return msgspec.structs.replace(
        shares,
        logs=tuple(_round(v) for v in shares.logs),
        covariance=tuple(tuple(_round(v) for v in row) for row in shares.covariance),
        factor=_round(shares.factor),
        other_vendors=None if shares.other_vendors is None else _round(shares.other_vendors),
    )


def _round(value: float) -> float:
    return float(np.format_float_scientific(value, _DIGITS - 1))


def _hash(runs: Sequence[Run]) -> str:
    digest = hashlib.sha256()
    for run in sorted(runs, key=lambda r: r.run_id):
        digest.update(msgspec.json.encode(run, order="sorted"))
    return digest.hexdigest()
