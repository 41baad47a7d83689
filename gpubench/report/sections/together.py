"""Several GPUs as one data-parallel job, beside one of them alone."""

from __future__ import annotations

import msgspec

from gpubench.interval import stacked
from gpubench.report.data import ReportData, Result
from gpubench.report.ratios import Ratio, ratio
from gpubench.report.section import Block, Column, Paragraph, Section, Table
from gpubench.report.words import throughput
from gpubench.units import UNKNOWN, format_percent, plain


def gains(results: tuple[Result, ...]) -> tuple[Ratio, ...]:
    """Pair every case on several GPUs with the same case on one."""
    alone = {r.case: r for r in results if r.case.gpu_count == 1}
    pairs = []
    for result in results:
        single = alone.get(msgspec.structs.replace(result.case, gpu_count=1))
        if result.case.gpu_count > 1 and single is not None:
            pairs.append(ratio(result, single))
    return tuple(pairs)


def _render(data: ReportData) -> Block | None:
    pairs = gains(data.results)
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


def _table(pairs: tuple[Ratio, ...]) -> Table:
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


def _cells(pair: Ratio) -> tuple[str, ...]:
    m, case = pair.of.measurement, pair.of.case
    figure = throughput(m)
    return (
        plain(case.workload, 40),
        case.precision.words,
        str(case.gpu_count),
        str(case.batch_size),
        stacked(figure),
        stacked(pair.words),
        format_percent(pair.value / case.gpu_count),
        ", ".join(pair.doubts) or UNKNOWN,
    )


SECTION = Section(key="together", render=_render)
