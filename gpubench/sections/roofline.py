"""The roofline of the card: the rate of each step compared with the arithmetic and memory limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

from gpubench.blocks.charts import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    SLATE,
    Look,
    dress,
    label,
    log_axis,
)
from gpubench.blocks.parts import Block, Charts, Figure, Paragraph, number, table, text
from gpubench.effects import Result
from gpubench.measure.capability import peak_flops_per_s
from gpubench.models import DeviceProfile, Precision, TaskKind
from gpubench.predict.roofline import moved_bytes, work_of
from gpubench.profile import load_profiles
from gpubench.sections.data import ReportData, at_named_batches
from gpubench.sections.words import case_words, workload_name
from gpubench.units import format_number, format_percent, format_si

TERA = 1e12

_COLORS = (QUIET, GREEN, ORANGE, BLUE, PURPLE, SLATE, INK)
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross", "star")
LOOKS = {
    precision: Look(name=precision.value, color=color, symbol=symbol)
    for precision, color, symbol in zip(Precision, cycle(_COLORS), cycle(_SYMBOLS), strict=False)
}
"""The style of each precision, in the order of their table; colors repeat after the last."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One case on the roofline plot.

    Attributes:
        intensity: FLOP of the step for each byte that it must move [FLOP/B].
        rate: Its measured rate [FLOP/s].
        roof: The lower of peak and bandwidth times intensity [FLOP/s].
    """

    result: Result
    intensity: float
    rate: float
    roof: float

    @property
    def share(self) -> float:
        """Its measured share of the roof."""
        return self.rate / self.roof


def points_of(data: ReportData) -> tuple[Point, ...]:
    """Return the point of every standard workload's case, from the operators in its profile and the peak."""
    device, bandwidth = data.device, _bandwidth(data)
    found: list[Point] = []
    if device is None or bandwidth is None:
        return ()
    for result in at_named_batches(data.results):
        case, flops = result.case, result.measurement.flops_per_sample
        rate, peak = result.measurement.achieved_flops_per_s, peak_flops_per_s(device, case.precision)
        half = case.precision.in_half
        moved = _moved_bytes(case.workload, case.workload_version, case.task, half, case.batch_size)
        if rate is None or moved is None or not flops or peak is None:
            continue
        intensity = flops * case.batch_size / moved
        roof = min(peak, bandwidth * intensity)
        found.append(Point(result=result, intensity=intensity, rate=rate, roof=roof))
    return tuple(found)


def _bandwidth(data: ReportData) -> float | None:
    told = None if data.device is None else data.device.memory_bandwidth_bytes_per_s
    return told or (None if data.spec is None else data.spec.memory_bandwidth_bytes_per_s)


@cache
def _moved_bytes(name: str, version: int, task: TaskKind, half: bool, batch_size: int) -> float | None:
    """Bytes that the operators of the step read and write once; None for a model that is not listed."""
    profile = load_profiles().get(name)
    if profile is None or profile.version != version:
        return None
    work = work_of(profile.operators_of(task), batch_size)
    return float(moved_bytes(work, half)[0]) or None


def _render(data: ReportData) -> Block | None:
    points, device, bandwidth = points_of(data), data.device, _bandwidth(data)
    if device is None or bandwidth is None or device.is_cpu or not points:
        return None
    best = max(points, key=lambda point: point.share)
    what = (
        "A step can be no faster than its arithmetic at the peak of its precision, nor than its operators' "
        "bytes at the bandwidth of the memory. Left of the bend memory is the limit, right of it arithmetic. "
        "Caches can lift a point above the slope."
    )
    twin = table(
        "Each case against its roof",
        points,
        text("Case", lambda point: case_words(point.result.case)),
        number("FLOP per byte", lambda point: format_number(point.intensity)),
        number("Reached", lambda point: format_si(point.rate, "FLOP/s")),
        number("Roof", lambda point: format_si(point.roof, "FLOP/s")),
        number("Share", lambda point: format_percent(point.share)),
    )
    return Block(
        title="Roofline",
        finding=f"{case_words(best.result.case)} reaches {format_percent(best.share)} of its roof",
        parts=(Paragraph(text=what), Charts(figures=(_figure(device, bandwidth, points),), twin=twin)),
    )


def _figure(device: DeviceProfile, bandwidth: float, points: Sequence[Point]) -> Figure:
    left = min(point.intensity for point in points) / 2
    right = max(point.intensity for point in points) * 2
    roofs: dict[float, list[str]] = {}
    for precision in Precision:
        peak = peak_flops_per_s(device, precision)
        if peak is not None and any(point.result.case.precision is precision for point in points):
            roofs.setdefault(peak, []).append(precision.value)
    named = {p.result.case.workload: p for p in sorted(points, key=lambda p: p.rate)}.values()
    traces: list[dict[str, Any]] = []
    for peak, names in roofs.items():
        xs = [left, min(max(peak / bandwidth, left), right), right]
        traces.append({
            "type": "scatter", "mode": "lines+text", "x": xs,
            "y": [min(peak, bandwidth * x) / TERA for x in xs],
            "text": ["", "", label(f"peak, {', '.join(names)}")], "textposition": "top left",
            "textfont": {"size": 11, "color": QUIET}, "line": {"color": INK, "width": 1.2},
            "hoverinfo": "skip", "showlegend": False,
        })  # fmt: skip
    for precision, look in LOOKS.items():
        if found := [point for point in points if point.result.case.precision is precision]:
            traces.append({
                "type": "scatter", "mode": "markers+text", "name": label(look.name),
                "x": [point.intensity for point in found], "y": [point.rate / TERA for point in found],
                "text": [label(workload_name(p.result.case)) if p in named else "" for p in found],
                "textposition": "bottom center", "textfont": {"size": 11, "color": QUIET},
                "marker": {"color": look.color, "symbol": look.symbol, "size": 10},
                "hovertext": [
                    f"{label(case_words(point.result.case), 90)}<br>{format_si(point.rate, 'FLOP/s')}"
                    for point in found
                ],
                "hoverinfo": "text",
            })  # fmt: skip
    told = "; ".join(
        f"{case_words(point.result.case)} {format_si(point.rate, 'FLOP/s')}" for point in points[:8]
    )
    heights = [rate / TERA for rate in (*(point.rate for point in points), *roofs)]
    layout = dress() | {
        "xaxis": log_axis([left, right], "FLOP for each byte moved", room=0.0),
        "yaxis": log_axis(heights, "TFLOP/s", room=0.08),
        "showlegend": True,
    }
    return Figure(
        figure={"data": traces, "layout": layout},
        alt=f"Roofline chart of FLOP per second over FLOP per byte: {told}.",
        height_px=420,
    )


SECTIONS = {"roofline": _render}
