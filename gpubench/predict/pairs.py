"""Pairs "own X, predict Y" inside one cell, and how far each prediction reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpubench.predict.arrays import Array, Flags, Indices
from gpubench.predict.kinship import chip_of
from gpubench.predict.published import Table
from gpubench.predict.roofline import Chips, Times
from gpubench.specs import load_specs

HOST_SHARE_LIMIT = 0.7
"""Host time over step time above which the host, not the GPU, sets the pace."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Row numbers of what is owned (x) and what is predicted (y), and the weight of each pair.

    Every row of y weighs the same, however many x there are.
    """

    x: Indices
    y: Indices
    weight: Array

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.x)


def pairs_of(table: Table) -> Pairs:
    """All pairs of training rows on two GPUs of one cell; x is the row of the nearest batch."""
    xs, ys = [], []
    usable = np.flatnonzero(table.training)
    for cell in np.unique(table.cell[usable]):
        rows = usable[table.cell[usable] == cell]
        for gpu in np.unique(table.gpu_key[rows].astype(str)):
            own = rows[table.gpu_key[rows] == gpu]
            others = rows[table.gpu_key[rows] != gpu]
            gap = np.abs(np.log(table.batch[others][:, None] / table.batch[own][None]))
            if len(others):
                xs.append(own[np.argmin(gap, axis=1)])
                ys.append(others)
    x = np.concatenate(xs) if xs else np.empty(0, np.int64)
    y = np.concatenate(ys) if ys else np.empty(0, np.int64)
    order = np.lexsort((x, y))
    weight = 1.0 / np.bincount(y, minlength=len(table))[y] if len(y) else np.empty(0)
    return Pairs(x=x[order], y=y[order], weight=weight[order])


def log_errors(table: Table, pairs: Pairs, times: Times) -> Array:
    """Log of predicted over measured time of y, per sample, from the measurement of x."""
    level = np.log(times.step_s) - table.log_seconds
    result: Array = level[pairs.y] - level[pairs.x]
    return result


def gpu_bound(pairs: Pairs, times: Times) -> Flags:
    """Whether the GPU sets the pace on both sides."""
    free = times.host_s / times.step_s <= HOST_SHARE_LIMIT
    result: Flags = free[pairs.x] & free[pairs.y]
    return result


def reach(table: Table, pairs: Pairs, times: Times) -> Array:
    """|log of the predicted ratio|, per sample."""
    each = np.log(times.step_s / table.batch)
    result: Array = np.abs(each[pairs.y] - each[pairs.x])
    return result


def balance_gap(a: Chips, b: Chips, mode: Indices) -> Array:
    """|log bandwidth ratio - log peak ratio| of two lists of GPUs."""
    each = np.arange(len(mode))
    peaks = np.log(a.peaks[each, mode] / b.peaks[each, mode])
    result: Array = np.abs(np.log(a.bandwidth / b.bandwidth) - peaks)
    return result


STRANGER = 2
"""Level of a GPU whose compute capability has no rows."""


@lru_cache(maxsize=4096)
def kin_level(target: str, learned: frozenset[str]) -> int:
    """How well a GPU's kind is known: 0 its chip has rows, 1 its compute capability has, 2 neither."""
    specs = load_specs()
    if any(chip_of(key) == chip_of(target) for key in learned):
        return 0
    capability = specs[target].compute_capability
    return 1 if any(specs[key].compute_capability == capability for key in learned) else STRANGER


def group_labels(table: Table, hold_out: str) -> NDArray[Any]:
    """What is held out together: ``gpu``, ``family`` (one chip), ``architecture`` or ``model``."""
    if hold_out == "model":
        return table.base_model
    specs = load_specs()
    name: Mapping[str, Any] = {
        "gpu": {key: key for key in set(table.gpu_key)},
        "family": {key: chip_of(key) for key in set(table.gpu_key)},
        "architecture": {key: specs[key].architecture for key in set(table.gpu_key)},
    }[hold_out]
    return np.array([name[key] for key in table.gpu_key], dtype=object)
