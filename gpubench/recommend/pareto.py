"""The offers that nothing beats at once in time, cost and memory."""

from __future__ import annotations

import numpy as np

from gpubench.arrays import Floats, Indices


def dominators(time: Floats, cost: Floats, memory: Floats) -> Indices:
    """Return for each offer the row of one that dominates it, or -1 where it is on the Pareto set.

    A row dominates another when it is no worse in all three and better in at least one. Among the rows
    that dominate, the cheapest is named. Rows alike in all three do not dominate each other.

    Args:
        time: (N,) time to train, less is better.
        cost: (N,) cost to train, less is better.
        memory: (N,) memory of one GPU, more is better; NaN is unknown and counts as none.
    """
    level = np.nan_to_num(memory, nan=0.0)
    result = np.full(len(time), -1, dtype=np.int64)
    by_time = np.lexsort((-level, cost, time))
    for least in sorted(set(level.tolist())):
        order = by_time[level[by_time] >= least]
        cheapest = _cheapest_so_far(cost[order])
        for_rows = level[order] == least
        best = order[cheapest]
        same = (time[best] == time[order]) & (cost[best] == cost[order]) & (level[best] == level[order])
        result[order] = np.where(for_rows, np.where(same, -1, best), result[order])
    return result


def _cheapest_so_far(cost: Floats) -> Indices:
    """Return for each position the first position, up to it, of the least cost seen."""
    least = np.minimum.accumulate(cost)
    is_new = np.concatenate(([True], least[1:] < least[:-1]))
    return np.asarray(np.maximum.accumulate(np.where(is_new, np.arange(len(cost)), 0)))
