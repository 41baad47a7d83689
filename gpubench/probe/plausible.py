"""What a reading can be: the one gate at which native units become SI, and nonsense becomes unknown.

Drivers report "not available" as a value with all bits set, and some do not document it. A failing card may
answer anything. The limits are far beyond today's cards, and far below such values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")
_ALL_BITS = frozenset({2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1})


class ImplausibleError(ValueError):
    """A driver answered with what no device can have; the message holds the value."""


@dataclass(frozen=True)
class Gate:
    """Lets a number through that is possible, in SI units.

    Attributes:
        what: The quantity, for the message.
        unit: Native unit of what comes in.
        least: Least possible value, in SI units.
        most: Largest possible value, in SI units.
        factor: Native to SI, where the native unit is the larger one.
        divisor: The same where it is the smaller one; both are whole, so that nothing is lost in between.
        whole: Whether the result is a whole number.
    """

    what: str
    unit: str
    least: float
    most: float
    factor: int = 1
    divisor: int = 1
    whole: bool = False

    def of(self, unit: str, *, factor: int = 1, divisor: int = 1) -> Gate:
        """The same quantity, read in another unit."""
        return replace(self, unit=unit, factor=factor, divisor=divisor)

    def __call__(self, native: float) -> Any:
        """The value in SI units.

        Raises:
            ImplausibleError: If it has all bits set, or lies outside the limits.
        """
        scaled = native * self.factor
        value = scaled // self.divisor if self.whole else scaled / self.divisor
        if native in _ALL_BITS or not self.least <= value <= self.most:
            seen = f"{native} {self.unit}".strip()
            raise ImplausibleError(f"{seen} is not a possible {self.what}")
        return int(value) if self.whole else float(value)


@dataclass(frozen=True)
class Choice:
    """Lets an answer through that is one of a few, and says what it means."""

    what: str
    meaning: Mapping[Any, Any]

    def __call__(self, native: Any) -> Any:
        """What the answer means.

        Raises:
            ImplausibleError: If it is none of them.
        """
        if native not in self.meaning:
            raise ImplausibleError(f"{native!r} is not a known {self.what}")
        return self.meaning[native]


def taken(
    convert: Callable[[Any], T], native: Any, field: str, refused: dict[str, str], source: str = ""
) -> T | None:
    """Return what an answer means; None, with the reason noted under the field, where it cannot be.

    Args:
        convert: A gate, or whatever raises ``ImplausibleError``.
        native: The answer.
        field: Whose value it is.
        refused: If the reason is noted.
        source: What was asked, for the reason.
    """
    try:
        return convert(native)
    except ImplausibleError as error:
        refused[field] = f"{source}: {error}" if source else str(error)
        return None


def part(take: Callable[[Any], Any], convert: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a function that converts one part of an answer."""
    return lambda answer: convert(take(answer))


# Quantities in SI units; a backend reads them `of` its own units.
POWER = Gate("power", "W", 0, 10_000)
POWER_LIMIT = replace(POWER, what="power limit", least=1)
ENERGY = Gate("energy count", "J", 1e-3, 1e13)  # a counter at 0 does not work
SM_CLOCK = Gate("clock", "Hz", 0, 10e9)
MEMORY_CLOCK = Gate("clock", "Hz", 0, 50e9)  # GDDR7 is reported at 14 GHz
HIGHEST_SM_CLOCK = replace(SM_CLOCK, least=1e6)
HIGHEST_MEMORY_CLOCK = replace(MEMORY_CLOCK, least=1e6)
TEMPERATURE = Gate("temperature", "°C", -50, 150)
UTILIZATION = Gate("utilization", "", 0, 1)
UTILIZATION_PERCENT = UTILIZATION.of("%", divisor=100)
MEMORY = Gate("size of memory", "B", 2**20, 2**46, whole=True)
MEMORY_USED = replace(MEMORY, what="amount of memory", least=0)
BUS_WIDTH = Gate("width of a memory bus", "bit", 8, 2**17, whole=True)
CORES = Gate("count of cores", "", 1, 10**6, whole=True)
SMS = Gate("count of multiprocessors", "", 1, 10**4, whole=True)
DEVICES = Gate("count of devices", "", 0, 1024, whole=True)
ERRORS = Gate("count of errors", "", 0, 2**53, whole=True)
HELD = Gate("time", "s", 0, 1e9)
EVENT_BITS = Gate("set of clock event reasons", "", 0, 2**64 - 1, whole=True)
CUDA_RELEASE = Gate("CUDA release", "", 1000, 99_990, whole=True)
_CAPABILITY = Gate("compute capability", "", 1, 99, whole=True)
_REVISION = replace(_CAPABILITY, least=0)
PCIE_GENERATION = Gate("PCIe generation", "", 1, 9, whole=True)
PCIE_WIDTH = Choice("PCIe width", {lanes: lanes for lanes in (1, 2, 4, 8, 12, 16, 32)})
SWITCH = Choice("state of a switch", {0: False, 1: True})


def capability(pair: tuple[int, int]) -> tuple[int, int]:
    """A compute capability.

    Raises:
        ImplausibleError: If one of its two numbers is impossible.
    """
    major, minor = pair
    return _CAPABILITY(major), _REVISION(minor)


def text(native: str) -> str:
    """A name or a version that says something.

    Raises:
        ImplausibleError: If it is empty.
    """
    if not native.strip():
        raise ImplausibleError("the answer is empty")
    return native
