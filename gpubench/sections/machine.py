"""What is in this machine: each device beside its data sheet, what holds it back, and the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Fact, Facts, Paragraph, Part
from gpubench.models import DeviceProfile
from gpubench.probe.backend import DeviceState, Host, ProbeReport
from gpubench.probe.identity import uuid_is_blank
from gpubench.probe.nvml_profile import fp32_flops_per_s
from gpubench.probe.preflight import limits
from gpubench.sections.device import driver_and_data_sheet
from gpubench.specs import load_specs
from gpubench.units import (
    UNKNOWN,
    count,
    format_bytes,
    format_number,
    format_percent,
    format_si,
    format_whole,
    plain,
)

_Seen = tuple[DeviceProfile, DeviceState | None]


def machine(report: ProbeReport) -> Block:
    """Return every device, the host, the problems and the next step; in brief one line a device."""
    seen = list(zip(report.devices, report.states, strict=True))
    cpus = [device for device, _ in seen if device.is_cpu]
    step = "gpubench run" if len(cpus) < len(seen) else "gpubench run --quick"
    if any(problem.exit_code for problem in report.problems):
        step = "gpubench doctor"
    problems = [
        Paragraph(text=f"{'Problem' if p.exit_code else 'Note'}: {plain(p.line(), 1200)}", tone="warning")
        for p in report.problems
    ]
    return Block(
        title="What is in this machine",
        parts=(
            *(part for alike in _alike([s for s in seen if not s[0].is_cpu]) for part in _gpus(alike)),
            *(part for device in cpus for part in _cpu(device, report.host)),
            *_host(report.host),
            *problems,
            Paragraph(text=f"Next: {step}"),
        ),
        brief=(
            *(line for each in seen for line in _lines(*each)),
            *problems,
            Paragraph(text=f"Next: {step}      (gpubench probe shows more, gpubench --help every verb)"),
        ),
    )


def _lines(device: DeviceProfile, state: DeviceState | None) -> list[Paragraph]:
    """A device in a line, and one for each thing that limits it."""
    size = f"{format_bytes(device.memory_bytes)} memory"
    if device.is_cpu:
        bf16 = ", bf16" if "bf16" in (device.tensor_core_precisions or ()) else ""
        return [
            Paragraph(text=f"CPU    {_name(device)}, {format_whole(device.core_count)} cores, {size}{bf16}"),
        ]
    bandwidth = device.memory_bandwidth_bytes_per_s
    at = "" if bandwidth is None else f" at {format_si(bandwidth, 'B/s')}"
    line = f"GPU {device.index}  {_name(device)}, {format_whole(device.sm_count)} SMs, {size}{at}"
    return [
        Paragraph(text=text) for text in (line, *(f"       limited by: {x}" for x in limits(device, state)))
    ]


def _alike(gpus: Sequence[_Seen]) -> list[list[_Seen]]:
    """GPUs of one model together: they differ in place and state only."""
    groups: dict[bytes, list[_Seen]] = {}
    for device, state in gpus:
        same = msgspec.structs.replace(
            device, index=None, uuid=None, pci_bus_id=None, power_limit_w=None, pcie_width=None
        )
        groups.setdefault(msgspec.json.encode(same), []).append((device, state))
    return list(groups.values())


def _gpus(alike: Sequence[_Seen]) -> list[Part]:
    device = alike[0][0]
    spec = load_specs().get(device.gpu_key or "")
    places = ", ".join(str(d.index) for d, _ in alike)
    several = "" if len(alike) == 1 else f"{len(alike)} x "
    known = f"  [{device.gpu_key}]" if spec else ", not in the specification table"
    return [
        Paragraph(text=f"GPU {places}  {several}{_name(device)}{known}", tone="headline"),
        *driver_and_data_sheet(device, spec, ""),
        *(Facts(rows=_here(one, state, several=bool(several))) for one, state in alike),
    ]


def _here(device: DeviceProfile, state: DeviceState | None, *, several: bool) -> tuple[Fact, ...]:
    """Where one GPU sits, what it does now, and what limits it."""
    place = f"{device.uuid or UNKNOWN} at PCI {device.pci_bus_id or UNKNOWN}"
    if device.uuid is not None and uuid_is_blank(device.uuid):
        place = f"all zeros: matched by PCI bus id {device.pci_bus_id or UNKNOWN}"
    reasons = limits(device, state) or ["nothing that the driver reports"]
    peak = fp32_flops_per_s(device)
    return (
        *((Fact(term="GPU", value=str(device.index)),) if several else ()),
        Fact(term="UUID", value=plain(place)),
        *((Fact(term="fp32 at highest clock", value=format_si(peak, "FLOP/s")),) if peak else ()),
        *(() if state is None else (Fact(term="now", value=_now(state)),)),
        *(Fact(term="" if n else "limited by", value=reason) for n, reason in enumerate(reasons)),
    )


def _now(state: DeviceState) -> str:
    link = f"PCIe generation {state.pcie_generation_now} x{state.pcie_width_now}"
    known = (
        "" if state.temperature_c is None else f"{state.temperature_c:.0f} °C",
        "" if state.power_w is None else f"{format_number(state.power_w)} W",
        "" if state.utilization is None else f"{format_percent(state.utilization)} busy",
        "" if state.memory_used_bytes is None else f"{format_bytes(state.memory_used_bytes)} used",
        link if state.pcie_generation_now and state.pcie_width_now else "",
    )
    return ", ".join(part for part in known if part) or "not told"


def _cpu(device: DeviceProfile, host: Host) -> list[Part]:
    bf16 = "bf16" in (device.tensor_core_precisions or ())
    threads = UNKNOWN if host.cpu_thread_count is None else count(host.cpu_thread_count, "thread")
    facts = {
        "cores": f"{format_whole(device.core_count)} ({threads})",
        "memory": format_bytes(device.memory_bytes),
        "instructions": " ".join(host.cpu_instructions) or UNKNOWN,
        "measures": "fp32 and amp-bf16" if bf16 else "fp32 (no bf16 instructions, so AMP is left out)",
    }
    return [Paragraph(text=f"CPU    {_name(device)}", tone="headline"), _facts(facts)]


def _host(host: Host) -> list[Part]:
    build = f"CUDA {host.torch_cuda}" if host.torch_cuda else "ROCm" if host.torch_hip else "CPU only"
    visible = host.cuda_visible_devices
    facts = {
        "system": f"{host.os}, Python {host.python}",
        "torch": "not installed" if host.torch is None else f"{host.torch} ({build})",
        "driver library": host.nvml_version and f"{host.nvml_version} at {host.nvml_library or UNKNOWN}",
        "container": host.container,
        "CUDA_VISIBLE_DEVICES": visible if visible is None else visible or "(empty: hides every GPU)",
    }
    return [Paragraph(text="Host", tone="headline"), _facts(facts)]


def _facts(known: Mapping[str, str | None]) -> Facts:
    return Facts(rows=tuple(Fact(term=term, value=plain(v)) for term, v in known.items() if v is not None))


def _name(device: DeviceProfile) -> str:
    return plain(device.name or "unknown device")
