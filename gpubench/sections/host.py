"""What limits speed: eager against graph, and so whether a faster GPU would help at all."""

from __future__ import annotations

from dataclasses import replace

from gpubench.blocks.block import Block
from gpubench.blocks.charts import Look, Mark, dots, two_lines
from gpubench.blocks.parts import Charts, Paragraph, number, table, text
from gpubench.effects import Effect, execution_effects
from gpubench.findings import FindingKind
from gpubench.interval import stacked
from gpubench.measure.checks import EAGER_OVER_GRAPH
from gpubench.models import Execution, Framework
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.throughput import LOOKS
from gpubench.sections.words import rate_of, workload_name
from gpubench.units import count, format_percent, plain

_LOOKS: dict[Execution, Look] = {
    execution: replace(look, name=f"{execution.value} against eager", pattern="")
    for execution, look in LOOKS.items()
    if execution is not Execution.EAGER
}


def _render(data: ReportData) -> Block | None:
    pairs = execution_effects(data.results)
    if not pairs:
        return None
    chart = dots(
        [_mark(pair) for pair in pairs],
        _LOOKS,
        "times as fast as eager",
        "Dot chart of graph or compile against eager",
        head_px=100,
        shared=True,
        line_at=EAGER_OVER_GRAPH,
    )
    return Block(
        title="What limits speed: the host or the device",
        parts=(
            Paragraph(text=_sentence(pairs)),
            Charts(
                figures=(chart,),
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
                    f"eager is what most programs run. Above {EAGER_OVER_GRAPH:.2f} (dotted) the host is the "
                    "limit."
                ),
            ),
        ),
    )


def _sentence(pairs: tuple[Effect, ...]) -> str:
    graphs = [pair for pair in pairs if pair.of.case.execution is Execution.GRAPH and pair.leads]
    bound = [pair for pair in graphs if pair.value > EAGER_OVER_GRAPH]
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
    names = dict.fromkeys(workload_name(pair.of.case) for pair in bound)
    return (
        f"{count(len(bound), 'case')} of {len(graphs)} are limited by launch overhead on the CPU "
        f"when run eagerly ({', '.join(names)}); run as a graph they gain up to {worst.words}. "
        "There a faster GPU will not help until the batch grows or the step runs as a graph."
    )


def _mark(pair: Effect) -> Mark:
    case = pair.of.case
    best = "best " if pair.of.measurement.at_largest_batch else ""
    framework = "" if case.framework is Framework.TORCH else f", {case.framework.value}"
    return Mark(
        row=two_lines(
            f"{plain(case.workload, 30)}{framework}",
            f"{case.precision.value} {best}batch {case.batch_size:,}",
        ),
        interval=pair.interval,
        hover=f"{_LOOKS[case.execution].name}: {pair.words}",
        told=f"{plain(pair.of.measurement.label, 100)}: {pair.words}",
        kind=case.execution,
    )


def _pace(pair: Effect) -> str:
    flagged = any(f.kind is FindingKind.HOST_BOUND for f in pair.to.measurement.findings)
    if pair.of.case.execution is Execution.COMPILE:
        return "the host, when eager" if flagged else "—"
    return "the host, when eager" if flagged or pair.value > EAGER_OVER_GRAPH else "the device"


SECTION = Section(key="host", render=_render, place=50, heading="throughput")
