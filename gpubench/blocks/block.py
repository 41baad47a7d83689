"""One idea as parts, which a section or a notebook shows, and the templates that make HTML of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpubench.blocks.parts import Part, held_together, printable
from gpubench.folders import package_path
from gpubench.units import isolated

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, kw_only=True)
class Block:
    """One section, whole and in its brief form.

    Attributes:
        parts: What the page shows, and Markdown.
        brief: What a terminal shows: the sentence and the table, made by the same functions.
        finding: The one thing that a reader of its heading alone should know.
    """

    title: str
    parts: tuple[Part, ...]
    brief: tuple[Part, ...] = ()
    finding: str | None = None

    def _repr_html_(self) -> str:
        """Return the whole block as a notebook shows it."""
        return as_html(self)


def as_html(block: Block) -> str:
    """Return a block as HTML that needs no script: the tables of its charts stand in for them."""
    return environment().get_template("block.html.j2").render(block=printable(block))


TEMPLATES = ("report/templates", "blocks/templates")


@cache
def environment() -> Environment:
    """Jinja with autoescape on: its default is off, and every name here may be hostile."""
    import jinja2

    made = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FileSystemLoader([package_path(folder) for folder in TEMPLATES]),
        undefined=jinja2.StrictUndefined,
        finalize=_isolated,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "kind": lambda part: type(part).__name__,
        "sort_value": sort_value,
        "held_together": held_together,
    }
    return made


def _isolated(value: object) -> object:
    """Isolate names of right-to-left scripts in whatever a template shows; what is HTML already stays."""
    return isolated(value) if type(value) is str else value


_SECONDS = {
    "ns": 1e-9,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "day": 86_400.0,
    "year": 3.15576e7,
}
_BYTES = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_PREFIXES = {"": 1.0, "n": 1e-9, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, **_SECONDS, **_BYTES}
_SI = re.compile(r"([nµmkMGTP]?)(?:B|FLOP|W|Wh|J|Hz)(?:/|$)")
_FIGURE = re.compile(r"[^\d+-]{0,3}([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?) ?([^\s(,]*)")


def sort_value(cell: str) -> float | None:
    """Return the figure that a cell begins with, in the base of its unit; None where it begins with none.

    >>> sort_value("1.2 ms"), sort_value("900 µs"), sort_value("$1,234/h")
    (0.0012, 0.0009, 1234.0)
    >>> sort_value("4.5 million (3 to 5)"), sort_value("12 GiB"), sort_value("34 TFLOP/s"), sort_value("—")
    (4500000.0, 12884901888.0, 34000000000000.0, None)
    """
    found = _FIGURE.match(cell)
    if found is None:
        return None
    unit = found[2]
    prefix = _SI.match(unit)
    scale = (
        _SCALES.get(unit) or _SCALES.get(unit.removesuffix("s")) or (_PREFIXES[prefix[1]] if prefix else 1.0)
    )
    return float(found[1].replace(",", "")) * scale
