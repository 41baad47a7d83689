"""Throughput by workload and precision: one small chart a workload, executions side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, groupby

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, GREEN, INK, ORANGE, PURPLE, QUIET, SLATE, Look, Mark, bars, two_lines
from gpubench.blocks.parts import Cell, Charts, Figure, Paragraph, Table, number, table, text
from gpubench.effects import Result
from gpubench.models import Execution, Framework, MemoryFormat, Precision, TaskKind
from gpubench.record.sharing import readings_by
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import kinds_words, rate_of, told_apart, workload_name
from gpubench.units import (
    UNKNOWN,
    format_bytes,
    format_duration,
    format_number,
    format_percent,
    plain,
    plural,
)

_COLORS = (SLATE, BLUE, ORANGE, GREEN, PURPLE, INK, QUIET)
_SYMBOLS = ("triangle-up", "circle", "diamond", "square", "x", "cross", "star")
_PATTERNS = ("", "", "/", "", "\\", "x", ".")
LOOKS = {
    execution: Look(name=execution.value, color=color, symbol=symbol, pattern=pattern)
    for execution, color, symbol, pattern in zip(
        Execution, cycle(_COLORS), cycle(_SYMBOLS), cycle(_PATTERNS), strict=False
    )
}
"""How each execution is drawn, in the order of their table; one beyond the colors begins them again."""


def _render(data: ReportData) -> Block | None:
    if not data.results:
        return None
    results = sorted(data.results, key=_order)
    groups = [tuple(group) for _, group in groupby(results, key=lambda r: _order(r)[:4])]
    lead = (
        "Samples per second of whole training steps (forward, loss, backward, optimizer), with the 95 % "
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
        brief=(_brief(results),),
    )


def _order(result: Result) -> tuple[object, ...]:
    """By what results stand in a row: first by what a chart is of."""
    case = result.case
    return (
        case.workload,
        tuple(Framework).index(case.framework),
        case.task.value,
        result.measurement.at_largest_batch,
        case.batch_size,
        list(Precision).index(case.precision),
        case.memory_format or "",
        list(Execution).index(case.execution),
        case.gpu_count,
        case.workload_version,
    )


def _figure(group: Sequence[Result]) -> Figure:
    """One workload: a row for each precision, batch, layout, job and recipe, a bar for each execution."""
    apart = told_apart([result.case for result in group])
    marks = []
    for r in group:
        case, words = r.case, r.measurement.interval.text()
        version = f", version {case.workload_version}" if case.workload_version != 1 else ""
        below = ", ".join((f"batch {case.batch_size:,}", *apart(case)))  # the title says which is the best
        layout = ", channels_last" if case.memory_format is MemoryFormat.CHANNELS_LAST else ""
        marks.append(
            Mark(
                row=two_lines(f"{case.precision.value}{layout}", f"{below}{version}"),
                interval=r.measurement.interval,
                hover=f"{case.precision.value}, {case.execution.value}: {words}",
                text=r.measurement.interval.apart()[0],
                told=f"{r.how}: {words}",
                kind=case.execution,
            )
        )
    unit, title = plural(plain(group[0].case.sample_unit, 20)), _title(group[0])
    return bars(
        marks,
        LOOKS,
        f"{unit}/s",
        f"Bar chart, {title} in {unit} per second",
        title=title,
        head_px=86,
        row_px=22 + 21 * len({mark.kind for mark in marks}),
        shared=True,
    )


def _title(result: Result) -> str:
    case = result.case
    best = ", best batch" if result.measurement.at_largest_batch else ""
    task = "" if case.task is TaskKind.TRAIN else ", inference"
    framework = "" if case.framework is Framework.TORCH else f", {case.framework.value}"
    return f"{workload_name(case)}{framework}{task}{best}"


def _twin(results: Sequence[Result]) -> Table:
    apart = told_apart([result.case for result in results])
    has_jobs = any(apart(result.case) for result in results)
    return table(
        "Every measured case on this device",
        results,
        text("Workload", _title),
        text(
            "Precision",
            lambda r: r.case.precision.words + (f"\n{r.case.memory_format}" if r.case.memory_format else ""),
        ),
        text("Execution", lambda r: r.case.execution.value),
        number("Batch", lambda r: "\n".join(r.batch_parts)),
        text("Job and recipe", lambda r: ", ".join(apart(r.case)) or UNKNOWN) if has_jobs else None,
        number("Throughput, 95 % interval", _throughput),
        *_tokens(results),
        number("Step", lambda r: format_duration(r.measurement.step_time_s)),
        number("Device busy", lambda r: format_percent(r.measurement.gpu_busy)),
        number("Of peak FLOP/s", _of_peak),
        number("Of best GEMM here", lambda r: format_percent(r.measurement.mfu_of_gemm)),
        text("Shared", lambda r: _shared(r) or UNKNOWN) if any(map(_shared, results)) else None,
        text("Findings", _findings),
    )


def _shared(result: Result) -> str | None:
    """How many others shared what they read of a case on this GPU."""
    key = result.run.device.gpu_key
    return None if key is None else readings_by(key, result.case)


def _brief(results: Sequence[Result]) -> Table:
    """The same with the case in one column, and the memory that it took."""
    apart = told_apart([result.case for result in results])
    return table(
        "",
        results,
        text("Case", lambda r: f"{_title(r)}\n{', '.join((r.how, *apart(r.case)))}"),
        number("Throughput, 95 % interval", _throughput),
        *_tokens(results),
        number("Step", lambda r: format_duration(r.measurement.step_time_s)),
        number("Peak allocated", lambda r: format_bytes(r.measurement.peak_memory_bytes), optional=1),
        number("Of peak FLOP/s", _of_peak, optional=2),
        number("Device busy", lambda r: format_percent(r.measurement.gpu_busy), optional=6),
        number("Of best GEMM here", lambda r: format_percent(r.measurement.mfu_of_gemm), optional=7),
        text("Findings", _findings),
    )


def _throughput(result: Result) -> str:
    return rate_of(result.measurement) + ("\nof one process" * result.measurement.within_one_process)


def _tokens(results: Iterable[Result]) -> Iterator[Cell[Result]]:
    """Yield the column of tokens per second where a sample of any row is tokens, and no generation."""
    if any(result.measurement.tokens_per_s is not None for result in results):
        yield number("Tokens/s", lambda r: format_number(r.measurement.tokens_per_s))


def _of_peak(result: Result) -> str:
    """MFU, and HFU below where the step computes anything again."""
    m = result.measurement
    again = m.hfu is not None and m.hfu != m.mfu
    return format_percent(m.mfu) + (f"\nHFU {format_percent(m.hfu)}" if again else "")


def _findings(result: Result) -> str:
    return kinds_words(finding.kind for finding in result.measurement.findings)


SECTION = Section(key="throughput", render=_render, place=30, heading="throughput")
