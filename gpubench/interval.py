"""A value with its interval bounds, and functions to print them.

In memory the three numbers are one ``Interval``; files and JSON have flat keys (``x``, ``x_low``,
``x_high``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gpubench.units import UNKNOWN, format_number, per_second

_COMPACT_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_LARGE_STEPS = ((1e9, " billion"), (1e6, " million"))
MOST_DIGITS = 6
"""Maximum significant digits; no interval of a measurement supports more."""
# Relative full width below which a compact text has three digits instead of two.
_NARROW = 0.1


class Interval(msgspec.Struct, frozen=True, gc=False):
    """An estimate with the lower and upper bound of its interval; None means unknown.

    A lower bound without an upper one means that the value is too uncertain for an upper bound.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def bounded(self) -> bool:
        """Whether both bounds are known."""
        return self.low is not None and self.high is not None

    @property
    def collapsed(self) -> Interval:
        """The value without bounds if both equal it, as for a reference GPU relative to itself."""
        return Interval(self.value) if self.low == self.value == self.high else self

    def holds(self, number: float) -> bool | None:
        """Return whether a number is within the interval; None if a bound is unknown."""
        return None if self.low is None or self.high is None else self.low <= number <= self.high

    def each(self, function: Callable[[float], float]) -> Interval:
        """Apply an increasing function to the value and both bounds; unknowns stay unknown."""
        return Interval(*(None if x is None else function(x) for x in (self.value, self.low, self.high)))

    def over(self, divisor: float) -> Interval:
        """Divide by an exact positive number."""
        return self.each(lambda number: number / divisor)

    def times(self, other: Interval) -> Interval:
        """Multiply two positive values with independent errors: widths of the logarithms add in quadrature.

        >>> Interval(10.0, 8.0, 12.5).times(Interval(2.0, 2.0, 2.0))
        Interval(value=20.0, low=16.0, high=25.0)
        """
        if self.value is None or other.value is None:
            return Interval(None)
        value = self.value * other.value
        ends: list[float | None] = []
        for sign, mine, its in ((-1, self.low, other.low), (1, self.high, other.high)):
            if mine is None or its is None or min(mine, its, self.value, other.value) <= 0:
                ends.append(None)
                continue
            width = math.hypot(math.log(mine / self.value), math.log(its / other.value))
            ends.append(value * math.exp(sign * width))
        return Interval(value, *ends)

    def inverse(self) -> Interval:
        """Return the reciprocal; multiplying by it divides.

        >>> Interval(4.0, 2.0, 8.0).inverse()
        Interval(value=0.25, low=0.125, high=0.5)
        """
        return Interval(*(None if x is None else 1 / x for x in (self.value, self.high, self.low)))

    def text(self, unit: str = "", digits: int = MOST_DIGITS) -> str:
        """Return value and bounds, rounded to a place that the interval supports; the unit follows the value.

        The place is a fifth of the half-width or finer, unless ``digits`` are too few for that. A bound can
        look like the value only if they are too few, or if the other bound is much farther away.

        >>> Interval(1653.7, 1572.8, 1743.3).text(), Interval(4.4321, 4.41, 4.45).text("×")
        ('1,650 (1,570 to 1,740)', '4.432× (4.410 to 4.450)')
        >>> Interval(73.3, 40.0).text(), Interval(2.0).text("×"), Interval(None).text()
        ('73 (at least 40)', '2.00×', '—')
        """
        point, ends = self.parts(digits)
        if self.value is None:
            return point
        return f"{point}{unit} ({ends})" if ends else f"{point}{unit}"

    def parts(self, digits: int = MOST_DIGITS) -> tuple[str, str]:
        """Return the value and its bounds as two strings, rounded as in ``text``; unknown bounds are empty.

        With fewer ``digits`` than the default, bounds that both look like the value are left out.

        >>> Interval(1653.7, 1572.8, 1743.3).parts(), Interval(73.3, 40.0).parts(), Interval(2.0).parts()
        (('1,650', '1,570 to 1,740'), ('73', 'at least 40'), ('2.00', ''))
        >>> Interval(3612.1, 3580.0, 3640.2).parts(3), Interval(3612.1, 3611.9, 3612.3).parts(3)
        (('3,610', '3,580 to 3,640'), ('3,610', ''))
        """
        if self.value is None:
            return UNKNOWN, ""
        if self.low is None:
            return format_number(self.value), ""
        if self.high is None:
            return format_number(self.value, 2), f"at least {format_number(self.low, 2)}"
        largest = max(abs(self.value), abs(self.low), abs(self.high))
        if largest == 0:
            return "0", "0 to 0"
        finest = math.floor(math.log10(largest)) + 1 - digits
        place = (self.high - self.low) / 2 / 5 if self.high > self.low else largest / 1e3
        exponent = max(finest, math.floor(math.log10(place)))
        point, low, high = (_to_place(number, exponent) for number in (self.value, self.low, self.high))
        return point, "" if point == low == high and digits < MOST_DIGITS else f"{low} to {high}"

    def rate(self, sample_unit: str, digits: int = MOST_DIGITS) -> str:
        """Format a throughput, given a sample unit that comes from user input.

        >>> Interval(1653.7, 1572.8, 1743.3).rate("image")
        '1,650 (1,570 to 1,740) images/s'
        """
        return f"{self.text(digits=digits)} {per_second(sample_unit)}"

    def words(self, digits: int = MOST_DIGITS) -> str:
        """Return the text with large values in millions or billions.

        >>> Interval(12.3e6, 9.4e6, 16.8e6).words(), Interval(3166.4, 3150.2, 3181.9).words()
        ('12.3 (9.4 to 16.8) million', '3,166 (3,150 to 3,182)')
        """
        for step, word in _LARGE_STEPS:
            if self.value is not None and self.value >= step:
                return self.over(step).text(digits=digits) + word
        return self.text(digits=digits)

    def compact(self) -> str:
        """Return value and bounds in few characters, with one SI prefix for all three.

        Without an upper bound, the lower one is left out too.

        >>> Interval(9.9e6, 5.9e6, 17e6).compact(), Interval(3166.4, 3150.2, 3181.9).compact()
        ('9.9M (5.9 to 17)', '3.17k (3.15 to 3.18)')
        >>> Interval(0.5).compact(), Interval(None).compact()
        ('0.50', '—')
        """
        if self.value is None:
            return UNKNOWN
        value = self.value
        step, prefix = next((pair for pair in _COMPACT_STEPS if value >= pair[0]), (1.0, ""))
        if self.low is None or self.high is None:
            return f"{format_number(value / step, 2)}{prefix}"
        digits = 3 if self.high - self.low < _NARROW * value else 2
        point, low, high = (format_number(number / step, digits) for number in (value, self.low, self.high))
        return f"{point}{prefix} ({low} to {high})"

    def by(self, form: Callable[[float], str], unit: str = "") -> str:
        """Return value and bounds formatted by a function, with the unit, if any, after the value.

        >>> Interval(1.5, 1.25, 2.0).by("{:.2f}".format, "x"), Interval(1.5).by("{:.2f}".format)
        ('1.50x (1.25 to 2.00)', '1.50')
        """
        if self.value is None:
            return UNKNOWN
        point = f"{form(self.value)}{unit}"
        if self.low is None:
            return point
        if self.high is None:
            return f"{point} (at least {form(self.low)})"
        return f"{point} ({form(self.low)} to {form(self.high)})"


