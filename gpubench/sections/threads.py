"""How a CPU scales over its threads, beside what GPUs do of the same work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BASIS_LOOKS, SLATE, Look, Mark, dots, two_lines
from gpubench.blocks.parts import Charts, Figure, Paragraph, number, table, text
from gpubench.effects import Effect
from gpubench.interval import Interval, stacked
from gpubench.labels import gpu_name
from gpubench.models import Basis, Case
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import rate_of, workload_name
from gpubench.units import UNKNOWN, count, format_percent, plain, plural

_LOOKS = {"CPU": Look(name="CPU", color=SLATE)} | {
    basis: replace(look, name=f"GPU, {basis}") for basis, look in BASIS_LOOKS.items()
}
MOST_GPUS = 3
"""Beside the threads of a CPU: so many that were measured, else so many of the ranking."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What a GPU does of the work of a CPU, at its own best case; ``basis`` says how that is known."""

    name: str
    case: Case
    interval: Interval
    basis: Basis


def _render(data: ReportData) -> Block | None:
    pairs = data.thread_pairs
    if not pairs:
        return None
    groups = [tuple(group) for _, group in groupby(pairs, key=lambda pair: pair.to.case)]
    gpus = [_gpus(data, group[0].to.case) for group in groups]
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
    beside = table(
        "GPUs on the same work",
        [(group[0].to.case, gpu) for group, found in zip(groups, gpus, strict=True) for gpu in found],
        text("Workload", lambda row: workload_name(row[0])),
        text("GPU", lambda row: f"{row[1].name}\n{_case(row[1].case)}"),
        number("Throughput", lambda row: stacked(row[1].interval.text())),
        text("Basis", lambda row: row[1].basis),
    )
    charts = Charts(
        figures=tuple(_figure(group, found) for group, found in zip(groups, gpus, strict=True)),
        twin=twin,
        caption="GPUs stand below the threads, each at the precision, execution and batch that is named.",
    )
    what = Paragraph(
        text=(
            "Each number of threads has processes of its own, whose math libraries were told it before they "
            "were loaded. Efficiency is throughput over that of one thread, per thread. No thread is pinned "
            "to a core."
        )
    )
    return Block(
        title="How the CPU scales over its threads",
        brief=(twin,),
        parts=(what, charts, *((beside,) if any(gpus) else ())),
    )


def _case(case: Case) -> str:
    return f"{case.precision.value} {case.execution.value} batch {case.batch_size:,}"


def _gpus(data: ReportData, case: Case) -> tuple[Beside, ...]:
    """The fastest cases of the same work on GPUs that were measured, else on the best of the ranking."""
    measured = _best(
        Beside(
            name=plain(r.run.device.name or r.run.device.backend, 40),
            case=r.case,
            interval=r.measurement.interval,
            basis="measured",
        )
        for r in data.everything
        if not r.run.device.is_cpu and _same_work(r.case, case) and not r.measurement.at_largest_batch
    )
    return measured or _best(
        Beside(name=gpu_name(row.offer.gpu_key), case=e.case, interval=e.interval, basis=e.basis)
        for row in (() if data.ranking is None else data.ranking.rows)
        for e in row.estimates
        if row.offer.gpu_count == 1 and _same_work(e.case, case)
    )


def _same_work(one: Case, other: Case) -> bool:
    return (one.workload, one.workload_version, one.task, one.gpu_count) == (
        other.workload,
        other.workload_version,
        other.task,
        1,
    )


def _best(found: Iterable[Beside]) -> tuple[Beside, ...]:
    """The fastest of each GPU, at most ``MOST_GPUS``, in the order in which they come."""
    best: dict[str, Beside] = {}
    for gpu in found:
        known = best.get(gpu.name)
        if known is None or (gpu.interval.value or 0.0) > (known.interval.value or 0.0):
            best[gpu.name] = gpu
    return tuple(best.values())[:MOST_GPUS]


def _figure(group: Sequence[Effect], gpus: Sequence[Beside]) -> Figure:
    case = msgspec.structs.replace(group[0].to.case, threads=0)
    named = [
        (count(p.of.threads or 0, "thread"), "of the CPU", p.of.measurement.interval, "CPU") for p in group
    ]
    named += [(gpu.name, _case(gpu.case), gpu.interval, gpu.basis) for gpu in gpus]
    marks = [
        Mark(
            row=two_lines(name, below),
            interval=interval,
            hover=interval.text(),
            told=f"{name} {interval.text()}",
            kind=kind,
        )
        for name, below, interval, kind in named
    ]
    title = f"{workload_name(case)}, {_case(case)}"
    unit = plural(plain(case.sample_unit, 20))
    alt = f"Dot chart, {title} in {unit} per second"
    return dots(marks, _LOOKS, f"{unit}/s", alt, title=title, head_px=100, logarithmic=bool(gpus))


SECTION = Section(key="threads", render=_render, place=71)
