"""One idea as parts: what a section, and a notebook, shows."""

from __future__ import annotations

from dataclasses import dataclass

from gpubench.blocks.html import environment
from gpubench.blocks.parts import Part, printable


@dataclass(frozen=True, kw_only=True)
class Block:
    """One section, whole and in its brief form.

    Attributes:
        parts: What the page shows, and Markdown.
        brief: What a terminal shows: the sentence and the table, made by the same functions.
    """

    title: str
    parts: tuple[Part, ...]
    brief: tuple[Part, ...] = ()

    def _repr_html_(self) -> str:
        """Return the whole block as a notebook shows it."""
        return as_html(self)


def as_html(block: Block) -> str:
    """Return a block as HTML that needs no script: the tables of its charts stand in for them."""
    return environment().get_template("block.html.j2").render(block=printable(block))
