"""The evidence behind the answer: measurements, and notes on its figures."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Bullets, Facts, Paragraph, Part
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import MOST_OF_A_NOTE, measured_facts
from gpubench.units import count, listing, plain


def _render(data: ReportData) -> Block:
    parts: list[Part] = []
    facts = measured_facts(data.results)
    if facts:
        parts.append(Facts(rows=facts, prominent=True))
    parts.append(_evidence(data))
    notes = () if data.ranking is None else data.ranking.said("note")
    if notes:
        parts.append(Bullets(items=tuple(plain(note, MOST_OF_A_NOTE) for note in notes)))
    return Block(title="What the answer rests on", parts=tuple(parts))


def _evidence(data: ReportData) -> Paragraph:
    """The evidence of the page's initial answer."""
    if not data.results:
        return Paragraph(
            text=(
                "Nothing was measured on this machine: every throughput below is a reference run or a "
                "prediction. `gpubench run` measures this device."
            ),
            tone="warning",
        )
    workloads = listing(dict.fromkeys(result.case.workload for result in data.results))
    name = plain((data.device.name if data.device else None) or "a device without a name", 80)
    text = f"Measured on {name}: {workloads}, {count(len(data.results), 'case')}."
    if data.is_cpu:
        text += (
            " This is a CPU, and a CPU measurement never serves as the starting point of a GPU prediction."
        )
        others = [run.device.name or "a GPU" for run in data.runs if not run.device.is_cpu]
        if others:
            names = listing(dict.fromkeys(others))
            text += f" The results folder also holds runs of {names}; the ranking uses them."
        else:
            text += " No GPU was measured: the GPUs below are reference runs or predictions from data sheets."
        return Paragraph(text=text, tone="warning")
    return Paragraph(text=text, tone="note")


SECTION = Section(key="evidence", render=_render, place=118, heading="accuracy")
