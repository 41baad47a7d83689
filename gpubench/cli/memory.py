"""`gpubench memory`: what a step needs, whether it fits, and what would make it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gpubench.blocks.parts import Column, Paragraph, Table
from gpubench.blocks.terminal import show
from gpubench.cli.common import JsonOption, print_json
from gpubench.cli.options import options_of
from gpubench.predict.request import MemoryRequest
from gpubench.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpubench.predict.capacity import Capacity
    from gpubench.predict.memory_answer import MemoryAnswer

MOST_NAMES = 3
"""Cards of one size that are named; the others are counted."""
_SHARED = {
    "ddp": "one job that holds all weights on each GPU (--jobs ddp)",
    "fsdp": "one job that holds a share of the weights on each GPU (--jobs fsdp)",
}


@options_of(MemoryRequest)
def verb(request: MemoryRequest, as_json: JsonOption = False) -> None:
    """Say what a step needs in memory, on which GPUs it fits, and what would make it fit."""
    if request.gpus and not request.workloads:
        _show_capacity(request, as_json)
        return
    from gpubench.predict.memory_answer import memory

    answers = memory(request)
    asked, by_name = bool(request.workloads), bool(request.gpus)
    if as_json:
        documents = [answer.flat() for answer in answers]
        print_json(
            documents[0] if len(request.workloads) == 1 else {"schema_version": 1, "workloads": documents}
        )
        return
    for answer in answers:
        lines = _lines(answer, by_name=by_name) if asked else _short_lines(answer)
        for line in lines:
            typer.echo(line)


def _show_capacity(request: MemoryRequest, as_json: bool) -> None:
    """What each card has room for."""
    import msgspec

    from gpubench.errors import MisuseError
    from gpubench.options import check_fields
    from gpubench.predict.capacity import capacity_of
    from gpubench.specs import require_spec

    check_fields(request)
    bare = MemoryRequest(gpus=request.gpus, results=request.results, asked=request.asked)
    if msgspec.structs.astuple(request) != msgspec.structs.astuple(bare):
        raise MisuseError(
            "without a workload --gpu says what the card has room for, and takes no other option: name one"
        )
    found = [capacity_of(require_spec(name)) for name in request.gpus]
    if as_json:
        print_json({"schema_version": 1, "gpus": [each.flat() for each in found]})
        return
    for each in found:
        _capacity_table(each)


def _capacity_table(capacity: Capacity) -> None:
    from gpubench.predict.capacity import MOST_CONTEXT, WORDS

    ways = tuple(dict.fromkeys(room.way for room in capacity.rooms))
    by_model = {
        model: {room.way: room.context_tokens for room in capacity.rooms if room.model == model}
        for model in dict.fromkeys(room.model for room in capacity.rooms)
    }

    def cell(tokens: int) -> str:
        return f"{tokens // 1024:,}K{'+' if tokens == MOST_CONTEXT else ''}" if tokens else "no"

    listed = format_bytes(capacity.card.listed_bytes)
    show(
        Table(
            caption=f"{capacity.gpu_key} ({listed}): the largest context of one sequence, in tokens",
            columns=(Column(title="Model"), *(Column(title=way, numeric=True) for way in ways)),
            rows=tuple((model, *(cell(found[way]) for way in ways)) for model, found in by_model.items()),
        ),
        Paragraph(text=WORDS, tone="note"),
    )


def _short_lines(answer: MemoryAnswer) -> Iterator[str]:
    yield f"{answer.label}: {answer.need.device.by(format_bytes)} in use"


def _lines(answer: MemoryAnswer, *, by_name: bool) -> Iterator[str]:
    yield from _need_lines(answer)
    yield ""
    yield from _card_lines(answer, by_name=by_name)
    if by_name:
        yield from (f"{refusal.gpu_key}: no answer: {refusal.reason}" for refusal in answer.refused)


def _need_lines(answer: MemoryAnswer) -> Iterator[str]:
    from gpubench.predict.memory_answer import algorithm_words, basis_words, compiled_loss_words, part_rows

    need = answer.need
    yield answer.label
    if answer.case.gpu_count > 1:
        yield f"  {_SHARED[answer.case.parallel_mode]}"
    whose = f"on {answer.gpu_key}, " if len(answer.cards) > 1 else ""
    yield f"  {whose}by {basis_words(need)}"
    for name, figure in (
        ("allocated by tensors", need.allocated),
        ("reserved by torch", need.reserved),
        ("in use on the device", need.device),
    ):
        yield f"  {name:24}{figure.by(format_bytes)}"
    for words in filter(None, (algorithm_words(need), compiled_loss_words(need))):
        yield f"  {words}"
    yield "of which, at the highest moment of the step"
    for name, size in part_rows(need.parts):
        yield f"  {name:24}{format_bytes(size)}"


def _card_lines(answer: MemoryAnswer, *, by_name: bool) -> Iterator[str]:
    for card in answer.cards:
        names = ", ".join(card.gpu_keys if by_name else card.gpu_keys[:MOST_NAMES])
        more = 0 if by_name else len(card.gpu_keys) - MOST_NAMES
        others = f" and {more} more" if more > 0 else ""
        largest = f"; {card.fit.largest_text()}" if card.fit.fits else ""
        yield f"{names}{others}: {card.fit.text()}{largest}"
        if by_name:
            for fix in card.fixes:
                yield f"  {fix.what}: {fix.fit.text()}"
