"""What makes the runner-up the better: a price, a speed, a share of work lost.

Found by asking the order itself at another price or speed: what start-up, billing increments, storage, egress
and tax do to a threshold is then known in one place, ``objective``, and what a limit does in ``limits``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from gpubench.arrays import Indices
from gpubench.models import Change, Pricing
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.economics import delivered_share
from gpubench.recommend.limits import limits_price, meets
from gpubench.recommend.objective import sorted_by, standing
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Rows

_FINEST = 1e-12
"""Relative width of the bracket that a threshold is narrowed to."""
_FARTHEST = 100
"""Doublings after which no threshold is looked for: what is free stays the better at any speed."""
_FIRST = 1e-6
"""Where the search begins for the threshold of what is nothing yet: dollars an hour, share of lost work."""


def changes_of(
    request: RankRequest, pool: Candidates, order: Indices, rows: Rows, photograph_share: float = 0.0
) -> Iterator[Change]:
    """Yield what would make the runner-up the better of the two; nothing where there is none.

    A first offer that no longer meets the deadline, the budget or the ceiling on the price is no answer, so
    that the order turns there at the latest.

    Args:
        request: What was asked.
        pool: The offers.
        order: Rows of the pool, best first.
        rows: The same as rows of the ranking.
        photograph_share: Of the samples, which the vCPUs of a host must prepare.
    """
    if rows.runner_up is None:
        return
    first = int(order[0])
    theirs = standing(request, pool, int(order[rows.runner_up]))

    def is_better(**other: float) -> bool:
        mine = pool.alone(first, **other)
        return standing(request, mine, 0) > theirs and meets(request, mine, photograph_share)

    offer, price, rate = rows.offers[0], float(pool.price[first]), float(pool.rate[first])
    change = partial(Change, gpu_key=offer.gpu_key, provider=offer.provider)
    by_price = sorted_by(request) in {"cost", "value"} or limits_price(request)
    if by_price and (dearest := turn(lambda usd: is_better(price=usd), price, 2.0)) is not None:
        yield change(kind="price", value=price, threshold=dearest)
    if (slowest := turn(lambda speed: is_better(rate=speed), rate, 0.5)) is not None:
        yield change(kind="throughput", value=rate, threshold=slowest)
    if offer.pricing is Pricing.SPOT and rows.offers[rows.runner_up].pricing is not Pricing.SPOT:
        now = request.spot_lost
        lost = turn(lambda share: is_better(delivered=delivered_share(share)), now, 2.0)
        if lost is not None:
            yield change(kind="spot", value=now, threshold=lost)


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
