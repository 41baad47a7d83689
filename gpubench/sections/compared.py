"""Comparisons of measured cases: devices on the same case, CPU with GPU, and cases with the roofline.

The roofline is the limit that arithmetic and memory set on the rate of a step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

from gpubench.blocks.parts import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    SLATE,
    Block,
    Charts,
    Figure,
    Look,
    Paragraph,
    Part,
    base_layout,
    label,
    log_axis,
    number,
    table,
    text,
)
from gpubench.effects import Result, by_speed, effect, ratio
from gpubench.groups import grouped
from gpubench.interval import stacked
from gpubench.measure.capability import peak_flops_per_s
from gpubench.models import Case, DeviceProfile, Precision, TaskKind
from gpubench.predict.roofline import moved_bytes, work_of
from gpubench.profile import load_profiles
from gpubench.sections.data import (
    ReportData,
    case_words,
    explained,
    kinds_words,
    newest,
    rate_of,
    same,
    title_of,
    without_largest_batch,
    workload_name,
)
from gpubench.units import UNKNOWN, count, format_duration, format_number, format_percent, format_si, plain


def devices(data: ReportData) -> list[Part]:
    """Compare devices on the same case, fastest first."""
    found = grouped(
        (result.case, result)
        for device in data.devices
        for result in newest((run for run in data.runs if same(run.device, device)), usable=True)
    )
    shared = {case: results for case, results in found.items() if len(results) > 1}
    rows = [
        (result, results[0])
        for results in shared.values()
        for result in sorted(results, key=by_speed, reverse=True)
    ]
    return explained(
        "Cases measured on more than one device, each compared with the first device on this page.",
        "The same case on each device",
        rows,
        text("Case", lambda row: case_words(row[0].case)),
        text("Device", lambda row: plain(row[0].run.device.name or "unnamed device", 40)),
        number(
            "Samples/s, 95 % interval",
            lambda row: stacked(row[0].measurement.interval.words(row[0].measurement.digits)),
        ),
        number(
            "Against the first",
            lambda row: (
                UNKNOWN
                if row[0] is row[1]
                else stacked(ratio(row[0].measurement, row[1].measurement).by(format_number, "×"))
            ),
        ),
        text("Findings", lambda row: kinds_words(row[0].doubts)),
    )


# Job for the comparison: about 17 passes over the 60,000 images of MNIST.
_JOB_SAMPLES = 1_000_000

# A CPU is too slow if its expected time exceeds the limit by this factor, whatever the interval.
_FAR_OFF = 10.0

SMALL_JOB_S = 900.0
"""No GPU is needed if a CPU does the job within this time [s]."""


@dataclass(frozen=True, kw_only=True)
class CpuGpuPair:
    """The fastest CPU result and the fastest GPU result for one workload and task.

    ``cpus`` has every CPU result that may lead (``Result.leads``); they decide whether a GPU is needed.
    """

    cpus: tuple[Result, ...]
    cpu: Result
    gpu: Result | None


def cpu_gpu_pairs(data: ReportData) -> tuple[CpuGpuPair, ...]:
    """Pair the fastest CPU and GPU results of each workload and task, at equal batch size if possible."""

    def of_one_device(*, is_cpu: bool) -> list[Result]:
        # Return the results of the page's device if it is of this kind, else of the last measured device.
        of_kind = [r for r in data.everything if r.run.device.is_cpu is is_cpu]
        return [r for r in of_kind if same(r.run.device, of_kind[0].run.device)]

    cpus, gpus = of_one_device(is_cpu=True), of_one_device(is_cpu=False)
    found = []
    for key in sorted({_key(result.case) for result in cpus}):
        mine, theirs = (
            without_largest_batch(result for result in results if _key(result.case) == key)
            for results in (cpus, gpus)
        )
        shared = {r.case.batch_size for r in mine} & {r.case.batch_size for r in theirs}
        cpu = max((r for r in mine if not shared or r.case.batch_size in shared), key=by_speed)
        able = (r for r in theirs if not shared or r.case.batch_size == cpu.case.batch_size)
        gpu = max(able, key=by_speed, default=None)
        found.append(CpuGpuPair(cpus=tuple(r for r in mine if r.leads), cpu=cpu, gpu=gpu))
    return tuple(found)


def _key(case: Case) -> tuple[str, int, str]:
    return (case.workload, case.workload_version, case.task.value)


def processor(data: ReportData) -> list[Part]:
    """Compare CPU and GPU on the same work, and say whether a small network needs a GPU at all."""
    found = cpu_gpu_pairs(data)
    if not found:
        return []
    trained = [pair.cpus for pair in found if pair.cpus and pair.cpu.case.task is TaskKind.TRAIN]
    unknown = "This CPU has no reliable training measurement, so whether it needs a GPU is unknown."
    return [
        *(Paragraph(text=said) for said in [*map(_need, trained)] or [unknown]),
        table(
            "CPU and GPU on the same workload, each at its fastest",
            found,
            text("Workload", lambda pair: title_of(pair.cpu)),
            number("CPU", lambda pair: _fastest(pair.cpu)),
            number("GPU", lambda pair: UNKNOWN if pair.gpu is None else _fastest(pair.gpu)),
            number("GPU over CPU", _factor),
        ),
    ]


def _need(cpus: Sequence[Result]) -> str:
    """Say whether a GPU is needed, judged by the intervals of all results of this CPU.

    "Not needed" requires one result that is certainly within the limit, and "too slow" that all are
    certainly beyond it. If the shortest expected time is over ``_FAR_OFF`` times the limit, a GPU is needed,
    whatever the intervals.
    """
    lows = [result.measurement.samples_per_s_low for result in cpus]
    highs = [result.measurement.samples_per_s_high for result in cpus]
    most_s = min((_JOB_SAMPLES / low for low in lows if low), default=math.inf)
    likely_s = min(map(_job_s, cpus))
    least_s = min((_JOB_SAMPLES / high if high else 0.0) for high in highs)
    flags = sorted({flag for result in cpus for flag in result.doubts})
    flagged = f" (flagged {', '.join(flags)})" if flags else ""
    limit, start = f"{SMALL_JOB_S / 60:.0f} min", f"For {workload_name(cpus[0].case)}{flagged}"
    if most_s <= SMALL_JOB_S:
        trains = f"this CPU trains on a million samples in {format_duration(most_s)} or less"
        return f"{start} no GPU is needed: {trains}."
    if likely_s > _FAR_OFF * SMALL_JOB_S:
        takes = f"a million samples take this CPU about {format_duration(likely_s)}"
        return f"{start} a GPU is needed: {takes}, over {_FAR_OFF:.0f} times the limit of {limit}."
    if least_s > SMALL_JOB_S:
        takes = f"it takes {format_duration(least_s)} or more"
        return f"{start} this CPU is too slow to train on a million samples within {limit}: {takes}."
    return (
        f"{start} it is undecided whether this CPU trains on a million samples within {limit}: the interval "
        "of its throughput includes that rate, or is unknown."
    )


def _job_s(result: Result) -> float:
    return _JOB_SAMPLES / (result.measurement.samples_per_s or 1e-9)


def _factor(pair: CpuGpuPair) -> str:
    if pair.gpu is None:
        return UNKNOWN
    if pair.gpu.case.batch_size != pair.cpu.case.batch_size:
        return f"{UNKNOWN}\nbatches differ"
    factor = effect(pair.gpu, pair.cpu)
    return f"{UNKNOWN}\nflagged" if factor.doubts else stacked(factor.words)


def _fastest(result: Result) -> str:
    flags = "".join(f"\nflagged {flag}" for flag in result.doubts)
    at = f", {count(result.threads, 'thread')}" if result.threads else ""
    job = f"a million samples in {format_duration(_job_s(result))}"
    return f"{rate_of(result.measurement)}\n{result.how}{at}\n{job}{flags}"


# --- the roofline ---------------------------------------------------------------------------------------

TERA = 1e12

_COLORS = (QUIET, GREEN, ORANGE, BLUE, PURPLE, SLATE, INK)
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross", "star")
LOOKS = {
    precision: Look(name=precision.value, color=color, symbol=symbol)
    for precision, color, symbol in zip(Precision, cycle(_COLORS), cycle(_SYMBOLS), strict=False)
}
"""The style of each precision, in the order of the table of precisions; colors repeat after the last."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One case on the roofline plot.

    Attributes:
        intensity: FLOPs per byte that the step must move [FLOP/B].
        rate: The measured rate [FLOP/s].
        roof: The lower of peak and bandwidth times intensity [FLOP/s].
    """

    result: Result
    intensity: float
    rate: float
    roof: float

    @property
    def share(self) -> float:
        """The measured rate as a share of the roof."""
        return self.rate / self.roof


def points_of(data: ReportData) -> tuple[Point, ...]:
    """Return a point for each measured case of a shipped workload, using the operators in its profile.

    A case has a point only if the device's bandwidth, and its peak at that precision, are known.
    """
    device, bandwidth = data.device, _bandwidth(data)
    found: list[Point] = []
    if device is None or bandwidth is None:
        return ()
    for result in without_largest_batch(data.results):
        case, flops = result.case, result.measurement.flops_per_sample
        rate, peak = result.measurement.achieved_flops_per_s, peak_flops_per_s(device, case.precision)
        moved = _moved_bytes(case)
        if rate is None or moved is None or not flops or peak is None:
            continue
        intensity = flops * case.batch_size / moved
        roof = min(peak, bandwidth * intensity)
        found.append(Point(result=result, intensity=intensity, rate=rate, roof=roof))
    return tuple(found)


def _bandwidth(data: ReportData) -> float | None:
    of_driver = None if data.device is None else data.device.memory_bandwidth_bytes_per_s
    return of_driver or (None if data.spec is None else data.spec.memory_bandwidth_bytes_per_s)


@cache
def _moved_bytes(case: Case) -> float | None:
    # Return the bytes that the operators of the step read and write once; None without a profile.
    profile = load_profiles().get(case.workload)
    if profile is None or profile.version != case.workload_version:
        return None
    work = work_of(profile.operators_of(case.task), case.batch_size)
    return float(moved_bytes(work, case.precision.in_half)[0]) or None


def _render(data: ReportData) -> Block | None:
    points, device, bandwidth = points_of(data), data.device, _bandwidth(data)
    if device is None or bandwidth is None or device.is_cpu or not points:
        return None
    best = max(points, key=lambda point: point.share)
    what = (
        "A step takes at least as long as its arithmetic at the precision's peak, and as long as moving its "
        "operators' bytes at the memory bandwidth. Left of the bend, memory is the limit; right of it, "
        "arithmetic is. Caches can lift a point above the slope."
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
    used = {point.result.case.precision for point in points}
    peaks = ((peak_flops_per_s(device, each), each.value) for each in Precision if each in used)
    roofs = grouped((peak, name) for peak, name in peaks if peak is not None)
    # The fastest point of each workload shows its name.
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
    described = "; ".join(
        f"{case_words(point.result.case)} {format_si(point.rate, 'FLOP/s')}" for point in points[:8]
    )
    heights = [rate / TERA for rate in (*(point.rate for point in points), *roofs)]
    layout = base_layout() | {
        "xaxis": log_axis([left, right], "FLOP per byte moved", room=0.0),
        "yaxis": log_axis(heights, "TFLOP/s", room=0.08),
        "showlegend": True,
    }
    return Figure(
        figure={"data": traces, "layout": layout},
        alt=f"Roofline chart of FLOP per second over FLOP per byte: {described}.",
        height_px=420,
    )


SECTIONS = {"roofline": _render}
