"""Every kind of device: the five that gpubench brings, and those of installed packages.

A package adds one with an entry point of the group ``gpubench.backends`` that names its ``BACKEND``.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping

import msgspec

from gpubench.errors import MisuseError
from gpubench.probe import amd, apple, cpu, nvidia, opencl
from gpubench.probe.backend import Backend, Problem

ENTRY_POINT_GROUP = "gpubench.backends"


class Backends(msgspec.Struct, frozen=True, kw_only=True):
    """Backends by name, GPUs first and the CPU last, and what kept others from being loaded."""

    found: Mapping[str, Backend]
    problems: tuple[Problem, ...] = ()


def load_backends(points: Iterable[importlib.metadata.EntryPoint] | None = None) -> Backends:
    """Load every backend.

    Args:
        points: Entry points of other packages; None means those that are installed.

    Raises:
        MisuseError: If two backends have one name.
    """
    listed = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP) if points is None else points
    found: dict[str, Backend] = {
        b.name: b for b in (nvidia.BACKEND, amd.BACKEND, apple.BACKEND, opencl.BACKEND)
    }
    problems = []
    for point in listed:
        if point.name in found or point.name == cpu.BACKEND.name:
            raise MisuseError(
                f"two backends are called {point.name!r}; uninstall the package of {point.value}"
            )
        backend = _load(point)
        if isinstance(backend, Problem):
            problems.append(backend)
        else:
            found[point.name] = backend
    return Backends(found={**found, cpu.BACKEND.name: cpu.BACKEND}, problems=tuple(problems))


def _load(point: importlib.metadata.EntryPoint) -> Backend | Problem:
    try:
        backend: Backend = point.load()
    except (ImportError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        if hasattr(backend, "devices") and hasattr(backend, "open_readings"):
            return backend
        reason = f"{point.value} has no devices() and open_readings()"
    return Problem(
        what=f"the backend {point.name} cannot be loaded",
        value=reason,
        fix="fix or uninstall the package that brings it",
        exit_code=0,
        backend=point.name,
    )
