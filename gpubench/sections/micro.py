"""Micro-benchmarks beside the data sheet."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, Look, Mark, dots, two_lines
from gpubench.blocks.parts import Charts, Paragraph, Part, Table, number, table, text
from gpubench.interval import stacked
from gpubench.measure.capability import best_products, datasheet_peak, datasheet_share
from gpubench.models import MicroResult, Run
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import kinds_words
from gpubench.units import (
    UNKNOWN,
    format_duration,
    format_number,
    format_percent,
    format_si,
    plain,
)

NO_LINK = "No link between host and device is measured: this CPU works in the host's own memory."


def _render(data: ReportData) -> Block | None:
    run = next((run for run in data.device_runs if run.micro), None)
    if run is None:
        return None
    made = _table(run)
    compared = [(m, peak) for m in run.micro if (peak := datasheet_peak(run.device, m))]
    what = Paragraph(
        text=(
            "Single operations, measured with the same stop rule. A copy on the device counts what "
            "it reads and what it writes. Data sheets state rates that no program reaches; the share "
            "says how near this device comes."
        )
    )
    shown: Part = made
    if compared:
        marks = [
            Mark(
                row=two_lines(_name(m), plain(m.size, 30)),
                interval=m.interval.over(peak),
                hover=f"{_value(m)} of {format_si(peak, plain(m.unit, 20))}",
                told=f"{_name(m)} {plain(m.size, 30)} {format_percent(m.value / peak)}",
            )
            for m, peak in compared
        ]
        chart = dots(
            marks,
            {None: Look(name="measured", color=BLUE)},
            "share of the data sheet (1 is the stated rate)",
            "Dot chart of measured rates as a share of the data sheet",
            row_px=37,
            line_at=1.0,
        )
        shown = Charts(figures=(chart,), twin=made)
    link = (Paragraph(text=NO_LINK),) if run.device.core_count is not None else ()
    title = made.caption if run.device.runs_steps else f"{made.caption} through OpenCL"
    return Block(title=title, parts=(what, shown, *link), brief=(made, *link))


def _table(run: Run) -> Table:
    best = best_products(run.micro)

    def size(m: MicroResult) -> str:
        return plain(m.size, 40) + (", the best size" if (m.precision, m.size) in best else "")

    def peak(m: MicroResult) -> str:
        return format_si(datasheet_peak(run.device, m), plain(m.unit, 20))

    return table(
        "Micro-benchmarks",
        run.micro,
        text("Operation", lambda m: f"{_name(m)}\n{size(m)}"),
        number("Measured, 95 % interval", _value),
        number("Data sheet", peak),
        number("Share", lambda m: format_percent(datasheet_share(run.device, m), 3)),
        number("Repetitions", lambda m: str(m.n), optional=6),
        text("Telemetry", _telemetry, optional=7),
        text("Findings", lambda m: kinds_words(finding.kind for finding in m.findings)),
    )


def _telemetry(m: MicroResult) -> str:
    """Mean power, lowest clock and clock event reasons, as far as they were read."""
    known = [
        "" if m.mean_power_w is None else f"{format_number(m.mean_power_w)} W",
        "" if m.sm_clock_min_hz is None else f"at least {format_si(m.sm_clock_min_hz, 'Hz')}",
        ", ".join(plain(reason, 40) for reason in m.clock_event_reasons or ()),
    ]
    return "\n".join(part for part in known if part) or UNKNOWN


def _name(m: MicroResult) -> str:
    words = plain(m.name, 40).replace("_", " ")
    return words if m.precision is None else f"{words} {plain(m.precision, 20)}"


def _value(m: MicroResult) -> str:
    """The value in a fitting multiple of its unit, digits as the interval allows."""
    if m.unit == "s":
        return stacked(m.interval.by(format_duration))
    step, prefix = next(((s, p) for s, p in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if m.value >= s), (1.0, ""))
    point, ends = m.interval.over(step).apart()
    return f"{point} {prefix}{plain(m.unit, 20)}" + (f"\n{ends}" if ends else "")


SECTION = Section(key="micro", render=_render, place=150, heading="device")
