"""The memory of a step: its parts, the cards on which it fits, and the largest batch on each."""

from __future__ import annotations

from collections.abc import Iterator

from gpubench.blocks.parts import Bullets, Column, Paragraph, Part, Table, number, table, text
from gpubench.interval import stacked
from gpubench.labels import gpu_name
from gpubench.models import CardClass, MemoryBasis, MemoryFit, MemoryNeed, ParallelMode
from gpubench.predict.memory_answer import (
    EXPLANATION,
    MOST_CONTEXT,
    MOST_NAMES,
    Capacity,
    MemoryAnswer,
    MemoryAnswers,
)
from gpubench.sections.data import ALLOCATED, IN_USE, RESERVED
from gpubench.units import UNKNOWN, capitalized, format_bytes

_SHARED = {
    ParallelMode.DDP: "one job with all weights on each GPU (--jobs ddp)",
    ParallelMode.FSDP: "one job with a share of the weights on each GPU (--jobs fsdp)",
}


def answered(answers: MemoryAnswers, *, in_short: bool, by_name: bool, whole: bool = True) -> Iterator[Part]:
    """Yield the answer for a terminal: the memory that each step needs, its parts, and where it fits.

    Args:
        answers: One per workload.
        in_short: Whether to show only the memory needed, one line per workload.
        by_name: Whether cards were requested; each is then listed, with fixes or the reason for no answer.
        whole: Whether to list every size of card.
    """
    if in_short:
        yield table(
            "",
            answers,
            text("Case", lambda each: each.label),
            number("In use on a GDDR card", lambda each: stacked(each.need.device.by(format_bytes))),
            text("Where", lambda each: each.fits_on()),
        )
        return
    for answer in answers:
        yield from _of_one(answer, by_name=by_name, whole=whole)


def _of_one(answer: MemoryAnswer, *, by_name: bool, whole: bool) -> Iterator[Part]:
    yield Paragraph(text="\n".join(_does_it_fit(answer, by_name=by_name)))
    need = answer.need
    yield table(
        answer.label,
        ((ALLOCATED, need.allocated), (RESERVED, need.reserved), (IN_USE, need.device)),
        text("Memory", lambda row: row[0]),
        number("Likely (95 %)", lambda row: row[1].by(format_bytes)),
    )
    on_card = f"on {gpu_name(answer.gpu_key)}, based on " if len(answer.cards) > 1 else "based on "
    shared = f"{_SHARED[answer.case.parallel_mode]}; " if answer.case.gpu_count > 1 else ""
    yield Paragraph(text=capitalized(f"{shared}{on_card}{_basis(need)}."), tone="note")
    yield table(
        "Parts, at the peak of the step",
        _PARTS,
        text("Part", lambda part: part[0]),
        number("Memory", lambda part: format_bytes(getattr(need.parts, part[1]))),
        folded=True,
    )
    if not (by_name or whole):
        yield Paragraph(text="Every size of card: --table; one card, with fixes: --gpu NAME")
        return
    most = None if by_name else MOST_NAMES
    if answer.cards:
        yield table(
            "By size of card",
            answer.cards,
            text("Cards", lambda card: card.names(most)),
            text("Kind", lambda card: _KINDS[card.fit.card.card_class]),
            number("Largest batch", lambda card: card.fit.most_text()),
            text("Answer", lambda card: _verdict(card.fit)),
            folded=True,
        )
    if by_name:
        if fixes := [(card, fix) for card in answer.cards for fix in card.fixes]:
            yield table(
                "What would help",
                fixes,
                text("Cards", lambda row: row[0].names(None)),
                text("Change", lambda row: row[1].what),
                text("Answer", lambda row: _verdict(row[1].fit)),
            )
        if answer.speed_untold:
            yield Bullets(items=tuple(each.reason for each in answer.speed_untold))


# Cards of one size are in two rows if the overhead of context, driver and libraries differs.
_KINDS = {CardClass.HBM: "HBM", CardClass.GDDR: "GDDR", CardClass.OTHER: UNKNOWN}


