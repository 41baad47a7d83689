"""Requests about stored runs; each field is an option of ``compare``, ``results add`` or ``share``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gpubench.errors import MisuseError
from gpubench.options import FILE, Option, Results, is_number, with_help
from gpubench.units import plain


def read_tolerance(value: Any, name: str) -> float:
    """Parse a share: "3%", "0.03", or a number.

    Raises:
        MisuseError: If the text has neither form, or the share is below 0 or at least 1.
        TypeError: If it is neither text nor a number.
    """
    if is_number(value):
        share = float(value)
    elif isinstance(value, str):
        try:
            share = float(value.rstrip("% ")) / (100 if value.rstrip().endswith("%") else 1)
        except ValueError:
            share = math.nan
    else:
        raise TypeError
    if not 0 <= share < 1:
        raise MisuseError(f"{name} {plain(str(value))!r}: give a share such as 3% or 0.03")
    return share


class CompareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs to compare, and the requirement on the second.

    Attributes:
        fail_over: The share by which B may be slower than A; None for no limit.
        by: ``device`` if the runs may come from different devices.
    """

    a: Annotated[
        str,
        Option(
            "The baseline: a run file, the start of a run id, latest, or reference (a shipped H100 run).",
            place=True,
            bare=True,
            metavar="A",
        ),
    ]
    b: Annotated[
        str,
        Option(
            "The run to compare with A; a folder means its newest run.", place=True, bare=True, metavar="B"
        ),
    ]
    fail_over: Annotated[
        float | None,
        Option(
            "Exit 1 if the whole interval of a case in B is slower than A by more than this, or if B has no "
            "figure for it; 6 if an interval is too wide to tell.",
            read=read_tolerance,
            takes="a share such as 3% or 0.03",
            python="float | str",
            metavar="3%",
        ),
    ] = None
    by: Annotated[Literal["device"] | None, Option("Compare runs from different devices.")] = None
    results: Results = None


class AddRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Runs from other machines."""

    sources: Annotated[
        tuple[Path, ...],
        Option("Run files, or folders of them.", place=True, bare=True, metavar="DIR|FILE ..."),
    ]
    results: Results = None


class ShareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run to share, and the name of its contributor."""

    run: Annotated[
        str, Option("A run file, the start of a run id, or latest.", place=True, bare=True, metavar="RUN")
    ]
    by: Annotated[str, Option("Your name in the file, in lowercase letters.")] = "anonymous"
    output: Annotated[Path | None, with_help(FILE, default="results/shared/NAME/RUN-ID.json")] = None
    results: Results = None
