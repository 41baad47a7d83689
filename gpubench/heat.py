"""The expected slowdown of a card that was measured before it reached its operating temperature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

import msgspec

from gpubench.stats import CONFIDENCE, deviations_of, student_t_quantile

# Default relative increase in step time per degree: 1.5 % over 25 degrees.
USUAL_PER_C = 0.0006
# How much hotter a card that is still warming up gets after the last launch [degrees C].
USUAL_RISE_C = 25.0
# Usual time constant of a card that is warming up.
USUAL_CONSTANT_S = 60.0
# The same for a card that slows more than usual per degree, such as one in a hot laptop (assumed).
SLOW_CONSTANT_S = 120.0
STEADY_C_PER_S = 1 / 30
"""One degree in half a minute. At this rate, a card that slows down by 1.5 % over 25 degrees, with a time
constant of 60 s, has another 0.1 % to lose; at one degree in ten seconds, another 0.4 %."""
# Temperature rise that counts as warming up: twice the driver's resolution [degrees C].
MOVED_C = 2.0
# Relative difference of the mean clocks of two launches above which the clock has moved; a clock changes in
# steps of 15 MHz, 0.75 %.
MOVED_CLOCK = 0.002
# Minimum sum of squared temperature deviations of a run's launches for estimating a slope.
MIN_SUM_OF_SQUARES_C = 4.0
# Default relative increase in step time from a cold card to a warm one.
USUAL_COLD_TO_WARM = USUAL_PER_C * USUAL_RISE_C
# Default relative increase in step time per relative drop in clock, if only the clock limits it.
USUAL_PER_CLOCK = 1.0
# Minimum sum of squared deviations of the launches' warmth (0 cold, 1 at the operating temperature); three
# launches one minute apart have 0.4.
MIN_SUM_OF_SQUARES_WARMTH = 0.1
# Default time from launch to launch, for files without start times [s].
USUAL_APART_S = 60.0
# Minimum time assumed between launches when estimating how fast a clock falls in steps of 15 MHz [s].
LEAST_APART_S = 20.0


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One launch: its mean step time, SM clock and temperature; None is unknown.

    Attributes:
        at_s: When the launch began [s]; only differences are meaningful.
        slope_c_per_s: Rate of rise of the temperature while timed; None if the timed part was too short.
    """

    step_s: float
    clock_hz: float | None
    temperature_c: float | None
    slope_c_per_s: float | None = None
    at_s: float | None = None


def slowing_of(rows: Sequence[Sequence[Moment]]) -> dict[str, float]:
    """Return the largest plausible slowdown of a run for each cause, as arguments of ``slowing_to_come``.

    The logarithm of the step time is regressed on temperature, on warmth (``_warmth``) and on the clock, with
    one slope for the whole run in each regression. A case with an unknown value of the cause is ignored.

    Args:
        rows: The launches of each case.
    """
    celsius = ([each.temperature_c for each in row] for row in rows)
    return {
        "per_c": _largest_slope(rows, celsius, USUAL_PER_C, MIN_SUM_OF_SQUARES_C),
        "cold_to_warm": _largest_slope(
            rows, map(_warmth, rows), USUAL_COLD_TO_WARM, MIN_SUM_OF_SQUARES_WARMTH
        ),
        "per_clock": _largest_slope(rows, map(_minus_log_clocks, rows), USUAL_PER_CLOCK, MOVED_CLOCK**2),
    }


def _largest_slope(
    rows: Sequence[Sequence[Moment]],
    causes: Iterable[Sequence[float | None]],
    usual: float,
    min_sum_of_squares: float,
) -> float:
    """Regress the logarithm of the step time on a cause, with each case centered at its own mean.

    The result is the upper bound of the slope, at least 0. If there are too few launches, or the cause varies
    too little, the result is the usual slope. If the launches are too noisy to resolve the usual slope, the
    result is the usual slope, or the lower bound of the measured slope if that is larger.
    """
    known = [(row, xs) for row, xs in zip(rows, causes, strict=True) if len(row) > 1 and None not in xs]
    causing = [d for _, xs in known for d in deviations_of([x or 0.0 for x in xs])]
    logs = [d for row, _ in known for d in deviations_of([math.log(each.step_s) for each in row])]
    squares, freedom = math.fsum(d * d for d in causing), len(causing) - len(known) - 1
    if freedom < 1 or squares < min_sum_of_squares:
        return usual
    slope = math.fsum(d * y for d, y in zip(causing, logs, strict=True)) / squares
    rest = math.fsum((y - slope * d) ** 2 for d, y in zip(causing, logs, strict=True))
    reach = student_t_quantile((1 + CONFIDENCE) / 2, freedom) * math.sqrt(rest / freedom / squares)
    return max(usual, slope - reach) if reach > usual else max(slope + reach, 0.0)


