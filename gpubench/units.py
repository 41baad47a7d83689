"""Unit aliases, and functions that format numbers as text.

Inside gpubench, quantities are in SI base units (seconds, hertz, bytes, watts, joules), and their names end
in the unit. They are formatted only for output. ``None`` means unknown and prints as "—".
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeAlias

from gpubench.today import now

Seconds: TypeAlias = float
Bytes: TypeAlias = int
Watts: TypeAlias = float
Joules: TypeAlias = float

UNKNOWN = "—"
KIB, MIB, GIB = 1024, 1024**2, 1024**3
_SI_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
# The shortest duration in each unit, the seconds in the unit, and its name.
_TIME_STEPS = (
    (48 * 3600, 86400, "days"),
    (3600, 3600, "h"),
    (60, 60, "min"),
    (1, 1, "s"),
    (1e-3, 1e-3, "ms"),
)


def format_number(value: float | None, digits: int = 3) -> str:
    """Format a number with this many significant digits and no exponent: 0.0123, 1.23, 123, 12,300.

    >>> format_number(12345.6), format_number(0.012345), format_number(None)
    ('12,300', '0.0123', '—')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    if rounded != 0:  # 9.996 becomes 10.00: one decimal fewer
        exponent = math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits - 1 - exponent)}f}"


def format_whole(value: int | None) -> str:
    """Format a count with thousands separators: 16896 is "16,896"."""
    return UNKNOWN if value is None else f"{value:,}"


def format_si(value: float | None, unit: str) -> str:
    """Format with an SI prefix: 6.69e13 "FLOP/s" is "66.9 TFLOP/s".

    >>> format_si(66.9e12, "FLOP/s"), format_si(4.8e12, "B/s"), format_si(None, "B/s")
    ('66.9 TFLOP/s', '4.80 TB/s', '—')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for step, prefix in _SI_STEPS:
        if abs(value) >= step:
            return f"{format_number(value / step)} {prefix}{unit}"
    return f"{format_number(value)} {unit}"


def format_quantity(value: float, unit: str) -> str:
    """Format a time or a rate by its unit.

    >>> format_quantity(0.25, "s"), format_quantity(4.8e12, "B/s")
    ('250 ms', '4.80 TB/s')
    """
    return format_duration(value) if unit == "s" else format_si(value, unit)


def format_bytes(value: float | None) -> str:
    """Format a memory size in binary units: 150754820096 is "140 GiB"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for step, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(value) >= step:
            return f"{format_number(value / step)} {unit}"
    return f"{value:.0f} B"


def format_duration(seconds: float | None) -> str:
    """Format a duration: 0.0012 is "1.20 ms", 95 is "1.58 min", 100000 is "27.8 h".

    >>> format_duration(0)
    '0 s'
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds == 0:
        return "0 s"
    for least_s, unit_s, unit in _TIME_STEPS:
        if seconds >= least_s:
            return f"{format_number(seconds / unit_s)} {unit}"
    return f"{format_number(seconds * 1e6)} µs"


def format_limit(seconds: float) -> str:
    """Format a time limit, rounded up to whole minutes, or to whole seconds below two minutes.

    >>> format_limit(300), format_limit(1451.2), format_limit(45)
    ('5 min', '25 min', '45 s')
    """
    return f"{math.ceil(seconds / 60)} min" if seconds >= 120 else f"{math.ceil(seconds)} s"


LEAST_USD = 0.0001
"""Smaller amounts of money are shown as "under" this amount."""


def format_usd(value: float | None) -> str:
    """Format money: two decimals from a dollar up, else three significant digits, or "under" ``LEAST_USD``.

    >>> format_usd(0.0000360)
    'under $0.0001'
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 0 < abs(value) < LEAST_USD:
        return f"under ${LEAST_USD}"
    return f"${value:,.2f}" if abs(value) >= 1 or value == 0 else f"${format_number(value)}"


