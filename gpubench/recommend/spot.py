"""Up to which share of lost work a spot machine does the job for less than the same one on demand."""

from __future__ import annotations

import numpy as np

from gpubench.arrays import Floats, Indices
from gpubench.recommend import economics
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.objective import cost, hours
from gpubench.recommend.request import RankRequest

_DOUBLINGS = 64
"""After which no larger share is looked for."""
_HALVINGS = 40
"""Of the bracket around a share: to a trillionth of it."""


def break_even(request: RankRequest, pool: Candidates, rows: Indices, on_demand: Floats) -> Floats:
    """Return the share of lost work at which spot stops being the cheaper; 0 where it never is.

    What is paid once (egress) or before the first step is not paid again for what is lost, so that the ratio
    of the two prices alone tells it only where there is no job. Found by asking what the job costs, not
    solved, as in ``changes``.

    Args:
        request: What was asked.
        pool: The offers.
        rows: Which of them, each a spot instance.
        on_demand: What the same machines are expected to cost on demand [USD/h].
    """
    price = pool.price[rows]
    if pool.work is None:
        return np.asarray(np.maximum(economics.spot_break_even(on_demand, price), 0.0))
    rate = pool.rate[rows] / pool.delivered[rows]
    most = cost(request, pool, hours(request, pool, rate, rows), rows, on_demand)

    def is_cheaper(lost: Floats) -> Floats:
        job_hours = hours(request, pool, rate * economics.delivered_share(lost), rows)
        return np.asarray(cost(request, pool, job_hours, rows, price) < most)

    low, high = np.zeros(len(rows)), np.ones(len(rows))
    for _ in range(_DOUBLINGS):
        still = is_cheaper(high)
        if not still.any():
            break
        low, high = np.where(still, high, low), np.where(still, 2 * high, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        still = is_cheaper(middle)
        low, high = np.where(still, middle, low), np.where(still, high, middle)
    return np.where(is_cheaper(np.zeros(len(rows))), high, 0.0)
