"""What limits speed: eager against graph, and so whether a faster GPU would help at all."""

from __future__ import annotations

from dataclasses import replace

from gpubench.blocks.block import Block
from gpubench.blocks.charts import Series, dots, mark_of, series_of, two_lines
from gpubench.blocks.parts import Charts, Figure, Paragraph, number, table, text
from gpubench.effects import Effect, Result, execution_effects
from gpubench.findings import FindingKind
from gpubench.interval import stacked
from gpubench.models import Execution, Framework
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.throughput import LOOKS
from gpubench.sections.words import rate_of
from gpubench.units import count, format_percent, plain

HOST_BOUND_RATIO = 1.10
"""Graph over eager above which the host, not the device, paces the eager step (protocol gpubench/1)."""

_LOOKS: dict[Execution, Series] = {
    execution: replace(look, name=f"{execution.value} against eager", pattern="")
    for execution, look in LOOKS.items()
    if execution is not Execution.EAGER
}


def _render(data: ReportData) -> Block | None:
    pairs = execution_effects(data.results)
    if not pairs:
        return None
    labels = list(dict.fromkeys(_label(pair.of) for pair in pairs))
    return Block(
        title="What limits speed: the host or the device",
        parts=(
            Paragraph(text=_sentence(pairs)),
            Charts(
                figures=(_figure(pairs, labels),),
                twin=table(
                    "Eager beside graph and compile",
                    pairs,
                    text("Case", lambda p: plain(p.of.measurement.label, 100)),
                    number("Eager", lambda p: rate_of(p.to.measurement)),
                    number("Graph or compile", lambda p: rate_of(p.of.measurement)),
                    number("Ratio, 95 % interval", lambda p: stacked(p.words)),
                    number("Device busy when eager", lambda p: format_percent(p.to.measurement.gpu_busy)),
                    text("Paced by", _pace),
                ),
                caption=(
                    "A graph replays the whole step as one launch, so it shows what the device can do; "
                    f"eager is what most programs run. Above {HOST_BOUND_RATIO:.2f} (dotted) the host is the "
                    "limit."
                ),
            ),
        ),
    )


def _sentence(pairs: tuple[Effect, ...]) -> str:
    graphs = [pair for pair in pairs if pair.of.case.execution is Execution.GRAPH]
    bound = [pair for pair in graphs if pair.value > HOST_BOUND_RATIO]
    if not graphs:
        others = [
            execution.value for execution in _LOOKS if any(p.of.case.execution is execution for p in pairs)
        ]
        return f"{' and '.join(others)} against eager, with all else equal."
    if not bound:
        return (
            "No case is limited by launch overhead on the CPU: eager runs as fast as the graph, so a "
            "faster GPU would help."
        )
    worst = max(bound, key=lambda pair: (not pair.doubts, pair.value))
    names = dict.fromkeys(plain(pair.of.case.workload, 40) for pair in bound)
    return (
        f"{count(len(bound), 'case')} of {len(graphs)} are limited by launch overhead on the CPU "
        f"when run eagerly ({', '.join(names)}); run as a graph they gain up to {worst.words}. "
        "There a faster GPU will not help until the batch grows or the step runs as a graph."
    )


def _label(result: Result) -> str:
    best = "best " if result.measurement.at_largest_batch else ""
    batch = f"{result.case.precision.value} {best}batch {result.case.batch_size:,}"
    framework = "" if result.case.framework is Framework.TORCH else f", {result.case.framework.value}"
    return two_lines(f"{plain(result.case.workload, 30)}{framework}", batch)


def _figure(pairs: tuple[Effect, ...], labels: list[str]) -> Figure:
    marked = [
        (
            p.of.case.execution,
            mark_of(labels.index(_label(p.of)), p.interval, f"{_LOOKS[p.of.case.execution].name}: {p.words}"),
        )
        for p in pairs
    ]
    alt = "; ".join(f"{plain(p.of.measurement.label, 100)}: {p.words}" for p in pairs)
    return Figure(
        figure=dots(series_of(_LOOKS, marked), labels, "times as fast as eager", line_at=HOST_BOUND_RATIO),
        alt=f"Dot chart of graph or compile against eager: {alt}.",
        height_px=100 + 38 * len(labels),
    )


def _pace(pair: Effect) -> str:
    flagged = any(f.kind is FindingKind.HOST_BOUND for f in pair.to.measurement.findings)
    if pair.of.case.execution is Execution.COMPILE:
        return "the host, when eager" if flagged else "—"
    return "the host, when eager" if flagged or pair.value > HOST_BOUND_RATIO else "the device"


SECTION = Section(key="host", render=_render, place=50)
