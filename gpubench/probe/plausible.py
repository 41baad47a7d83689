"""Plausibility checks: convert a driver's values to SI units, and impossible values to unknown.

Drivers report "not available" as a value with all bits set, in some cases without documenting it, and a
failing card may report anything. The limits are far above what current cards report and far below values with
all bits set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")
_ALL_BITS = frozenset({2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1})


class ImplausibleError(ValueError):
    """A driver reported an impossible value, which the message contains."""


@dataclass(frozen=True)
class Gate:
    """Converts a number to SI units and rejects impossible values.

    Attributes:
        what: The quantity, for the message.
        unit: Native unit of the input.
        least: Smallest possible value, in SI units.
        most: Largest possible value, in SI units.
        factor: Multiplier from native to SI units, if the native unit is larger.
        divisor: Divisor from native to SI units, if the native unit is smaller; both are integers to avoid
            rounding.
        whole: Whether the result is an integer.
    """

    what: str
    unit: str
    least: float
    most: float
    factor: int = 1
    divisor: int = 1
    whole: bool = False

    def in_unit(self, unit: str, *, factor: int = 1, divisor: int = 1) -> Gate:
        """Return the gate for the same quantity in another unit."""
        return replace(self, unit=unit, factor=factor, divisor=divisor)

    def __call__(self, native: float) -> Any:
        """Return the value in SI units.

        Raises:
            ImplausibleError: If the value has all bits set, or is outside the limits.
        """
        scaled = native * self.factor
        value = scaled // self.divisor if self.whole else scaled / self.divisor
        if native in _ALL_BITS or not self.least <= value <= self.most:
            seen = f"{native} {self.unit}".strip()
            raise ImplausibleError(f"{seen} is not a possible {self.what}")
        return int(value) if self.whole else float(value)


@dataclass(frozen=True)
class Choice:
    """Converts an answer that is one of a few codes to its meaning."""

    what: str
    meaning: Mapping[Any, Any]

    def __call__(self, native: Any) -> Any:
        """Return the meaning of the answer.

        Raises:
            ImplausibleError: If the code is unknown.
        """
        if native not in self.meaning:
            raise ImplausibleError(f"{native!r} is not a known {self.what}")
        return self.meaning[native]


def checked(
    convert: Callable[[Any], T], native: Any, field: str, refused: dict[str, str], source: str = ""
) -> T | None:
    """Return the converted answer; None, with the reason noted under the field, if it is impossible.

    Args:
        convert: Converts the answer, or raises ``ImplausibleError``.
        native: The answer in native units.
        field: The field that the value is for.
        refused: Collects the reasons.
        source: What was queried, for the reason.
    """
    try:
        return convert(native)
    except ImplausibleError as error:
        refused[field] = f"{source}: {error}" if source else str(error)
        return None


def part(take: Callable[[Any], Any], convert: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a function that converts one part of an answer."""
    return lambda answer: convert(take(answer))


# Quantities in SI units, except that every driver reports clocks in MHz and utilization in percent; a backend
# converts its other units with `in_unit`.
POWER = Gate("power", "W", 0, 10_000)
POWER_LIMIT = replace(POWER, what="power limit", least=1)
ENERGY = Gate("energy count", "J", 1e-3, 1e13)  # a counter that stays at 0 does not work
SM_CLOCK = Gate("clock", "MHz", 0, 10e9, factor=10**6)
MEMORY_CLOCK = Gate("clock", "MHz", 0, 50e9, factor=10**6)  # GDDR7 is reported at 14 GHz
HIGHEST_SM_CLOCK = replace(SM_CLOCK, least=1e6)
HIGHEST_MEMORY_CLOCK = replace(MEMORY_CLOCK, least=1e6)
TEMPERATURE = Gate("temperature", "°C", -50, 150)
UTILIZATION = Gate("utilization", "%", 0, 1, divisor=100)
MEMORY = Gate("memory size", "B", 2**20, 2**46, whole=True)
MEMORY_USED = replace(MEMORY, what="amount of memory", least=0)
BUS_WIDTH = Gate("memory bus width", "bit", 8, 2**17, whole=True)
CORES = Gate("core count", "", 1, 10**6, whole=True)
SMS = Gate("multiprocessor count", "", 1, 10**4, whole=True)
DEVICES = Gate("device count", "", 0, 1024, whole=True)
ERRORS = Gate("error count", "", 0, 2**53, whole=True)
HELD_TIME = Gate("time", "s", 0, 1e9)
EVENT_BITS = Gate("set of clock event reasons", "", 0, 2**64 - 1, whole=True)
CUDA_RELEASE = Gate("CUDA release", "", 1000, 99_990, whole=True)
_CAPABILITY = Gate("compute capability", "", 1, 99, whole=True)
_REVISION = replace(_CAPABILITY, least=0)
PCIE_GENERATION = Gate("PCIe generation", "", 1, 9, whole=True)
PCIE_WIDTH = Choice("PCIe width", {lanes: lanes for lanes in (1, 2, 4, 8, 12, 16, 32)})
SWITCH = Choice("on/off state", {0: False, 1: True})


def capability(pair: tuple[int, int]) -> tuple[int, int]:
    """Check a compute capability, and return it unchanged.

    Raises:
        ImplausibleError: If either number is impossible.
    """
    major, minor = pair
    return _CAPABILITY(major), _REVISION(minor)


def text(native: str) -> str:
    """Check that a name or version is not empty, and return it unchanged.

    Raises:
        ImplausibleError: If it is empty.
    """
    if not native.strip():
        raise ImplausibleError("the answer is empty")
    return native
