"""What this device is: the driver's answers, with the data sheet beside them."""

from __future__ import annotations

from typing import Any

import msgspec

from gpubench.models import DeviceProfile, Environment, GpuSpec
from gpubench.precisions import FORMATS
from gpubench.report.data import ReportData
from gpubench.report.section import Block, Bullets, Column, Paragraph, Part, Section, Table
from gpubench.report.words import listed
from gpubench.units import UNKNOWN, format_bytes, format_number, format_si, plain

DIFFERS = 0.05
"""Share by which a reading may differ from the data sheet before the page speaks of it."""

_Row = tuple[str, str, str]
_GPU_TITLES = ("Property", "As the driver reports it", "Data sheet")


def _render(data: ReportData) -> Block | None:
    device, run = data.device, data.run
    if device is None or run is None:
        return None
    parts: list[Part] = [_sentence(data, device)]
    if state := _state(device, is_cpu=data.is_cpu):
        parts.append(Paragraph(text=state))
    rows = _cpu_rows(device, run.environment) if data.is_cpu else _gpu_rows(device, data.spec)
    rows = [row for row in rows if row[1:] != (UNKNOWN, UNKNOWN)]
    titles = ("Property", "As the system reports it") if data.is_cpu else _GPU_TITLES
    columns = tuple(Column(title=title) for title in titles)
    cells = tuple(row[: len(titles)] for row in rows)
    if differing := _differences(device, data.spec):
        parts.append(Paragraph(text=differing, tone="warning"))
    caption = "The device that was measured" if data.is_cpu else "Driver and data sheet, line by line"
    parts.append(Table(caption=caption, columns=columns, rows=cells, folded=not data.is_cpu))
    if device.unavailable:
        parts.append(
            Bullets(
                items=tuple(
                    f"{plain(field, 60).replace('_', ' ')}: not reported, {plain(reason)}"
                    for field, reason in sorted(device.unavailable.items())
                )
            )
        )
    return Block(title="What this device is", parts=tuple(parts))


def _sentence(data: ReportData, device: DeviceProfile) -> Paragraph:
    name = plain(device.name or "an unnamed device", 100)
    if data.is_cpu:
        return Paragraph(
            text=f"{name} is a CPU: every figure measured on this page is a CPU's, but for those that name "
            "another device."
        )
    if data.spec is None:
        return Paragraph(
            text=f"{name} has no row in the specification table, so no data sheet stands beside it.",
            tone="warning",
        )
    year = "" if data.spec.release_year is None else f" of {data.spec.release_year}"
    architecture = plain(data.spec.architecture or "unknown architecture", 40)
    line = plain(data.spec.line or "", 40)
    return Paragraph(text=f"{name}: {architecture} architecture, {line} line{year}. {_strength(data.spec)}")


def _strength(spec: GpuSpec) -> str:
    """What buyers compare, as the data sheet states it."""
    known = [
        _memory(spec) if spec.memory_bytes else "",
        f"{format_si(spec.memory_bandwidth_bytes_per_s, 'B/s')} of bandwidth"
        if spec.memory_bandwidth_bytes_per_s
        else "",
        f"{format_si(spec.fp32_flops_per_s, 'FLOP/s')} at fp32" if spec.fp32_flops_per_s else "",
        f"{format_si(spec.bf16_tensor_flops_per_s, 'FLOP/s')} at bf16 on tensor cores"
        if spec.bf16_tensor_flops_per_s
        else "",
        _watts(spec.tdp_w) if spec.tdp_w else "",
    ]
    return f"By the data sheet {listed(part for part in known if part)}." if any(known) else ""


def _differences(device: DeviceProfile, spec: GpuSpec | None) -> str:
    """Where the driver's answer is off the data sheet by more than a marketing figure's rounding."""
    pairs = [("power limit now", device.power_limit_w, device.power_limit_default_w, _watts)]
    if spec is not None:
        pairs += [
            ("power limit by default", device.power_limit_default_w, spec.tdp_w, _watts),
            (
                "memory bandwidth",
                device.memory_bandwidth_bytes_per_s,
                spec.memory_bandwidth_bytes_per_s,
                lambda value: format_si(value, "B/s"),
            ),
        ]
    found = [
        f"{what} {show(seen)} against {show(stated)}"
        for what, seen, stated, show in pairs
        if seen is not None and stated and abs(seen / stated - 1) > DIFFERS
    ]
    return f"Off the default or the data sheet: {'; '.join(found)}." if found else ""


