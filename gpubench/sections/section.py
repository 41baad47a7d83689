"""What a section is, and which there are: every module here that has a ``SECTION``, and those of others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from gpubench import sections as room
from gpubench.blocks.block import Block
from gpubench.blocks.parts import Part
from gpubench.errors import MisuseError
from gpubench.sections.data import ReportData

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "gpubench.sections"
_KEY = re.compile(r"[A-Za-z0-9-]+")


@dataclass(frozen=True, kw_only=True)
class Section:
    """One idea of the report.

    Attributes:
        key: Letters, digits and hyphens; the section's address on the page.
        render: Gives the block, or None where there is nothing to say.
        place: Where it stands among the page's own sections, the smallest first; others follow them.
        first: Whether it is part of the page's first screen; the others wait behind their titles.
        printed: Whether a print of the page shows it, though its reader has not opened it.
    """

    key: str
    render: Callable[[ReportData], Block | None] = field(repr=False)
    place: int = 0
    first: bool = False
    printed: bool = False


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
    """Append the sections of other packages, in the order of their names."""
    sections = list(own)
    for point in sorted(plugins, key=lambda p: (p.name, p.value)):
        try:
            section = point.load()
        except (ImportError, AttributeError) as error:
            raise MisuseError(
                f"report section {point.name!r} ({point.value}) does not load: {error}; "
                "repair or uninstall the package that brings it"
            ) from error
        if not isinstance(section, Section) or not _KEY.fullmatch(section.key):
            raise MisuseError(
                f"report section {point.name!r} ({point.value}) is no gpubench.sections.section.Section "
                "with a key of letters, digits and hyphens"
            )
        if any(section.key == other.key for other in sections):
            raise MisuseError(
                f"two report sections are called {section.key!r}; uninstall one ({point.value})"
            )
        sections.append(section)
    return tuple(sections)
