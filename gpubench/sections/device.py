"""Shows a device, with the driver's values next to the datasheet's, and the machine around it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpubench.blocks.parts import Block, Bullets, Fact, Facts, Paragraph, Part, number, table, text
from gpubench.groups import grouped
from gpubench.interval import stacked
from gpubench.measure.capability import best_products, datasheet_peak, datasheet_share
from gpubench.models import DeviceProfile, GpuSpec, MicroResult
from gpubench.precisions import FORMATS
from gpubench.probe.backend import DeviceState, Host, ProbeReport, uuid_is_blank
from gpubench.probe.health import limits
from gpubench.probe.nvml import fp32_flops_per_s
from gpubench.sections.data import ReportData, kinds_words
from gpubench.specs import load_specs
from gpubench.units import (
    UNKNOWN,
    capitalized,
    count,
    format_bytes,
    format_duration,
    format_number,
    format_percent,
    format_si,
    format_whole,
    listing,
    plain,
)

# The page mentions a relative difference between driver and datasheet that exceeds this.
_DIFFERS = 0.05

_Row = tuple[str, str, str]


def _render(data: ReportData) -> Block | None:
    device, run = data.device, data.run
    if device is None or run is None:
        return None
    threads = run.environment.cpu_threads if device.is_cpu else None
    known = [
        plain(device.name or device.backend),
        format_bytes(device.memory_bytes) if device.memory_bytes else "",
        f"driver {plain(device.driver_version)}" if device.driver_version else "",
        f"torch {plain(run.environment.torch)}" if run.environment.torch else "",
        count(threads, "thread") if threads else "",
    ]
    line = Paragraph(text=", ".join(filter(None, known)))
    beside = () if device.is_cpu else _driver_and_datasheet(device, data.spec, "Driver and datasheet")
    name = plain(device.name or run.environment.cpu or "unnamed", 80)
    return Block(title="The device", finding=name, parts=(line, *beside, *micro(data)), brief=(line,))


def _driver_and_datasheet(device: DeviceProfile, spec: GpuSpec | None, caption: str) -> list[Part]:
    # Return a GPU as its driver reports it, next to its datasheet, and the values that are not reported.
    rows = [row for row in _gpu_rows(device, spec) if row[1:] != (UNKNOWN, UNKNOWN)]
    reasons = grouped(
        (plain(reason.rpartition(": ")[2]), plain(name, 60).replace("_", " "))
        for name, reason in sorted(device.unavailable.items())
    )
    unknown = tuple(f"{', '.join(names)}: not reported, {reason}" for reason, names in reasons.items())
    return [
        *_state(device),
        *_differences(device, spec),
        table(
            caption,
            rows,
            text("Property", lambda row: row[0]),
            text("As the driver reports it", lambda row: row[1]),
            text("Datasheet", lambda row: row[2]),
            folded=True,
        ),
        *((Bullets(items=unknown),) if unknown else ()),
    ]


def _differences(device: DeviceProfile, spec: GpuSpec | None) -> list[Part]:
    # Return the differences between driver and datasheet that exceed the rounding of marketing figures.
    pairs = [("current power limit", device.power_limit_w, device.power_limit_default_w, _watts)]
    if spec is not None:
        pairs += [
            ("default power limit", device.power_limit_default_w, spec.tdp_w, _watts),
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
        if seen is not None and stated and abs(seen / stated - 1) > _DIFFERS
    ]
    off = f"Different from the default or the datasheet: {'; '.join(found)}."
    return [Paragraph(text=off, tone="warning")] if found else []


def _gpu_rows(device: DeviceProfile, spec: GpuSpec | None) -> list[_Row]:
    capability = device.compute_capability
    sheet: dict[str, Any] = {} if spec is None else msgspec.structs.asdict(spec)
    pcie = None if device.pcie_generation is None else f"generation {device.pcie_generation}"
    if pcie and device.pcie_width:
        pcie += f", {count(device.pcie_width, 'lane')}"
    sheet_pcie = sheet.get("pcie_generation")
    kind = f" {plain(sheet['memory_type'], 20)}" if sheet.get("memory_type") else ""
    rows: list[_Row] = [
        ("Name", _text(device.name), _text(sheet.get("name"))),
        (
            "Compute capability",
            UNKNOWN if capability is None else f"{capability[0]}.{capability[1]}",
            _text(sheet.get("compute_capability")),
        ),
        ("Multiprocessors", format_whole(device.sm_count), format_whole(sheet.get("sm_count"))),
        ("CUDA cores", format_whole(device.cuda_core_count), format_whole(sheet.get("cuda_core_count"))),
        ("Memory", format_bytes(device.memory_bytes), f"{format_bytes(sheet.get('memory_bytes'))}{kind}"),
        (
            "Memory bandwidth",
            format_si(device.memory_bandwidth_bytes_per_s, "B/s"),
            format_si(sheet.get("memory_bandwidth_bytes_per_s"), "B/s"),
        ),
        ("L2 cache", format_bytes(device.l2_bytes), format_bytes(sheet.get("l2_bytes"))),
        ("Maximum core clock", format_si(device.sm_clock_max_hz, "Hz"), UNKNOWN),
        ("Maximum memory clock", format_si(device.memory_clock_max_hz, "Hz"), UNKNOWN),
        ("Current power limit", _watts(device.power_limit_w), UNKNOWN),
        ("Default power limit", _watts(device.power_limit_default_w), _watts(sheet.get("tdp_w"))),
        ("PCI Express", _text(pcie), UNKNOWN if sheet_pcie is None else f"generation {sheet_pcie}"),
        ("NVLinks", format_whole(device.nvlink_count), format_si(sheet.get("nvlink_bytes_per_s"), "B/s")),
    ]
    rows += [(f"Peak, {form.words}", UNKNOWN, format_si(sheet.get(form.peak), form.unit)) for form in FORMATS]
    return rows


def _state(device: DeviceProfile) -> list[Part]:
    # Return the driver and its settings in a sentence; another list has the unknown values.
    known = [
        f"driver {plain(device.driver_version, 40)}" if device.driver_version else "",
        f"CUDA up to {plain(device.cuda_driver_version, 20)}" if device.cuda_driver_version else "",
        "" if device.ecc_enabled is None else f"ECC {'on' if device.ecc_enabled else 'off'}",
        ""
        if device.mig_enabled is None or device.backend == "rocm"
        else f"MIG {'on' if device.mig_enabled else 'off'}",
        f"virtualization {plain(device.virtualization, 40)}" if device.virtualization else "",
    ]
    if device.tensor_core_precisions:
        what = "instructions" if device.is_cpu else "tensor cores"
        known.append(f"{what} for {listing(device.tensor_core_precisions)}")
    said = ", ".join(part for part in known if part)
    return [Paragraph(text=f"{capitalized(said)}.")] if said else []


def _text(value: str | None) -> str:
    return UNKNOWN if value is None else plain(value, 100)


def _watts(value: float | None) -> str:
    return UNKNOWN if value is None else f"{format_number(value)} W"


NO_LINK = "No transfer between host and device is measured: this CPU uses the host's memory."


def micro(data: ReportData) -> list[Part]:
    """Compare single operations with their datasheet values."""
    run = next((run for run in data.device_runs if run.micro), None)
    if run is None:
        return []
    best = best_products(run.micro)

    def operation(m: MicroResult) -> str:
        precision = "" if m.precision is None else f" {plain(m.precision, 20)}"
        is_best = ", the best size" if (m.precision, m.size) in best else ""
        return f"{plain(m.name, 40).replace('_', ' ')}{precision}\n{plain(m.size, 40)}{is_best}"

    measured = table(
        f"Micro-benchmarks{'' if run.device.runs_steps else ' through OpenCL'}",
        run.micro,
        text("Operation", operation),
        number("Measured, 95 % interval", _value),
        number("Datasheet", lambda m: format_si(datasheet_peak(run.device, m), plain(m.unit, 20))),
        number("Share", lambda m: format_percent(datasheet_share(run.device, m), 3)),
        number("Repetitions", lambda m: str(m.n), optional=6),
        text("Telemetry", _telemetry, optional=7),
        text("Findings", lambda m: kinds_words(finding.kind for finding in m.findings)),
    )
    return [measured, *([Paragraph(text=NO_LINK, tone="note")] if run.device.core_count is not None else [])]


def micro_in_short(data: ReportData) -> list[Part]:
    """Return the micro-benchmarks in a sentence, each product at its best size; the page has a table."""
    run = next((run for run in data.device_runs if run.micro), None)
    if run is None:
        return []
    best = best_products(run.micro)
    with_several_sizes = {precision for precision, _ in best}
    texts = []
    for m in run.micro:
        if m.name == "gemm" and m.precision in with_several_sizes and (m.precision, m.size) not in best:
            continue
        share = datasheet_share(run.device, m)
        of_sheet = "" if share is None else f" ({format_percent(share)} of the datasheet)"
        precision = "" if m.precision is None else f" {plain(m.precision, 20)}"
        value = _value(m).partition("\n")[0]
        size = f" at {plain(m.size, 40)}" if m.name == "gemm" else ""
        texts.append(f"{plain(m.name, 40).replace('_', ' ')}{precision} {value}{size}{of_sheet}")
    return [Paragraph(text=f"Micro-benchmarks: {'; '.join(texts)}.")]


def _telemetry(m: MicroResult) -> str:
    known = [
        "" if m.mean_power_w is None else f"{format_number(m.mean_power_w)} W",
        "" if m.sm_clock_min_hz is None else f"at least {format_si(m.sm_clock_min_hz, 'Hz')}",
        ", ".join(plain(reason, 40) for reason in m.clock_event_reasons or ()),
    ]
    return "\n".join(part for part in known if part) or UNKNOWN


def _value(m: MicroResult) -> str:
    if m.unit == "s":
        return stacked(m.interval.by(format_duration))
    step, prefix = next(((s, p) for s, p in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if m.value >= s), (1.0, ""))
    point, ends = m.interval.over(step).parts()
    return f"{point} {prefix}{plain(m.unit, 20)}" + (f"\n{ends}" if ends else "")


_Seen = tuple[DeviceProfile, DeviceState | None]
# Two GPUs of one model may differ in these.
_NOT_OF_MODEL = ("index", "uuid", "pci_bus_id", "power_limit_w", "pcie_width")


def machine(report: ProbeReport) -> Block:
    """Return every device, the host, the problems and the next step; the brief form has a line per device."""
    seen = list(zip(report.devices, report.states, strict=True))
    cpus = [device for device in report.devices if device.is_cpu]
    alike = grouped(
        (msgspec.json.encode(msgspec.structs.replace(each[0], **dict.fromkeys(_NOT_OF_MODEL))), each)
        for each in seen
        if not each[0].is_cpu
    )
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
            *(part for gpus in alike.values() for part in _gpus(gpus)),
            *(part for device in cpus for part in _cpu(device, report.host)),
            *_host(report.host),
            *problems,
            Paragraph(text=f"Next: {step}"),
        ),
        brief=(
            *(line for each in seen for line in _lines(*each)),
            *problems,
            Paragraph(text=f"Next: {step}      (more: gpubench probe; all verbs: gpubench --help)"),
        ),
    )


def _lines(device: DeviceProfile, state: DeviceState | None) -> list[Paragraph]:
    size = f"{format_bytes(device.memory_bytes)} memory"
    if device.is_cpu:
        bf16 = ", bf16" if "bf16" in (device.tensor_core_precisions or ()) else ""
        line = f"CPU    {_name(device)}, {format_whole(device.core_count)} cores, {size}{bf16}"
        return [Paragraph(text=line)]
    bandwidth = device.memory_bandwidth_bytes_per_s
    at = "" if bandwidth is None else f" at {format_si(bandwidth, 'B/s')}"
    line = f"GPU {device.index}  {_name(device)}, {format_whole(device.sm_count)} SMs, {size}{at}"
    limited = [f"       limited by: {each}" for each in limits(device, state)]
    return [Paragraph(text=text) for text in (line, *limited)]


def _gpus(alike: Sequence[_Seen]) -> list[Part]:
    # The table is about all these GPUs, so it omits values that differ; the limits of each GPU follow it.
    differing = [name for name in _NOT_OF_MODEL if len({getattr(device, name) for device, _ in alike}) > 1]
    device = msgspec.structs.replace(alike[0][0], **dict.fromkeys(differing))
    spec = load_specs().get(device.gpu_key or "")
    places = ", ".join(str(d.index) for d, _ in alike)
    several = "" if len(alike) == 1 else f"{len(alike)} x "
    known = f"  [{device.gpu_key}]" if spec else ", not in the specification table"
    return [
        Paragraph(text=f"GPU {places}  {several}{_name(device)}{known}", tone="headline"),
        *_driver_and_datasheet(device, spec, ""),
        *(Facts(rows=_facts_of_one(one, state, several=len(alike) > 1)) for one, state in alike),
    ]


def _facts_of_one(device: DeviceProfile, state: DeviceState | None, *, several: bool) -> tuple[Fact, ...]:
    place = f"{device.uuid or UNKNOWN} at PCI {device.pci_bus_id or UNKNOWN}"
    if device.uuid is not None and uuid_is_blank(device.uuid):
        place = f"all zeros: matched by PCI bus id {device.pci_bus_id or UNKNOWN}"
    reasons = limits(device, state) or ["nothing that the driver reports"]
    peak = fp32_flops_per_s(device)
    now = []
    if state is not None:
        link = f"PCIe generation {state.pcie_generation_now} x{state.pcie_width_now}"
        known = (
            "" if state.temperature_c is None else f"{state.temperature_c:.0f} °C",
            "" if state.power_w is None else f"{format_number(state.power_w)} W",
            "" if state.utilization is None else f"{format_percent(state.utilization)} busy",
            "" if state.memory_used_bytes is None else f"{format_bytes(state.memory_used_bytes)} used",
            link if state.pcie_generation_now and state.pcie_width_now else "",
        )
        now = [Fact(term="now", value=", ".join(filter(None, known)) or "not reported")]
    return (
        *((Fact(term="GPU", value=str(device.index)),) if several else ()),
        Fact(term="UUID", value=plain(place)),
        *((Fact(term="fp32 at maximum clock", value=format_si(peak, "FLOP/s")),) if peak else ()),
        *now,
        *(Fact(term="" if n else "limited by", value=reason) for n, reason in enumerate(reasons)),
    )


def _cpu(device: DeviceProfile, host: Host) -> list[Part]:
    bf16 = "bf16" in (device.tensor_core_precisions or ())
    threads = UNKNOWN if host.cpu_thread_count is None else count(host.cpu_thread_count, "thread")
    facts = {
        "cores": f"{format_whole(device.core_count)} ({threads})",
        "memory": format_bytes(device.memory_bytes),
        "instructions": " ".join(host.cpu_instructions) or UNKNOWN,
        "measures": "fp32 and amp-bf16" if bf16 else "fp32 (no bf16 instructions, so no AMP)",
    }
    return [Paragraph(text=f"CPU    {_name(device)}", tone="headline"), _facts(facts)]


def _host(host: Host) -> list[Part]:
    build = f"CUDA {host.torch_cuda}" if host.torch_cuda else ("ROCm" if host.torch_hip else "CPU only")
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


SECTIONS = {"device": _render}
