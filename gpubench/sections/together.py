"""Several GPUs as one data-parallel job, beside one of them alone."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.effects import scaling_effects
from gpubench.interval import stacked
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import rate_of
from gpubench.units import UNKNOWN, format_percent, plain


def _render(data: ReportData) -> Block | None:
    pairs = scaling_effects(data.results)
    if not pairs:
        return None
    found = table(
        "Throughput of several GPUs, and how many times that of one it is (95 % interval)",
        pairs,
        text("Workload", lambda pair: plain(pair.of.case.workload, 40)),
        text("Precision", lambda pair: pair.of.case.precision.words),
        number("GPUs", lambda pair: str(pair.of.case.gpu_count)),
        number("Batch per GPU", lambda pair: str(pair.of.case.batch_size), optional=1),
        number("Throughput", lambda pair: rate_of(pair.of.measurement)),
        number("Times one GPU", lambda pair: stacked(pair.words)),
        number("Efficiency", lambda pair: format_percent(pair.value / pair.of.case.gpu_count)),
        text("Doubts", lambda pair: ", ".join(pair.doubts) or UNKNOWN),
    )
    what = Paragraph(
        text=(
            "One data-parallel job: every GPU has a batch of its own and the same weights, and the "
            "gradients are averaged in each step. Efficiency is throughput over that of one GPU, per "
            "GPU; 100 % would mean that the exchange costs nothing. All figures are eager."
        )
    )
    return Block(title="What more GPUs of this kind add", parts=(what, found), brief=(found,))


SECTION = Section(key="together", render=_render, place=80)
