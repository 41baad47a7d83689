"""Several GPUs as one data-parallel job, beside one of them alone."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.effects import Effect, scaling_effects
from gpubench.interval import stacked
from gpubench.models import ParallelMode
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import kinds_words, rate_of
from gpubench.units import format_percent, plain


def _render(data: ReportData) -> Block | None:
    pairs = scaling_effects(data.results)
    if not pairs:
        return None
    modes = {pair.of.case.parallel_mode for pair in pairs}
    found = table(
        "Throughput of several GPUs, and how many times that of one it is (95 % interval)",
        pairs,
        text("Workload", lambda pair: plain(pair.of.case.workload, 40)),
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
        number("Batch per GPU", _batch, optional=1),
        number("Throughput", lambda pair: rate_of(pair.of.measurement)),
        number("Times one GPU", lambda pair: stacked(pair.words)),
        number("Efficiency", lambda pair: format_percent(pair.value / pair.of.case.gpu_count)),
        text("Findings", lambda pair: kinds_words(pair.doubts)),
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


def _batch(pair: Effect) -> str:
    one, each = pair.to.case.batch_size, pair.of.case.batch_size
    return str(each) if one == each else f"{each}\none GPU: {one}"


_MODES = {
    ParallelMode.FSDP: "With fsdp every GPU has a share of the weights, and fetches the rest block by block.",
    ParallelMode.INDEPENDENT: "Independent jobs exchange nothing: what they lose they take from each other.",
}

SECTION = Section(key="together", render=_render, place=80)
