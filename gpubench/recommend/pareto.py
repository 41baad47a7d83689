"""The offers that nothing beats at once in time, cost and memory."""

from __future__ import annotations

import numpy as np

from gpubench.arrays import Floats, Indices

_AT_ONCE = 64


class Dominators:
    """Who dominates whom.

    A row dominates another when it is no worse in time, cost and memory and better in at least one. Among
    the rows that dominate, the cheapest is named, of several the fastest. Rows alike in all three do not
    dominate each other.
    """

    def __init__(self, time: Floats, cost: Floats, memory: Floats, kinds: Indices) -> None:
        """Sort rows by what they take.

        Args:
            time: (N,) time to train, less is better.
            cost: (N,) cost to train, less is better.
            memory: (N,) memory of one GPU, more is better; NaN is unknown and counts as none.
            kinds: (N,) rows of one kind are alike in time and memory: the cheapest beats what another beats.
        """
        self._time, self._cost, self._level = time, cost, np.nan_to_num(memory, nan=0.0)
        by_cost = np.argsort(cost, kind="stable")
        cheapest = by_cost[np.unique(kinds[by_cost], return_index=True)[1]]
        level = -self._level[cheapest]
        self._able = cheapest[np.lexsort((cheapest, level, time[cheapest], cost[cheapest]))]

    def of(self, rows: Indices) -> Indices:
        """Return for each of these rows one that dominates it, or -1 where it is on the Pareto set."""
        result = np.full(len(rows), -1, dtype=np.int64)
        able = self._time[self._able], self._cost[self._able], self._level[self._able]
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE, None]
            time, cost, level = self._time[part], self._cost[part], self._level[part]
            no_worse = (able[0] <= time) & (able[1] <= cost) & (able[2] >= level)
            beats = no_worse & ~((able[0] == time) & (able[1] == cost) & (able[2] == level))
            first = self._able[beats.argmax(axis=1)]
            result[start : start + _AT_ONCE] = np.where(beats.any(axis=1), first, -1)
        return result
