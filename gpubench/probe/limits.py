"""What keeps a device below what it could do, as far as its driver shows it now."""

from __future__ import annotations

from gpubench.models import DeviceProfile
from gpubench.probe.backend import DeviceState
from gpubench.probe.preflight import BUSY_LIMIT, MEMORY_LIMIT, POWER_CAP_LIMIT
from gpubench.units import format_number, format_percent, plain

_NARROW_LINK = 4


def limits(device: DeviceProfile, state: DeviceState | None) -> list[str]:
    """One line for each thing in the way, with what to do where something can be done."""
    found = []
    limit, default = device.power_limit_w, device.power_limit_default_w
    if limit is not None and default and limit < POWER_CAP_LIMIT * default:
        found.append(
            f"power limit {format_number(limit)} W of {format_number(default)} W "
            f"({format_percent(limit / default)}); {_restore_power(device, default)}"
        )
    if device.mig_enabled:
        found.append("MIG mode: this is a slice of the card, not the card")
    if device.virtualization in {"vgpu", "host_vgpu", "host_vsga"}:
        found.append(f"virtual GPU ({device.virtualization}): the card is shared with other machines")
    if state is None:
        return found
    clocks = (f"clock held by {plain(reason)}" for reason in state.clock_event_reasons or ())
    return [*found, *_link(device, state), *clocks, *_others(device, state)]


def _restore_power(device: DeviceProfile, default_w: float) -> str:
    if device.backend != "cuda":
        return "restore the default with the driver's own tool"
    return f"restore it: nvidia-smi -i {device.index} -pl {default_w:.0f}"


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
        many = state.process_count
        who = "1 process is" if many == 1 else f"{many} processes are"
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
