"""Telemetry of any device, from whichever backend listed it."""

from __future__ import annotations

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe.backend import Readings
from gpubench.probe.backends import load_backends


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
