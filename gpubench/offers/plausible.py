"""Which prices and counts can be true: the checks that every row from a file or a provider passes."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np

from gpubench.arrays import Flags, Floats
from gpubench.models import Offer
from gpubench.offers.dates import price_day
from gpubench.offers.request import KINDS
from gpubench.specs import load_specs
from gpubench.units import GIB, figure_in

MIN_USD_PER_HOUR, MAX_USD_PER_HOUR = Decimal("0.001"), Decimal(100_000)
"""The cheapest GPU ever rented cost cents an hour, the dearest instance a few hundred dollars."""

_LOW, _HIGH = float(MIN_USD_PER_HOUR), float(MAX_USD_PER_HOUR)

MAX_GPU_COUNT = 1024
MAX_VCPUS = 100_000.0
MAX_RAM_GIB = 1_000_000.0
MAX_CELL_CHARACTERS = 600


class ImplausibleError(ValueError):
    """One row says something that cannot be used; the message is the reason shown for it."""


def price(text: str, kind: str = "vm") -> Decimal:
    """Return a price of the whole instance [USD/h], or raise with the reason; free costs 0 and only that."""
    try:
        if kind != "free" and _LOW <= float(text) <= _HIGH:  # NaN fails every comparison
            return Decimal(text)
        value = Decimal(text)
    except (InvalidOperation, ValueError):
        raise ImplausibleError(f"price {text[:40]!r} is not a number") from None
    if not value.is_finite():
        raise ImplausibleError(f"price {text[:40]!r} is not finite")
    if kind == "free":
        if value != 0:
            raise ImplausibleError(f"price {text[:40]} of a free offer is not 0")
        return value
    if value <= 0:
        raise ImplausibleError(f"price {text[:40]} is not above 0")
    raise ImplausibleError(f"price {text[:40]} USD/h is outside {MIN_USD_PER_HOUR} to {MAX_USD_PER_HOUR:,}")


def figures(cells: Sequence[str]) -> Floats:
    """Return what cells of a column of numbers say; what is no number is NaN."""
    try:
        return np.fromiter(map(float, cells), float, len(cells))
    except ValueError:
        return np.array([figure_in(cell) for cell in cells], dtype=float)  # None becomes NaN


def are_prices(figures: Floats) -> Flags:
    """Return which figures can be the price of an instance that is not free; see ``price``."""
    return (figures >= _LOW) & (figures <= _HIGH)  # NaN fails every comparison


def gpu_count(text: str) -> int:
    """Return a count of whole GPUs, or raise with the reason."""
    try:
        value = float(text)
    except ValueError:
        raise ImplausibleError(f"GPU count {text[:40]!r} is not a number") from None
    if not math.isfinite(value) or value != int(value):
        raise ImplausibleError(f"GPU count {text[:40]} is not a whole number: a share of a GPU is not ranked")
    if not 1 <= value <= MAX_GPU_COUNT:
        raise ImplausibleError(f"GPU count {text[:40]} is outside 1 to {MAX_GPU_COUNT}")
    return int(value)


def vcpus(text: str) -> float | None:
    """Return a count of virtual CPUs; blank is unknown."""
    return _amount(text, "vCPU count", MAX_VCPUS)


def ram_bytes(gib: str) -> int | None:
    """Return host memory [B] from GiB; blank is unknown."""
    value = _amount(gib, "RAM", MAX_RAM_GIB)
    return None if value is None else round(value * GIB)


def _amount(text: str, what: str, limit: float) -> float | None:
    if not text:
        return None
    value = figure_in(text)
    if value is None or not 0 < value <= limit:
        raise ImplausibleError(f"{what} {text[:40]!r} is not between 0 and {limit:g}")
    return value


def check_texts(cells: Iterable[str]) -> None:
    """Raise unless every text can be shown in a terminal, a page and a spreadsheet as what it says."""
    for cell in cells:
        if not cell:
            continue
        if cell[0] in "=+-@":
            raise ImplausibleError(f"cell {cell[:40]!r} starts like a spreadsheet formula")
        if len(cell) > MAX_CELL_CHARACTERS:
            raise ImplausibleError(f"cell {cell[:20]!r}... is longer than {MAX_CELL_CHARACTERS} characters")
        if not cell.isprintable() and any(unicodedata.category(c).startswith("C") for c in cell):
            raise ImplausibleError(f"cell {cell[:40]!r} holds control characters")


_FORMULA = re.compile("^[=+@-]", re.MULTILINE)


def are_texts(cells: Sequence[str]) -> bool:
    """Return whether ``check_texts`` surely passes: of 100,000 cells this takes a twentieth of the time."""
    together = "\n".join(cells)
    longest = max(map(len, cells), default=0)
    is_shown = together.replace("\n", " ").isprintable()
    return is_shown and longest <= MAX_CELL_CHARACTERS and _FORMULA.search(together) is None


def check_kind(kind: str) -> None:
    """Raise unless a kind of offer is one of ``KINDS``."""
    if kind not in KINDS:
        raise ImplausibleError(f"kind {kind[:40]!r} is none of {', '.join(KINDS)}")


def check_offer(offer: Offer) -> None:
    """Raise unless an offer that was stored or fetched holds to the same limits as a row of a file."""
    place = (offer.provider, offer.instance, offer.region or "")
    check_texts((*place, offer.kind, offer.price_date, offer.source, offer.note or ""))
    if not (offer.provider and offer.instance and offer.source):
        raise ImplausibleError("no provider, instance or source named")
    check_kind(offer.kind)
    if offer.gpu_key not in load_specs():
        raise ImplausibleError(f"GPU {offer.gpu_key[:60]!r} is unknown")
    price_day(offer.price_date)
    price(str(offer.price_usd_per_hour), offer.kind)
    gpu_count(str(offer.gpu_count))
    vcpus("" if offer.vcpus is None else str(offer.vcpus))
    ram_bytes("" if offer.ram_bytes is None else str(offer.ram_bytes / GIB))
