"""One check of `gpubench doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at and seen: ``fail`` keeps a run from it, ``warn`` makes its figures worth less.

    ``none`` is neither: what was looked for is not here, and nothing needs it.
    """

    name: str
    status: Literal["ok", "none", "warn", "fail"]
    seen: str
    fix: str | None = None


def ok(name: str, seen: str) -> Check:
    """Nothing to fix."""
    return Check(name=name, status="ok", seen=seen)


def none(name: str, seen: str) -> Check:
    """What was looked for is not here, and nothing needs it."""
    return Check(name=name, status="none", seen=seen)


def warn(name: str, seen: str, fix: str) -> Check:
    """A run works, and its figures are worth less."""
    return Check(name=name, status="warn", seen=seen, fix=fix)


def fail(name: str, seen: str, fix: str) -> Check:
    """A run does not work."""
    return Check(name=name, status="fail", seen=seen, fix=fix)
