"""Several GPUs as one data-parallel job, beside one of them alone."""

from __future__ import annotations

from gpubench.effects import Effect, scaling_effects
from gpubench.interval import stacked
from gpubench.report.data import ReportData
from gpubench.report.section import Block, Column, Paragraph, Section, Table
from gpubench.report.words import throughput
from gpubench.units import UNKNOWN, format_percent, plain


def _render(data: ReportData) -> Block | None:
    pairs = scaling_effects(data.results)
    if not pairs:
        return None
    return Block(
        title="What more GPUs of this kind add",
        parts=(
            Paragraph(
                text=(
                    "One data-parallel job: every GPU has a batch of its own and the same weights, and the "
                    "gradients are averaged in each step. Efficiency is throughput over that of one GPU, per "
                    "GPU; 100 % would mean that the exchange costs nothing. All figures are eager."
                )
            ),
            _table(pairs),
        ),
    )


def _table(pairs: tuple[Effect, ...]) -> Table:
    return Table(
        caption="Throughput of several GPUs, and how many times that of one it is (95 % interval)",
        columns=(
            Column(title="Workload"),
            Column(title="Precision"),
            Column(title="GPUs", numeric=True),
            Column(title="Batch per GPU", numeric=True),
            Column(title="Throughput", numeric=True),
            Column(title="Times one GPU", numeric=True),
            Column(title="Efficiency", numeric=True),
            Column(title="Doubts"),
        ),
        rows=tuple(_cells(pair) for pair in pairs),
    )


def _cells(pair: Effect) -> tuple[str, ...]:
    m, case = pair.of.measurement, pair.of.case
    figure = throughput(m)
    return (
        plain(case.workload, 40),
        case.precision.words,
        str(case.gpu_count),
        str(case.batch_size),
        stacked(figure),
        stacked(pair.words),
        format_percent(pair.efficiency.value),
        ", ".join(pair.doubts) or UNKNOWN,
    )


SECTION = Section(key="together", render=_render)