def _gpu_rows(device: DeviceProfile, spec: GpuSpec | None) -> list[_Row]:
    capability = device.compute_capability
    sheet: dict[str, Any] = {} if spec is None else msgspec.structs.asdict(spec)
    pcie = None if device.pcie_generation is None else f"generation {device.pcie_generation}"
    if pcie and device.pcie_width:
        pcie += f", {device.pcie_width} lanes"
    rows: list[_Row] = [
        ("Name", _text(device.name), _text(sheet.get("name"))),
        (
            "Compute capability",
            UNKNOWN if capability is None else f"{capability[0]}.{capability[1]}",
            _text(sheet.get("compute_capability")),
        ),
        ("Multiprocessors", _whole(device.sm_count), _whole(sheet.get("sm_count"))),
        ("CUDA cores", _whole(device.cuda_core_count), _whole(sheet.get("cuda_core_count"))),
        ("Memory", format_bytes(device.memory_bytes), _memory(spec)),
        (
            "Memory bandwidth",
            format_si(device.memory_bandwidth_bytes_per_s, "B/s"),
            format_si(sheet.get("memory_bandwidth_bytes_per_s"), "B/s"),
        ),
        ("L2 cache", format_bytes(device.l2_bytes), format_bytes(sheet.get("l2_bytes"))),
        ("Highest core clock", format_si(device.sm_clock_max_hz, "Hz"), UNKNOWN),
        ("Highest memory clock", format_si(device.memory_clock_max_hz, "Hz"), UNKNOWN),
        ("Power limit now", _watts(device.power_limit_w), UNKNOWN),
        ("Power limit by default", _watts(device.power_limit_default_w), _watts(sheet.get("tdp_w"))),
        ("PCI Express", _text(pcie), _generation(sheet.get("pcie_generation"))),
        ("NVLinks", _whole(device.nvlink_count), format_si(sheet.get("nvlink_bytes_per_s"), "B/s")),
    ]
    rows += [(f"Peak, {form.words}", UNKNOWN, format_si(sheet.get(form.peak), "FLOP/s")) for form in FORMATS]
    return rows


def _state(device: DeviceProfile, *, is_cpu: bool) -> str:
    """Driver and switches in a sentence; what is unknown is left to the list of what was not reported."""
    known = [
        f"driver {plain(device.driver_version, 40)}" if device.driver_version else "",
        f"CUDA {plain(device.cuda_driver_version, 20)} at most" if device.cuda_driver_version else "",
        "" if device.ecc_enabled is None else f"ECC {'on' if device.ecc_enabled else 'off'}",
        "" if device.mig_enabled is None else f"MIG {'on' if device.mig_enabled else 'off'}",
        f"virtualisation {plain(device.virtualization, 40)}" if device.virtualization else "",
    ]
    if device.tensor_core_precisions:
        what = "instructions" if is_cpu else "tensor cores"
        known.append(f"{what} for {listed(device.tensor_core_precisions)}")
    text = ", ".join(part for part in known if part)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _cpu_rows(device: DeviceProfile, environment: Environment) -> list[_Row]:
    return [
        ("Name", _text(device.name or environment.cpu), UNKNOWN),
        ("Architecture", _text(device.architecture), UNKNOWN),
        ("Logical processors", _whole(environment.cpu_count), UNKNOWN),
        ("Threads used by torch", _whole(environment.cpu_threads), UNKNOWN),
        ("Memory", format_bytes(device.memory_bytes or environment.ram_bytes), UNKNOWN),
        ("Operating system", _text(environment.os), UNKNOWN),
    ]


def _text(value: str | None) -> str:
    return UNKNOWN if value is None else plain(value, 100)


def _whole(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _watts(value: float | None) -> str:
    return UNKNOWN if value is None else f"{format_number(value)} W"


def _generation(value: int | None) -> str:
    return UNKNOWN if value is None else f"generation {value}"


def _memory(spec: GpuSpec | None) -> str:
    if spec is None:
        return UNKNOWN
    size = format_bytes(spec.memory_bytes)
    return size if spec.memory_type is None else f"{size} {plain(spec.memory_type, 20)}"


SECTION = Section(key="device", render=_render)
