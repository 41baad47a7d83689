"""GPUs that are built alike err alike: same chip, same architecture.

What a GPU does beside its datasheet (faster or slower than the roofline says) is learned for GPUs with
published rows and passed on, shrunk, to their relatives. A stranger gets nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from gpubench.predict.arrays import Array
from gpubench.shipped import data_text
from gpubench.specs import load_specs

DEVIATIONS = ("compute", "tensor", "bandwidth")
"""A GPU's own factors on arithmetic, on arithmetic of tensor cores, and on memory bandwidth (logs)."""

# Standard deviations (log) of what is a GPU's own, its chip's, and its architecture's; see
# docs/decisions/ for how far they can be moved without changing the score.
_OWN = (0.08, 0.05, 0.06)
_CHIP = (0.06, 0.05, 0.05)
_ARCHITECTURE = (0.05, 0.05, 0.05)


@cache
def chips() -> Mapping[str, str]:
    """Chip (die) of each NVIDIA GPU of the specification table, from data/chips.csv."""
    text = data_text("chips.csv")
    return {row["gpu_key"]: row["chip"] for row in csv.DictReader(text.splitlines()) if row["chip"]}


def chip_of(gpu_key: str) -> str:
    """The chip of a GPU; one that is not known is a chip of its own."""
    return chips().get(gpu_key, gpu_key)


def covariance(a: Sequence[str], b: Sequence[str], deviation: int) -> Array:
    """Prior covariance of one deviation between two lists of GPUs, (len(a), len(b))."""
    specs = load_specs()

    def same(left: list[str], right: list[str]) -> Array:
        return np.asarray(np.array(left, object)[:, None] == np.array(right, object)[None], dtype=float)

    architectures = [[specs[key].architecture or key for key in keys] for keys in (a, b)]
    return (
        _OWN[deviation] ** 2 * same(list(a), list(b))
        + _CHIP[deviation] ** 2 * same([chip_of(k) for k in a], [chip_of(k) for k in b])
        + _ARCHITECTURE[deviation] ** 2 * same(architectures[0], architectures[1])
    )


def extend(known: Mapping[str, Sequence[float]], wanted: Sequence[str]) -> Array:
    """Expected deviations of any GPUs given those of known ones, (len(wanted), 3).

    A known GPU keeps its own; a relative gets a share; a GPU without relatives gets zero.
    """
    keys = sorted(known)
    if not keys:
        return np.zeros((len(wanted), len(DEVIATIONS)))
    values = np.array([known[key] for key in keys])
    columns = []
    for k in range(len(DEVIATIONS)):
        weights = np.linalg.solve(covariance(keys, keys, k), values[:, k])
        columns.append(covariance(wanted, keys, k) @ weights)
    return np.stack(columns, axis=1)
