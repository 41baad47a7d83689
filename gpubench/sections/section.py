"""The type of a section, and the list of them: every module here with a ``SECTION``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from gpubench import sections as room
from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, Part
from gpubench.sections.data import ReportData

HEADINGS = {
    "throughput": "Throughput",
    "roofline": "Roofline",
    "device": "The device",
    "method": "How it was measured",
    "accuracy": "Accuracy of the predictions",
    "prices": "Prices",
}
"""The headings below the answer, in their order."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Content under a heading of the page.

    Attributes:
        key: Letters, digits and hyphens; the section's address on the page.
        render: Gives the block, or None if there is nothing to say.
        place: Its position, the smallest first.
        heading: Its heading in ``HEADINGS``; None if the page has it in its answer.
    """

    key: str
    render: Callable[[ReportData], Block | None] = field(repr=False)
    place: int = 0
    heading: str | None = None


def brief(data: ReportData, *keys: str) -> list[Part]:
    """Return the terminal's version of some sections; no other module is imported."""
    found = (import_module(f"{room.__name__}.{key}").SECTION.render(data) for key in keys)
    return [part for block in found if block is not None for part in block.brief]


def unexplained(parts: Iterable[Part]) -> list[Part]:
    """Leave out the notes that explain the tables: a terminal shows only the tables."""
    return [part for part in parts if not (isinstance(part, Paragraph) and part.tone == "note")]


@cache
def own_sections() -> tuple[Section, ...]:
    """Every section in a module of this package, in their order."""
    modules = (import_module(f"{room.__name__}.{found.name}") for found in iter_modules(room.__path__))
    found = [module.SECTION for module in modules if hasattr(module, "SECTION")]
    return tuple(sorted(found, key=lambda section: section.place))
