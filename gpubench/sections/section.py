"""What a section is, and which there are: every module here that has a ``SECTION``, and those of others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from gpubench import sections as room
from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, Part
from gpubench.errors import MisuseError
from gpubench.foreign_code import load_plugin
from gpubench.sections.data import ReportData

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "gpubench.sections"
OTHERS = "others"
HEADINGS = {
    "throughput": "Throughput",
    "roofline": "Roofline",
    "device": "The device",
    "memory": "Memory and input",
    "method": "How it was measured",
    "accuracy": "Accuracy of the predictions",
    "prices": "Prices",
    OTHERS: "From other packages",
}
"""The headings below the answer, in their order."""
_KEY = re.compile(r"[A-Za-z0-9-]+")


@dataclass(frozen=True, kw_only=True)
class Section:
    """One idea of the report.

    Attributes:
        key: Letters, digits and hyphens; the section's address on the page.
        render: Gives the block, or None where there is nothing to say.
        place: Where it stands among our own sections, the smallest first; others follow them.
        heading: Which of ``HEADINGS`` it stands under on the page; None where the page has it in its answer.
        problem: Why a section of another package stands here without its content.
    """

    key: str
    render: Callable[[ReportData], Block | None] = field(repr=False)
    place: int = 0
    heading: str | None = None
    problem: str | None = None


def load_sections() -> tuple[Section, ...]:
    """Return the page's own sections in their order, then those that other packages register.

    Raises:
        MisuseError: If a plug-in does not load, is no Section, or takes a key that is taken.
    """
    from importlib.metadata import entry_points

    return combine(own_sections(), entry_points(group=ENTRY_POINT_GROUP))


def brief(data: ReportData, *keys: str) -> list[Part]:
    """Return what a terminal shows of some of the page's own sections; no other module is imported."""
    found = (import_module(f"{room.__name__}.{key}").SECTION.render(data) for key in keys)
    return [part for block in found if block is not None for part in block.brief]


@cache
def own_sections() -> tuple[Section, ...]:
    """Every section in a module of this package."""
    modules = (import_module(f"{room.__name__}.{found.name}") for found in iter_modules(room.__path__))
    found = [module.SECTION for module in modules if hasattr(module, "SECTION")]
    return tuple(sorted(found, key=lambda section: section.place))


def combine(own: tuple[Section, ...], plugins: Iterable[EntryPoint]) -> tuple[Section, ...]:
    """Append the sections of other packages, in the order of their names; one that does not load says so."""
    sections = list(own)
    for point in sorted(plugins, key=lambda p: (p.name, p.value)):
        try:
            section = load_plugin("report section", point)
        except MisuseError as error:
            sections.append(_in_place_of(len(sections), f"{error}; repair or uninstall that package"))
            continue
        if not isinstance(section, Section) or not _KEY.fullmatch(section.key):
            raise MisuseError(
                f"report section {point.name!r} ({point.value}) is not a gpubench.sections.section.Section "
                "with a key of letters, digits and hyphens"
            )
        if any(section.key == other.key for other in sections):
            raise MisuseError(
                f"two report sections are called {section.key!r}; uninstall one ({point.value})"
            )
        sections.append(section if section.heading else replace(section, heading=OTHERS))
    return tuple(sections)


def _in_place_of(place: int, problem: str) -> Section:
    block = Block(title="A section that does not load", parts=(Paragraph(text=problem, tone="warning"),))
    return Section(key=f"plug-in-{place}", render=lambda _: block, heading=OTHERS, problem=problem)
