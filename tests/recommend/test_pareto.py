"""The Pareto set compared with its definition."""

from __future__ import annotations

import math

import numpy as np

from gpubench.recommend import rows as of_rows


def test_unknown_memory_counts_as_none():
    every = np.arange(2)
    found = of_rows.dominators(np.ones(2), np.ones(2), np.array([math.nan, 8]), every, every)
    assert found.tolist() == [1, -1]
