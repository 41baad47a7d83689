"""What heat may still take from a card that was timed before it was as hot as long work makes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

USUAL_SLOWING = 0.015
"""By what share a card usually slows down from its first minute on, where its launches do not tell."""
USUAL_SLOWING_PER_C, USUAL_CONSTANT_S = 0.0006, 60.0
"""1.5 % over 25 degrees, and the time constant of it: with the slope of the temperature they tell what is to
come of a card that its launches show as steady. One degree in half a minute is worth 0.12 %."""
MOVED_C = 2.0
"""Twice what a driver rounds to [degrees C]."""
MOVED_CLOCK = 0.002
"""Means of two launches, of a clock that moves by steps of 15 MHz, 0.75 % of it."""
MOST_OF_THE_LAST = 0.8
"""A launch is taken to add at most this share of what the one before added: near 1 the sum has no bound."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One launch: its mean step time, SM clock and temperature; None is unknown.

    Attributes:
        slope_c_per_s: Of the temperature while it was timed; None where that was too short to tell.
    """

    step_s: float
    clock_hz: float | None
    temperature_c: float | None
    slope_c_per_s: float | None = None


def slowing_to_come(moments: Sequence[Moment]) -> float | None:
    """Return by what share of the mean step time a longer run may be slower than these launches.

    Launches lie a minute or so apart. Where the card still warmed up it is ``USUAL_SLOWING`` from the last
    one on, or more where the times show more: from launch to launch a card that heats adds less, each time
    the same share of what it added before. What they show may not be less, since a card that rests between
    cases never gets as hot as long work makes it. Where nothing moved between launches it is what the slope
    within them is worth. None of one launch and of a device that tells no temperature: nothing is known.
    """
    if len(moments) < 2 or any(each.temperature_c is None for each in moments):
        return None
    if not is_warming_up(moments):
        slopes = [each.slope_c_per_s for each in moments if each.slope_c_per_s is not None]
        slope = max(sum(slopes) / len(slopes), 0.0) if slopes else 0.0
        return min(slope * USUAL_CONSTANT_S * USUAL_SLOWING_PER_C, USUAL_SLOWING)
    logs = [math.log(each.step_s) for each in moments]
    late = logs[-1] - sum(logs) / len(logs)
    come = USUAL_SLOWING
    if len(moments) > 2 and 0 < (last := logs[-1] - logs[-2]) < (before := logs[-2] - logs[-3]):
        share = min(last / before, MOST_OF_THE_LAST)
        come = max(come, last * share / (1 - share))
    return max(late, 0.0) + come


def is_warming_up(moments: Sequence[Moment]) -> bool:
    """Whether clock or temperature moved from the last launch but one to the last.

    Or the clock fell since the first launch while the temperature rose: heat costs this card its clock, and
    what it lost while it rested between cases hides how much.
    """
    first, before, last = moments[0], *moments[-2:]
    if _warmer(before, last) or abs(_clock(before, last)) > MOVED_CLOCK:
        return True
    return _warmer(first, last) and _clock(first, last) < -MOVED_CLOCK


def _warmer(early: Moment, late: Moment) -> bool:
    if early.temperature_c is None or late.temperature_c is None:
        return False
    return late.temperature_c - early.temperature_c >= MOVED_C


def _clock(early: Moment, late: Moment) -> float:
    """By what share the clock rose; 0 where it is not known."""
    return late.clock_hz / early.clock_hz - 1 if early.clock_hz and late.clock_hz else 0.0
