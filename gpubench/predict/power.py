"""The time that a power limit below the usual one costs, and the energy that it saves.

A card under a limit lowers its clock. How far depends on the ratio of the limit to the power that the job
draws without one: a job that would use half of the limit hardly slows down. Two smooth ramps (softplus), one
for time and one for mean power, are fitted to readings of four cards.
"""

import math
from functools import cache
from typing import Annotated

from gpubench.errors import MisuseError
from gpubench.folders import data_json
from gpubench.interval import Interval
from gpubench.models import GpuSpec
from gpubench.models.record import Record
from gpubench.units import Watts

POWER_FILE = "power_law.json"
DEEP_SHARE = 0.6
"""Limits below this share of board power are far from most measurements and get wider intervals."""
LEAST_SHARE = 1 / 3
"""The lowest measured limit, as a share of board power."""

Ends = Annotated[tuple[float, float], "log"]
"""Log distances from the law's value to the lower and upper ends of an interval."""


class Errors(Record, frozen=True, kw_only=True):
    """The errors of the law on cards left out of the fit: 5th and 95th percentiles of the worst card.

    Attributes:
        time, energy: Errors of the two factors.
    """

    time: Ends
    energy: Ends


class PowerLaw(Record, frozen=True, kw_only=True):
    """The fit, with its date and source.

    Attributes:
        time: Knee, exponent and sharpness of the ramp in time. The knee is a limit relative to the uncapped
            power.
        power: Knee and sharpness of the ramp in mean power.
        share: Ratio of a training job's uncapped mean power to board power, then its 5th and 95th percentiles
            over jobs and cards.
        errors: For an uncapped power that was measured (``read``) and one that is assumed (``assumed``); for
            limits below ``DEEP_SHARE``, the keys are ``read deep`` and ``assumed deep``.
        readings, cards: Numbers of readings and of cards behind the fit.
    """

    time: tuple[float, float, float]
    power: tuple[float, float]
    share: tuple[float, float, float]
    errors: dict[str, Errors]
    readings: int
    cards: int
    source: str
    fitted: str


@cache
def load_power_law() -> PowerLaw:
    """Read the shipped fit."""
    return data_json(POWER_FILE, PowerLaw)


def log_factors(law: PowerLaw, limit_over_power: float) -> tuple[float, float]:
    """Return the logs of time and of mean power under a limit, both relative to no limit.

    Args:
        law: The fit.
        limit_over_power: Ratio of the limit to the uncapped mean power of the job.
    """
    log_ratio = math.log(limit_over_power)
    knee, exponent, sharpness = law.time
    power_knee, power_sharpness = law.power
    slower = exponent * _ramp(math.log(knee) - log_ratio, sharpness)
    return slower, -_ramp(math.log(power_knee) - log_ratio, power_sharpness)


def _ramp(below_knee: float, sharpness: float) -> float:
    # Softplus of the log distance below the knee: about 0 far above the knee, that distance far below it
    return math.log1p(math.exp(sharpness * below_knee)) / sharpness


def power_of(spec: GpuSpec, measured_w: Watts | None = None) -> Interval:
    """Return the mean power of a training job without a power limit [W].

    Args:
        spec: The card.
        measured_w: Power measured for this job on this model of card; None means the usual share of
            board power.
    """
    if measured_w is not None:
        return Interval(measured_w)
    if spec.tdp_w is None:
        return Interval(None)
    return Interval(*(share * spec.tdp_w for share in load_power_law().share))


def capped(spec: GpuSpec, limit_w: Watts, measured_w: Watts | None = None) -> tuple[Interval, Interval]:
    """Return the time and energy of a job under a power limit, as factors on those without one.

    Args:
        spec: The card.
        limit_w: The limit [W].
        measured_w: Measured mean power of the job without a limit [W]; None means the usual share of
            board power.

    Raises:
        MisuseError: If the board power of the card is unknown, or the limit is not lower than it, or is below
            ``LEAST_SHARE`` of it.
    """
    law, board_w = load_power_law(), spec.tdp_w
    if board_w is None:
        raise MisuseError(f"--power-limit: the board power of {spec.short_name} is not known")
    least_w = LEAST_SHARE * board_w
    if not least_w <= limit_w < board_w:
        raise MisuseError(
            f"--power-limit {limit_w:g}: {spec.short_name} has a limit of {board_w:g} W by default, and the "
            f"lowest measured limit is {math.ceil(least_w):g} W: give one between the two"
        )
    usual_w = law.share[0] * board_w if measured_w is None else measured_w
    slower, less_power = log_factors(law, limit_w / usual_w)
    kind = "assumed" if measured_w is None else "read"
    errors = law.errors[kind if limit_w >= DEEP_SHARE * board_w else f"{kind} deep"]
    time = _around(slower, errors.time)
    # No job is faster under a limit than without one
    bounded = Interval(time.value, max(1.0, time.low or 1.0), time.high)
    return bounded, _around(slower + less_power, errors.energy)


def _around(log_factor: float, ends: Ends) -> Interval:
    return Interval(*(math.exp(log_factor + distance) for distance in (0.0, *ends)))