UNKNOWN_INTERVAL = Interval(None)


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in the format of files and JSON: an interval ``x`` as ``x``, ``x_low`` and ``x_high``.

    >>> flat({"hours": Interval(2.0, 1.5, 3.0), "pricing": "spot"})
    {'hours': 2.0, 'hours_low': 1.5, 'hours_high': 3.0, 'pricing': 'spot'}
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Interval):
            found |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        else:
            found[name] = value
    return found


def faster_words(ratio: Interval, first: str, second: str) -> str:
    """State which of two is faster and by what factor, with the interval.

    An interval that contains 1 shows no difference, but does not prove that there is none. The text states
    the smallest difference that the interval rules out, in tenths of a percent.

    Args:
        ratio: Ratio of the first one's throughput to the second one's.
        first: Name of the first.
        second: Name of the second.

    >>> faster_words(Interval(1.5, 1.46, 1.54), "B", "A")
    'B is 1.50 times (1.46 to 1.54) as fast as A'
    >>> faster_words(Interval(0.5, 0.4, 0.8), "B", "A")
    'A is 2.00 times (1.25 to 2.50) as fast as B'
    >>> faster_words(Interval(1.0, 0.981, 1.02), "B", "A")
    'no difference found; 2 % would have been detected'
    """
    low, value, high = ratio.low, ratio.value, ratio.high
    if low is None or value is None or high is None:
        return "undecided: the interval of the ratio is not known"
    if low <= 1 <= high:
        reach = math.ceil(round(1000 * max(1 - low, high - 1), 6)) / 10
        return f"no difference found; {reach:g} % would have been detected"
    if value < 1:
        ratio, first, second = ratio.inverse(), second, first
    return f"{first} is {_times(ratio)} as fast as {second}"


def _times(ratio: Interval) -> str:
    """Format a ratio with two decimal places, or more to distinguish its value, its bounds and 1."""
    places = 2
    numbers = [1.0, *(x for x in (ratio.value, ratio.low, ratio.high) if x is not None)]
    while len({f"{x:.{places}f}" for x in numbers}) < len(numbers) and places < MOST_DIGITS:
        places += 1
    return ratio.by(f"{{:.{places}f}}".format, " times")


def _to_place(value: float, exponent: int) -> str:
    """Round to a power of ten; a number that is too small for that keeps two significant digits."""
    if abs(value) < 10.0 ** (exponent + 1):
        return format_number(value, 2)
    return f"{round(value, -exponent):,.{max(0, -exponent)}f}"


def stacked(text: str) -> str:
    r"""Move the bounds of a printed interval to a second line of the table cell.

    >>> stacked("12 (9.4 to 17) million"), stacked("41 % (or H100 (SXM or PCIe) 30 %)"), stacked("—")
    ('12 million\n9.4 to 17 million', '41 %\nor H100 (SXM or PCIe) 30 %', '—')
    """
    point, bracket, rest = text.partition(" (")
    if not bracket:
        return text
    ends, _, unit = rest.rpartition(")")
    return f"{point}{unit}\n{ends}{unit}"
