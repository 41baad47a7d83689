"""What a finished run says to a person: the device, a table, a closing sentence, what to doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gpubench import units
from gpubench.cli.tables import console_for_tables, new_table
from gpubench.compare import AmpEffect, ScalingEffect, amp_effects, scaling_effects
from gpubench.findings import INFORMATIVE, describe
from gpubench.measure.checks import unique
from gpubench.measure.peaks import best_products, datasheet_share
from gpubench.models import Finding, Measurement, Run, Status, TaskKind
from gpubench.record.spread import cold_costs

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_run(run: Run) -> None:
    """Print a run on stdout."""
    from rich.text import Text

    console = console_for_tables()
    console.print(Text(device_line(run)))
    if run.measurements:
        console.print(table(run, console))
    if run.micro:
        console.print(micro_table(run, console))
    for line in (*doubts(run), *cold(run), *latencies(run), *closing(run)):
        console.print(Text(line))


def device_line(run: Run) -> str:
    """One line: the device, its memory, driver, torch."""
    device, software = run.device, run.environment
    threads = software.cpu_threads if device.backend == "cpu" else None
    parts = [
        units.plain(device.name or device.backend),
        units.format_bytes(device.memory_bytes) if device.memory_bytes else None,
        f"driver {units.plain(device.driver_version)}" if device.driver_version else None,
        f"torch {units.plain(software.torch)}" if software.torch else None,
        units.count(threads, "thread") if threads else None,
    ]
    return ", ".join(part for part in parts if part)


def table(run: Run, console: Console) -> Table:
    """Return the table of results, one row a case."""
    from rich.text import Text

    measured = [m for m in run.measurements if m.status is Status.OK]
    alone = bool(measured) and all(m.within_one_process for m in measured)
    interval = "95 %, within one process" if alone else "95 %"
    figures = (f"samples/s ({interval})", "ms/step", "peak memory", "MFU")
    made = new_table(console, "case", *figures, "findings", right=figures)
    for measurement in run.measurements:
        made.add_row(*(Text(cell) for cell in _cells(measurement)))
    return made


def micro_table(run: Run, console: Console) -> Table:
    """Return the table of micro-benchmarks, with the share of the datasheet's peak where there is one."""
    from rich.text import Text

    figures = ("value", "95 %", "of datasheet")
    made = new_table(console, "micro-benchmark", "size", *figures, "findings", right=figures)
    best = best_products(run.micro)
    for result in run.micro:
        name = f"{result.name} {result.precision}" if result.precision else result.name
        width = None if result.low is None else result.value / result.low - 1
        cells = (
            units.plain(name),
            units.plain(result.size) + (", best" if (result.precision, result.size) in best else ""),
            _quantity(result.value, result.unit),
            units.UNKNOWN if width is None else f"±{units.format_percent(width)}",
            units.format_percent(datasheet_share(run.device, result)),
            " ".join(finding.kind for finding in result.findings),
        )
        made.add_row(*(Text(cell) for cell in cells))
    return made


def _quantity(value: float, unit: str) -> str:
    return units.format_duration(value) if unit == "s" else units.format_si(value, unit)


def doubts(run: Run) -> tuple[str, ...]:
    """Return each kind of finding once, with the worst of its values and where that was, and what to do."""
    seen: list[tuple[Finding, str | None]] = [(finding, None) for finding in run.findings]
    seen += [(finding, m.label) for m in run.measurements for finding in m.findings]
    for result in run.micro:
        name = " ".join(part for part in (result.name, result.precision, result.size) if part)
        seen += [(finding, name) for finding in result.findings]
    kinds = dict.fromkeys(finding.kind for finding, _ in seen)
    return tuple(_worst([each for each in seen if each[0].kind is kind]) for kind in kinds)


def _worst(found: list[tuple[Finding, str | None]]) -> str:
    """Word the finding of one kind whose value is largest; of one that concerns the whole run, that."""
    (worst,) = unique(finding for finding, _ in found)
    where = next(name for finding, name in found if finding == worst)
    several = "" if len(found) == 1 or where is None else f"worst of {len(found)}: "
    return units.plain(describe(worst, None if where is None else f"{several}{where}"), 400)


