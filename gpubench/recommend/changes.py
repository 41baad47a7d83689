"""What would change the choice: a price, a speed, a share of work lost, or a measurement before it.

A threshold is found by asking the order itself at another price or speed: what start-up, billing
increments, storage, egress and tax do to it is then known in one place, ``objective``, and what a limit does
in ``limits``.

What a measurement will say nobody knows before it is made; but the joint draws say how often it would change
the choice, and how much that would save on average (the preposterior value of information).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import numpy as np

from gpubench.arrays import Floats, Indices
from gpubench.models import Change, FindingOut, Pricing, Row
from gpubench.offers.columns import kinds_of
from gpubench.options import words_of
from gpubench.recommend.economics import delivered_share
from gpubench.recommend.eligible import Eligible, limits_price, meets
from gpubench.recommend.objective import sorted_by, standing
from gpubench.recommend.request import TRY_MINUTES, RankRequest
from gpubench.recommend.rows import rows_of, runner_up
from gpubench.recommend.skypilot import TRIAL_MINUTES, can_be_tried, runs_of, trial_usd

_FINEST = 1e-12
"""Relative width of the bracket that a threshold is narrowed to."""
_FARTHEST = 100
"""Doublings after which no threshold is looked for: what is free stays the better at any speed."""
_FIRST = 1e-6
"""Where the search begins for the threshold of what is nothing yet: dollars an hour, share of lost work."""


def changes_of(found: Eligible) -> Iterator[Change]:
    """Yield what would make the runner-up the better of the two; nothing where there is none.

    A first offer that no longer meets the deadline, the budget or the ceiling on the price is no answer, so
    that the order turns there at the latest.
    """
    request, pool, order, second = found.request, found.pool, found.order, runner_up(found)
    if second is None:
        return
    first = int(order[0])
    theirs = standing(request, pool, int(order[second]))

    if standing(request, pool, first) < theirs:  # of what ties the GPU that the fit covers stands first
        return

    def is_better(**other: float) -> bool:
        mine = pool.alone(first, **other)
        return standing(request, mine, 0) > theirs and meets(request, mine)

    offer, price, rate = found.offers[0], float(pool.price[first]), float(pool.rate[first])
    change = partial(Change, gpu_key=offer.gpu_key, provider=offer.provider)
    by_price = sorted_by(request) in {"cost", "value"} or limits_price(request)
    if by_price and (dearest := turn(lambda usd: is_better(price=usd), price, 2.0)) is not None:
        yield change(kind="price", value=price, threshold=dearest)
    if (slowest := turn(lambda speed: is_better(rate=speed), rate, 0.5)) is not None:
        yield change(kind="throughput", value=rate, threshold=slowest)
    if offer.pricing is Pricing.SPOT and found.offers[second].pricing is not Pricing.SPOT:
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


MOST_RIVALS = 24
"""GPUs whose best offers the choice may change to."""
MOST_MEASURED = 6
"""GPUs whose measurement is weighed: the likeliest to be the best."""

_CERTAIN = 1e-9
"""Standard deviation of a logarithm, or of its square, below which a speed is known."""


def finding_out(found: Eligible) -> FindingOut | None:
    """Return the measurement of one GPU that is worth most; None where no rented one is left to measure."""
    request, pool, scores = found.request, found.pool, found.chances.scores
    if sorted_by(request) != "cost":
        return None
    best = [places[0] for places in found.by_gpu.values() if places[0] < len(scores)][:MOST_RIVALS]
    if len(best) < 2:
        return None
    unsure = [
        (place, row, for_rent)
        for place, row in zip(best, rows_of(found, best), strict=True)
        if row.estimate.basis == "predicted" and len(for_rent := _for_rent(found, row.offer.gpu_key))
    ]
    unsure.sort(key=lambda each: -(each[1].p_best or 0.0))
    measured = []
    for place, row, for_rent in unsure[:MOST_MEASURED]:
        drawn = pool.speeds.draws[pool.gpu[found.order[place]]]
        there = _cheapest(found, for_rent)
        measured.append(
            FindingOut(
                gpu_key=row.offer.gpu_key,
                provider=there.offer.provider,
                instance=there.offer.instance,
                saving_usd=saving_usd(-scores[best], np.log(drawn)),
                cost_usd=trial_usd(request, there.usd_per_hour.value or 0.0, TRIAL_MINUTES),
                minutes=TRIAL_MINUTES,
                command=_command(request, there),
            )
        )
    return max(measured, key=lambda each: each.net_usd, default=None)


def saving_usd(costs: Floats, log_rate: Floats) -> float:
    """Return what knowing one GPU's speed saves on average [USD].

    Of each offer the cost that is to be expected, once the speed is known, is fitted as a quadratic of its
    logarithm; the choice then goes to the least. What the fit makes of noise alone, of the same draws in
    another order, is taken off.

    Args:
        costs: (R, D) cost of each offer in each joint draw [USD].
        log_rate: (D,) logarithm of the speed in the same draws.
    """
    chosen_now = costs.mean(axis=1).min()
    knowing, by_chance = (
        chosen_now - _fitted(costs, each).min(axis=0).mean() for each in (log_rate, np.roll(log_rate, 1))
    )
    return float(max(0.0, knowing - max(0.0, by_chance)))


def _fitted(costs: Floats, log_rate: Floats) -> Floats:
    """Return the least-squares quadratic of each row, from terms that are made orthogonal to each other."""
    terms = [np.ones_like(log_rate)]
    for power in (1, 2):
        term = (log_rate - log_rate.mean()) ** power
        term = term - sum((term @ known / len(term)) * known for known in terms)
        size = np.sqrt(term @ term / len(term))
        if size > _CERTAIN:
            terms.append(term / size)
    basis = np.array(terms)
    return np.asarray(costs @ basis.T / costs.shape[1] @ basis)


def _for_rent(found: Eligible, gpu_key: str) -> Indices:
    places = found.by_gpu[gpu_key]
    return places[~found.is_owned[places]]


def _cheapest(found: Eligible, for_rent: Indices) -> Row:
    """Return the cheapest of these by the hour, one that a task file can rent where there is one."""
    by_price = for_rent[np.argsort(found.pool.price[found.order[for_rent]], kind="stable")]
    offers = found.offers.take(by_price)
    kinds = kinds_of(offers.provider, offers.pricing)  # all that is asked of an offer to be tried
    first = np.sort(np.unique(kinds.codes, return_index=True)[1])
    cheapest = rows_of(found, by_price[first])
    return next(filter(can_be_tried, cheapest), cheapest[0])


def _command(request: RankRequest, row: Row) -> str:
    """Return what measures the question on this offer: a task file that rents it, else the same run there.

    The question itself stays as it was asked, rivals and all: the task file asks it again at the end.
    """
    if can_be_tried(row):
        asked = shlex.join(words_of(msgspec.structs.replace(request, limit=None)))
        there = f"--try 1 --try-gpu {row.offer.gpu_key} --try-provider {shlex.quote(row.offer.provider)}"
        return " ".join(part for part in ("gpubench rank", asked, there, "--out try") if part)
    names = {name: name for name in request.workload_names}
    runs = runs_of(row, request, names, minutes=TRY_MINUTES, results=None)
    return " && ".join(f"gpubench run {shlex.join(words_of(run))}" for run in runs)
