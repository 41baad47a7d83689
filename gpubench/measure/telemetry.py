"""Telemetry beside a measurement: a thread that reads the device ten times a second, and energy of a region.

The readings themselves belong to ``probe``, which gives up on a driver call that hangs: that costs
telemetry, never the run. Energy is that of the device's counter, else the integral of its power; never 0 for
unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from gpubench.models import Finding, FindingKind, TelemetrySample
from gpubench.units import Joules, Seconds, Watts

if TYPE_CHECKING:
    from gpubench.probe.backend import Readings

INTERVAL_S = 0.1
WARMUP_INTERVAL_S = 1.0
"""Of the warm-up one sample in this time is kept: it shows how the device heated, and two minutes of it
at ten a second would take more of the file than the rounds do."""
GIVE_UP_AFTER_S = 6.0
"""A little longer than probe waits for a driver call."""


class Sampler:
    """A thread that keeps samples until they are drained; ``now_s`` is the clock of the rounds."""

    def __init__(self, telemetry: Readings, now_s: Callable[[], Seconds]) -> None:
        self._telemetry = telemetry
        self._now_s = now_s
        self._samples: list[TelemetrySample] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="telemetry", daemon=True)

    def __enter__(self) -> Self:
        """Start to sample, unless the device has nothing to tell."""
        if self._telemetry.source != "none":
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; a thread that is stuck in the driver is left behind."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(GIVE_UP_AFTER_S)

    def drain(self) -> list[TelemetrySample]:
        """Take every sample since the last call; times are of the clock of the rounds."""
        with self._lock:
            taken, self._samples = self._samples, []
        return taken

    def _read(self) -> None:
        next_at = time.monotonic()
        while not self._over.is_set() and self._telemetry.source != "hung":
            read = msgspec.structs.asdict(self._telemetry.sample())
            sample = TelemetrySample(t_s=self._now_s(), **read)
            with self._lock:
                self._samples.append(sample)
            next_at += INTERVAL_S
            self._over.wait(max(0.0, next_at - time.monotonic()))


def shifted(samples: list[TelemetrySample], origin_s: Seconds) -> tuple[TelemetrySample, ...]:
    """Count the times of samples from ``origin_s``; of those before it keep one every second."""
    kept: list[TelemetrySample] = []
    for sample in samples:
        t_s = round(sample.t_s - origin_s, 4)
        if t_s >= 0 or not kept or t_s - kept[-1].t_s >= WARMUP_INTERVAL_S - INTERVAL_S / 2:
            kept.append(msgspec.structs.replace(sample, t_s=t_s))
    return tuple(kept)


LEAST_REGION_S = 2.0
"""The counter steps every 0.1 s: over two seconds each edge costs up to 5 %, over thirty 0.3 %."""
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
