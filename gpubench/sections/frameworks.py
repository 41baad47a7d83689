"""What a framework costs on this device: the same work in Keras on its backends, against torch."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, GREEN, ORANGE, SLATE, Series, dots, mark_of, series_of, two_lines
from gpubench.blocks.parts import Charts, Figure, Paragraph, number, table, text
from gpubench.effects import Effect, framework_effects
from gpubench.interval import stacked
from gpubench.models import Case, Framework
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import kinds_words, rate_of
from gpubench.units import format_duration, plain

_LOOKS = {
    framework: Series(name=framework.value, color=color, symbol=symbol)
    for framework, color, symbol in (
        (Framework.TORCH, SLATE, "circle"),
        (Framework.KERAS_TORCH, ORANGE, "circle"),
        (Framework.KERAS_TENSORFLOW, GREEN, "square"),
        (Framework.KERAS_JAX, BLUE, "diamond"),
    )
}
_CAPTION = (
    "1 is as fast as the baseline, which is named in every row. The work is the same: layers, batch, "
    "optimizer, precision; weights are drawn by each framework's own rules. Keras is timed by the slope over "
    "two step counts, on batches that lie on the device: what feeding or a first step costs is not in it."
)


def _render(data: ReportData) -> Block | None:
    pairs = framework_effects(data.results)
    if not pairs:
        return None
    sentence = Paragraph(text=_sentence(pairs))
    twin = table(
        "The same work in each framework",
        pairs,
        text(
            "Workload",
            lambda p: f"{plain(p.of.case.workload, 40)}\n{p.of.case.precision.value} {p.of.batch_words}",
        ),
        text("Framework", lambda p: _name(p.of.case)),
        text("Baseline", lambda p: _name(p.to.case)),
        number("Over the baseline, 95 % interval", lambda p: stacked(p.words)),
        number("Throughput, 95 % interval", lambda p: rate_of(p.of.measurement), optional=1),
        number("Step", lambda p: format_duration(p.of.measurement.step_time_s), optional=2),
        text("Findings", lambda p: kinds_words(p.doubts)),
    )
    return Block(
        title="What the framework costs on this device",
        brief=(sentence, twin),
        parts=(sentence, Charts(figures=(_figure(pairs),), twin=twin, caption=_CAPTION)),
    )


def _name(case: Case) -> str:
    return f"{case.framework.value} {case.execution.value}"


def _sentence(pairs: tuple[Effect, ...]) -> str:
    best, worst = max(pairs, key=lambda p: p.value), min(pairs, key=lambda p: p.value)
    told = [
        f"{_name(p.of.case)} runs {plain(p.of.case.workload, 40)} at {p.words} the throughput of "
        f"{_name(p.to.case)}"
        for p in ((best,) if best is worst else (best, worst))
    ]
    return "; ".join(told) + "."


def _figure(pairs: tuple[Effect, ...]) -> Figure:
    rows = list(dict.fromkeys(map(_row, pairs)))
    marked = [
        (
            p.of.case.framework,
            mark_of(
                rows.index(_row(p)), p.interval, f"{_name(p.of.case)} over {_name(p.to.case)}: {p.words}"
            ),
        )
        for p in pairs
    ]
    told = "; ".join(f"{plain(p.of.case.workload, 40)} {_name(p.of.case)}: {p.words}" for p in pairs)
    return Figure(
        figure=dots(series_of(_LOOKS, marked), rows, "throughput over the baseline's", line_at=1.0),
        alt=f"Dot chart of throughput over that of the baseline: {told}.",
        height_px=110 + 40 * len(rows),
    )


def _row(pair: Effect) -> str:
    case = pair.of.case
    return two_lines(
        f"{plain(case.workload, 24)} {case.execution.value}", f"{case.precision.value} {pair.of.batch_words}"
    )


SECTION = Section(key="frameworks", render=_render, place=75)
