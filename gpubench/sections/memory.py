"""Does it fit: memory of each ranked case over the batch size, its parts, and the largest batch by card."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpubench.blocks.block import Block
from gpubench.blocks.curves import Level, band_over_batch
from gpubench.blocks.parts import Charts, Column, Figure, Paragraph, Part, Table
from gpubench.models import Case, MemoryFit, MemoryNeed
from gpubench.predict import memory
from gpubench.predict.anchors import peaks_of
from gpubench.predict.memory_answer import (
    algorithm_words,
    answer_memory,
    basis_words,
    compiled_loss_words,
    part_rows,
)
from gpubench.predict.question import Question
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.units import GIB, UNKNOWN, count, format_bytes, plain

MOST_CASES = 3
"""More curves than this tell a reader nothing that the table of the verb does not."""
LEVELS_GIB = (8, 16, 24, 48, 80, 141)
DOUBLINGS = 3
"""The curve reaches from an eighth of the batch to eight times it."""
MOST_CARDS = 3


def _render(data: ReportData) -> Block | None:
    cases = data.ranking.cases if data.ranking is not None else ()
    known = [case for case in cases if case.workload in data.profiles][:MOST_CASES]
    if not known:
        return None
    intro = (
        "Memory of one step: what tensors take, what torch reserves for them, and what is in use on the "
        "device. A batch fits where the upper end does; `gpubench memory` says what would make another fit."
    )
    parts = [part for case in known for part in _parts(data, case)]
    return Block(title="Does it fit", parts=(Paragraph(text=intro), *parts))


def _parts(data: ReportData, case: Case) -> Iterator[Part]:
    question = Question(
        profile=data.profiles[case.workload],
        precision="amp" if case.precision.is_amp else case.precision,
        execution=case.execution,
        task=case.task,
        batch_size=case.batch_size,
    )
    specs = [s for s in data.specs.values() if s.vendor == "NVIDIA" and s.memory_bytes and not s.variants]
    if not specs:
        return
    answer = answer_memory(question, specs, own=data.runs, fixes=False)
    readings = peaks_of(question, data.runs)
    spec = next((s for s in specs if (s.memory_type or "").startswith("GDDR")), specs[0])
    batches = _batches(case.batch_size)
    needs = [
        memory.need_of(question, msgspec.structs.replace(case, batch_size=batch), spec, readings)
        for batch in batches
    ]
    name = f"{plain(case.workload, 40)}, {case.precision.words}"
    told = (basis_words(answer.need), algorithm_words(answer.need), compiled_loss_words(answer.need))
    words = "; ".join(filter(None, told))
    yield Paragraph(text=f"{name}: {words}.", tone="note")
    yield Charts(
        figures=(_figure(name, batches, needs),),
        twin=_twin(name, batches, needs),
        caption="Memory in use on a card with GDDR memory; on one with HBM some 0.5 GiB more.",
    )
    yield Table(
        caption=f"{name}: the parts at batch {case.batch_size:,}",
        columns=(Column(title="Part"), Column(title="Memory", numeric=True)),
        rows=tuple((part, format_bytes(size)) for part, size in part_rows(answer.need.parts)),
        folded=True,
    )
    yield Table(
        caption=f"{name}: by size of card",
        columns=(Column(title="Cards"), Column(title="Largest batch", numeric=True), Column(title="Answer")),
        rows=tuple(
            (_cards(data, card.gpu_keys), _largest(card.fit), card.fit.text()) for card in answer.cards
        ),
        folded=True,
    )


def _batches(batch_size: int) -> list[int]:
    every = {round(batch_size * 2.0**n) for n in range(-DOUBLINGS, DOUBLINGS + 1)}
    return sorted(batch for batch in every if batch >= 1)


def _figure(name: str, batches: list[int], needs: list[MemoryNeed]) -> Figure:
    bands = [_ends(need) for need in needs]
    highest = max(band[2] for band in bands)
    levels = [Level(value=gib, name=f"{gib} GiB card") for gib in LEVELS_GIB if gib <= 4 * highest]
    hovers = [f"batch {b}: {n.device.by(format_bytes)}" for b, n in zip(batches, needs, strict=True)]
    return Figure(
        figure=band_over_batch(batches, bands, levels, "memory in use, GiB", hovers),
        alt=f"Line chart of the memory in use of {name} over the batch size: {'; '.join(hovers)}.",
        title=name,
    )


def _ends(need: MemoryNeed) -> tuple[float, float, float]:
    low, value, high = ((x or 0.0) / GIB for x in (need.device.low, need.device.value, need.device.high))
    return low, value, high


def _twin(name: str, batches: list[int], needs: list[MemoryNeed]) -> Table:
    titles = ("Allocated by tensors", "Reserved by torch", "In use on the device")
    return Table(
        caption=f"{name}: memory by batch size",
        columns=(Column(title="Batch"), *(Column(title=title, numeric=True) for title in titles)),
        rows=tuple(
            (f"{batch:,}", *(f.by(format_bytes) for f in (need.allocated, need.reserved, need.device)))
            for batch, need in zip(batches, needs, strict=True)
        ),
    )


def _largest(fit: MemoryFit) -> str:
    """The largest batch, and how it is run where a CUDA graph holds less."""
    return f"{fit.largest_batch:,}{' in eager steps' if fit.in_eager_steps else ''}"


def _cards(data: ReportData, keys: tuple[str, ...]) -> str:
    names = [data.specs[key].name for key in keys[:MOST_CARDS]]
    more = len(keys) - MOST_CARDS
    return ", ".join(names) + (f" and {count(more, 'more card')}" if more > 0 else "") or UNKNOWN


SECTION = Section(key="memory", render=_render, place=125)
