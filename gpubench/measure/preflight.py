"""Before any time is spent, and after: is the device free, and does it run at its own power limit?"""

from __future__ import annotations

import time
from collections.abc import Callable

from gpubench.measure.capability import is_cpu
from gpubench.models import DeviceProfile, Finding
from gpubench.probe.preflight import look_twice
from gpubench.probe.preflight import preflight as check_free
from gpubench.units import Seconds


def preflight(
    device: DeviceProfile, *, allow_shared: bool, sleep: Callable[[Seconds], None] = time.sleep
) -> tuple[Finding, ...]:
    """Return what is unusual about the device; refuse one that is in use.

    Raises:
        NoDeviceError: If something else computes on the device and ``allow_shared`` is not set.
    """
    if is_cpu(device):
        return ()
    from gpubench.probe.telemetry import open_telemetry

    with open_telemetry(device) as readings:
        return check_free(device, readings, allow_shared=allow_shared, wait=sleep)


def newcomers(device: DeviceProfile, *, sleep: Callable[[Seconds], None] = time.sleep) -> tuple[Finding, ...]:
    """Look once more when the measuring processes are gone: whoever is on the device now came meanwhile."""
    if is_cpu(device):
        return ()
    from gpubench.probe.telemetry import open_telemetry

    with open_telemetry(device) as readings:
        sharing = look_twice(device, readings, wait=sleep)
    return () if sharing is None else (sharing.finding(),)
