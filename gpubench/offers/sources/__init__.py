"""Which price sources there are: those of this package, a file each, and those of others."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

from gpubench.errors import MisuseError
from gpubench.names import nearest
from gpubench.offers.source import Source
from gpubench.units import plain

T = TypeVar("T")


def all_sources() -> tuple[Source, ...]:
    """Return the sources of this package and of others, collected catalogs first.

    Raises:
        MisuseError: If an installed plug-in takes the name of another source.
    """
    from importlib.metadata import entry_points

    sources = {source.name: source for source in own_sources()}
    for point in entry_points(group="gpubench.offers"):
        source: Source = point.load()
        if sources.setdefault(source.name, source) is not source:
            raise MisuseError(f"two price sources are called {source.name!r} ({point.value}): uninstall one")
    return tuple(in_order(sources).values())


def own_sources() -> tuple[Source, ...]:
    """Return the ``SOURCE``, or the ``SOURCES``, of every file in ``gpubench/offers/sources``."""
    modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
    each = (getattr(module, "SOURCES", None) or (module.SOURCE,) for module in modules)
    return tuple(source for some in each for source in some)


def refreshed_providers() -> frozenset[str]:
    """Return the clouds and marketplaces whose prices a source of this package reads."""
    return frozenset(source.provider for source in own_sources())


def select_sources(sources: Sequence[Source], wanted: Sequence[str]) -> tuple[Source, ...]:
    """Return the sources of these names or of these clouds; all where none is named.

    Raises:
        MisuseError: If a name fits none.
    """
    for name in wanted:
        if not any(name.lower() in {source.name, source.provider} for source in sources):
            known = sorted({word for source in sources for word in (source.name, source.provider)})
            near = ", ".join(nearest(name, known, cutoff=0.0))
            raise MisuseError(f"no price source {plain(name)!r}; nearest known: {near}")
    names = {name.lower() for name in wanted}
    return tuple(s for s in sources if not names or names & {s.name, s.provider})


def in_order(sources: dict[str, T]) -> dict[str, T]:
    """Put collected catalogs first, so that a cloud's own answer lies over them when the file is read."""
    return dict(sorted(sources.items(), key=lambda item: (not item[0].startswith("gpuhunt-"), item[0])))
