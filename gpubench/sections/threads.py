"""How a CPU scales over its threads."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.interval import stacked
from gpubench.models import Case
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import rate_of, workload_name
from gpubench.units import UNKNOWN, format_percent


def _render(data: ReportData) -> Block | None:
    pairs = data.thread_pairs
    if not pairs:
        return None
    twin = table(
        "Throughput by threads, and how many times that of one it is (95 % interval)",
        pairs,
        text("Case", lambda p: f"{workload_name(p.of.case)}\n{_case(p.of.case)}"),
        number("Threads", lambda p: f"{p.of.threads}{'' if p.of.case.threads else ', all'}"),
        number("Throughput", lambda p: rate_of(p.of.measurement)),
        number("Times one thread", lambda p: "1" if p.of is p.to else stacked(p.words)),
        number("Efficiency", lambda p: format_percent(p.value / (p.of.threads or 1))),
        text("Doubts", lambda p: ", ".join(p.doubts) or UNKNOWN),
    )
    what = Paragraph(
        text=(
            "Each number of threads has processes of its own, whose math libraries were told it before they "
            "were loaded. Efficiency is throughput over that of one thread, per thread. No thread is pinned "
            "to a core."
        )
    )
    return Block(title="How the CPU scales over its threads", brief=(twin,), parts=(what, twin))


def _case(case: Case) -> str:
    return f"{case.precision.value} {case.execution.value} batch {case.batch_size:,}"


SECTION = Section(key="threads", render=_render, place=71, heading="throughput")
