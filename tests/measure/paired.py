"""What the scripts that hold gpubench against a loop by hand share: how long a block is, and what the ratios come to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal, TypeAlias

from gpubench.interval import Interval
from gpubench.units import Seconds

Verdict: TypeAlias = Literal["within", "not within", "undecided"]

EXIT_CODES: dict[Verdict, int] = {"within": 0, "not within": 1, "undecided": 6}
WARM_S = float(os.environ.get("WARM_S", "1"))
FEWEST_PAIRS = 6
"""Of five, the largest and the smallest hold the median in 94 %: that is no 95 % interval."""


def warm_count(
    run: Callable[[int], Seconds], block_s: Seconds, several: int, warm_s: Seconds = WARM_S
) -> int:
    """Warm a loop up, and return how many steps of it fill a block.

    The first call may compile, and others are held up by other programs: the count follows the median.

    Args:
        run: Takes this many steps and returns their time.
        block_s: How long a block is to take.
        several: The count is a multiple of this, and this many steps are taken at once.
        warm_s: How long to warm up, at least.
    """
    began_s = time.perf_counter()
    took_s = [run(several)]
    while len(took_s) < 3 or time.perf_counter() - began_s < warm_s:
        took_s.append(run(several))
    return several * max(1, round(block_s / median(took_s)))


def median_interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval by order statistics (binomial, normal approximation).

    Source:
        Conover 1999, Practical Nonparametric Statistics, section 3.2.
    """
    ordered = sorted(ratios)
    reach = 1.96 * len(ordered) ** 0.5 / 2
    low = max(0, int(len(ordered) / 2 - reach))
    high = min(len(ordered) - 1, int(len(ordered) / 2 + reach))
    return median(ordered), ordered[low], ordered[high]


def ratio_of(ratios: Sequence[float]) -> Interval:
    """Return the median ratio with its interval, where there are enough pairs for one."""
    value, low, high = median_interval(list(ratios))
    return Interval(value, low, high) if len(ratios) >= FEWEST_PAIRS else Interval(value)


def verdict_of(ratio: Interval, limit: float) -> Verdict:
    """Say whether a ratio with its interval is within a limit of 1, is not, or cannot be told."""
    if ratio.low is None or ratio.high is None:
        return "undecided"
    if min(ratio.high, 1 + limit) < max(ratio.low, 1 - limit):
        return "not within"
    return "within" if ratio.low >= 1 - limit and ratio.high <= 1 + limit else "undecided"


def words_of(ratio: Interval) -> str:
    """Return the three as such scripts print them."""
    return ratio.by("{:.4f}".format) if ratio.bounded else "no interval"
