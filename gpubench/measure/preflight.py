"""Before any time is spent, and after: is the device free, at its own power limit, and still there?"""

from __future__ import annotations

import time
from collections.abc import Callable

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile, Finding, FindingKind, StartState
from gpubench.probe.backend import DeviceGoneError
from gpubench.probe.health import BUSY_LIMIT, look_twice
from gpubench.probe.health import preflight as check_free
from gpubench.probe.host import on_battery
from gpubench.probe.torch_view import explain, first_words
from gpubench.units import Seconds


def preflight(
    device: DeviceProfile, *, allow_shared: bool, sleep: Callable[[Seconds], None] = time.sleep
) -> tuple[Finding, ...]:
    """Return what is unusual about the device; refuse one that is in use.

    Raises:
        NoDeviceError: If something else computes on the device and ``allow_shared`` is not set.
    """
    battery = (Finding(kind=FindingKind.ON_BATTERY),) if on_battery() else ()
    if device.is_cpu:
        return battery
    from gpubench.probe.probe import open_telemetry

    with open_telemetry(device) as readings:
        return battery + check_free(device, readings, allow_shared=allow_shared, wait=sleep)


def newcomers(device: DeviceProfile, *, sleep: Callable[[Seconds], None] = time.sleep) -> tuple[Finding, ...]:
    """Look once more when the measuring processes are gone: whoever is on the device now came meanwhile.

    On a device that is gone itself nobody is; the rows say what became of it.
    """
    if device.is_cpu:
        return ()
    from gpubench.probe.probe import open_telemetry

    try:
        with open_telemetry(device) as readings:
            sharing = look_twice(device, readings, wait=sleep)
    except NoDeviceError:
        return ()
    return () if sharing is None else (sharing.finding(),)


def start_state(device: DeviceProfile) -> StartState | None:
    """Return the device as it is before the run; None for a CPU, or where its driver does not tell.

    Power counts as idle power only where nothing else is on the device: its average is over a second.
    """
    from gpubench.probe.probe import load_backends

    backend = None if device.is_cpu else load_backends().found.get(device.backend)
    if backend is None:
        return None
    report = backend.devices()
    places = [(found.index, found.uuid) for found in report.devices]
    wanted = (device.index, device.uuid)
    state = report.states[places.index(wanted)] if wanted in places else None
    if state is None:
        return None
    idle = state.utilization is not None and state.utilization <= BUSY_LIMIT and not state.process_count
    return StartState(
        temperature_c=state.temperature_c,
        idle_power_w=state.power_w if idle else None,
        persistence_mode=state.persistence_mode,
        pcie_generation=state.pcie_generation_now,
        pcie_width=state.pcie_width_now,
    )


def fault_of(device: DeviceProfile) -> str | None:
    """Ask the driver, after a process has died on the device, whether the device itself is gone.

    Returns:
        ``gpu_lost``, ``reset_required``, ``driver_hung``, ``driver_closed``; None for a device that is whole.
    """
    if device.is_cpu:
        return None
    from gpubench.probe.probe import open_telemetry

    try:
        with open_telemetry(device) as readings:
            return readings.fault  # readings that hang are no fault: a run goes on without telemetry
    except NoDeviceError as error:
        return error.fault if isinstance(error, DeviceGoneError) else "gpu_lost"


def why_refused(error: NoDeviceError, device: DeviceProfile | None = None) -> str:
    """Say why a device could not be opened: as its driver has it, else what torch's words mean, else those.

    Args:
        error: What the measuring process gave as its reason, or a refusal of gpubench's own, which stays.
        device: As probed; None where none was chosen yet.
    """
    fault = None if device is None else fault_of(device)
    if fault is not None:
        return describe_fault(fault)
    known = explain(str(error), device)
    return first_words(str(error)) if known is None else known.line()


def describe_fault(fault: str) -> str:
    """Say what the driver reports of a device that has failed, and what to do.

    >>> describe_fault("reset_required")
    'reset_required: the GPU needs a reset; end its processes and run nvidia-smi -r, else reboot'
    """
    texts = {
        "gpu_lost": "the GPU fell off the bus; reboot, and check its power supply and seating",
        "reset_required": "the GPU needs a reset; end its processes and run nvidia-smi -r, else reboot",
        "driver_hung": "the driver has stopped answering; look for Xid lines in the kernel log, and reboot",
        "driver_closed": "the driver can no longer be opened; see gpubench doctor",
    }
    return f"{fault}: {texts.get(fault, 'the driver has given the GPU up; reboot')}"
