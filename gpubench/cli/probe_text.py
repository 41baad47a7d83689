"""The words of `gpubench probe`: what a device is, beside its datasheet, and what holds it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpubench.models import DeviceProfile, GpuSpec
from gpubench.probe.backend import DeviceState, Host, ProbeReport, Problem
from gpubench.probe.identity import uuid_is_blank
from gpubench.probe.nvml_profile import fp32_flops_per_s
from gpubench.specs import load_specs
from gpubench.units import (
    UNKNOWN,
    format_bytes,
    format_number,
    format_percent,
    format_si,
    plain,
)

_LABEL, _READING = 22, 34
_BELOW_DEFAULT = 0.98
_MEMORY_IN_USE = 0.02


def full(report: ProbeReport) -> Iterator[str]:
    """Every device with its datasheet beside it, the host, the problems, the next step."""
    for device, state in zip(report.devices, report.states, strict=True):
        yield from _gpu(device, state) if device.backend != "cpu" else _cpu(device, report.host)
        yield ""
    yield from _host(report.host)
    yield from _problems(report.problems)
    yield ""
    yield f"Next: {_next_step(report)}"


def brief(report: ProbeReport) -> Iterator[str]:
    """One line a device, the problems, the next step."""
    for device, state in zip(report.devices, report.states, strict=True):
        size = f"{format_bytes(device.memory_bytes)} memory"
        if device.backend == "cpu":
            yield f"CPU    {_name(device)}, {_count(device.core_count)} cores, {size}{_cpu_formats(device)}"
            continue
        bandwidth = format_si(device.memory_bandwidth_bytes_per_s, "B/s")
        yield f"{_gpu_label(device)}  {_name(device)}, {_count(device.sm_count)} SMs, {size} at {bandwidth}"
        yield from (f"       held back: {text}" for text in held_back(device, state))
    yield from _problems(report.problems)
    yield ""
    yield f"Next: {_next_step(report)}      (gpubench probe shows more, gpubench --help every verb)"


def held_back(device: DeviceProfile, state: DeviceState | None) -> list[str]:
    """What keeps this device below what it could do, as far as the driver shows it now."""
    found = []
    limit, default = device.power_limit_w, device.power_limit_default_w
    if limit is not None and default and limit < _BELOW_DEFAULT * default:
        found.append(
            f"power limit {format_number(limit)} W of {format_number(default)} W "
            f"({format_percent(limit / default)}); restore it with nvidia-smi -pl {default:.0f}"
        )
    if device.mig_enabled:
        found.append("MIG mode: this is a slice of the card, not the card")
    if device.virtualization in {"vgpu", "host_vgpu", "host_vsga"}:
        found.append(f"virtual GPU ({device.virtualization}): shared with other machines, time-sliced")
    return found + ([] if state is None else _held_back_now(device, state))


def _held_back_now(device: DeviceProfile, state: DeviceState) -> list[str]:
    found = []
    width, most = state.pcie_width_now, device.pcie_width
    if width is not None and most is not None and width < most:
        found.append(f"PCIe link x{width} of x{most}; reseat the card or check the slot")
    generation, best = state.pcie_generation_now, device.pcie_generation
    if generation is not None and best is not None and generation < best and state.idle is False:
        found.append(f"PCIe generation {generation} of {best} while busy; check the slot and the BIOS")
    if best is not None and state.pcie_generation_card is not None and best < state.pcie_generation_card:
        found.append(
            f"the slot allows PCIe generation {best}, the card generation {state.pcie_generation_card}"
        )
    found += [f"clock held by {plain(reason)}" for reason in state.clock_event_reasons or ()]
    if state.process_count:
        found.append(f"{state.process_count} process(es) of others are on it")
    elif state.utilization:
        found.append(f"{format_percent(state.utilization)} busy although no process is listed")
    elif state.memory_used_bytes is not None and device.memory_bytes:
        share = state.memory_used_bytes / device.memory_bytes
        if share > _MEMORY_IN_USE:
            found.append(f"{format_percent(share)} of its memory is in use")
    if state.compute_mode not in {None, "default"}:
        found.append(f"compute mode {state.compute_mode}")
    return found


def _gpu(device: DeviceProfile, state: DeviceState | None) -> Iterator[str]:
    spec = load_specs().get(device.gpu_key or "")
    key = f"  [{device.gpu_key}]" if device.gpu_key else "  (not in the specification table)"
    yield f"{_gpu_label(device)}  {_name(device)}{key}"
    yield f"  {'':{_LABEL}}{'driver says':{_READING}}datasheet says"
    for label, reading, sheet in _rows(device, spec):
        yield f"  {label:{_LABEL}}{reading:{_READING}}{sheet}".rstrip()
    if device.uuid is not None and uuid_is_blank(device.uuid):
        yield f"  {'UUID':{_LABEL}}all zeros: matched by PCI bus id {device.pci_bus_id}"
    else:
        yield f"  {'UUID':{_LABEL}}{_text(device.uuid)} at PCI {_text(device.pci_bus_id)}"
    if state is not None:
        yield f"  {'now':{_LABEL}}{_now(state)}"
    reasons = held_back(device, state)
    yield f"  {'held back by':{_LABEL}}{reasons[0] if reasons else 'nothing that the driver shows'}"
    yield from (f"  {'':{_LABEL}}{reason}" for reason in reasons[1:])
    for n, (field, reason) in enumerate(sorted(device.unavailable.items())):
        yield f"  {'' if n else 'not told':{_LABEL}}{field}: {plain(reason)}"


def _rows(device: DeviceProfile, spec: GpuSpec | None) -> Iterable[tuple[str, str, str]]:
    capability = ".".join(str(n) for n in device.compute_capability or ())
    pcie = f"generation {_count(device.pcie_generation)} x{_count(device.pcie_width)}"
    generation = (
        None if spec is None or spec.pcie_generation is None else f"generation {spec.pcie_generation}"
    )
    unified = " (the machine's own)" if device.unified_memory else ""
    nvlink = None if spec is None else spec.nvlink_bytes_per_s
    fp16 = None if spec is None else spec.fp16_tensor_flops_per_s
    fp32 = None if spec is None else spec.fp32_flops_per_s

    def sheet(value: float | None, text: str) -> str:
        return "" if spec is None else UNKNOWN if value is None else text

    yield (
        "architecture",
        f"{_text(device.architecture)}, compute capability {capability or UNKNOWN}",
        "" if spec is None else f"{_text(spec.architecture)}, {_text(spec.compute_capability)}",
    )
    yield "multiprocessors", _count(device.sm_count), "" if spec is None else _count(spec.sm_count)
    yield "CUDA cores", _count(device.cuda_core_count), "" if spec is None else _count(spec.cuda_core_count)
    yield (
        "tensor core formats",
        " ".join(device.tensor_core_precisions or ()) or "none",
        sheet(fp16, f"fp16 {_rate(fp16)}"),
    )
    yield (
        "fp32",
        _rate(fp32_flops_per_s(device)),
        sheet(fp32, _rate(fp32)),
    )
    yield (
        "memory",
        format_bytes(device.memory_bytes) + unified,
        "" if spec is None else f"{format_bytes(spec.memory_bytes)} {spec.memory_type or ''}",
    )
    yield (
        "memory bandwidth",
        format_si(device.memory_bandwidth_bytes_per_s, "B/s"),
        "" if spec is None else format_si(spec.memory_bandwidth_bytes_per_s, "B/s"),
    )
    yield "L2 cache", UNKNOWN, "" if spec is None else format_bytes(spec.l2_bytes)
    yield (
        "clock, highest",
        f"SM {format_si(device.sm_clock_max_hz, 'Hz')}, memory {format_si(device.memory_clock_max_hz, 'Hz')}",
        "",
    )
    yield (
        "power limit",
        f"{_watts(device.power_limit_w)} of {_watts(device.power_limit_default_w)}",
        "" if spec is None else _watts(spec.tdp_w),
    )
    yield "PCIe", pcie, generation or ""
    links = UNKNOWN if device.nvlink_count is None else f"{device.nvlink_count} links"
    yield "NVLink", links, sheet(nvlink, format_si(nvlink, "B/s"))
    yield "ECC, MIG", f"{_switch(device.ecc_enabled)}, {_switch(device.mig_enabled)}", ""
    yield "virtualization", _text(device.virtualization), ""
    yield "driver", f"{_text(device.driver_version)}, CUDA {_text(device.cuda_driver_version)}", ""


def _now(state: DeviceState) -> str:
    temperature = UNKNOWN if state.temperature_c is None else f"{state.temperature_c:.0f} °C"
    busy = UNKNOWN if state.utilization is None else f"{state.utilization * 100:.0f} %"
    used = format_bytes(state.memory_used_bytes)
    link = f"PCIe generation {_count(state.pcie_generation_now)} x{_count(state.pcie_width_now)}"
    return f"{temperature}, {_watts(state.power_w)}, {busy} busy, {used} used, {link}"


def _cpu(device: DeviceProfile, host: Host) -> Iterator[str]:
    yield f"CPU    {_name(device)}"
    yield f"  {'cores':{_LABEL}}{_count(device.core_count)} ({_count(host.cpu_thread_count)} threads)"
    yield f"  {'memory':{_LABEL}}{format_bytes(device.memory_bytes)}"
    yield f"  {'instructions':{_LABEL}}{' '.join(host.cpu_instructions) or UNKNOWN}"
    bf16 = "bf16" in (device.tensor_core_precisions or ())
    offered = "fp32 and amp-bf16" if bf16 else "fp32 (no bf16 instructions, so AMP is left out)"
    yield f"  {'measures':{_LABEL}}{offered}"


def _host(host: Host) -> Iterator[str]:
    yield "Host"
    yield f"  {'system':{_LABEL}}{host.os}, Python {host.python}"
    torch = "not installed"
    if host.torch is not None:
        build = f"CUDA {host.torch_cuda}" if host.torch_cuda else "ROCm" if host.torch_hip else "CPU only"
        torch = f"{host.torch} ({build})"
    yield f"  {'torch':{_LABEL}}{torch}"
    if host.nvml_version is not None:
        yield f"  {'driver library':{_LABEL}}{plain(host.nvml_version)} at {_text(host.nvml_library)}"
    if host.container is not None:
        yield f"  {'container':{_LABEL}}{host.container}"
    if host.cuda_visible_devices is not None:
        listed = plain(host.cuda_visible_devices) or "(empty: hides every GPU)"
        yield f"  {'CUDA_VISIBLE_DEVICES':{_LABEL}}{listed}"


def _problems(problems: Iterable[Problem]) -> Iterator[str]:
    for problem in problems:
        seen = "" if problem.value is None else f" ({problem.value})"
        yield f"{'Problem' if problem.exit_code else 'Note'}: {plain(problem.what + seen, limit=600)}"
        yield f"         {plain(problem.mend, limit=600)}"


def _next_step(report: ProbeReport) -> str:
    gpus = [d for d in report.devices if d.backend != "cpu"]
    if any(p.exit_code for p in report.problems):
        return "gpubench doctor"
    return "gpubench run" if gpus else "gpubench run --quick"


def _gpu_label(device: DeviceProfile) -> str:
    return f"GPU {'?' if device.index is None else device.index}"


def _cpu_formats(device: DeviceProfile) -> str:
    return ", bf16" if "bf16" in (device.tensor_core_precisions or ()) else ""


def _name(device: DeviceProfile) -> str:
    return plain(device.name or "unknown device")


def _text(value: str | None) -> str:
    return UNKNOWN if value is None else plain(value)


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _watts(value: float | None) -> str:
    return UNKNOWN if value is None else f"{format_number(value)} W"


def _rate(value: float | None) -> str:
    return format_si(value, "FLOP/s")


def _switch(value: bool | None) -> str:
    return UNKNOWN if value is None else "on" if value else "off"