def format_price(value: float | None) -> str:
    """Format a purchase price, to the dollar: 2233.2 is "$2,233"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"${value:,.0f}"


def format_chance(chance: float | None) -> str:
    """Format a probability in whole percent, with "< 1 %" and "> 99 %" near the ends.

    >>> format_chance(0.235), format_chance(0.002), format_chance(0.9999), format_chance(0)
    ('24 %', '< 1 %', '> 99 %', '0 %')
    """
    if chance is None or not math.isfinite(chance):
        return UNKNOWN
    if 0.99 < chance < 1:
        return "> 99 %"
    if 0 < chance < 0.01:
        return "< 1 %"
    return f"{chance * 100:.0f} %"


def format_percent(ratio: float | None, digits: int = 2) -> str:
    """Format a ratio from 0 to 1 as percent: 0.0213 is "2.1 %"."""
    return UNKNOWN if ratio is None or not math.isfinite(ratio) else f"{format_number(ratio * 100, digits)} %"


def figure_in(text: str) -> float | None:
    """Parse a number; None if the text is not a finite number.

    >>> figure_in(" 1e3"), figure_in("none"), figure_in("inf")
    (1000.0, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


MOST_NAME = 80
"""Maximum characters of one name in a sentence."""


# Unicode categories of characters that control a terminal or end a line.
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def plain(text: str, limit: int = 200) -> str:
    """Strip control characters, such as those that begin escape sequences, and limit the length."""
    if text.isprintable():  # the usual case: nothing to strip
        kept = text
    else:
        kept = "".join(c for c in text if unicodedata.category(c) not in _NOT_SHOWN)
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


_RIGHT_TO_LEFT = r"[\u0590-\u08FF\uFB1D-\uFDFF\uFE70-\uFEFC\U00010800-\U00010FFF\U0001E800-\U0001EFFF]"
_RIGHT_TO_LEFT_WORDS = re.compile(rf"{_RIGHT_TO_LEFT}+(?:[\s_.-]+{_RIGHT_TO_LEFT}+)*")


def isolated(text: str) -> str:
    """Isolate right-to-left words, so they do not reorder adjacent text.

    Otherwise, a price that follows a Hebrew name would be displayed before that name.

    >>> isolated("at \u05d0\u05d1, $8.94") == "at \u2068\u05d0\u05d1\u2069, $8.94"
    True
    """
    return _RIGHT_TO_LEFT_WORDS.sub("\u2068\\g<0>\u2069", text)


def plural(unit: str) -> str:
    """Return the plural of a noun; a word ending in a single s is taken to be plural already.

    >>> plural("image"), plural("samples"), plural("batch"), plural("process"), plural("epoch")
    ('images', 'samples', 'batches', 'processes', 'epochs')
    """
    if unit.endswith(("ss", "sh", "ch", "x")) and not unit.endswith("epoch"):
        return f"{unit}es"
    return unit if unit.endswith("s") else f"{unit}s"


def capitalized(words: str) -> str:
    """Capitalize the first letter; ``str.capitalize`` would lowercase the rest, such as a GPU name.

    >>> capitalized("hours of RTX 4090")
    'Hours of RTX 4090'
    """
    return words[:1].upper() + words[1:]


def count(number: float, noun: str) -> str:
    """Return a number with its noun, singular or plural.

    >>> count(1, "row"), count(1200, "row"), count(1.0, "year"), count(2.5, "year")
    ('1 row', '1,200 rows', '1 year', '2.5 years')
    """
    shown = f"{number:,}" if isinstance(number, int) else f"{number:,g}"
    return f"{shown} {noun if number == 1 else plural(noun)}"


def per_second(sample_unit: str) -> str:
    """Return the unit of a rate; a unit from user input becomes safe to print.

    >>> per_second("image"), per_second("tokens")
    ('images/s', 'tokens/s')
    """
    return f"{plural(plain(sample_unit, 20))}/s"


def listing(names: Iterable[str], most: int | None = None) -> str:
    """Join names for a sentence; those beyond ``most`` are counted, unless there is only one.

    >>> listing(["cnn", "lstm", "vgg16"]), listing(["cnn"]), listing("abcde", most=3)
    ('cnn, lstm and vgg16', 'cnn', 'a, b, c and 2 more')
    """
    known = [plain(name, MOST_NAME) for name in names]
    if most is not None and len(known) > most + 1:
        known = [*known[:most], f"{len(known) - most} more"]
    return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)


def span(values: Sequence[str]) -> str:
    """Return the first and the last of some sorted texts as a range; one text stands for itself.

    >>> span(["1", "2", "4"]), span(["8", "8"]), span([])
    ('1 to 4', '8', '')
    """
    return " to ".join(dict.fromkeys((*values[:1], *values[-1:])))


def utc_stamp(moment: datetime | None = None) -> str:
    """Format a time, by default now, as ISO 8601 in UTC, to the second.

    >>> from datetime import UTC
    >>> utc_stamp(datetime(2026, 11, 20, 9, 30, tzinfo=UTC))
    '2026-11-20T09:30:00Z'
    """
    return f"{moment or now():%Y-%m-%dT%H:%M:%SZ}"
