"""Throughput by workload and precision: one small chart a workload, executions side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from gpubench.interval import stacked
from gpubench.models import Execution, Measurement, MemoryFormat, Precision, TaskKind
from gpubench.report.charts import BLUE, ORANGE, SLATE, Mark, Series, bars, two_lines
from gpubench.report.data import ReportData, Result
from gpubench.report.section import Block, Charts, Column, Figure, Paragraph, Section, Table
from gpubench.report.words import throughput
from gpubench.units import format_duration, format_percent, plain, plural

EXECUTION_ORDER = tuple(Execution)
_LOOKS = {Execution.EAGER: (SLATE, ""), Execution.GRAPH: (BLUE, ""), Execution.COMPILE: (ORANGE, "/")}

_COLUMNS = (
    Column(title="Workload"),
    Column(title="Precision"),
    Column(title="Execution"),
    Column(title="Batch", numeric=True),
    Column(title="Throughput, 95 % interval", numeric=True),
    Column(title="Step", numeric=True),
    Column(title="Device busy", numeric=True),
    Column(title="Of peak FLOP/s", numeric=True),
    Column(title="Of best GEMM here", numeric=True),
    Column(title="Findings"),
)


def _render(data: ReportData) -> Block | None:
    if not data.results:
        return None
    results = sorted(data.results, key=_order)
    groups = [tuple(group) for _, group in groupby(results, key=_workload)]
    lead = (
        "Samples per second of whole training steps (forward, loss, backward, optimiser), with the 95 % "
        "interval as a whisker. Where a whisker cannot be seen, it is narrower than its line. Scales differ "
        "between workloads: an image is not a sequence."
    )
    if any(result.measurement.at_largest_batch for result in results):
        lead += (
            " Best batch is a group of its own: there each case has the largest batch that fits on this "
            "device, which is not comparable with an equal batch."
        )
    return Block(
        title="Throughput by workload and precision",
        parts=(
            Paragraph(text=lead),
            Charts(figures=tuple(_figure(group) for group in groups), twin=_twin(results)),
        ),
    )


def _workload(result: Result) -> tuple[str, str, bool]:
    return (result.case.workload, result.case.task.value, result.measurement.at_largest_batch)


def _order(result: Result) -> tuple[object, ...]:
    case = result.case
    return (
        case.workload,
        case.task.value,
        result.measurement.at_largest_batch,
        case.batch_size,
        list(Precision).index(case.precision),
        case.memory_format or "",
        EXECUTION_ORDER.index(case.execution),
        case.gpu_count,
        case.workload_version,
    )


def _figure(group: Sequence[Result]) -> Figure:
    """One workload: a row for each precision, batch and layout, a bar for each execution."""
    rows = list(dict.fromkeys(_row_label(result) for result in group))
    series = [
        Series(
            name=execution.value,
            marks=tuple(
                _mark(result, rows.index(_row_label(result)))
                for result in group
                if result.case.execution is execution
            ),
            colour=_LOOKS[execution][0],
            pattern=_LOOKS[execution][1],
        )
        for execution in EXECUTION_ORDER
        if any(result.case.execution is execution for result in group)
    ]
    case = group[0].case
    unit = plural(plain(case.sample_unit, 20))
    title = _title(group[0])
    figure = bars(series, rows, f"{unit}/s")
    return Figure(
        figure=figure, title=title, alt=f"Bar chart, {title} in {unit} per second: {_alt(group)}.",
        height_px=86 + len(rows) * (22 + 21 * len(series)),
    )  # fmt: skip


def _title(result: Result) -> str:
    case = result.case
    best = ", best batch" if result.measurement.at_largest_batch else ""
    task = "" if case.task is TaskKind.TRAIN else ", inference"
    return f"{plain(case.workload, 40)}{task}{best}"


def _row_label(result: Result) -> str:
    """What tells the rows of one chart apart; that a batch is the best one stands in its title."""
    case = result.case
    layout = ", channels_last" if case.memory_format is MemoryFormat.CHANNELS_LAST else ""
    gpus = "" if case.gpu_count == 1 else f", {case.gpu_count} GPUs"
    version = f", version {case.workload_version}" if case.workload_version != 1 else ""
    return two_lines(f"{case.precision.value}{layout}", f"batch {case.batch_size:,}{gpus}{version}")


def _mark(result: Result, row: int) -> Mark:
    m = result.measurement
    value = m.samples_per_s or 0.0
    interval = _interval(result)
    return Mark(
        row=row,
        value=value,
        low=m.samples_per_s_low,
        high=m.samples_per_s_high,
        text=interval.partition(" ")[0],
        hover=f"{m.case.precision.value}, {m.case.execution.value}: {interval}",
    )


def _alt(group: Iterable[Result]) -> str:
    return "; ".join(
        f"{r.case.precision.value} {r.case.execution.value} {r.batch_words}: {_interval(r)}" for r in group
    )


def _interval(result: Result) -> str:
    return result.measurement.interval.text()


def _twin(results: Iterable[Result]) -> Table:
    return Table(
        caption="Every measured case on this device",
        columns=_COLUMNS,
        rows=tuple(_cells(result) for result in results),
    )


def _cells(result: Result) -> tuple[str, ...]:
    m, case = result.measurement, result.case
    return (
        _title(result),
        case.precision.words + (f"\n{case.memory_format}" if case.memory_format else ""),
        case.execution.value,
        result.batch_words.removeprefix("batch ").replace(", l", "\nl"),
        _throughput_cell(m),
        format_duration(m.step_time_s),
        format_percent(m.gpu_busy),
        format_percent(m.mfu),
        format_percent(m.mfu_of_gemm),
        ", ".join(sorted({finding.kind.value for finding in m.findings})) or "none",
    )


def _throughput_cell(m: Measurement) -> str:
    figure = stacked(throughput(m))
    return f"{figure}\nwithin one process" if m.within_one_process else figure


SECTION = Section(key="throughput", render=_render)
