"""Blocks as HTML: the templates that make it, and what they are filled with."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gpubench.blocks.parts import Block, held_together, printable
from gpubench.folders import package_path
from gpubench.units import isolated

if TYPE_CHECKING:
    from jinja2 import Environment


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
    return isolated(value) if type(value) is str else value
