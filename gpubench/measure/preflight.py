"""Before any time is spent: is the device free, and does it run at its own power limit?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpubench.errors import NoDeviceError
from gpubench.measure.capability import is_cpu
from gpubench.models import DeviceProfile, Finding, FindingKind
from gpubench.units import Seconds, format_percent

BUSY_UTILISATION = 0.05
BUSY_MEMORY = 0.02
LOOK_AGAIN_S = 1.0
"""Utilisation is an average over about a second and lags a load that has just ended: look twice."""
POWER_CAP = 0.98


def preflight(
    device: DeviceProfile, *, allow_shared: bool, sleep: Callable[[Seconds], None] = time.sleep
) -> tuple[Finding, ...]:
    """Return what is unusual about the device; refuse one that is in use.

    Process lists are blind in containers (an H200 showed 41 % utilisation with none listed), hence
    utilisation and memory too. Memory alone, a desktop's display, is a finding and no refusal.

    Raises:
        NoDeviceError: If something else computes on the device and ``allow_shared`` is not set.
    """
    if is_cpu(device):
        return ()
    from gpubench.probe.telemetry import open_telemetry

    with open_telemetry(device) as readings:
        findings = [*power_cap(readings)]
        shared = sharing(readings, device, sleep)
    if shared is not None:
        if "memory" not in str(shared.value) and not allow_shared:
            raise NoDeviceError(
                f"the GPU is in use ({shared.value}): end the other work, or pass --allow-shared, which "
                "marks the figures"
            )
        findings.append(shared)
    return tuple(findings)


def newcomers(device: DeviceProfile, *, sleep: Callable[[Seconds], None] = time.sleep) -> tuple[Finding, ...]:
    """Look once more when the measuring processes are gone: whoever is on the device now came meanwhile."""
    if is_cpu(device):
        return ()
    from gpubench.probe.telemetry import open_telemetry

    with open_telemetry(device) as readings:
        shared = sharing(readings, device, sleep)
    return () if shared is None else (shared,)


def sharing(readings: Any, device: DeviceProfile, sleep: Callable[[Seconds], None]) -> Finding | None:
    """Look for others on the device: compute processes, utilisation seen twice, memory."""
    others = [p.pid for p in readings.processes() or () if p.compute]
    if others:
        pids = ", ".join(map(str, others[:5]))
        return Finding(kind=FindingKind.SHARED_GPU, value=f"process {pids}")
    seen: float | None = None
    for _ in range(2):
        sleep(LOOK_AGAIN_S)
        seen = readings.sample().utilization
        if seen is None or seen <= BUSY_UTILISATION:
            break
    else:
        return Finding(
            kind=FindingKind.SHARED_GPU,
            value=f"utilisation {format_percent(seen)}",
            limit=f"{format_percent(BUSY_UTILISATION)}",
        )
    used = readings.sample().memory_used_bytes
    if used is not None and device.memory_bytes and used > BUSY_MEMORY * device.memory_bytes:
        return Finding(
            kind=FindingKind.SHARED_GPU,
            value=f"memory {format_percent(used / device.memory_bytes)}",
            limit=format_percent(BUSY_MEMORY),
        )
    return None


def power_cap(readings: Any) -> tuple[Finding, ...]:
    """Flag a power limit below the card's default: one machine lost 40 % to a cap set at boot."""
    limits = readings.power_limits()
    if limits.enforced_w is None or not limits.default_w:
        return ()
    share = limits.enforced_w / limits.default_w
    if share >= POWER_CAP:
        return ()
    return (Finding(kind=FindingKind.POWER_CAPPED, value=share, limit=POWER_CAP),)
