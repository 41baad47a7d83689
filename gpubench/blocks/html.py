"""The templates that make HTML of blocks: in the page, where a script draws their charts, and alone."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gpubench.blocks.parts import held_together, told
from gpubench.blocks.sorting import sort_value
from gpubench.shipped import package_path
from gpubench.units import isolated

if TYPE_CHECKING:
    from jinja2 import Environment

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
        "told": told,
        "sort_value": sort_value,
        "held_together": held_together,
    }
    return made


def _isolated(value: object) -> object:
    """Isolate names of right-to-left scripts in whatever a template shows; what is HTML already stays."""
    return isolated(value) if type(value) is str else value
