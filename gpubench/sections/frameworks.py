"""What a framework costs on this device: the same work in Keras on its backends, against torch."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, GREEN, ORANGE, SLATE, Look, Mark, dots, two_lines
from gpubench.blocks.parts import Charts, Paragraph, number, table, text
from gpubench.effects import Effect, framework_effects
from gpubench.interval import stacked
from gpubench.models import Case, Framework
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import FINDINGS, rate_of, workload_name
from gpubench.units import format_duration, plain

_LOOKS = {
    framework: Look(name=framework.value, color=color, symbol=symbol)
    for framework, color, symbol in (
        (Framework.TORCH, SLATE, "circle"),
        (Framework.KERAS_TORCH, ORANGE, "circle"),
        (Framework.KERAS_TENSORFLOW, GREEN, "square"),
        (Framework.KERAS_JAX, BLUE, "diamond"),
    )
}
_CAPTION = (
    "1 is as fast as the baseline, which is named in every row. The work is the same: layers, batch, "
    "optimizer, precision; weights are drawn by each framework's own rules. Batches lie on the device: "
    "what feeding or a first step costs is not in it."
)


def _render(data: ReportData) -> Block | None:
    pairs = framework_effects(data.results)
    if not pairs:
        return None
    founded = sorted((pair for pair in pairs if pair.leads), key=lambda p: -p.value)
    told = [
        f"{_name(p.of.case)} runs {workload_name(p.of.case)} at {p.words} the throughput of "
        f"{_name(p.to.case)}"
        for p in (founded if len(founded) < 2 else (founded[0], founded[-1]))
    ]
    sentence = Paragraph(text=f"{'; '.join(told) or 'No pair holds: see its findings'}.")
    twin = table(
        "The same work in each framework",
        pairs,
        text(
            "Workload",
            lambda p: f"{workload_name(p.of.case)}\n{p.of.case.precision.value} {p.of.batch_words}",
        ),
        text("Framework", lambda p: _name(p.of.case)),
        text("Baseline", lambda p: _name(p.to.case)),
        number("Over the baseline, 95 % interval", lambda p: stacked(p.words)),
        number("Throughput, 95 % interval", lambda p: rate_of(p.of.measurement), optional=1),
        number("Step", lambda p: format_duration(p.of.measurement.step_time_s), optional=2),
        FINDINGS,
    )
    chart = dots(
        [_mark(pair) for pair in pairs],
        _LOOKS,
        "throughput over the baseline's",
        "Dot chart of throughput over that of the baseline",
        head_px=110,
        row_px=40,
        shared=True,
        line_at=1.0,
    )
    return Block(
        title="What the framework costs on this device",
        brief=(sentence, twin),
        parts=(sentence, Charts(figures=(chart,), twin=twin, caption=_CAPTION)),
    )


def _name(case: Case) -> str:
    return f"{case.framework.value} {case.execution.value}"


def _mark(pair: Effect) -> Mark:
    case, name = pair.of.case, _name(pair.of.case)
    return Mark(
        row=two_lines(
            f"{plain(case.workload, 24)} {case.execution.value}",
            f"{case.precision.value} {pair.of.batch_words}",
        ),
        interval=pair.interval,
        hover=f"{name} over {_name(pair.to.case)}: {pair.words}",
        told=f"{workload_name(case)} {name}: {pair.words}",
        kind=case.framework,
    )


SECTION = Section(key="frameworks", render=_render, place=75, heading="throughput")
