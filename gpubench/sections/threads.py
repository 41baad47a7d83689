"""How a CPU scales over its threads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from gpubench.blocks.block import Block
from gpubench.blocks.charts import SLATE, Look, Mark, dots, two_lines
from gpubench.blocks.parts import Charts, Figure, Paragraph, number, table, text
from gpubench.effects import Effect
from gpubench.interval import stacked
from gpubench.models import Case
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import rate_of, workload_name
from gpubench.units import UNKNOWN, count, format_percent, plain, plural

_LOOKS = {"CPU": Look(name="CPU", color=SLATE)}


def _render(data: ReportData) -> Block | None:
    pairs = data.thread_pairs
    if not pairs:
        return None
    groups = [tuple(group) for _, group in groupby(pairs, key=lambda pair: pair.to.case)]
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
    charts = Charts(figures=tuple(map(_figure, groups)), twin=twin)
    what = Paragraph(
        text=(
            "Each number of threads has processes of its own, whose math libraries were told it before they "
            "were loaded. Efficiency is throughput over that of one thread, per thread. No thread is pinned "
            "to a core."
        )
    )
    return Block(title="How the CPU scales over its threads", brief=(twin,), parts=(what, charts))


def _case(case: Case) -> str:
    return f"{case.precision.value} {case.execution.value} batch {case.batch_size:,}"


def _figure(group: Sequence[Effect]) -> Figure:
    case = msgspec.structs.replace(group[0].to.case, threads=0)
    marks = [
        Mark(
            row=two_lines(name, "of the CPU"),
            interval=pair.of.measurement.interval,
            hover=pair.of.measurement.interval.text(),
            told=f"{name} {pair.of.measurement.interval.text()}",
            kind="CPU",
        )
        for name, pair in ((count(pair.of.threads or 0, "thread"), pair) for pair in group)
    ]
    title = f"{workload_name(case)}, {_case(case)}"
    unit = plural(plain(case.sample_unit, 20))
    alt = f"Dot chart, {title} in {unit} per second"
    return dots(marks, _LOOKS, f"{unit}/s", alt, title=title, head_px=100)


SECTION = Section(key="threads", render=_render, place=71)