def _times(row: Sequence[Moment]) -> list[float]:
    return [USUAL_APART_S * n if each.at_s is None else each.at_s for n, each in enumerate(row)]


def _warmth(row: Sequence[Moment]) -> list[float]:
    # Warmth of the card at each launch: 0 at the first, approaching 1 at its operating temperature.
    times_s = _times(row)
    return [1 - math.exp(-max(at_s - times_s[0], 0.0) / USUAL_CONSTANT_S) for at_s in times_s]


def _minus_log_clocks(row: Sequence[Moment]) -> list[float | None]:
    # Minus the logarithm of each clock; differences are relative drops in clock.
    return [-math.log(each.clock_hz) if each.clock_hz else None for each in row]


def slowing_to_come(
    moments: Sequence[Moment],
    per_c: float = USUAL_PER_C,
    cold_to_warm: float = 0.0,
    per_clock: float = 0.0,
) -> float | None:
    """Return the relative increase in step time that a longer run may show compared with these launches.

    For a card that is still warming up, the result is the largest of three estimates: a further rise of
    ``USUAL_RISE_C`` above its last launch, because a card cools between cases but not during a long run; the
    trend over the launches; and the fall of its clock. For a steady card, the result follows from the rise in
    temperature within the launches. Without a temperature, a changing clock implies the usual rise. The
    result is None for a single launch, or if the temperature is unknown and the clock is steady.

    Args:
        moments: The launches of one case.
        per_c: Slowdown per degree.
        cold_to_warm: Slowdown from a cold card to a warm one.
        per_clock: Slowdown per relative drop in clock.
    """
    celsius = [each.temperature_c for each in moments if each.temperature_c is not None]
    is_known = len(celsius) == len(moments)
    if len(moments) < 2 or not (is_known or is_warming_up(moments)):
        return None
    if not is_warming_up(moments):
        constant_s = SLOW_CONSTANT_S if per_c > USUAL_PER_C else USUAL_CONSTANT_S
        return per_c * max(_rise_c_per_s(moments), 0.0) * constant_s
    rise_c = USUAL_RISE_C + celsius[-1] - fmean(celsius) if is_known else USUAL_RISE_C
    by_clock = per_clock * _fall_to_come(moments)
    return max(
        (per_c if is_known else USUAL_PER_C) * rise_c,
        cold_to_warm * (1 - fmean(_warmth(moments))),
        by_clock,
        0.0,
    )


def _fall_to_come(moments: Sequence[Moment]) -> float:
    """Return how far the clock will fall below its mean in these launches until the card is warm, as a share.

    The result is 0 if a clock is unknown.
    """
    known = [each for each in _minus_log_clocks(moments) if each is not None]
    if len(known) < len(moments):
        return 0.0
    *_, before_s, last_s = _times(moments)
    # Sum of future falls, as a multiple of the last fall, if the clock approaches its end exponentially.
    left = 1 / math.expm1(max(last_s - before_s, LEAST_APART_S) / USUAL_CONSTANT_S)
    return known[-1] - fmean(known) + left * max(known[-1] - known[-2], 0.0)


def is_warming_up(moments: Sequence[Moment]) -> bool:
    """Return whether the clock moved or the temperature rose between the last two launches.

    The result is also true if the temperature rose within the launches faster than twice the ``--publish``
    limit, or if the clock fell since the first launch while the temperature rose: heat then lowers the clock,
    and cooling between cases hides how much.
    """
    first, before, last = moments[0], *moments[-2:]
    if _is_warmer(before, last) or abs(_clock_rise(before, last)) > MOVED_CLOCK:
        return True
    if _rise_c_per_s(moments) > 2 * STEADY_C_PER_S:
        return True
    return _is_warmer(first, last) and _clock_rise(first, last) < -MOVED_CLOCK


def _rise_c_per_s(moments: Sequence[Moment]) -> float:
    # Mean rise of the temperature within launches [degrees C per s]; 0 if it is unknown for all of them.
    slopes = [each.slope_c_per_s for each in moments if each.slope_c_per_s is not None]
    return fmean(slopes) if slopes else 0.0


def _is_warmer(early: Moment, late: Moment) -> bool:
    if early.temperature_c is None or late.temperature_c is None:
        return False
    return late.temperature_c - early.temperature_c >= MOVED_C


def _clock_rise(early: Moment, late: Moment) -> float:
    # As a share of the early clock; 0 if unknown.
    return late.clock_hz / early.clock_hz - 1 if early.clock_hz and late.clock_hz else 0.0
