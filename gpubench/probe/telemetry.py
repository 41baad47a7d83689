"""Telemetry of a device, from whichever backend listed it, and of several GPUs that work as one.

What these draw adds up, and the slowest sets the pace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from statistics import fmean
from typing import TypeVar

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile, Reading
from gpubench.probe.backend import Readings
from gpubench.probe.probe import load_backends

T = TypeVar("T", int, float, bool, tuple[str, ...])


def open_telemetry(device: DeviceProfile) -> Readings:
    """Open the readings of a device, to be used in a ``with`` block.

    Raises:
        NoDeviceError: If the driver that showed this device no longer does.
    """
    backend = load_backends().found.get(device.backend)
    if backend is None:
        raise NoDeviceError(
            f"no backend is called {device.backend!r} here; install the package that measured on it"
        )
    return backend.open_readings(device)


class GpuGroup(Readings):
    """The readings of all GPUs of one job. A value that one of them does not tell is unknown for all."""

    def __init__(self, devices: Sequence[DeviceProfile], *, whole: bool = True) -> None:
        """Open each device.

        Args:
            devices: Of this machine.
            whole: Whether they are all that the job has. Else power and energy stay unknown: those of one
                machine mean nothing beside the throughput of several.

        Raises:
            NoDeviceError: If the driver that showed one of them no longer does.
        """
        self._whole = whole
        with ExitStack() as stack:
            self._each: tuple[Readings, ...] = tuple(stack.enter_context(open_telemetry(d)) for d in devices)
            self._stack = stack.pop_all()

    @property
    def source(self) -> str:
        """``hung`` or ``none`` where that is true of one of them."""
        sources = [each.source for each in self._each]
        return next((bad for bad in ("hung", "none") if bad in sources), sources[0])

    @property
    def fault(self) -> str | None:
        """``gpu_lost`` or ``reset_required`` once the driver has said so of one of them."""
        return next((each.fault for each in self._each if each.fault), None)

    def sample(self) -> Reading:
        """Read all: lowest clocks, highest temperature, power added up, every clock event reason.

        Utilization is the mean, memory that of the fullest; they are idle if one of them is.
        """
        seen = [each.sample() for each in self._each]
        return Reading(
            sm_clock_hz=_over(min, (r.sm_clock_hz for r in seen)),
            memory_clock_hz=_over(min, (r.memory_clock_hz for r in seen)),
            power_w=_over(sum, (r.power_w for r in seen)) if self._whole else None,
            temperature_c=_over(max, (r.temperature_c for r in seen)),
            utilization=_over(fmean, (r.utilization for r in seen)),
            memory_used_bytes=_over(max, (r.memory_used_bytes for r in seen)),
            clock_event_reasons=_over(_each_once, (r.clock_event_reasons for r in seen)),
            idle=_over(any, (r.idle for r in seen)),
        )

    def energy_j(self) -> float | None:
        """Read the energy counters, added up [J]."""
        return _over(sum, (each.energy_j() for each in self._each)) if self._whole else None

    def held_clocks_s(self) -> dict[str, float]:
        """Read for how long each policy has held clocks down, added up over the GPUs [s].

        Of one GPU held for a second the sum grows by one: with N GPUs it bounds the true time from above.
        """
        all_held = [each.held_clocks_s() for each in self._each]
        told = set.intersection(*(set(held) for held in all_held))
        return {policy: sum(held[policy] for held in all_held) for policy in sorted(told)}

    def ecc_uncorrected(self) -> int | None:
        """Read the counts of uncorrected memory errors, added up."""
        return _over(sum, (each.ecc_uncorrected() for each in self._each))

    def close(self) -> None:
        """Let go of every device."""
        self._stack.close()


def _over(combine: Callable[[Iterable[T]], T], values: Iterable[T | None]) -> T | None:
    given = list(values)
    known = [value for value in given if value is not None]
    return combine(known) if len(known) == len(given) else None


def _each_once(reasons: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(reasons)))
