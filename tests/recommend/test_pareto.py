"""The Pareto set compared with its definition."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.recommend import rows as of_rows


def dominators(time, cost, memory):
    every = np.arange(len(time))
    return of_rows.dominators(time, cost, memory, every, every)


def dominates(a, b):
    no_worse = a[0] <= b[0] and a[1] <= b[1] and a[2] >= b[2]
    return no_worse and a != b


def test_the_cheaper_and_faster_offer_dominates():
    """Row 1 is beaten by row 0; row 2 is slower and more expensive but has more memory."""
    time, cost, memory = np.array([1.0, 2, 3]), np.array([5.0, 6, 7]), np.array([24.0, 24, 80])
    assert dominators(time, cost, memory).tolist() == [-1, 0, -1]


def test_unknown_memory_counts_as_none():
    assert dominators(np.ones(2), np.ones(2), np.array([math.nan, 8])).tolist() == [1, -1]


small = st.integers(0, 4).map(float)


@settings(deadline=None)
@given(st.lists(st.tuples(small, small, small), min_size=1, max_size=30))
def test_dominators_match_the_pareto_definition(rows):
    named = dominators(*(np.array(column) for column in zip(*rows, strict=True)))
    for row, by in zip(rows, named, strict=True):
        assert (by >= 0) == any(dominates(other, row) for other in rows)
        if by >= 0:
            assert dominates(rows[by], row)
