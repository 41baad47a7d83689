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
from gpubench.probe.backend import DeviceState, Readings
from gpubench.units import Seconds, count, format_number, format_percent, plain

BUSY_LIMIT = 0.05
"""Utilization of an idle GPU is 0 to 1 %; a desktop that draws stays below this."""
MEMORY_LIMIT = 0.02
"""Used memory without the driver's reserve, as a share of the whole."""
POWER_CAP_LIMIT = 0.98
"""Enforced over default power limit; below it the card is slower than its name says."""
SECOND_LOOK_AFTER_S = 1.0
_NARROW_LINK = 4
"""Lanes of a PCIe link over which copies are slow."""


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
    mode = readings.compute_mode()
    if mode not in {None, "default"}:
        foreign = ", ".join(map(str, _foreign(readings)))
        refusal = kept_out(device, mode, f"PIDs {foreign}" if foreign else None)
        if refusal is not None:
            raise NoDeviceError(refusal)
    sharing = look_twice(device, readings, wait=wait)
    if sharing is not None and sharing.refuse and not allow_shared:
        who = f" (PIDs {', '.join(map(str, sharing.pids))})" if sharing.pids else ""
        raise NoDeviceError(
            f"{_label(device)} is in use by others: {sharing.seen}{who}; end them or choose another GPU with "
            "--device; `gpubench run` also takes --allow shared, which marks every figure"
        )
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
    share = _capped_share(limits.enforced_w, limits.default_w)
    if share is None:
        return None
    return Finding(kind=FindingKind.POWER_CAPPED, value=round(share, 3), limit=POWER_CAP_LIMIT)


def _capped_share(enforced_w: float | None, default_w: float | None) -> float | None:
    """The share of its default power limit that a card is held to; None where it is whole or not known."""
    if enforced_w is None or not default_w or enforced_w >= POWER_CAP_LIMIT * default_w:
        return None
    return enforced_w / default_w


def _foreign(readings: Readings) -> list[int]:
    """Numbers of the other processes that compute on a device, as far as its driver lists them."""
    return [p.pid for p in readings.processes() or () if p.compute and p.pid != os.getpid()]


def _look(device: DeviceProfile, readings: Readings) -> Sharing | None:
    if foreign := _foreign(readings):
        return Sharing(
            seen=count(len(foreign), "other process"),
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


def _label(device: DeviceProfile) -> str:
    return f"GPU {device.index} ({plain(device.name or 'unknown')})"


def limits(device: DeviceProfile, state: DeviceState | None) -> list[str]:
    """What keeps a device below what it could do now: a line each, with what to do where that helps."""
    found = []
    limit, default = device.power_limit_w, device.power_limit_default_w
    if limit is not None and default and (share := _capped_share(limit, default)) is not None:
        restore = "restore the default with the driver's own tool"
        if device.is_nvidia:
            restore = f"restore it: nvidia-smi -i {device.index} -pl {default:.0f}"
        found.append(
            f"power limit {format_number(limit)} W of {format_number(default)} W "
            f"({format_percent(share)}); {restore}"
        )
    if device.mig_enabled:
        found.append("MIG mode: this is a slice of the card, not the card")
    if device.virtualization in {"vgpu", "host_vgpu", "host_vsga"}:
        found.append(f"virtual GPU ({device.virtualization}): the card is shared with other machines")
    if state is None:
        return found
    clocks = (f"clock held by {plain(reason)}" for reason in state.clock_event_reasons or ())
    return [*found, *_link(device, state), *clocks, *_others(device, state)]


def _link(device: DeviceProfile, state: DeviceState) -> list[str]:
    found = []
    width, most = state.pcie_width_now, device.pcie_width
    if width is not None and most is not None and width < most:
        found.append(f"PCIe link x{width} of x{most}; check seating and slot (some laptops are wired so)")
    elif most is not None and most <= _NARROW_LINK:
        found.append(f"PCIe link of x{most}: copies to and from the host are slow; use a wider slot")
    generation, best = state.pcie_generation_now, device.pcie_generation
    if generation is not None and best is not None and generation < best and state.idle is False:
        found.append(f"PCIe generation {generation} of {best} while busy; check the slot and the BIOS")
    if best is not None and state.pcie_generation_card is not None and best < state.pcie_generation_card:
        found.append(
            f"the slot allows PCIe generation {best}, the card generation {state.pcie_generation_card}"
        )
    return found


def _others(device: DeviceProfile, state: DeviceState) -> list[str]:
    found = []
    if state.process_count:
        who = f"{count(state.process_count, 'process')} {'is' if state.process_count == 1 else 'are'}"
        found.append(f"{who} on it; end what need not run, or choose another GPU")
    elif state.utilization is not None and state.utilization > BUSY_LIMIT:
        found.append(f"{format_percent(state.utilization)} busy although no process is listed")
    elif state.memory_in_use_bytes is not None and device.memory_bytes:
        share = state.memory_in_use_bytes / device.memory_bytes
        if share > MEMORY_LIMIT and not device.unified_memory:
            found.append(f"{format_percent(share)} of its memory is in use")
    if state.compute_mode not in {None, "default"}:
        found.append(f"compute mode {state.compute_mode}; set it back with nvidia-smi -c DEFAULT")
    return found
