"""What to check on a device before (and after) it is measured: who else uses it, and what limits it.

Process lists are blind in most containers, and utilization lags a load that has just ended. So use by
others is judged by the list, by utilization and by memory together, and seen twice before a run is refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile, Finding, FindingKind
from gpubench.probe.backend import Readings
from gpubench.units import Seconds, format_percent, plain

BUSY_LIMIT = 0.05
"""Utilization of an idle GPU is 0 to 1 %; a desktop that draws stays below this."""
MEMORY_LIMIT = 0.02
"""Used memory without the driver's reserve, as a share of the whole."""
POWER_CAP_LIMIT = 0.98
"""Enforced over default power limit; below it the card is slower than its name says."""
SECOND_LOOK_AFTER_S = 1.0


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a device by others, seen twice. ``refuse``: it disturbs; else it only holds memory."""

    seen: str
    limit: float | None
    refuse: bool
    pids: tuple[int, ...] = ()

    def finding(self) -> Finding:
        """The same as it is stored; process numbers are of no use to anybody else."""
        return Finding(kind=FindingKind.SHARED_GPU, value=self.seen, limit=self.limit)


def preflight(
    device: DeviceProfile,
    readings: Readings,
    *,
    allow_shared: bool = False,
    wait: Callable[[Seconds], None] = time.sleep,
) -> tuple[Finding, ...]:
    """Check that a device is free and whole, in at most a second.

    Args:
        device: As probed.
        readings: Open on this device.
        allow_shared: Note use by others instead of refusing.
        wait: Sleeps between two looks; a test's clock in tests.

    Returns:
        ``SHARED_GPU`` and ``POWER_CAPPED`` where they apply.

    Raises:
        NoDeviceError: If the compute mode keeps this run out, or if others use the device unallowed.
    """
    _check_compute_mode(device, readings)
    sharing = look_twice(device, readings, wait=wait)
    if sharing is not None and sharing.refuse and not allow_shared:
        raise NoDeviceError(_refusal(device, sharing))
    findings = [] if sharing is None else [sharing.finding()]
    capped = power_capped(readings)
    return (*findings, *(() if capped is None else (capped,)))


def look_twice(
    device: DeviceProfile, readings: Readings, *, wait: Callable[[Seconds], None] = time.sleep
) -> Sharing | None:
    """Return who else uses the device, if two looks a second apart agree that somebody does."""
    first = _look(device, readings)
    if first is None or not first.refuse:
        return first
    wait(SECOND_LOOK_AFTER_S)
    second = _look(device, readings)
    return second if second is None or second.refuse else None


def power_capped(readings: Readings) -> Finding | None:
    """``POWER_CAPPED`` with the enforced share of the default power limit, where it is below the limit."""
    limits = readings.power_limits()
    enforced, default = limits.enforced_w, limits.default_w
    if enforced is None or not default or enforced >= POWER_CAP_LIMIT * default:
        return None
    return Finding(kind=FindingKind.POWER_CAPPED, value=round(enforced / default, 3), limit=POWER_CAP_LIMIT)


def _foreign(readings: Readings) -> list[int]:
    """Numbers of the other processes that compute on a device, as far as its driver lists them."""
    return [p.pid for p in readings.processes() or () if p.compute and p.pid != os.getpid()]


def _look(device: DeviceProfile, readings: Readings) -> Sharing | None:
    if foreign := _foreign(readings):
        return Sharing(
            seen="1 other process" if len(foreign) == 1 else f"{len(foreign)} other processes",
            limit=None,
            refuse=True,
            pids=tuple(foreign),
        )
    now = readings.sample()
    if now.utilization is not None and now.utilization > BUSY_LIMIT:
        seen = f"{format_percent(now.utilization)} busy, no process listed"
        return Sharing(seen=seen, limit=BUSY_LIMIT, refuse=True)
    used, total = readings.memory_in_use_bytes(), device.memory_bytes
    if used is not None and total and not device.unified_memory and used / total > MEMORY_LIMIT:
        return Sharing(
            seen=f"{format_percent(used / total)} of memory in use", limit=MEMORY_LIMIT, refuse=False
        )
    return None


def kept_out(device: DeviceProfile, mode: str | None, taken_by: str | None) -> str | None:
    """Why its compute mode keeps a run from a device; None where it does not.

    Args:
        device: As probed.
        mode: Its compute mode, where it tells.
        taken_by: Who else computes on it.
    """
    back = f"set the mode back with nvidia-smi -i {device.index} -c DEFAULT"
    if mode == "prohibited":
        return f"{_label(device)} is in compute mode {mode}: no program may use it; {back}"
    if mode in {"exclusive_process", "exclusive_thread"} and taken_by is not None:
        return (
            f"{_label(device)} is in compute mode {mode} and taken ({taken_by}); end that process or {back}"
        )
    return None


def _check_compute_mode(device: DeviceProfile, readings: Readings) -> None:
    mode = readings.compute_mode()
    if mode in {None, "default"}:
        return
    foreign = ", ".join(map(str, _foreign(readings)))
    refusal = kept_out(device, mode, f"PIDs {foreign}" if foreign else None)
    if refusal is not None:
        raise NoDeviceError(refusal)


def _refusal(device: DeviceProfile, sharing: Sharing) -> str:
    who = f" (PIDs {', '.join(map(str, sharing.pids))})" if sharing.pids else ""
    return (
        f"{_label(device)} is in use by others: {sharing.seen}{who}; end them or choose another GPU with "
        "--device; `gpubench run` also takes --allow-shared, which marks every figure"
    )


def _label(device: DeviceProfile) -> str:
    return f"GPU {device.index} ({plain(device.name or 'unknown')})"
