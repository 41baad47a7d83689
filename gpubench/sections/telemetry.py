"""Telemetry: clock, power, temperature and clock events of every measured case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, GREEN, INK, ORANGE, PURPLE, QUIET, RULE, dress, label
from gpubench.blocks.parts import Charts, Figure, Paragraph, number, table, text
from gpubench.effects import Result
from gpubench.models import Launch, TelemetrySample
from gpubench.sections.data import ReportData, pace
from gpubench.sections.section import Section
from gpubench.units import UNKNOWN, count, format_number, format_percent, listing, plain


def _render(data: ReportData) -> Block | None:
    known = [result for result in data.results if has_strip(result.measurement.launches)]
    if not known:
        return None
    idle_w = data.run.start.idle_power_w if data.run and data.run.start else None
    # What it draws with nothing on it is what the power of the work is held against.
    idle = "" if idle_w is None else f" Idle, just before the run, it drew {format_number(idle_w)} W."
    launches = [launch for r in known for launch in r.measurement.launches]
    sources = sorted({each.telemetry_source for each in launches if each.telemetry_source})
    reasons = sorted({why for s in _samples(launches) for why in s.clock_event_reasons or ()})
    said = f"Read while the rounds were timed, by {listing(sources) or 'an unnamed source'}. "
    if reasons:
        said += f"Reasons that the driver gave for holding the clock: {listing(reasons)}."
    else:
        said += "In no sample did the driver give a reason for holding the clock."
    fastest: dict[tuple[str, str], Result] = {}
    for result in sorted(known, key=pace, reverse=True):
        fastest.setdefault((result.case.workload, result.case.task.value), result)
    return Block(
        title="Telemetry",
        parts=(
            Paragraph(text=f"{said}{idle}"),
            Charts(
                figures=tuple(_figure(fastest[key], data) for key in sorted(fastest)),
                twin=table(
                    "Telemetry of every measured case",
                    known,
                    text("Case", lambda r: plain(r.measurement.label, 100)),
                    number("Core clock", _clock),
                    number("Power", _power),
                    number("Temperature", _heat),
                    number("Energy a sample", _energy),
                    text("Clock events, share of samples", _events),
                ),
                caption=(
                    "One strip for each workload, at its fastest case. Tinted times: the driver gave a "
                    "reason for holding the clock. Dotted: the power limit. Scales do "
                    "not start at zero. The table holds every case."
                ),
            ),
        ),
    )


def _figure(result: Result, data: ReportData) -> Figure:
    limit = None if data.device is None else data.device.power_limit_w
    figure, height_px = strip(result.measurement.launches, limit)
    title = plain(result.measurement.label, 100)
    return Figure(
        figure=figure,
        title=title,
        alt=(
            f"Lines over time, {title}: clock {_clock(result)}, power {_power(result)}, "
            f"temperature {_heat(result)}, clock events {_events(result)}."
        ).replace("\n", ", "),
        height_px=height_px,
    )


def _clock(result: Result) -> str:
    clocks = _read(result, CLOCK)
    return f"{median(clocks):.2f} GHz\n{min(clocks):.2f} to {max(clocks):.2f}" if clocks else UNKNOWN


def _power(result: Result) -> str:
    watts = _read(result, POWER)
    return f"{format_number(fmean(watts))} W\nat most {format_number(max(watts))}" if watts else UNKNOWN


def _heat(result: Result) -> str:
    heat = _read(result, HEAT)
    return f"{min(heat):.0f} to {max(heat):.0f} °C" if heat else UNKNOWN


def _read(result: Result, channel: Channel) -> list[float]:
    """What was read of a quantity while the rounds of a case were timed."""
    values = map(channel.read, _samples(result.measurement.launches))
    return [value for value in values if value is not None]


def _energy(result: Result) -> str:
    m = result.measurement
    if m.joules_per_sample is None:
        return UNKNOWN
    return f"{format_number(m.joules_per_sample)} J\nby {plain(m.energy_source or UNKNOWN, 30)}"


def _events(result: Result) -> str:
    told = [
        s.clock_event_reasons
        for s in _samples(result.measurement.launches)
        if s.clock_event_reasons is not None
    ]
    if not told:
        return UNKNOWN
    counts = Counter(plain(reason, 40) for reasons in told for reason in reasons)
    shares = [f"{reason} {format_percent(n / len(told))}" for reason, n in counts.most_common()]
    return ", ".join(shares) or f"none in {count(len(told), 'sample')}"


def _samples(launches: Iterable[Launch]) -> list[TelemetrySample]:
    return [sample for launch in launches for sample in launch.timed_telemetry]


MOST_POINTS = 240
"""Points of one line on the page; longer series are averaged in bins (the raw samples stay in the file)."""

GAP_S = 1.0
"""Empty time between two launches on the strip."""

PANEL_PX = 76
HEAD_PX = 46


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One quantity of the strip."""

    name: str
    unit: str
    color: str
    read: Callable[[TelemetrySample], float | None]


