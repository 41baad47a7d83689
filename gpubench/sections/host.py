"""Who sets the pace: eager against graph, and so whether a faster GPU would help at all."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpubench.blocks.charts import BLUE, ORANGE, Mark, Series, dots, two_lines
from gpubench.blocks.parts import Block, Charts, Column, Figure, Paragraph, Table
from gpubench.findings import FindingKind
from gpubench.interval import stacked
from gpubench.models import Execution
from gpubench.sections.data import ReportData, Result
from gpubench.sections.ratios import Ratio, ratio
from gpubench.sections.section import Section
from gpubench.sections.words import throughput
from gpubench.units import count, format_percent, plain

HOST_BOUND_RATIO = 1.10
"""Graph over eager above which the host, not the device, paces the eager step (protocol gpubench/1)."""

_NAMES = {Execution.GRAPH: "graph against eager", Execution.COMPILE: "compile against eager"}
_LOOKS = {Execution.GRAPH: (BLUE, "circle"), Execution.COMPILE: (ORANGE, "diamond")}


def gains(results: Iterable[Result]) -> tuple[Ratio, ...]:
    """Pair every graph or compile case with its eager twin: all else equal."""
    known = {result.case: result for result in results}
    pairs = []
    for case, result in known.items():
        eager = known.get(msgspec.structs.replace(case, execution=Execution.EAGER))
        if case.execution is not Execution.EAGER and eager is not None:
            pairs.append(ratio(result, eager))
    return tuple(sorted(pairs, key=lambda p: (p.of.case.workload, p.of.case.batch_size, p.of.case.label)))


def _render(data: ReportData) -> Block | None:
    pairs = gains(data.results)
    if not pairs:
        return None
    rows = [_label(pair.of) for pair in pairs]
    labels = list(dict.fromkeys(rows))
    return Block(
        title="Who sets the pace: the host or the device",
        parts=(
            Paragraph(text=_sentence(pairs)),
            Charts(
                figures=(_figure(pairs, labels),),
                twin=_twin(pairs),
                caption=(
                    "A graph replays the whole step as one launch, so it shows what the device can do; "
                    f"eager is what most programs run. Above {HOST_BOUND_RATIO:.2f} (dotted) the host is the "
                    "limit."
                ),
            ),
        ),
    )


def _sentence(pairs: tuple[Ratio, ...]) -> str:
    graphs = [pair for pair in pairs if pair.of.case.execution is Execution.GRAPH]
    bound = [pair for pair in graphs if pair.value > HOST_BOUND_RATIO]
    if not graphs:
        return "torch.compile against eager, with all else equal."
    if not bound:
        return "No case is bound by the host: eager runs as fast as the graph, so a faster GPU would help."
    worst = max(bound, key=lambda pair: (not pair.doubts, pair.value))
    names = dict.fromkeys(plain(pair.of.case.workload, 40) for pair in bound)
    return (
        f"{count(len(bound), 'case')} of {len(graphs)} are bound by the host when run eagerly "
        f"({', '.join(names)}); run as a graph they gain up to {worst.words}. There a dearer GPU buys "
        "nothing until the batch grows or the step runs as a graph."
    )


def _label(result: Result) -> str:
    best = "best " if result.measurement.at_largest_batch else ""
    batch = f"{result.case.precision.value} {best}batch {result.case.batch_size:,}"
    return two_lines(plain(result.case.workload, 30), batch)


def _figure(pairs: tuple[Ratio, ...], labels: list[str]) -> Figure:
    series = [
        Series(
            name=_NAMES[execution],
            marks=tuple(
                Mark(
                    row=labels.index(_label(p.of)),
                    value=p.value,
                    low=p.interval.low,
                    high=p.interval.high,
                    hover=f"{_NAMES[execution]}: {p.words}",
                )
                for p in pairs
                if p.of.case.execution is execution
            ),
            colour=_LOOKS[execution][0],
            symbol=_LOOKS[execution][1],
        )
        for execution in _NAMES
        if any(p.of.case.execution is execution for p in pairs)
    ]
    alt = "; ".join(f"{plain(p.of.measurement.label, 100)}: {p.words}" for p in pairs)
    return Figure(
        figure=dots(series, labels, "times as fast as eager", line_at=HOST_BOUND_RATIO),
        alt=f"Dot chart of graph or compile against eager: {alt}.",
        height_px=100 + 38 * len(labels),
    )


def _twin(pairs: tuple[Ratio, ...]) -> Table:
    return Table(
        caption="Eager beside graph and compile",
        columns=(
            Column(title="Case"),
            Column(title="Eager", numeric=True),
            Column(title="Graph or compile", numeric=True),
            Column(title="Ratio, 95 % interval", numeric=True),
            Column(title="Device busy when eager", numeric=True),
            Column(title="Paced by"),
        ),
        rows=tuple(
            (
                plain(p.of.measurement.label, 100),
                stacked(_throughput(p.to)),
                stacked(_throughput(p.of)),
                stacked(p.words),
                format_percent(p.to.measurement.gpu_busy),
                _pace(p),
            )
            for p in pairs
        ),
    )


def _throughput(result: Result) -> str:
    m = result.measurement
    return throughput(m)


def _pace(pair: Ratio) -> str:
    flagged = any(f.kind is FindingKind.HOST_BOUND for f in pair.to.measurement.findings)
    if pair.of.case.execution is Execution.COMPILE:
        return "the host, when eager" if flagged else "—"
    return "the host, when eager" if flagged or pair.value > HOST_BOUND_RATIO else "the device"


SECTION = Section(key="host", render=_render, place=50)
