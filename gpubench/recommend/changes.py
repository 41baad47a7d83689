"""What would change the choice: the price, or else the speed, from which on the runner-up is the better.

It is found by asking the order itself at another price or speed: what start-up, billing increments, storage,
egress and tax do to it is then known in one place, ``objective``, and what a limit does in ``eligible``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gpubench.models import Change
from gpubench.recommend.eligible import Eligible, limits_price, meets
from gpubench.recommend.objective import sorted_by, standing
from gpubench.recommend.rows import runner_up

_FINEST = 1e-12
"""Relative width of the bracket that a threshold is narrowed to."""
_FARTHEST = 100
"""Doublings after which no threshold is looked for: what is free stays the better at any speed."""
_FIRST = 1e-6
"""Where the search begins for the threshold of a price of nothing [USD/h]."""


def change_of(found: Eligible) -> Change | None:
    """Return what would make the runner-up the better of the two; None where there is none.

    It is the price of the choice, and where no price turns the order, its speed. A choice that no longer
    meets the deadline, the budget or the ceiling on the price is no answer: the order turns there at the
    latest.
    """
    request, pool, order, second = found.request, found.pool, found.order, runner_up(found)
    if second is None:
        return None
    first = int(order[0])
    theirs = standing(request, pool, int(order[second]))
    if standing(request, pool, first) < theirs:  # of what ties the GPU that the fit covers stands first
        return None

    def is_better(**other: float) -> bool:
        mine = pool.with_override(first, **other)
        return standing(request, mine, 0) > theirs and meets(request, mine)

    price, rate = float(pool.price[first]), float(pool.rate[first])
    by_price = sorted_by(request) in {"total", "cost", "value"} or limits_price(request)
    if by_price and (dearest := find_threshold(lambda usd: is_better(price=usd), price, 2.0)) is not None:
        return Change(kind="price", value=price, threshold=dearest)
    slowest = find_threshold(lambda speed: is_better(rate=speed), rate, 0.5)
    return None if slowest is None else Change(kind="throughput", value=rate, threshold=slowest)


def find_threshold(is_better: Callable[[float], bool], start: float, factor: float) -> float | None:
    """Return the figure from which on it is no longer the better; None where it always is.

    Bisected, not solved: by billing increments a cost has steps, and equal costs go by the time.

    Args:
        is_better: Whether it is at this figure; once it is not, it stays so.
        start: The figure as it stands.
        factor: What the figure is multiplied by to get there: above 1 upward, below 1 downward.
    """
    if not is_better(start):
        return start
    near = far = start or _FIRST
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
