"""One idea as parts, which a section or a notebook shows, and the templates that make HTML of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpubench.blocks.parts import Part, held_together, printable
from gpubench.folders import package_path
from gpubench.units import isolated

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, kw_only=True)
class Block:
    """One section, whole and in its brief form.

    Attributes:
        parts: What the page shows, and Markdown.
        brief: What a terminal shows: the sentence and the table, made by the same functions.
        finding: The one thing that a reader of its heading alone should know.
    """

    title: str
    parts: tuple[Part, ...]
    brief: tuple[Part, ...] = ()
    finding: str | None = None

    def _repr_html_(self) -> str:
        """Return the whole block as a notebook shows it."""
        return as_html(self)


def as_html(block: Block) -> str:
    """Return a block as HTML that needs no script: the tables of its charts stand in for them."""
    return environment().get_template("block.html.j2").render(block=printable(block))


TEMPLATES = ("report/templates", "blocks/templates")


@cache
def environment() -> Environment:
    """Jinja with autoescape on: its default is off, and every name here may be hostile."""
    import jinja2

    made = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FileSystemLoader([package_path(folder) for folder in TEMPLATES]),
        undefined=jinja2.StrictUndefined,
        finalize=_isolated,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "kind": lambda part: type(part).__name__,
        "held_together": held_together,
    }
    return made


def _isolated(value: object) -> object:
    """Isolate names of right-to-left scripts in whatever a template shows; what is HTML already stays."""
    return isolated(value) if type(value) is str else value
