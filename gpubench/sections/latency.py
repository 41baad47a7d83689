"""Inference: how long a single pass takes, and how long the slow ones take."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, Look, Mark, dots, two_lines
from gpubench.blocks.parts import Charts, Paragraph, number, table, text
from gpubench.effects import Result
from gpubench.interval import Interval
from gpubench.models import TaskKind
from gpubench.profile import load_profiles
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import rate_of, workload_name
from gpubench.units import UNKNOWN, format_duration, plain


def _render(data: ReportData) -> Block | None:
    timed = [
        r for r in data.results if r.case.task is TaskKind.INFER and r.measurement.latency_p50_s is not None
    ]
    if not timed:
        return None
    twin = table(
        "Latency at batch 1, and throughput of the main batch",
        timed,
        text("Workload", lambda r: workload_name(r.case)),
        text("Precision", lambda r: r.case.precision.words),
        text("Execution", lambda r: r.case.execution.value, optional=1),
        number("Median", lambda r: format_duration(r.measurement.latency_p50_s)),
        number("p95", lambda r: format_duration(r.measurement.latency_p95_s)),
        number("p99", _p99),
        number("Throughput", lambda r: _at_main_batch(r, data.results), optional=2),
    )
    chart = dots(
        [_mark(result) for result in timed],
        {None: Look(name="median", color=BLUE)},
        "latency, ms",
        "Dot chart of the median latency of one pass",
    )
    return Block(
        title="How long one answer takes",
        brief=(twin,),
        parts=(
            Paragraph(
                text=(
                    "Single forward passes at batch 1, each from an idle device to an idle device: what a "
                    "user of a service waits for, without network or queue. Throughput is of the main batch."
                )
            ),
            Charts(
                figures=(chart,),
                twin=twin,
                caption="The mark is the median; the line reaches to the slowest pass of a hundred.",
            ),
        ),
    )


def _mark(result: Result) -> Mark:
    case, p50, p99 = result.case, result.measurement.latency_p50_s or 0.0, result.measurement.latency_p99_s
    return Mark(
        row=two_lines(plain(case.workload, 30), f"{case.precision.value} {case.execution.value}"),
        interval=Interval(p50 * 1e3, p50 * 1e3, None if p99 is None else p99 * 1e3),
        hover=f"median {format_duration(p50)}, p99 {format_duration(p99)}",
        told=f"{plain(result.measurement.label, 100)} {format_duration(p50)}",
    )


def _p99(result: Result) -> str:
    """The slowest pass of a hundred; where fewer came in, how many did."""
    m = result.measurement
    if m.latency_p99_s is not None:
        return format_duration(m.latency_p99_s)
    return f"{UNKNOWN}\n{sum(len(launch.latency_s) for launch in m.launches)} of 100 passes"


def _at_main_batch(single: Result, results: Iterable[Result]) -> str:
    """The throughput of the same work at its main batch, else at the next one measured; never at the best.

    Only the batch may differ, and the memory format, which follows what is the faster at each batch.
    """
    profile = load_profiles().get(single.case.workload)
    main = None if profile is None else profile.main_batch
    found = [
        result
        for result in results
        if result.case.batch_size > 1
        and not result.measurement.at_largest_batch
        and result.case
        == msgspec.structs.replace(
            single.case, batch_size=result.case.batch_size, memory_format=result.case.memory_format
        )
    ]
    if not found:
        return UNKNOWN
    nearest = min(found, key=lambda r: (r.case.batch_size != main, r.case.batch_size))
    return f"{rate_of(nearest.measurement)}\n{nearest.batch_words}"


SECTION = Section(key="latency", render=_render, place=40, heading="throughput")
