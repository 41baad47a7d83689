"""Several GPUs as one data-parallel job, beside one of them alone."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.effects import scaling_effects
from gpubench.interval import stacked
from gpubench.models import ParallelMode
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import FINDINGS, rate_of, workload_name
from gpubench.units import format_percent


def _render(data: ReportData) -> Block | None:
    pairs = scaling_effects(data.results)
    if not pairs:
        return None
    modes = {pair.of.case.parallel_mode for pair in pairs}
    found = table(
        "Throughput of several GPUs, and how many times that of one it is (95 % interval)",
        pairs,
        text("Workload", lambda pair: workload_name(pair.of.case)),
        text("Precision", lambda pair: pair.of.case.precision.words),
        number("GPUs", lambda pair: str(pair.of.case.gpu_count)),
        text(
            "How",
            lambda pair: (
                pair.of.case.parallel_mode.value
                + (f", {pair.of.case.node_count} machines" if pair.of.case.node_count > 1 else "")
            ),
            optional=2,
        ),
        number(
            "Batch per GPU",
            lambda pair: (
                f"{pair.of.case.batch_size}"
                if pair.of.case.batch_size == pair.to.case.batch_size
                else f"{pair.of.case.batch_size}\none GPU: {pair.to.case.batch_size}"
            ),
            optional=1,
        ),
        number("Throughput", lambda pair: rate_of(pair.of.measurement)),
        number("Times one GPU", lambda pair: stacked(pair.words)),
        number("Efficiency", lambda pair: format_percent(pair.value / pair.of.case.gpu_count)),
        FINDINGS,
    )
    what = Paragraph(
        text=(
            "One data-parallel job: every GPU has a batch of its own and the same weights, and the "
            "gradients are averaged in each step. Efficiency is throughput over that of one GPU, per "
            "GPU; 100 % would mean that the exchange costs nothing. All figures are eager."
            + "".join(f" {words}" for mode, words in _MODES.items() if mode in modes)
        )
    )
    return Block(title="What more GPUs of this kind add", parts=(what, found), brief=(found,))


_MODES = {
    ParallelMode.FSDP: "With fsdp every GPU has a share of the weights, and fetches the rest block by block.",
    ParallelMode.INDEPENDENT: "Independent jobs exchange nothing: what they lose they take from each other.",
}

SECTION = Section(key="together", render=_render, place=80, heading="throughput")
