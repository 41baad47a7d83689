"""One judgment of a check, and the one rule for ratios."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from gpubench import stats
from gpubench.interval import Interval
from gpubench.models import Blocks

State = Literal["ok", "FAILED", "cut off", "undecided", "left out", "shown"]
"""``cut off`` gave no answer in its time, for ``left out`` there was none; ``shown`` is not judged."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One judgment.

    Attributes:
        part: The part of the check that read it.
        what: What was held against what.
        found: The figure, for people.
        limit: What is allowed; empty where nothing is.
        reason: What went wrong, or why nothing was found.
    """

    part: str
    what: str
    state: State
    found: str = ""
    limit: str = ""
    reason: str | None = None


def judge_ratio(part: str, what: str, blocks: Blocks, limits: tuple[float, float]) -> Verdict:
    """Judge the ratio of two kinds of blocks by its interval.

    It fails only where the whole interval lies outside the limits, and is sound where all of it lies inside.
    """
    least, most = limits
    limit = f"{least:g} to {most:g}" if least else f"at most {most:g}"
    seen = stats.ratio_of_blocks(blocks.first_s, blocks.second_s)
    if seen is None:
        return Verdict(part=part, what=what, state="undecided", limit=limit, reason="too few blocks")
    found = seen.by("{:.4f}".format)
    return Verdict(part=part, what=what, state=state_of(seen, limits), found=found, limit=limit)


def state_of(seen: Interval, limits: tuple[float, float]) -> State:
    """Say where an interval lies: inside the limits, outside, or neither; an unknown end is endless."""
    least, most = limits
    low = -math.inf if seen.low is None else seen.low
    high = math.inf if seen.high is None else seen.high
    if least <= low and high <= most:
        return "ok"
    return "FAILED" if high < least or low > most else "undecided"


def error_text(error: float | None) -> str:
    """Return a relative error for people; None is one that is not finite."""
    return "not finite" if error is None else f"{error:.1e}"


def passed(*, right: bool) -> State:
    """Return the state of what is either right or wrong."""
    return "ok" if right else "FAILED"
