"""What to know of the figures of a ranking, a sentence each."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Bullets
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import MOST_OF_A_NOTE
from gpubench.units import count, plain


def _render(data: ReportData) -> Block | None:
    notes = () if data.ranking is None else data.ranking.said("note")
    if not notes:
        return None
    items = tuple(plain(note, MOST_OF_A_NOTE) for note in notes)
    return Block(
        title="Notes on the ranking", finding=count(len(items), "note"), parts=(Bullets(items=items),)
    )


SECTION = Section(key="notes", render=_render, place=118, heading="prices")
