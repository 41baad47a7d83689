"""Which offers can be told apart: P(best), P(top 3) and ties, from joint draws.

Offers of one GPU share its draw, so between them the price alone decides. Two GPUs differ by a draw
each, and whatever moves all GPUs together (the error of a common anchor) is in every draw and cancels.
Overlapping intervals are not the test: they count that common error twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpubench.arrays import Flags, Floats, Indices

TAIL = 0.05
"""Two offers tie while the lower one is the better of the two in at least this share of the draws."""

SURE = 0.5
"""The head of a ranking is a tie while its P(best) is below this."""

_BLOCK = 64
_THREE = 3


class Leaders(NamedTuple):
    """The best of every joint draw.

    Attributes:
        best: (D,) score.
        rows: Those that are the best of some draw.
        won: (R, D) which of them is the best of each draw.
        winners: (D,) how many share it.
    """

    best: Floats
    rows: Indices
    won: Flags
    winners: Indices

    def wins(self, count: int) -> Floats:
        """Return P(best) of each of ``count`` rows: (N,)."""
        result = np.zeros(count)
        result[self.rows] = [(row / self.winners).mean() for row in self.won]
        return result


def leaders_of(scores: Floats) -> Leaders:
    """Return who is the best of each draw; larger scores are better.

    Args:
        scores: (N, D) score of row i in joint draw d.
    """
    best = scores.max(axis=0)
    rows = np.flatnonzero((scores == best).any(axis=1))
    won = scores[rows] == best
    return Leaders(best, rows, won, won.sum(axis=0))


def top_three(scores: Floats) -> Floats:
    """Return P(among the best three) of each row: (N,); larger scores are better.

    The third best of some rows is no better than that of all, and few come up to it: the rest is left out.

    Args:
        scores: (N, D) score of row i in joint draw d.
    """
    result = np.ones(len(scores))
    if len(scores) > _THREE:
        able = np.flatnonzero((scores >= _third(scores[:_BLOCK])).any(axis=1))
        result[:] = 0.0
        result[able] = (scores[able] >= _third(scores[able])).mean(axis=1)
    return result


def _third(scores: Floats) -> Floats:
    return np.asarray(np.partition(scores, -_THREE, axis=0)[-_THREE])


def chances(scores: Floats) -> tuple[Floats, Floats]:
    """Return P(best) and P(among the best three) of each row; larger scores are better.

    Rows that share the best score of a draw share that win, so P(best) sums to 1.

    Args:
        scores: (N, D) score of row i in joint draw d.

    Returns:
        Two arrays (N,), 0 to 1.
    """
    return leaders_of(scores).wins(len(scores)), top_three(scores)


def bands(scores: Floats, kinds: Sequence[int]) -> tuple[list[int], list[bool]]:
    """Return rank and tie of each row, rows being in order of merit.

    A band starts at its leader and ends at the last row that ties with it, before the first row of
    another GPU that does not. All rows of a band share its rank; ``tie`` marks those that cannot be told
    from the leader. A more expensive offer of a GPU already in the band stays in its place, unmarked.

    Args:
        scores: (N, D), row 0 the best by its point estimate.
        kinds: (N,) which GPU each row is.
    """
    count = len(scores)
    ranks, ties = [0] * count, [False] * count
    first = 0
    while first < count:
        tied = _tied_rows(scores, kinds, first)
        last = tied[-1] if tied else first
        ranks[first : last + 1] = [first + 1] * (last + 1 - first)
        for row in tied:
            ties[first] = ties[row] = True
        first = last + 1
    return ranks, ties


def ties_with(scores: Floats, first: int, rows: slice) -> Flags:
    """Return which rows cannot be told from row ``first``, which stands above them."""
    return np.asarray((scores[rows] >= scores[first]).mean(axis=1) >= TAIL)


def _tied_rows(scores: Floats, kinds: Sequence[int], first: int) -> list[int]:
    tied: list[int] = []
    seen = {kinds[first]}
    for start in range(first + 1, len(scores), _BLOCK):
        rows = slice(start, min(start + _BLOCK, len(scores)))
        for row, is_tied in enumerate(ties_with(scores, first, rows).tolist(), start):
            if is_tied:
                tied.append(row)
                seen.add(kinds[row])
            elif kinds[row] not in seen:
                return tied
        if not tied and len(set(kinds[rows.stop :]) - seen) == 0:
            return tied
    return tied