def cold(run: Run) -> tuple[str, ...]:
    """Return one line with what is paid once, apart from the steps; the range over cases and launches."""
    costs = [
        f"{name.replace('_', ' ')} {units.format_duration(most)}"
        if least == most
        else f"{name.replace('_', ' ')} {units.format_duration(least)} to {units.format_duration(most)}"
        for name, (least, most) in cold_costs(run.measurements).items()
    ]
    return (f"paid once, apart from the steps: {', '.join(costs)}",) if costs else ()


def closing(run: Run) -> tuple[str, ...]:
    """Say what AMP and further GPUs gain here, with the baseline named, and what speaks against it."""
    rows = {m.case: m for m in run.measurements}
    said = [(_sentence(e), (rows[e.case], rows[e.baseline])) for e in amp_effects(run)]
    for effect in scaling_effects(run):
        alone = rows[msgspec.structs.replace(effect.case, gpu_count=1)]
        said.append((_scaling_sentence(effect), (rows[effect.case], alone)))
    lines = [text + _doubted(run, pair) for text, pair in said]
    if any(row.within_one_process for _, pair in said for row in pair):
        lines.append("these ratios rest on one launch: differences between processes are not in them")
    return tuple(lines)


def _doubted(run: Run, rows: Sequence[Measurement]) -> str:
    found = (*run.findings, *(finding for row in rows for finding in row.findings))
    kinds = dict.fromkeys(f.kind for f in found if f.kind not in INFORMATIVE)
    return f"; to be doubted: {', '.join(kinds)}" if kinds else ""


def _scaling_sentence(effect: ScalingEffect) -> str:
    case = effect.case
    return (
        f"{units.plain(case.workload)} {case.precision} on {case.gpu_count} GPUs is "
        f"{effect.speedup.value:.2f}x the throughput of one: an efficiency of "
        f"{effect.efficiency.by(units.format_percent)}"
    )


def _sentence(effect: AmpEffect) -> str:
    case, speedup = effect.case, effect.speedup
    execution = "" if case.execution == "eager" else f" ({case.execution})"
    times = speedup.by("{:.2f}".format, unit="x")
    times = times if speedup.bounded else f"about {times}"
    task = "" if case.task is TaskKind.TRAIN else "inference, "
    work = f"{units.plain(case.workload)} ({task}batch {case.batch_size:,}){execution}"
    parts = [f"{case.precision} is {times} the throughput of {effect.baseline.precision} on {work}"]
    if effect.memory_ratio is not None:
        parts.append(f"takes {effect.memory_ratio:.2f}x its memory")
    if effect.loss_gap is not None and case.task is TaskKind.TRAIN:
        gap = units.format_percent(abs(effect.loss_gap))
        parts.append(f"its loss after {effect.curve_steps} steps differs by {gap}")
    return ", ".join(parts)


def latencies(run: Run) -> tuple[str, ...]:
    """Say how long one forward pass at batch 1 takes, where that was measured."""
    return tuple(
        f"{units.plain(m.label)}: one pass takes {units.format_duration(m.latency_p50_s)} (median), "
        f"95 % of them under {units.format_duration(m.latency_p95_s)}, "
        f"{_slowest(m)}"
        for m in run.measurements
        if m.status is Status.OK and m.latency_p50_s is not None
    )


def _slowest(measurement: Measurement) -> str:
    if measurement.latency_p99_s is not None:
        return f"99 % under {units.format_duration(measurement.latency_p99_s)}"
    passes = sum(len(launch.latency_s) for launch in measurement.launches)
    return f"99 % unknown: {passes} passes came in, and that takes 100"


def _cells(measurement: Measurement) -> tuple[str, ...]:
    label = units.plain(measurement.label)
    if measurement.status is not Status.OK:
        status = measurement.status.replace("_", " ")
        return (
            label,
            status,
            units.UNKNOWN,
            units.UNKNOWN,
            units.UNKNOWN,
            units.plain(measurement.reason or "", 90),
        )
    step_s = measurement.step_time_s
    return (
        label,
        measurement.interval.text(),
        units.format_number(None if step_s is None else step_s * 1e3),
        units.format_bytes(measurement.peak_memory_bytes),
        units.format_percent(measurement.mfu),
        " ".join(finding.kind for finding in measurement.findings),
    )
