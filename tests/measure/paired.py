"""Shared by the scripts that compare gpubench with a hand-written loop: block length and ratios."""

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
"""The range of five values contains the median in only 94 % of cases."""


def warm_count(
    run: Callable[[int], Seconds], block_s: Seconds, several: int, warm_s: Seconds = WARM_S
) -> int:
    """Warm up a loop, and return how many of its steps fill a block.

    The first call may compile, and other programs may delay later ones, so the count follows the median.

    Args:
        run: Takes this many steps and returns their time.
        block_s: Duration of a block.
        several: Steps per call; the count is a multiple of this.
        warm_s: Minimum duration of the warm-up.
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
    """Return the median ratio with its interval, if there are enough pairs."""
    value, low, high = median_interval(list(ratios))
    return Interval(value, low, high) if len(ratios) >= FEWEST_PAIRS else Interval(value)


def verdict_of(ratio: Interval, limit: float) -> Verdict:
    """Say whether a ratio with its interval is within a limit of 1, outside it, or undecided."""
    if ratio.low is None or ratio.high is None:
        return "undecided"
    if min(ratio.high, 1 + limit) < max(ratio.low, 1 - limit):
        return "not within"
    return "within" if ratio.low >= 1 - limit and ratio.high <= 1 + limit else "undecided"


def words_of(ratio: Interval) -> str:
    """Return the three numbers as these scripts print them."""
    return ratio.by("{:.4f}".format) if ratio.bounded else "no interval"
