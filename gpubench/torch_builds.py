"""Reads data/torch_builds.csv: which builds of torch have kernels for a GPU.

NVIDIA's compatibility rules (CUDA C++ programming guide): machine code ``sm_XY`` runs on compute capability
X.Z for Z >= Y, but not between cards and systems on a chip; PTX ``compute_XY`` is compiled at first use for
any capability from X.Y on. A suffix restricts both: ``a`` to exactly X.Y, ``f`` to the same X. Code for an
AMD target ``gfx...`` runs only on that target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from functools import cache
from typing import Literal

import msgspec

from gpubench.folders import data_rows

Capability = tuple[int, int]

# Systems on a chip with their own machine code: TX1, TX2, Xavier, Orin, Thor (10.1, renamed 11.0).
_ON_A_CHIP = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})
_RENAMED = {(10, 1): (11, 0)}
# From CUDA 13.2 on, these run the code of cards too (torch/cuda/__init__.py).
_RUN_CARD_CODE = frozenset({(7, 2), (8, 7)})
_RUN_CARD_CODE_FROM_CUDA = (13, 2)


class Build(msgspec.Struct, frozen=True):
    """One published build of a release of torch.

    Attributes:
        release: Release of torch, such as ``2.14``.
        name: The CUDA or ROCm release that it is built for, such as ``cu130`` or ``rocm7.2``.
        is_default: Whether ``pip install torch`` installs it on Linux.
        architectures: Architectures with kernels; None if unknown.
    """

    release: str
    name: str
    is_default: bool
    architectures: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"torch {self.release} {self.name}"

    @property
    def cuda(self) -> str | None:
        """The CUDA release; None for a ROCm build."""
        digits = self.name.removeprefix("cu")
        return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else None

    @property
    def recency(self) -> tuple[tuple[int, ...], bool, tuple[int, ...]]:
        """Sort key: by release, the default last within its release, then by CUDA or ROCm release."""
        release, built_for = (tuple(map(int, re.findall(r"\d+", text))) for text in (self.release, self.name))
        return release, self.is_default, built_for


@cache
def load_builds() -> tuple[Build, ...]:
    """Return every build of the table, newest first."""
    rows = data_rows("torch_builds.csv")
    builds = (
        Build(r["torch"], r["build"], r["is_default"] == "yes", tuple(r["architectures"].split()) or None)
        for r in rows
    )
    return tuple(sorted(builds, key=lambda build: build.recency, reverse=True))


@cache
def read_on() -> date:
    """Return the retrieval date of the newest row; a correct clock never shows an earlier date."""
    return max(date.fromisoformat(row["date"]) for row in data_rows("torch_builds.csv"))


@cache
def runs_on_todays_torch(target: str | None) -> bool | None:
    """Return whether the torch that ``pip install torch`` installs today has kernels for a GPU.

    That is the default CUDA build of the newest release. No ROCm build is a default, so for an AMD GPU every
    ROCm build of the newest release that has one counts. None if the GPU's target or a build's architectures
    are unknown, or for a system on a chip, which uses its vendor's builds.

    Args:
        target: Compute capability ("7.0") or AMD target ("gfx942") of the GPU.

    >>> runs_on_todays_torch("8.9"), runs_on_todays_torch("7.0"), runs_on_todays_torch(None)
    (True, False, None)
    """
    of_kind = [
        build for build in load_builds() if target and (build.cuda is None) == target.startswith("gfx")
    ]
    newest = [build for build in of_kind if build.release == of_kind[0].release]
    asked = [build for build in newest if build.is_default] or newest
    known = {_has_kernels(build, target) for build in asked}
    if True in known:
        return True
    return None if None in known or not known else False


@cache
def newest_build_for(target: str | None) -> Build | None:
    """Return the newest build that has kernels for a GPU; None if the table has none.

    >>> str(newest_build_for("7.0")), str(newest_build_for("3.7"))
    ('torch 2.14 cu126', 'torch 2.7 cu118')
    """
    return next((build for build in load_builds() if _has_kernels(build, target)), None)


def other_build_for(target: str | None) -> Build | None:
    """Return the build that a GPU needs if today's torch has no kernels for it; else None."""
    return newest_build_for(target) if runs_on_todays_torch(target) is False else None


@cache
def newest_release() -> str:
    """Return the newest release of the table."""
    return load_builds()[0].release


def _has_kernels(build: Build, target: str | None) -> bool | None:
    """Return whether a build has kernels for a compute capability or an AMD target; None if unknown."""
    if target is None or build.architectures is None:
        return None
    if target.startswith("gfx"):
        return target in build.architectures
    found = re.fullmatch(r"(\d+)\.(\d)", target)
    capability = None if found is None else (int(found[1]), int(found[2]))
    if capability is None or capability in _ON_A_CHIP:
        return None
    return how_it_runs(capability, build.architectures) is not None


def how_it_runs(
    capability: Capability, architectures: Iterable[str], cuda: str | None = None
) -> Literal["code", "ptx"] | None:
    """Return how a GPU runs a build: by machine code, by PTX compiled at first use, or not at all.

    Args:
        capability: Compute capability of the GPU.
        architectures: Architectures with kernels in the build, as torch names them.
        cuda: CUDA release of the build; None if unknown.

    >>> how_it_runs((8, 6), ["sm_75", "sm_80", "sm_90"])
    'code'
    >>> how_it_runs((12, 0), ["sm_90", "compute_90"])
    'ptx'
    """
    release = tuple(int(part) for part in re.findall(r"\d+", cuda or "")[:2])
    own_code_only = _ON_A_CHIP - _RUN_CARD_CODE if release >= _RUN_CARD_CODE_FROM_CUDA else _ON_A_CHIP
    ways = {_runs(capability, architecture, own_code_only) for architecture in architectures}
    return "code" if "code" in ways else ("ptx" if "ptx" in ways else None)


def _runs(
    device: Capability, architecture: str, own_code_only: frozenset[Capability]
) -> Literal["code", "ptx"] | None:
    found = re.fullmatch(r"(sm|compute)_(\d{1,3})(\d)([af]?)", architecture)
    if found is None:
        return None
    kind, major, minor, suffix = found.groups()
    built = (int(major), int(minor))
    in_family = built[0] == device[0] and built[1] <= device[1]
    if suffix == "a":
        fits = built == device
    elif kind == "compute":
        fits = in_family if suffix else built <= device
    elif built in _ON_A_CHIP or device in own_code_only:
        fits = _RENAMED.get(built, built) == _RENAMED.get(device, device)
    else:
        fits = in_family
    if not fits:
        return None
    return "code" if kind == "sm" else "ptx"
