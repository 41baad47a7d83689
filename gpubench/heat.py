"""The expected slowdown of a card that was measured before it reached its working temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from gpubench.stats import CONFIDENCE, deviations_of, student_t_quantile

USUAL_PER_C = 0.0006
"""Default share by which a step gets longer per degree: 1.5 % over 25 degrees."""
USUAL_RISE_C = 25.0
"""Further rise of a card that is still warming up, beyond its last launch [degrees C]."""
USUAL_CONSTANT_S = 60.0
"""Time constant of a card that is steady from launch to launch but still gets hotter within them."""
SLOW_CONSTANT_S = 120.0
"""The same if a degree costs more than usual, as in a laptop with a warming case (assumed)."""
STANDS_C_PER_S = 1 / 30
"""One degree in half a minute: a card that slows down by 1.5 % over 25 degrees, with a time constant of 60 s,
has 0.1 % to go then. At one degree in ten seconds it has 0.4 % to go."""
MOVED_C = 2.0
"""Twice the resolution of the driver's temperature [degrees C]."""
MOVED_CLOCK = 0.002
"""Limit on the difference between mean clocks of two launches; a clock has steps of 15 MHz, 0.75 %."""
LEAST_SQUARES_C = 4.0
"""Minimum sum of squared temperature deviations of a run's launches for estimating a slope."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One launch: its mean step time, SM clock and temperature; None is unknown.

    Attributes:
        slope_c_per_s: Slope of the temperature during timing; None if that was too short.
    """

    step_s: float
    clock_hz: float | None
    temperature_c: float | None
    slope_c_per_s: float | None = None


def slowing_per_c(rows: Sequence[Sequence[Moment]]) -> float:
    """Return the largest plausible share by which a step gets longer per degree; one slope for a whole run.

    The logarithm of the step time is regressed on the temperature, with each case centered at its own mean.
    The result is the upper end of the slope, at least 0. If the launches are too noisy to resolve
    ``USUAL_PER_C``, the result is that value, or the lower end of the slope if it is larger.

    Args:
        rows: The launches of each case; those of unknown temperature are ignored.
    """
    known = [row for row in rows if len(row) > 1 and all(each.temperature_c is not None for each in row)]
    degrees = [d for row in known for d in deviations_of([each.temperature_c or 0.0 for each in row])]
    logs = [d for row in known for d in deviations_of([math.log(each.step_s) for each in row])]
    squares, freedom = math.fsum(d * d for d in degrees), len(degrees) - len(known) - 1
    if freedom < 1 or squares < LEAST_SQUARES_C:
        return USUAL_PER_C
    slope = math.fsum(d * y for d, y in zip(degrees, logs, strict=True)) / squares
    rest = math.fsum((y - slope * d) ** 2 for d, y in zip(degrees, logs, strict=True))
    reach = student_t_quantile((1 + CONFIDENCE) / 2, freedom) * math.sqrt(rest / freedom / squares)
    return max(USUAL_PER_C, slope - reach) if reach > USUAL_PER_C else max(slope + reach, 0.0)


def slowing_to_come(moments: Sequence[Moment], per_c: float = USUAL_PER_C) -> float | None:
    """Return the share by which a longer run may be slower than these launches.

    Launches are about a minute apart. A card that is still warming up is assumed to rise by ``USUAL_RISE_C``
    above its last launch, since it cooled between cases and would not in long work. If it was steady, the
    slope within the launches is used. Without a temperature, a clock that still moves means the usual rise.
    None for a single launch, or if nothing indicates it.

    Args:
        moments: The launches of one case.
        per_c: Slowdown per degree, from ``slowing_per_c``.
    """
    celsius = [each.temperature_c for each in moments if each.temperature_c is not None]
    if len(moments) < 2:
        return None
    if len(celsius) < len(moments):
        return USUAL_PER_C * USUAL_RISE_C if is_warming_up(moments) else None
    if is_warming_up(moments):
        return per_c * max(USUAL_RISE_C + celsius[-1] - fmean(celsius), 0.0)
    return per_c * max(_slope(moments), 0.0) * (SLOW_CONSTANT_S if per_c > USUAL_PER_C else USUAL_CONSTANT_S)


def is_warming_up(moments: Sequence[Moment]) -> bool:
    """Whether the clock moved or the temperature rose between the last two launches.

    Also true if the temperature rose within the launches by twice the limit of ``--publish``, or if the clock
    fell since the first launch while the temperature rose: heat lowers this card's clock, and cooling between
    cases hides how much.
    """
    first, before, last = moments[0], *moments[-2:]
    if _warmer(before, last) or abs(_clock(before, last)) > MOVED_CLOCK:
        return True
    if _slope(moments) > 2 * STANDS_C_PER_S:
        return True
    return _warmer(first, last) and _clock(first, last) < -MOVED_CLOCK


def _slope(moments: Sequence[Moment]) -> float:
    # Mean slope of the temperature within launches that have one [degrees C per s]; 0 without any.
    slopes = [each.slope_c_per_s for each in moments if each.slope_c_per_s is not None]
    return fmean(slopes) if slopes else 0.0


def _warmer(early: Moment, late: Moment) -> bool:
    if early.temperature_c is None or late.temperature_c is None:
        return False
    return late.temperature_c - early.temperature_c >= MOVED_C


def _clock(early: Moment, late: Moment) -> float:
    # Relative rise of the clock; 0 if unknown
    return late.clock_hz / early.clock_hz - 1 if early.clock_hz and late.clock_hz else 0.0
