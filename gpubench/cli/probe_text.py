"""The words of `gpubench probe`: what a device is, beside its datasheet, and what holds it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gpubench.models import DeviceProfile, GpuSpec
from gpubench.probe.backend import DeviceState, Host, ProbeReport, Problem
from gpubench.probe.held_back import held_back
from gpubench.probe.identity import uuid_is_blank
from gpubench.probe.nvml_profile import fp32_flops_per_s
from gpubench.specs import load_specs
from gpubench.units import UNKNOWN, count, format_bytes, format_number, format_si, plain

_LABEL, _READING = 23, 34
_NVIDIA_ONLY = ("CUDA cores", "fp32 at highest clock", "NVLink", "ECC, MIG", "virtualization")
Seen = tuple[DeviceProfile, DeviceState | None]


def full(report: ProbeReport) -> Iterator[str]:
    """Every device with its datasheet beside it, the host, the problems, the next step."""
    seen = list(zip(report.devices, report.states, strict=True))
    for alike in _alike([s for s in seen if s[0].backend != "cpu"]):
        yield from _gpus(alike)
        yield ""
    for device, _ in seen:
        if device.backend == "cpu":
            yield from _cpu(device, report.host)
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
            bf16 = ", bf16" if "bf16" in (device.tensor_core_precisions or ()) else ""
            yield f"CPU    {_name(device)}, {_count(device.core_count)} cores, {size}{bf16}"
            continue
        bandwidth = device.memory_bandwidth_bytes_per_s
        at = "" if bandwidth is None else f" at {format_si(bandwidth, 'B/s')}"
        yield f"GPU {device.index}  {_name(device)}, {_count(device.sm_count)} SMs, {size}{at}"
        yield from (f"       held back: {text}" for text in held_back(device, state))
    yield from _problems(report.problems)
    yield ""
    yield f"Next: {_next_step(report)}      (gpubench probe shows more, gpubench --help every verb)"


def _alike(gpus: Sequence[Seen]) -> list[list[Seen]]:
    """GPUs of one model together: they differ in place and state only."""
    groups: dict[bytes, list[Seen]] = {}
    for device, state in gpus:
        same = msgspec.structs.replace(
            device, index=None, uuid=None, pci_bus_id=None, power_limit_w=None, pcie_width=None
        )
        groups.setdefault(msgspec.json.encode(same), []).append((device, state))
    return list(groups.values())


def _gpus(alike: Sequence[Seen]) -> Iterator[str]:
    device = alike[0][0]
    spec = load_specs().get(device.gpu_key or "")
    count = "" if len(alike) == 1 else f"{len(alike)} x "
    places = ", ".join(str(d.index) for d, _ in alike)
    yield f"GPU {places}  {count}{_name(device)}" + (f"  [{device.gpu_key}]" if spec else "")
    sheet = "not in the specification table" if spec is None else "datasheet says"
    yield f"  {'':{_LABEL}}{'driver says':{_READING}}{sheet}"
    for label, reading, datasheet in _rows(device, spec):
        yield f"  {label:{_LABEL}}{reading:{_READING}}{datasheet}".rstrip()
    reasons: dict[str, list[str]] = {}
    for name, reason in sorted(device.unavailable.items()):
        reasons.setdefault(plain(reason.rpartition(": ")[2]), []).append(name)
    for n, (reason, names) in enumerate(reasons.items()):
        yield f"  {'' if n else 'not told':{_LABEL}}{', '.join(names)} ({reason})"
    for one, state in alike:
        yield from _one_gpu(one, state, several=len(alike) > 1)


def _one_gpu(device: DeviceProfile, state: DeviceState | None, *, several: bool) -> Iterator[str]:
    if several:
        yield f"  - GPU {device.index}"
    if device.uuid is not None and uuid_is_blank(device.uuid):
        yield f"  {'UUID':{_LABEL}}all zeros: matched by PCI bus id {_text(device.pci_bus_id)}"
    else:
        yield f"  {'UUID':{_LABEL}}{_text(device.uuid)} at PCI {_text(device.pci_bus_id)}"
    if state is not None:
        yield f"  {'now':{_LABEL}}{_now(state)}"
    reasons = held_back(device, state) or ["nothing that the driver shows"]
    for n, reason in enumerate(reasons):
        yield f"  {'' if n else 'held back by':{_LABEL}}{reason}"


def _rows(device: DeviceProfile, spec: GpuSpec | None) -> Iterable[tuple[str, str, str]]:
    number = ".".join(str(n) for n in device.compute_capability or ())
    capability = f", capability {number}" if number else ""
    formats = device.tensor_core_precisions
    cuda = f", CUDA {_text(device.cuda_driver_version)}" if device.backend == "cuda" else ""
    unified = " (the machine's own)" if device.unified_memory else ""
    clocks = f"SM {_hertz(device.sm_clock_max_hz)}, memory {_hertz(device.memory_clock_max_hz)}"
    readings = {
        "architecture": _text(device.architecture) + capability,
        "multiprocessors": _count(device.sm_count),
        "CUDA cores": _count(device.cuda_core_count),
        "tensor core formats": UNKNOWN if formats is None else " ".join(formats or ("none",)),
        "fp32 at highest clock": _rate(fp32_flops_per_s(device)),
        "memory": format_bytes(device.memory_bytes) + unified,
        "memory bandwidth": format_si(device.memory_bandwidth_bytes_per_s, "B/s"),
        "L2 cache": UNKNOWN,
        "highest clocks": clocks,
        "power limit": _watts(device.power_limit_default_w),
        "PCIe": _link(device.pcie_generation, device.pcie_width),
        "NVLink": UNKNOWN if device.nvlink_count is None else f"{device.nvlink_count} links",
        "ECC, MIG": f"{_switch(device.ecc_enabled)}, {_switch(device.mig_enabled)}",
        "virtualization": _text(device.virtualization),
        "driver": _text(device.driver_version) + cuda,
    }
    sheet = {} if spec is None else _datasheet(spec)
    skipped = () if device.backend == "cuda" else _NVIDIA_ONLY
    return [
        (label, reading, sheet.get(label, "")) for label, reading in readings.items() if label not in skipped
    ]


def _datasheet(spec: GpuSpec) -> dict[str, str]:
    fp16, generation = spec.fp16_tensor_flops_per_s, spec.pcie_generation
    return {
        "architecture": f"{_text(spec.architecture)}, {_text(spec.compute_capability)}",
        "multiprocessors": _count(spec.sm_count),
        "CUDA cores": _count(spec.cuda_core_count),
        "tensor core formats": UNKNOWN if fp16 is None else f"fp16 {_rate(fp16)}",
        "fp32 at highest clock": _rate(spec.fp32_flops_per_s),
        "memory": f"{format_bytes(spec.memory_bytes)} {spec.memory_type or ''}",
        "memory bandwidth": format_si(spec.memory_bandwidth_bytes_per_s, "B/s"),
        "L2 cache": format_bytes(spec.l2_bytes),
        "power limit": _watts(spec.tdp_w),
        "PCIe": UNKNOWN if generation is None else f"generation {generation}",
        "NVLink": format_si(spec.nvlink_bytes_per_s, "B/s"),
    }


def _now(state: DeviceState) -> str:
    parts = [
        None if state.temperature_c is None else f"{state.temperature_c:.0f} °C",
        None if state.power_w is None else _watts(state.power_w),
        None if state.utilization is None else f"{state.utilization * 100:.0f} % busy",
        None if state.memory_used_bytes is None else f"{format_bytes(state.memory_used_bytes)} used",
    ]
    link = _link(state.pcie_generation_now, state.pcie_width_now)
    known = [part for part in parts if part is not None] + ([] if link == UNKNOWN else [f"PCIe {link}"])
    return ", ".join(known) or "not told"


def _cpu(device: DeviceProfile, host: Host) -> Iterator[str]:
    yield f"CPU    {_name(device)}"
    yield f"  {'cores':{_LABEL}}{_count(device.core_count)} ({_threads(host.cpu_thread_count)})"
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
    if any(p.exit_code for p in report.problems):
        return "gpubench doctor"
    return "gpubench run" if any(d.backend != "cpu" for d in report.devices) else "gpubench run --quick"


def _name(device: DeviceProfile) -> str:
    return plain(device.name or "unknown device")


def _text(value: str | None) -> str:
    return UNKNOWN if value is None else plain(value)


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _threads(value: int | None) -> str:
    return f"{UNKNOWN} threads" if value is None else count(value, "thread")


def _watts(value: float | None) -> str:
    return UNKNOWN if value is None else f"{format_number(value)} W"


def _hertz(value: float | None) -> str:
    return format_si(value, "Hz")


def _rate(value: float | None) -> str:
    return format_si(value, "FLOP/s")


def _link(generation: int | None, width: int | None) -> str:
    return UNKNOWN if generation is None or width is None else f"generation {generation} x{width}"


def _switch(value: bool | None) -> str:
    return UNKNOWN if value is None else "on" if value else "off"
