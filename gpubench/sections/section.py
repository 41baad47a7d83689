"""The type of a section, and the list of sections, each in the ``SECTIONS`` of its module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

from gpubench.blocks.parts import Block, Paragraph, Part
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

PLACES: Mapping[str, tuple[str, str | None]] = {
    "answer": ("answer", None),
    "device": ("device", "device"),
    "value": ("value", None),
    "measured": ("measured", "throughput"),
    "roofline": ("roofline", "roofline"),
    "owning": ("prices", "prices"),
    "evidence": ("prediction", "accuracy"),
    "prediction": ("prediction", "accuracy"),
    "method": ("method", "method"),
    "prices": ("prices", "prices"),
    "footnotes": ("prices", "prices"),
}
"""The sections in order: the module of each, and its heading."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Content under a heading of the page.

    Attributes:
        key: Letters, digits and hyphens; the section's address on the page.
        render: Returns the block, or None if there is nothing to show.
        heading: One of ``HEADINGS``; None for a section that is part of the page's answer.
    """

    key: str
    render: Callable[[ReportData], Block | None] = field(repr=False)
    heading: str | None = None


@cache
def section_of(key: str) -> Section:
    """Return a section, importing only its module."""
    module, heading = PLACES[key]
    render = import_module(f"gpubench.sections.{module}").SECTIONS[key]
    return Section(key=key, heading=heading, render=render)


def brief(data: ReportData, *keys: str) -> list[Part]:
    """Return the terminal's version of some of the page's sections."""
    found = (section_of(key).render(data) for key in keys)
    return [part for block in found if block is not None for part in block.brief]


def unexplained(parts: Iterable[Part]) -> list[Part]:
    """Drop the notes that explain the tables, for a terminal that shows only the tables."""
    return [part for part in parts if not (isinstance(part, Paragraph) and part.tone == "note")]


def own_sections() -> tuple[Section, ...]:
    """Return every section in order."""
    return tuple(map(section_of, PLACES))
