"""What a cell of figures is worth: the page sorts its tables by this, so that 900 µs stand below 1.2 ms."""

from __future__ import annotations

import re

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
