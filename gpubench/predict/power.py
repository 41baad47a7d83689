"""The clock that a GPU holds on its power: peaks are stated at a clock that not every card can keep up.

A chip's power grows with about the 2.5th power of its clock, so what a card holds goes with its watts per
multiprocessor to the power 0.4 or so (fitted). That is compared with the clock that its peak is stated at: a
card whose datasheet already states a lower clock is not lowered a second time, and no amount of power
lifts a card above its peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import inf, log
from statistics import median
from typing import NamedTuple

from gpubench.models import GpuSpec
from gpubench.specs import load_specs


class PowerAndClock(NamedTuple):
    """Logs over what is usual for the compute capability: watts per multiprocessor, and the stated clock."""

    power: float
    clock: float


UNLIMITED = PowerAndClock(power=inf, clock=0.0)
"""Of a GPU whose own power is not known, such as one that shares its limit with a CPU."""


def power_and_clock(spec: GpuSpec) -> PowerAndClock:
    """Power and clock of a GPU beside others of its compute capability; ``UNLIMITED`` where not known.

    A row that stands for several cards has those of the variant with the least power.
    """
    if spec.variants:
        return min(power_and_clock(load_specs()[key]) for key in spec.variants)
    own = _logs(spec)
    if own is None or spec.compute_capability is None:
        return UNLIMITED
    usual = _usual()[spec.compute_capability]
    return PowerAndClock(power=own.power - usual.power, clock=own.clock - usual.clock)


@cache
def _usual() -> Mapping[str, PowerAndClock]:
    """Medians of each compute capability in the specification table, of cards alone."""
    found: dict[str, list[PowerAndClock]] = {}
    for spec in load_specs().values():
        own = _logs(spec)
        if own is not None and spec.compute_capability and not spec.variants:
            found.setdefault(spec.compute_capability, []).append(own)
    return {
        capability: PowerAndClock(power=median(o.power for o in each), clock=median(o.clock for o in each))
        for capability, each in found.items()
    }


def _logs(spec: GpuSpec) -> PowerAndClock | None:
    if not (spec.tdp_w and spec.sm_count and spec.fp32_flops_per_s and spec.cuda_core_count):
        return None
    stated_hz = spec.fp32_flops_per_s / (2 * spec.cuda_core_count)
    return PowerAndClock(power=log(spec.tdp_w / spec.sm_count), clock=log(stated_hz))
