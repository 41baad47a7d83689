"""Whether a build of torch has kernels for a GPU.

By NVIDIA's rules of compatibility (CUDA C++ programming guide): machine code ``sm_XY`` runs on compute
capability X.Z from Z = Y on, but not between cards and systems on a chip; PTX ``compute_XY`` is compiled at
first use for any capability from X.Y on. A letter narrows both: ``a`` to X.Y itself, ``f`` to the same X.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

Capability = tuple[int, int]

# Systems on a chip whose machine code is their own: TX1, TX2, Xavier, Orin, Thor (10.1, renamed 11.0).
_ALONE = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1)})
_RENAMED = {(11, 0): (10, 1)}
OLDEST_OF_CUDA_13: Capability = (7, 5)
"""CUDA 13 has no kernels for cards before this."""
FIRST_OF_BLACKWELL: Capability = (10, 0)
"""Cards from this on need CUDA 12.8."""


def how_it_runs(capability: Capability, architectures: Iterable[str]) -> Literal["code", "ptx"] | None:
    """How a GPU runs a build: by its machine code, by PTX compiled at first use, or not at all.

    >>> how_it_runs((8, 6), ["sm_75", "sm_80", "sm_90"])
    'code'
    >>> how_it_runs((12, 0), ["sm_90", "compute_90"])
    'ptx'
    """
    ways = {_runs(capability, architecture) for architecture in architectures}
    return "code" if "code" in ways else "ptx" if "ptx" in ways else None


def _runs(device: Capability, architecture: str) -> Literal["code", "ptx"] | None:
    found = re.fullmatch(r"(sm|compute)_(\d{1,3})(\d)([af]?)", architecture)
    if found is None:
        return None
    kind, major, minor, narrowed = found.groups()
    built = (int(major), int(minor))
    alike = built[0] == device[0] and built[1] <= device[1]
    if narrowed == "a":
        fits = built == device
    elif kind == "compute":
        fits = alike if narrowed else built <= device
    elif built in _ALONE or device in _ALONE:
        fits = built == device or _RENAMED.get(device) == built
    else:
        fits = alike
    if not fits:
        return None
    return "code" if kind == "sm" else "ptx"
