"""What the device did meanwhile: clock, power, temperature and clock events of every measured case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from gpubench.blocks.parts import Block, Charts, Column, Figure, Paragraph, Table
from gpubench.models import Launch, TelemetrySample
from gpubench.sections.data import ReportData, Result
from gpubench.sections.section import Section
from gpubench.sections.strips import has_strip, strip
from gpubench.sections.words import listed
from gpubench.units import UNKNOWN, count, format_number, format_percent, plain


def _render(data: ReportData) -> Block | None:
    known = [result for result in data.results if has_strip(result.measurement.launches)]
    if not known:
        return None
    shown = _one_a_workload(known)
    return Block(
        title="What the device did meanwhile",
        parts=(
            Paragraph(text=_sentence(known) + _idle(data)),
            Charts(
                figures=tuple(_figure(result, data) for result in shown),
                twin=_table("Telemetry of every measured case", known),
                caption=(
                    "One strip for each workload, at its fastest case. Tinted times: the driver gave a "
                    "reason for holding the clock. Dotted: the power limit. Scales do "
                    "not start at zero. The table holds every case."
                ),
            ),
        ),
    )


def _one_a_workload(results: Iterable[Result]) -> list[Result]:
    fastest: dict[tuple[str, str], Result] = {}
    for result in sorted(results, key=lambda r: -(r.measurement.samples_per_s or 0.0)):
        fastest.setdefault((result.case.workload, result.case.task.value), result)
    return sorted(fastest.values(), key=lambda r: (r.case.workload, r.case.task.value))


def _sentence(results: Sequence[Result]) -> str:
    sources = {x.telemetry_source for r in results for x in r.measurement.launches if x.telemetry_source}
    reasons = {reason for r in results for s in _samples(r) for reason in s.clock_event_reasons or ()}
    text = f"Read while the rounds were timed, by {listed(sorted(sources)) or 'an unnamed source'}. "
    if not reasons:
        return text + "In no sample did the driver give a reason for holding the clock."
    return text + f"Reasons that the driver gave for holding the clock: {listed(sorted(reasons))}."


def _idle(data: ReportData) -> str:
    """What the device drew with nothing on it, to hold the power of the work against."""
    idle_w = data.run.start.idle_power_w if data.run and data.run.start else None
    return "" if idle_w is None else f" Idle, just before the run, it drew {format_number(idle_w)} W."


def _figure(result: Result, data: ReportData) -> Figure:
    limit = None if data.device is None else data.device.power_limit_w
    figure, height_px = strip(result.measurement.launches, limit)
    title = plain(result.measurement.label, 100)
    cells = _cells(result)
    return Figure(
        figure=figure,
        title=title,
        alt=(
            f"Lines over time, {title}: clock {cells[1]}, power {cells[2]}, temperature {cells[3]}, "
            f"clock events {cells[5]}."
        ).replace("\n", ", "),
        height_px=height_px,
    )


def _table(caption: str, results: Iterable[Result]) -> Table:
    return Table(
        caption=caption,
        columns=(
            Column(title="Case"),
            Column(title="Core clock", numeric=True),
            Column(title="Power", numeric=True),
            Column(title="Temperature", numeric=True),
            Column(title="Energy a sample", numeric=True),
            Column(title="Clock events, share of samples"),
        ),
        rows=tuple(_cells(result) for result in results),
    )


def _cells(result: Result) -> tuple[str, ...]:
    samples = _samples(result)
    clocks = [s.sm_clock_hz / 1e9 for s in samples if s.sm_clock_hz is not None]
    watts = [s.power_w for s in samples if s.power_w is not None]
    heat = [s.temperature_c for s in samples if s.temperature_c is not None]
    m = result.measurement
    energy = UNKNOWN
    if m.joules_per_sample is not None:
        energy = f"{format_number(m.joules_per_sample)} J\nby {plain(m.energy_source or UNKNOWN, 30)}"
    return (
        plain(result.measurement.label, 100),
        _spread(clocks, "GHz"),
        UNKNOWN if not watts else f"{format_number(fmean(watts))} W\nat most {format_number(max(watts))}",
        UNKNOWN if not heat else f"{min(heat):.0f} to {max(heat):.0f} °C",
        energy,
        _events(samples),
    )


def _spread(values: Sequence[float], unit: str) -> str:
    if not values:
        return UNKNOWN
    return f"{median(values):.2f} {unit}\n{min(values):.2f} to {max(values):.2f}"


def _events(samples: Sequence[TelemetrySample]) -> str:
    told = [s.clock_event_reasons for s in samples if s.clock_event_reasons is not None]
    if not told:
        return UNKNOWN
    counts = Counter(plain(reason, 40) for reasons in told for reason in reasons)
    shares = [f"{reason} {format_percent(n / len(told))}" for reason, n in counts.most_common()]
    return ", ".join(shares) or f"none in {count(len(told), 'sample')}"


def _samples(result: Result) -> list[TelemetrySample]:
    launches: tuple[Launch, ...] = result.measurement.launches
    return [sample for launch in launches for sample in launch.timed_telemetry]


SECTION = Section(key="telemetry", render=_render, place=160)