def _does_it_fit(answer: MemoryAnswer, *, by_name: bool) -> Iterator[str]:
    # Yield a line per requested size of card, else one line for all sizes.
    holding = [card for card in answer.cards if card.fit.fits]
    if not by_name:
        least = holding[0].fit if holding else None
        size = least and format_bytes(least.card.listed_bytes)
        smallest = f"; on the smallest of them ({size}) at batch {least.most_text()} at most" if least else ""
        yield f"{answer.label} {answer.fits_on()}{smallest}; needs {answer.need.device.by(format_bytes)}"
        return
    for refusal in answer.refused:
        yield f"{gpu_name(refusal.gpu_key)}: no answer: {refusal.reason}"
    for card in answer.cards:
        fit, batch = card.fit, f"batch {answer.case.batch_size:,}"
        if fit.fits or fit.ran:
            most = f"; largest batch {fit.most_text()}" if fit.fits else ""
            yield f"{card.names()}: {fit.verdict_text()}{most}; {fit.likely_text()}"
        else:
            yield f"{card.names()}: {batch} {fit.verdict}; {fit.likely_text()}; {fit.largest_text()}"


def room(capacity: Capacity) -> tuple[Part, ...]:
    """Return the longest sequence of each model that fits on a card, by kind of use."""
    ways = tuple(dict.fromkeys(each.trace.way for each in capacity.rooms))
    context = {(each.trace.model, each.trace.way): each.context_tokens for each in capacity.rooms}

    def cell(tokens: int) -> str:
        return f"{tokens // 1024:,}K{'+' if tokens == MOST_CONTEXT else ''}" if tokens else "no"

    said = [f"{capacity.speed_untold}."] if capacity.speed_untold else []
    card = f"{gpu_name(capacity.gpu_key)} ({format_bytes(capacity.card.listed_bytes)})"
    return (
        Table(
            caption=f"{card}: the largest context of one sequence, in tokens",
            columns=(Column(title="Model"), *(Column(title=way, numeric=True) for way in ways)),
            rows=tuple(
                (model, *(cell(context[model, way]) for way in ways))
                for model in dict.fromkeys(model for model, _ in context)
            ),
        ),
        Paragraph(text=" ".join((EXPLANATION, *said)), tone="note"),
    )


_PARTS = (
    ("weights", "weights_bytes"),
    ("gradients", "gradients_bytes"),
    ("optimizer state", "optimizer_bytes"),
    ("activations, saved", "saved_bytes"),
    ("activations, transient", "transient_bytes"),
    ("workspace and context", "workspace_bytes"),
    ("margin", "margin_bytes"),
)


def _verdict(fit: MemoryFit) -> str:
    return f"{fit.verdict_text()}\n{fit.needs_text()}"


_AS_PUBLISHED = (
    "the upper ends equal the card's memory, since a published step with as many bytes of tensors ran "
    "on a card with no more memory"
)


def _basis(need: MemoryNeed) -> str:
    # Return what the figures are based on and what they include, without a period.
    words = {
        MemoryBasis.MEASURED: "a peak measured in this case, with the overheads of allocator and driver",
        MemoryBasis.TRACED: "a trace of the whole step, with measured overheads",
        MemoryBasis.SHAPE: "the shape of the model, with measured overheads",
        MemoryBasis.FORMULA: f"a formula with the widest bounds; not traced: {need.untraced}",
    }
    said = [words[need.basis]]
    if need.basis in {MemoryBasis.TRACED, MemoryBasis.SHAPE}:
        said += filter(None, (need.not_linear, _AS_PUBLISHED if need.as_published else None))
    if need.algorithm_bytes:
        said.append(
            f"the upper ends include up to {format_bytes(need.algorithm_bytes)} that cuDNN may take for its "
            "fastest convolution in strict fp32"
        )
    if need.compiled_loss is not None:
        said.append(
            "a training loop that also compiles its loss reserves about "
            f"{need.compiled_loss.by(format_bytes)}; gpubench does not compile the loss, but "
            "the lower ends allow for it"
        )
    return "; ".join(said)