CLOCK = Channel(
    name="core clock", unit="GHz", color=BLUE, read=lambda s: s.sm_clock_hz and s.sm_clock_hz / 1e9
)
POWER = Channel(name="power", unit="W", color=PURPLE, read=lambda s: s.power_w)
HEAT = Channel(name="temperature", unit="°C", color=GREEN, read=lambda s: s.temperature_c)
CHANNELS = (CLOCK, POWER, HEAT)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The samples of all timed rounds of a case on one axis, a gap between launches."""

    samples: tuple[tuple[float, TelemetrySample], ...]
    starts: tuple[float, ...]


def timeline(launches: Sequence[Launch]) -> Timeline:
    """Put launches one after the other [s]."""
    placed: list[tuple[float, TelemetrySample]] = []
    starts: list[float] = []
    offset = 0.0
    for launch in launches:
        if not launch.timed_telemetry:
            continue
        first = launch.timed_telemetry[0].t_s
        starts.append(offset)
        placed += [(offset + sample.t_s - first, sample) for sample in launch.timed_telemetry]
        offset = placed[-1][0] + GAP_S
    return Timeline(samples=tuple(placed), starts=tuple(starts))


def has_strip(launches: Sequence[Launch]) -> bool:
    """Whether there is anything to draw."""
    return any(channel.read(sample) is not None for sample in _samples(launches) for channel in CHANNELS)


def strip(launches: Sequence[Launch], power_limit_w: float | None = None) -> tuple[dict[str, Any], int]:
    """Draw the strip of a case; return the figure and its height [CSS px]."""
    line = timeline(launches)
    shown = [c for c in CHANNELS if any(c.read(sample) is not None for _, sample in line.samples)]
    layout = dress() | {"showlegend": False, "annotations": [], "shapes": _event_shapes(line)}
    traces = []
    for i, channel in enumerate(shown):
        axis, top = "" if i == 0 else str(i + 1), 1 - i / len(shown)
        times, values = _binned(line, channel)
        traces.append({
            "type": "scatter", "mode": "lines", "x": times, "y": values, "yaxis": f"y{axis}",
            "line": {"color": channel.color, "width": 1.5}, "name": channel.name,
            "hovertemplate": f"%{{y:.4~g}} {channel.unit} at %{{x:.1f}} s<extra></extra>",
        })  # fmt: skip
        layout[f"yaxis{axis}"] = {
            "domain": [top - 0.92 / len(shown), top - 0.3 / len(shown)], "nticks": 3,
            "tickfont": {"color": QUIET, "size": 11}, "gridcolor": RULE, "zeroline": False,
            "automargin": True, "fixedrange": True,
        }  # fmt: skip
        layout["annotations"].append({
            "text": label(f"{channel.name}, {channel.unit}"), "x": 0, "xref": "paper", "xanchor": "left",
            "y": top, "yref": "paper", "yanchor": "top", "showarrow": False,
            "font": {"size": 11, "color": QUIET},
        })  # fmt: skip
        if channel is POWER and power_limit_w is not None:
            layout["shapes"].append({
                "type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": f"y{axis}", "y0": power_limit_w,
                "y1": power_limit_w, "line": {"color": INK, "width": 1, "dash": "dot"},
            })  # fmt: skip
    title = {"text": "seconds of timed rounds, launches one after the other", "standoff": 6}
    layout["xaxis"] = {
        "title": title | {"font": {"color": QUIET, "size": 11}}, "tickfont": {"color": QUIET},
        "linecolor": RULE, "showgrid": False, "zeroline": False, "automargin": True, "fixedrange": True,
        "anchor": f"y{len(shown)}" if len(shown) > 1 else "y",
    }  # fmt: skip
    return {"data": traces, "layout": layout}, HEAD_PX + PANEL_PX * len(shown)


def _binned(line: Timeline, channel: Channel) -> tuple[list[float], list[float | None]]:
    """Average neighboring samples down to ``MOST_POINTS``; a None parts the launches."""
    known = [(t, value) for t, s in line.samples if (value := channel.read(s)) is not None]
    size = max(1, -(-len(known) // MOST_POINTS))
    times: list[float] = []
    values: list[float | None] = []
    for start, end in pairwise([*line.starts, float("inf")]):
        launch = [(t, value) for t, value in known if start <= t < end]
        for i in range(0, len(launch), size):
            group = launch[i : i + size]
            times.append(round(fmean(t for t, _ in group), 2))
            values.append(round(fmean(value for _, value in group), 4))
        times.append(times[-1] if times else 0.0)
        values.append(None)
    return times, values


def _event_shapes(line: Timeline) -> list[dict[str, Any]]:
    """A tinted span wherever the driver gave a reason for holding the clock."""
    spans: list[list[float]] = []
    before = float("-inf")
    for t, sample in line.samples:
        if sample.clock_event_reasons:
            if spans and spans[-1][1] == before:
                spans[-1][1] = t
            else:
                spans.append([t, t])
        before = t
    return [
        {
            "type": "rect", "xref": "x", "yref": "paper", "x0": start - 0.05, "x1": end + 0.05,
            "y0": 0, "y1": 1, "fillcolor": ORANGE, "opacity": 0.16, "line": {"width": 0}, "layer": "below",
        }
        for start, end in spans[:200]
    ]  # fmt: skip


SECTION = Section(key="telemetry", render=_render, place=160, heading="method")
