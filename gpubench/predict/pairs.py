"""Pairs "own X, predict Y" inside one cell, what is held out together, and what a pair weighs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import TaskKind
from gpubench.predict.fit import RATIO, batch_spread
from gpubench.predict.published import Table
from gpubench.predict.roofline import Arithmetic, Times, Work, take
from gpubench.shipped import data_rows

HOST_SHARE_LIMIT = 0.7
"""Host time over step time above which the host, not the GPU, sets the pace."""

HOLD_OUTS: Mapping[str, tuple[str, ...]] = {
    "harness": ("harness", "gpu"),
    "stranger": ("harness", "architecture"),
    "gpu": ("gpu",),
    "family": ("family",),
    "architecture": ("architecture",),
    "model": ("model",),
    "vendor": ("vendor",),
}
"""What the fit never sees of a target: of each kind named, every row that shares it with the target.

``harness`` is what a user asks: neither their harness nor the GPU is in the fit. ``stranger`` leaves out the
GPU's whole architecture besides. The others leave out one thing and keep the rest of the target's harness; a
``vendor`` is left out of a table that has several.
"""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Row numbers of what is owned (x) and what is predicted (y), and the weight of each pair.

    Each harness has one vote for each target GPU and task, however many models, batches and partners it has:
    shared evenly by its rows of y, and by the x of each. A pair of rows whose batch is not stated counts for
    less, by the variance that the plausible batches add.

    Attributes:
        spread: (pairs,) log standard deviation for want of a batch, of x and y together.
    """

    x: Indices
    y: Indices
    weight: Floats
    spread: Floats

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.x)

    def some(self, chosen: Flags) -> Pairs:
        """The chosen pairs."""
        return Pairs(
            x=self.x[chosen], y=self.y[chosen], weight=self.weight[chosen], spread=self.spread[chosen]
        )


def pairs_of(table: Table, chosen: Flags | None = None) -> Pairs:
    """All pairs of rows, or of chosen ones, on two GPUs of one cell; x is the row of the nearest batch."""
    xs, ys = [], []
    usable = np.arange(len(table)) if chosen is None else np.flatnonzero(chosen)
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
    x, y = x[order], y[order]
    unsure = batch_spread(table)
    spread = np.hypot(unsure[x], unsure[y])
    return Pairs(x=x, y=y, weight=_votes(table, y) / (1 + (spread / RATIO.noise) ** 2), spread=spread)


def of_task(table: Table, task: TaskKind) -> Flags:
    """(n,) which rows are of a task."""
    return table.inference if task is TaskKind.INFER else ~table.inference


def _votes(table: Table, y: Indices) -> Floats:
    if not len(y):
        return np.empty(0)
    partners = np.bincount(y, minlength=len(table))
    _, voter = np.unique(voters_of(table), return_inverse=True)
    rows = np.bincount(voter[np.unique(y)], minlength=len(table))
    result: Floats = 1.0 / (partners[y] * rows[voter[y]])
    return result


def voters_of(table: Table) -> NDArray[np.str_]:
    """(n,) who votes by each row: its harness for its GPU and task."""
    each = zip(table.harness, table.gpu_key, table.inference, strict=True)
    return np.array([f"{harness}|{gpu}|{task}" for harness, gpu, task in each])


def log_errors(table: Table, pairs: Pairs, times: Times) -> Floats:
    """Log of predicted over measured time of y, per sample, from the measurement of x."""
    level = np.log(times.step_s) - table.log_seconds
    result: Floats = level[pairs.y] - level[pairs.x]
    return result


def geometric_mean_errors(table: Table, pairs: Pairs) -> Floats:
    """The same of the plain rule to beat: throughput goes with the root of peak times bandwidth."""
    mode = leading_mode(table.work, table.arithmetic)
    peak = table.chips.peaks[np.arange(len(table)), mode]
    level = np.log(table.batch / np.sqrt(peak * table.chips.bandwidth)) - table.log_seconds
    result: Floats = level[pairs.y] - level[pairs.x]
    return result


def leading_mode(work: Work, arithmetic: Arithmetic) -> Indices:
    """Arithmetic that most of the FLOPs of each step run in, (n,)."""
    conv = work.flops[..., 0] + work.flops[..., 1] > work.flops[..., 2]
    return np.where(conv, arithmetic.conv, arithmetic.matmul)


def gpu_bound(pairs: Pairs, times: Times) -> Flags:
    """Whether the GPU sets the pace on both sides."""
    free = times.host_s / times.step_s <= HOST_SHARE_LIMIT
    result: Flags = free[pairs.x] & free[pairs.y]
    return result


def labels_of(table: Table, kind: str) -> NDArray[Any]:
    """The label of each row by one kind of ``HOLD_OUTS``; ``family`` is one chip."""
    if kind == "family":
        return np.array([chip_of(key) for key in table.gpu_key], dtype=object)
    return {
        "harness": table.harness,
        "gpu": table.gpu_key,
        "architecture": table.architecture,
        "model": table.base_model,
        "vendor": table.vendor,
    }[kind]


def held_out(table: Table, hold_out: str) -> Iterator[tuple[Flags, Flags]]:
    """For each group of targets, which rows it has, and which rows the fit must not see."""
    labels = [labels_of(table, kind) for kind in HOLD_OUTS[hold_out]]
    for group in sorted(set(zip(*labels, strict=True))):
        same = [label == value for label, value in zip(labels, group, strict=True)]
        yield np.logical_and.reduce(same), np.logical_or.reduce(same)


@cache
def chips() -> Mapping[str, str]:
    """Chip (die) of each NVIDIA GPU of the specification table, from data/chips.csv."""
    return {row["gpu_key"]: row["chip"] for row in data_rows("chips.csv") if row["chip"]}


def chip_of(gpu_key: str) -> str:
    """The chip of a GPU; one that is not known is a chip of its own."""
    return chips().get(gpu_key, gpu_key)


def sides(table: Table, pairs: Pairs) -> tuple[Table, Table, Indices]:
    """The rows of x and of y of every pair, and the arithmetic that most of each step of y runs in."""
    own, target = take(table, pairs.x), take(table, pairs.y)
    return own, target, leading_mode(target.work, target.arithmetic)
