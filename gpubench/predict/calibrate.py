"""Rebuild the calibration from the published rows, and from the user's own runs where they are given."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from gpubench.models import Run
from gpubench.predict.arrays import Flags
from gpubench.predict.calibration import SCHEMA_VERSION, Calibration, Learned, input_hashes
from gpubench.predict.conformal import SPLITS, level_scores, ratio_scores
from gpubench.predict.fit import LEVEL, Fit, fit_table
from gpubench.predict.own_rows import own_table
from gpubench.predict.pairs import pairs_of
from gpubench.predict.published import join, shipped
from gpubench.predict.ranking import COMMON_SHARE
from gpubench.today import today

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
    ratio, level = fit_table(table, usable), fit_table(table, usable, aim=LEVEL)
    pairs = pairs_of(table)
    return Calibration(
        schema_version=SCHEMA_VERSION,
        fitted=fitted or today().isoformat(),
        inputs=inputs,
        rows=int(usable.sum()),
        sources=len(set(table.source)),
        rows_by_gpu=dict(sorted(Counter(table.gpu_key[usable]).items())),
        ratio=_learned(ratio, usable, {s: ratio_scores(ratio, pairs, s, usable) for s in SPLITS}),
        level=_learned(level, usable, {s: level_scores(level, s, usable) for s in SPLITS}),
        common_share=COMMON_SHARE,
    )


def _learned(fit: Fit, usable: Flags, scores: dict[str, dict[str, list[float]]]) -> Learned:
    seen = set(fit.table.gpu_key[usable])
    return Learned(
        coefficients=msgspec.convert(
            {name: _round(v) for name, v in msgspec.structs.asdict(fit.coefficients).items()},
            type(fit.coefficients),
        ),
        host_s_per_operator={s: _round(v) for s, v in fit.host_s_per_operator.items()},
        deviations={g: [round(v, _DIGITS) for v in d] for g, d in fit.deviations().items() if g in seen},
        scores=scores,
    )


def _round(value: float) -> float:
    return float(np.format_float_scientific(value, _DIGITS - 1))


def _hash(runs: Sequence[Run]) -> str:
    digest = hashlib.sha256()
    for run in sorted(runs, key=lambda r: r.run_id):
        digest.update(msgspec.json.encode(run, order="sorted"))
    return digest.hexdigest()
