"""What a lower precision gains in inference, and how far its outputs are from float32."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.effects import inference_effects
from gpubench.interval import stacked
from gpubench.models import TaskKind
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import rate_of, workload_name
from gpubench.units import UNKNOWN, format_bytes, format_percent

_WHAT = (
    "The error is that of all outputs of at most four samples against float32 on the CPU, from the same "
    "weights: |x - y| / |y|. Weights are drawn, not trained: what a trained model loses, its own data tell."
)


def _render(data: ReportData) -> Block | None:
    shown = [
        r for r in data.results if r.case.task is TaskKind.INFER and r.measurement.output_error is not None
    ]
    if not shown:
        return None
    pairs = {pair.of.case: pair for pair in inference_effects(data.results)}
    twin = table(
        "Inference at a lower precision",
        shown,
        text("Case", lambda r: f"{workload_name(r.case)}\n{r.case.execution.value} {r.batch_words}"),
        text("Precision", lambda r: r.case.precision.words),
        number("Error of outputs", lambda r: format_percent(r.measurement.output_error, 2)),
        number(
            "Over fp32, 95 % interval", lambda r: stacked(pairs[r.case].words) if r.case in pairs else UNKNOWN
        ),
        number("Throughput, 95 % interval", lambda r: rate_of(r.measurement), optional=1),
        number("Peak allocated", lambda r: format_bytes(r.measurement.peak_memory_bytes), optional=2),
    )
    title = "What a lower precision gains and costs in inference"
    return Block(title=title, parts=(Paragraph(text=_WHAT), twin), brief=(twin,))


SECTION = Section(key="outputs", render=_render, place=42, heading="throughput")
