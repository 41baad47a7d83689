"""What makes the runner-up the better: a price, a speed, a share of work lost.

Found by asking the order itself at another price or speed: what start-up, billing increments, storage, egress
and tax do to a threshold is then known in one place, ``objective``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from gpubench.arrays import Indices
from gpubench.models import Change, Pricing
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.objective import sorted_by, standing
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Rows

_FINEST = 1e-12
"""Relative width of the bracket that a threshold is narrowed to."""
_FARTHEST = 100
"""Doublings after which no threshold is looked for: what is free stays the better at any speed."""
_FIRST_USD = 1e-6
"""Per hour: where the search begins for the threshold of what is free."""


def changes_of(request: RankRequest, pool: Candidates, order: Indices, rows: Rows) -> Iterator[Change]:
    """Yield what would make the runner-up the better of the two; nothing where there is none.

    Args:
        request: What was asked.
        pool: The offers.
        order: Rows of the pool, best first.
        rows: The same as rows of the ranking.
    """
    if rows.runner_up is None:
        return
    first, other = int(order[0]), int(order[rows.runner_up])
    theirs = standing(request, pool, other)
    offer, price, rate = rows.offers[0], float(pool.price[first]), float(pool.rate[first])
    change = partial(Change, gpu_key=offer.gpu_key, provider=offer.provider)
    if sorted_by(request) in {"cost", "value"}:
        dearest = turn(lambda usd: standing(request, pool, first, price=usd) > theirs, price, 2.0)
        if dearest is not None:
            yield change(kind="price", value=price, threshold=dearest)
    slowest = turn(lambda speed: standing(request, pool, first, rate=speed) > theirs, rate, 0.5)
    if slowest is None:
        return
    yield change(kind="throughput", value=rate, threshold=slowest)
    if offer.pricing is Pricing.SPOT and rows.offers[rows.runner_up].pricing is not Pricing.SPOT:
        # An instance delivers its speed over 1 + the share lost.
        lost = (1 + request.spot_lost) * rate / slowest - 1
        yield change(kind="spot", value=request.spot_lost, threshold=lost)


def turn(is_better: Callable[[float], bool], start: float, factor: float) -> float | None:
    """Return the figure from which on it is no longer the better; None where it always is.

    Bisected, not solved: by billing increments a cost has steps, and equal costs go by the time.

    Args:
        is_better: Whether it is at this figure; once it is not, it stays so.
        start: The figure as it stands.
        factor: What the figure is multiplied by to get there: above 1 upward, below 1 downward.
    """
    if not is_better(start):
        return start
    near = far = start or _FIRST_USD
    for _ in range(_FARTHEST):
        near, far = far, far * factor
        if not is_better(far):
            break
    else:
        return None
    while not math.isclose(near, far, rel_tol=_FINEST):
        middle = (near + far) / 2
        near, far = (middle, far) if is_better(middle) else (near, middle)
    return far
