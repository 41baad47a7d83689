"""Throughput by workload and precision: one small chart a workload, executions side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from gpubench.models import Case, Execution, MemoryFormat, Precision, TaskKind
from gpubench.report.charts import BLUE, ORANGE, SLATE, Mark, Series, bars, two_lines
from gpubench.report.data import ReportData, Result
from gpubench.report.section import Block, Charts, Column, Figure, Paragraph, Section, Table
from gpubench.report.words import PRECISION_WORDS, estimate, plural, stacked, throughput
from gpubench.units import format_duration, format_percent, plain

EXECUTION_ORDER = (Execution.EAGER, Execution.GRAPH, Execution.COMPILE)
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
    return Block(
        title="Throughput by workload and precision",
        parts=(
            Paragraph(text=lead),
            Charts(figures=tuple(_figure(group) for group in groups), twin=_twin(results)),
        ),
    )


def _workload(result: Result) -> tuple[str, str]:
    return (result.case.workload, result.case.task.value)


def _order(result: Result) -> tuple[object, ...]:
    case = result.case
    return (
        case.workload,
        case.task.value,
        case.batch_size,
        list(Precision).index(case.precision),
        case.memory_format or "",
        EXECUTION_ORDER.index(case.execution),
        case.gpu_count,
        case.workload_version,
    )


def _figure(group: Sequence[Result]) -> Figure:
    """One workload: a row for each precision, batch and layout, a bar for each execution."""
    rows = list(dict.fromkeys(_row_label(result.case) for result in group))
    series = [
        Series(
            name=execution.value,
            marks=tuple(
                _mark(result, rows.index(_row_label(result.case)))
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
    title = _title(case)
    figure = bars(series, rows, f"{unit}/s")
    return Figure(
        figure=figure, title=title, alt=f"Bar chart, {title} in {unit} per second: {_alt(group)}.",
        height_px=86 + len(rows) * (22 + 21 * len(series)),
    )  # fmt: skip


def _title(case: Case) -> str:
    task = "" if case.task is TaskKind.TRAIN else ", inference"
    return f"{plain(case.workload, 40)}{task}"


def _row_label(case: Case) -> str:
    layout = ", channels_last" if case.memory_format is MemoryFormat.CHANNELS_LAST else ""
    gpus = "" if case.gpu_count == 1 else f", {case.gpu_count} GPUs"
    version = f", version {case.workload_version}" if case.workload_version != 1 else ""
    return two_lines(case.precision.value, f"batch {case.batch_size}{layout}{gpus}{version}")


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
        f"{r.case.precision.value} {r.case.execution.value} batch {r.case.batch_size}: {_interval(r)}"
        for r in group
    )


def _interval(result: Result) -> str:
    m = result.measurement
    return estimate(m.samples_per_s, m.samples_per_s_low, m.samples_per_s_high)


def _twin(results: Iterable[Result]) -> Table:
    return Table(
        caption="Every measured case on this device",
        columns=_COLUMNS,
        rows=tuple(_cells(result) for result in results),
    )


def _cells(result: Result) -> tuple[str, ...]:
    m, case = result.measurement, result.case
    return (
        _title(case),
        PRECISION_WORDS[case.precision] + (f"\n{case.memory_format}" if case.memory_format else ""),
        case.execution.value,
        str(case.batch_size),
        stacked(throughput(m.samples_per_s, m.samples_per_s_low, m.samples_per_s_high, case.sample_unit)),
        format_duration(m.step_time_s),
        format_percent(m.gpu_busy),
        format_percent(m.mfu),
        format_percent(m.mfu_of_gemm),
        ", ".join(sorted({finding.kind.value for finding in m.findings})) or "none",
    )


SECTION = Section(key="throughput", render=_render)
