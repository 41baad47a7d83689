"""Energy of a timed region: the device's counter, else the integral of its power; never 0 for unknown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from gpubench.models import Finding, FindingKind, TelemetrySample
from gpubench.units import Joules, Seconds, Watts

LEAST_REGION_S = 10.0
"""The counter steps every 0.1 s: over ten seconds each edge costs up to 1 %."""
POWER_TOLERANCE = 1.2
"""Energy over time may pass the power limit by this factor: the counter steps every 0.1 s."""
LARGEST_GAP_S = 1.0
"""Between two power samples; a longer silence leaves the integral unknown."""


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of the region, or None, with its source and what was wrong with it."""

    joules: Joules | None = None
    source: str | None = None
    finding: Finding | None = None


def energy_of(
    region_s: Seconds,
    counter_edges: tuple[Joules | None, Joules | None],
    samples: Sequence[TelemetrySample],
    power_limit_w: Watts | None,
) -> Energy:
    """Return the energy of a timed region.

    Args:
        region_s: From the first timed round's start to the last one's end [s].
        counter_edges: The device's energy counter at both ends [J].
        samples: Telemetry of the region, times counted from its start.
        power_limit_w: The most that the device may draw [W].
    """
    if region_s < LEAST_REGION_S:
        return Energy()
    before, after = counter_edges
    if before is not None and after is not None:
        joules = after - before
        if joules <= 0 or _too_much(joules, region_s, power_limit_w):
            return Energy(
                finding=Finding(
                    kind=FindingKind.ENERGY_IMPLAUSIBLE,
                    value=joules,
                    limit=None if power_limit_w is None else POWER_TOLERANCE * power_limit_w * region_s,
                )
            )
        return Energy(joules=joules, source="counter")
    joules_of_samples = power_integral(samples, region_s)
    if joules_of_samples is None or _too_much(joules_of_samples, region_s, power_limit_w):
        return Energy()
    return Energy(joules=joules_of_samples, source="power_integral")


def power_integral(samples: Sequence[TelemetrySample], region_s: Seconds) -> Joules | None:
    """Integrate power over the region by trapezoids; None if the samples do not cover it."""
    known = [(s.t_s, s.power_w) for s in samples if s.power_w is not None and 0 <= s.t_s <= region_s]
    if len(known) < 2:
        return None
    gaps = [known[0][0], region_s - known[-1][0], *(b[0] - a[0] for a, b in pairwise(known))]
    if max(gaps) > LARGEST_GAP_S:
        return None
    inside = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(known))
    joules = inside + gaps[0] * known[0][1] + gaps[1] * known[-1][1]
    return joules if joules > 0 else None


def _too_much(joules: Joules, region_s: Seconds, power_limit_w: Watts | None) -> bool:
    return power_limit_w is not None and joules > POWER_TOLERANCE * power_limit_w * region_s
